"""Time by operation of TPU files is what XProf makes of them.

XProf reads in a process of its own: its libraries and DuckDB's do not go together in one.
"""

import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from tracegap.ingest.pipeline import read_trace

BY_NAME = "xla_ops_by_name[n,ps,device_duration_ps]"
PS_PER_US = 10**6
PS_PER_NS = 10**3
HLO_STATS = """
import json, sys
from xprof.convert import raw_to_tool_data
data, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], "hlo_stats", {})
table = json.loads(data)
place = {column["id"]: i for i, column in enumerate(table["cols"])}
names = ("program_id", "hlo_op_name", "occurrences", "total_time")
print(json.dumps([[row["c"][place[name]]["v"] for name in names] for row in table["rows"]]))
"""
"""Program, operation, occurrences and total time (us) of each operation, devices added up."""


def tpu_files(corpus: Path) -> list[Path]:
    """Files of a corpus that are TPU profiles."""
    listed = json.loads((corpus / "expected.json").read_text())
    return [
        corpus / name
        for name, entry in listed.items()
        if entry.get("kind") == "xplane" and any(p["name"].startswith("/device:TPU:") for p in entry["facts"]["planes"])
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    found = tpu_files(metafunc.config.getoption("--corpus"))
    metafunc.parametrize("path", found, ids=[p.name for p in found])


def by_xprof(path: Path, scratch: Path) -> dict[str, tuple[int, float]]:
    """Occurrences and total time, us, by program and operation."""
    data = path.read_bytes()
    plain = scratch / "host.xplane.pb"
    plain.write_bytes(gzip.decompress(data) if path.suffix == ".gz" else data)
    done = subprocess.run([sys.executable, "-c", HLO_STATS, plain], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout.splitlines()[-1])
    return {f"{program}/{name}": (round(calls), us) for program, name, calls, us in rows}


def test_time_by_operation_is_that_of_xprof(path: Path, tmp_path: Path) -> None:
    calls: Counter[str] = Counter()
    own_ps: Counter[str] = Counter()
    for plane in read_trace(path).facts["planes"]:
        for name, (n, _, device_ps) in plane.get(BY_NAME, {}).items():
            calls[name] += n
            own_ps[name] += device_ps
    expected = by_xprof(path, tmp_path)
    assert expected
    assert calls == {name: n for name, (n, _) in expected.items()}
    assert {name: ps / PS_PER_US for name, ps in own_ps.items()} == pytest.approx(
        {name: us for name, (_, us) in expected.items()}, rel=1e-9
    )


def test_operations_add_up_to_their_events(path: Path) -> None:
    """Operations of the core in our table take the time of the file's events, to the rounding of both ends to ns."""
    trace = read_trace(path)
    events: Counter[str] = Counter()
    ps: Counter[str] = Counter()
    for plane in trace.facts["planes"]:
        for name, (n, total, _) in plane.get(BY_NAME, {}).items():
            events[name.split("/", 1)[1]] += n
            ps[name.split("/", 1)[1]] += total
    core = trace.ops.filter(pl.col("stream") != "async").group_by("name").agg(pl.len(), pl.col("dur_ns").sum())
    assert len(core)
    for name, n, ns in core.iter_rows():
        assert n == events[name], name
        assert ns == pytest.approx(ps[name] / PS_PER_NS, abs=n), name

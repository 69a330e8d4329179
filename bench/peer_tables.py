"""What other tools make of the same traces, beside tracegap's numbers, as Markdown tables for docs/peers.md.

Usage: python bench/peer_tables.py TRACES [--peers FOLDER] [--hta PYTHON]

TRACES is a folder; its Kineto JSON is given to HolisticTraceAnalysis (PYTHON is an interpreter that has it) and held against
TraceLens's CSVs in PEERS/<name of the trace>/, its `.xplane.pb` to XProf, which the project's own environment has. A tool
that is not given, or that fails on a file, leaves a dash and its reason. Each tool reads in a process of its own.
"""

import argparse
import ast
import csv
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl

from tracegap.ingest.account import Timeline, states_of
from tracegap.ingest.pipeline import ingest_paths
from tracegap.ingest.store import open_store
from tracegap.reports.join import evaluate

MIB, GIB = 2**20, 2**30

_HTA = """
import json, logging, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
whole = sys.argv[2] == "whole"
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=".", include_last_profiler_step=whole)
[row] = analysis.get_temporal_breakdown(visualize=False).to_dict("records")
print(json.dumps([row[f"{name}_time(us)"] for name in ("kernel", "compute", "non_compute", "idle")]))
"""
_XPROF = """
import json, sys
from xprof.convert import raw_to_tool_data
data, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], "hlo_stats", {})
table = json.loads(data)
place = {column["id"]: i for i, column in enumerate(table["cols"])}
names = ("hlo_op_name", "category", "occurrences", "avg_self_time", "model_flop_rate", "hbm_bw", "bound_by")
print(json.dumps([[row["c"][place[name]]["v"] for name in names] for row in table["rows"]]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Time of a device from its first to its last operation, us."""

    total: float
    compute: float
    exposed: float
    """Communication, copies and fills that run while nothing computes."""
    idle: float

    def cells(self) -> list[str]:
        """As a row of the table."""
        return [_us(self.total), _us(self.total - self.idle), _us(self.compute), _us(self.exposed), _us(self.idle)]


def _us(value: float) -> str:
    return f"{value:,.1f}"


def own_account(con: duckdb.DuckDBPyConnection, where: str = "true") -> Account | None:
    """Our account of all operations, or of those that another tool takes, as one window."""
    rows = con.execute(f"select start_ns, start_ns + dur_ns, op_class from ops where {where}").fetchall()
    if not rows:
        return None
    starts, ends, classes = zip(*rows, strict=True)
    start, end = np.array(starts, np.int64), np.array(ends, np.int64)
    edges = np.array([start.min(), end.max()])
    compute, comm, copy = Timeline.of(start, end, states_of(pl.Series(classes)), edges).spent[:, -1].tolist()
    total = int(edges[1] - edges[0])
    return Account(
        total=total / 1e3,
        compute=compute / 1e3,
        exposed=(comm + copy) / 1e3,
        idle=(total - compute - comm - copy) / 1e3,
    )


def hta_account(python: str | None, path: Path, *, whole: bool) -> Account | str:
    """What HolisticTraceAnalysis says; `whole` with its last step and its times not rounded. A text: why not."""
    if python is None:
        return "not run"
    rounding = {"HTA_DISABLE_NS_ROUNDING": "1"} if whole else {}
    done = subprocess.run(  # noqa: S603 - the interpreter that the caller names
        [python, "-c", _HTA, str(path), "whole" if whole else "default"],
        capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin", **rounding},
    )  # fmt: skip
    if done.returncode:
        return f"fails: {(done.stderr.strip().splitlines() or ['?'])[-1][:60]}"
    total, compute, exposed, idle = json.loads(done.stdout.splitlines()[-1])
    return Account(total=total, compute=compute, exposed=exposed, idle=idle)


def tracelens_account(folder: Path) -> Account | None:
    """TraceLens's `gpu_timeline.csv`."""
    path = folder / "gpu_timeline.csv"
    if not path.exists():
        return None
    with path.open() as file:
        ms = {row["type"]: float(row["time ms"]) for row in csv.DictReader(file)}
    exposed = ms["exposed_comm_time"] + ms["exposed_memcpy_time"]
    return Account(
        total=ms["total_time"] * 1e3,
        compute=ms["computation_time"] * 1e3,
        exposed=exposed * 1e3,
        idle=ms["idle_time"] * 1e3,
    )


def as_hta(con: duckdb.DuckDBPyConnection) -> str:
    """The operations that HolisticTraceAnalysis takes, as a condition.

    With several steps they are those whose call is in the file and begins by the end of the last step; else all.
    """
    [(steps, end)] = con.execute(
        "select count(distinct name), max(start_ns + dur_ns) from host_events where kind = 'step'"
    ).fetchall()
    return f"launch_ns is not null and launch_ns <= {end}" if steps > 1 else "true"


def account_tables(traces: list[Path], peers: Path | None, hta: str | None) -> Iterator[str]:
    """A table of each trace's account by each tool."""
    yield "| trace | who | from first to last | busy | compute | exposed | idle |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for path in traces:
        with _stored(path) as con:
            mine = own_account(con)
            if mine is None or con.execute("select count(*) from devices where kind <> 'cpu'").fetchall() == [(0,)]:
                continue
            rows: list[tuple[str, Account | str | None]] = [("tracegap", mine)]
            rows.append(("HTA", hta_account(hta, path, whole=False)))
            rows.append(("HTA, all steps, no rounding", hta_account(hta, path, whole=True)))
            taken = as_hta(con)
            if taken != "true":
                rows.append(("tracegap, operations that HTA takes", own_account(con, taken)))
            theirs = tracelens_account(peers / _stem(path)) if peers is not None else None
            if theirs is not None:
                rows.append(("TraceLens", theirs))
                if con.execute("select count(*) from ops where launch_ns is null").fetchall() != [(0,)]:
                    rows.append(("tracegap, operations with a launch", own_account(con, "launch_ns is not null")))
        for who, account in rows:
            cells = account.cells() if isinstance(account, Account) else [str(account or "-"), "-", "-", "-", "-"]
            yield f"| {_stem(path)} | {who} | " + " | ".join(cells) + " |"


def operation_tables(traces: list[Path], peers: Path) -> Iterator[str]:
    """FLOPs, bytes and bound of each distinct operation in TraceLens's CSVs, beside ours.

    Its bound is what its own FLOPs and bytes give at the peaks that we take.
    """
    yield "| trace | operation | shapes | calls | GFLOP, ours | TraceLens | MB, ours | TraceLens | bound, ours | TraceLens |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |"
    for path in traces:
        for sheet in ("GEMM.csv", "SDPA_fwd.csv"):
            csv_path = peers / _stem(path) / sheet
            if not csv_path.exists():
                continue
            with csv_path.open() as file, _stored(path) as con:
                for row in csv.DictReader(file):
                    yield _operation(con, _stem(path), row)


def _operation(con: duckdb.DuckDBPyConnection, trace: str, row: dict[str, str]) -> str:
    dims = ast.literal_eval(row["Input Dims_first"])
    flops, moved = float(row["GFLOPS_first"]) * 1e9, float(row["Data Moved (MB)_first"]) * MIB
    found = con.execute(
        """
        with calls as (
            select sum(flops) as flops, sum(bytes) as bytes, any_value(dtype) as dtype,
                   sum(t_math_ns) as t_math, sum(t_mem_ns) as t_mem
            from op_gap where launch_ns is not null and framework_op = $1 and starts_with(shapes, $2)
            group by op_id
        )
        select count(*), min(flops), max(flops), min(bytes), max(bytes), any_value(dtype), bool_or(t_math >= t_mem)
        from calls where flops > 0
        """,
        _ours(row["name"], dims),
    ).fetchall()[0]
    calls, low, high, low_bytes, high_bytes, dtype, by_math = found
    if not calls:
        return f"| {trace} | {row['name']} | `{_short(dims)}` | {row['name_count']} | not found | | | | | |"
    peaks = con.execute(
        "select p.flops_per_s, d.hbm_bytes_per_s from peaks p join devices d using (trace_id, device_id) "
        "where p.unit = 'matrix' and p.dtype = $1",
        [dtype],
    ).fetchall()
    theirs = "-" if not peaks else "compute" if flops / peaks[0][0] >= moved / peaks[0][1] else "memory"
    ours = "compute" if by_math else "memory"
    return (
        f"| {trace} | {row['name']} | `{_short(dims)}` | {row['name_count']} | {_range(low, high, 1e9)} | {flops / 1e9:.4f} "
        f"| {_range(low_bytes, high_bytes, 1e6)} | {moved / 1e6:.4f} | {ours} | {theirs} |"
    )


def _ours(name: str, dims: list[Any]) -> list[str]:
    """Our operator and how its shapes begin: that inside which launches the kernel, where TraceLens names the one around."""
    if name == "aten::_scaled_dot_product_flash_attention":  # heads before tokens; what it calls has them behind
        swapped = [[b, t, n, h] for b, n, t, h in dims[:3]]
        return ["aten::_flash_attention_forward", json.dumps(swapped, separators=(",", ":"))[:-1]]
    return [name, json.dumps(dims, separators=(",", ":"))]


def _range(low: int, high: int, unit: float) -> str:
    return f"{low / unit:.4f}" if low == high else f"{low / unit:.4f} to {high / unit:.4f}"


def _short(dims: list[Any]) -> str:
    return " ".join("x".join(map(str, shape)) for shape in dims if shape)


def xprof_tables(files: list[Path]) -> Iterator[str]:
    """FLOPs, bytes of the HBM and bound of each operation by XProf, beside ours; the 25 of the most time a file."""
    yield "| trace | operation | category | calls | GFLOP, ours | XProf | MB, ours | XProf | bound, ours | XProf |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |"
    for path in files:
        theirs = _by_xprof(path) if b"/device:TPU:" in _plain(path) else []
        with _stored(path) as con:
            ours = {
                name: rest
                for name, *rest in con.execute(
                    "select name, max(flops), max(bytes), any_value(bound), any_value(op_class), any_value(unknown_because) "
                    "from op_gap group by name"
                ).fetchall()
            }
        for name, category, calls, self_us, flop_rate, bandwidth, bound in theirs[:25]:
            if "-start" in name or self_us <= 0:
                continue  # the time of an asynchronous operation is in its second half
            mine = ours.get(name) or ours.get(name.replace("-done", "-start"))
            flops, moved = flop_rate * 1e9 * self_us / 1e6, bandwidth * GIB * self_us / 1e6
            cells = ["not found", "", ""]
            if mine is not None:
                cells = [_number(mine[0], 1e9), _number(mine[1], 1e6), mine[2] or f"none: {mine[4]}"]
            yield (
                f"| {_stem(path)} | {name} | {category} | {calls:.0f} | {cells[0]} | {flops / 1e9:.4f} | {cells[1]} "
                f"| {moved / 1e6:.4f} | {cells[2]} | {bound} |"
            )


def _number(value: int | None, unit: float) -> str:
    return "unknown" if value is None else f"{value / unit:.4f}"


def _by_xprof(path: Path) -> list[list[Any]]:
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "host.xplane.pb"
        plain.write_bytes(_plain(path))
        done = subprocess.run([sys.executable, "-c", _XPROF, plain], capture_output=True, text=True, check=False)  # noqa: S603 - this interpreter
    if done.returncode:
        return []
    rows: list[list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


@contextmanager
def _stored(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A store of one evaluated trace."""
    with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "store.duckdb") as con:
        ingest_paths(con, [str(path)], run="peers")
        evaluate(con, "peers")
        yield con


def _plain(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def _stem(path: Path) -> str:
    return path.name.split(".")[0]


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--peers", type=Path, help="folder of folders with TraceLens's CSVs")
    parser.add_argument("--hta", help="a Python that has HolisticTraceAnalysis")
    given = parser.parse_args()
    kineto = sorted(p for p in given.traces.rglob("*.json*") if p.is_file())
    print("## Where the time of a device goes, us\n", *account_tables(kineto, given.peers, given.hta), sep="\n")
    if given.peers is not None:
        print("\n## What an operation costs: TraceLens\n", *operation_tables(kineto, given.peers), sep="\n")
    spaces = sorted(p for p in given.traces.rglob("*.xplane.pb*") if p.is_file())
    print("\n## What an operation costs: XProf\n", *xprof_tables(spaces), sep="\n")


if __name__ == "__main__":
    main()

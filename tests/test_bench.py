"""The traces that `make bench` measures on: a grown trace is its sample, many times."""

import contextlib
import gzip
import sqlite3
import sys
from pathlib import Path

import grow
import measure
import pytest

from tracegap.ingest import pipeline, store

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_traces"
KINETO = SAMPLES / "sim_h100_before" / "rank0.pt.trace.json.gz"
XSPACE = SAMPLES / "sim_tpu_v5p" / "tpu-host-0.xplane.pb.gz"
NSYS = SAMPLES / "sim_nsys_h100" / "rank0.sqlite.gz"
COPIES = 3


def read(path, folder, *queries):
    """Rows of some queries on a store with one file, which was read without any loss."""
    with store.open_store(folder / f"{path.name}.duckdb") as con:
        (result,) = pipeline.ingest_paths(con, [path], workers=1)
        assert (result.status, result.error) == ("ok", None)
        return [con.execute(query).fetchall() for query in queries]


TOTALS = """
    select count(*), count(step), count(launch_ns), count(shapes), sum(flops)::bigint, sum(dur_ns)::bigint,
        count(distinct correlation_id), (select count(*) from host_events), (select count(parent_id) from host_events),
        (select count(distinct correlation_id) from host_events), (select count(distinct step) from steps),
        (select count(*) from collectives), (select sum(message_bytes)::bigint from collectives)
    from ops
"""
STEPS = """
    select device_id, kernels, compute_ns, exposed_comm_ns, exposed_copy_ns, idle_ns, idle_host_ns, idle_sync_ns,
        idle_input_ns, idle_gap_ns, idle_unknown_ns
    from steps order by device_id, start_ns
"""
NOT_AFTER = 4  # columns of a step that owe nothing to what comes after it


def by_device(rows):
    return {device: [r for r in rows if r[0] == device] for device in sorted({r[0] for r in rows})}


def check(path, sample, tmp_path):
    """The grown file has all of the sample COPIES times, and its steps have the accounts of the sample's."""
    (had,), sample_steps = read(sample, tmp_path, TOTALS, STEPS)
    (has,), steps = read(path, tmp_path, TOTALS, STEPS)
    assert had[0] > 0
    assert has == tuple(n and n * COPIES for n in had)
    for device, had_steps in by_device(sample_steps).items():
        has_steps = by_device(steps)[device]
        assert len(has_steps) == COPIES * len(had_steps)
        for i, step in enumerate(has_steps):
            expected = had_steps[i % len(had_steps)]
            last_of_copy = i % len(had_steps) == len(had_steps) - 1 and i < len(has_steps) - 1
            until = NOT_AFTER if last_of_copy else None  # the pause and the copies before the next belong to it
            assert step[:until] == expected[:until]


def test_kineto(tmp_path):
    path = tmp_path / "grown.pt.trace.json.gz"
    assert grow.grow(KINETO, path, copies=COPIES) == COPIES
    check(path, KINETO, tmp_path)


def test_copies_may_be_one_step(tmp_path):
    path = tmp_path / "grown.pt.trace.json.gz"
    grow.grow(KINETO, path, copies=4, a_step=2)
    sums = "select count(*), sum(kernels)::bigint, sum(compute_ns)::bigint, sum(exposed_comm_ns)::bigint from steps"
    ops = "select count(*), count(step) from ops"
    (had,), (had_ops,) = read(KINETO, tmp_path, sums, ops)
    (has,), (has_ops,) = read(path, tmp_path, sums, ops)
    assert has == (2, *(4 * n for n in had[1:]))
    assert has_ops == tuple(4 * n for n in had_ops)


def test_the_layouts_give_the_same_rows(tmp_path):
    queries = [
        f"select * exclude (trace_id) from {t} order by all" for t in ("ops", "host_events", "steps", "collectives")
    ]
    queries[2] = queries[2].replace("trace_id", "trace_id, run_id")
    rows = []
    for layout in grow.LAYOUTS:
        path = tmp_path / f"{layout}.json"
        grow.grow(KINETO, path, copies=2, layout=layout)
        rows.append(read(path, tmp_path, *queries))
    assert rows[0] == rows[1] == rows[2]


def test_the_layouts_are_those_of_pytorch(tmp_path):
    texts = {}
    for layout in grow.LAYOUTS:
        path = tmp_path / f"{layout}.json"
        grow.grow(KINETO, path, copies=1, layout=layout)
        texts[layout] = path.read_text()
    assert '"dur": 5954.804\n    ,\n    "args": {\n      "External id": 1, ' in texts["field-a-line"]
    assert '\n  {\n    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#10", ' in texts["classic"]
    assert '"tid": 41200,\n    "ts": 3187452905123.496, "dur": 5954.804,\n    "args": {\n' in texts["classic"]
    assert "\n" not in texts["compact"]


@pytest.mark.parametrize("planes", [1, 4])
def test_xspace(planes, tmp_path):
    sample, path = tmp_path / "sample.xplane.pb", tmp_path / "grown.xplane.pb"
    assert grow.grow(XSPACE, sample, copies=1, planes=planes) == 1
    grow.grow(XSPACE, path, copies=COPIES, planes=planes)
    check(path, sample, tmp_path)
    assert planes < 4 or sample.stat().st_size == pytest.approx(len(gzip.decompress(XSPACE.read_bytes())), rel=1e-3)


def test_nsys(tmp_path):
    path = tmp_path / "grown.sqlite"
    assert grow.grow(NSYS, path, copies=COPIES) == COPIES
    check(path, NSYS, tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as con:
        texts = con.execute("select text, count(*) from NVTX_EVENTS where text like '%op_id%' group by 1").fetchall()
    assert {n for _, n in texts} == {1}


@pytest.mark.parametrize(("sample", "name"), [(KINETO, "a.json"), (XSPACE, "a.xplane.pb"), (NSYS, "a.sqlite")])
def test_sizes(sample, name, tmp_path):
    path, again = tmp_path / name, tmp_path / f"b{name[1:]}"
    grow.grow(sample, path, size_mb=4)
    assert 4e6 <= path.stat().st_size <= 4e6 + 3.1e6  # up to a copy more
    grow.grow(sample, again, size_mb=4)
    assert path.read_bytes() == again.read_bytes()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="processes are watched in /proc")
def test_a_process_is_measured_with_those_that_it_starts():
    child = "held = bytearray(60_000_000); import time; time.sleep(0.5)"
    parent = f"import subprocess, sys; held = bytearray(90_000_000); subprocess.run([sys.executable, '-c', {child!r}])"
    used = measure.usage(sys.executable, "-c", parent)
    assert 90 < used.largest_mb < 130
    assert 150 < used.sum_mb < 200
    assert 0.5 < used.wall_s < 10
    with pytest.raises(measure.MeasureError, match="status 3: no file"):
        measure.usage(sys.executable, "-c", "import sys; print('no file'); sys.exit(3)")


def test_tables_say_what_was_left_out_and_what_was_missed(tmp_path):
    def case(key, *wall_s):
        rounds = [measure.Usage(wall_s=w, cpu_s=w, largest_mb=100, sum_mb=100) for w in wall_s]
        failed = "" if rounds else "not here"
        return measure.Case(key=key, label=key, command=[], size_mb=30, rounds=rounds, failed=failed)

    cases = [case("ours", 1, 2, 3), case("theirs", 2, 2, 2), case("other")]
    targets = [
        measure.Target("of theirs", 0.9, lambda c: measure.ratio(c["ours"], c["theirs"])),
        measure.Target("of other", 0.9, lambda c: measure.ratio(c["ours"], c["other"])),
    ]
    group = measure.Group(title="T", cases=cases, base="theirs", targets=targets)
    text = "\n".join(" ".join(line.split()) for line in group.lines(3))
    assert "| ours | 2.00 (1.00–3.00) | 2.00 (1.00–3.00) | 15 | 100 | 100 | 1.00 | 1.00 |" in text
    assert "| other | left out: not here | | | | | | |" in text
    assert "| of theirs | ≤ 0.9 | 1 | missed |" in text
    assert "| of other | ≤ 0.9 | not measured | |" in text
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench t -->\nold\n<!-- /bench t -->\nafter\n")
    measure.put(page, "t", "new")
    assert page.read_text() == "before\n<!-- bench t -->\nnew\n<!-- /bench t -->\nafter\n"


def test_the_page_has_a_place_for_every_table():
    page = (ROOT / "docs" / "performance.md").read_text()
    assert [name for name in measure.GROUPS if f"<!-- bench {name} -->" not in page] == []

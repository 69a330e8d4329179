"""The same tables read to the same rows from SQLite and Parquet, small and large, in any order and any subset."""

import sqlite3
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ingest.readers.nsys_rows import to_sqlite

from tracegap.ingest import pipeline, store
from tracegap.ingest.errors import TraceError
from tracegap.ingest.load import account_device
from tracegap.ingest.readers import _nsys_db, _nsys_export, _nsys_pages, nsys
from tracegap.ingest.readers._nsys_records import Unfit
from tracegap.ingest.trace import HOST_EVENTS, OPS, Trace

P = (1 << 48) + (100 << 24)
T = P + 101
STRINGS = [
    "sm90_gemm_bf16",
    "void at::native::add<float>(int)",
    "cudaLaunchKernel_v7000",
    "ncclAllReduce",
    "forward",
    "poll",
]

Tables = dict[str, tuple[str, list[tuple]]]


def tables(steps: int = 3, per_step: int = 5) -> Tables:
    """A small training: steps with operators, each launching a kernel, some copies and system calls."""
    nvtx, kernels, runtime, copies = [(0, None, 75, "NCCL", T, None, 1)], [], [], []
    for step in range(steps):
        at = 1000 * step
        nvtx.append((at, at + 900, 59, f"step {step}", T, None, 0))
        for i in range(per_step):
            n = step * per_step + i
            begin = at + 10 + 100 * i
            text = f"aten::mm, seq = {n}, op_id = {n}, sizes = [[{i + 1}, 3], [3, 4]], input_op_ids = [({n},0)]"
            nvtx.append((begin, begin + 50, 59, text if i % 2 else None, T, None if i % 2 else 5, 0))
            runtime.append((begin + 10, begin + 20, 0, T, n + 1, 3, 0))
            kernels.append((begin + 40, begin + 130, i % 2, 1, 7, n + 1, P, 1 + i % 2, 1, None))
        copies.append((at + 5, at + 9, 0, 1, 9, 5000 + step, P, 64, 1))
    return {
        "StringIds": ("id value", [(i, v) for i, v in enumerate(STRINGS, 1)]),
        "NVTX_EVENTS": ("start end eventType text globalTid textId domainId", nvtx),
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            "start end deviceId contextId streamId correlationId globalPid demangledName shortName graphNodeId", kernels,
        ),
        "CUPTI_ACTIVITY_KIND_RUNTIME": ("start end eventClass globalTid correlationId nameId returnValue", runtime),
        "CUPTI_ACTIVITY_KIND_MEMCPY": ("start end deviceId contextId streamId correlationId globalPid bytes copyKind", copies),
        "OSRT_API": ("start end globalTid nameId", [(7, 9, T + 1, 6)]),
        "DIAGNOSTIC_EVENT": ("severity text", [(2, "odd"), (3, "events were dropped")]),
    }  # fmt: skip


def to_parquet(path: Path, given: Tables) -> Path:
    path.mkdir(exist_ok=True)
    for table, (columns, rows) in given.items():
        frame = pl.DataFrame(rows, schema=columns.split(), orient="row", infer_schema_length=None)
        frame.write_parquet(path / f"{table}.parquet")
    return path


def content(trace: Trace) -> dict[str, object]:
    """What does not depend on the order of rows."""
    host = pl.concat([f.cast(HOST_EVENTS) for f in trace.host_batches()])
    parents = host.select(parent_id="event_id", around="name", around_start="start_ns")
    host = host.join(parents, on="parent_id", how="left").drop("event_id", "parent_id")
    ops = pl.concat([pl.DataFrame(schema=OPS), *(f.cast(OPS) for _, f in trace.by_device())]).drop("op_id")
    return {
        "host": sorted(map(repr, host.rows())),
        "ops": sorted(map(repr, ops.rows())),
        "steps": sorted(map(repr, trace.step_marks.rows())),
        "counters": sorted(map(repr, trace.counters.rows())),
        "facts": {k: v for k, v in trace.facts.items() if k not in ("open", "nvtx_by_eventType")},
        "devices": trace.devices,
        "issues": sorted((i.code, i.count, i.severity) for i in trace.issues.by_code.values()),
    }


def test_parquet_reads_as_sqlite_does(tmp_path):
    given = tables()
    sqlite = nsys.read(to_sqlite(tmp_path / "t.sqlite", given))
    parquet = nsys.read(to_parquet(tmp_path / "t_pqtdir", given))
    assert content(parquet) == content(sqlite)
    assert len(sqlite.ops) == 3 * 5 + 3
    assert sqlite.host_events.filter(pl.col("name") == "aten::mm")["kind"].to_list() == ["op"] * 6


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_order_of_rows_and_any_subset_of_tables(tmp_path, data):
    whole = tables()
    kept = {"StringIds", *data.draw(st.sets(st.sampled_from(sorted(whole))))}
    given = {t: whole[t] for t in kept}
    shuffled = {t: (columns, data.draw(st.permutations(rows))) for t, (columns, rows) in given.items()}
    plain = content(nsys.read(to_sqlite(tmp_path / "t.sqlite", given)))
    assert content(nsys.read(to_sqlite(tmp_path / "u.sqlite", shuffled))) == plain
    folder = tmp_path / "u_pqtdir"
    for old in folder.glob("*"):
        old.unlink()
    assert content(nsys.read(to_parquet(folder, shuffled))) == plain


@pytest.fixture
def small_batches(monkeypatch):
    """Batches of few rows, and nothing made at once: as in a large file."""
    for module in (_nsys_export, _nsys_db):
        monkeypatch.setattr(module, "BATCH_ROWS", 7)
    monkeypatch.setattr("tracegap.ingest.readers._nsys_parquet.BATCH_ROWS", 7)
    monkeypatch.setattr("tracegap.ingest.readers._nsys_host._FRAME_ROWS", 7)
    monkeypatch.setattr("tracegap.ingest.readers._nsys_host._NESTED_ROWS", 3)
    monkeypatch.setattr(_nsys_pages, "_PART_BYTES", 4096)
    monkeypatch.setattr(nsys, "_AT_ONCE", 0)


@pytest.mark.parametrize("write", [to_sqlite, to_parquet])
def test_a_large_file_comes_in_batches_and_says_the_same(tmp_path, write, request):
    path = write(tmp_path / "t.sqlite", tables(7, 6))
    at_once = content(nsys.read(path))
    request.getfixturevalue("small_batches")
    trace = nsys.read(path)
    assert (len(trace.ops), len(trace.host_events)) == (0, 0)
    assert content(trace) == at_once


def test_operations_of_a_large_file_can_be_accounted(tmp_path, small_batches):
    trace = nsys.read(to_sqlite(tmp_path / "t.sqlite", tables()))
    waits = pl.concat([b.cast(HOST_EVENTS) for b in trace.host_batches()])
    for device_id, ops in trace.by_device():
        accounted = account_device(ops, trace, device_id, waits)
        assert accounted.steps["step"].to_list() == [0, 1, 2]
        assert int(accounted.ops["share_ns"].sum()) <= int(accounted.ops["dur_ns"].sum())


def without_pages(monkeypatch):
    def parts(self: _nsys_pages.Pages, root: int) -> list[_nsys_pages.Part]:
        raise Unfit

    monkeypatch.setattr(_nsys_pages.Pages, "parts", parts)


@pytest.mark.parametrize("odd", [None, "text", 1.5, b"bytes"])
def test_columns_that_do_not_fit_come_row_by_row_and_say_the_same(tmp_path, small_batches, odd, monkeypatch):
    given = tables(6, 6)
    _, rows = given["NVTX_EVENTS"]
    rows[20] = (*rows[20][:3], rows[20][3], T, odd, odd)
    path = to_sqlite(tmp_path / "t.sqlite", given)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE NVTX_EVENTS SET text = CAST(x'4aff' AS TEXT) WHERE rowid = 30")
    db.close()
    by_columns = content(nsys.read(path))
    without_pages(monkeypatch)
    assert content(nsys.read(path)) == by_columns
    assert any("J\ufffd" in event for event in by_columns["host"])  # type: ignore[attr-defined]


def outcome(path: Path) -> Trace | str:
    """The trace, or the code of the error."""
    try:
        return nsys.read(path)
    except TraceError as e:
        return e.code


@pytest.mark.parametrize("write", [to_sqlite, to_parquet])
def test_a_file_cut_anywhere_is_refused_or_keeps_what_is_whole(tmp_path, write):
    path = write(tmp_path / "t.sqlite", tables())
    files = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    whole = content(nsys.read(path))
    for file in files:
        data = file.read_bytes()
        for kept in sorted({0, 15, 99, 100, *range(0, len(data), max(1, len(data) // 5)), len(data) - 1}):
            file.write_bytes(data[:kept])
            got = outcome(path)
            if isinstance(got, str):
                assert got in {"truncated", "malformed", "empty"}
            else:
                assert {i.code for i in got.issues.by_code.values()} >= {"malformed"}
                assert got.issues.lost_data
                assert len(got.ops) <= len(whole["ops"])  # type: ignore[arg-type]
        file.write_bytes(data)


@pytest.mark.parametrize("batches", ["one", "small_batches"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10**6), value=st.integers(0, 255))
def test_a_wrong_byte_anywhere_raises_nothing_but_trace_errors(tmp_path, request, batches, at, value):
    if batches != "one":
        request.getfixturevalue(batches)
    path = to_sqlite(tmp_path / "t.sqlite", tables())
    data = bytearray(path.read_bytes())
    data[at % len(data)] = value
    path.write_bytes(data)
    got = outcome(path)
    assert got if isinstance(got, str) else content(got)


def test_folders_of_tables_are_found_as_one_trace_and_stored(tmp_path):
    given = tables()
    to_parquet(tmp_path / "a_pqtdir", given)
    to_parquet(tmp_path / "b_pqtdir", tables(2))
    to_sqlite(tmp_path / "b.sqlite", tables(2))
    assert list(pipeline.find_traces([tmp_path])) == [tmp_path / "a_pqtdir", tmp_path / "b.sqlite"]
    with store.open_store(tmp_path / "s.duckdb") as con:
        (first,) = pipeline.ingest_paths(con, [tmp_path / "a_pqtdir"])
        (again,) = pipeline.ingest_paths(con, [tmp_path / "a_pqtdir"])
        size = con.execute("select size_bytes from traces").fetchall()[0][0]
    assert (first.format, first.ops, again.status) == ("nsys", 18, "already")
    assert size == sum(f.stat().st_size for f in (tmp_path / "a_pqtdir").iterdir())
    before = store.sha256_of(tmp_path / "a_pqtdir")
    (tmp_path / "a_pqtdir" / "OSRT_API.parquet").unlink()
    assert store.sha256_of(tmp_path / "a_pqtdir") != before

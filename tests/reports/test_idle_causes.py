"""Idle time by cause and by what the host did: cases worked out on paper, and the law that it adds up."""

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracegap.ingest import schema
from tracegap.ingest.idle import CAUSES
from tracegap.ingest.load import store_trace
from tracegap.ingest.store import frame_of, open_store
from tracegap.ingest.trace import HOST_EVENTS, OPS, STEP_MARKS, Device, Trace
from tracegap.reports import join
from tracegap.reports.stage import Run
from tracegap.reports.stages import idle_causes


def frame(rows, schema):
    return pl.DataFrame([{c: row.get(c) for c in schema} for row in rows], schema=schema)


def kernel(i, start, end, launch=None, thread="1/1"):
    return {
        "op_id": i, "device_id": "0", "stream": "7", "name": f"k{i}", "op_class": "elementwise", "start_ns": start,
        "dur_ns": end - start, "cost_source": "none", "cost_note": "made by hand", "launch_ns": launch,
        "launch_thread": thread if launch is not None else None,
    }  # fmt: skip


def span(name, kind, start, end, thread="1/1"):
    return {"thread": thread, "kind": kind, "name": name, "start_ns": start, "dur_ns": end - start}


def put(con, ops, spans, marks=((0, 0, 1000),), *, whole=True):
    events = [{"event_id": i, **s} for i, s in enumerate(spans)]
    t = Trace(
        format="test", framework="pytorch", origin_unix_ns=0, rank=0, world_size=1,
        devices=[Device(device_id="0", kind="gpu", name=None)],
        ops=frame(ops, OPS), host_events=frame(events, HOST_EVENTS),
        step_marks=frame(
            [{"step": n, "start_ns": s, "dur_ns": d, "source": "profiler_step", "thread": "1/1"} for n, s, d in marks],
            STEP_MARKS,
        ),
    )  # fmt: skip
    store_trace(con, t, trace_id="t", run_id="run", path="t.json", sha256="t")
    if whole:
        join.evaluate(con, "run")
    else:
        idle_causes.run(con, Run.load(con, "run"))


@pytest.fixture
def con(tmp_path):
    with open_store(tmp_path / "s.duckdb") as connection:
        yield connection


def rows(con):
    found = con.execute("select cause, activity, name, caller, of_thread, idle_ns, gaps from idle_causes").fetchall()
    return {row[:5]: row[5:] for row in found}


def test_an_interval_is_split_by_what_the_launching_thread_did(con):
    put(
        con,
        [kernel(1, 100, 200, 90), kernel(2, 300, 400, 280), kernel(3, 600, 700, 580)],
        [
            span("ProfilerStep#0", "step", 0, 1000),
            span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "input", 190, 240),
            span("aten::add", "op", 250, 291),
            span("cudaLaunchKernel", "launch", 280, 290),
            span("aten::item", "op", 390, 500),
            span("aten::_local_scalar_dense", "op", 395, 499),
            span("cudaStreamSynchronize", "sync", 410, 490),
            span("<built-in function collect>", "python", 500, 540),
            span("weakref.py(1): remove", "python", 510, 520),
            span("aten::empty", "op", 543, 567),
            span("cudaMalloc", "runtime", 545, 565),
            span("aten::mul", "op", 570, 586),
            span("cudaLaunchKernel", "launch", 580, 585),
        ],
    )
    mine = "launching"
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert rows(con) == {
        ("idle_input", "data_loading", loader, None, mine): (40, 1),
        ("idle_host", "nothing_recorded", None, None, mine): (10 + 3 + 3, 2),
        ("idle_host", "operator", "aten::add", None, mine): (30, 1),
        ("idle_gap", "launch", "cudaLaunchKernel", "aten::add", mine): (10, 1),
        ("idle_gap", "device", None, None, mine): (10 + 15, 2),
        ("idle_host", "operator", "aten::_local_scalar_dense", None, mine): (10 + 9, 1),
        ("idle_sync", "synchronisation", "cudaStreamSynchronize", "aten::item", mine): (80, 1),
        ("idle_host", "operator", "aten::item", None, mine): (1, 1),
        ("idle_host", "garbage_collection", "<built-in function collect>", None, mine): (40, 1),
        ("idle_host", "operator", "aten::empty", None, mine): (2 + 2, 1),
        ("idle_host", "allocation", "cudaMalloc", "aten::empty", mine): (20, 1),
        ("idle_host", "operator", "aten::mul", None, mine): (10, 1),
        ("idle_gap", "launch", "cudaLaunchKernel", "aten::mul", mine): (5, 1),
    }


def test_while_the_launching_thread_has_nothing_to_do_the_thread_of_the_steps_is_asked(con):
    evaluate = "autograd::engine::evaluate_function: MulBackward0"
    put(
        con,
        [kernel(1, 100, 200, 90), kernel(2, 300, 400, 290, thread="1/2"), kernel(3, 500, 600, 490)],
        [
            span("ProfilerStep#0", "step", 0, 1000),
            span("loss", "annotation", 190, 270),
            span("aten::sum", "op", 200, 260),
            span(evaluate, "op", 280, 296, "1/2"),
            span("cudaLaunchKernel", "launch", 290, 295, "1/2"),
            # The thread of the steps waits for the backward pass, whose last operator launches nothing more.
            span("<built-in method run_backward of torch._C._EngineBase object at 0x7f0>", "python", 280, 470),
            span("torch::autograd::AccumulateGrad", "op", 390, 440, "1/2"),
        ],
    )
    assert rows(con) == {
        ("idle_host", "operator", "aten::sum", "loss", "other"): (60, 1),
        ("idle_host", "annotation", "loss", None, "other"): (10, 1),
        ("idle_host", "nothing_recorded", None, None, "launching"): (10 + 20, 2),
        ("idle_host", "operator", evaluate, None, "launching"): (10, 1),
        ("idle_gap", "launch", "cudaLaunchKernel", evaluate, "launching"): (5, 1),
        ("idle_gap", "device", None, None, "launching"): (5 + 10, 2),
        ("idle_host", "operator", "torch::autograd::AccumulateGrad", None, "other"): (40, 1),
        ("idle_host", "thread_wait", "<built-in method run_backward of torch._C._EngineBase>", None, "launching"): (
            30,
            1,
        ),
    }


def test_waits_come_in_their_order_and_those_of_the_thread_of_the_steps_count(con):
    """Input goes before a synchronisation inside it, a synchronisation before a receive around it."""
    put(
        con,
        [kernel(1, 0, 100, 0), kernel(2, 300, 400, 300, thread="1/2")],
        [
            span("ProfilerStep#0", "step", 0, 1000),
            span("gloo:recv", "collective", 100, 200),
            span("cudaDeviceSynchronize", "sync", 120, 150),
            span("load_batch", "input", 210, 260),
            span("cudaStreamSynchronize", "sync", 220, 280),
            span("cudaEventSynchronize", "sync", 275, 290, "1/2"),
        ],
    )
    assert rows(con) == {
        ("idle_pipeline", "communication", "gloo:recv", None, "other"): (20 + 50, 1),
        ("idle_sync", "synchronisation", "cudaDeviceSynchronize", "gloo:recv", "other"): (30, 1),
        ("idle_host", "nothing_recorded", None, None, "launching"): (10 + 10, 1),
        ("idle_input", "data_loading", "load_batch", None, "other"): (50, 1),
        ("idle_sync", "synchronisation", "cudaStreamSynchronize", None, "other"): (15, 1),
        ("idle_sync", "synchronisation", "cudaEventSynchronize", None, "launching"): (15, 1),
    }
    assert con.execute(
        "select idle_pipeline_ns, idle_input_ns, idle_sync_ns, idle_host_ns from step_gap"
    ).fetchall() == [(70, 50, 60, 20)]


def test_a_launch_call_that_blocks_is_told_from_the_device_being_late(con):
    put(
        con,
        [
            kernel(1, 0, 100, 0),
            kernel(2, 300, 400, 50),
            kernel(3, 700, 800, 420),
            kernel(4, 850, 900),
            kernel(5, 950, 960, 910),
        ],
        [
            span("aten::mm", "op", 410, 690),
            span("cudaLaunchKernel", "launch", 420, 680),
            span("Lazy Function Loading", "overhead", 430, 670, "-1/0"),
        ],
    )
    assert rows(con) == {
        ("idle_gap", "device", None, None, "launching"): (200 + 20 + 40, 3),
        ("idle_host", "nothing_recorded", None, None, "launching"): (10 + 10, 2),
        ("idle_host", "operator", "aten::mm", None, "launching"): (10, 1),
        ("idle_gap", "launch", "cudaLaunchKernel", "aten::mm", "launching"): (10 + 10, 1),
        ("idle_gap", "compilation", "Lazy Function Loading", None, "launching"): (240, 1),
        ("idle_unknown", None, None, None, None): (50, 1),
    }


def test_names_that_take_little_are_one_row(con):
    names = [f"aten::op{i:02}" for i in range(20)]
    spans = [span(name, "op", 100 + 10 * i, 105 + 10 * i + i % 5) for i, name in enumerate(names)]
    put(con, [kernel(1, 0, 100, 0), kernel(2, 300, 400, 300)], spans)
    found = rows(con)
    assert sum(ns for ns, _ in found.values()) == 200
    named = {key[2]: ns for key, (ns, _) in found.items() if key[1] == "operator"}
    assert len(named) == 13
    lengths = sorted((5 + i % 5 for i in range(20)), reverse=True)  # four of each of 9, 8, 7, 6, 5
    assert named.pop(None) == sum(lengths[12:]) == 44
    assert sorted(named.values(), reverse=True) == lengths[:12]


THREADS = st.sampled_from(["1/1", "1/2", "1/3"])
KINDS = st.sampled_from(
    [("aten::a", "op"), ("load_batch", "input"), ("cudaStreamSynchronize", "sync"), ("gloo:recv", "collective"),
     ("cudaLaunchKernel", "launch"), ("cudaMalloc", "runtime"), ("f.py(1): f", "python"), ("Buffer Flush", "overhead"),
     ("range", "annotation")]
)  # fmt: skip
SPANS = st.lists(st.tuples(KINDS, st.integers(0, 900), st.integers(0, 300), THREADS), max_size=15)
KERNELS = st.lists(
    st.tuples(st.integers(0, 900), st.integers(0, 60), st.one_of(st.none(), st.integers(0, 900)), THREADS),
    min_size=1,
    max_size=10,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(KERNELS, SPANS, st.booleans())
def test_rows_add_up_to_the_causes_of_the_step(con, kernels, spans, two_steps):
    for table in schema.TABLES:
        con.execute(f"delete from {table.name}").fetchall()
    ops = [
        kernel(i, start, start + dur, launch, thread)
        for i, (start, dur, launch, thread) in enumerate(sorted(kernels, key=str))
    ]
    marks = ((0, 0, 400), (1, 400, 600)) if two_steps else ((0, 0, 1000),)
    put(con, ops, [span(n, k, s, s + d, t) for (n, k), s, d, t in spans], marks, whole=False)
    wanted = frame_of(con, f"select step, {', '.join(f'{c}_ns' for c in CAUSES)} from steps").to_dicts()
    got = {
        key: ns
        for *key, ns in con.execute("select step, cause, sum(idle_ns)::bigint from idle_causes group by all").fetchall()
        for key in [tuple(key)]
    }
    want = {(w["step"], c): w[f"{c}_ns"] for w in wanted for c in CAUSES if w[f"{c}_ns"]}
    assert got == want


def test_the_gap_before_a_step_lies_in_the_step_before(con):
    """A step begins with its first kernel: what its host does before that is the end of the window before."""
    put(
        con,
        [kernel(1, 100, 200, 90), kernel(2, 310, 400, 300), kernel(3, 450, 500, 450)],
        [
            span("ProfilerStep#0", "step", 0, 250),
            span("ProfilerStep#1", "step", 250, 1000),
            span("load_batch", "input", 260, 290),
        ],
        ((0, 0, 250), (1, 250, 750)),
    )
    found = con.execute("select step, cause, activity, idle_ns from idle_causes order by all").fetchall()
    assert found == [
        (0, "idle_gap", "device", 10),
        (0, "idle_host", "nothing_recorded", 60 + 10),
        (0, "idle_input", "data_loading", 30),
        (1, "idle_host", "nothing_recorded", 50),
    ]

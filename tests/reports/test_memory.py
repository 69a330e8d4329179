"""Device memory at its peak: a job of ten allocations worked out on paper, laws over random ones, the plan beside it."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.ingest import manifest
from tracegap.ingest.load import store_trace
from tracegap.ingest.store import open_store
from tracegap.ingest.trace import HOST_EVENTS, MEMORY, OPS, STEP_MARKS, Device, Trace
from tracegap.reports import join, planning
from tracegap.reports.memory_parts import alive, lifetimes
from tracegap.reports.stage import Run
from tracegap.reports.stages import memory

H100 = "NVIDIA H100 80GB HBM3"
SAMPLE = Path(__file__).parents[2] / "sample_traces" / "sim_h100_before" / "manifest.toml"


def frame(rows, schema):
    return pl.DataFrame([{c: row.get(c) for c in schema} for row in rows], schema=schema)


def span(name, kind, start, end, thread="1/1"):
    return {"thread": thread, "kind": kind, "name": name, "start_ns": start, "dur_ns": end - start}


def piece(ts, address, size, in_use, held=None, *, thread="1/1", source="torch_allocator"):
    return {
        "device_id": "0", "thread": thread, "ts_ns": ts, "address": address, "bytes": size, "allocated_bytes": in_use,
        "reserved_bytes": held, "source": source,
    }  # fmt: skip


def put(con, pieces, spans=(), *, device=H100, described=None, marks=((0, 0, 500), (1, 500, 500))):
    kernels = [
        {"op_id": i, "device_id": "0", "stream": "7", "name": "k", "op_class": "other", "start_ns": start, "dur_ns": 5,
         "cost_source": "none", "cost_note": "made by hand", "launch_ns": start - 1, "launch_thread": "1/1"}
        for i, start in enumerate((100, 600))
    ]  # fmt: skip
    events = [span(f"ProfilerStep#{n}", "step", s, s + d) for n, s, d in marks] + list(spans)
    t = Trace(
        format="test", framework="pytorch", origin_unix_ns=0, rank=0, world_size=8,
        devices=[Device(device_id="0", kind="gpu", name=device)],
        ops=frame(kernels, OPS), memory=frame(pieces, MEMORY),
        host_events=frame([{"event_id": i, **e} for i, e in enumerate(events)], HOST_EVENTS),
        step_marks=frame(
            [{"step": n, "start_ns": s, "dur_ns": d, "source": "profiler_step", "thread": "1/1"} for n, s, d in marks],
            STEP_MARKS,
        ),
    )  # fmt: skip
    store_trace(con, t, trace_id="t", run_id="run", path="t.json", sha256="t", described=described)
    join.evaluate(con, "run")


@pytest.fixture
def con(tmp_path):
    with open_store(tmp_path / "s.duckdb") as connection:
        yield connection


def parts(con, step, *, detail=False):
    return {
        tuple(key): size
        for *key, size in con.execute(
            "select part_of, part, name, operator, bytes from memory where step is not distinct from ? and detail = ? "
            "and source <> 'plan'",
            [step, detail],
        ).fetchall()
    }


TEN = [
    # 1000 bytes were in use before recording began.
    piece(10, 0xA1, 200, 1200, 4000),  # aten::linear of a module
    piece(20, 0xA2, 300, 1500, 4000),  # aten::relu
    piece(30, 0xA3, 400, 1900, 4000, thread="1/2"),  # backward
    piece(40, 0xA1, -200, 1700, 4000),
    piece(50, 0xA4, 50, 1750, 4000),  # optimizer
    piece(60, 0xA3, -400, 1350, 4000, thread="1/2"),
    piece(510, 0xA1, 500, 1850, 5000),  # the address once more, in the next step
    piece(520, 0xA5, 100, 1950, 5000),  # input
    piece(530, 0xA2, -300, 1650, 5000),
    piece(540, 0xB0, -600, 1050, 5000),  # was there before
]
AROUND = [
    span("nn.Module: Linear_3", "module", 5, 15),
    span("aten::linear", "op", 8, 14),
    span("aten::addmm", "op", 9, 13),
    span("aten::relu", "op", 18, 22),
    span("autograd::engine::evaluate_function: MulBackward0", "op", 28, 35, "1/2"),
    span("Optimizer.step#AdamW.step", "annotation", 45, 55),
    span("nn.Module: Linear_7", "module", 505, 515),
    span("aten::linear", "op", 506, 514),
    span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "input", 518, 525),
]


def test_pieces_of_the_peak_by_when_they_were_handed_out(con):
    put(con, TEN, AROUND)
    of = "peak_allocated"
    second = {
        (None, "peak_allocated", None, None): 1950,
        (of, "before_recording", None, None): 1950 - 300 - 50 - 500 - 100,
        (of, "earlier_steps", None, None): 300 + 50,
        (of, "forward", None, None): 500,
        (of, "input", None, None): 100,
    }
    assert parts(con, None) == second | {
        (None, "peak_reserved", None, None): 5000,
        ("peak_reserved", "in_use", None, None): 1950,
        ("peak_reserved", "cached", None, None): 3050,
    }
    assert parts(con, 1) == second
    assert parts(con, 0) == {
        (None, "peak_allocated", None, None): 1900,
        (of, "before_recording", None, None): 1000,
        (of, "forward", None, None): 200 + 300,
        (of, "backward", None, None): 400,
    }
    assert parts(con, None, detail=True) == {
        (of, "forward", "Linear", "aten::linear"): 500,
        (of, "earlier_steps", "aten::relu", None): 300,
        (of, "earlier_steps", None, None): 50,
    }


def test_without_totals_only_the_growth_is_told(con):
    put(con, [piece(10, None, 200, None), piece(20, None, 300, None), piece(30, None, -200, None)])
    assert parts(con, None) == {(None, "peak_allocated", None, None): 500}
    assert "no totals" in con.execute("select note from memory where part = 'peak_allocated'").fetchall()[0][0]


def test_calls_of_cuda_tell_what_is_held_at_least(con):
    put(con, [piece(t, t, s, None, source="cuda_calls") for t, s in ((1, 40), (2, 60), (3, -40), (4, 30))])
    assert parts(con, None) == {(None, "peak_reserved", None, None): 100}
    assert "lower bound" in con.execute("select note from memory where part = 'peak_reserved'").fetchall()[0][0]


def test_releases_that_are_missing_are_no_memory(con):
    put(con, [piece(10, 1, 200, 200), piece(20, 2, 300, 300)])  # the first is gone, nothing says so
    assert parts(con, None) == {(None, "peak_allocated", None, None): 300}
    assert (
        "releases are missing" in con.execute("select note from memory where part = 'peak_allocated'").fetchall()[0][0]
    )


def test_a_trace_without_memory_events_says_how_to_record_them(con):
    put(con, [])
    ((size, note),) = con.execute("select bytes, note from memory where part = 'peak_allocated'").fetchall()
    assert size is None
    assert "profile_memory=True" in note


def test_the_plan_stands_beside_it(con):
    """The numbers of the plan command; on paper: 16-bit weights, as many gradients, and 12 bytes of AdamW over 8 ranks."""
    described = manifest.load(SAMPLE)
    put(con, TEN, AROUND, described=described)
    found = dict(con.execute("select part, predicted_bytes from memory where source = 'plan'").fetchall())
    total = found.pop("predicted")
    assert total == sum(found.values())
    model = planning.model_of(described.model)
    assert found["weights"] == found["gradients"] == 2 * model.params
    assert found["optimizer"] == 12 * model.params / 8
    answer = planning.answer(planning.Question(model=str(SAMPLE), hardware="h100_sxm"))
    assert total == pytest.approx(answer["memory_total"], abs=6)  # six rounded parts


def test_replicas_that_only_all_reduce_keep_the_whole_optimizer(con):
    described = manifest.load(SAMPLE)
    put(con, TEN, AROUND, described=described)
    con.execute("""
        insert into collectives (trace_id, op_id, device_id, collective, group_size)
        values ('t', 0, '0', 'all_reduce', 8), ('t', 1, '0', 'broadcast', 8)
    """).fetchall()
    con.execute("delete from memory").fetchall()
    memory.run(con, Run.load(con, "run"))
    ((size, note),) = con.execute("""
        select max(predicted_bytes) filter (part = 'optimizer'), max(note) filter (part = 'predicted')
        from memory where source = 'plan'
    """).fetchall()
    assert size == 12 * planning.model_of(described.model).params
    assert "ZeRO stage 0, as gradients are all-reduced" in note


def test_what_cannot_be_planned_says_why(con):
    put(con, TEN, AROUND)
    assert con.execute("select predicted_bytes, note from memory where source = 'plan'").fetchall() == [
        (None, "not predicted: the model is not described; add [model], [mesh] and tokens_per_step to manifest.toml")
    ]


ACTIONS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 100)), min_size=1, max_size=30)


@given(ACTIONS, st.integers(0, 1000))
def test_lives_against_a_walk(actions, before):
    """An address that is free is handed out, one that is in use given back."""
    held: dict[int, tuple[int, int]] = {}
    address, size, after = [], [], []
    for i, (where, amount) in enumerate(actions):
        if where in held:
            size.append(-held.pop(where)[1])
        else:
            held[where] = (i, amount)
            size.append(amount)
        address.append(where)
        after.append(dict(held))
    ends = lifetimes(np.array(address, dtype=np.int64), np.array(size, dtype=np.int64))
    for at, pieces in enumerate(after):
        assert sorted(alive(ends, at).tolist()) == sorted(i for i, _ in pieces.values())
        in_use = before + sum(size[: at + 1])
        assert in_use - sum(size[i] for i in alive(ends, at)) == before

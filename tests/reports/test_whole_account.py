"""The whole account, from operations to buckets, against a walk nanosecond by nanosecond over schedules of the worst kind.

Streams that overlap, communication half hidden, copies under both, operations of no length, steps without communication
or without a kernel on one of two devices, asynchronous operations over the borders of steps, launches not in the file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tracegap.ingest import load, trace
from tracegap.ingest.store import insert, open_store
from tracegap.reports import join, laws
from tracegap.reports.stage import Run
from tracegap.reports.stages import step_work, waits

CLASSES = ("collective", "matmul", "collective", "custom", "collective", "copy", "memset")
LEVEL = {"matmul": 0, "custom": 0, "collective": 1, "copy": 2, "memset": 2}
PEAK_FLOPS_PER_S = 989_400_000_000_000  # bf16, dense, of an H100 SXM
HBM_BYTES_PER_S = 3_352_000_000_000
MARKS = ((7, 0, 20), (8, 20, 20), (9, 45, 15))  # step, start and length of its mark on the host


@dataclass(frozen=True)
class Op:
    """An operation, and what is known of it when it communicates."""

    device: str
    op_class: str
    start: int
    dur: int
    launch: int | None
    cost_ns: tuple[int, int]
    """Time of its arithmetic and of its traffic."""
    arrival: int | None
    predicted: int | None
    receives: bool

    @property
    def end(self) -> int:
        return self.start + self.dur

    @property
    def step(self) -> int | None:
        return next((n for n, a, d in MARKS if self.launch is not None and a <= self.launch < a + d), None)


@st.composite
def operations(draw: st.DrawFn) -> Op:
    start = draw(st.integers(0, 60))
    op_class = draw(st.sampled_from(CLASSES))
    return Op(
        device=draw(st.sampled_from(["0", "1"])),
        op_class=op_class,
        start=start,
        dur=draw(st.integers(0, 50 if op_class == "collective" else 10)),
        launch=draw(st.one_of(st.integers(max(0, start - 20), start), st.none())),
        cost_ns=draw(st.tuples(st.integers(0, 12), st.integers(0, 12))),
        arrival=draw(st.one_of(st.integers(start, start + 12), st.none())),
        predicted=draw(st.one_of(st.integers(0, 12), st.none())),
        receives=draw(st.booleans()),
    )


SCHEDULES = st.lists(operations(), min_size=3, max_size=12).filter(
    # A device that no mark reaches gets its steps from a pattern, which is not walked here.
    lambda ops: all(any(o.step is not None and LEVEL[o.op_class] < 2 for o in ops if o.device == d.device) for d in ops)
)

# ------------------------------------------------------------------------------------------------- the walk


@dataclass
class Walked:
    """The account of a step window by the walk."""

    states: list[int]
    """Compute, communication, copies, idle, ns."""
    shares: dict[int, Fraction]
    before: dict[int, Fraction]
    """Of the shares, what lies before the arrival."""
    durs: dict[int, int]


def windows(ops: list[Op]) -> list[tuple[int, int, int]]:
    """Step, start and end of each window of a device."""
    kernels = [o for o in ops if LEVEL[o.op_class] < 2] or ops
    first: dict[int, int] = {}
    for o in kernels:
        if o.step is not None:
            first[o.step] = min(o.start, first.get(o.step, o.start))
    order = sorted((start, step) for step, start in first.items())
    last = max([o.end for o in ops if o.step == order[-1][1]] + [order[-1][0]])
    ends = [start for start, _ in order[1:]] + [last]
    return [(step, start, end) for (start, step), end in zip(order, ends, strict=True)]


def walk(ops: dict[int, Op], start: int, end: int) -> Walked:
    """Every nanosecond of a window."""
    out = Walked([0, 0, 0, 0], {}, {}, {})
    for t in range(start, end):
        running = [i for i, o in ops.items() if o.start <= t < o.end]
        for i in running:
            out.durs[i] = out.durs.get(i, 0) + 1
        level = min((LEVEL[ops[i].op_class] for i in running), default=3)
        out.states[level] += 1
        winners = [i for i in running if LEVEL[ops[i].op_class] == level]
        for i in winners:
            out.shares[i] = out.shares.get(i, Fraction()) + Fraction(1, len(winners))
            arrival = ops[i].arrival
            if level == 1 and arrival is not None and t < arrival:
                out.before[i] = out.before.get(i, Fraction()) + Fraction(1, len(winners))
    return out


# ------------------------------------------------------------------------------------------------ the product


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """A store of its own; each schedule is a run of it."""
    with open_store(tmp_path_factory.mktemp("account") / "t.duckdb") as connection:
        join.prepare(connection)
        yield connection


def frame(rows: list[dict[str, Any]], schema: Any) -> pl.DataFrame:
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)


def put(con: duckdb.DuckDBPyConnection, ops: list[Op]) -> str:
    """Stores a schedule as a run and evaluates it as far as the buckets; its name."""
    (number,) = con.execute("select count(*) from runs").fetchall()[0]
    name = f"run{number}"
    known = [o.op_class == "matmul" for o in ops]
    rows = [
        {
            "op_id": i, "device_id": o.device, "stream": str(i), "name": f"op{i} DtoD", "op_class": o.op_class,
            "start_ns": o.start, "dur_ns": o.dur, "dtype": "bf16", "launch_ns": o.launch, "launch_thread": "1/1",
            "flops": o.cost_ns[0] * PEAK_FLOPS_PER_S // 10**9 if k else None,
            "bytes": o.cost_ns[1] * HBM_BYTES_PER_S // 10**9 if k else None,
            "cost_source": "shapes" if k else "none", "cost_note": None if k else "nobody knows",
        }
        for i, (o, k) in enumerate(zip(ops, known, strict=True))
    ]  # fmt: skip
    comm = [
        {"op_id": i, "collective": "recv" if o.receives else "all_reduce", "peer": 1 if o.receives else None}
        for i, o in enumerate(ops)
        if o.op_class == "collective"
    ]
    marks = [{"step": n, "start_ns": a, "dur_ns": d, "source": "profiler_step", "thread": "1/1"} for n, a, d in MARKS]
    properties = {"memory_bytes": 80 * 2**30}
    found = trace.Trace(
        format="kineto", framework="pytorch", origin_unix_ns=0, rank=0,
        devices=[
            trace.Device(device_id=d, kind="gpu", name="NVIDIA H100 80GB HBM3", ordinal=int(d), properties=properties)
            for d in sorted({o.device for o in ops})
        ],
        ops=frame(rows, trace.OPS), step_marks=frame(marks, trace.STEP_MARKS), collectives=frame(comm, trace.COLLECTIVES),
    )  # fmt: skip
    load.store_trace(con, found, trace_id=name, run_id=name, path=f"{name}.json", sha256=name)
    matches = [
        {
            "trace_id": name, "op_id": i, "instance_id": None if o.arrival is None else i, "matched_by": "by hand",
            "arrival_ns": o.arrival, "predicted_ns": o.predicted, "predicted_by": "by hand",
        }
        for i, o in enumerate(ops)
        if o.op_class == "collective"
    ]  # fmt: skip
    if matches:
        numbers = dict.fromkeys(("instance_id", "arrival_ns", "predicted_ns"), pl.Int64)
        insert(con, "collective_matches", pl.DataFrame(matches, schema_overrides=numbers))
    run = Run.load(con, name)
    waits.run(con, run)
    step_work.run(con, run)
    return name


def close(measured: int, exact: Fraction) -> bool:
    """Whole nanoseconds of a fraction: one of its neighbours."""
    return abs(measured - exact) < 1


@given(SCHEDULES)
@settings(max_examples=15, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # a store is too slow to shrink on
def test_the_whole_account_is_that_of_a_walk(con: duckdb.DuckDBPyConnection, ops: list[Op]) -> None:
    run = put(con, ops)
    stored = con.execute(
        "select device_id, step, start_ns, wall_ns, compute_ns, exposed_comm_ns, exposed_copy_ns, idle_ns from steps "
        "where run_id = ? order by device_id, start_ns, step",
        [run],
    ).fetchall()
    pieces = {
        (op_id, step): row
        for op_id, step, *row in con.execute(
            "select w.op_id, w.step, w.dur_ns, w.share_ns, c.wait_ns, c.pipeline_ns, c.minimum_ns from op_windows w "
            "left join comm_windows c using (trace_id, op_id, step) where w.trace_id = ?",
            [run],
        ).fetchall()
    }
    buckets = {
        (device, step): row
        for device, step, *row in con.execute(
            "select device_id, step, useful_math_ns, memory_bound_ns, unmodelled_compute_ns, comm_wait_ns, "
            "idle_pipeline_ns, comm_minimum_ns, comm_inefficiency_ns from step_gap where run_id = ?",
            [run],
        ).fetchall()
    }
    expected = []
    spent: dict[int, int] = {}
    for device in sorted({o.device for o in ops}):
        own = {i: o for i, o in enumerate(ops) if o.device == device}
        for step, start, end in windows(list(own.values())):
            walked = walk(own, start, end)
            expected.append((device, step, start, end - start, *walked.states))
            inside = {i: pieces[i, step] for i in own if (i, step) in pieces}
            assert {i: d for i, (d, *_) in inside.items() if d} == walked.durs
            sums = dict.fromkeys(("math", "memory", "unknown", "wait", "pipeline", "minimum", "exposed"), 0)
            for i, (dur, share, wait, pipeline, minimum) in inside.items():
                o = ops[i]
                assert close(share, walked.shares.get(i, Fraction()))
                if o.op_class == "collective":
                    waited = pipeline if o.receives else wait
                    assert wait + pipeline == waited
                    assert close(waited, walked.before.get(i, Fraction()))
                    assert minimum == min(share - waited, max((o.predicted or 0) - spent.get(i, 0), 0))
                    spent[i] = spent.get(i, 0) + share - waited
                    for name, ns in (("wait", wait), ("pipeline", pipeline), ("minimum", minimum), ("exposed", share)):
                        sums[name] += ns
                elif o.op_class == "matmul":
                    math, least = o.cost_ns[0], max(o.cost_ns)
                    whole = dur == o.dur
                    sums["math"] += math if whole else math * dur // o.dur
                    sums["memory"] += least - math if whole else least * dur // o.dur - math * dur // o.dur
                elif o.op_class == "custom":
                    sums["unknown"] += share
            assert buckets[device, step] == [
                *(sums[k] for k in ("math", "memory", "unknown", "wait", "pipeline", "minimum")),
                sums["exposed"] - sums["wait"] - sums["pipeline"] - sums["minimum"],
            ]
    assert stored == sorted(expected, key=lambda row: (row[0], row[2], row[1]))
    hidden = con.execute(
        "select op_id, exposed_ns, hidden_ns from collectives where trace_id = ? order by op_id", [run]
    ).fetchall()
    for op_id, exposed, under in hidden:
        o = ops[op_id]
        computing = [p for p in ops if p.device == o.device and LEVEL[p.op_class] == 0]
        seen = sum(not any(p.start <= t < p.end for p in computing) for t in range(o.start, o.end))
        assert (exposed, under) == (seen, o.dur - seen)


def test_the_laws_hold_for_all_of_them(con: duckdb.DuckDBPyConnection) -> None:
    assert con.execute("select count(*) >= 12 from runs").fetchall() == [(True,)]
    assert [breach.line() for law in laws.LAWS if (breach := laws.check(con, law))] == []

"""The schedule of some steps of a run, over all ranks on one clock, read from the store."""

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import polars as pl

from tracegap.ingest import store
from tracegap.ingest.intervals import Ints
from tracegap.models.errors import TracegapError
from tracegap.reports import dependencies
from tracegap.reports.dependencies import Schedule
from tracegap.reports.instants import INPUTS, OPS, POINTS

MOST_OPS = 400_000
"""Operations in a graph at most: of a run with more, steps before the one that is asked for are left out, then ranks."""
STEPS_BEFORE = 3
"""Steps that are replayed before the one that is asked for: a host runs ahead of its device, so a change takes some steps
to show in full."""
_ASYNC = "async"  # stream of asynchronous operations of an XLA device


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The window of the step on a device."""

    device: int
    """Number of the device, a place in `RunSchedule.devices`."""
    begin: int
    """Instant at which it begins."""
    ends: Ints
    """Instants of which the latest is its end: the first operation of the next step, or the ends of its own operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSchedule:
    """Steps of a run as a graph."""

    run_id: str
    step: int
    """The step that is asked for."""
    steps: list[int]
    """All that are in the graph, ascending."""
    schedule: Schedule
    devices: pl.DataFrame
    """A row a device, by its number: trace_id, device_id, rank, on_cpu."""
    ops: pl.DataFrame
    """Beside `schedule.ops`: op_id, op_class, framework_op, label (framework_op, else name), collective, t_min_ns."""
    windows: list[Window]
    left_out: str | None
    """What is not in the graph; None = nothing."""

    def walls_ns(self, at_ns: Ints) -> Ints:
        """Wall time of the step on each device, where the instants happen at `at_ns`."""
        return np.array([int(at_ns[w.ends].max()) - int(at_ns[w.begin]) for w in self.windows], dtype=np.int64)


_STEPS = """
select step, avg(wall_ns) as wall_ns, bool_and(complete) as complete, sum(kernels) as kernels
from steps where run_id = ? group by step order by step
"""


def typical_and_slowest(con: duckdb.DuckDBPyConnection, run_id: str) -> list[int]:
    """The median step by wall time (the lower one of two) and the slowest, of the complete ones; of all if none is."""
    steps = store.frame_of(con, _STEPS, [run_id])
    chosen = steps.filter("complete") if steps["complete"].any() else steps
    ranked = chosen.sort("wall_ns", "step")["step"].to_list()
    return list(dict.fromkeys([ranked[(len(ranked) - 1) // 2], ranked[-1]])) if ranked else []


def load(con: duckdb.DuckDBPyConnection, run_id: str, step: int, *, before: int = STEPS_BEFORE) -> RunSchedule:
    """Reads a step and up to `before` steps before it.

    Raises:
        TracegapError: the run has no such step.
    """
    steps = store.frame_of(con, _STEPS, [run_id])
    if step not in steps["step"].to_list():
        raise TracegapError(f"{run_id}: no step {step}")
    near = steps.filter(pl.col("step") <= step).sort("step", descending=True).head(before + 1)
    fits = near.with_columns(sum=pl.col("kernels").cum_sum()).filter(pl.col("sum") <= MOST_OPS)
    chosen = sorted(fits["step"].to_list()) or [step]
    devices, left_out = _devices(con, run_id, step, int(near["kernels"][0]))
    devices = on_one_clock(devices)
    spans = ", ".join(
        f"({d}, '{t}', '{dev}', {lo}, {hi})"
        for d, t, dev, lo, hi in _spans(con, devices, chosen, step)
        .select("device", "trace_id", "device_id", "lo", "hi")
        .rows()
    )
    with_spans = f"with spans (device, trace_id, device_id, lo, hi) as (values {spans})"
    raw = store.frame_of(con, _OPS.format(with_spans=with_spans))
    raw = raw.join(devices.select("device", "trace", "on_cpu", *_SHIFT), on="device").sort("trace", "op_id")
    points, inputs = _host(con, raw, devices, with_spans)
    ops = _numbered(raw)
    schedule = dependencies.build(ops.select(list(OPS)), points, inputs)
    facts = ["op_id", "op_class", "framework_op", "label", "collective", "t_min_ns", "device"]
    windows = _windows(devices, step, raw, schedule)
    return RunSchedule(
        run_id=run_id,
        step=step,
        steps=chosen,
        schedule=schedule,
        devices=devices.select("trace_id", "device_id", "rank", "on_cpu"),
        ops=raw.select(facts),
        windows=windows,
        left_out=left_out,
    )


def _devices(con: duckdb.DuckDBPyConnection, run_id: str, step: int, kernels: int) -> tuple[pl.DataFrame, str | None]:
    """The devices that run the step, as many of the lowest ranks as fit, and what is left out."""
    found = store.frame_of(
        con,
        """
        select s.trace_id, s.device_id, s.rank, s.start_ns, s.start_ns + s.wall_ns as end_ns,
               coalesce(t.origin_unix_ns, 0) as origin_ns, coalesce(t.clock_offset_ns, 0) as offset_ns,
               coalesce(t.clock_drift_frac, 0) as drift, d.kind = 'cpu' as on_cpu
        from steps s join traces t using (trace_id)
        join devices d on d.trace_id = s.trace_id and d.device_id = s.device_id
        where s.run_id = ? and s.step = ?
        order by s.rank nulls last, s.trace_id, s.device_id
        """,
        [run_id, step],
    )
    fits = max(1, len(found) * MOST_OPS // max(kernels, 1))
    left_out = (
        f"{len(found) - fits} of {len(found)} devices are left out: the step is too large"
        if fits < len(found)
        else None
    )
    kept = found.head(fits).with_row_index("device").with_columns(pl.col("device").cast(pl.Int64))
    return kept.with_columns(trace=pl.col("trace_id").rank("dense").cast(pl.Int64) - 1), left_out


_SHIFT = ("shift_ns", "stretch")


def on_one_clock(devices: pl.DataFrame) -> pl.DataFrame:
    """How times of each device's trace are brought to the clock of the trace in which the step ends last.

    The common clock is t + origin + offset + drift t (`traces.clock_offset_ns`, `clock_drift_frac`), t since the origin of
    the trace; t becomes t + shift + stretch t. Adds shift_ns and stretch.
    """
    base = int(devices["origin_ns"][0])
    offset, drift = devices["offset_ns"].to_numpy(), devices["drift"].to_numpy()
    ahead = devices["origin_ns"].to_numpy() - base + offset
    end = devices["end_ns"].to_numpy()
    last = int(np.argmax(end + ahead + np.rint(drift * end).astype(np.int64)))
    shift = np.rint((ahead - ahead[last]) / (1 + drift[last])).astype(np.int64)
    return devices.with_columns(shift_ns=pl.Series(shift), stretch=pl.Series((1 + drift) / (1 + drift[last]) - 1))


def _spans(con: duckdb.DuckDBPyConnection, devices: pl.DataFrame, chosen: Sequence[int], step: int) -> pl.DataFrame:
    """Since when and until when operations of each device are read."""
    begun = store.frame_of(
        con,
        "select trace_id, device_id, min(start_ns) as lo from steps where step between ? and ? group by all",
        [chosen[0], step],
    )
    return devices.join(begun, on=["trace_id", "device_id"]).with_columns(hi="end_ns")


_OPS = """
{with_spans}
select s.device, g.op_id, hash(s.device, g.stream) as stream, g.stream = 'async' as is_async, g.step, hash(g.name) as key,
       g.start_ns, g.start_ns + g.dur_ns as end_ns,
       -- What begins with its call is the call itself: an operation of a CPU.
       case when g.launch_ns < g.start_ns then g.launch_ns end as launch_ns,
       case when g.launch_ns < g.start_ns then hash(g.trace_id, g.launch_thread) end as thread,
       m.instance_id as instance,
       case when c.op_id is not null then hash(c.collective, c.message_bytes, c.group_size, c.op_id is null) end as likeness,
       g.op_class, g.framework_op, coalesce(g.framework_op, g.name) as label, c.collective, g.t_min_ns,
       m.predicted_ns
from op_gap g
join spans s on s.trace_id = g.trace_id and s.device_id = g.device_id
left join collectives c on c.trace_id = g.trace_id and c.op_id = g.op_id
left join collective_matches m on m.trace_id = g.trace_id and m.op_id = g.op_id
where g.start_ns <= s.hi and (g.start_ns >= s.lo or g.start_ns + g.dur_ns > s.lo)
"""


def common(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Times in `columns` of rows with shift_ns and stretch, on the common clock."""
    drifted = [
        (pl.col(c) + pl.col("shift_ns") + (pl.col("stretch") * pl.col(c)).round().cast(pl.Int64)).alias(c)
        for c in columns
    ]
    return frame.with_columns(drifted)


def _numbered(raw: pl.DataFrame) -> pl.DataFrame:
    """Operations as the graph wants them."""
    dense = [(pl.col(c).rank("dense").cast(pl.Int64) - 1).alias(c) for c in ("stream", "thread")]
    core = pl.col("is_async").any().over("device") & ~pl.col("is_async")
    largest = pl.len().over("stream") == pl.len().over("stream").filter(core).max().over("device")
    told = raw.with_columns(is_core=(core & largest).fill_null(value=False), step=pl.col("step").cast(pl.Int64))
    told = common(told, ["start_ns", "end_ns", "launch_ns"])
    return told.with_columns(dense).cast({c: OPS[c] for c in OPS if c in told.columns})


def _host(
    con: duckdb.DuckDBPyConnection, raw: pl.DataFrame, devices: pl.DataFrame, with_spans: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Calls on host threads, and ranges in which they load data."""
    launched = raw.filter(pl.col("launch_ns").is_not_null())
    threads = launched.select("thread").unique()
    told = store.frame_of(
        con,
        f"""
        {with_spans}, wide as (select trace_id, min(lo) as lo, max(hi) as hi from spans group by trace_id)
        select h.trace_id, hash(h.trace_id, h.thread) as thread, h.kind, h.start_ns, h.start_ns + h.dur_ns as end_ns
        from host_events h join wide w using (trace_id)
        where h.kind in ('launch', 'sync', 'input', 'step') and h.dur_ns is not null and h.start_ns <= w.hi
          and h.start_ns + h.dur_ns >= w.lo - {_AHEAD_NS}
        """,
    ).join(threads, on="thread", how="semi")
    number = threads.with_columns(number=pl.col("thread").rank("dense").cast(pl.Int64) - 1)
    clock = devices.unique("trace_id").select("trace_id", "trace", *_SHIFT)
    told = common(told.join(clock, on="trace_id"), ["start_ns", "end_ns"]).join(number, on="thread")
    told = told.select("trace", "kind", "start_ns", "end_ns", thread="number")
    starts = common(launched.select("trace", "thread", "launch_ns", *_SHIFT), ["launch_ns"]).join(number, on="thread")
    starts = starts.select("trace", thread="number", start_ns="launch_ns").unique()
    # A step that begins on a thread is where the host work before its first launch begins.
    marks = told.filter(pl.col("kind") == "step").select("trace", "thread", "start_ns").unique()
    first = starts.group_by("thread").agg(first=pl.col("start_ns").min())
    early = pl.col("start_ns") < pl.col("first")
    before = pl.col("start_ns").filter(early).max().over("thread")
    marks = marks.join(first, on="thread").filter(~early | (pl.col("start_ns") == before))
    starts = pl.concat([starts, marks.select("trace", "thread", "start_ns")]).unique()
    calls = told.filter(pl.col("kind").is_in(["launch", "sync"]))
    ended = calls.group_by("thread", "start_ns").agg(pl.col("end_ns").max(), is_sync=(pl.col("kind") == "sync").any())
    points = starts.join(ended, on=["thread", "start_ns"], how="left").with_columns(
        pl.col("end_ns").fill_null(pl.col("start_ns")), pl.col("is_sync").fill_null(value=False)
    )
    syncs = calls.join(first, on="thread").filter((pl.col("kind") == "sync") & ~early)
    syncs = syncs.join(starts, on=["thread", "start_ns"], how="anti").with_columns(is_sync=True)
    points = pl.concat([points.select(list(POINTS)), syncs.select(list(POINTS))]).unique(["thread", "start_ns"])
    points = points.sort("thread", "start_ns")
    reach = pl.col("end_ns").cum_max().shift().over("thread").fill_null(np.iinfo(np.int64).min)
    inner = pl.col("is_sync") & (pl.col("start_ns") < reach)
    inputs = told.filter(pl.col("kind") == "input").select(list(INPUTS))
    return points.filter(~inner).cast(POINTS), inputs.cast(INPUTS)  # type: ignore[arg-type]


_AHEAD_NS = 10_000_000_000
"""A host runs no further ahead of its device than ten seconds."""


def _windows(devices: pl.DataFrame, step: int, raw: pl.DataFrame, schedule: Schedule) -> list[Window]:
    """The window of the step on each device."""
    out = []
    work = ~raw["op_class"].is_in(["copy", "memset"]).to_numpy()
    device, start, end = raw["device"].to_numpy(), raw["start_ns"].to_numpy(), raw["end_ns"].to_numpy()
    of_step = raw["step"].fill_null(-1).to_numpy()
    for number, begin_ns, end_ns in devices.select("device", "start_ns", "end_ns").rows():
        mine = device == number
        first = np.flatnonzero(mine & (start == begin_ns))
        after = np.flatnonzero(mine & (start == end_ns) & (of_step > step))
        after = after[work[after]] if work[after].any() else after
        own = np.flatnonzero(mine & (end <= end_ns) & (start >= begin_ns))
        ends = schedule.begin[after[:1]] if len(after) else schedule.end[own]
        out.append(Window(device=number, begin=int(schedule.begin[first[0]]), ends=ends))
    return out

"""What waits for what in a run: operations of all devices, the host calls that launch them, and collectives over ranks.

Instants are begins and ends of operations and of host calls, and the arrival of the last rank at each collective.
What a trace does not say is inferred; `reports.dependencies_streams` and `reports.dependencies_host` say how. Where
nothing explains a gap, it stays as a fixed delay (`reports.replay`).
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracegap.ingest.intervals import Ints
from tracegap.reports import dependencies_host, dependencies_streams
from tracegap.reports.instants import Instants, Why, edges, low
from tracegap.reports.replay import Edges, Graph

_WAITED_NS = 1000
"""An asynchronous operation that ends so long after the core came to its second half was waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A graph with what its instants are."""

    graph: Graph
    ops: pl.DataFrame
    """Columns of OPS; `of` of the edges CROSS, STREAM, CORE, LAUNCH, TRANSFER, ARRIVAL and RUN is a row of it."""
    points: pl.DataFrame
    """Columns of POINTS; `of` of HOST, HANDOVER, CALL and RETURN is a row of it."""
    inputs: pl.DataFrame
    """Columns of INPUTS."""
    begin: Ints
    """Instant at which each operation begins."""
    end: Ints
    """Instant at which each operation ends."""
    call_begin: Ints
    call_end: Ints


def build(ops: pl.DataFrame, points: pl.DataFrame, inputs: pl.DataFrame) -> Schedule:
    """The graph of what is given.

    Args:
        ops: columns of OPS.
        points: columns of POINTS, no two of the same thread and start.
        inputs: columns of INPUTS.
    """
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    calls = points["start_ns"].to_numpy(), points["end_ns"].to_numpy()
    first = min((int(times.min()) for times in (start, calls[0]) if len(times)), default=0)
    instants = Instants.since(first)
    begins = instants.add(start, "device_begin")
    ends = instants.add_ends(begins, start, end, "device_end")
    call_begins = instants.add(calls[0], "call_begin")
    call_ends = instants.add_ends(call_begins, *calls, "call_end")
    launch_lag = dependencies_host.launch_latency_ns(ops)
    parts = [
        *dependencies_host.host_edges(ops, points, call_begins, call_ends, ends),
        dependencies_host.launch_edges(ops, points, call_begins, begins, launch_lag),
        *dependencies_streams.stream_edges(ops, begins, ends, launch_lag),
        *_core(ops, begins, ends),
    ]
    parts += _collectives(ops, instants, begins, ends)
    graph = Graph.of(
        np.concatenate(instants.time_ns), np.concatenate(instants.phase), Edges.joined(parts), fixed=int(Why.FIXED)
    )
    return Schedule(
        graph=graph,
        ops=ops,
        points=points,
        inputs=inputs,
        begin=graph.place[begins],
        end=graph.place[ends],
        call_begin=graph.place[call_begins],
        call_end=graph.place[call_ends],
    )


def _core_order(ops: pl.DataFrame) -> tuple[Ints, Ints, Ints, Ints]:
    """What the cores of XLA devices did, in order: device, row, and whether it begins or ends there.

    A core runs operations, and begins and ends asynchronous ones: codes 0 (a whole operation), 1 (begin), 2 (end).
    """
    rows = np.arange(len(ops))
    core = rows[ops["is_core"].to_numpy()]
    beside = rows[ops["is_async"].to_numpy()]
    row = np.concatenate((core, beside, beside))
    code = np.repeat([0, 1, 2], [len(core), len(beside), len(beside)])
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    time = np.where(code == 2, end[row], start[row])
    device = ops["device"].to_numpy()[row]
    order = np.lexsort((row, code != 2, time, device))
    return device[order], row[order], code[order], time[order]


def _core(ops: pl.DataFrame, begins: Ints, ends: Ints) -> list[Edges]:
    """The core of an XLA device does one thing after the other, the halves of asynchronous operations among them."""
    device, row, code, time = _core_order(ops)
    into = np.where(code == 2, ends[row], begins[row])
    out = np.where(code == 1, begins[row], ends[row])
    out_ns = np.where(code == 0, ops["end_ns"].to_numpy()[row], time)
    follows = np.flatnonzero((device[1:] == device[:-1]) & (time[1:] >= out_ns[:-1])) + 1
    gap = time[follows] - out_ns[follows - 1]
    done = code[follows] == 2
    launch = ops["launch_ns"].fill_null(np.iinfo(np.int64).min).to_numpy()
    launched_since = ~done & (launch[row[follows]] > out_ns[follows - 1])
    lag = np.where(done, low(gap[done]), np.where(launched_since, low(gap[~done]), gap))
    return [edges(Why.CORE, out[follows - 1], into[follows], np.minimum(lag, gap), row[follows])]


def own_transfer_ns(ops: pl.DataFrame, arrival_ns: Ints) -> Ints:
    """Time from the arrival to the end of each collective, less what an asynchronous one only waited for its core.

    One whose end the core waited for took as long as it shows. Of the others only a bound is known: they are taken to be
    like the median of equal ones that were waited for; else as much slower than predicted as those are; else like the
    quickest of their equals.
    """
    took = ops["end_ns"].to_numpy() - arrival_ns
    _, row, code, time = _core_order(ops)
    ends_here = np.flatnonzero(code == 2)
    if not len(ends_here):
        return took
    before = np.where(code == 0, ops["end_ns"].to_numpy()[row], time)
    waited = np.ones(len(ops), dtype=np.bool_)
    waited[row[ends_here]] = time[ends_here] - before[np.maximum(ends_here - 1, 0)] > _WAITED_NS
    told = ops.select("likeness", "is_async", "predicted_ns").with_columns(
        took=pl.Series(took), waited=pl.Series(waited)
    )
    shown = pl.col("waited") & pl.col("is_async") & (pl.col("took") > 0)
    like = pl.col("took").filter(shown).median().over("likeness")
    slower = (pl.col("took") / pl.col("predicted_ns")).filter(shown & (pl.col("predicted_ns") > 0)).median()
    own = pl.coalesce(like, slower * pl.col("predicted_ns"), pl.col("took").min().over("likeness"))
    hidden = pl.col("is_async") & ~pl.col("waited") & (pl.col("took") > 0)
    least = pl.min_horizontal("took", own.round().cast(pl.Int64))
    return told.select(pl.when(hidden).then(least).otherwise("took").alias("took"))["took"].to_numpy()


def _collectives(ops: pl.DataFrame, instants: Instants, begins: Ints, ends: Ints) -> list[Edges]:
    """Operations run from begin to end; matched collectives no earlier than from the arrival of the last rank."""
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    instance = ops["instance"].fill_null(-1).to_numpy()
    of, number, parts = np.unique(instance, return_inverse=True, return_counts=True)
    several = (of >= 0) & (parts > 1)
    matched = several[number]
    last = np.full(len(of), np.iinfo(np.int64).min)
    np.maximum.at(last, number[matched], start[matched])
    arrival_ns = np.where(matched, last[number], start)
    # A rank that ended before the last one began did not wait for it.
    waits = matched & (end > arrival_ns)
    node = np.full(len(of), -1)
    node[several] = instants.add(last[several], "arrival")
    mine, others = np.flatnonzero(matched), np.flatnonzero(waits)
    lasting = np.flatnonzero(ends != begins)
    transfer = own_transfer_ns(ops, arrival_ns)
    run = np.where(waits, transfer, end - start)
    return [
        edges(Why.ARRIVAL, begins[mine], node[number[mine]], 0, mine),
        edges(Why.TRANSFER, node[number[others]], ends[others], transfer[others], others),
        edges(Why.RUN, begins[lasting], ends[lasting], run[lasting], lasting),
    ]

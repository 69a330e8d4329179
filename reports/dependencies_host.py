"""What host threads wait for: their own work, other threads of the process, and devices.

Inferred, since traces do not say it: a thread that begins after a silence goes on where another thread of its process
has just fallen silent (the autograd thread, after the main one, and back); a synchronisation waits for what was launched
before it began on every stream that had finished when it returned; a launch call that ends after its own operation
waited for it.
"""

import numpy as np
import polars as pl

from tracegap.ingest.intervals import Ints
from tracegap.reports.instants import Why, edges, low
from tracegap.reports.replay import Edges

_SILENCE_NS = 50_000
"""A thread that has made no call for so long waits for something."""
_LATENCY_NS = 100_000
"""A launch takes no longer to reach a free stream."""
_BLOCKING_NS = 20_000
"""A launch call that only hands work over takes less."""


def launch_latency_ns(ops: pl.DataFrame) -> Ints:
    """From the begin of a launch call to an operation whose stream is free, by trace; of each operation.

    What shares its launch with an earlier operation of its stream (a graph, an XLA program) does not count.
    """
    free = (pl.col("before_ns") <= pl.col("launch_ns")) & (pl.col("start_ns") >= pl.col("launch_ns"))
    free &= pl.col("start_ns") - pl.col("launch_ns") <= _LATENCY_NS
    first = pl.col("launch_ns") != pl.col("launch_before").fill_null(-1)
    told = (
        ops.with_row_index("row")
        .sort("stream", "start_ns", "row")
        .with_columns(
            before_ns=pl.col("end_ns").shift().over("stream").fill_null(np.iinfo(np.int64).min),
            launch_before=pl.col("launch_ns").shift().over("stream"),
        )
        .filter(pl.col("launch_ns").is_not_null() & free & first)
    )
    out = np.zeros(len(ops), dtype=np.int64)
    trace = ops["trace"].to_numpy()
    for (number,), part in told.partition_by("trace", as_dict=True).items():
        out[trace == number] = low((part["start_ns"] - part["launch_ns"]).to_numpy())
    return out


def launch_edges(ops: pl.DataFrame, points: pl.DataFrame, call_begins: Ints, begins: Ints, lag_ns: Ints) -> Edges:
    """An operation begins no earlier than its launch call and the latency of a launch."""
    joined = _launched(ops, points)
    op, point = joined["op"].to_numpy(), joined["point"].to_numpy()
    return edges(Why.LAUNCH, call_begins[point], begins[op], lag_ns[op], op)


def _launched(ops: pl.DataFrame, points: pl.DataFrame) -> pl.DataFrame:
    """Rows of operations (`op`) and of the calls that launched them (`point`)."""
    calls = points.select("thread", launch_ns="start_ns").with_row_index("point")
    return (
        ops.select("thread", "launch_ns").with_row_index("op").join(calls, on=["thread", "launch_ns"], how="inner")
    )  # fmt: skip


def host_edges(ops: pl.DataFrame, points: pl.DataFrame, begins: Ints, ends: Ints, op_ends: Ints) -> list[Edges]:
    """What calls on the host wait for.

    Args:
        ops: operations on devices.
        points: calls.
        begins: instants at which the calls begin.
        ends: instants at which they end.
        op_ends: instants at which the operations end.
    """
    if not len(points):
        return []
    waits, waiting = _returns(ops, points)
    start, end = points["start_ns"].to_numpy(), points["end_ns"].to_numpy()
    done = ops["end_ns"].to_numpy()
    back = low(end[waits[:, 1]][waiting] - done[waits[:, 0]][waiting])
    lasting = np.flatnonzero(ends != begins)
    held = np.zeros(len(points), dtype=np.bool_)
    held[waits[:, 1]] = True
    call = np.where(held, np.minimum(end - start, back), end - start)[lasting]
    return [
        *_program(points, begins, ends),
        edges(Why.CALL, begins[lasting], ends[lasting], call, lasting),
        edges(Why.RETURN, op_ends[waits[:, 0]], ends[waits[:, 1]], back, waits[:, 1]),
    ]


def _program(points: pl.DataFrame, begins: Ints, ends: Ints) -> list[Edges]:
    """A thread makes one call after the other, or takes over from another thread of the process."""
    start, end = points["start_ns"].to_numpy(), points["end_ns"].to_numpy()
    thread, trace = points["thread"].to_numpy(), points["trace"].to_numpy()
    order = np.lexsort((end, start, thread))
    same = thread[order[1:]] == thread[order[:-1]]
    before = np.full(len(points), -1)
    before[order[1:][same]] = order[:-1][same]
    after = np.full(len(points), -1)
    after[order[:-1][same]] = order[1:][same]

    by_time = np.lexsort((end, start, trace))
    other = np.full(len(points), -1)
    changes = (trace[by_time[1:]] == trace[by_time[:-1]]) & (thread[by_time[1:]] != thread[by_time[:-1]])
    other[by_time[1:][changes]] = by_time[:-1][changes]
    own_end = np.where(before >= 0, end[before], np.iinfo(np.int64).min // 2)
    goes_on = np.where(after[other] >= 0, start[after[other]], np.iinfo(np.int64).max // 2)
    taken = (
        (other >= 0)
        & (end[other] <= start)
        & (end[other] > own_end)
        & (start - own_end >= _SILENCE_NS)
        & (goes_on - end[other] >= _SILENCE_NS)
    )
    mine = np.flatnonzero(before >= 0)
    nested = end[before[mine]] > start[mine]  # a call within a call
    src = np.where(nested, begins[before[mine]], ends[before[mine]])
    since = np.where(nested, start[before[mine]], end[before[mine]])
    over = np.flatnonzero(taken)
    return [
        edges(Why.HOST, src, begins[mine], np.where(taken[mine], 0, start[mine] - since), mine),
        edges(Why.HANDOVER, ends[other[over]], begins[over], start[over] - end[other[over]], over),
    ]


def _returns(ops: pl.DataFrame, points: pl.DataFrame) -> tuple[Ints, np.ndarray]:
    """Pairs (operation, call that returns after it), shape [k, 2], and which of them the call was seen to wait for."""
    start, end = points["start_ns"].to_numpy(), points["end_ns"].to_numpy()
    done = ops["end_ns"].to_numpy()
    sync = np.flatnonzero(points["is_sync"].to_numpy())
    trace = points["trace"].to_numpy()
    pairs = [np.empty((0, 2), dtype=np.int64)]
    streams = ops.with_row_index("row").filter(pl.col("launch_ns").is_not_null()).sort("launch_ns", "start_ns", "row")
    for (number, _), part in streams.partition_by("trace", "stream", as_dict=True, maintain_order=True).items():
        calls = sync[trace[sync] == number]
        rows, launch = part["row"].to_numpy().astype(np.int64), part["launch_ns"].to_numpy()
        reach = np.maximum.accumulate(done[rows])
        last = np.searchsorted(launch, start[calls], side="left") - 1
        # What was still running when the call returned was not waited for; an earlier operation may have been.
        past = np.searchsorted(reach, end[calls], side="right") - 1
        k = np.minimum(last, past)
        found = (k >= 0) & ((last <= past) | (done[rows[np.maximum(k, 0)]] > start[calls]))
        pairs.append(np.column_stack((rows[k[found]], calls[found])))
    joined = _launched(ops, points).filter(pl.len().over("point") == 1)
    op, point = joined["op"].to_numpy().astype(np.int64), joined["point"].to_numpy().astype(np.int64)
    blocks = (end[point] - start[point] >= _BLOCKING_NS) & (done[op] <= end[point])
    pairs.append(np.column_stack((op[blocks], point[blocks])))
    waits = np.concatenate(pairs)
    latest = np.full(len(points), np.iinfo(np.int64).min)
    np.maximum.at(latest, waits[:, 1], done[waits[:, 0]])
    waiting = (done[waits[:, 0]] == latest[waits[:, 1]]) & (done[waits[:, 0]] > start[waits[:, 1]])
    return waits, waiting

"""What operations on one device wait for: the order of their stream, and other streams.

Traces seldom say that a stream waits for another one. It is inferred from operations that begin within 10 us of the end
of an operation of another stream, while their own stream had been free and their launch had been made for longer than
2 us; of a CPU, whose streams are threads that have to wake up, within 500 us. What was seen is then taken to hold in
general, for dependencies bind on some ranks and steps and are hidden on others:

- operations of one name in a stream that nearly always begin after whatever was launched before them on another stream
  wait for it (a gradient's all-reduce, for the kernels that compute it);
- the n-th operation of a name in a step that was seen waiting for the m-th one of another name waits for it in every step
  and on every rank (the optimizer, for the last all-reduce).
"""

import numpy as np
import polars as pl

from tracegap.ingest.intervals import Ints
from tracegap.reports.instants import Why, edges, low
from tracegap.reports.replay import Edges

_IDLE_NS = 2_000
_NEAR_NS = 10_000
_WAKING_NS = 500_000
_HOLDS = 0.98  # part of the operations of a name that must agree
_SEEN = 2  # times that a dependency must have bound before it is taken to hold elsewhere
_STREAMS = 6  # of a device, those with most operations; more are looked at for order only
_NONE = np.iinfo(np.int64).min


def stream_edges(ops: pl.DataFrame, begins: Ints, ends: Ints, launch_lag_ns: Ints) -> list[Edges]:
    """Edges between operations of each device, of all streams but the asynchronous lines and cores of XLA devices."""
    queued = ops.with_row_index("row").filter(~pl.col("is_async") & ~pl.col("is_core"))
    queued = queued.sort("stream", "start_ns", "row")
    row = queued["row"].to_numpy().astype(np.int64)
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    stream = ops["stream"].to_numpy()
    follows = stream[row[1:]] == stream[row[:-1]]
    before = np.full(len(ops), -1)
    before[row[1:][follows]] = row[:-1][follows]
    ordered = np.flatnonzero((before >= 0) & (end[before] <= start))
    launch = ops["launch_ns"].fill_null(_NONE).to_numpy()
    reached = np.where(launch > _NONE, launch + launch_lag_ns, _NONE)
    gap = _gaps(ordered, start - end[before], stream, reached <= end[before])
    freed = np.full(len(ops), _NONE)
    freed[ordered] = end[before[ordered]] + gap[ordered]
    ready = np.maximum(freed, reached)
    crossing = _crossing(queued, ready)
    src, dst, lag = crossing["src"].to_numpy(), crossing["dst"].to_numpy(), crossing["lag_ns"].to_numpy()
    return [
        edges(Why.STREAM, ends[before[ordered]], begins[ordered], gap[ordered], ordered),
        edges(Why.CROSS, ends[src], begins[dst], lag, dst),
    ]


def _gaps(ordered: Ints, gap: Ints, stream: Ints, queued: np.ndarray) -> Ints:
    """The least time between operations of a stream, of each: what the quickest of those show that were queued.

    What begins long after the one before it waited for something else.
    """
    out = np.zeros(len(stream), dtype=np.int64)
    order = ordered[np.argsort(stream[ordered], kind="stable")]
    for mine in np.split(order, np.flatnonzero(np.diff(stream[order])) + 1):
        if len(mine):
            out[mine] = low(gap[mine[queued[mine] & (gap[mine] <= _NEAR_NS)]])
    return out


def _crossing(queued: pl.DataFrame, ready: Ints) -> pl.DataFrame:
    """Dependencies on other streams of the device: src, dst (rows of operations), lag_ns."""
    pairs = pl.concat(
        [_of_device(part, ready) for part in queued.partition_by("device", maintain_order=True)] or [_PAIRS]
    )
    if not len(pairs):
        return pairs.select("src", "dst", lag_ns="gap_ns")
    seen = pairs.filter("evident")
    by = ["from_stream", "to_stream", "key"]
    rule = (
        pairs.filter("launched_before")
        .group_by(by)
        .agg(held=pl.col("holds").mean(), times=pl.col("evident").sum())
        .filter((pl.col("held") >= _HOLDS) & (pl.col("times") >= _SEEN))
    )
    general = pairs.filter(pl.col("launched_before") & pl.col("holds")).join(rule.select(by), on=by, how="semi")
    found = pl.concat([seen, general]).select("src", "dst", "gap_ns", "evident", "from_stream", "to_stream")
    usual = pl.col("gap_ns").filter("evident").min().over("from_stream", "to_stream")
    told = found.with_columns(lag_ns=pl.when("evident").then("gap_ns").otherwise(pl.min_horizontal("gap_ns", usual)))
    elsewhere = _elsewhere(queued, seen)
    return pl.concat([told.select("src", "dst", "lag_ns"), elsewhere]).unique(["src", "dst"], keep="first")


_PAIRS = pl.DataFrame(
    schema={
        "src": pl.Int64, "dst": pl.Int64, "gap_ns": pl.Int64, "key": pl.UInt64, "from_stream": pl.Int64,
        "to_stream": pl.Int64, "evident": pl.Boolean, "launched_before": pl.Boolean, "holds": pl.Boolean,
    }
)  # fmt: skip


def _of_device(ops: pl.DataFrame, ready: Ints) -> pl.DataFrame:
    """What was seen to wait, and what was launched last before each operation, for each two streams of a device."""
    near_ns = _WAKING_NS if ops["on_cpu"].any() else _NEAR_NS
    sizes = ops.group_by("stream").len().sort("len", "stream", descending=True).head(_STREAMS)
    streams = {int(s): ops.filter(pl.col("stream") == s) for s in sizes["stream"]}
    out = [_PAIRS]
    for to, mine in streams.items():
        row, start = mine["row"].to_numpy().astype(np.int64), mine["start_ns"].to_numpy()
        launch = mine["launch_ns"].fill_null(_NONE).to_numpy()
        idle = start - ready[row] > _IDLE_NS
        for other, theirs in streams.items():
            if other == to:
                continue
            rows, done = theirs["row"].to_numpy().astype(np.int64), theirs["end_ns"].to_numpy()
            by_end = np.argsort(done, kind="stable")
            last = np.searchsorted(done[by_end], start, side="right") - 1
            gap = start - done[by_end[np.maximum(last, 0)]]
            near = np.flatnonzero((last >= 0) & idle & (gap <= near_ns))
            ended = rows[by_end[last[near]]]
            theirs_launch = theirs["launch_ns"].fill_null(_NONE).to_numpy()
            by_launch = np.argsort(theirs_launch, kind="stable")
            queued = np.searchsorted(theirs_launch[by_launch], launch, side="left") - 1
            there = np.flatnonzero((launch > _NONE) & (queued >= 0))
            there = there[theirs_launch[by_launch[queued[there]]] > _NONE]
            before = by_launch[queued[there]]
            evident = np.isin(row[there] * (2**31) + rows[before], row[near] * (2**31) + ended)
            for at, src, gaps, seen, rule in (
                (near, ended, gap[near], np.ones(len(near), dtype=np.bool_), False),
                (there, rows[before], start[there] - done[before], evident, True),
            ):
                out.append(
                    pl.DataFrame(
                        {
                            "src": src, "dst": row[at], "gap_ns": gaps, "key": mine["key"].gather(at),
                            "from_stream": np.full(len(at), other), "to_stream": np.full(len(at), to),
                            "evident": seen, "launched_before": np.full(len(at), rule), "holds": gaps >= 0,
                        },
                        schema=_PAIRS.schema,
                    )
                )  # fmt: skip
    return pl.concat(out)


def _elsewhere(queued: pl.DataFrame, seen: pl.DataFrame) -> pl.DataFrame:
    """The same dependencies in other steps and on other ranks: by names and their places in the step."""
    nth = pl.int_range(pl.len()).over("device", "step", "key", order_by=["start_ns", "row"])
    placed = queued.filter(pl.col("step").is_not_null()).with_columns(nth=nth, row=pl.col("row").cast(pl.Int64))
    where = placed.select("row", "device", "step", "key", "nth", "start_ns", "end_ns")
    told = (
        seen.select("src", "dst", "gap_ns")
        .join(where.rename({"row": "src", "key": "src_key", "nth": "src_nth", "step": "src_step"}), on="src")
        .join(where.select(dst="row", key="key", nth="nth", step="step"), on="dst")
        .with_columns(steps_on=pl.col("step") - pl.col("src_step"))
        .group_by("src_key", "src_nth", "key", "nth", "steps_on")
        .agg(times=pl.len(), lag_ns=pl.col("gap_ns").min())
        .filter(pl.col("times") >= _SEEN)
    )
    source = where.select("device", src="row", src_step="step", src_key="key", src_nth="nth", done_ns="end_ns")
    spread = (
        told.join(where.select("device", "step", "key", "nth", "start_ns", dst="row"), on=["key", "nth"])
        .with_columns(src_step=pl.col("step") - pl.col("steps_on"))
        .join(source, on=["device", "src_step", "src_key", "src_nth"])
        .with_columns(holds=pl.col("done_ns") <= pl.col("start_ns"))
    )
    agreed = pl.col("holds").mean().over("src_key", "src_nth", "key", "nth", "steps_on") >= _HOLDS
    return spread.filter(agreed & pl.col("holds")).select("src", "dst", "lag_ns")

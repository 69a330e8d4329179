"""The critical path of a step: from the end of its window back to its begin, over all ranks, in pieces that add up to it.

The step is that of the device whose window ends last on the common clock. From its end the path goes back to what each
instant waited for longest; a collective leads to the rank that began it last.
"""

import duckdb
import numpy as np
import polars as pl

from tracegap.ingest import store
from tracegap.ingest.intervals import Cover, Ints
from tracegap.reports.instants import RANK_OF_WHY, Why
from tracegap.reports.run_schedule import RunSchedule

MOST_PIECES = 500
"""A path of more pieces is told in runs: of what one rank does without a break, all pieces of a kind are one row."""
_KINDS = {
    Why.FIXED: "unknown",
    Why.HOST: "host",
    Why.HANDOVER: "host",
    Why.CALL: "launch_call",
    Why.LAUNCH: "launch_latency",
    Why.STREAM: "device_gap",
    Why.CORE: "device_gap",
    Why.CROSS: "device_gap",
    Why.RETURN: "sync_return",
    Why.TRANSFER: "collective",
}
"""What a piece is by its edge; operations by their class."""
_WAITS = {
    "host": "the host had not begun the next call",
    "input": "the host loaded data",
    "launch_call": "the host was in a launch call",
    "sync_call": "the host was in a synchronisation that waited for nothing",
    "sync_return": "a synchronisation returned",
    "launch_latency": "a launch reached the device",
    "device_gap": "an operation followed another one of its device",
    "kernel": "a kernel ran",
    "copy": "a copy or fill ran",
    "collective": "a collective ran, all ranks having begun it",
    "unknown": "nothing in the graph leads further back",
}


def pieces(run: RunSchedule) -> pl.DataFrame:
    """Pieces of the path, the earliest first.

    Columns: device (number), kind, op (row of `run.ops`, None = host), at_ns (since the begin of the step), dur_ns,
    unexplained_ns. They follow each other without a gap from 0 to the wall time of the step.
    """
    schedule = run.schedule
    graph, edges = schedule.graph, schedule.graph.edges
    time = graph.time_ns
    window = max(run.windows, key=lambda w: (int(time[w.ends].max()), w.device))
    begin = int(time[window.begin])
    last = int(window.ends[np.argmax(time[window.ends])])
    path = graph.path(last, begin, graph.binding(RANK_OF_WHY))[::-1]
    path = path[(time[edges.dst[path]] > begin) & (time[edges.dst[path]] > time[edges.src[path]])]
    src, dst = time[edges.src[path]], time[edges.dst[path]]
    why, of = edges.why[path], edges.of[path]
    on_host = np.isin(why, [int(w) for w in (Why.HOST, Why.HANDOVER, Why.CALL, Why.RETURN)])
    fixed = why == int(Why.FIXED)
    op = np.where(on_host | fixed, -1, of)
    point = np.where(on_host, of, -1)
    frame = pl.DataFrame(
        {
            "device": _device(run, op, point, window.device),
            "kind": _kinds(run, why, op, point),
            "op": op,
            "thread": schedule.points["thread"].gather(np.maximum(point, 0)) if len(schedule.points) else point,
            "begin": np.maximum(src, begin),
            "end": dst,
            "unexplained_ns": np.minimum(graph.unexplained_ns[edges.dst[path]], dst - np.maximum(src, begin)),
        }
    )
    if len(frame) and frame["begin"][0] > begin:  # the path left the graph before the step begins
        head = {"device": window.device, "kind": "unknown", "op": -1, "begin": begin, "end": frame["begin"][0]}
        frame = pl.concat(
            [pl.DataFrame(head | {"thread": -1, "unexplained_ns": 0}).select(frame.columns), frame],
            how="vertical_relaxed",
        )
    frame = _without_loading(frame, run.schedule.inputs).filter(pl.col("end") > pl.col("begin"))
    return frame.select(
        "device", "kind", "op", "unexplained_ns", at_ns=pl.col("begin") - begin, dur_ns=pl.col("end") - pl.col("begin")
    )


def _device(run: RunSchedule, op: Ints, point: Ints, otherwise: int) -> Ints:
    """Device of each piece; of one on the host the first device of its trace."""
    of_op = run.schedule.ops["device"].to_numpy()
    trace = run.schedule.ops.group_by("trace").agg(pl.col("device").min())
    first = dict(trace.rows())
    points = run.schedule.points["trace"].to_list()
    out = np.full(len(op), otherwise)
    on_device, on_host = op >= 0, point >= 0
    out[on_device] = of_op[op[on_device]]
    out[on_host] = [first.get(points[p], otherwise) for p in point[on_host].tolist()]
    return out


def _kinds(run: RunSchedule, why: Ints, op: Ints, point: Ints) -> list[str]:
    classes = run.ops["op_class"]
    sync = run.schedule.points["is_sync"]
    on_cpu, device = run.devices["on_cpu"].to_list(), run.schedule.ops["device"].to_list()
    out: list[str] = []
    for w, o, p in zip(why.tolist(), op.tolist(), point.tolist(), strict=True):
        if w == Why.RUN:
            op_class = classes[o]
            out.append(
                "collective" if op_class == "collective" else "copy" if op_class in ("copy", "memset") else "kernel"
            )
        elif w == Why.CALL and sync[p]:
            out.append("sync_call")
        else:
            # Between two operations of a CPU its thread does what is no operation.
            gap_of_cpu = w == Why.STREAM and on_cpu[device[o]]
            out.append("host" if gap_of_cpu else _KINDS[Why(w)])
    return out


def _without_loading(frame: pl.DataFrame, inputs: pl.DataFrame) -> pl.DataFrame:
    """Cuts what a host did into loading data, which is a piece of its own and comes first, and the rest."""
    begin, end, thread = (frame[c].to_numpy() for c in ("begin", "end", "thread"))
    loading = np.zeros(len(frame), dtype=np.int64)
    host = (frame["kind"] == "host").to_numpy()
    for (number,), part in inputs.partition_by("thread", as_dict=True).items():
        mine = np.flatnonzero(host & (thread == number))
        cover = Cover.of(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())
        loading[mine] = cover.within(begin[mine], end[mine])
    cut = frame.with_row_index("place").with_columns(loading=pl.Series(loading))
    rest = cut.with_columns(begin=pl.col("begin") + pl.col("loading"))
    loads = cut.filter(pl.col("loading") > 0).with_columns(
        end=pl.col("begin") + pl.col("loading"), kind=pl.lit("input"), unexplained_ns=pl.lit(0, dtype=pl.Int64)
    )
    return pl.concat([loads, rest]).sort("place", "begin").drop("place", "loading")


def in_runs(found: pl.DataFrame) -> pl.DataFrame:
    """Consecutive pieces of one kind, operation label and device as one row; in a long path all of a kind in a run.

    Args:
        found: rows of `pieces`, with `label`.
    """
    same = ["device", "kind", "label"] if len(found) <= MOST_PIECES else ["device"]
    within = ["stretch"] if len(found) <= MOST_PIECES else ["stretch", "kind"]
    changed = pl.any_horizontal(pl.col(c).ne_missing(pl.col(c).shift()) for c in same)
    return (
        found.with_columns(stretch=changed.fill_null(value=True).cum_sum())
        .group_by(within, maintain_order=True)
        .agg(
            pl.col("device", "at_ns").first(),
            *([] if "kind" in within else [pl.col("kind").first()]),
            # A row of several operations names the one that took longest.
            pl.col("op", "label").sort_by("dur_ns", descending=True, maintain_order=True).first(),
            pl.col("dur_ns", "unexplained_ns").sum(),
            pieces=pl.len().cast(pl.Int64),
        )
        .sort("at_ns", "stretch", maintain_order=True)
    )


def rows(run: RunSchedule) -> pl.DataFrame:
    """The rows of the table `critical_path` for a step."""
    found = pieces(run)
    told = found.with_columns(op=pl.when(pl.col("op") >= 0).then("op"))
    label = run.ops["label"].gather(told["op"].fill_null(0)) if len(run.ops) else pl.Series([], dtype=pl.String)
    told = in_runs(told.with_columns(label=pl.when(pl.col("op").is_not_null()).then(label)))
    numbers = run.devices.with_row_index("device").with_columns(pl.col("device").cast(pl.Int64))
    op_id = run.ops["op_id"].gather(told["op"].fill_null(0))
    return (
        told.join(numbers, on="device", how="left", maintain_order="left")
        .with_columns(op_id=pl.when(pl.col("op").is_not_null()).then(op_id))
        .select(
            pl.lit(run.run_id).alias("run_id"),
            pl.lit(run.step, dtype=pl.Int64).alias("step"),
            pl.int_range(pl.len()).alias("place"),
            "rank", "trace_id", "device_id", "kind", "op_id", "at_ns", "dur_ns", "unexplained_ns", "pieces",
            name="label",
            why=pl.col("kind").replace_strict(_WAITS),
        )
    )  # fmt: skip


def store_path(con: duckdb.DuckDBPyConnection, run: RunSchedule) -> None:
    """Writes the path of a step."""
    store.insert(con, "critical_path", rows(run))

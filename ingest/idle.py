"""Idle time of a device: its intervals, when the host began to launch what follows, and what it waited for before.

An idle interval ends with the next operation of the device. From the moment at which the call that launched it began, the
time is `idle_gap`; before, the host had not begun: in an input range `idle_input`, else in a synchronisation `idle_sync`,
else in a blocking receive from another rank `idle_pipeline`, else `idle_host`. Where the launch is not in the file,
`idle_unknown`.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.account import OUTSIDE, Windows
from tracegap.ingest.classify.host import RECEIVE
from tracegap.ingest.intervals import Cover, Ints, cut, gaps, increasing, sums_by

WAITS = ("input", "sync", "receive")
"""What a host thread may wait for, first wins: data, a device, another rank."""
CAUSE_OF_WAIT = {"input": "idle_input", "sync": "idle_sync", "receive": "idle_pipeline"}
CAUSES = ("idle_host", *CAUSE_OF_WAIT.values(), "idle_gap", "idle_unknown")
"""Causes of idle time: columns of `steps`, with `_ns` behind."""
WAIT_SPANS = {"thread": pl.String, "kind": pl.String, "start_ns": pl.Int64, "dur_ns": pl.Int64}
"""Spans of waiting; `kind` is one of WAITS."""


def waits_of(events: pl.DataFrame) -> pl.DataFrame:
    """The spans of host events (thread, kind, name, start_ns, dur_ns) in which their thread waits, as WAIT_SPANS."""
    near = events.filter(pl.col("kind").is_in(["input", "sync", "collective"]) & pl.col("dur_ns").is_not_null())
    near = near.with_columns(pl.col("kind", "thread").cast(pl.String))
    calls = near.filter(kind="collective").filter(pl.col("name").cast(pl.String).str.contains(RECEIVE))
    spans = [near.filter(pl.col("kind") != "collective"), calls.with_columns(kind=pl.lit("receive"))]
    return pl.concat([part.select(*WAIT_SPANS) for part in spans])


@dataclass(frozen=True, slots=True)
class Idle:
    """The idle intervals of a device, cut at the ends of its step windows. Arrays have an entry each, in order of time."""

    begin: Ints
    end: Ints
    window: Ints
    """Index of its step window."""
    launch: Ints
    """When the call that launched the next operation began, ns, cut to the interval; its end where that is not known."""
    call: Ints
    """The same not cut: it may be long before; -1 where not known."""
    known: NDArray[np.bool_]
    """Whether the launch of the next operation is in the file."""
    thread: pl.Series
    """Thread of that call, empty where the launch or the thread is not known."""
    before: pl.Series
    """Thread of the call that launched the operation before, likewise."""

    @classmethod
    def of(cls, ops: pl.DataFrame, windows: Windows) -> "Idle":
        """From op_id, start_ns, dur_ns, launch_ns, launch_thread of the operations of one device."""
        ops = ops.select("op_id", "start_ns", "dur_ns", "launch_ns", "launch_thread")
        if not (increasing(ops["start_ns"].to_numpy()) and increasing(ops["op_id"].to_numpy())):
            ops = ops.sort("start_ns", "op_id")
        starts = ops["start_ns"].to_numpy()
        ends = starts + ops["dur_ns"].to_numpy()
        nothing = np.zeros(0, dtype=np.int64)
        if len(ops) and len(windows.starts):
            lo, hi = int(windows.starts[0]), int(windows.ends[-1])
            edges, tile_window = windows.tiles(lo, hi)
            pieces = cut(*gaps(starts, ends, lo, hi), edges)
            inside = tile_window[pieces.tile] != OUTSIDE
            a, b, window = pieces.begin[inside], pieces.end[inside], tile_window[pieces.tile][inside]
        else:
            a, b, window = nothing, nothing, nothing
        following = np.searchsorted(starts, b, side="left")
        has_next = following < len(starts)
        row = pl.Series(np.minimum(following, max(len(starts) - 1, 0)))
        launch = ops["launch_ns"].gather(row) if len(ops) else pl.Series([], dtype=pl.Int64)
        known = has_next & launch.is_not_null().to_numpy()
        launches = ops["launch_thread"].cast(pl.String).fill_null("")
        threads = launches.gather(row) if len(ops) else launches
        earlier = launches.gather(pl.Series(np.maximum(following - 1, 0))) if len(ops) else launches
        return cls(
            begin=a,
            end=b,
            window=window,
            launch=np.where(known, np.clip(launch.fill_null(0).to_numpy(), a, b), b),
            call=np.where(known, launch.fill_null(0).to_numpy(), -1),
            known=known,
            thread=pl.select(pl.when(pl.lit(pl.Series(known))).then(pl.lit(threads)).otherwise(pl.lit(""))).to_series(),
            before=earlier,
        )

    def __len__(self) -> int:
        return len(self.begin)


def covers(waits: pl.DataFrame, threads: list[str]) -> list[Cover]:
    """For each of WAITS, the time that spans of it or of one before it on the threads cover."""
    near = waits.filter(pl.col("thread").is_in(threads))
    found = []
    for count in range(1, len(WAITS) + 1):
        held = near.filter(pl.col("kind").is_in(WAITS[:count]))
        begin = held["start_ns"].to_numpy()
        found.append(Cover.of(begin, begin + held["dur_ns"].to_numpy()))
    return found


def idle_by_cause(ops: pl.DataFrame, windows: Windows, waits: pl.DataFrame, mark_thread: str | None) -> dict[str, Ints]:
    """Idle time of each window by cause, ns, as columns of `steps`; the causes add up to the idle time of the window.

    Args:
        ops: op_id, start_ns, dur_ns, launch_ns, launch_thread of the operations of one device.
        windows: the step windows.
        waits: WAIT_SPANS.
        mark_thread: thread that carries the step marks; its waits count beside those of the launching thread.
    """
    idle = Idle.of(ops, windows)
    within = {wait: np.zeros_like(idle.begin) for wait in WAITS}
    for thread in idle.thread.filter(pl.Series(idle.known)).unique():
        mine = np.flatnonzero(idle.known & (idle.thread == thread).to_numpy())
        before = np.zeros(len(mine), dtype=np.int64)
        for wait, cover in zip(WAITS, covers(waits, [thread, mark_thread or thread]), strict=True):
            covered = cover.within(idle.begin[mine], idle.launch[mine])
            within[wait][mine] = covered - before
            before = covered
    length = idle.end - idle.begin
    by_cause: dict[str, Ints] = {cause: within[wait] for wait, cause in CAUSE_OF_WAIT.items()}
    waited = np.sum(list(within.values()), axis=0, dtype=np.int64)
    by_cause["idle_host"] = np.where(idle.known, idle.launch - idle.begin, 0) - waited
    by_cause["idle_gap"] = np.where(idle.known, idle.end - idle.launch, 0)
    by_cause["idle_unknown"] = np.where(idle.known, 0, length)
    return {f"{cause}_ns": sums_by(idle.window, by_cause[cause], len(windows.starts)) for cause in CAUSES}

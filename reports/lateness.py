"""Why a rank came last to a collective: what it had more to do since the one before than the others."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracegap.ingest import account, idle
from tracegap.ingest.account import Timeline, Windows
from tracegap.ingest.intervals import Ints, cut, gaps
from tracegap.reports.parts import Parts

CAUSES = ("compute", "communication", "copy", *(cause.removeprefix("idle_") for cause in idle.CAUSES))
"""What a device does between two collectives; the three states of work, then idle time by its cause."""
COLLECTIVE, UNKNOWN = "collective", "unknown"
SLOW = 1.25
"""A collective to which nobody comes late is slow from so many times its prediction on."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """What one device did up to any boundary of its operations, by cause."""

    line: Timeline
    gap_ends: Ints
    idle: Ints
    """By idle cause, up to the end of each gap, with a leading zero, shape [6, gaps + 1], ns."""

    @classmethod
    def of(cls, ops: pl.DataFrame, host: pl.DataFrame, mark_thread: str | None) -> "Ledger":
        """From the operations of one device.

        Args:
            ops: op_id, start_ns, dur_ns, op_class, launch_ns, launch_thread.
            host: `ingest.idle.WAIT_SPANS`, in which a thread waits.
            mark_thread: the thread that carries the step marks.
        """
        starts = ops["start_ns"].to_numpy()
        ends = starts + ops["dur_ns"].to_numpy()
        line = Timeline.of(starts, ends, account.states_of(ops["op_class"]), np.empty(0, dtype=np.int64))
        whole = cut(*gaps(starts, ends, int(starts.min()), int(ends.max())), line.points)  # operations may take no time
        a, b = whole.begin, whole.end
        found = idle.idle_by_cause(ops, Windows(a, b), host, mark_thread)
        spent = np.stack([found[f"{cause}_ns"] for cause in idle.CAUSES])
        before = np.zeros((len(spent), 1), dtype=np.int64)
        return cls(line, b, np.concatenate((before, np.cumsum(spent, axis=1)), axis=1))

    def between(self, starts: Ints, ends: Ints) -> Ints:
        """Time by cause between boundaries of operations, shape [9, n], ns; the causes add up to the length."""
        first, last = (np.searchsorted(self.gap_ends, t, side="right") for t in (starts, ends))
        spent: Ints = np.concatenate((self.line.states_within(starts, ends), self.idle[:, last] - self.idle[:, first]))
        return spent


def since_the_one_before(calls: pl.DataFrame) -> pl.DataFrame:
    """Where each matched call's window begins: where the same ranks started the group's collective before.

    Args:
        calls: trace_id, device_id, op_id, group, instance_id, start_ns; matched calls only.

    Returns:
        The same rows with `from_ns`, NULL where the ranks have no collective before in common, and `step_ns`, the start of
        the group's last collective of another step (of its first, where there is none).
    """
    mine = ["trace_id", "device_id", "group"]
    order = ["start_ns", "op_id"]
    found = calls.with_columns(
        from_ns=pl.col("start_ns").shift(1).over(mine, order_by=order),
        before=pl.col("instance_id").shift(1).over(mine, order_by=order),
    )
    same = (pl.col("before").n_unique().over("instance_id") == 1) & pl.col("before").is_not_null()
    begins = pl.col("from_ns").fill_null(pl.col("start_ns"))
    return found.with_columns(
        from_ns=pl.when(same).then("from_ns"), step_ns=begins.sort_by(*order).first().over(*mine, "step")
    ).drop("before")


def causes(calls: pl.DataFrame, spent: Ints, in_step: Ints) -> pl.Series:
    """Why the last rank of an instance was last, said on its row; NULL on the rows of the others.

    From the start of one collective of a group to that of the next, a rank falls behind the median of the ranks by what it
    spends more; that of which it had most is why. What it was behind already it may carry along, with the cause that this
    had: the others did not wait for it, or had computed on while they did, and what it spends more now they have done before;
    over the step it is then no more than theirs.

    Args:
        calls: trace_id, device_id, op_id, group, instance_id, rank, last_rank, start_ns, arrival_ns, from_ns.
        spent: time of each row by cause since `from_ns`, shape [9, n], ns.
        in_step: likewise since `step_ns`.
    """
    parts = Parts.of(calls["instance_id"].to_numpy())
    behind = _beyond_median((calls["start_ns"] - calls["arrival_ns"]).to_numpy(), parts)
    more = np.stack([_beyond_median(row, parts) for row in spent])
    known = calls["from_ns"].is_not_null().to_numpy()
    own = np.argmax(more, axis=0)
    waited = np.minimum(more[CAUSES.index("communication")], 0)  # the others waited so much more for it
    carried = behind - more.sum(axis=0) + waited
    new = more[own, np.arange(len(own))]
    fresh = known & (new >= carried) & (_beyond_median_of(own, in_step, parts) >= new / 2)
    told = pl.Series(CAUSES).gather(pl.Series(own))
    start = pl.Series([CAUSES[-1]] * len(calls))
    chain = calls.select("trace_id", "device_id", "group", "start_ns", "op_id").with_columns(
        cause=pl.when(pl.Series(fresh)).then(told).when(pl.Series(~known)).then(start)
    )
    mine = ["trace_id", "device_id", "group"]
    filled = chain.select(pl.col("cause").forward_fill().over(mine, order_by=["start_ns", "op_id"])).to_series()
    is_last = (calls["rank"] == calls["last_rank"]).fill_null(value=False)
    return pl.select(pl.when(is_last).then(filled.fill_null(CAUSES[-1]))).to_series()


def _beyond_median_of(which: Ints, values: Ints, parts: Parts) -> np.ndarray:
    """What each row's value of one cause is beyond the median of its instance."""
    beyond = np.stack([_beyond_median(row, parts) for row in values])
    chosen: np.ndarray = beyond[which, np.arange(len(which))]
    return chosen


def _beyond_median(values: Ints, parts: Parts) -> np.ndarray:
    """What each row's value is beyond the median of its instance."""
    order = np.lexsort((values[parts.rows], parts.number))
    ordered = values[parts.rows][order]
    count = np.diff(np.append(parts.first, len(parts.rows)))
    middle = (ordered[parts.first + (count - 1) // 2] + ordered[parts.first + count // 2]) / 2
    beyond = np.zeros(len(values))
    beyond[parts.rows] = values[parts.rows] - middle[parts.number]
    return beyond

"""Collectives matched over ranks, and who of them arrived last on clocks that are brought together (design, section 3)."""

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from tracegap.models.ops import CollectiveKind
from tracegap.reports import clock_messages, clocks, instances
from tracegap.reports.clock_messages import Messages
from tracegap.reports.clocks import Clock
from tracegap.reports.completions import Completions
from tracegap.reports.instances import CALL_SCHEMA, How, Same
from tracegap.reports.parts import Parts

__all__ = ["CALL_SCHEMA", "SYNCHRONISING", "Clock", "Matched", "match"]

SYNCHRONISING = {
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.BARRIER,
}
"""Kinds in which every rank needs something of every other: nobody ends before the last one starts, and all end
together, so their completions align clocks."""
_FAR = 8
"""So many medians of the disagreement are no jitter any more."""
_ROUNDING_NS = 4


@dataclass(slots=True)
class Matched:
    """Matches of a run."""

    rows: pl.DataFrame
    """trace_id, op_id, instance_id, matched_by, arrival_ns (on the trace's own clock, Unix), last_rank, late_ns (how much
    later the last one is than the one before it)."""
    clocks: dict[str, Clock] = field(default_factory=dict)
    """By trace_id, for traces that share a collective with another; anchors are Unix times of the trace."""


def match(calls: pl.DataFrame) -> Matched:
    """Matches the collectives of a run over its participants (a device of a trace is one), whatever their clocks show.

    By process group and sequence number where the traces have them, sends with receives by peer and order; else by the
    order of (kind, size) within the group and the step; what is left, or was matched to what it cannot be, by completions
    on the aligned clocks; else not at all.

    Args:
        calls: columns of CALL_SCHEMA.
    """
    if not len(calls):
        return Matched(pl.DataFrame(schema=_ROWS))
    coded = instances.coded(calls)
    same = instances.of(coded)
    times = _Times.of(calls)
    tied = coded["kind"].is_in([k.value for k in SYNCHRONISING]).fill_null(value=False).to_numpy()
    times.align(np.where(tied, same.number, -1))
    impossible = times.impossible(same.number, tied, times.usual)
    if impossible.any() or (tied & (same.number < 0)).any():
        same.part(impossible)
        same.join(instances.by_time(coded, same, tied, start=times.start_c, end=times.end_c, tolerance=times.usual))
        times.align(np.where(tied, same.number, -1))
        same.part(times.impossible(same.number, tied, times.residual))
    times.join(_messages(calls, same, times))
    return Matched(_rows(calls, same, times, tied), times.clocks)


def _messages(calls: pl.DataFrame, same: Same, times: "_Times") -> Messages:
    """The sends and receives that are matched."""
    paired = np.where(same.how == list(How).index(How.PAIR), same.number, -1)
    sends = (calls["collective"] == CollectiveKind.SEND.value).fill_null(value=False).to_numpy()
    rows = Parts.of(paired).rows
    out, back = rows[sends[rows]], rows[~sends[rows]]
    return Messages(
        source=times.trace[out], target=times.trace[back], send_ns=times.start[out], received_ns=times.end[back]
    )


@dataclass(slots=True)
class _Times:
    """When each call starts and ends, ns since the first of all: by its own clock and by the common one."""

    base: int
    names: list[str]
    trace: np.ndarray
    start: np.ndarray
    end: np.ndarray
    start_c: np.ndarray
    end_c: np.ndarray
    residual: np.ndarray
    """Of the clock of each call's trace, ns: what no statement is finer than."""
    usual: np.ndarray
    """Likewise a bound of the disagreement of completions that are matched rightly, whatever others are."""
    between: np.ndarray
    """Error of its clock against those that it shares messages with only, ns."""
    clocks: dict[str, Clock] = field(default_factory=dict)

    @classmethod
    def of(cls, calls: pl.DataFrame) -> "_Times":
        base = int(calls["start_ns"].min())  # type: ignore[arg-type]
        start = calls["start_ns"].to_numpy() - base  # Unix times in ns do not fit the doubles of medians and fits
        end = start + calls["dur_ns"].to_numpy()
        names = calls["trace_id"].unique().sort().to_list()
        trace = calls["trace_id"].replace_strict(names, range(len(names)), return_dtype=pl.Int64).to_numpy()
        nothing = np.zeros(len(start), dtype=np.int64)
        return cls(base, names, trace, start, end, start.copy(), end.copy(), nothing, nothing, nothing)

    def align(self, instance: np.ndarray) -> None:
        """Brings the clocks together by the completions of instances (-1: of none that ends together)."""
        self._move(clocks.solve(Completions.of(instance, self.trace, self.end, len(self.names)), self.names))

    def join(self, messages: Messages) -> None:
        """Brings parts together that share messages only."""
        here = {name: clock.moved(-self.base) for name, clock in self.clocks.items()}
        self._move(clock_messages.join(here, messages, self.names))

    def _move(self, found: dict[str, Clock]) -> None:
        self.start_c, self.end_c = self.start.copy(), self.end.copy()
        self.residual, self.usual, self.between = np.zeros((3, len(self.start)), dtype=np.int64)
        for number, name in enumerate(self.names):
            if clock := found.get(name):
                mine = self.trace == number
                self.start_c[mine], self.end_c[mine] = clock.common(self.start[mine]), clock.common(self.end[mine])
                self.residual[mine], self.usual[mine] = clock.residual_ns, _FAR * clock.usual_ns + _ROUNDING_NS
                self.between[mine] = clock.between_ns
        self.clocks = {name: clock.moved(self.base) for name, clock in found.items()}

    def impossible(self, instance: np.ndarray, tied: np.ndarray, tolerance: np.ndarray) -> np.ndarray:
        """Calls of instances in which one ends before another starts, where the kind cannot."""
        parts = Parts.of(np.where(tied, instance, -1))
        apart = np.zeros(len(instance), dtype=np.bool_)
        if len(parts.first):
            latest = parts.most(self.start_c)
            apart[parts.rows] = (latest > parts.least(self.end_c) + parts.most(tolerance))[parts.number]
        return apart


_ROWS = {
    "trace_id": pl.String,
    "op_id": pl.Int64,
    "instance_id": pl.Int64,
    "matched_by": pl.String,
    "arrival_ns": pl.Int64,
    "last_rank": pl.Int64,
    "late_ns": pl.Int64,
}


def _rows(calls: pl.DataFrame, same: Same, times: _Times, tied: np.ndarray) -> pl.DataFrame:
    """Arrival and last rank of each instance. Nobody is called late by less than the clocks agree."""
    arrival, late = np.zeros(len(calls), dtype=np.int64), np.zeros(len(calls), dtype=np.int64)
    last = np.full(len(calls), -1, dtype=np.int64)
    parts = Parts.of(same.number)
    if len(parts.first):
        start, finish = times.start_c, parts.least(times.end_c)
        # Who ends early waited for nobody who starts later: of a broadcast, or a send that is buffered.
        waited_for = tied[parts.rows] | (start[parts.rows] <= finish[parts.number])
        counted = np.full(len(calls), np.iinfo(np.int64).min, dtype=np.int64)
        counted[parts.rows[waited_for]] = start[parts.rows[waited_for]]
        latest = parts.most(counted)
        is_last = counted[parts.rows] == latest[parts.number]
        place = parts.first_where(is_last)
        counted[place] = np.iinfo(np.int64).min
        before = parts.most(counted)
        ahead = np.where(before > np.iinfo(np.int64).min, latest - before, 0)
        doubt = np.where(tied, times.residual, np.maximum(times.residual, times.between))
        sure = latest - parts.least(start) > parts.most(doubt)
        arrival[parts.rows] = latest[parts.number] - (times.start_c - times.start)[parts.rows]
        ranks = calls["rank"].fill_null(-1).to_numpy()[place]
        last[parts.rows] = np.where(sure, ranks, -1)[parts.number]
        late[parts.rows] = ahead[parts.number]
    matched = pl.Series(same.number >= 0)
    blamed = matched & pl.Series(last >= 0)
    return calls.select("trace_id", "op_id").with_columns(
        instance_id=pl.when(matched).then(pl.Series(same.number)),
        matched_by=pl.Series([how.value for how in How]).gather(same.how),
        arrival_ns=pl.when(matched).then(pl.Series(arrival) + times.base),
        last_rank=pl.when(blamed).then(pl.Series(last)),
        late_ns=pl.when(blamed).then(pl.Series(late)),
    )

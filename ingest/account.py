"""The time account of one device: states and shares (design, section 3; idle causes: `ingest.idle`). Measures; predicts nothing.

A device's timeline is cut at every start and end of an operation and of a step window. Each piece is in exactly one
state, and belongs in equal parts to the operations of that state that run in it.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.intervals import Floats, Ints, apportion, cut, sorted_unique, sums_by
from tracegap.models.ops import STATE_OF_CLASS, State

WORK_STATES = (State.COMPUTE, State.EXPOSED_COMM, State.EXPOSED_COPY)
"""States with work, first wins."""
_LAST = np.iinfo(np.int64).max
OUTSIDE = -1
"""Window index of what lies in no step window."""


def states_of(op_classes: pl.Series) -> Ints:
    """Index into WORK_STATES of each operation class."""
    index = {c.value: WORK_STATES.index(s) for c, s in STATE_OF_CLASS.items()}
    return op_classes.replace_strict(index, return_dtype=pl.Int64).to_numpy()


@dataclass(frozen=True, slots=True)
class Timeline:
    """A device timeline in pieces."""

    points: Ints
    """Boundaries of the pieces, shape [p + 1]."""
    own: Floats
    """By work state: time that one operation of the state owns up to each boundary, shape [3, p + 1], ns."""
    spent: Ints
    """By work state: time up to each boundary, shape [3, p + 1], ns."""

    @classmethod
    def of(cls, starts: Ints, ends: Ints, states: Ints, cuts: Ints) -> "Timeline":
        """From operations [start, end) with their states, cut also at `cuts`."""
        points = sorted_unique(np.concatenate((starts, ends, cuts)))
        if len(points) < 2:
            points = np.array([points[0] if len(points) else 0] * 2, dtype=np.int64)
        size = len(points)
        first, last = np.searchsorted(points, starts), np.searchsorted(points, ends)
        length = np.diff(points)
        own = np.zeros((len(WORK_STATES), size))
        spent = np.zeros((len(WORK_STATES), size), dtype=np.int64)
        free = np.ones(size - 1, dtype=bool)  # pieces of none of the states so far
        for s in range(len(WORK_STATES)):
            mine = states == s
            begun = np.bincount(first[mine], minlength=size) - np.bincount(last[mine], minlength=size)
            running = np.cumsum(begun, out=begun)[:-1]
            wins = free & (running > 0)
            free &= ~wins
            won = np.where(wins, length, 0)
            np.cumsum(won, out=spent[s, 1:])
            np.cumsum(won / np.maximum(running, 1), out=own[s, 1:])
        return cls(points, own, spent)

    def at(self, instants: Ints) -> Ints:
        """Index of the boundary at or before each instant."""
        return np.clip(np.searchsorted(self.points, instants, side="right") - 1, 0, len(self.points) - 1)

    def own_time(self, starts: Ints, ends: Ints, states: Ints) -> Floats:
        """Fractional share of operations of `states` on [start, end), ns; the ends may lie inside pieces."""
        return self._interpolated(ends, states) - self._interpolated(starts, states)

    def _interpolated(self, instants: Ints, states: Ints) -> Floats:
        i = self.at(instants)
        j = np.minimum(i + 1, len(self.points) - 1)
        width = np.maximum(self.points[j] - self.points[i], 1)
        part = np.clip((instants - self.points[i]) / width, 0.0, 1.0)
        low = self.own[states, i]
        exact = instants <= self.points[i]
        return np.where(exact, low, low + part * (self.own[states, j] - low))

    def states_within(self, starts: Ints, ends: Ints) -> Ints:
        """Time in each work state inside windows that end on boundaries, shape [3, n], ns."""
        inside: Ints = self.spent[:, self.at(ends)] - self.spent[:, self.at(starts)]
        return inside


@dataclass(frozen=True, slots=True)
class Windows:
    """Disjoint step windows in increasing order, and the tiles that they and what lies between them make."""

    starts: Ints
    ends: Ints

    def tiles(self, lo: int, hi: int) -> tuple[Ints, Ints]:
        """Increasing edges that cover [lo, hi) and all windows, and the window of each tile or OUTSIDE."""
        edges = sorted_unique(np.concatenate((np.array([lo, hi], dtype=np.int64), self.starts, self.ends)))
        window = np.full(max(len(edges) - 1, 1), OUTSIDE, dtype=np.int64)
        some = self.ends > self.starts
        window[np.searchsorted(edges, self.starts[some])] = np.flatnonzero(some)
        return edges, window


@dataclass(frozen=True, slots=True)
class Shares:
    """What each operation owns, piece by window."""

    op: Ints
    """Index of the operation of each piece, shape [m]."""
    window: Ints
    """Index of the window of each piece, or OUTSIDE, shape [m]."""
    dur_ns: Ints
    """Duration of the piece, shape [m]."""
    share_ns: Ints
    """Share of the piece; over the pieces of a state in a window they add up to the time of that state."""
    times: Ints
    """Time in each state, idle last, of each window, shape [4, w]."""


def lone(starts: Ints, ends: Ints) -> NDArray[np.bool_]:
    """Which operations overlap no other: each owns all of its time."""
    order = np.argsort(starts, kind="stable")
    first, reach = starts[order], np.maximum.accumulate(ends[order])
    apart = np.ones(len(starts) + 1, dtype=bool)  # before each, and after the last
    apart[1:-1] = first[1:] >= reach[:-1]
    alone = np.empty(len(starts), dtype=bool)
    alone[order] = apart[:-1] & apart[1:]
    return alone


def shares(starts: Ints, ends: Ints, states: Ints, windows: Windows) -> Shares:
    """Cuts operations [start, end) at the ends of windows and shares each instant of a state out equally.

    Only what overlaps needs the timeline; on most devices that is little.
    """
    edges, tile_window = windows.tiles(
        int(min(starts.min(initial=_LAST), windows.starts.min(initial=_LAST))),
        int(max(ends.max(initial=-_LAST), windows.ends.max(initial=-_LAST))),
    )
    pieces = cut(starts, ends, edges)
    dur = pieces.end - pieces.begin
    group = pieces.tile * len(WORK_STATES) + states[pieces.of]
    size = len(tile_window) * len(WORK_STATES)
    share = dur.copy()
    crowd = ~lone(starts, ends)
    if crowd.any():
        line = Timeline.of(starts[crowd], ends[crowd], states[crowd], edges)
        mine = np.flatnonzero(crowd[pieces.of])
        parts = line.own_time(pieces.begin[mine], pieces.end[mine], states[pieces.of[mine]])
        totals = line.states_within(edges[:-1], edges[1:]).T.ravel()
        share[mine] = apportion(parts, group[mine], np.resize(totals, size))
    window = tile_window[pieces.tile]
    worked = sums_by(group, share, size).reshape(-1, len(WORK_STATES))
    times = np.zeros((len(WORK_STATES) + 1, len(windows.starts)), dtype=np.int64)
    inside = tile_window != OUTSIDE
    times[:-1, tile_window[inside]] = worked[inside].T
    times[-1] = windows.ends - windows.starts - times.sum(axis=0)
    return Shares(pieces.of, window, dur, share, times)

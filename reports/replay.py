"""A schedule as a graph of instants, run forward again: what a change of a delay does to every later instant.

An instant is when something begins or ends. An edge says that an instant comes no earlier than another one plus a lag,
so each is the largest of its predecessors plus lags (max-plus algebra; Baccelli et al., Synchronization and Linearity,
1992). What the edges do not explain of a measured instant is added to their lags: the graph without changes therefore
gives back the measured schedule to the nanosecond.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.intervals import Ints

NEVER = -(2**60)
"""Lag of an edge that binds nothing any more."""
_AT_ONCE = 2**16  # edges that are Python integers at a time: a list of them takes five times the memory of an array


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Edges between instants, in any order."""

    src: Ints
    dst: Ints
    lag_ns: Ints
    """The least time from `src` to `dst` as far as it is known, shape [e]; more than was measured counts as measured."""
    why: Ints
    """What the edge stands for, in the words of the one who made it."""
    of: Ints
    """What it belongs to, likewise."""

    @classmethod
    def joined(cls, parts: "list[Edges]") -> "Edges":
        """All edges of several."""
        return cls(**{f: np.concatenate([getattr(p, f) for p in parts]) for f in cls.__slots__})

    def only(self, which: NDArray[np.bool_] | Ints) -> "Edges":
        """Some of them, or all in another order."""
        return Edges(**{f: getattr(self, f)[which] for f in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Instants in an order in which each comes after its predecessors."""

    time_ns: Ints
    """Measured, shape [n]."""
    edges: Edges
    """In order of `dst`; the lags hold what is unexplained."""
    unexplained_ns: Ints
    """By instant: the part of the lags of its edges that no known delay explains, shape [n]."""
    place: Ints
    """Where the instant that the maker numbered i lies, shape [n]."""

    @classmethod
    def of(cls, time_ns: Ints, phase: Ints, edges: Edges, fixed: int) -> "Graph":
        """A graph of instants.

        Args:
            time_ns: measured, shape [n].
            phase: order of instants of the same time, shape [n]; then the number decides.
            edges: those that go against this order are left out: what came later caused nothing.
            fixed: `why` of the edge from the first instant to those that nothing else leads to.
        """
        order = np.lexsort((np.arange(len(time_ns)), phase, time_ns))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        time = time_ns[order]
        src, dst = place[edges.src], place[edges.dst]
        forward = src < dst
        kept = edges.only(forward)
        src, dst = src[forward], dst[forward]
        alone = np.flatnonzero(np.bincount(dst, minlength=len(time)) == 0)[1:]
        root = Edges(
            src=np.zeros_like(alone), dst=alone, lag_ns=time[alone] - time[:1], why=np.full_like(alone, fixed), of=alone
        )
        every = Edges.joined([Edges(src=src, dst=dst, lag_ns=kept.lag_ns, why=kept.why, of=kept.of), root])
        every = every.only(np.argsort(every.dst, kind="stable"))
        lag = np.minimum(every.lag_ns, time[every.dst] - time[every.src])
        rest = np.zeros(len(time), dtype=np.int64)
        if len(lag):
            first = np.flatnonzero(np.diff(every.dst, prepend=-1))
            rest[every.dst[first]] = time[every.dst[first]] - np.maximum.reduceat(time[every.src] + lag, first)
        final = Edges(src=every.src, dst=every.dst, lag_ns=lag + rest[every.dst], why=every.why, of=every.of)
        return cls(time_ns=time, edges=final, unexplained_ns=rest, place=place)

    def replay(self, lag_ns: Ints | None = None) -> Ints:
        """When everything happens with other lags, shape [n]; linear in the edges.

        Args:
            lag_ns: by edge, NEVER for an edge that is gone; None = as measured. An instant all of whose edges are gone
                happens as early as the first one.
        """
        lags = self.edges.lag_ns if lag_ns is None else lag_ns
        if not len(self.time_ns):
            return self.time_ns
        begin = int(self.time_ns[0])
        at = [begin]
        add = at.append
        best = begin
        closes = np.append(self.edges.dst[1:] != self.edges.dst[:-1], True)
        for i in range(0, len(lags), _AT_ONCE):
            part = slice(i, i + _AT_ONCE)
            for src, lag, last in zip(
                self.edges.src[part].tolist(), lags[part].tolist(), closes[part].tolist(), strict=True
            ):
                reached = at[src] + lag
                if reached > best:  # noqa: PLR1730 - max() takes twice as long
                    best = reached
                if last:
                    add(best)
                    best = begin
        return np.array(at, dtype=np.int64)

    def binding(self, rank_of_why: Ints, at_ns: Ints | None = None, lag_ns: Ints | None = None) -> Ints:
        """The edge that each instant waited for longest, shape [n], -1 for the first.

        Args:
            rank_of_why: of several that bind alike the one whose `why` ranks highest counts.
            at_ns: when everything happens; None = as measured.
            lag_ns: with which lags; None = as measured.
        """
        edges = self.edges
        time = self.time_ns if at_ns is None else at_ns
        lag = edges.lag_ns if lag_ns is None else lag_ns
        binds = np.flatnonzero(time[edges.src] + lag == time[edges.dst])
        order = np.lexsort((rank_of_why[edges.why[binds]], edges.dst[binds]))
        out = np.full(len(time), -1, dtype=np.int64)
        out[edges.dst[binds[order]]] = binds[order]  # the last write of an instant stays
        return out

    def path(self, last: int, since_ns: int, binding: Ints, at_ns: Ints | None = None) -> Ints:
        """Edges from the instant `last` back to one that is no later than `since_ns`, the latest first."""
        time = self.time_ns if at_ns is None else at_ns
        found = []
        at = last
        while time[at] > since_ns and binding[at] >= 0:
            edge = int(binding[at])
            found.append(edge)
            at = int(self.edges.src[edge])
        return np.array(found, dtype=np.int64)

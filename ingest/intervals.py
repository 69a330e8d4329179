"""Interval arithmetic on integer nanoseconds: half-open, vectorised, exact where the answer is an integer."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_WHOLE = 1 << 53  # doubles up to here are exact


def union(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Sorted disjoint intervals with the same points; touching ones are joined, empty ones dropped."""
    keep = ends > starts
    if not keep.all():
        starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return starts, ends
    if not increasing(starts):
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    if (starts[1:] > ends[:-1]).all():
        return starts, ends
    reach = np.maximum.accumulate(ends)
    first = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return starts[first], reach[last]


def increasing(values: Ints) -> bool:
    """Whether no value is less than the one before it. Most columns of a trace are in order and need no sorting."""
    return bool((values[1:] >= values[:-1]).all())


def sorted_unique(values: Ints) -> Ints:
    """Distinct values in increasing order. Sorts runs, which times nearly are: `np.unique` hashes, at ten times the cost."""
    ordered = np.sort(values, kind="stable")
    if len(ordered) < 2:
        return ordered
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]


@dataclass(frozen=True, slots=True)
class Cover:
    """How much of the time up to an instant a set of intervals covers."""

    points: Ints
    """Boundaries of the union, increasing."""
    covered: Ints
    """Length covered up to each of them, ns."""

    @classmethod
    def of(cls, starts: Ints, ends: Ints) -> "Cover":
        """From any intervals, overlapping or not."""
        starts, ends = union(starts, ends)
        points = np.stack((starts, ends), axis=1).ravel()
        lengths = np.stack((np.zeros_like(starts), ends - starts), axis=1).ravel()
        return cls(points, np.cumsum(lengths))

    def upto(self, instants: Ints) -> Ints:
        """Length covered before each instant, ns."""
        if not len(self.points):
            return np.zeros_like(instants)
        i = np.searchsorted(self.points, instants, side="right") - 1
        known = np.maximum(i, 0)
        inside = (i >= 0) & (known % 2 == 0)
        return np.where(i >= 0, self.covered[known] + np.where(inside, instants - self.points[known], 0), 0)

    def within(self, starts: Ints, ends: Ints) -> Ints:
        """Length covered inside each [start, end), ns."""
        return self.upto(ends) - self.upto(starts)


def gaps(starts: Ints, ends: Ints, lo: int, hi: int) -> tuple[Ints, Ints]:
    """Disjoint intervals of [lo, hi) that no interval covers."""
    starts, ends = union(np.clip(starts, lo, hi), np.clip(ends, lo, hi))
    left = np.concatenate((np.array([lo], dtype=np.int64), ends))
    right = np.concatenate((starts, np.array([hi], dtype=np.int64)))
    keep = right > left
    return left[keep], right[keep]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Intervals cut at edges: piece i is the part [begin, end) of interval `of[i]` in tile `tile[i]`."""

    of: Ints
    tile: Ints
    begin: Ints
    end: Ints


def cut(starts: Ints, ends: Ints, edges: Ints) -> Pieces:
    """Cuts intervals at increasing edges; tile t is [edges[t], edges[t + 1]).

    The edges must reach as far as the intervals. An empty interval gives one empty piece.
    """
    tiles = max(len(edges) - 1, 1)
    first = np.clip(np.searchsorted(edges, starts, side="right") - 1, 0, tiles - 1)
    last = np.maximum(first, np.searchsorted(edges, ends, side="left") - 1)
    count = last - first + 1
    if (count == 1).all():
        return Pieces(np.arange(len(starts)), first, starts, ends)
    of = np.repeat(np.arange(len(starts)), count)
    tile = first[of] + (np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count))
    begin = np.maximum(starts[of], edges[tile])
    end = np.maximum(np.minimum(ends[of], edges[np.minimum(tile + 1, len(edges) - 1)]), begin)
    return Pieces(of, tile, begin, end)


def apportion(parts: Floats, groups: Ints, totals: Ints) -> Ints:
    """Whole nanoseconds for fractional parts, so that each group adds up to its total exactly.

    Every part becomes its floor or one more; the largest fractions are rounded up first (largest remainder).

    Args:
        parts: non-negative real parts, ns, shape [n].
        groups: index into totals of each part, shape [n].
        totals: what the parts of each group add up to, ns.
    """
    whole = np.floor(parts + 1e-6).astype(np.int64)
    if not len(parts):
        return whole
    missing = totals - sums_by(groups, whole, len(totals))
    order = np.lexsort((whole - parts, groups))
    sizes = np.bincount(groups, minlength=len(totals))
    begin = np.cumsum(sizes) - sizes
    place = np.empty(len(parts), dtype=np.int64)
    place[order] = np.arange(len(parts)) - begin[groups[order]]
    per_part, extra = np.divmod(missing, np.maximum(sizes, 1))
    return whole + per_part[groups] + (place < extra[groups])


def sums_by(groups: Ints, values: Ints, n: int) -> Ints:
    """Exact integer sums by group: bincount adds doubles, so large numbers go in two halves that stay whole in them."""
    if len(values) and values.min() >= 0 and values.max() < _WHOLE // len(values):
        return np.bincount(groups, weights=values, minlength=n).astype(np.int64)
    low, high = values & 0xFFFFFF, values >> 24
    parts = (np.bincount(groups, weights=half, minlength=n).astype(np.int64) for half in (low, high))
    return next(parts) + (next(parts) << 24)

"""A first guess of clocks: a line through what two traces that complete together differ by, and a tree of the surest lines."""

from dataclasses import dataclass

import numpy as np

from tracegap.reports.completions import Completions, medians_by

MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution over the median of its absolute deviations."""
_MEDIAN_OVER_MEAN = 1.2533
"""Standard error of a median over that of a mean, of a normal distribution: sqrt(pi / 2)."""
ROUNDING_NS = 0.5
_LEAST_NS = 500
"""Clocks that differ by less are one: completions of one collective are seen on the ranks at moments as far apart."""
_MIN_FOR_DRIFT = 8
_MIN_FOR_SPREAD = 3
_NO_JITTER_NS = 100_000
"""Disagreement of two traces' completions that is no jitter any more: some are matched wrongly."""
_LINES = 100
_MOST_DRIFT = 4e-4
"""By which two clocks may part."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Pairs of traces that complete together: the first of an instance and each other. Lines through their differences.

    end of here - end of there = level + slope (end of there - anchor), by medians of the thirds of the capture.
    """

    here: np.ndarray
    there: np.ndarray
    count: np.ndarray
    level: np.ndarray
    slope: np.ndarray
    error: np.ndarray
    """Standard error of the level, ns."""
    differ: np.ndarray
    """Whether the two clocks differ by more than chance."""
    drifts: np.ndarray
    """Whether the difference changes by more than chance."""

    @classmethod
    def of(cls, done: Completions, anchor: int) -> "Edges":
        """Of the first trace of each instance and the others; times count from the anchor, ns."""
        head = done.first[done.instance]
        rows = np.flatnonzero(head != np.arange(len(head)))
        pair = done.trace[head[rows]] * done.traces + done.trace[rows]
        x = (done.end_ns[rows] - anchor).astype(np.float64)
        y = (done.end_ns[head[rows]] - done.end_ns[rows]).astype(np.float64)
        rows_of = np.lexsort((x, pair))
        pair, x, y = pair[rows_of], x[rows_of], y[rows_of]
        key, start, count = np.unique(pair, return_index=True, return_counts=True)
        edge = np.repeat(np.arange(len(key)), count)
        third = (3 * (np.arange(len(pair)) - start[edge])) // np.maximum(count[edge], 1)
        x_low, x_high = (medians_by(x, edge, third == part, len(key)) for part in (0, 2))
        y_low, y_high = (medians_by(y, edge, third == part, len(key)) for part in (0, 2))
        enough = (count >= _MIN_FOR_DRIFT) & (x_high > x_low)
        slope = np.where(enough, (y_high - y_low) / np.where(enough, x_high - x_low, 1), 0)
        everything = np.ones(len(pair), dtype=np.bool_)
        level = medians_by(y - slope[edge] * x, edge, everything, len(key))
        astray = medians_by(np.abs(y - slope[edge] * x - level[edge]), edge, everything, len(key)) > _NO_JITTER_NS
        for k in np.flatnonzero(astray & enough).tolist():
            mine = slice(start[k], start[k] + count[k])
            slope[k], level[k] = _line_of_most(x[mine], y[mine])
            y_low[k], y_high[k] = slope[k] * x_low[k], slope[k] * x_high[k]
        off = np.abs(y - slope[edge] * x - level[edge])
        spread = MAD_TO_SIGMA * medians_by(off, edge, everything, len(key))
        known = spread[count >= _MIN_FOR_SPREAD]  # fewer tell no spread; those of the other pairs stand for it
        usual = float(np.median(known)) if len(known) else 0.0
        few = count < _MIN_FOR_DRIFT  # that they lie close together may be chance
        spread = np.where(count < _MIN_FOR_SPREAD, usual, np.where(few, np.maximum(spread, usual), spread))
        # Chance has as many tries as there are pairs.
        sure = 3 + np.sqrt(2 * np.log(max(1.0, len(key) / 2)))
        third_error = _MEDIAN_OVER_MEAN * spread / np.sqrt(np.maximum(count / 3, 1))
        drifts = enough & (np.abs(y_high - y_low) > sure * np.sqrt(2) * third_error + 4 * ROUNDING_NS)
        slope = np.where(drifts, slope, 0)
        level = np.where(astray, level, medians_by(y - slope[edge] * x, edge, everything, len(key)))
        error = _MEDIAN_OVER_MEAN * spread / np.sqrt(count)
        differ = drifts | (np.abs(level) > np.maximum(sure * error, _LEAST_NS))
        if not len(known):
            error = np.full(len(key), np.inf)
        return cls(key // done.traces, key % done.traces, count, level, slope, error, differ, drifts)


def _line_of_most(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope and level of the line that most points lie next to, where many are matched wrongly.

    Of the lines through two points far apart, and of the level ones, that with the smallest 40th percentile of distances.
    """
    pick = np.unique(np.linspace(0, len(x) - 1, _LINES).astype(np.int64))
    x, y = x[pick], y[pick]
    half = len(x) // 2
    apart = x[half : 2 * half] - x[:half]
    slope = (y[half : 2 * half] - y[:half]) / np.where(apart > 0, apart, np.inf)
    slope = np.append(np.where(np.abs(slope) <= _MOST_DRIFT, slope, 0.0), np.zeros(len(x) - half))
    level = y - slope * x
    best = int(np.argmin(np.percentile(np.abs(y[None, :] - slope[:, None] * x[None, :] - level[:, None]), 40, axis=1)))
    return float(slope[best]), float(level[best])


@dataclass(frozen=True, slots=True)
class Tree:
    """A spanning tree of each connected part over its surest edges, and the clocks along it."""

    root: np.ndarray
    offset: np.ndarray
    drift: np.ndarray
    error_ns: np.ndarray
    """Of a trace's offset against that of its root, the errors of the edges between them added in squares."""
    drifts: np.ndarray
    """Whether any edge of the part drifts."""

    @classmethod
    def of(cls, edges: Edges, traces: int) -> "Tree":
        """Of all traces; one that shares nothing is its own root."""
        parent = list(range(traces))

        def top(i: int) -> int:
            while parent[i] != i:
                parent[i] = parent[parent[i]]
                i = parent[i]
            return i

        joined: dict[int, list[tuple[int, int, float]]] = {}
        order = np.lexsort((edges.error, -edges.count)).tolist()
        for k, a, b in zip(order, edges.here[order].tolist(), edges.there[order].tolist(), strict=True):
            low, high = sorted((top(a), top(b)))
            if low != high:
                parent[high] = low
                joined.setdefault(a, []).append((b, k, 1.0))
                joined.setdefault(b, []).append((a, k, -1.0))
        root = np.array([top(i) for i in range(traces)], dtype=np.int64)
        offset, drift, square = np.zeros(traces), np.zeros(traces), np.zeros(traces)
        reached = root == np.arange(traces)
        stack = np.flatnonzero(reached).tolist()
        while stack:
            a = stack.pop()
            for b, k, way in joined.get(a, ()):
                if not reached[b]:
                    reached[b] = True
                    level, slope = edges.level[k], edges.slope[k]
                    if way < 0:  # seen from the other end: y = x + level + slope x, so x = (y - level) / (1 + slope)
                        level, slope = -level / (1 + slope), 1 / (1 + slope) - 1
                    offset[b] = offset[a] + level * (1 + drift[a])
                    drift[b] = drift[a] + slope * (1 + drift[a])
                    square[b] = square[a] + edges.error[k] ** 2
                    stack.append(b)
        part_drifts = np.zeros(traces, dtype=np.bool_)
        np.logical_or.at(part_drifts, root[edges.here], edges.drifts)
        return cls(root, offset, drift, np.sqrt(square), part_drifts[root])

"""The clocks of traces brought to one, by completions that they share: offset and drift, over the graph of groups.

Ranks need not all meet in one group: every completion of a collective is an equation between the clocks of those that
took part, and all equations are solved together, robustly (iteratively reweighted least squares, solved by conjugate
gradients: no pair of ranks that share nothing is ever looked at).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

MAD_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution over the median of its absolute deviations."""
_MEDIAN_OVER_MEAN = 1.2533
"""Standard error of a median over that of a mean, of a normal distribution: sqrt(pi / 2)."""
_ROUNDING_NS = 0.5
_MIN_FOR_DRIFT = 8
_MIN_FOR_SPREAD = 3
_DRIFT_PRIOR = 2e-4
"""Standard deviation of drifts before anything is known. Crystals are good to 100 ppm; it decides only where data is little."""
_PER_GROUP = 400
"""Completions of a group that are solved for, evenly over the capture; more would narrow no microsecond."""
_ROUNDS = 12
_NO_JITTER_NS = 100_000
"""Disagreement of two traces' completions that is no jitter any more: some are matched wrongly."""
_LINES = 100
_MOST_DRIFT = 4e-4
"""By which two clocks may part."""
_HUBER, _TUKEY = 1.5, 6.0
"""In standard deviations: where a completion begins to count for less, and where it counts for nothing."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How the clock of a trace is brought to the common one: common = t + offset + drift (t - anchor)."""

    offset_ns: int = 0
    drift: float = 0.0
    anchor_ns: int = 0
    residual_ns: int = 0
    """95th percentile of the disagreement of aligned completions, ns; nothing finer is said across ranks."""
    usual_ns: int = 0
    """Median of the disagreement: as `residual_ns`, but nothing that is matched wrongly reaches it."""
    error_ns: int | None = 0
    """Standard error of the offset against the reference at most, ns; None: completions are too few to tell."""
    reference: str = ""
    """Trace whose clock the common one is; clocks of another reference cannot be compared."""

    def common(self, t_ns: np.ndarray) -> np.ndarray:
        """Times of the trace on the common clock, ns."""
        return t_ns + self.offset_ns + np.rint(self.drift * (t_ns - self.anchor_ns)).astype(np.int64)

    def moved(self, by_ns: int) -> "Clock":
        """The same clock, of times that are so much later."""
        return replace(self, anchor_ns=self.anchor_ns + by_ns)

    def at(self, t_ns: int) -> int:
        """Offset at a time of the trace, ns."""
        return self.offset_ns + round(self.drift * (t_ns - self.anchor_ns))


@dataclass(frozen=True, slots=True)
class Completions:
    """When traces completed what they did together: a row for each trace of each instance, those of one side by side."""

    instance: np.ndarray
    """Number of the instance from 0, ascending."""
    trace: np.ndarray
    """Number of the trace, ascending in an instance."""
    end_ns: np.ndarray
    """By the clock of the trace."""
    first: np.ndarray
    """Row of the first part of each instance."""
    traces: int

    @classmethod
    def of(cls, instance: np.ndarray, trace: np.ndarray, end_ns: np.ndarray, traces: int) -> "Completions":
        """Of the rows whose instance is not negative; the last completion counts where a trace has several in one."""
        rows = np.flatnonzero(instance >= 0)
        order = rows[np.lexsort((end_ns[rows], trace[rows], instance[rows]))]
        i, t = instance[order], trace[order]
        last = np.ones(len(order), dtype=np.bool_)
        last[:-1] = (i[1:] != i[:-1]) | (t[1:] != t[:-1])
        order = order[last]
        _, number, parts = np.unique(instance[order], return_inverse=True, return_counts=True)
        order = order[parts[number] > 1]
        return cls._grouped(instance[order], trace[order], end_ns[order], traces)

    @classmethod
    def _grouped(cls, instance: np.ndarray, trace: np.ndarray, end_ns: np.ndarray, traces: int) -> "Completions":
        new = np.ones(len(instance), dtype=np.bool_)
        new[1:] = instance[1:] != instance[:-1]
        return cls(np.cumsum(new) - 1, trace, end_ns, np.flatnonzero(new), traces)

    @property
    def kind(self) -> np.ndarray:
        """Which set of traces each row's instance is of, by its first, its last and how many they are; from 0."""
        count = np.diff(np.append(self.first, len(self.trace)))
        key = (self.trace[self.first] * self.traces + self.trace[self.first + count - 1]) * (self.traces + 1) + count
        kinds: np.ndarray = np.unique(key, return_inverse=True)[1][self.instance]
        return kinds

    def thinned(self, most: int) -> "Completions":
        """At most so many instances of each set of traces, evenly over those that there are."""
        kind = self.kind[self.first]
        order = np.lexsort((self.end_ns[self.first], kind))
        _, start, count = np.unique(kind[order], return_index=True, return_counts=True)
        place = np.arange(len(order)) - np.repeat(start, count)
        size = np.repeat(count, count)
        kept = (size <= most) | (place * most // size != (place - 1) * most // size)
        chosen = np.zeros(len(self.first), dtype=np.bool_)
        chosen[order[kept]] = True
        rows = chosen[self.instance]
        return self._grouped(self.instance[rows], self.trace[rows], self.end_ns[rows], self.traces)

    def medians(self, values: np.ndarray) -> np.ndarray:
        """The median of the values of each instance."""
        ordered = values[np.lexsort((values, self.instance))]
        count = np.diff(np.append(self.first, len(values)))
        middle: np.ndarray = (ordered[self.first + (count - 1) // 2] + ordered[self.first + count // 2]) / 2
        return middle


def solve(done: Completions, names: Sequence[str]) -> dict[str, Clock]:
    """The clock of each trace that shares a completion with another; the first of each connected part keeps its own.

    Clocks that agree as they are stay untouched, and none drifts where offsets alone explain the completions.
    """
    if not len(done.trace):
        return {}
    anchor = int(np.median(done.end_ns))
    edges = _Edges.of(done, anchor)
    tree = _Tree.of(edges, done.traces)
    offset, drift = _refined(done.thinned(_PER_GROUP), tree, anchor)
    # The first trace of each part keeps its clock: common' = (common - anchor - offset_0) / (1 + drift_0) + anchor.
    stretch = 1 + drift[tree.root]
    offset, drift = (offset - offset[tree.root]) / stretch, (1 + drift) / stretch - 1
    part_moves = np.zeros(done.traces, dtype=np.bool_)
    np.logical_or.at(part_moves, tree.root[edges.here], edges.differ)
    offset, drift = np.where(part_moves[tree.root], offset, 0), np.where(part_moves[tree.root], drift, 0)
    clocks = {
        i: Clock(round(float(offset[i])), float(drift[i]), anchor, 0, 0, _ns(tree.error_ns[i]), names[tree.root[i]])
        for i in np.unique(done.trace).tolist()
    }
    off = _disagreement(done, clocks)
    order = np.argsort(done.trace, kind="stable")
    cuts = np.flatnonzero(np.diff(done.trace[order])) + 1
    found = {}
    for rows in np.split(order, cuts):
        number = int(done.trace[rows[0]])
        usual, most = (int(np.ceil(v)) for v in np.percentile(np.abs(off[rows]), (50, 95)))
        found[names[number]] = replace(clocks[number], residual_ns=most, usual_ns=usual)
    return found


def _ns(error: float) -> int | None:
    return int(np.ceil(error)) if np.isfinite(error) else None


def _disagreement(done: Completions, clocks: dict[int, Clock]) -> np.ndarray:
    """How far the median of an instance is from each part of it on the common clock, ns."""
    common = np.empty(len(done.trace), dtype=np.int64)
    order = np.argsort(done.trace, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(done.trace[order])) + 1):
        common[rows] = clocks[int(done.trace[rows[0]])].common(done.end_ns[rows])
    off: np.ndarray = done.medians(common)[done.instance] - common
    return off


# ------------------------------------------------------------------------------------------- a first guess, pair by pair


@dataclass(frozen=True, slots=True)
class _Edges:
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
    def of(cls, done: Completions, anchor: int) -> "_Edges":
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
        x_low, x_high = (_medians(x, edge, third == part, len(key)) for part in (0, 2))
        y_low, y_high = (_medians(y, edge, third == part, len(key)) for part in (0, 2))
        enough = (count >= _MIN_FOR_DRIFT) & (x_high > x_low)
        slope = np.where(enough, (y_high - y_low) / np.where(enough, x_high - x_low, 1), 0)
        everything = np.ones(len(pair), dtype=np.bool_)
        level = _medians(y - slope[edge] * x, edge, everything, len(key))
        astray = _medians(np.abs(y - slope[edge] * x - level[edge]), edge, everything, len(key)) > _NO_JITTER_NS
        for k in np.flatnonzero(astray & enough).tolist():
            mine = slice(start[k], start[k] + count[k])
            slope[k], level[k] = _line_of_most(x[mine], y[mine])
            y_low[k], y_high[k] = slope[k] * x_low[k], slope[k] * x_high[k]
        off = np.abs(y - slope[edge] * x - level[edge])
        spread = MAD_TO_SIGMA * _medians(off, edge, everything, len(key))
        known = spread[count >= _MIN_FOR_SPREAD]  # fewer tell no spread; those of the other pairs stand for it
        usual = float(np.median(known)) if len(known) else 0.0
        few = count < _MIN_FOR_DRIFT  # that they lie close together may be chance
        spread = np.where(count < _MIN_FOR_SPREAD, usual, np.where(few, np.maximum(spread, usual), spread))
        # Chance has as many tries as there are pairs.
        sure = 3 + np.sqrt(2 * np.log(max(1.0, len(key) / 2)))
        third_error = _MEDIAN_OVER_MEAN * spread / np.sqrt(np.maximum(count / 3, 1))
        drifts = enough & (np.abs(y_high - y_low) > sure * np.sqrt(2) * third_error + 4 * _ROUNDING_NS)
        slope = np.where(drifts, slope, 0)
        level = np.where(astray, level, _medians(y - slope[edge] * x, edge, everything, len(key)))
        error = _MEDIAN_OVER_MEAN * spread / np.sqrt(count)
        differ = drifts | (np.abs(level) > sure * error)
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


def _medians(values: np.ndarray, group: np.ndarray, mask: np.ndarray, groups: int) -> np.ndarray:
    """The median of the marked values of each group, 0 where it has none."""
    values, group = values[mask], group[mask]
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    start = np.cumsum(count) - count
    ordered = np.append(values[order], 0.0)
    last = len(values)
    low, high = (np.where(count > 0, start + place, last) for place in ((count - 1) // 2, count // 2))
    middle: np.ndarray = (ordered[low] + ordered[high]) / 2
    return middle


@dataclass(frozen=True, slots=True)
class _Tree:
    """A spanning tree of each connected part over its surest edges, and the clocks along it."""

    root: np.ndarray
    offset: np.ndarray
    drift: np.ndarray
    error_ns: np.ndarray
    """Of a trace's offset against that of its root, the errors of the edges between them added in squares."""
    drifts: np.ndarray
    """Whether any edge of the part drifts."""

    @classmethod
    def of(cls, edges: _Edges, traces: int) -> "_Tree":
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


# ----------------------------------------------------------------------------------------------- all pairs together


def _refined(done: Completions, tree: _Tree, anchor: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and drifts that bring all completions together, from the clocks of the tree."""
    x = (done.end_ns - anchor).astype(np.float64)
    span = max(float(np.ptp(x)), 1.0)
    x /= span
    offset, drift = tree.offset.copy(), tree.drift.copy()
    kind = done.kind
    moves = tree.drifts[done.trace]
    for turn in range(_ROUNDS):
        y = (done.end_ns - anchor) + offset[done.trace] + drift[done.trace] * span * x
        off = done.medians(y)[done.instance] - y
        scale = np.maximum(
            MAD_TO_SIGMA * _medians(np.abs(off), kind, np.ones(len(kind), dtype=np.bool_), int(kind.max()) + 1),
            _ROUNDING_NS,
        )[kind]
        far = np.abs(off) / scale
        if turn < _ROUNDS // 2:
            trust = np.minimum(1, _HUBER / np.maximum(far, _HUBER))
        else:
            trust = np.maximum(0, 1 - (far / _TUKEY) ** 2) ** 2
        weight = trust / scale**2
        system = _System.of(done, x, weight, moves, tree.root, prior=1 / (_DRIFT_PRIOR * span) ** 2)
        step = system.solve(y, drift * span)
        offset += step[0]
        drift += step[1] / span
        if np.max(np.abs(step)) < _ROUNDING_NS / 2 and turn > _ROUNDS // 2:
            break
    return offset, drift


@dataclass(frozen=True, slots=True)
class _System:
    """The normal equations of one round, as what they do to a vector: offsets, and drifts over the span."""

    done: Completions
    x: np.ndarray
    weight: np.ndarray
    moves: np.ndarray
    """Rows of traces that may drift."""
    prior: float
    total: np.ndarray
    """Weight of each instance."""
    own: np.ndarray
    """Weight of each trace's own completions."""
    held: np.ndarray
    """What holds the first trace of each part where it is: without it all could move together."""

    @classmethod
    def of(
        cls, done: Completions, x: np.ndarray, weight: np.ndarray, moves: np.ndarray, root: np.ndarray, *, prior: float
    ) -> "_System":
        total = np.add.reduceat(weight, done.first)
        total = np.where(total > 0, total, 1.0)
        own = np.bincount(done.trace, weight * (1 - weight / total[done.instance]), done.traces)
        own = np.where(own > 0, own, 1.0)
        return cls(done, x, weight, moves, prior, total, own, np.where(root == np.arange(done.traces), own, 0.0))

    def _back(self, z: np.ndarray) -> np.ndarray:
        """What rows pull at each trace, after each instance has settled on its mean."""
        w = self.weight
        mean = np.add.reduceat(w * z, self.done.first) / self.total
        pull = w * (z - mean[self.done.instance])
        n = self.done.traces
        return np.stack(
            [
                np.bincount(self.done.trace, pull, n),
                np.bincount(self.done.trace, np.where(self.moves, pull * self.x, 0.0), n),
            ]
        )

    def solve(self, y: np.ndarray, drifted: np.ndarray) -> np.ndarray:
        """The step (2, traces) from here, by conjugate gradients with each trace's own 2 x 2 block as preconditioner."""
        n, trace = self.done.traces, self.done.trace
        w = self.weight * (1 - self.weight / self.total[self.done.instance])
        aa = self.own + self.held
        ab = np.bincount(trace, np.where(self.moves, w * self.x, 0.0), n)
        bb = np.bincount(trace, np.where(self.moves, w * self.x**2, 0.0), n) + self.prior
        determinant = aa * bb - ab**2
        ab, determinant = np.where(determinant > 1e-12 * aa * bb, ab, 0.0), np.maximum(determinant, 1e-12 * aa * bb)

        def smooth(g: np.ndarray) -> np.ndarray:
            return np.stack([bb * g[0] - ab * g[1], aa * g[1] - ab * g[0]]) / determinant

        def times(p: np.ndarray) -> np.ndarray:
            pulled = self._back(p[0][trace] + np.where(self.moves, p[1][trace] * self.x, 0.0))
            pulled[0] += self.held * p[0]
            pulled[1] += self.prior * p[1]
            return pulled

        rest = -self._back(y)
        rest[1] -= self.prior * drifted
        step = np.zeros_like(rest)
        toward = nudged = smooth(rest)
        size = first = float(np.sum(rest * nudged))
        for _ in range(4 * n + 20):
            if size <= 1e-14 * first or size <= 0:
                break
            pulled = times(toward)
            along = float(np.sum(toward * pulled))
            if along <= 0:
                break
            step += size / along * toward
            rest = rest - size / along * pulled
            nudged = smooth(rest)
            size, before = float(np.sum(rest * nudged)), size
            toward = nudged + size / before * toward
        return step

"""The clocks of traces brought to one, by completions that they share: offset and drift, over the graph of groups.

Ranks need not all meet in one group: every completion of a collective is an equation between the clocks of those that
took part, and all equations are solved together, robustly (iteratively reweighted least squares, solved by conjugate
gradients: no pair of ranks that share nothing is ever looked at).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracegap.reports.clock_pairs import MAD_TO_SIGMA, ROUNDING_NS, Edges, Tree
from tracegap.reports.completions import Completions, medians_by

_DRIFT_PRIOR = 2e-4
"""Standard deviation of drifts before anything is known. Crystals are good to 100 ppm; it decides only where data is little."""
_PER_GROUP = 400
"""Completions of a group that are solved for, evenly over the capture; more would narrow no microsecond."""
_ROUNDS = 12
_MUST_EXPLAIN = 0.5
"""Part of the disagreement of a part's completions that may be left, for its clocks to be believed."""
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
    between_ns: int = 0
    """Error of the offset against traces with which it shares messages only, ns."""
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


def solve(done: Completions, names: Sequence[str]) -> dict[str, Clock]:
    """The clock of each trace that shares a completion with another; the first of each connected part keeps its own.

    Clocks that agree as they are stay untouched, and none drifts where offsets alone explain the completions.
    """
    if not len(done.trace):
        return {}
    anchor = int(np.median(done.end_ns))
    edges = Edges.of(done, anchor)
    tree = Tree.of(edges, done.traces)
    offset, drift = _refined(done.thinned(_PER_GROUP), tree, anchor)
    # The first trace of each part keeps its clock: common' = (common - anchor - offset_0) / (1 + drift_0) + anchor.
    stretch = 1 + drift[tree.root]
    offset, drift = (offset - offset[tree.root]) / stretch, (1 + drift) / stretch - 1
    part_moves = np.zeros(done.traces, dtype=np.bool_)
    np.logical_or.at(part_moves, tree.root[edges.here], edges.differ)
    offset, drift = np.where(part_moves[tree.root], offset, 0), np.where(part_moves[tree.root], drift, 0)
    clocks = {
        i: Clock(
            offset_ns=round(float(offset[i])),
            drift=float(drift[i]),
            anchor_ns=anchor,
            error_ns=_ns(tree.error_ns[i]),
            reference=names[tree.root[i]],
        )
        for i in np.unique(done.trace).tolist()
    }
    off = _disagreement(done, clocks)
    raw = _disagreement(done, {number: Clock() for number in clocks})
    part = tree.root[done.trace]
    for root in np.unique(part).tolist():  # where ranks do not see a completion together, clocks explain nothing
        mine = part == root
        if np.median(np.abs(off[mine])) > _MUST_EXPLAIN * np.median(np.abs(raw[mine])):
            off[mine] = raw[mine]
            for number in np.unique(done.trace[mine]).tolist():
                clocks[number] = replace(clocks[number], offset_ns=0, drift=0.0)
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


def _refined(done: Completions, tree: Tree, anchor: int) -> tuple[np.ndarray, np.ndarray]:
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
            MAD_TO_SIGMA * medians_by(np.abs(off), kind, np.ones(len(kind), dtype=np.bool_), int(kind.max()) + 1),
            ROUNDING_NS,
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
        if np.max(np.abs(step)) < ROUNDING_NS / 2 and turn > _ROUNDS // 2:
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
            better: np.ndarray = np.stack([bb * g[0] - ab * g[1], aa * g[1] - ab * g[0]]) / determinant
            return better

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

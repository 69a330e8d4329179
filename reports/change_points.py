"""Nights from which a job is another one: change points of a series, apart from freak nights and noise.

PELT (Killick, Fearnhead, Eckley 2012) on the logarithm, so that a change is a ratio, by the library `ruptures`; which library
and which settings do best on labelled series stands in docs/change-points.md.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import ruptures
from numpy.typing import NDArray

LEAST_NIGHTS = 3
"""Nights that a level needs on either side of a change."""
LEAST_CHANGE = 0.01
"""A smaller relative change is none."""
_PENALTY = 3.0  # of a change, in log(nights) times the variance of the noise: BIC for a mean with unknown place
_CERTAIN = 4.5  # standard errors that two neighbouring levels must be apart
_FREAK = 4.0  # standard deviations that a night must be from each of those around it and from their median
_AROUND = 2  # nights on either side
_MAD_TO_SIGMA = 1.4826  # of a normal distribution
_LEAST_SIGMA = 1e-4  # clocks and medians of few steps are no better

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A night from which on the level is another one."""

    at: int
    """Place of the first night of the new level, from 0."""
    before: float
    """Median of the level before, in the unit of the series."""
    after: float
    """Median of the level from there on to the next change."""

    @property
    def change_frac(self) -> float:
        """Relative change."""
        return self.after / self.before - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is remarkable in a series."""

    changes: list[ChangePoint]
    freaks: list[int]
    """Places of single nights far from all around them; they neither make nor hide a change."""


def find(values: Sequence[float]) -> Found:
    """Change points and freak nights of a series of positive values, oldest first.

    Raises:
        ValueError: a value is not positive.
    """
    series = np.asarray(values, dtype=float)
    if len(series) and series.min() <= 0:
        raise ValueError("a series of step times has positive values")
    logs = np.log(series)
    if len(series) < 2 * LEAST_NIGHTS:
        return Found(changes=[], freaks=[])
    sigma = _noise(logs)
    freaks = _freaks(logs, sigma)
    calm = logs.copy()
    calm[freaks] = [_around(logs, i) for i in freaks]
    places = _significant(calm, _by_pelt(calm / sigma), sigma)
    edges = [0, *places, len(series)]
    levels = [float(np.exp(np.median(calm[a:b]))) for a, b in itertools.pairwise(edges)]
    return Found(
        changes=[ChangePoint(at=at, before=levels[i], after=levels[i + 1]) for i, at in enumerate(places)],
        freaks=freaks,
    )


def _noise(logs: Floats) -> float:
    """Standard deviation of the nights around their levels, from the differences of neighbours: steps hardly move it."""
    spread = _MAD_TO_SIGMA * float(np.median(np.abs(np.diff(logs))))
    return max(spread / math.sqrt(2), _LEAST_SIGMA)


def _around(logs: Floats, i: int) -> float:
    return float(np.median(logs[max(0, i - _AROUND) : i + _AROUND + 1]))


def _freaks(logs: Floats, sigma: float) -> list[int]:
    """Nights that none of those around them is like."""
    found = []
    for i in range(len(logs)):
        neighbours = [logs[j] for j in range(max(0, i - _AROUND), min(i + _AROUND + 1, len(logs))) if j != i]
        apart = min(abs(logs[i] - other) for other in neighbours)
        # The last night may be the first of a new level: what comes after will tell.
        if i < len(logs) - 1 and apart > _FREAK * sigma and abs(logs[i] - _around(logs, i)) > _FREAK * sigma:
            found.append(i)
    return found


def _by_pelt(scaled: Floats) -> list[int]:
    """Places at which the mean changes, of a series with noise of one."""
    search = ruptures.Pelt(model="l2", min_size=LEAST_NIGHTS, jump=1).fit(scaled.reshape(-1, 1))
    return [int(i) for i in search.predict(pen=_PENALTY * math.log(len(scaled)))[:-1]]


def _significant(logs: Floats, places: list[int], sigma: float) -> list[int]:
    """Without the changes that noise may have made, the least certain one first, since its levels then become one."""
    kept = list(places)
    while kept:
        edges = [0, *kept, len(logs)]
        certainty = [_certainty(logs[edges[i] : at], logs[at : edges[i + 2]], sigma) for i, at in enumerate(kept)]
        least = int(np.argmin(certainty))
        if certainty[least] >= _CERTAIN:
            break
        del kept[least]
    return kept


def _certainty(before: Floats, after: Floats, sigma: float) -> float:
    """Standard errors by which two levels differ; 0 where the change is too small to matter."""
    levels = float(np.median(before)), float(np.median(after))
    if abs(math.expm1(levels[1] - levels[0])) < LEAST_CHANGE:
        return 0.0
    apart = np.concatenate((before - levels[0], after - levels[1]))
    spread = max(sigma, _MAD_TO_SIGMA * float(np.median(np.abs(apart))))
    error = math.sqrt(math.pi / 2) * spread * math.sqrt(1 / len(before) + 1 / len(after))  # of a difference of medians
    return abs(levels[1] - levels[0]) / error

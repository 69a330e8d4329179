"""Sets of steps side by side: is there a difference, how large, in which buckets, by which operations, and why."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np

from tracegap.reports import sides
from tracegap.reports.buckets import BY_COLUMN, COLUMNS
from tracegap.reports.causes import Cause, Pair, causes_of, title_of
from tracegap.reports.sides import Selection, Side

MIN_EFFECT = 0.005
"""A difference below this part of the step is none, however certain."""
CERTAIN = 5.0
"""Standard errors that a difference must have: of a thousand pairs of equal nights at most a few may be called different,
or nobody reads the message (with intervals of 95% it were about fifty, and more where neighbouring steps are alike)."""
_RESAMPLES = 2000
_FEW = 5  # steps of a side below which resampling knows too little
_FEW_STEPS_EFFECT = 0.03  # and only this much counts
_MAX_OPERATIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What `tracegap compare` says; see the design, section 5."""

    verdict: str
    """slower, faster, same."""
    before: Side
    after: Side
    interval_ns: tuple[int, int] | None
    """95% interval of the difference from resampled steps, ns; None with fewer than three steps on a side."""
    causes: list[Cause]
    config: list[dict[str, Any]]
    """Keys that differ, with both values."""
    operations: list[dict[str, Any]]
    """Operation groups by how much they changed: more calls, slower calls, new, gone, ..."""
    titles: dict[str, str]
    """Each bucket in words that hold for both sides, by column; and of the rest."""

    @property
    def delta_ns(self) -> int:
        """Median step after less before, ns."""
        return self.after.wall_ns - self.before.wall_ns

    @property
    def change_frac(self) -> float:
        """Difference over the step before."""
        return self.delta_ns / self.before.wall_ns if self.before.wall_ns else 0.0

    def as_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "verdict": self.verdict,
            "before_ns": self.before.wall_ns,
            "after_ns": self.after.wall_ns,
            "delta_ns": self.delta_ns,
            "change_frac": self.change_frac,
            "interval_ns": list(self.interval_ns) if self.interval_ns else None,
            "buckets": {c: self.after.buckets[c] - self.before.buckets[c] for c in COLUMNS},
            "causes": [c.as_dict() for c in self.causes],
            "config": self.config,
            "operations": self.operations,
            "titles": self.titles,
            "before": self.before.as_dict(),
            "after": self.after.as_dict(),
        }


def compare(con: duckdb.DuckDBPyConnection, before: str, after: str) -> Comparison:
    """Compares all complete steps of two evaluated runs.

    Raises:
        TracegapError: a run is not in the store, or has no complete step.
    """
    return compare_all(con, [Selection(run_id=before), Selection(run_id=after)])[0]


def compare_all(con: duckdb.DuckDBPyConnection, selections: Sequence[Selection]) -> list[Comparison]:
    """Compares the first of some sets of complete steps of evaluated runs with each of the others.

    Raises:
        TracegapError: a run is not in the store, or has no complete step among those that are asked for.
    """
    first, *others = sides.load(con, selections)
    return [_compared(con, first, other) for other in others]


def _compared(con: duckdb.DuckDBPyConnection, a: Side, b: Side) -> Comparison:
    config = [
        {"key": k, "before": a.config.get(k), "after": b.config.get(k)}
        for k in sorted(a.config.keys() | b.config.keys())
        if a.config.get(k) != b.config.get(k)
    ]
    pair = Pair.of(con, a, b)
    moved = [change for change in pair.operations if round(change.delta_ns())]
    return Comparison(
        verdict=verdict(a.walls_ns, b.walls_ns),
        before=a,
        after=b,
        interval_ns=interval(a.walls_ns, b.walls_ns),
        causes=causes_of(pair, [str(c["key"]) for c in config]),
        config=config,
        operations=[change.as_dict() for change in moved[:_MAX_OPERATIONS]],
        titles={c: title_of(pair, c) for c in BY_COLUMN} | {"rest": "everything else"},
    )


def interval(before_ns: Sequence[float], after_ns: Sequence[float]) -> tuple[int, int] | None:
    """95% interval of the difference of medians, resampling the steps of either side; None of too few.

    Efron's bootstrap percentiles. Deterministic.
    """
    if min(len(before_ns), len(after_ns)) < 3:
        return None
    random = np.random.default_rng(0)
    medians = [
        np.median(x[random.integers(0, len(x), (_RESAMPLES, len(x)))], axis=1)
        for x in (np.asarray(before_ns), np.asarray(after_ns))
    ]
    low, high = np.percentile(medians[1] - medians[0], (2.5, 97.5))
    return round(float(low)), round(float(high))


def standard_error(before_ns: Sequence[float], after_ns: Sequence[float]) -> float:
    """Of the difference of medians of two sets of steps whose spread is the same, ns; outliers do not move it.

    1.4826 times the median absolute deviation is the standard deviation of a normal distribution, and sqrt(pi / 2) times
    its standard error of the mean that of the median.
    """
    sides_ns = [np.asarray(x, dtype=float) for x in (before_ns, after_ns)]
    apart = np.concatenate([np.abs(x - np.median(x)) for x in sides_ns])
    spread = 1.4826 * float(np.median(apart))
    return math.sqrt(math.pi / 2) * spread * math.sqrt(sum(1 / len(x) for x in sides_ns))


def verdict(before_ns: Sequence[float], after_ns: Sequence[float]) -> str:
    """slower, faster, or same: of no size that matters, or not to be told from noise."""
    before, after = float(np.median(before_ns)), float(np.median(after_ns))
    delta, found = after - before, interval(before_ns, after_ns)
    few = min(len(before_ns), len(after_ns)) < _FEW
    certain = found is None or (
        (found[0] > 0 or found[1] < 0) and abs(delta) > CERTAIN * standard_error(before_ns, after_ns)
    )
    if not certain or abs(delta) < (_FEW_STEPS_EFFECT if few else MIN_EFFECT) * before:
        return "same"
    return "slower" if delta > 0 else "faster"

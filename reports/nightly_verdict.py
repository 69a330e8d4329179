"""Is tonight slower than usual? One night against the median of many.

So neither a freak night nor a slow first step raises an alarm or hides one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

SAME_WITHIN = 0.03
"""A change of at most this part of the baseline is none."""
SUSPECT_BEYOND = 0.20
"""A night further from the baseline than this part of it is suspect: another machine, a cut recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightVerdict:
    """Tonight beside the nights before."""

    verdict: Literal["ok", "regression", "improvement", "unknown"]
    """unknown: there is no night to compare with, or no step tonight."""
    baseline_ms: float | None
    """Median of the nights before, ms."""
    tonight_ms: float | None
    """Median of tonight's steps, ms."""
    change: float | None
    """Tonight over the baseline, less 1; positive is slower."""
    suspect_nights: tuple[int, ...]
    """Positions, from 0, of earlier nights whose figure is far from the baseline."""


def judge(nights_ms: Sequence[float], tonight_steps_ms: Sequence[float]) -> NightVerdict:
    """The verdict on tonight.

    Args:
        nights_ms: median step of each earlier night, oldest first, ms.
        tonight_steps_ms: steps of tonight, ms. A first step with compilation in it does no harm: the median counts.
    """
    baseline = median(nights_ms) if nights_ms else None
    tonight = median(tonight_steps_ms) if tonight_steps_ms else None
    if not baseline:
        return NightVerdict(verdict="unknown", baseline_ms=None, tonight_ms=tonight, change=None, suspect_nights=())
    suspect = tuple(i for i, night in enumerate(nights_ms) if abs(night / baseline - 1) > SUSPECT_BEYOND)
    change = None if tonight is None else tonight / baseline - 1
    verdict: Literal["ok", "regression", "improvement", "unknown"] = "ok"
    if change is None:
        verdict = "unknown"
    elif abs(change) > SAME_WITHIN:
        verdict = "regression" if change > 0 else "improvement"
    return NightVerdict(
        verdict=verdict, baseline_ms=baseline, tonight_ms=tonight, change=change, suspect_nights=suspect
    )

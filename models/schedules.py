"""Pipeline schedules: what each leaves idle and how many microbatches a stage keeps.

p stages, m microbatches, v virtual stages a rank, s the rank from 0; a microbatch's forward, input-gradient and
weight-gradient passes take a third of its time each. Formula codes P11 and P11z are those of the theory reference
(Narayanan et al. 2021; Qi et al. 2023; DeepSeek-V3). To add one, add a row.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tracegap.models.errors import NoFormula
from tracegap.models.parallelism import pp_bubble_over_ideal


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One way to order the microbatches of a pipeline."""

    bubble_over_ideal: Callable[[int, int, int], float]
    """Idle over busy time of (p, m, v)."""
    in_flight: Callable[[int, int, int, int], float]
    """Microbatches whose activations a rank keeps at most, each of all its own layers, of (p, m, v, s)."""
    weight_copies: int = 1
    """Copies of the weights that a rank holds."""


def _1f1b(p: int, m: int, v: int) -> float:
    return pp_bubble_over_ideal(stages=p, microbatches=m, virtual_stages=v)


def _kept_1f1b(p: int, m: int, s: int) -> float:
    return min(p - s, m)


def _kept_interleaved(p: int, m: int, v: int, s: int) -> float:
    """2 (p - s - 1) + (v - 1) p + 1 of the m v pieces of work, each of 1 / v of the layers (Megatron-LM's warm-up)."""
    return min(m, p + (p - 1 - 2 * s) / v) if v > 1 else _kept_1f1b(p, m, s)


SCHEDULES = {
    "gpipe": Schedule(bubble_over_ideal=lambda p, m, _: _1f1b(p, m, 1), in_flight=lambda _p, m, _v, _s: m),
    "1f1b": Schedule(
        bubble_over_ideal=lambda p, m, _: _1f1b(p, m, 1), in_flight=lambda p, m, _, s: _kept_1f1b(p, m, s)
    ),
    "interleaved": Schedule(bubble_over_ideal=_1f1b, in_flight=_kept_interleaved),
    # (p-1)(tF + tB - tW), and (p-1)(tF + tB - 2 tW) with twice the microbatches kept; late weight gradients keep as
    # many on every stage
    "zero_bubble_h1": Schedule(
        bubble_over_ideal=lambda p, m, _: _1f1b(p, m, 1) / 3, in_flight=lambda p, m, _v, _s: min(p, m)
    ),
    "zero_bubble_h2": Schedule(
        bubble_over_ideal=lambda _p, _m, _v: 0.0, in_flight=lambda p, m, _v, _s: min(2 * p - 1, m)
    ),
    # (p/2 - 1)(tF&B + tB - 3 tW) with tF&B = 3 and a whole backward pass tB = 2 of the thirds; both ends on every rank
    "dualpipe": Schedule(
        bubble_over_ideal=lambda p, m, _: max(0, p / 2 - 1) * 2 / (3 * m),
        in_flight=lambda p, m, _v, _s: min(p + 1, m) if p > 1 else 1,
        weight_copies=2,
    ),
}
"""By name."""


def get(name: str) -> Schedule:
    """The schedule of that name. Raises NoFormula, which lists the known ones."""
    if name not in SCHEDULES:
        raise NoFormula(f"pipeline schedule {name!r}: known are {', '.join(SCHEDULES)}")
    return SCHEDULES[name]

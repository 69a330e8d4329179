"""A whole training: tokens, days, device-hours, money, and what failures and checkpoints take of them.

C = 6 P D = tau T [C1]: compute is parameters times tokens times six, and also the achieved rate of all devices times
the time. Formula codes C1 to C6 and F1 to F4 are those of the theory reference.
"""

from dataclasses import dataclass

from tracegap.models.errors import NoFormula
from tracegap.models.reliability import daly_interval_s, goodput_first_order
from tracegap.models.units import NS_PER_S, S_PER_DAY, S_PER_HOUR, human_ns
from tracegap.models.utilisation import compute_optimal_params, train_flops_of_params

TOKENS_PER_PARAM = 20
"""Of a compute-optimal training [C4] (Hoffmann et al. 2022): a floor, for inference is cheaper beyond it."""
DEVICE_MTBF_S = 54 * S_PER_DAY * 16384 / 419
"""Mean time between unexpected failures of one device, with its share of host and network: 419 interruptions of 16,384
GPUs in 54 days (Grattafiori et al. 2024, table 5): 50,700 hours."""
CHECKPOINT_S = 30.0
"""What a checkpoint stops the training for where nobody says: asynchronous writing blocks only for the copy."""
RESTART_S = 600.0
"""From failure to the first new step where nobody says: detection, rescheduling, loading, compiling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Useful share of wall time on many devices [F1 to F4]."""

    mtbf_s: float
    """Of the job."""
    interval_s: float
    """Between checkpoints, after Daly."""
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """Training on so many tokens."""

    tokens: float
    flops_6pd: float
    """6 x active parameters x tokens, attention left out."""
    steps: float
    days: float
    """At the given step time, failures included."""
    device_hours: float
    usd: float | None
    """None without a price."""
    goodput: Goodput
    tokens_per_param: float
    """Of active parameters; compute-optimal is about 20."""
    optimal_params: float
    """For which the same compute would be optimal."""


def goodput(
    devices: int,
    *,
    device_mtbf_s: float = DEVICE_MTBF_S,
    checkpoint_s: float = CHECKPOINT_S,
    restart_s: float = RESTART_S,
) -> Goodput:
    """Goodput at the best interval between checkpoints; zero where failures come faster than restarts."""
    mtbf_s = device_mtbf_s / devices
    interval_s = daly_interval_s(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    share = goodput_first_order(checkpoint_s=checkpoint_s, interval_s=interval_s, restart_s=restart_s, mtbf_s=mtbf_s)
    return Goodput(mtbf_s=mtbf_s, interval_s=interval_s, share=max(0.0, share))


def campaign(
    *,
    active_params: float,
    tokens: float,
    tokens_per_step: float,
    step_s: float,
    devices: int,
    usd_per_device_hour: float | None = None,
    reliability: Goodput | None = None,
) -> Campaign:
    """Days, device-hours and money of training on `tokens`. Raises NoFormula where no time at all is useful."""
    useful = reliability or goodput(devices)
    if useful.share <= 0:
        hours = useful.mtbf_s / S_PER_HOUR
        every = f"{hours:,.1f} h" if hours >= 1 else human_ns(useful.mtbf_s * NS_PER_S)
        raise NoFormula(
            f"{devices:,} devices fail every {every}: no training gets ahead of its checkpoints and restarts"
        )
    steps = tokens / tokens_per_step
    wall_s = steps * step_s / useful.share
    device_hours = wall_s * devices / S_PER_HOUR
    flops = train_flops_of_params(params=active_params, tokens=tokens)
    return Campaign(
        tokens=tokens,
        flops_6pd=flops,
        steps=steps,
        days=wall_s / S_PER_DAY,
        device_hours=device_hours,
        usd=None if usd_per_device_hour is None else device_hours * usd_per_device_hour,
        goodput=useful,
        tokens_per_param=tokens / active_params,
        optimal_params=compute_optimal_params(flops=flops, tokens_per_param=TOKENS_PER_PARAM),
    )

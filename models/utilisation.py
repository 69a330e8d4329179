# ruff: noqa: N803 - formulas use the letters of the sources, each defined where it is used
"""Training compute, its cost, and the share of the peak that useful arithmetic reaches.

MFU counts the FLOPs that the mathematics needs, HFU those that the hardware did; a figure of one says nothing of the
other. Letters: B sequences a step, s or T sequence length, L layers, h model width, N heads of width H, V vocabulary.
Formula codes C1 to C6 and U1 to U4 are those of the theory reference (PaLM, appendix B; Narayanan et al. 2021;
Korthikanti et al. 2022; Chinchilla; EleutherAI Transformer Math).
"""

from math import sqrt

from tracegap.models.errors import NoFormula
from tracegap.models.quantities import quantity
from tracegap.models.units import S_PER_DAY, S_PER_HOUR


@quantity("train_flops", "C1")
def train_flops_of_params(*, params: float, tokens: float) -> float:
    """[C1] FLOPs of training: 2 a parameter and token forward, 4 backward; attention left out."""
    return 6 * params * tokens


@quantity("train_time_days", "C2")
def train_time_days(*, flops: float, chips: float, peak_flops_per_s: float, mfu: float) -> float:
    """[C2] Days that a training of so many model FLOPs takes."""
    return flops / (chips * peak_flops_per_s * mfu) / S_PER_DAY


@quantity("train_time_days", "C3")
def train_time_days_full_recompute(*, params: float, tokens: float, gpus: float, achieved_flops_per_s: float) -> float:
    """[C3] Days of a training that recomputes all activations, at an achieved rate that counts the recomputation."""
    return 8 * tokens * params / (gpus * achieved_flops_per_s) / S_PER_DAY


@quantity("compute_optimal_params", "C4")
def compute_optimal_params(*, flops: float, tokens_per_param: float = 20) -> float:
    """[C4] Parameters for which so many FLOPs train on the given number of tokens a parameter."""
    return sqrt(flops / (6 * tokens_per_param))


@quantity("gpu_hours", "C5")
def gpu_hours(*, params: float, tokens: float, achieved_flops_per_s: float) -> float:
    """[C5] GPU-hours of a training at an achieved rate a GPU."""
    return train_flops_of_params(params=params, tokens=tokens) / (achieved_flops_per_s * S_PER_HOUR)


@quantity("flops_per_dollar", "C6")
def flops_per_dollar(*, peak_flops_per_s: float, usd_per_hour: float) -> float:
    """[C6] FLOPs at peak that a dollar buys."""
    return peak_flops_per_s * S_PER_HOUR / usd_per_hour


@quantity("mfu", "U1")
def mfu(
    *,
    params: float,
    peak_flops_per_s: float,
    attention: bool,
    tokens_per_s: float | None = None,
    chips: float | None = None,
    tokens: float | None = None,
    gpu_hours: float | None = None,
    L: float | None = None,
    N: float | None = None,
    H: float | None = None,
    T: float | None = None,
) -> float:
    """[U1] MFU from a rate of tokens on so many chips, or from all tokens and GPU-hours of a run.

    With attention, its unmasked products are model FLOPs (PaLM's convention) and L, N, H, T are needed.
    """
    per_token = 6 * params
    if attention:
        if L is None or N is None or H is None or T is None:
            raise NoFormula("mfu with attention needs L, N, H and T")
        per_token += 12 * L * N * H * T
    if tokens_per_s is not None and chips is not None:
        per_chip_s = tokens_per_s / chips
    elif tokens is not None and gpu_hours is not None:
        per_chip_s = tokens / (gpu_hours * S_PER_HOUR)
    else:
        raise NoFormula("mfu needs tokens_per_s and chips, or tokens and gpu_hours")
    return per_chip_s * per_token / peak_flops_per_s


def _gpt_utilisation(
    scores: float, *, B: float, s: float, L: float, h: float, V: float, iter_s: float, gpus: float, peak: float
) -> float:
    """Utilisation of a GPT step without recomputation of its matrix products, attention core at the given term."""
    return 72 * B * L * s * h**2 * (1 + scores + V / (12 * h * L)) / (iter_s * gpus * peak)


@quantity("mfu", "U2")
def mfu_gpt(
    *, B: float, s: float, L: float, h: float, V: float, iter_s: float, gpus: float, peak_flops_per_s: float
) -> float:
    """[U2] MFU of a GPT step, unmasked attention."""
    return _gpt_utilisation(s / (6 * h), B=B, s=s, L=L, h=h, V=V, iter_s=iter_s, gpus=gpus, peak=peak_flops_per_s)


@quantity("hfu", "U2c")
def hfu_gpt_selective(
    *, B: float, s: float, L: float, h: float, V: float, iter_s: float, gpus: float, peak_flops_per_s: float
) -> float:
    """[U2c] HFU of a GPT step that recomputes the attention core: one more forward pass of it, a third of its FLOPs."""
    return _gpt_utilisation(2 * s / (9 * h), B=B, s=s, L=L, h=h, V=V, iter_s=iter_s, gpus=gpus, peak=peak_flops_per_s)


@quantity("hfu_published_convention", "U2")
def hfu_gpt_selective_published(
    *, B: float, s: float, L: float, h: float, V: float, iter_s: float, gpus: float, peak_flops_per_s: float
) -> float:
    """[U2] HFU as Korthikanti et al. print it: the whole attention term twice, which overstates it."""
    return _gpt_utilisation(s / (3 * h), B=B, s=s, L=L, h=h, V=V, iter_s=iter_s, gpus=gpus, peak=peak_flops_per_s)


@quantity("achieved_flops_per_s_per_gpu", "U3")
def achieved_flops_per_s_per_gpu(
    *, B: float, s: float, L: float, h: float, V: float, iter_s: float, gpus: float
) -> float:
    """[U3] Hardware FLOP/s a GPU of a GPT step that recomputes all layers, but not the head."""
    return 96 * B * s * L * h**2 * (1 + s / (6 * h) + V / (16 * L * h)) / (iter_s * gpus)


@quantity("mfu", "U4")
def mfu_of_rate(*, achieved_flops_per_s: float, peak_flops_per_s: float) -> float:
    """[U4] MFU from achieved model FLOP/s."""
    return achieved_flops_per_s / peak_flops_per_s

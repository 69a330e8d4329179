# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""Serving a model: step times, throughput and how many devices and sequences fit.

Letters: L layers, K key/value heads of width H, S cached tokens a sequence, F and D widths. Formula codes I1 to I9 are
those of the theory reference (Scaling Book, chapters 7 and 8; Leviathan et al. 2023).
"""

from math import floor, sqrt

from tracegap.models.quantities import quantity
from tracegap.models.transformer import kv_cache_bytes


@quantity("decode_step_time_s", "I1")
def decode_step_time_s(
    *,
    batch: float,
    kv_bytes_per_seq: float,
    param_bytes: float,
    params: float,
    chips: float,
    hbm_bytes_per_s: float,
    peak_flops_per_s: float,
) -> float:
    """[I1] Seconds of a decode step: caches are always memory bound, weights by whichever is longer."""
    memory_bytes_per_s = chips * hbm_bytes_per_s
    weights_s = max(2 * batch * params / (chips * peak_flops_per_s), param_bytes / memory_bytes_per_s)
    return batch * kv_bytes_per_seq / memory_bytes_per_s + weights_s


@quantity("decode_tokens_per_s", "I2")
def decode_tokens_per_s(
    *, batch: float, kv_bytes_per_seq: float, param_bytes: float, chips: float, hbm_bytes_per_s: float
) -> float:
    """[I2] Tokens a second of decoding below the critical batch, where weights and caches are read once a step."""
    return batch * chips * hbm_bytes_per_s / (batch * kv_bytes_per_seq + param_bytes)


@quantity("queries_per_s_per_chip", "I3")
def queries_per_s_per_chip(*, batch: float, step_s: float, decode_tokens: float, chips: float) -> float:
    """[I3] Requests a second and chip."""
    return batch / (step_s * decode_tokens * chips)


@quantity("max_kv_caches", "I4")
def max_kv_caches(
    *,
    chips: float,
    hbm_bytes: float,
    params: float,
    weight_bytes: float,
    L: int,
    K: int,
    H: int,
    S: int,
    kv_bytes_per_elem: float,
) -> float:
    """[I4] Whole caches that fit beside the weights; zero where not even those do."""
    free = chips * hbm_bytes - params * weight_bytes
    return max(0, floor(free / kv_cache_bytes(L=L, K=K, H=H, S=S, bytes_per_elem=kv_bytes_per_elem)))


@quantity("prefill_time_s", "I5")
def prefill_time_s(*, params: float, tokens: float, chips: float, peak_flops_per_s: float, mfu: float = 1) -> float:
    """[I5] Seconds of prefill, attention left out."""
    return 2 * params * tokens / (chips * peak_flops_per_s * mfu)


@quantity("prefill_to_decode_servers", "I6")
def prefill_to_decode_servers(*, prefill_s: float, batch: float, step_s: float, decode_tokens: float) -> float:
    """[I6] Prefill servers a decode server, both kept busy."""
    return prefill_s * batch / (step_s * decode_tokens)


@quantity("max_decode_tp", "I7")
def max_decode_tp(*, F: float, batch: float, hbm_over_ici: float) -> float:
    """[I7] Tensor-parallel degree up to which decoding is not bound by communication."""
    return F / (batch * hbm_over_ici)


@quantity("ws2d_threshold_chips", "I8")
def ws2d_threshold_chips(*, F_over_D: float) -> float:
    """[I8] Chips above which weights stationary in two dimensions beat one dimension over three torus axes.

    sqrt(32 D F / n) < (4 D / 3) for the same batch and bandwidth, solved for n.
    """
    return 32 * F_over_D * (3 / 4) ** 2


@quantity("ws2d_comm_time_s", "I8")
def ws2d_comm_time_s(
    *, B: float, D: float, F: float, chips: float, bidi_bytes_per_s: float, x: float | None = None
) -> float:
    """[I8] Seconds of a layer's collectives with weights stationary in two dimensions, D over x chips and F over the rest.

    2 B D / (x W) + 4 B F x / (n W); without x the best one, sqrt(n D / 2F).
    """
    over = sqrt(chips * D / (2 * F)) if x is None else x
    return 2 * B * D / (over * bidi_bytes_per_s) + 4 * B * F * over / (chips * bidi_bytes_per_s)


@quantity("spec_decode_tokens_per_step", "I9")
def spec_decode_tokens_per_step(*, accept: float, draft_len: int) -> float:
    """[I9] Expected tokens of a step that verifies a draft, each of its tokens accepted independently."""
    return draft_len + 1 if accept == 1 else (1 - accept ** (draft_len + 1)) / (1 - accept)


@quantity("spec_decode_speedup", "I9")
def spec_decode_speedup(*, accept: float, draft_len: int, draft_cost: float) -> float:
    """[I9] Speed-up over plain decoding; a draft token costs that share of a target step, verifying is free."""
    return spec_decode_tokens_per_step(accept=accept, draft_len=draft_len) / (draft_len * draft_cost + 1)

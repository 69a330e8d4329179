# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""Training on many devices: from which size on communication hides behind arithmetic, and what pipelines leave idle.

Letters: B tokens, D model width, F MLP hidden width, W bandwidth available to a collective (bytes/s), alpha = peak / W
(FLOP/byte), M_x and M_y torus axes that a mesh axis spans, E experts of which a token uses k. Formula codes P0 to P15
and S3 are those of the theory reference (Scaling Book, chapters 3, 5, 6, 12; Narayanan et al. 2021; Qi et al. 2023).
Weights and activations have 2 bytes.
"""

from math import sqrt

from tracegap.models.quantities import quantity


@quantity("tokens_per_device", "P0")
def tokens_per_device(*, sequences: float, T: float, devices: float, microbatches: float = 1) -> float:
    """[P0] Tokens that a device works on at a time: sequences of a step x their tokens over devices and microbatches.

    Traffic of weights and activations (FSDP, tensor) counts those of a microbatch, of gradients (data) those of a step.
    """
    return sequences * T / devices / microbatches


@quantity("dp_critical_tokens_per_chip", "P1")
def dp_critical_tokens_per_chip(*, peak_flops_per_s: float, bidi_bytes_per_s: float, axes: float = 1) -> float:
    """[P1] Tokens a chip from which the gradients' all-reduce hides behind the backward pass."""
    return peak_flops_per_s / (bidi_bytes_per_s * axes)


@quantity("dp_critical_tokens_per_gpu", "P1", "P1m")
def dp_critical_tokens_per_gpu(
    *, peak_flops_per_s: float, collective_bytes_per_s: float, E: float = 1, k: float = 1
) -> float:
    """[P1, P1m] The same behind a switch; with experts, whose gradients all move, E/k times as many."""
    return peak_flops_per_s / collective_bytes_per_s * E / k


@quantity("min_batch_tokens_dp", "P1")
def min_batch_tokens_dp(*, alpha: float, chips: float, axes: float = 1) -> float:
    """[P1] Tokens of a global batch from which data parallelism is compute bound."""
    return alpha / axes * chips


@quantity("max_chips_fsdp", "P2")
def max_chips_fsdp(*, batch_tokens: float, alpha: float, axes: float = 1) -> float:
    """[P2] Chips up to which fully sharded data parallelism is compute bound."""
    return batch_tokens * axes / alpha


@quantity("max_tp_degree", "P3")
def max_tp_degree(*, F: float, alpha: float, axes: float = 1) -> float:
    """[P3] Tensor-parallel degree up to which an MLP is compute bound."""
    return axes * F / alpha


@quantity("tp_comm_bytes_per_layer_fwd_bwd", "P4")
def tp_comm_bytes_per_layer(
    *, s: float, b: float, h: float, t: float, bytes_per_elem: float, full_recompute: bool = False
) -> float:
    """[P4] Bytes that each of t ranks sends a layer and microbatch: 4 ring all-reduces, 6 where all is recomputed."""
    return (6 if full_recompute else 4) * 2 * (t - 1) / t * s * b * h * bytes_per_elem


@quantity("optimal_fsdp_degree", "P5")
def optimal_fsdp_degree(*, B: float, F: float, N: float, M_x: float = 1, M_y: float = 1) -> float:
    """[P5] Sharded-data degree X that minimises the traffic of N = X Y chips, Y tensor parallel."""
    return sqrt(B / F * M_x / M_y * N)


@quantity("min_tokens_per_chip_mixed_overlapped", "P6")
def min_tokens_per_chip_mixed_overlapped(*, alpha: float, F: float, M_x: float = 1, M_y: float = 1) -> float:
    """[P6] Tokens a chip from which sharded data and tensor parallelism hide, their collectives side by side."""
    return alpha**2 / (M_x * M_y * F)


@quantity("min_tokens_per_chip_mixed_serial", "P6")
def min_tokens_per_chip_mixed_serial(*, alpha: float, F: float, M_x: float = 1, M_y: float = 1) -> float:
    """[P6] The same with the collectives one after the other: four times as many."""
    return 4 * min_tokens_per_chip_mixed_overlapped(alpha=alpha, F=F, M_x=M_x, M_y=M_y)


@quantity("dcn_min_batch_tokens_per_slice", "P9")
def dcn_min_batch_tokens_per_slice(*, peak_flops_per_s: float, dcn_bytes_per_s: float) -> float:
    """[P9] Tokens a slice from which data parallelism between slices hides; both rates are a chip's."""
    return peak_flops_per_s / dcn_bytes_per_s


@quantity("pp_transfer_time_s", "P10")
def pp_transfer_time_s(
    *, B: float, D: float, stages: float, microbatches: float, link_bytes_per_s: float, bytes_per_elem: float = 2
) -> float:
    """[P10] Seconds of all hops of a forward pass through a pipeline: m + p - 2 in a row, each of a microbatch of B/m.

    B tokens of a replica of the pipeline.
    """
    return bytes_per_elem * B * D / (link_bytes_per_s * microbatches) * (microbatches + stages - 2)


@quantity("pp_bubble_over_ideal", "P11")
def pp_bubble_over_ideal(*, stages: float, microbatches: float, virtual_stages: float = 1) -> float:
    """[P11] Idle time of a pipeline over its busy time, equal stages."""
    return (stages - 1) / (virtual_stages * microbatches)


@quantity("pp_bubble_fraction", "P11")
def pp_bubble_fraction(*, stages: float, microbatches: float, virtual_stages: float = 1) -> float:
    """[P11] Share of a step that a pipeline idles, equal stages."""
    return (stages - 1) / (virtual_stages * microbatches + stages - 1)


@quantity("zero_bubble_h1_bubble_s", "P11z")
def zero_bubble_h1_bubble_s(*, stages: float, t_fwd_s: float, t_bwd_input_s: float, t_bwd_weight_s: float) -> float:
    """[P11z] Idle seconds a step of schedule ZB-H1, which fills gaps with weight gradients; times of a microbatch."""
    return (stages - 1) * (t_fwd_s + t_bwd_input_s - t_bwd_weight_s)


@quantity("min_F_for_multi_node_ep", "P12")
def min_ffn_for_multi_node_ep(*, peak_flops_per_s: float, node_egress_bytes_per_s: float) -> float:
    """[P12] Expert width from which wide expert parallelism over nodes of 8 GPUs hides."""
    return 8 * peak_flops_per_s / node_egress_bytes_per_s


@quantity("ring_attention_overlap_margin", "P13")
def ring_attention_overlap_margin(
    *,
    seq: float,
    cp: float,
    N: float,
    K: float,
    peak_flops_per_s: float,
    link_bytes_per_s: float,
    causal: bool = False,
) -> float:
    """[P13] Arithmetic over transfer time of a ring-attention step of cp ranks; above 1 the transfer hides.

    A causal mask with balanced blocks halves the arithmetic.
    """
    return seq / cp * N / K * link_bytes_per_s / peak_flops_per_s * (0.5 if causal else 1)


@quantity("offload_min_tokens_per_chip", "P15")
def offload_min_tokens_per_chip(
    *, peak_flops_per_s: float, pcie_bytes_per_s: float, full_duplex: bool = True, param_bytes: float = 2
) -> float:
    """[P15] Tokens a chip and step from which gradients down and weights up hide, the optimizer in the host's memory.

    6 FLOPs a parameter and token against `param_bytes` each way; one way after the other takes twice as long. The host's
    own optimizer time comes on top.
    """
    return (1 if full_duplex else 2) * param_bytes * peak_flops_per_s / (6 * pcie_bytes_per_s)


@quantity("strategy2_preferred_above_D", "S3")
def multiply_first_above_width(*, peak_flops_per_s: float, bidi_bytes_per_s: float) -> float:
    """[S3] Width above which to multiply, then all-reduce, beats gathering weights split on the contraction first."""
    return 2 * peak_flops_per_s / bidi_bytes_per_s

# ruff: noqa: E501 - a table, a row an example
"""One example of each quantity beside those of the golden file, worked out from the sources' words: other inputs,
conventions and edge cases. The arithmetic stands in the table, so that it can be read against the theory reference.
"""

import math
from itertools import pairwise

import pytest

from tracegap.models.errors import NoFormula
from tracegap.models.quantities import compute

P, HBM = 4.59e14, 2.765e12
MM = {"B": 64, "D": 512, "F": 256, "act_bytes": 2, "weight_bytes": 1, "out_bytes": 4}
RATES = {"peak_flops_per_s": P, "hbm_bytes_per_s": HBM}
MOVED = 2 * 64 * 512 + 512 * 256 + 4 * 64 * 256
GPT = {"B": 32, "s": 1024, "L": 24, "h": 2048, "V": 50304}
# FLOPs of a GPT step by its products: 24 h^2 a token and layer, 4 s h of attention, the head once, all three times
GPT_FORWARD = 32 * 1024 * (24 * (24 * 2048**2 + 4 * 1024 * 2048) + 2 * 2048 * 50304)
GPT_CORE = 32 * 1024 * 24 * 4 * 1024 * 2048
STATES = {"params": 3e9, "param_bytes": 2, "grad_bytes": 4, "optimizer_bytes": 12}
RING_LL = {"algo": "ring", "proto": "ll", "base_us": 6.6, "intra_us": 0.6}
NCCL8 = {"ranks": 8, "nodes": 1, "channels": 16, "bw_per_channel_gbps": 20.6, "bytes": 1e6, "base_us": 0, "intra_us": 0}
SOL = {
    "nodes": 2, "gpus_per_node": 4, "nic_gbytes_per_s": 25, "header_overhead": 0.025, "chunk_bytes": 2**22,
    "chunk_prep_us": 6, "rtt_us": 31, "launch_us": 45,
}  # fmt: skip


def visible(queries: int, keys: int, offset: int) -> int:
    """Scores that a causal mask leaves, one by one: query i sees keys up to i + offset."""
    return sum(1 for i in range(queries) for j in range(keys) if j <= i + offset)


def one_way_round(n: int, devices: int) -> float:
    """Elements on the busiest link when every device sends each other its block of an n x n array one way round."""
    load = [0.0] * devices
    for source in range(devices):
        for hops in range(1, devices):
            for step in range(hops):
                load[(source + step) % devices] += n * n / devices**2
    return max(load)


def both_ways_round(n: int, devices: int) -> float:
    """The same with each block the shorter way round, halved where both are equally long; one direction's load."""
    load = [0.0] * devices
    for source in range(devices):
        for ahead in range(1, devices):
            share = (ahead < devices - ahead) + 0.5 * (ahead == devices - ahead)
            for step in range(ahead if share else 0):
                load[(source + step) % devices] += share * n * n / devices**2
    return max(load)


def maximum_of_normals(n: int) -> float:
    """Expected largest of n standard normals, by the trapezoid rule on x times its density."""
    xs = [i / 1000 for i in range(-9000, 9001)]
    cdf = [0.5 * (1 + math.erf(x / math.sqrt(2))) for x in xs]
    return sum((a + b) / 2 * (q**n - p**n) for (a, b), (p, q) in zip(pairwise(xs), pairwise(cdf), strict=True))


EXAMPLES = [
    ("t_math_s", "R1", {"flops": 3e15, "peak_flops_per_s": 1.97e14}, 3e15 / 1.97e14),
    ("weight_load_time_s", "R1", {"params": 7e9, "bytes_per_param": 0.5, "chips": 4, "hbm_bytes_per_s": 8e11}, 3.5 / 3200),
    ("t_lower_s", "R2", MM | RATES, max(2 * 64 * 512 * 256 / P, MOVED / HBM)),
    ("t_upper_s", "R2", MM | RATES, 2 * 64 * 512 * 256 / P + MOVED / HBM),
    ("attainable_flops_per_s", "R3", MM | RATES, 2 * 64 * 512 * 256 / MOVED * HBM),
    ("attainable_flops_per_s", "R3", MM | RATES | {"B": 10**6, "D": 10**5, "F": 10**5}, P),
    ("ridge_flops_per_byte", "R4", {"peak_flops_per_s": 9.18e14, "hbm_bytes_per_s": 1.64e12}, 559.756),
    ("critical_batch_tokens", "R6", {"peak_flops_per_s": 1.97e14, "hbm_bytes_per_s": 8.2e11, "weight_bytes": 1}, 120.122),
    ("pcie_critical_batch_tokens", "R6", {"peak_flops_per_s": 9.2e14, "pcie_bytes_per_s": 1.6e10, "weight_bytes": 2}, 57500),
    # at the exact batch arithmetic and traffic take equally long: solved for B by hand
    ("critical_batch_exact_tokens", "R7", {k: v for k, v in MM.items() if k != "B"} | {"D": 8192, "F": 4096} | RATES,
     8192 * 4096 / (2 * 8192 * 4096 * HBM / P - 2 * 8192 - 4 * 4096)),
    ("critical_batch_exact_tokens", "R7", {"D": 64, "F": 64, "act_bytes": 2, "weight_bytes": 2, "out_bytes": 2} | RATES, math.inf),
    ("critical_contraction_dim", "R8", {"peak_flops_per_s": P, "link_bytes_per_s": 9e10}, 10200),
    ("moe_critical_batch_tokens", "R9", {"E": 8, "k": 2, "weight_bytes": 2} | RATES, 4 * P / HBM),
    ("matmul_intensity_flops_per_byte", "M1", {"B": 1, "D": 100, "F": 50, "bytes_per_elem": 4}, 10000 / (4 * (100 + 5000 + 50))),
    ("batched_weight_intensity_flops_per_byte", "M1", {"B": 3, "D": 4, "F": 5, "bytes_per_elem": 1}, 120 / (12 + 60 + 15)),
    ("tiled_matmul_intensity_flops_per_byte", "Q1", {"bm": 64, "bn": 64, "bytes_per_elem": 1}, 64),
    ("wave_efficiency", "Q2", {"tiles": 1000, "sms": 132, "ctas_per_sm": 2}, 1000 / (4 * 264)),
    ("mxu_padding_efficiency", "Q3", {"K": 64, "N": 256, "mxu_side": 256}, 0.25),
    ("tiled_layout_padding_ratio", "Q4", {"shape": [3, 5, 100], "tile": [8, 128]}, 3 * 8 * 128 / 1500),
    ("vpu_flops_per_s", "H2", {"cores": 1, "lanes": 128, "sublanes": 8, "alus_per_lane": 4, "clock_hz": 1.5e9}, 6.144e12),
    ("mxu_peak_flops_per_s", "H3", {"cores": 1, "mxus_per_core": 4, "mxu_side": 128, "clock_hz": 1.5e9}, 1.96608e14),
    ("vector_flops_per_s", "H4", {"sms": 108, "subpartitions": 4, "lanes": 16, "clock_hz": 1.41e9, "flops_per_lane_cycle": 2},
     19.49184e12),
    ("clock_hz", "H4", {"vector_flops_per_s": 6.7e13, "sms": 132, "subpartitions": 4, "lanes": 32, "flops_per_lane_cycle": 2},
     6.7e13 / 33792),
    ("tensor_core_flops_per_s", "H5", {"sms": 108, "flops_per_sm_cycle": 2048, "clock_hz": 1.41e9}, 311.869e12),
    ("elementwise_add_time_s", "M9", {"n": 1e9, "bytes_per_elem": 2, "hbm_bytes_per_s": 2e12}, 3e-3),
    ("p2p_transfer_time_s", "T9", {"bytes": 1e6, "parallel_links": 3, "link_bytes_per_s": 9e10}, 1e6 / 2.7e11),
    # torus: 8 devices round a ring, both directions; a line's end has one link for seven of eight parts
    ("all_gather_time_s", "T1", {"global_bytes": 8e8, "axis_size": 8, "axes": 1, "bidi_bytes_per_s": 1e11, "exact": True}, 7e-3),
    ("all_gather_time_s", "T1", {"global_bytes": 8e8, "axis_size": 8, "axes": 2, "bidi_bytes_per_s": 1e11, "exact": True},
     8e8 * 63 / 64 / 2e11),
    ("all_gather_time_s", "T2", {"global_bytes": 8e8, "axis_size": 8, "axes": 1, "link_bytes_per_s": 5e10, "wrap": False}, 14e-3),
    ("all_gather_time_s", "T3", {"global_bytes": 8e3, "axis_size": 8, "link_bytes_per_s": 5e10, "wrap": True, "hop_latency_s": 1e-6},
     4e-6),
    ("all_gather_time_s", "T3", {"global_bytes": 8e8, "axis_size": 8, "link_bytes_per_s": 5e10, "wrap": True, "hop_latency_s": 1e-6},
     8e-3),
    ("all_gather_time_s", "T3",
     {"global_bytes": 8e3, "axis_size": 4, "axes": 3, "link_bytes_per_s": 5e10, "wrap": True, "hop_latency_s": 1e-6}, 6e-6),
    ("all_gather_time_s", "T3",
     {"global_bytes": 8e3, "axis_size": 4, "axes": 2, "link_bytes_per_s": 5e10, "wrap": False, "hop_latency_s": 1e-6}, 6e-6),
    ("all_gather_time_s", "T4", {"B": 1024, "D": 4096, "bytes_per_elem": 2, "axes": 2, "bidi_bytes_per_s": 9e10}, 2**23 / 1.8e11),
    ("all_gather_time_s", "T1", {"global_bytes": 8e8, "axis_size": 1, "axes": 1, "bidi_bytes_per_s": 1e11, "exact": True}, 0),
    ("all_reduce_time_s", "T4", {"B": 512, "D": 256, "bytes_per_elem": 4, "bidi_bytes_per_s": 9e10, "other_axis_shards": 1},
     2 * 2**19 / 9e10),
    ("all_to_all_time_s", "T6", {"global_bytes": 1e9, "bidi_bytes_per_s": 9e10, "wrap": False}, 1e9 / 1.8e11),
    ("all_to_all_bisection_time_s", "T7", {"global_bytes": 1e9, "torus": [4, 8, 2], "link_bytes_per_s": 5e10, "wrap": True},
     1e9 * 8 / (8 * 64 * 5e10)),
    ("all_to_all_bisection_time_s", "T7", {"global_bytes": 1e9, "torus": [16], "link_bytes_per_s": 5e10, "wrap": False}, 5e-3),
    ("scalars_per_link_all_to_all", "T6", {"N": 24, "devices": 6, "bidirectional": False}, one_way_round(24, 6)),
    ("scalars_per_link_all_to_all", "T6", {"N": 24, "devices": 6, "bidirectional": True}, both_ways_round(24, 6)),
    ("scalars_per_link_all_to_all", "T6", {"N": 25, "devices": 5, "bidirectional": True}, both_ways_round(25, 5)),
    ("scalars_per_link_all_to_all", "T6", {"N": 64, "devices": 8, "bidirectional": True}, 64**2 / 8),
    ("dcn_min_batch_tokens_per_slice", "P9", {"peak_flops_per_s": P, "dcn_bytes_per_s": 6.25e9}, 73440),
    ("strategy2_preferred_above_D", "S3", {"peak_flops_per_s": 1.97e14, "bidi_bytes_per_s": 9e10}, 4377.78),
    ("all_gather_time_s", "G2", {"global_bytes": 1e9, "gpus": 2, "gpu_egress_bytes_per_s": 9e11}, 1e9 / 1.8e12),
    ("all_gather_time_s", "G5", {"global_bytes": 1e9, "levels": [[8, 4.5e11], [4, 4e11]]}, 1e9 * 0.875 / 4.5e11),
    ("all_to_all_time_s", "G6", {"global_bytes": 1e9, "nodes": 2, "node_egress_bytes_per_s": 4e11}, 1e9 / 1.6e12),
    ("tree_all_gather_bandwidth_bytes_per_s", "G5", {"levels": [[2, 1e11], [1, 1.0]]}, 2e11),
    ("distinct_destination_fraction", "G3", {"Z": 8, "k": 1}, 1 / 8 * 7 / 8),
    ("all_reduce_speedup_sharp", "G4", {"gpus": 72}, 2 * 71 / 72),
    ("dp_critical_tokens_per_gpu", "P1m", {"peak_flops_per_s": 9.9e14, "collective_bytes_per_s": 4.5e11, "E": 8, "k": 2}, 8800),
    ("busbw_bytes_per_s", "N1", {"collective": "reduce_scatter", "per_rank_bytes": 1e8, "time_s": 1e-2, "ranks": 4}, 3e10),
    ("busbw_bytes_per_s", "N1", {"collective": "AllGather", "per_rank_bytes": 1e8, "time_s": 1e-2, "ranks": 4}, 3e10),
    ("busbw_bytes_per_s", "N1", {"collective": "alltoall", "total_bytes": 4e8, "time_s": 1e-2, "ranks": 4}, 7.5e9),
    ("busbw_bytes_per_s", "N1", {"collective": "all-reduce", "per_rank_bytes": 1e8, "time_s": 1e-2, "ranks": 4}, 1.5e10),
    ("busbw_bytes_per_s", "N1", {"collective": "broadcast", "bytes": 1e8, "time_s": 1e-2, "ranks": 4}, 1e10),
    ("busbw_bytes_per_s", "N1", {"collective": "sendrecv", "bytes": 1e8, "time_s": 1e-2, "ranks": 2}, 1e10),
    ("busbw_bytes_per_s", "N1", {"collective": "gather", "bytes": 4e8, "time_s": 1e-2, "ranks": 4}, 3e10),
    ("nccl_latency_us", "N3", RING_LL | {"collective": "all_gather", "ranks": 8, "nodes": 1}, 6.6 + 7 * 0.6),
    ("nccl_latency_us", "N3", RING_LL | {"collective": "all_gather", "ranks": 16, "nodes": 2, "inter_us": 2.7, "net_overhead_us": 1},
     6.6 + 14 * 1 + 2.7),
    ("nccl_latency_us", "N3",
     {"collective": "all_reduce", "algo": "tree", "proto": "ll", "base_us": 6.8, "intra_us": 0.6, "inter_us": 5, "ranks": 32, "nodes": 4},
     6.8 + 2 * (7 * 0.6 + 2 * 5)),
    ("nccl_latency_us", "N3",
     {"collective": "all_reduce", "algo": "Ring", "proto": "Simple", "base_us": 8.4, "intra_us": 3.4, "inter_us": 14, "ranks": 16,
      "nodes": 2, "net_overhead_us": 2}, 8.4 + 28 * 6 + 2 * 14),
    ("nccl_latency_us", "N3",
     {"collective": "all_reduce", "algo": "NVLS", "proto": "simple", "base_us": 0, "intra_us": 25, "inter_us": 18, "ranks": 16, "nodes": 2},
     43),
    ("nccl_time_us", "N4", NCCL8 | {"collective": "all_reduce", "algo": "ring", "proto": "ll"}, 1e3 / (164.8 * 8 / 14)),
    ("nccl_time_us", "N4", NCCL8 | {"collective": "all_gather", "algo": "ring", "proto": "simple"}, 1e3 / (329.6 * 8 / 7)),
    ("nccl_time_us", "N4", NCCL8 | {"collective": "all_gather", "algo": "ring", "proto": "ll128", "perch_max_gbps": 10},
     1e3 / (160 * 8 / 7)),
    ("nccl_time_us", "N4", NCCL8 | {"collective": "all_reduce", "algo": "tree", "proto": "simple", "perch_max_gbps": 38.7},
     1e3 / (0.92 * 329.6 / 2)),
    ("nccl_time_us", "N4", NCCL8 | {"collective": "all_reduce", "algo": "nvls", "proto": "simple"},
     1e3 / (0.85 * 329.6 * 15 / 16 * 2 * 8 / 14)),
    ("nccl_time_us", "N4", NCCL8 | {"collective": "reduce_scatter", "algo": "nvls", "proto": "simple"},
     1e3 / (0.85 * 329.6 * 15 / 16 * 7 / 8)),
    ("nccl_time_us", "N4", NCCL8 | {"collective": "all_gather", "algo": "pat", "proto": "simple"}, 2.8 * 8 + 1e3 / (0.75 * 329.6)),
    ("sol_ring_time_us", "N6", SOL | {"collective": "all_gather", "bytes": 8e6}, 7 / 4 * (1e6 * 1.025 / 25e3 + 6 + 31) + 45),
    # four peers in the other node, a seventh of the buffer each
    ("sol_ring_time_us", "N6", SOL | {"collective": "all_to_all", "bytes": 7e6}, 4 * (1e6 * 1.025 / 25e3 + 6 + 31) + 45),
    ("adam_step_bytes", "M10", {"params": 1e9, "grad_bytes": 2, "master_bytes": 4, "moment_bytes": 1, "out_param_bytes": 2}, 16e9),
    ("attention_fwd_flops", "M5", {"B": 2, "T": 8, "S": 8, "N": 3, "d_qk": 6, "d_v": 4, "causal": False}, 2 * 2 * 3 * 64 * 10),
    # a decoded token sees all keys; more queries than keys leave the first ones with none
    ("attention_fwd_flops", "M5", {"B": 1, "T": 4, "S": 16, "N": 1, "d_qk": 1, "d_v": 1, "causal": True},
     4 * (visible(4, 16, 12) - 4 / 2)),
    ("attention_fwd_flops", "M5", {"B": 1, "T": 16, "S": 4, "N": 1, "d_qk": 1, "d_v": 1, "causal": True, "mask": "bottom_right"},
     4 * (visible(16, 4, -12) - 4 / 2)),
    ("attention_fwd_flops", "M5", {"B": 1, "T": 4, "S": 16, "N": 1, "d_qk": 1, "d_v": 1, "causal": True, "mask": "top_left"},
     4 * (visible(4, 16, 0) - 4 / 2)),
    ("attention_bwd_flops", "M5", {"B": 1, "T": 8, "S": 8, "N": 2, "d_qk": 6, "d_v": 4, "causal": True}, 2 * 2 * 64 * 26 / 2),
    ("attention_fwd_bytes", "M6", {"B": 2, "T": 1, "S": 10, "N": 4, "K": 1, "d_qk": 6, "d_v": 4, "bytes_per_elem": 1},
     2 * (4 * 6 + 10 * 10 + 4 * 4)),
    ("conv_fwd_flops", "M7", {"N": 1, "C_in": 8, "H": 9, "W": 7, "C_out": 16, "kh": 3, "kw": 1, "stride": 1, "pad": 0, "groups": 8},
     2 * 16 * 7 * 7 * 1 * 3),
    ("conv_bwd_flops", "M7",
     {"N": 1, "C_in": 8, "H": 9, "W": 9, "C_out": 4, "kh": 3, "kw": 3, "stride": 2, "pad": 1, "groups": 1, "output_mask": [True, True, True]},
     2 * 2 * 4 * 25 * 8 * 9),
    ("grouped_mm_bytes", "M1", {"M": 10, "K": 3, "N": 5, "G": 7, "bytes_per_elem": 1}, 30 + 105 + 50),
    ("rms_norm_fwd_flops", "M8", {"rows": 3, "cols": 10, "affine": False}, 66),
    ("einsum_flops", "M2", {"contract": [], "free": [3, 4], "batch": [5]}, 60),
    ("einsum_flops", "M2", {"contract": [7], "free": [3, 4], "batch": [5]}, 840),
    ("attention_intensity_flops_per_byte", "M4", {"T": 1, "S": 1000, "G": 8}, 8000 / 1008),
    ("params", "X1", {"L": 2, "D": 8, "F": 16, "V": 10, "N": 4, "K": 2, "H": 2, "mlp_mats": 2, "tied": True},
     2 * (2 * 128 + 8 * 8 * 2 + 8 * 4 * 2) + 80),
    ("params", "X2b", {"L": 2, "h": 8, "V": 10, "s": 4, "ffn_factor": 3, "mlp_mats": 3, "kv_ratio": 0.25, "tied": True},
     80 + 32 + 2.5 * 2 * 64 + 9 * 2 * 64 + 8 * 2 * 8 + 16),
    ("params", "X2", {"L": 2, "h": 8, "V": 10, "s": 4}, 12 * 2 * 64 + 13 * 2 * 8 + 14 * 8),
    ("active_params", "X1", {"L": 1, "D": 8, "F": 16, "V": 10, "N": 4, "K": 4, "H": 2, "mlp_mats": 3, "tied": False, "k": 3},
     3 * 3 * 128 + 4 * 64 + 160),
    ("attention_to_matmul_flops_ratio", "X3", {"T": 4096, "D": 4096, "F": 14336, "N": 32, "K": 8, "H": 128},
     # multiply-adds a token: scores and values over matrices
     2 * 4096 * 4096 / (3 * 4096 * 14336 + 4096 * 2 * 40 * 128)),
    ("train_flops_per_token", "X4", {"params": 1e9, "L": 2, "N": 4, "H": 8, "T": 16, "causal": True}, 6e9 + 3 * 4 * 2 * 32 * 16 / 2),
    ("kv_bytes_per_token", "X6", {"L": 2, "K": 3, "H": 4, "bytes_per_elem": 0.5}, 24),
    ("kv_cache_bytes", "X6", {"L": 2, "K": 3, "H": 4, "S": 5, "bytes_per_elem": 2}, 480),
    ("activation_bytes_no_remat", "Y9", {"tokens": 10, "D": 3, "L": 2, "saved_per_layer": 4, "bytes_per_elem": 2}, 480),
    ("remat_extra_flops_per_layer", "Y8", {"B": 2, "T": 3, "N": 4, "H": 5}, 2 * 2 * 2 * 4 * 9 * 5),
    ("activation_bytes_no_recompute", "Y5", {"s": 64, "b": 2, "h": 128, "L": 4, "a": 8, "t": 4, "sequence_parallel": True},
     64 * 2 * 128 * 4 / 4 * (34 + 5 * 8 * 64 / 128)),
    # a plain pipeline keeps p microbatches of L/p layers
    ("activation_bytes_no_recompute", "Y5",
     {"s": 64, "b": 2, "h": 128, "L": 4, "a": 8, "t": 4, "pp": 4, "virtual": 1, "sequence_parallel": False},
     64 * 2 * 128 * 4 * (10 + 24 / 4 + 5 * 8 * 64 / (128 * 4))),
    ("activation_bytes_selective_sp", "Y6", {"s": 64, "b": 2, "h": 128, "L": 4, "t": 2, "pp": 4, "virtual": 2},
     17 * 64 * 2 * 128 * 4 * (1 + 3 / 8)),
    ("activation_bytes_selective", "Y6", {"s": 64, "b": 2, "h": 128, "L": 4, "t": 2}, 22 * 64 * 2 * 128 * 4),
    ("activation_bytes_full_recompute", "Y7", {"s": 64, "b": 2, "h": 128, "L": 4}, 131072),
    ("model_state_bytes", "Y1", {"params": 1e9, "param_bytes": 2, "grad_bytes": 4, "optimizer": "adamw", "optimizer_bytes": 12}, 18e9),
    ("model_state_bytes", "Y1", {"params": 1e9, "param_bytes": 4, "grad_bytes": 4, "optimizer": "adam_fp32"}, 16e9),
    ("model_state_bytes", "Y1", {"params": 1e9, "param_bytes": 2, "grad_bytes": 2, "optimizer": "sgd_momentum"}, 12e9),
    ("model_state_bytes_per_gpu", "Y1", {"L": 4, "h": 128, "t": 2, "pp": 2, "bytes_per_param": 16}, 12 * 128**2 * 16),
    ("zero1_bytes_per_gpu", "Y2", STATES | {"gpus": 1}, 54e9),
    ("zero2_bytes_per_gpu", "Y3", STATES | {"gpus": 8}, 6e9 + 6e9),
    ("zero3_bytes_per_gpu", "Y4", STATES | {"gpus": 9}, 6e9),
    ("bytes_per_param_distributed_optimizer", "Y2m", {"dp": 1}, 18),
    ("deepspeed_zero2_gpu_bytes", "Y3d", {"params": 1e9, "gpus": 9, "offload": True}, 2e9),
    ("deepspeed_zero2_gpu_bytes", "Y3d", {"params": 1e9, "gpus": 9, "offload": False}, 4e9),
    ("deepspeed_zero3_gpu_bytes", "Y4d", {"params": 1e9, "largest_layer_params": 1e8, "gpus": 9, "offload": True}, 4e8),
    ("3d_zero1_bytes_per_gpu", "Y12", STATES | {"pp": 2, "tp": 3, "gpus": 12, "activation_bytes": 6e9}, 3e9 + 3e9 + 2e9),
    ("min_chips_for_training", "Y11",
     {"params": 1e9, "param_bytes": 2, "optimizer_bytes": 8, "tokens": 1000, "D": 1000, "L": 10, "checkpoints_per_layer": 1,
      "ckpt_bytes": 2, "hbm_bytes": 1.002e10}, 1),
    ("min_chips_raw", "Y11", {"params": 7e10, "weight_bytes": 2, "hbm_bytes": 9.5e10}, 140 / 95),
    ("weight_bytes", "Y10", {"params": 7e9, "bytes_per_param": 0.5, "overhead": 1}, 3.5e9),
    ("train_flops", "C1", {"params": 7e10, "tokens": 15e12}, 6.3e24),
    ("train_time_days", "C2", {"flops": 8.64e22, "chips": 100, "peak_flops_per_s": 1e15, "mfu": 0.5}, 20),
    ("train_time_days", "C3", {"params": 1e9, "tokens": 8.64e12, "gpus": 10, "achieved_flops_per_s": 1e14}, 800),
    ("compute_optimal_params", "C4", {"flops": 1.2e22, "tokens_per_param": 20}, 1e10),
    ("gpu_hours", "C5", {"params": 1e9, "tokens": 3.6e12, "achieved_flops_per_s": 1e14}, 60000),
    ("flops_per_dollar", "C6", {"peak_flops_per_s": 9.9e14, "usd_per_hour": 10.8}, 3.3e17),
    ("mfu", "U1", {"params": 1e9, "tokens_per_s": 1e6, "chips": 30, "peak_flops_per_s": 1e15, "attention": False}, 0.2),
    ("mfu", "U1", {"params": 1e9, "tokens": 3.6e9, "gpu_hours": 1, "peak_flops_per_s": 1e16, "attention": False}, 0.6),
    ("mfu", "U2", GPT | {"iter_s": 2, "gpus": 8, "peak_flops_per_s": 3.12e14}, 3 * GPT_FORWARD / (16 * 3.12e14)),
    ("hfu", "U2c", GPT | {"iter_s": 2, "gpus": 8, "peak_flops_per_s": 3.12e14}, (3 * GPT_FORWARD + GPT_CORE) / (16 * 3.12e14)),
    ("hfu_published_convention", "U2", GPT | {"iter_s": 2, "gpus": 8, "peak_flops_per_s": 3.12e14},
     (3 * GPT_FORWARD + 3 * GPT_CORE) / (16 * 3.12e14)),
    ("achieved_flops_per_s_per_gpu", "U3", GPT | {"iter_s": 2, "gpus": 8},
     (4 * GPT_FORWARD - 32 * 1024 * 2 * 2048 * 50304) / 16),
    ("mfu", "U4", {"achieved_flops_per_s": 3.3e14, "peak_flops_per_s": 9.9e14}, 1 / 3),
    ("decode_step_time_s", "I1",
     {"batch": 1000, "kv_bytes_per_seq": 1e6, "param_bytes": 2e9, "params": 1e9, "chips": 2, "hbm_bytes_per_s": 1e12, "peak_flops_per_s": 1e14},
     1e9 / 2e12 + 2e12 / 2e14),
    ("decode_tokens_per_s", "I2", {"batch": 1, "kv_bytes_per_seq": 1e9, "param_bytes": 9e9, "chips": 1, "hbm_bytes_per_s": 1e12}, 100),
    ("queries_per_s_per_chip", "I3", {"batch": 64, "step_s": 0.02, "decode_tokens": 100, "chips": 4}, 8),
    ("max_kv_caches", "I4",
     {"chips": 1, "hbm_bytes": 1e9, "params": 1e9, "weight_bytes": 2, "L": 1, "K": 1, "H": 1, "S": 1, "kv_bytes_per_elem": 1}, 0),
    ("prefill_time_s", "I5", {"params": 1e9, "tokens": 1000, "chips": 2, "peak_flops_per_s": 1e14, "mfu": 0.5}, 0.02),
    ("prefill_to_decode_servers", "I6", {"prefill_s": 1, "batch": 10, "step_s": 0.01, "decode_tokens": 500}, 2),
    ("max_decode_tp", "I7", {"F": 8192, "batch": 16, "hbm_over_ici": 16}, 32),
    ("ws2d_threshold_chips", "I8", {"F_over_D": 3.5}, 63),
    ("ws2d_comm_time_s", "I8", {"B": 8, "D": 8192, "F": 32768, "chips": 128, "bidi_bytes_per_s": 9e10},
     8 * math.sqrt(32 * 8192 * 32768 / 128) / 9e10),
    ("spec_decode_tokens_per_step", "I9", {"accept": 0.5, "draft_len": 2}, 1.75),
    ("spec_decode_tokens_per_step", "I9", {"accept": 1, "draft_len": 3}, 4),
    ("spec_decode_speedup", "I9", {"accept": 0.5, "draft_len": 2, "draft_cost": 0.25}, 1.75 / 1.5),
    ("tokens_per_device", "P0", {"sequences": 512, "T": 8192, "devices": 1024, "microbatches": 2}, 2048),
    ("dp_critical_tokens_per_chip", "P1", {"peak_flops_per_s": P, "bidi_bytes_per_s": 1.8e11, "axes": 3}, 850),
    ("min_batch_tokens_dp", "P1", {"alpha": 2550, "axes": 3, "chips": 8960}, 7.616e6),
    ("max_chips_fsdp", "P2", {"alpha": 2200, "axes": 2, "batch_tokens": 1.1e6}, 1000),
    ("max_tp_degree", "P3", {"F": 28672, "alpha": 2200, "axes": 2}, 26.0655),
    ("tp_comm_bytes_per_layer_fwd_bwd", "P4", {"s": 8, "b": 2, "h": 16, "t": 4, "bytes_per_elem": 2}, 4 * 1.5 * 512),
    ("optimal_fsdp_degree", "P5", {"B": 1e6, "F": 25e3, "N": 40, "M_x": 1, "M_y": 1}, 40),
    ("min_tokens_per_chip_mixed_overlapped", "P6", {"alpha": 2550, "F": 28672, "M_x": 2, "M_y": 1}, 113.3946),
    ("min_tokens_per_chip_mixed_serial", "P6", {"alpha": 2550, "F": 32768, "M_x": 2, "M_y": 1}, 396.8811),
    ("pp_transfer_time_s", "P10", {"B": 1e4, "D": 5e3, "stages": 4, "microbatches": 10, "link_bytes_per_s": 1e9}, 0.12),
    ("pp_bubble_fraction", "P11", {"stages": 4, "microbatches": 6, "virtual_stages": 2}, 0.2),
    ("pp_bubble_over_ideal", "P11", {"stages": 4, "microbatches": 6, "virtual_stages": 1}, 0.5),
    ("pp_bubble_fraction", "P11", {"stages": 1, "microbatches": 1, "virtual_stages": 1}, 0),
    ("zero_bubble_h1_bubble_s", "P11z", {"stages": 4, "t_fwd_s": 2, "t_bwd_input_s": 3, "t_bwd_weight_s": 1}, 12),
    ("min_F_for_multi_node_ep", "P12", {"peak_flops_per_s": 9.9e14, "node_egress_bytes_per_s": 4e11}, 19800),
    # scores and values of a block against its keys and values, 2 bytes
    ("ring_attention_overlap_margin", "P13",
     {"seq": 4096, "cp": 4, "N": 32, "K": 8, "peak_flops_per_s": 1e14, "link_bytes_per_s": 1e11, "causal": True},
     (4 * 1024**2 * 32 / 2 / 1e14) / (2 * 2 * 1024 * 8 / 1e11)),
    ("offload_min_tokens_per_chip", "P15", {"peak_flops_per_s": 9e14, "pcie_bytes_per_s": 6e10}, 5000),
    ("offload_min_tokens_per_chip", "P15", {"peak_flops_per_s": 9e14, "pcie_bytes_per_s": 6e10, "full_duplex": False}, 10000),
    ("sharded_bytes_per_device", "S0", {"global_bytes": 96, "shards": [4, 2]}, 12),
    ("sharded_bytes_on_all_devices", "S0", {"global_bytes": 96, "shards": [4, 2], "devices": 64}, 768),
    ("exposed_comm_s", "O1", {"compute_intervals": [[0, 4], [3, 6]], "comm_intervals": [[5, 9], [8, 10], [-2, 1]]}, 6),
    ("step_time_s", "O2", {"compute_s": 1, "comm_s": 0.5, "overlap_fraction": 0}, 1.5),
    ("step_time_s", "O2", {"compute_s": 0.1, "comm_s": 0.5, "overlap_fraction": 1}, 0.5),
    ("sync_throughput_flops_per_s", "E1", {"devices": [[2, 3.0], [1, 5.0]], "equal_shards": False}, 11),
    ("straggler_slowdown", "E2", {"ranks": 8, "mean_s": 2, "sigma_s": 0.1}, 1 + 0.05 * maximum_of_normals(8)),
    ("straggler_slowdown", "E2", {"ranks": 1, "mean_s": 2, "sigma_s": 0.1}, 1),
    ("mtbf_hours", "F1", {"days": 1, "failures": 48}, 0.5),
    ("young_interval_s", "F2", {"checkpoint_s": 8, "mtbf_s": 400}, 80),
    ("daly_interval_s", "F3", {"checkpoint_s": 8, "mtbf_s": 400}, 80 * (1 + 0.1 / 3 + 0.01 / 9) - 8),
    ("daly_interval_s", "F3", {"checkpoint_s": 900, "mtbf_s": 400}, 400),
    ("goodput_first_order", "F4", {"checkpoint_s": 10, "interval_s": 100, "restart_s": 50, "mtbf_s": 1000}, 0.8),
]  # fmt: skip


@pytest.mark.parametrize(("name", "code", "inputs", "expected"), EXAMPLES, ids=[f"{e[0]}-{e[1]}" for e in EXAMPLES])
def test_worked_example(name: str, code: str, inputs: dict[str, object], expected: float) -> None:
    assert compute(name, code, inputs) == pytest.approx(expected, rel=2e-6, abs=1e-30)


@pytest.mark.parametrize(("kind", "algo"), [("broadcast", "nvls"), ("all_reduce", "pat"), ("all_gather", "collnet")])
def test_what_nccl_does_not_do(kind: str, algo: str) -> None:
    with pytest.raises(NoFormula, match=algo):
        compute("nccl_time_us", "N4", NCCL8 | {"collective": kind, "algo": algo, "proto": "simple"})

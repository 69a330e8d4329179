"""Which formula costs which operator of a library: attention, quantised products, normalisations, routing, scans.

Names are those under which libraries register operators with PyTorch, or of `torch.autograd.Function` classes, which
Kineto records with their tensors only, in order. Schemas are those of the libraries' sources in 2024 to 2026.
"""

from dataclasses import replace
from typing import Any

from tracegap.ingest.classify.aten_args import Args
from tracegap.ingest.classify.aten_table import Param, at, dtype_of, list_at, ops, packed_batch, present, size_of
from tracegap.models.formulas.sizes import Operand
from tracegap.models.ops import OpClass, Tensor


def _pairs(position: int) -> Any:
    """The tensor at a position whose bytes hold two 4-bit floats each, as that many of them."""

    def operand(args: Args) -> Operand:
        found = args.tensor(position)
        if not isinstance(found, Tensor) or not found.shape:
            return found
        return replace(found, shape=(*found.shape[:-1], 2 * found.shape[-1]), dtype="fp4", strides=None)

    return operand


# Attention. flash-attention has tokens before heads, and masks at the bottom right.

_A = OpClass.ATTENTION
_TOKENS_FIRST = {"layout": "BTNH"}


def _tables(args: Args, *positions: int) -> Operand:
    """The first of some tensors that is not empty: tables lie on the device or in memory that host and device share."""
    tensors = [t for p in positions if isinstance(t := args.tensor(p), Tensor)]
    return next((t for t in tensors if t.shape != (0,)), tensors[0] if tensors else None)


def _window(left: int) -> dict[str, Param]:
    return {"window": at(left), "window_right": at(left + 1)}


ops("flash_attn::_flash_attn_forward", _A, "attention", 0, 1, 2, causal=at(5, False), **_window(6), **_TOKENS_FIRST)
ops(
    "flash_attn::_flash_attn_varlen_forward", _A, "attention", 0, 1, 2,
    causal=at(9, False), varlen=True, **packed_batch(3, 5), **_window(10), **_TOKENS_FIRST,
)  # fmt: skip
ops(
    "flash_attn::_flash_attn_backward", _A, "attention_backward", 1, 2, 3, 0, 4, 5,
    causal=at(11, False), **_window(12), **_TOKENS_FIRST,
)  # fmt: skip
ops(
    "flash_attn::_flash_attn_varlen_backward", _A, "attention_backward", 1, 2, 3, 0, 4, 5,
    causal=at(15, False), varlen=True, **packed_batch(9, 11), **_window(16), **_TOKENS_FIRST,
)  # fmt: skip
# version 3: with a table of pages, or lengths in use, keys come from a cache
ops(
    "flash_attn_3::fwd flash_attn_3::_flash_attn_forward _vllm_fa3_C::fwd sgl_kernel::fwd", _A, "attention", 0, 1, 2,
    causal=at(24, False), varlen=present(7), **packed_batch(7, 12), **_window(25), **_TOKENS_FIRST,
    contexts_unknown=lambda a: any(a.tensor(i) is not None for i in (11, 14)),
)  # fmt: skip
ops(
    "flash_attn_3::bwd", _A, "attention_backward", 1, 2, 3, 0, 4, 5,
    causal=at(16, False), varlen=present(9), **packed_batch(9, 13), **_window(17), **_TOKENS_FIRST,
)  # fmt: skip
# what a trace with autograd functions only has: tensors, no scalars; the kernel's name may tell the mask
ops("FlashAttnFunc", _A, "attention", 0, 1, 2, causal=None, **_TOKENS_FIRST)
ops("FlashAttnVarlenFunc", _A, "attention", 0, 1, 2, causal=None, varlen=True, **_TOKENS_FIRST)
ops(
    "xformers::efficient_attention_forward_cutlass", _A, "attention", 0, 1, 2, 3,
    varlen=present(4), causal=lambda a: None if (kind := a.value(9, 0)) is None else kind != 0,
    mask=lambda a: "top_left" if a.value(9, 0) == 1 else "bottom_right", **_TOKENS_FIRST,
)  # fmt: skip


ops(
    "xformers::efficient_attention_backward_cutlass", _A, "attention_backward", 1, 2, 3, 0, 5, 9, 10, 4,
    varlen=lambda a: a.rank(6) == 1, causal=lambda a: None if (kind := a.value(14, 0)) is None else kind != 0,
    mask=lambda a: "top_left" if a.value(14, 0) == 1 else "bottom_right", **_TOKENS_FIRST,
)  # fmt: skip


def _xformers(later: int) -> Param:
    """A scalar of `xformers_flash::flash_fwd`, whose newer schema has one more tensor at position 5."""
    return lambda a: a.value(later - 1 if isinstance(a.value(5), int) else later)


def _whole_number(position: Param) -> Param:
    """A number that is no flag: the oldest schema has one where later ones have a window."""
    return lambda a: found if type(found := position(a)) is int else None


ops(
    "xformers_flash::flash_fwd", _A, "attention", 0, 1, 2,
    causal=_xformers(10), varlen=present(3), sequences=packed_batch(3, 6)["sequences"],
    longest_q=_xformers(6), longest_k=_xformers(7), contexts_unknown=present(5),
    window=_whole_number(_xformers(11)), window_right=_whole_number(_xformers(12)), **_TOKENS_FIRST,
)  # fmt: skip
ops(
    "xformers_flash::flash_bwd", _A, "attention_backward", 1, 2, 3, 0, 4, 5,
    causal=at(15, False), varlen=present(9), **packed_batch(9, 11), **_window(16), **_TOKENS_FIRST,
)  # fmt: skip

# Products. Weights are [out, in].

_M = OpClass.MATMUL
_BF16 = {"out_dtype": "bf16", "transposed_b": True}
ops("fbgemm::f8f8bf16_rowwise fbgemm::f8f8bf16_blockwise", _M, "matmul", 0, 1, 2, 3, **_BF16)
ops("fbgemm::f8f8bf16 fbgemm::f8f8bf16_tensorwise fbgemm::i8i8bf16", _M, "matmul", 0, 1, **_BF16)
ops("fbgemm::bf16i4bf16_rowwise", _M, "weight_only_matmul", 0, 1, 2, 3, out_features=size_of(1, 0))
ops("_C::cutlass_scaled_mm", _M, "matmul", 1, 2, 3, 4, 5, out_dtype=dtype_of(0))
ops(
    "_C::cutlass_scaled_fp4_mm", _M, "matmul", _pairs(1), _pairs(2), 3, 4, 5,
    out_dtype=dtype_of(0), transposed_b=True, math="fp4",
)  # fmt: skip
ops("sgl_kernel::fp8_scaled_mm sgl_kernel::int8_scaled_mm", _M, "matmul", 0, 1, 2, 3, 5, out_dtype=None)
# 32-bit words of eight weights: of a row (AWQ) or of a column (GPTQ)
ops("_C::awq_gemm", _M, "weight_only_matmul", 0, 1, 2, 3, out_features=size_of(1, 1, times=8))
ops("_C::gptq_gemm", _M, "weight_only_matmul", 0, 1, 2, 3, out_features=size_of(1, 1))
ops("bitsandbytes::int8_linear_matmul", _M, "matmul", 0, 1, transposed_b=True, out_dtype="int32")
ops("bitsandbytes::gemv_4bit", _M, "weight_only_matmul", 0, 1, 3, out_features=lambda a: (a.value(2) or [None])[0])


def _groups_first(args: Args) -> Operand:
    """Weights of the groups as [G, K, N], which some calls have as [G, N, K]."""
    a, b = args.tensor(0), args.tensor(1)
    if isinstance(a, Tensor) and isinstance(b, Tensor) and len(b.shape) == 3 and a.shape[-1] != b.shape[1]:
        return replace(b, shape=(b.shape[0], b.shape[2], b.shape[1]), strides=None)
    return b


ops("GroupedGemm", _M, "grouped_matmul", 0, _groups_first, 2)
ops("vllm::inplace_fused_experts vllm::outplace_fused_experts", _M, "fused_experts", 0, 1, 2, 3, 4)


def _matrix(nth: int) -> Any:
    """The n-th matrix behind the first tensor: vectors of norms and biases may stand before it."""

    def operand(args: Args) -> Operand:
        later = (args.tensor(i) for i in range(1, args.count))
        matrices = [t for t in later if isinstance(t, Tensor) and len(t.shape) == 2]
        return matrices[nth] if nth < len(matrices) else None

    return operand


_OWN = "norms and casts in the same call are not counted"
ops("_Linear", _M, "matmul", 1, 0, transposed_b=True, note=_OWN)
ops("_LayerNormLinear", _M, "matmul", 0, _matrix(0), transposed_b=True, note=_OWN)
ops("_LayerNormMLP", _M, "two_layers", 0, _matrix(0), _matrix(1), note=_OWN)

# Normalisations, losses, activations, rotary embeddings

_N, _E = OpClass.NORMALIZATION, OpClass.ELEMENTWISE
ops("aiter::_groupnorm_run", _N, "group_norm", 0, 2, 3, groups=at(1))
ops("_C::rms_norm sgl_kernel::rmsnorm", _N, "rms_norm", 1, 2, statistics=0)
ops("_C::fused_add_rms_norm sgl_kernel::fused_add_rmsnorm", _N, "add_norm", 0, 1, 2)
ops("LigerRMSNormFunction", _N, "rms_norm", 0, 1)
ops("LigerLayerNormFunction", _N, "layer_norm", 0, 1, 2)
ops("LigerCrossEntropyFunction", OpClass.SOFTMAX, "cross_entropy", 0, 1, gradient=True)
ops("CrossEntropyLoss", OpClass.SOFTMAX, "cross_entropy", 0, 1)
ops("LigerSiLUMulFunction LigerGELUMulFunction", _E, "elementwise", 0, 1, flops_per_element=6)
ops("LigerRopeFunction", _E, "rotary_embedding", lambda a: a.pack(0, 1), 2, 3)
ops("ApplyRotaryEmb", _E, "rotary_embedding", lambda a: a.pack(0), 1, 2)
ops("_C::silu_and_mul _C::gelu_and_mul _C::gelu_tanh_and_mul sgl_kernel::silu_and_mul", _E, "gated_activation", 1)
ops("_C::rotary_embedding", _E, "rotary_embedding", lambda a: a.pack(1, 2), 0, 4)
ops(
    "_C::static_scaled_fp8_quant _C::dynamic_scaled_fp8_quant _C::dynamic_per_token_scaled_fp8_quant "
    "_C::static_scaled_int8_quant _C::dynamic_scaled_int8_quant",
    _E, "copy", 0, 1,
)  # fmt: skip

# Optimizers of 8-bit states, with one scale a block

ops(
    "bitsandbytes::optimizer_update_8bit_blockwise", OpClass.OPTIMIZER, "fused_optimizer",
    lambda a: a.pack(2), lambda a: a.pack(1), lambda a: a.pack(3, 4), lambda a: a.pack(14, 15),
    flops_per_element=16,
)  # fmt: skip

# Routing of experts

ops("_moe_C::topk_softmax _moe_C::topk_sigmoid", OpClass.SOFTMAX, "routing", 3, 0, 1, 2)
ops("sgl_kernel::topk_softmax sgl_kernel::topk_sigmoid", OpClass.SOFTMAX, "routing", 2, 0, 1)
ops("_moe_C::moe_align_block_size sgl_kernel::moe_align_block_size", OpClass.SORT, "histogram", 0, 3, 4)
ops("_moe_C::moe_permute", OpClass.DATA_MOVEMENT, "index_rows", 0, 1)
ops("_moe_C::moe_sum", OpClass.REDUCTION, "reduction", 0, dims=1)

# Scans

ops(
    "SelectiveScanFn mambacuda::selective_scan_fwd", OpClass.REDUCTION, "selective_scan", 0, 1, 2, 3, 4, 5, 6, 7,
    skip=present(5), gated=present(6),
)  # fmt: skip
ops(
    "_C::selective_scan_fwd", OpClass.REDUCTION, "selective_scan", 0, 1, 2, 3, 4, 5, 6, 7,
    skip=present(5), gated=present(6),
)  # fmt: skip
ops("MambaChunkScanCombinedFn", OpClass.OTHER, "chunked_scan", 0, 1, 2, 3, 4)
ops("CausalConv1dFn _C::causal_conv1d_fwd", OpClass.CONVOLUTION, "causal_conv1d", 0, 1, 2)

# Tables of embeddings in recommendation models, and what FBGEMM does to rows before and after it sends them

_Q = OpClass.ELEMENTWISE
_G = OpClass.EMBEDDING
ops("fbgemm::table_lookup", _G, "table_lookup", lambda a: _tables(a, 1, 2), 11, 12, 14, width=None)
ops("fbgemm::dense_table_lookup", _G, "table_lookup", 0, 7, 8, 10, width=None)
ops("fbgemm::table_lookup_backward", _G, "table_lookup_backward", 0, width=None)
ops("fbgemm::bounds_check_indices", _G, "buffers", 1, 2)
ops(
    "fbgemm::asynchronous_complete_cumsum fbgemm::asynchronous_inclusive_cumsum fbgemm::asynchronous_exclusive_cumsum",
    OpClass.REDUCTION, "elementwise", 0,
)  # fmt: skip
ops("fbgemm::FloatToFP8RowwiseQuantized fbgemm::FloatToFused8BitRowwiseQuantized", _Q, "quantized_rows", 0,
    scale_bytes=8, out_dtype="uint8")  # fmt: skip
ops("fbgemm::FP8RowwiseQuantizedToFloat fbgemm::Fused8BitRowwiseQuantizedToFloat", _Q, "quantized_rows", 0,
    scale_bytes=8, out_dtype="fp32")  # fmt: skip
ops("fbgemm::FloatToHFP8Quantized", _Q, "quantized_rows", 0, out_dtype="uint8")
ops("fbgemm::HFP8QuantizedToFloat", _Q, "quantized_rows", 0, out_dtype="fp32")
ops("fbgemm::FloatToBfloat16Quantized", _Q, "elementwise", 0, out_dtype="int16")
ops("fbgemm::Bfloat16QuantizedToFloat", _Q, "elementwise", 0, out_dtype="fp32")

# Moving data. Recommendation models of FBGEMM permute what they looked up and what they look up.

ops("fbgemm::permute_pooled_embs fbgemm::permute_pooled_embs_auto_grad", OpClass.EMBEDDING, "rewrite", 0)
ops(
    "fbgemm::permute_sparse_features fbgemm::permute_2D_sparse_data fbgemm::permute_1D_sparse_data",
    OpClass.EMBEDDING, "rewrite", lambda a: a.pack(1, 2, 3),
)  # fmt: skip
ops("fsdp::chunk_cat fsdp::all_gather_copy_in", OpClass.DATA_MOVEMENT, "rewrite", list_at(0))
ops("fsdp::split_with_sizes_copy", OpClass.DATA_MOVEMENT, "rewrite", 0)
ops(
    "_C_cache_ops::reshape_and_cache_flash _C_cache_ops::reshape_and_cache", OpClass.DATA_MOVEMENT, "rewrite",
    lambda a: a.pack(0, 1),
)  # fmt: skip

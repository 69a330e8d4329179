"""Operators of libraries and the rarer ones of PyTorch. Figures are hand arithmetic."""

import math

import pytest

from tracegap.ingest.classify.aten import Described, describe, is_wrapper
from tracegap.ingest.classify.kernel import kernel_class, kernel_dtype
from tracegap.models.ops import OpClass

BF16, F32, F8, I32, I64, U8, I8 = (
    "c10::BFloat16", "float", "c10::Float8_e4m3fn", "int", "long int", "unsigned char", "signed char"
)  # fmt: skip


def call(name: str, *arguments: object, **more: bool) -> Described:
    """Describes a call: (shape, type) are tensors, None is an absent one, all else scalars."""
    dims = [a[0] if isinstance(a, tuple) else [] for a in arguments]
    types = [a[1] if isinstance(a, tuple) else "" if a is None else "Scalar" for a in arguments]
    concrete = ["" if isinstance(a, tuple) or a is None else str(a) for a in arguments]
    return describe(name, dims, types, None, concrete, **more)


# --- attention


def test_packed_batches_of_equal_lengths_are_known() -> None:
    qkv, starts = ([4 * 128, 8, 64], BF16), ([5], I32)
    one = 4 * 4 * 8 * 128 * 128 * 64
    args = (qkv, qkv, qkv, starts, starts, 128, 128, 0.0, 0.125)
    full = call("flash_attn::_flash_attn_varlen_forward", *args, False)
    assert (full.op_class, full.flops, full.bytes) == (OpClass.ATTENTION, one, 4 * 4 * 128 * 8 * 64 * 2)
    assert call("flash_attn::_flash_attn_varlen_forward", *args, True).flops == one // 2
    assert call("aten::_flash_attention_forward", *args[:7], 0.0, True, False).flops == one // 2
    back = (qkv,) * 5 + (([8, 512], F32), qkv, qkv, qkv, starts, starts, 128, 128, 0.0, 0.125, True)
    assert call("flash_attn::_flash_attn_varlen_backward", *back).flops == one // 2 * 5 // 2


def test_packed_batches_of_other_lengths_are_not() -> None:
    qkv, starts = ([500, 8, 64], BF16), ([5], I32)
    d = call("flash_attn::_flash_attn_varlen_forward", qkv, qkv, qkv, starts, starts, 128, 128, 0.0, 0.125, True)
    assert (d.flops, d.note) == (None, "sequence lengths of a packed batch are not in the trace")
    assert d.bytes == 4 * 500 * 8 * 64 * 2


def test_version_3_of_flash_attention() -> None:
    q, kv = ([2, 256, 8, 128], BF16), ([2, 256, 2, 128], BF16)
    scalars = (None,) * 9 + (None, None) + (None,) * 9 + (0.088, True, -1, -1)
    d = call("flash_attn_3::fwd", q, kv, kv, *scalars)
    assert (d.flops, d.bytes) == (4 * 2 * 8 * 256 * 256 * 128 // 2, 2 * (2 * 2 * 256 * 8 + 2 * 2 * 256 * 2) * 128)
    windowed = call("flash_attn_3::fwd", q, kv, kv, *scalars[:-2], 63, 0)
    rows = sum(min(i + 1, 64) for i in range(256))
    assert windowed.flops == 4 * 2 * 8 * 128 * rows
    paged = list(scalars)
    paged[14 - 3] = ([2, 16], I32)
    assert call("flash_attn_3::fwd", q, kv, kv, *paged).note == "lengths of the contexts are not in the trace"
    back = call("flash_attn_3::bwd", q, q, kv, kv, q, ([2, 8, 256], F32), *(None,) * 9, 0.088, True, -1, -1)
    assert back.flops == d.flops * 5 // 2


def test_autograd_functions_have_no_scalars_and_need_the_kernels_name() -> None:
    qkv = ([2, 256, 8, 64], BF16)
    assert call("FlashAttnFunc", qkv, qkv, qkv).flops is None
    assert call("FlashAttnFunc", qkv, qkv, qkv, causal=True).flops == 4 * 2 * 8 * 256 * 256 * 64 // 2
    assert not is_wrapper("FlashAttnFunc")


@pytest.mark.parametrize("newest", [True, False])
def test_both_schemas_of_xformers_flash(newest: bool) -> None:
    qkv = ([2, 256, 8, 64], BF16)
    rest = (None, 256, 256, 0.0, 0.125, True, -1, -1) if newest else (256, 256, 0.0, 0.125, True, -1)
    d = call("xformers_flash::flash_fwd", qkv, qkv, qkv, None, None, *rest)
    assert d.flops == 4 * 2 * 8 * 256 * 256 * 64 // 2


def test_backward_of_xformers() -> None:
    qkv, lse = ([2, 256, 8, 64], BF16), ([2, 8, 256], F32)
    flash = call(
        "xformers_flash::flash_bwd", *(qkv,) * 5, lse, *(qkv,) * 3, None, None, 256, 256, 0.0, 0.1, True, -1, -1
    )
    whole = 10 * 2 * 8 * 256 * 256 * 64
    assert (flash.flops, flash.bytes) == (whole // 2, 2 * 8 * 2 * 256 * 8 * 64 + 4 * 2 * 8 * 256)
    older = call("xformers::efficient_attention_backward_cutlass", *(qkv,) * 4, *(None,) * 5, lse, qkv, 0.0, 0, 0, 1)
    newer = call(
        "xformers::efficient_attention_backward_cutlass", *(qkv,) * 4, None, qkv, *(None,) * 4, lse, 0.0, 0, 0, 1
    )
    assert older.flops == newer.flops == whole // 2
    assert older.bytes == newer.bytes == flash.bytes


def test_tokens_go_to_their_experts() -> None:
    d = call("_moe_C::moe_permute", ([10, 64], BF16), ([10, 2], I32))
    assert (d.op_class, d.flops, d.bytes) == (OpClass.DATA_MOVEMENT, 0, 2 * 64 * (10 + 20) + 80)


def test_lookups_of_recommendation_models() -> None:
    pooled = call("fbgemm::permute_pooled_embs", ([64, 1024], F32), ([8], I64), ([8], I64))
    assert (pooled.op_class, pooled.flops, pooled.bytes) == (OpClass.EMBEDDING, 0, 2 * 4 * 65_536)
    sparse = call("fbgemm::permute_sparse_features", ([8], I64), ([8, 64], I64), ([9000], I64), None)
    assert sparse.bytes == 2 * 8 * (512 + 9000)
    lookup = call("fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function", ([1000], F32))
    assert (lookup.op_class, lookup.flops) == (OpClass.EMBEDDING, None)


def test_contexts_of_a_cache_are_not_in_a_trace() -> None:
    d = call("_C::paged_attention_v1", ([8, 32, 128], BF16))
    assert (d.op_class, d.flops, d.bytes) == (OpClass.ATTENTION, None, None)
    assert "contexts" in (d.note or "")


# --- products


def test_fp8_products_of_libraries() -> None:
    x, w = ([32, 64], F8), ([16, 64], F8)
    d = call("fbgemm::f8f8bf16_rowwise", x, w, ([32], F32), ([16], F32))
    assert d == Described(OpClass.MATMUL, "fp8", 2 * 32 * 64 * 16, 2048 + 1024 + 4 * 48 + 1024, None)
    v = call("_C::cutlass_scaled_mm", ([32, 16], BF16), x, ([64, 16], F8), ([1], F32), ([1], F32), None)
    assert (v.dtype, v.flops, v.bytes) == ("fp8", 65_536, 2048 + 1024 + 8 + 1024)


def test_two_fp4_values_in_a_byte() -> None:
    d = call(
        "_C::cutlass_scaled_fp4_mm", ([32, 16], BF16), ([32, 32], U8), ([16, 32], U8), ([32, 4], F8), ([16, 4], F8), ([1], F32)
    )  # fmt: skip
    assert (d.dtype, d.flops, d.bytes) == ("fp4", 2 * 32 * 64 * 16, 1024 + 512 + 128 + 64 + 4 + 1024)


@pytest.mark.parametrize(
    ("name", "weights"),
    # 64 x 16 weights of 4 bits in 32-bit words: along the outputs (AWQ), along the inputs (GPTQ)
    [("_C::awq_gemm", [64, 2]), ("_C::gptq_gemm", [8, 16])],
)
def test_weights_in_groups(name: str, weights: list[int]) -> None:
    d = call(name, ([5, 64], BF16), (weights, I32), ([2, 16], BF16), ([2, 2], I32))
    assert (d.dtype, d.flops, d.bytes) == ("bf16", 2 * 5 * 64 * 16, 640 + 512 + 64 + 16 + 160)


def test_groups_of_experts() -> None:
    flat = call("GroupedGemm", ([40, 8], BF16), ([4, 8, 16], BF16), ([4], I64))
    turned = call("GroupedGemm", ([40, 8], BF16), ([4, 16, 8], BF16), ([4], I64))
    assert flat == turned
    assert (flat.flops, flat.bytes) == (2 * 40 * 8 * 16, 2 * (320 + 512 + 640) + 32)
    # 10 tokens, 2 of 4 experts each, gated 16 -> 32: products of 20 rows
    d = call(
        "vllm::inplace_fused_experts", ([10, 16], BF16), ([4, 64, 16], BF16), ([4, 16, 32], BF16), ([10, 2], F32), ([10, 2], I32)
    )  # fmt: skip
    assert d.flops == 2 * 20 * 16 * 64 + 2 * 20 * 32 * 16
    assert d.bytes == 2 * (160 + 4096 + 2048 + 160) + 80 + 80


def test_modules_of_transformer_engine() -> None:
    plain = call("_Linear", ([16, 64], BF16), ([2, 5, 64], BF16), ([16], BF16))
    normed = call("_LayerNormLinear", ([10, 64], BF16), ([64], BF16), ([16, 64], BF16), ([16], BF16))
    assert plain.flops == normed.flops == 2 * 10 * 64 * 16
    assert plain.op_class is normed.op_class is OpClass.MATMUL
    # SwiGLU: 64 -> 2 x 128 -> 64
    mlp = call("_LayerNormMLP", ([10, 64], BF16), ([64], BF16), ([256, 64], BF16), ([64, 128], BF16))
    assert (mlp.flops, mlp.bytes) == (2 * 10 * 64 * 256 + 2 * 10 * 128 * 64, 2 * (640 + 16_384 + 8192 + 640))
    assert call("FusedAttnFunc", ([128, 2, 8, 64], BF16)).flops is None


def test_products_that_skip_half_are_not_held_against_dense_peaks() -> None:
    assert call("aten::_cslt_sparse_mm", ([32, 36], BF16), ([64, 16], BF16)).flops is None


# --- normalisations, losses, routing, optimizers


def test_fused_losses_and_norms() -> None:
    logits, targets = ([6, 100], BF16), ([6], I64)
    d = call("LigerCrossEntropyFunction", logits, targets)
    assert (d.op_class, d.flops, d.bytes) == (OpClass.SOFTMAX, 3000, 2 * 1200 + 48 + 24)
    norm = call("_C::fused_add_rms_norm", ([4, 8], BF16), ([4, 8], BF16), ([8], BF16), 1e-6)
    assert (norm.flops, norm.bytes) == (32 + 4 * (16 + 2 + 16), 4 * 64 + 16)
    gate = call("LigerSiLUMulFunction", ([4, 8], BF16), ([4, 8], BF16))
    assert (gate.flops, gate.bytes) == (192, 192)
    rope = call("LigerRopeFunction", ([1, 4, 2, 8], BF16), ([1, 4, 1, 8], BF16), ([1, 4, 8], BF16), ([1, 4, 8], BF16))
    assert (rope.flops, rope.bytes) == (3 * 96, 2 * 192 + 2 * 64)


def test_routing() -> None:
    d = call("_moe_C::topk_softmax", ([10, 2], F32), ([10, 2], I32), ([10, 2], I32), ([10, 64], F32))
    assert (d.flops, d.bytes) == (3200, 2560 + 240)
    counts = call("aten::histc", ([1000], F32), 64, 0, 63)
    assert (counts.op_class, counts.flops, counts.bytes) == (OpClass.REDUCTION, 1000, 4000 + 256)
    summed = call("_moe_C::moe_sum", ([10, 2, 64], BF16), ([10, 64], BF16))
    assert (summed.flops, summed.bytes) == (640, 2 * 1920)


def test_eight_bit_states_of_an_optimizer() -> None:
    g, state, scales = ([4096], BF16), ([4096], U8), ([16], F32)
    d = call(
        "bitsandbytes::optimizer_update_8bit_blockwise", "adam", g, g, state, state, 0.9, 0.999, 0.0, 0.0, 1e-8, 7, 1e-3,
        ([256], F32), ([256], F32), scales, scales, 0.0, 1.0, False,
    )  # fmt: skip
    # parameters r/w and gradients at 2 bytes, two states r/w at 1, a scale each for 256 of them
    assert (d.flops, d.bytes) == (16 * 4096, 4096 * (2 + 4 + 4) + 2 * 2 * 64)


# --- scans, transforms, the rest of PyTorch


def test_scans() -> None:
    u, a, bc = ([2, 32, 100], BF16), ([32, 16], F32), ([2, 1, 16, 100], BF16)
    plain = call("SelectiveScanFn", u, u, a, bc, bc)
    assert (plain.dtype, plain.flops) == ("fp32", 9 * 2 * 100 * 32 * 16)
    assert plain.bytes == 2 * 3 * 6400 + 4 * 512 + 2 * 2 * 3200
    gated = call("SelectiveScanFn", u, u, a, bc, bc, ([32], F32), u, ([32], F32))
    assert gated.flops == plain.flops + 4 * 6400
    x, dt, b = ([2, 100, 4, 8], BF16), ([2, 100, 4], BF16), ([2, 100, 1, 16], BF16)
    chunked = call("MambaChunkScanCombinedFn", x, dt, ([4], F32), b, b)
    assert (chunked.flops, chunked.note) == (None, "length of a chunk is not in the trace")
    short = call("CausalConv1dFn", u, ([32, 4], BF16), ([32], BF16))
    assert (short.flops, short.bytes) == (8 * 6400, 2 * (2 * 6400 + 128 + 32))


@pytest.mark.parametrize(
    ("name", "arguments", "flops", "moved"),
    [
        ("_fft_c2c", (([6, 64], "c10::complex<float>"), "[1]", 0, "True"), 6 * 5 * 64 * 6, 2 * 8 * 384),
        ("_fft_r2c", (([6, 64], F32), "[1]", 0, "True"), 6 * 5 * 64 * 6 // 2, 4 * 384 + 8 * 6 * 33),
        ("_fft_c2r", (([6, 33], "c10::complex<float>"), "[1]", 2, 64), 6 * 5 * 64 * 6 // 2, 8 * 6 * 33 + 4 * 384),
        ("_fft_c2c", (([8, 4, 4], "c10::complex<float>"), "[1, 2]", 0, "True"), 8 * 5 * 16 * 4, 2 * 8 * 128),
        ("constant_pad_nd", (([2, 3, 4], F32), "[1, 2, 0, 1]", 0), 0, 4 * (24 + 2 * 4 * 7)),
        ("reflection_pad2d", (([2, 3, 4], F32), "[1, 1, 2, 2]"), 0, 4 * (24 + 2 * 7 * 6)),
        ("grid_sampler_2d", (([2, 3, 8, 8], F32), ([2, 5, 5, 2], F32), 0, 0), 8 * 150, 4 * (384 + 100 + 150)),
        ("batch_norm_backward_elemt", (([2, 3, 4], BF16), ([2, 3, 4], BF16), ([3], F32)), 6 * 24, 3 * 48),
        ("batch_norm_backward_reduce", (([2, 3, 4], BF16), ([2, 3, 4], BF16), ([3], F32)), 4 * 24, 2 * 48),
        ("linalg_cholesky_ex", (([5, 12, 12], F32),), 5 * 12**3 // 3, 2 * 4 * 720),
        ("linalg_inv_ex", (([12, 12], F32),), 2 * 12**3, 2 * 4 * 144),
        ("linalg_solve_triangular", (([12, 12], F32), ([12, 3], F32)), 144 * 3, 4 * (144 + 36 + 36)),
        ("_cdist_forward", (([10, 4], F32), ([6, 4], F32), 2.0), 3 * 240, 4 * (40 + 24 + 60)),
        ("bucketize", (([100], F32), ([15], F32)), 400, 400 + 60 + 800),
        ("aminmax", (([6, 4], F32), 1, "False"), 18, 4 * (24 + 12)),
    ],
)
def test_rarer_operators(name: str, arguments: tuple[object, ...], flops: int, moved: int) -> None:
    d = call(f"aten::{name}", *arguments)
    assert (d.flops, d.bytes, d.note) == (flops, moved, None)


def test_recurrent_networks() -> None:
    # LSTM of two layers, 20 steps of 3, 8 -> 16: four gates, then 16 -> 16
    weights = ([[64, 8], [64, 16], [64, 16], [64, 16]], "TensorList")
    args = (([20, 3, 8], F32), weights, 4, None, ([2, 3, 16], F32), ([2, 3, 16], F32), 2, 16, 0, 2)
    d = call("aten::_cudnn_rnn", *args, "False", 0.0, "True", "False")
    assert d.flops == 2 * 60 * 64 * (24 + 32)
    both = call("aten::_cudnn_rnn", *args, "False", 0.0, "True", "True")
    assert both.flops == 2 * 2 * 60 * 64 * (24 + 48)


@pytest.mark.parametrize(
    ("kernel", "op_class", "dtype"),
    [
        ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<7168u, 4096u, 1u>(float*)", OpClass.MATMUL, "fp8"),
        ("void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u>", OpClass.MATMUL, "fp8"),
        ("_chunk_scan_fwd_kernel", OpClass.REDUCTION, None),
        (
            "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<32, 4>>(SSMParamsBase)",
            OpClass.REDUCTION,
            None,
        ),
        ("liger_cross_entropy_kernel", OpClass.SOFTMAX, None),
        ("_rms_norm_forward_kernel", OpClass.NORMALIZATION, None),
    ],
)
def test_kernels_of_libraries(kernel: str, op_class: OpClass, dtype: str | None) -> None:
    assert (kernel_class(kernel), kernel_dtype(kernel)) == (op_class, dtype)


def test_log_of_a_transform_is_that_of_two() -> None:
    d = call("aten::_fft_c2c", ([100], "c10::complex<float>"), "[0]", 0, "True")
    assert d.flops == round(5 * 100 * math.log2(100))


def test_sizes_that_no_tensor_has_cost_an_operator_its_numbers_only():
    told = describe("aten::mm", [[-4, 8], [8, 4]], ["float", "float"])
    assert told.flops is None or told.flops >= 0
    told = describe(
        "flash_attn::_flash_attn_forward",
        [[2, -64, 8, 64]] * 3,
        ["c10::BFloat16"] * 3,
        None,
        ["", "", "", "", "", "True"],
    )
    assert told.flops is None or told.flops >= 0

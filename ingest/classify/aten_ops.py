"""Which formula costs which operator of PyTorch, and where its arguments are: one line an operator or a family.

Operators of libraries are in `library_ops`, those without a formula in `aten_names`.
"""

from collections.abc import Callable
from typing import Any

from tracegap.ingest.classify.aten_args import Args
from tracegap.ingest.classify.aten_table import (
    ENTRIES,
    Entry,
    Param,
    at,
    dims_at,
    dtype_at,
    dtype_of,
    list_at,
    ops,
    packed_batch,
    present,
    product_at,
    size_of,
)
from tracegap.models.errors import BadShape
from tracegap.models.formulas.sizes import Operand
from tracegap.models.ops import OpClass, Tensor

# Matrix products

_M = OpClass.MATMUL
ops("mm bmm mv dot vdot", _M, "matmul", 0, 1)
ops("addmm baddbmm addmv _addmm_activation", _M, "matmul", 1, 2, lambda a: None if a.value(3, 1) == 0 else a.tensor(0))
ops("_int_mm", _M, "matmul", 0, 1, out_dtype="int32")
ops("linear mkldnn_linear vllm::rocm_unquantized_gemm", _M, "matmul", 0, 1, 2, transposed_b=True)


def _scales_first(args: Args) -> bool:
    """Whether `_scaled_mm` has its scales before its bias, as from PyTorch 2.5 on."""
    return args.tensor(3) is not None


def _scaled(new: int, old: int) -> Callable[[Args], Operand]:
    return lambda a: a.tensor(new if _scales_first(a) else old)


ops(
    "_scaled_mm", _M, "matmul", 0, 1, _scaled(2, 4), _scaled(3, 5), _scaled(4, 2), _scaled(5, 6),
    out_dtype=lambda a: dtype_at(6 if _scales_first(a) else 3, dtype_of(0))(a),
)  # fmt: skip
# scales come as lists, of which the trace has no dtypes
ops("_scaled_mm_v2", _M, "matmul", 0, 1, 8, out_dtype=dtype_at(9, dtype_of(0)), note="scales are not counted")
ops(
    "_scaled_grouped_mm_v2", _M, "grouped_matmul", 0, 1, 8, 9,
    out_dtype=dtype_at(10, dtype_of(0)), note="scales are not counted",
)  # fmt: skip
ops("_weight_int8pack_mm", _M, "weight_only_matmul", 0, 1, 2, out_features=size_of(1, 0))
# 32-bit words of 8 weights: [N / 8, K / (inner x 16), 32, inner / 2]
ops("_weight_int4pack_mm", _M, "weight_only_matmul", 0, 1, 3, out_features=size_of(1, 0, times=8))
ops("_weight_int4pack_mm_for_cpu", _M, "weight_only_matmul", 0, 1, 3, out_features=size_of(1, 0))
ops("_grouped_mm", _M, "grouped_matmul", 0, 1, 2, 3, out_dtype=dtype_at(4, dtype_of(0)))
ops("_scaled_grouped_mm", _M, "grouped_matmul", 0, 1, 4, 2, 3, 5, out_dtype=dtype_at(7, dtype_of(0)))

# Convolutions

_C = OpClass.CONVOLUTION
_DEFAULTS = {"stride": None, "padding": 0, "dilation": 1, "output_padding": 0, "groups": 1, "transposed": False}


def _conv(names: str, *tensors: int, **positions: int) -> None:
    """A convolution whose settings are at these positions."""
    params: dict[str, Any] = {key: at(position, _DEFAULTS[key]) for key, position in positions.items()}
    if "transpose" in names:
        params["transposed"] = True
    ops(names, _C, "convolution", *tensors, **params)


_conv(
    "convolution _convolution convolution_overrideable", 0, 1, 2,
    stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8,
)  # fmt: skip
_conv("cudnn_convolution", 0, 1, padding=2, stride=3, dilation=4, groups=5)
_conv("miopen_convolution mkldnn_convolution", 0, 1, 2, padding=3, stride=4, dilation=5, groups=6)
_conv("miopen_depthwise_convolution", 0, 1, 2, padding=3, stride=4, dilation=5, groups=6)
_conv("cudnn_convolution_transpose", 0, 1, padding=2, output_padding=3, stride=4, dilation=5, groups=6)
_conv("miopen_convolution_transpose", 0, 1, 2, padding=3, output_padding=4, stride=5, dilation=6, groups=7)
_conv("cudnn_convolution_relu miopen_convolution_relu", 0, 1, 2, stride=3, padding=4, dilation=5, groups=6)
_conv("cudnn_convolution_add_relu miopen_convolution_add_relu", 0, 1, 2, 4, stride=5, padding=6, dilation=7, groups=8)
_conv("thnn_conv2d _slow_conv2d_forward slow_conv3d_forward slow_conv3d", 0, 1, 3, stride=4, padding=5)
_conv("slow_conv_dilated2d slow_conv_dilated3d", 0, 1, 3, stride=4, padding=5, dilation=6)
_conv("slow_conv_transpose2d slow_conv_transpose3d", 0, 1, 3, stride=4, padding=5, output_padding=6, dilation=7)
ops(
    "_conv_depthwise2d conv_depthwise3d thnn_conv_depthwise2d_forward", _C, "convolution", 0, 1, 3,
    stride=at(4), padding=at(5, 0), dilation=at(6, 1), groups=size_of(0, 1),
)  # fmt: skip
ops("convolution_backward", _C, "convolution_backward", 0, 1, 2, transposed=at(7), output_mask=at(10))
ops("convolution_backward_overrideable", _C, "convolution_backward", 0, 1, 2, transposed=at(6), output_mask=at(9))
# of releases that recorded no scalars
ops(
    "mkldnn_convolution_backward cudnn_convolution_backward miopen_convolution_backward",
    _C, "convolution_backward", 1, 0, 2,
)  # fmt: skip
ops("_slow_conv2d_backward", _C, "convolution_backward", 0, 1, 2, output_mask=at(6))
ops(
    "cudnn_convolution_backward_input miopen_convolution_backward_input", _C, "convolution_input_gradient", 1, 2,
    size=at(0),
)  # fmt: skip
ops(
    "cudnn_convolution_backward_weight miopen_convolution_backward_weight", _C, "convolution_weight_gradient", 1, 2,
    size=at(0),
)  # fmt: skip

# Attention. The operators of scaled_dot_product_attention align a causal mask at the top left; the flash kernels, which
# PyTorch calls only with T = S then, at the bottom right.

_A = OpClass.ATTENTION


def _mask_type(position: int) -> dict[str, Param]:
    """`causal` and `mask` from the efficient kernels' number: 0 none, 1 from the top left, 2 from the bottom right."""
    return {
        "causal": lambda a: None if (kind := a.value(position, 0)) is None else kind != 0,
        "mask": lambda a: "top_left" if a.value(position, 0) == 1 else "bottom_right",
    }


def _window(position: int) -> dict[str, Param]:
    """Earlier and later keys that a query sees, at two positions; None or negative = no limit."""
    return {"window": at(position), "window_right": at(position + 1)}


def _attention(names: str, layout: str, *tensors: int, **params: Any) -> None:
    ops(names, _A, "attention", *tensors, layout=layout, **params)


def _attention_backward(names: str, layout: str, *tensors: int, **params: Any) -> None:
    ops(names, _A, "attention_backward", *tensors, layout=layout, **params)


_HEADS_FIRST, _TOKENS_FIRST = "BNTH", "BTNH"
_TOP_LEFT: dict[str, Any] = {"mask": "top_left"}

_attention("_scaled_dot_product_flash_attention", _HEADS_FIRST, 0, 1, 2, causal=at(4, False))
_attention("_scaled_dot_product_flash_attention_for_cpu", _HEADS_FIRST, 0, 1, 2, causal=at(4, False), **_TOP_LEFT)
_attention("_scaled_dot_product_efficient_attention", _HEADS_FIRST, 0, 1, 2, 3, causal=at(6, False), **_TOP_LEFT)
_attention("_scaled_dot_product_cudnn_attention", _HEADS_FIRST, 0, 1, 2, 3, causal=at(6, False), **_TOP_LEFT)
_attention(
    "_scaled_dot_product_fused_attention_overrideable", _HEADS_FIRST, 0, 1, 2, 3, causal=at(5, False), **_TOP_LEFT
)
_attention(
    "_flash_attention_forward", _TOKENS_FIRST, 0, 1, 2,
    causal=at(8, False), varlen=present(3), **packed_batch(3, 5), **_window(11),
    contexts_unknown=lambda a: any(a.tensor(i) is not None for i in (13, 15)),
)  # fmt: skip
_attention(
    "_efficient_attention_forward", _TOKENS_FIRST, 0, 1, 2, 3,
    varlen=present(4), **packed_batch(4, 6), **_mask_type(9),
    window=lambda a: a.value(13) - 1 if isinstance(a.value(13), int) else None,
)  # fmt: skip
_attention(
    "_cudnn_attention_forward", _HEADS_FIRST, 0, 1, 2, 3, causal=at(10, False), varlen=present(4), **_TOP_LEFT
)  # fmt: skip

_attention_backward(
    "_scaled_dot_product_flash_attention_backward", _HEADS_FIRST, 1, 2, 3, 0, 4, 5,
    causal=at(11, False), varlen=present(6),
)  # fmt: skip
_attention_backward(
    "_scaled_dot_product_flash_attention_for_cpu_backward", _HEADS_FIRST, 1, 2, 3, 0, 4, 5,
    causal=at(7, False), **_TOP_LEFT,
)  # fmt: skip
_attention_backward(
    "_scaled_dot_product_efficient_attention_backward", _HEADS_FIRST, 1, 2, 3, 0, 5, 6, 4,
    causal=at(11, False), **_TOP_LEFT,
)  # fmt: skip
_attention_backward(
    "_scaled_dot_product_cudnn_attention_backward _cudnn_attention_backward", _HEADS_FIRST, 1, 2, 3, 0, 4, 5, 8,
    causal=at(14, False), varlen=present(9), **_TOP_LEFT,
)  # fmt: skip
_attention_backward(
    "_scaled_dot_product_fused_attention_overrideable_backward", _HEADS_FIRST, 1, 2, 3, 0, 6, 7, 4,
    causal=at(13, False), varlen=present(8), **_TOP_LEFT,
)  # fmt: skip
_attention_backward(
    "_flash_attention_backward", _TOKENS_FIRST, 1, 2, 3, 0, 4, 5,
    causal=at(11, False), varlen=present(6), **packed_batch(6, 8), **_window(15),
)  # fmt: skip
_attention_backward(
    "_efficient_attention_backward", _TOKENS_FIRST, 1, 2, 3, 0, 5, 10, 4, varlen=present(6), **_mask_type(14)
)
# Normalisations and softmax

_N = OpClass.NORMALIZATION
ops("native_layer_norm", _N, "layer_norm", 0, 2, 3, normalized=product_at(1))
ops("_fused_rms_norm", _N, "rms_norm", 0, 2, normalized=product_at(1))
ops("native_layer_norm_backward", _N, "layer_norm_backward", 0, 1, 5, 3, 4, output_mask=at(7))
ops("_fused_rms_norm_backward", _N, "rms_norm_backward", 0, 1, 4, 3, output_mask=at(5))
ops(
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit",
    _N, "batch_norm", 0, 1, 2, 3, 4, training=at(5, True),
)  # fmt: skip
ops("_batch_norm_with_update", _N, "batch_norm", 0, 1, 2, 3, 4, training=True)
ops("_native_batch_norm_legit_no_training _batch_norm_no_update", _N, "batch_norm", 0, 1, 2, 3, 4, training=False)
ops(
    "native_batch_norm_backward batch_norm_backward", _N, "batch_norm_backward", 0, 1, 2, 5, 6,
    output_mask=at(9), channels=size_of(1, 1),
)  # fmt: skip
ops(
    "cudnn_batch_norm_backward miopen_batch_norm_backward", _N, "batch_norm_backward", 1, 0, 2, 5, 6,
    output_mask=(True, True, True), channels=size_of(0, 1),
)  # fmt: skip
ops("native_group_norm", _N, "group_norm", 0, 1, 2, groups=at(6))
ops("native_group_norm_backward", _N, "group_norm_backward", 0, 1, 4, 2, 3, output_mask=at(9), channels=size_of(1, 1))
ops(
    "batch_norm_stats", _N, "reduction", 0,
    dims=lambda a: [i for i in range(a.rank(0)) if i != 1], flops_per_element=3,
)  # fmt: skip
ops("batch_norm_gather_stats batch_norm_gather_stats_with_counts", _N, "elementwise", 1, 2, flops_per_element=6)
ops("batch_norm_backward_elemt", _N, "elementwise", 0, 1, flops_per_element=6, out_dtype=dtype_of(1))
ops("_weight_norm_interface", _N, "elementwise", 0, flops_per_element=3)
ops("batch_norm_elemt", _N, "elementwise", 0, flops_per_element=2)

ops(
    "_softmax _log_softmax _safe_softmax", OpClass.SOFTMAX, "softmax", 0,
    out_dtype=lambda a: "fp32" if a.value(2) is True else None,
)  # fmt: skip
ops("_masked_softmax", OpClass.SOFTMAX, "softmax", 0, 1)
ops(
    "_softmax_backward_data _log_softmax_backward_data", OpClass.SOFTMAX, "softmax_backward", 0, 1,
    out_dtype=dtype_at(3, dtype_of(0)),
)  # fmt: skip

# Elementwise

_E = OpClass.ELEMENTWISE


def _condition(args: Args) -> Operand:
    """The condition of `where`; some releases put other operators' leftovers before it."""
    operand = args.tensor(0)
    if not isinstance(operand, Tensor) or operand.dtype not in {"bool", "uint8"}:
        raise BadShape("where: the first argument is no condition")
    return operand


def _unary(names: str, **params: Any) -> None:
    ops(names, _E, "elementwise", 0, **params)


def _binary(names: str, **params: Any) -> None:
    ops(names, _E, "elementwise", 0, 1, **params)


def _scaled_first(position: int) -> Param:
    """1 FLOP, or 2 where the other operand is multiplied by a number other than 1 first."""
    return lambda a: 1 if a.value(position, 1) in {1, None} else 2


_FLOAT = {"out_dtype": lambda a: a.float_result(0)}
_NUMBER = {"out_dtype": lambda a: a.number_result(0, 1)}
_binary("add sub rsub", flops_per_element=_scaled_first(2), **_NUMBER)
_binary(
    "mul maximum minimum fmax fmin fmod remainder floor_divide bitwise_and bitwise_or bitwise_xor copysign gcd lcm "
    "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ heaviside pow nextafter prelu _prelu_kernel",
    **_NUMBER,
)
_binary("div true_divide", out_dtype=lambda a: None if a.value(2) else a.float_result(0))
_binary("atan2 hypot xlogy logaddexp logaddexp2", **_FLOAT)
_binary("eq ne lt le gt ge logical_and logical_or logical_xor isclose", out_dtype="bool")
_unary("logical_not isnan isinf isfinite isposinf isneginf signbit", out_dtype="bool")
_unary(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sqrt rsqrt "
    "reciprocal erf erfc erfinv sigmoid digamma lgamma sinc logit i0 special_i0 special_log_ndtr special_ndtri",
    **_FLOAT,
)
_unary(
    "neg abs relu relu6 leaky_relu elu selu celu gelu silu mish softplus softshrink hardshrink hardtanh hardsigmoid "
    "hardswish threshold log_sigmoid_forward floor ceil round trunc frac sign sgn square bitwise_not nan_to_num "
    "positive conj_physical deg2rad rad2deg angle tril triu"
)
_binary("clamp_min clamp_max")
ops("clamp", _E, "elementwise", 0, 1, 2, flops_per_element=2)
ops("where", _E, "elementwise", _condition, 1, 2, out_dtype=lambda a: a.promoted(1, 2))
_binary("masked_fill", out_dtype=dtype_of(0))
ops("addcmul addcdiv lerp", _E, "elementwise", 0, 1, 2, flops_per_element=3)
ops("polar complex", _E, "elementwise", 0, 1, out_dtype="complex64")
_binary("gelu_backward", flops_per_element=10)
_binary("silu_backward mish_backward", flops_per_element=6)
_binary(
    "threshold_backward hardtanh_backward leaky_relu_backward hardswish_backward hardsigmoid_backward "
    "softshrink_backward hardshrink_backward"
)
_binary("sigmoid_backward tanh_backward softplus_backward logit_backward", flops_per_element=3)
ops("elu_backward", _E, "elementwise", 0, 5, flops_per_element=3)
ops("log_sigmoid_backward", _E, "elementwise", 0, 1, 2, flops_per_element=4)
_binary("mse_loss smooth_l1_loss huber_loss", flops_per_element=2)
ops("mse_loss_backward smooth_l1_loss_backward huber_loss_backward", _E, "elementwise", 0, 1, 2, flops_per_element=3)
ops("binary_cross_entropy", _E, "elementwise", 0, 1, 2, flops_per_element=5)
ops("binary_cross_entropy_backward", _E, "elementwise", 0, 1, 2, 3, flops_per_element=6)
_binary("native_dropout_backward _masked_scale", flops_per_element=2, out_dtype=dtype_of(0))
ops("glu", _E, "gated_activation", 0)
ops("glu_backward", _E, "gated_activation_backward", 0, 1)

ENTRIES |= {
    f"_foreach_{name}": Entry(
        op_class=e.op_class, kind="foreach_elementwise", tensors=(list_at(0), *e.tensors[1:]), params=e.params
    )
    for name, e in ENTRIES.items()
    if e.kind == "elementwise" and e.op_class is _E
}
ops("_amp_foreach_non_finite_check_and_unscale", _E, "foreach_elementwise", list_at(0))

# Random numbers

ops("normal_ uniform_ random_ bernoulli_ exponential_ log_normal_ cauchy_ geometric_", OpClass.RANDOM, "random_fill", 0)
ops("native_dropout _fused_dropout", OpClass.RANDOM, "elementwise", 0, mask=True)
ops("bernoulli", OpClass.RANDOM, "elementwise", 0)

# Reductions

_R = OpClass.REDUCTION
ops(
    "sum nansum mean prod", _R, "reduction", 0, dims=dims_at(1, 3),
    out_dtype=lambda a: dtype_at(3 if a.count > 2 else 1)(a) or a.sum_result(0),
)  # fmt: skip
ops("amax amin", _R, "reduction", 0, dims=dims_at(1))
ops("max min", _R, "extreme", 0, 1, dims=dims_at(1), index=lambda a: a.count > 1)
ops("median nanmedian mode", _R, "reduction", 0, dims=dims_at(1), index=lambda a: a.count > 1)
ops("all any", _R, "reduction", 0, dims=dims_at(1), out_dtype="bool")
ops("argmax argmin count_nonzero", _R, "reduction", 0, dims=dims_at(1), out_dtype="int64")
ops("var std", _R, "reduction", 0, dims=dims_at(1, 3), flops_per_element=3)
ops("var_mean std_mean", _R, "reduction", 0, dims=dims_at(1, 3), flops_per_element=3, outputs=2)
ops("norm", _R, "reduction", 0, dims=dims_at(2), flops_per_element=2)
ops("linalg_vector_norm", _R, "reduction", 0, dims=dims_at(2), flops_per_element=2)
ops("logsumexp", _R, "reduction", 0, dims=dims_at(1), flops_per_element=3)
ops("_foreach_norm", _R, "foreach_reduction", list_at(0), flops_per_element=2)
ops("_foreach_max", _R, "foreach_reduction", list_at(0))
ops("aminmax", _R, "reduction", 0, dims=dims_at(1), outputs=2)
ops("cummax cummin", _R, "elementwise", 0)
ops("histc", _R, "histogram", 0, bins=at(1, 100))
ops("batch_norm_backward_reduce", _R, "elementwise_sums", 0, 1, flops_per_element=4)
ops("cumsum cumprod logcumsumexp", _R, "elementwise", 0, out_dtype=lambda a: dtype_at(2)(a) or a.sum_result(0))
ops("nll_loss_forward nll_loss2d_forward", _R, "nll_loss", 0, 1)
ops("nll_loss_backward nll_loss2d_backward", _R, "nll_loss_backward", 0, 1, 2)
for _d in (2, 3):
    ops(
        f"max_pool{_d}d_with_indices", _R, "pooling", 0, dims=_d, index=True,
        kernel=at(1), stride=at(2), padding=at(3), dilation=at(4), ceil_mode=at(5),
    )  # fmt: skip
    ops(
        f"avg_pool{_d}d", _R, "pooling", 0, dims=_d, kernel=at(1), stride=at(2), padding=at(3), ceil_mode=at(4)
    )  # fmt: skip
    ops(f"_adaptive_avg_pool{_d}d", _R, "pooling", 0, dims=_d, out_size=at(1))
    ops(f"adaptive_max_pool{_d}d", _R, "pooling", 0, dims=_d, out_size=at(1), index=True)
    ops(f"max_pool{_d}d_with_indices_backward", _R, "pooling_backward", 0, 1, 7)
    ops(f"avg_pool{_d}d_backward _adaptive_avg_pool{_d}d_backward", _R, "pooling_backward", 0, 1)

# Embeddings, gathers, sorting

_G = OpClass.EMBEDDING
ops("embedding", _G, "embedding", 0, 1)
ops("embedding_dense_backward", _G, "embedding_backward", 0, 1, rows=at(2))
ops("_embedding_bag _embedding_bag_forward_only", _G, "embedding_bag", 0, 1, 2)
ops("index_select", _G, "index_select", 0, 2, dim=at(1))
ops("gather", _G, "gather", 0, 2)
ops("take", _G, "gather", 0, 1)
ops("index_add scatter_add scatter_reduce", _G, "scatter", 3, 2, adds=True)
ops("index_copy", _G, "scatter", 3, 2)
ops("index_put_ _index_put_impl_", _G, "put", 2, 0, adds=at(3))
ops("scatter", _G, "scatter", 3, 2, dtype=dtype_of(0))
ops("index_fill masked_scatter_backward", _G, "fill", 0)
ops("searchsorted", _G, "search", 1, 0, out_dtype="int64")
ops("bucketize", _G, "search", 0, 1, out_dtype="int64")
ops("msort kthvalue", OpClass.SORT, "sort", 0, dim=-1)
ops("topk", OpClass.SORT, "sort", 0, results=at(1), dim=at(2, -1))
ops(
    "sort argsort", OpClass.SORT, "sort", 0,
    dim=lambda a: next((v for i in (1, 2) if type(v := a.value(i)) is int), -1) if a.has_values else None,
)  # fmt: skip

# Moving data by kernels

_D = OpClass.DATA_MOVEMENT
ops("copy_", _D, "copy", 0, 1)
ops("_foreach_copy_", _D, "copy", list_at(0), list_at(1))
ops("_foreach_clone", _D, "rewrite", list_at(0))
ops("cat _cat stack _chunk_cat", _D, "rewrite", list_at(0))
ops(
    "clone contiguous flip roll rot90 permute_copy transpose_copy view_copy channel_shuffle pixel_shuffle "
    "pixel_unshuffle split_with_sizes_copy",
    _D, "rewrite", 0,
)  # fmt: skip
ops("fill fill_ zero zero_", _D, "fill", 0)
ops("_foreach_zero_", _D, "fill", list_at(0))
ops("upsample_nearest1d upsample_nearest2d upsample_nearest3d", _D, "resize", 0, out_size=at(1))
ops("_upsample_nearest_exact1d _upsample_nearest_exact2d", _D, "resize", 0, out_size=at(1))
ops("upsample_nearest1d_backward upsample_nearest2d_backward", _D, "resize_backward", 0, size=at(2))
ops("upsample_nearest3d_backward", _D, "resize_backward", 0, size=at(2))
ops(
    "upsample_linear1d_backward upsample_bilinear2d_backward", _D, "resize_backward", 0, size=at(2), flops_per_element=7
)
ops("upsample_linear1d upsample_bilinear2d", _D, "resize", 0, out_size=at(1), flops_per_element=7)
ops("upsample_bicubic2d", _D, "resize", 0, out_size=at(1), flops_per_element=35)

ops(
    "constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
    "replication_pad3d",
    _D, "pad", 0, margins=at(1),
)  # fmt: skip
ops(
    "reflection_pad1d_backward reflection_pad2d_backward replication_pad1d_backward replication_pad2d_backward",
    _D, "pad_backward", 0, 1,
)  # fmt: skip
ops("grid_sampler_2d grid_sampler_3d cudnn_grid_sampler", _D, "grid_sample", 0, 1)
ops("grid_sampler_2d_backward", _D, "grid_sample_backward", 0, 1, 2, output_mask=at(6))
ops("grid_sampler_3d_backward", _D, "grid_sample_backward", 0, 1, 2, output_mask=at(6))
ops("quantize_per_tensor", _E, "elementwise", 0, out_dtype="int8", flops_per_element=2)
ops("fake_quantize_per_tensor_affine_cachemask", _E, "elementwise", 0, mask=True, flops_per_element=4)

# Fourier transforms, factorisations, recurrent networks

_O = OpClass.OTHER
ops("_fft_c2c", _O, "fft", 0, to="complex", dims=at(1))
ops("_fft_r2c", _O, "fft", 0, to="half", dims=at(1))
ops("_fft_c2r", _O, "fft", 0, to="real", dims=at(1), size=at(3))
ops("linalg_cholesky_ex _cholesky", _O, "factorization", 0, thirds=1)
ops("linalg_lu_factor_ex", _O, "factorization", 0, thirds=2)
ops("linalg_inv_ex", _O, "factorization", 0, thirds=6)
ops("linalg_solve_triangular", _O, "triangular_solve", 0, 1)
ops("triangular_solve", _O, "triangular_solve", 1, 0)
ops("_cdist_forward", _O, "pairwise_distance", 0, 1)
_RECURRENT = {"mode": at(6), "hidden": at(7), "layers": at(9), "bidirectional": at(13)}
ops("_cudnn_rnn", _M, "recurrent", 0, 1, 4, 5, **_RECURRENT)

# Optimizers

ops(
    "_fused_adam_ _fused_adamw_",
    OpClass.OPTIMIZER,
    "fused_optimizer",
    list_at(0),
    list_at(1),
    2,
    3,
    4,
    flops_per_element=16,
)
ops("_fused_sgd_", OpClass.OPTIMIZER, "fused_optimizer", list_at(0), list_at(1), 2, flops_per_element=4)
ops("_fused_adagrad_", OpClass.OPTIMIZER, "fused_optimizer", list_at(0), list_at(1), 2, flops_per_element=6)

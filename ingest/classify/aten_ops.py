"""Which formula costs which PyTorch operator, and where its arguments are: a table, one line an operator or a family.

Positions are those of the operator's schema, as Kineto's `Input Dims` and `Concrete Inputs` count them. Operators
without a formula are in `aten_names`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tracegap.ingest.classify.aten_args import Args
from tracegap.ingest.classify.dtypes import of_scalar_type
from tracegap.models.errors import BadShape
from tracegap.models.formulas.sizes import Operand
from tracegap.models.ops import OpClass, Tensor

Param = Callable[[Args], Any]
"""Computes a formula's parameter from the arguments of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How to cost an operator."""

    op_class: OpClass
    kind: str
    """The formula, an `OpSpec.kind`."""
    tensors: tuple[int | Callable[[Args], Operand], ...]
    """Positions of the tensors that the formula takes, in its order."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """What the formula documents: a constant, or a `Param`."""


ENTRIES: dict[str, Entry] = {}
"""By operator name: without the namespace for `aten::`, with it for others; `add` also stands for `add_`."""


def _ops(names: str, op_class: OpClass, kind: str, *tensors: int | Callable[[Args], Operand], **params: Any) -> None:
    entry = Entry(op_class=op_class, kind=kind, tensors=tensors, params=params)
    for name in names.split():
        if name in ENTRIES:
            raise ValueError(f"two entries for {name}")
        ENTRIES[name] = entry


# Where a parameter comes from


def at(position: int, default: Any = None) -> Param:
    """The scalar argument at a position; None where the trace has no scalars, `default` where the call left it out."""
    return lambda args: args.value(position, default)


def dtype_at(position: int, default: Param | None = None) -> Param:
    """The dtype argument at a position; where the call left it out, what `default` says."""

    def param(args: Args) -> str | None:
        number = args.value(position, -1)
        if isinstance(number, int) and number >= 0:
            return of_scalar_type(number)
        return default(args) if default and number is not None else None

    return param


def dtype_of(position: int) -> Param:
    """The dtype of the tensor at a position."""

    def param(args: Args) -> str | None:
        operand = args.tensor(position)
        return operand.dtype if isinstance(operand, Tensor) else None

    return param


def present(position: int) -> Param:
    """Whether there is a tensor at a position."""
    return lambda args: args.tensor(position) is not None


def size_of(position: int, dim: int, times: int = 1) -> Param:
    """Extent of a dimension of the tensor at a position, times a number; None where there is none."""

    def param(args: Args) -> int | None:
        operand = args.tensor(position)
        return operand.shape[dim] * times if isinstance(operand, Tensor) and len(operand.shape) > dim else None

    return param


def list_at(position: int) -> Callable[[Args], Operand]:
    """The list of tensors at a position, without which the operator cannot be costed."""
    return lambda args: args.tensors(position)


def product_at(position: int) -> Param:
    """Product of a list of sizes; None where the trace has none."""
    return lambda args: prod(sizes) if isinstance(sizes := args.value(position), list) else None


def dims_at(position: int, least_arguments: int = 0) -> Param:
    """Reduced dimensions: a number, a list, None for all, "unknown". Overloads with fewer arguments reduce all."""

    def param(args: Args) -> Any:
        if args.count < max(least_arguments, position + 1):
            return None
        if not args.has_values:
            return "unknown"
        dims = args.value(position)
        return dims if isinstance(dims, int | list) and not isinstance(dims, bool) else None

    return param


# Matrix products

_M = OpClass.MATMUL
_ops("mm bmm mv dot vdot", _M, "matmul", 0, 1)
_ops("addmm baddbmm addmv _addmm_activation", _M, "matmul", 1, 2, lambda a: None if a.value(3, 1) == 0 else a.tensor(0))
_ops("_int_mm", _M, "matmul", 0, 1, out_dtype="int32")
_ops("linear mkldnn_linear vllm::rocm_unquantized_gemm", _M, "matmul", 0, 1, 2, transposed_b=True)


def _scales_first(args: Args) -> bool:
    """Whether `_scaled_mm` has its scales before its bias, as from PyTorch 2.5 on."""
    return args.tensor(3) is not None


def _scaled(new: int, old: int) -> Callable[[Args], Operand]:
    return lambda a: a.tensor(new if _scales_first(a) else old)


_ops(
    "_scaled_mm", _M, "matmul", 0, 1, _scaled(2, 4), _scaled(3, 5), _scaled(4, 2), _scaled(5, 6),
    out_dtype=lambda a: dtype_at(6 if _scales_first(a) else 3, dtype_of(0))(a),
)  # fmt: skip
# scales come as lists, of which the trace has no dtypes
_ops("_scaled_mm_v2", _M, "matmul", 0, 1, 8, out_dtype=dtype_at(9, dtype_of(0)), note="scales are not counted")
_ops(
    "_scaled_grouped_mm_v2", _M, "grouped_matmul", 0, 1, 8, 9,
    out_dtype=dtype_at(10, dtype_of(0)), note="scales are not counted",
)  # fmt: skip
_ops("_weight_int8pack_mm", _M, "weight_only_matmul", 0, 1, 2, out_features=size_of(1, 0))
# 32-bit words of 8 weights: [N / 8, K / (inner x 16), 32, inner / 2]
_ops("_weight_int4pack_mm", _M, "weight_only_matmul", 0, 1, 3, out_features=size_of(1, 0, times=8))
_ops("_weight_int4pack_mm_for_cpu", _M, "weight_only_matmul", 0, 1, 3, out_features=size_of(1, 0))
_ops("_grouped_mm", _M, "grouped_matmul", 0, 1, 2, 3, out_dtype=dtype_at(4, dtype_of(0)))
_ops("_scaled_grouped_mm", _M, "grouped_matmul", 0, 1, 4, 2, 3, 5, out_dtype=dtype_at(7, dtype_of(0)))

# Convolutions

_C = OpClass.CONVOLUTION
_DEFAULTS = {"stride": None, "padding": 0, "dilation": 1, "output_padding": 0, "groups": 1, "transposed": False}


def _conv(names: str, *tensors: int, **positions: int) -> None:
    """A convolution whose settings are at these positions."""
    params: dict[str, Any] = {key: at(position, _DEFAULTS[key]) for key, position in positions.items()}
    if "transpose" in names:
        params["transposed"] = True
    _ops(names, _C, "convolution", *tensors, **params)


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
_ops(
    "_conv_depthwise2d conv_depthwise3d thnn_conv_depthwise2d_forward", _C, "convolution", 0, 1, 3,
    stride=at(4), padding=at(5, 0), dilation=at(6, 1), groups=size_of(0, 1),
)  # fmt: skip
_ops("convolution_backward", _C, "convolution_backward", 0, 1, 2, transposed=at(7), output_mask=at(10))
_ops("convolution_backward_overrideable", _C, "convolution_backward", 0, 1, 2, transposed=at(6), output_mask=at(9))
# of releases that recorded no scalars
_ops(
    "mkldnn_convolution_backward cudnn_convolution_backward miopen_convolution_backward",
    _C, "convolution_backward", 1, 0, 2,
)  # fmt: skip
_ops("_slow_conv2d_backward", _C, "convolution_backward", 0, 1, 2, output_mask=at(6))
_ops(
    "cudnn_convolution_backward_input miopen_convolution_backward_input", _C, "convolution_input_gradient", 1, 2,
    size=at(0),
)  # fmt: skip
_ops(
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
    _ops(names, _A, "attention", *tensors, layout=layout, **params)


def _attention_backward(names: str, layout: str, *tensors: int, **params: Any) -> None:
    _ops(names, _A, "attention_backward", *tensors, layout=layout, **params)


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
    "_flash_attention_forward", _TOKENS_FIRST, 0, 1, 2, causal=at(8, False), varlen=present(3), **_window(11)
)  # fmt: skip
_attention("_efficient_attention_forward", _TOKENS_FIRST, 0, 1, 2, 3, varlen=present(4), **_mask_type(9))
_attention(
    "_cudnn_attention_forward", _HEADS_FIRST, 0, 1, 2, 3, causal=at(10, False), varlen=present(4), **_TOP_LEFT
)  # fmt: skip
_attention("flash_attn::_flash_attn_forward", _TOKENS_FIRST, 0, 1, 2, causal=at(5, False), **_window(6))
_attention("flash_attn::_flash_attn_varlen_forward", _TOKENS_FIRST, 0, 1, 2, causal=at(9, False), varlen=True)

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
    causal=at(11, False), varlen=present(6), **_window(15),
)  # fmt: skip
_attention_backward(
    "_efficient_attention_backward", _TOKENS_FIRST, 1, 2, 3, 0, 5, 10, 4, varlen=present(6), **_mask_type(14)
)
_attention_backward(
    "flash_attn::_flash_attn_backward", _TOKENS_FIRST, 1, 2, 3, 0, 4, 5, causal=at(11, False), **_window(12)
)
_attention_backward(
    "flash_attn::_flash_attn_varlen_backward", _TOKENS_FIRST, 1, 2, 3, 0, 4, 5, causal=at(15, False), varlen=True
)

# Normalisations and softmax

_N = OpClass.NORMALIZATION
_ops("native_layer_norm", _N, "layer_norm", 0, 2, 3, normalized=product_at(1))
_ops("_fused_rms_norm", _N, "rms_norm", 0, 2, normalized=product_at(1))
_ops("native_layer_norm_backward", _N, "layer_norm_backward", 0, 1, 5, 3, 4, output_mask=at(7))
_ops("_fused_rms_norm_backward", _N, "rms_norm_backward", 0, 1, 4, 3, output_mask=at(5))
_ops(
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit",
    _N, "batch_norm", 0, 1, 2, 3, 4, training=at(5, True),
)  # fmt: skip
_ops("_batch_norm_with_update", _N, "batch_norm", 0, 1, 2, 3, 4, training=True)
_ops("_native_batch_norm_legit_no_training _batch_norm_no_update", _N, "batch_norm", 0, 1, 2, 3, 4, training=False)
_ops(
    "native_batch_norm_backward batch_norm_backward", _N, "batch_norm_backward", 0, 1, 2, 5, 6,
    output_mask=at(9), channels=size_of(1, 1),
)  # fmt: skip
_ops(
    "cudnn_batch_norm_backward miopen_batch_norm_backward", _N, "batch_norm_backward", 1, 0, 2, 5, 6,
    output_mask=(True, True, True), channels=size_of(0, 1),
)  # fmt: skip
_ops("native_group_norm", _N, "group_norm", 0, 1, 2, groups=at(6))
_ops("native_group_norm_backward", _N, "group_norm_backward", 0, 1, 4, 2, 3, output_mask=at(9), channels=size_of(1, 1))
_ops("aiter::_groupnorm_run", _N, "group_norm", 0, 2, 3, groups=at(1))
_ops(
    "batch_norm_stats", _N, "reduction", 0,
    dims=lambda a: [i for i in range(a.rank(0)) if i != 1], flops_per_element=3,
)  # fmt: skip
_ops("batch_norm_elemt", _N, "elementwise", 0, flops_per_element=2)
_ops("_C::rms_norm", _N, "rms_norm", 1, 2, statistics=0)

_ops(
    "_softmax _log_softmax _safe_softmax", OpClass.SOFTMAX, "softmax", 0,
    out_dtype=lambda a: "fp32" if a.value(2) is True else None,
)  # fmt: skip
_ops("_masked_softmax", OpClass.SOFTMAX, "softmax", 0, 1)
_ops(
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
    _ops(names, _E, "elementwise", 0, **params)


def _binary(names: str, **params: Any) -> None:
    _ops(names, _E, "elementwise", 0, 1, **params)


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
_ops("clamp", _E, "elementwise", 0, 1, 2, flops_per_element=2)
_ops("where", _E, "elementwise", _condition, 1, 2, out_dtype=lambda a: a.promoted(1, 2))
_binary("masked_fill", out_dtype=dtype_of(0))
_ops("addcmul addcdiv lerp", _E, "elementwise", 0, 1, 2, flops_per_element=3)
_ops("polar complex", _E, "elementwise", 0, 1, out_dtype="complex64")
_binary("gelu_backward", flops_per_element=10)
_binary("silu_backward mish_backward", flops_per_element=6)
_binary(
    "threshold_backward hardtanh_backward leaky_relu_backward hardswish_backward hardsigmoid_backward "
    "softshrink_backward hardshrink_backward"
)
_binary("sigmoid_backward tanh_backward softplus_backward logit_backward", flops_per_element=3)
_ops("elu_backward", _E, "elementwise", 0, 5, flops_per_element=3)
_ops("log_sigmoid_backward", _E, "elementwise", 0, 1, 2, flops_per_element=4)
_binary("mse_loss smooth_l1_loss huber_loss", flops_per_element=2)
_ops("mse_loss_backward smooth_l1_loss_backward huber_loss_backward", _E, "elementwise", 0, 1, 2, flops_per_element=3)
_ops("binary_cross_entropy", _E, "elementwise", 0, 1, 2, flops_per_element=5)
_ops("binary_cross_entropy_backward", _E, "elementwise", 0, 1, 2, 3, flops_per_element=6)
_binary("native_dropout_backward _masked_scale", flops_per_element=2, out_dtype=dtype_of(0))
_ops("glu", _E, "gated_activation", 0)
_ops("glu_backward", _E, "gated_activation_backward", 0, 1)
_ops("_C::silu_and_mul _C::gelu_and_mul _C::gelu_tanh_and_mul", _E, "gated_activation", 1)
_ops("_C::rotary_embedding", _E, "rotary_embedding", lambda a: a.pack(1, 2), 0, 4)

ENTRIES |= {
    f"_foreach_{name}": Entry(
        op_class=e.op_class, kind="foreach_elementwise", tensors=(list_at(0), *e.tensors[1:]), params=e.params
    )
    for name, e in ENTRIES.items()
    if e.kind == "elementwise" and e.op_class is _E
}
_ops("_amp_foreach_non_finite_check_and_unscale", _E, "foreach_elementwise", list_at(0))

# Random numbers

_ops(
    "normal_ uniform_ random_ bernoulli_ exponential_ log_normal_ cauchy_ geometric_", OpClass.RANDOM, "random_fill", 0
)
_ops("native_dropout _fused_dropout", OpClass.RANDOM, "elementwise", 0, mask=True)
_ops("bernoulli", OpClass.RANDOM, "elementwise", 0)

# Reductions

_R = OpClass.REDUCTION
_ops(
    "sum nansum mean prod", _R, "reduction", 0, dims=dims_at(1, 3),
    out_dtype=lambda a: dtype_at(3 if a.count > 2 else 1)(a) or a.sum_result(0),
)  # fmt: skip
_ops("amax amin", _R, "reduction", 0, dims=dims_at(1))
_ops("max min", _R, "extreme", 0, 1, dims=dims_at(1), index=lambda a: a.count > 1)
_ops("median nanmedian mode", _R, "reduction", 0, dims=dims_at(1), index=lambda a: a.count > 1)
_ops("all any", _R, "reduction", 0, dims=dims_at(1), out_dtype="bool")
_ops("argmax argmin count_nonzero", _R, "reduction", 0, dims=dims_at(1), out_dtype="int64")
_ops("var std", _R, "reduction", 0, dims=dims_at(1, 3), flops_per_element=3)
_ops("var_mean std_mean", _R, "reduction", 0, dims=dims_at(1, 3), flops_per_element=3, outputs=2)
_ops("norm", _R, "reduction", 0, dims=dims_at(2), flops_per_element=2)
_ops("linalg_vector_norm", _R, "reduction", 0, dims=dims_at(2), flops_per_element=2)
_ops("logsumexp", _R, "reduction", 0, dims=dims_at(1), flops_per_element=3)
_ops("_foreach_norm", _R, "foreach_reduction", list_at(0), flops_per_element=2)
_ops("_foreach_max", _R, "foreach_reduction", list_at(0))
_ops("cumsum cumprod logcumsumexp", _R, "elementwise", 0, out_dtype=lambda a: dtype_at(2)(a) or a.sum_result(0))
_ops("nll_loss_forward nll_loss2d_forward", _R, "nll_loss", 0, 1)
_ops("nll_loss_backward nll_loss2d_backward", _R, "nll_loss_backward", 0, 1, 2)
for _d in (2, 3):
    _ops(
        f"max_pool{_d}d_with_indices", _R, "pooling", 0, dims=_d, index=True,
        kernel=at(1), stride=at(2), padding=at(3), dilation=at(4), ceil_mode=at(5),
    )  # fmt: skip
    _ops(
        f"avg_pool{_d}d", _R, "pooling", 0, dims=_d, kernel=at(1), stride=at(2), padding=at(3), ceil_mode=at(4)
    )  # fmt: skip
    _ops(f"_adaptive_avg_pool{_d}d", _R, "pooling", 0, dims=_d, out_size=at(1))
    _ops(f"adaptive_max_pool{_d}d", _R, "pooling", 0, dims=_d, out_size=at(1), index=True)
    _ops(f"max_pool{_d}d_with_indices_backward", _R, "pooling_backward", 0, 1, 7)
    _ops(f"avg_pool{_d}d_backward _adaptive_avg_pool{_d}d_backward", _R, "pooling_backward", 0, 1)

# Embeddings, gathers, sorting

_G = OpClass.EMBEDDING
_ops("embedding", _G, "embedding", 0, 1)
_ops("embedding_dense_backward", _G, "embedding_backward", 0, 1, rows=at(2))
_ops("_embedding_bag _embedding_bag_forward_only", _G, "embedding_bag", 0, 1, 2)
_ops("index_select", _G, "index_select", 0, 2, dim=at(1))
_ops("gather", _G, "gather", 0, 2)
_ops("take", _G, "gather", 0, 1)
_ops("index_add scatter_add scatter_reduce", _G, "scatter", 3, 2, adds=True)
_ops("index_copy", _G, "scatter", 3, 2)
_ops("scatter", _G, "scatter", 3, 2, dtype=dtype_of(0))
_ops("topk", OpClass.SORT, "sort", 0, results=at(1), dim=at(2, -1))
_ops(
    "sort argsort", OpClass.SORT, "sort", 0,
    dim=lambda a: next((v for i in (1, 2) if type(v := a.value(i)) is int), -1) if a.has_values else None,
)  # fmt: skip

# Moving data by kernels

_D = OpClass.DATA_MOVEMENT
_ops("copy_", _D, "copy", 0, 1)
_ops("_foreach_copy_", _D, "copy", list_at(0), list_at(1))
_ops("_foreach_clone", _D, "rewrite", list_at(0))
_ops("cat _cat stack _chunk_cat fsdp::chunk_cat fsdp::all_gather_copy_in", _D, "rewrite", list_at(0))
_ops(
    "clone contiguous flip roll rot90 permute_copy transpose_copy view_copy channel_shuffle pixel_shuffle "
    "pixel_unshuffle split_with_sizes_copy fsdp::split_with_sizes_copy",
    _D, "rewrite", 0,
)  # fmt: skip
_ops("fill fill_ zero zero_", _D, "fill", 0)
_ops("_foreach_zero_", _D, "fill", list_at(0))
_ops("upsample_nearest1d upsample_nearest2d upsample_nearest3d", _D, "resize", 0, out_size=at(1))
_ops("_upsample_nearest_exact1d _upsample_nearest_exact2d", _D, "resize", 0, out_size=at(1))
_ops("upsample_nearest1d_backward upsample_nearest2d_backward", _D, "resize_backward", 0, size=at(2))
_ops("upsample_nearest3d_backward", _D, "resize_backward", 0, size=at(2))
_ops(
    "upsample_linear1d_backward upsample_bilinear2d_backward", _D, "resize_backward", 0, size=at(2), flops_per_element=7
)
_ops("upsample_linear1d upsample_bilinear2d", _D, "resize", 0, out_size=at(1), flops_per_element=7)
_ops("upsample_bicubic2d", _D, "resize", 0, out_size=at(1), flops_per_element=35)

# Optimizers

_ops(
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
_ops("_fused_sgd_", OpClass.OPTIMIZER, "fused_optimizer", list_at(0), list_at(1), 2, flops_per_element=4)
_ops("_fused_adagrad_", OpClass.OPTIMIZER, "fused_optimizer", list_at(0), list_at(1), 2, flops_per_element=6)

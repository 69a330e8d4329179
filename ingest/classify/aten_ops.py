"""Which formula costs which PyTorch operator, and where its arguments are: a table, one line an operator or a family.

Positions are those of the operator's schema, as Kineto's `Input Dims` and `Concrete Inputs` count them. An operator that
only calls others, or only makes a view, is listed as such and has no formula.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tracegap.ingest.classify.aten_args import Args
from tracegap.ingest.classify.dtypes import of_scalar_type
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
    """Extent of a dimension of the tensor at a position, times a number."""

    def param(args: Args) -> int | None:
        operand = args.tensor(position)
        return operand.shape[dim] * times if isinstance(operand, Tensor) and operand.shape else None

    return param


# --- matrix products ---------------------------------------------------------------------------------------------------

M = OpClass.MATMUL
_ops("mm bmm mv dot vdot", M, "matmul", 0, 1)
_ops(
    "addmm baddbmm addmv addbmm _addmm_activation",
    M,
    "matmul",
    1,
    2,
    lambda a: None if a.value(3, 1) == 0 else a.tensor(0),
)
_ops("_int_mm", M, "matmul", 0, 1, out_dtype="int32")
_ops("linear mkldnn_linear", M, "matmul", 0, 1, 2, transposed_b=True)


def _scaled(new: int, old: int) -> Callable[[Args], Operand]:
    """An operand of `_scaled_mm`, whose scales moved from behind the bias to before it in PyTorch 2.5."""
    return lambda a: a.tensor(new if a.tensor(3) is not None else old)


_ops(
    "_scaled_mm", M, "matmul", 0, 1, _scaled(2, 4), _scaled(3, 5), _scaled(4, 2), _scaled(5, 6),
    out_dtype=lambda a: dtype_at(6 if a.tensor(3) is not None else 3, dtype_of(0))(a),
)  # fmt: skip
_ops("_weight_int8pack_mm", M, "weight_only_matmul", 0, 1, 2, out_features=size_of(1, 0))
_ops("_weight_int4pack_mm", M, "weight_only_matmul", 0, 1, 3, out_features=size_of(1, 0, 8))
_ops("_weight_int4pack_mm_for_cpu", M, "weight_only_matmul", 0, 1, 3, out_features=size_of(1, 0))
_ops("_grouped_mm", M, "grouped_matmul", 0, 1, 2, 3, out_dtype=dtype_at(4, dtype_of(0)))
_ops("_scaled_grouped_mm", M, "grouped_matmul", 0, 1, 4, 2, 3, 5, out_dtype=dtype_at(7, dtype_of(0)))

# --- convolutions ------------------------------------------------------------------------------------------------------

C = OpClass.CONVOLUTION


def _conv(names: str, *tensors: int, stride: int, padding: int, **positions: int) -> None:
    transposed = positions.pop("transposed", None)
    _ops(
        names, C, "convolution", *tensors,
        stride=at(stride), padding=at(padding, 0), transposed=at(transposed, False) if transposed is not None else "transpose" in names,
        **{key: at(position, 1 if key != "output_padding" else 0) for key, position in positions.items()},
    )  # fmt: skip


_conv(
    "convolution _convolution convolution_overrideable",
    0,
    1,
    2,
    stride=3,
    padding=4,
    dilation=5,
    transposed=6,
    output_padding=7,
    groups=8,
)
_conv("cudnn_convolution", 0, 1, stride=3, padding=2, dilation=4, groups=5)
_conv(
    "miopen_convolution miopen_depthwise_convolution mkldnn_convolution",
    0,
    1,
    2,
    stride=4,
    padding=3,
    dilation=5,
    groups=6,
)
_conv("cudnn_convolution_transpose", 0, 1, stride=4, padding=2, output_padding=3, dilation=5, groups=6)
_conv("miopen_convolution_transpose", 0, 1, 2, stride=5, padding=3, output_padding=4, dilation=6, groups=7)
_conv("cudnn_convolution_relu miopen_convolution_relu", 0, 1, 2, stride=3, padding=4, dilation=5, groups=6)
_conv("cudnn_convolution_add_relu miopen_convolution_add_relu", 0, 1, 2, 4, stride=5, padding=6, dilation=7, groups=8)
_conv("thnn_conv2d _slow_conv2d_forward slow_conv3d_forward slow_conv3d", 0, 1, 3, stride=4, padding=5)
_conv("slow_conv_dilated2d slow_conv_dilated3d", 0, 1, 3, stride=4, padding=5, dilation=6)
_conv("slow_conv_transpose2d slow_conv_transpose3d", 0, 1, 3, stride=4, padding=5, output_padding=6, dilation=7)


def _depthwise_groups(args: Args) -> int | None:
    operand = args.tensor(0)
    return operand.shape[1] if isinstance(operand, Tensor) and len(operand.shape) > 1 else None


_ops(
    "_conv_depthwise2d conv_depthwise3d thnn_conv_depthwise2d_forward", C, "convolution", 0, 1, 3,
    stride=at(4), padding=at(5, 0), dilation=at(6, 1), groups=_depthwise_groups,
)  # fmt: skip
_ops(
    "convolution_backward convolution_backward_overrideable",
    C,
    "convolution_backward",
    0,
    1,
    2,
    transposed=at(7),
    output_mask=at(10),
)
_ops("mkldnn_convolution_backward", C, "convolution_backward", 1, 0, 2, output_mask=at(7))
_ops(
    "cudnn_convolution_backward",
    C,
    "convolution_backward",
    1,
    0,
    2,
    output_mask=lambda a: (*a.value(9), False) if a.value(9) else None,
)
_ops("miopen_convolution_backward", C, "convolution_backward", 1, 0, 2, output_mask=at(9))
_ops("_slow_conv2d_backward", C, "convolution_backward", 0, 1, 2, output_mask=at(6))
_ops(
    "cudnn_convolution_backward_input miopen_convolution_backward_input",
    C,
    "convolution_input_gradient",
    1,
    2,
    size=at(0),
)
_ops(
    "cudnn_convolution_backward_weight miopen_convolution_backward_weight",
    C,
    "convolution_weight_gradient",
    1,
    2,
    size=at(0),
)

# --- attention ---------------------------------------------------------------------------------------------------------

A = OpClass.ATTENTION
_HEADS_FIRST, _TOKENS_FIRST = {"layout": "BNTH"}, {"layout": "BTNH"}
# PyTorch's own fused operators take is_causal only where T = S, but for the efficient one, whose mask is top left


def _custom_mask(position: int, word: str) -> Param:
    """`causal` and `mask` of the efficient kernels: 0 none, 1 from the top left, 2 from the bottom right."""

    def param(args: Args) -> Any:
        kind = args.value(position, 0)
        if word == "causal":
            return None if kind is None else kind != 0
        return "top_left" if kind == 1 else "bottom_right"

    return param


def _window(position: int) -> Param:
    """Keys before its own that a query sees; None where there is no window."""
    return lambda args: w if isinstance(w := args.value(position, -1), int) and w >= 0 else None


_ops(
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu",
    A,
    "attention",
    0,
    1,
    2,
    causal=at(4, False),
    **_HEADS_FIRST,
)
_ops(
    "_scaled_dot_product_efficient_attention",
    A,
    "attention",
    0,
    1,
    2,
    3,
    causal=at(6, False),
    mask="top_left",
    **_HEADS_FIRST,
)
_ops(
    "_scaled_dot_product_cudnn_attention",
    A,
    "attention",
    0,
    1,
    2,
    3,
    causal=at(6, False),
    mask="top_left",
    **_HEADS_FIRST,
)
_ops(
    "_scaled_dot_product_fused_attention_overrideable",
    A,
    "attention",
    0,
    1,
    2,
    3,
    causal=at(5, False),
    mask="top_left",
    **_HEADS_FIRST,
)
_ops(
    "_flash_attention_forward",
    A,
    "attention",
    0,
    1,
    2,
    causal=at(8, False),
    varlen=present(3),
    window=_window(11),
    **_TOKENS_FIRST,
)
_ops(
    "_efficient_attention_forward", A, "attention", 0, 1, 2, 3,
    causal=_custom_mask(9, "causal"), mask=_custom_mask(9, "mask"), varlen=present(4), **_TOKENS_FIRST,
)  # fmt: skip
_ops(
    "_cudnn_attention_forward",
    A,
    "attention",
    0,
    1,
    2,
    3,
    causal=at(10, False),
    mask="top_left",
    varlen=present(4),
    **_HEADS_FIRST,
)
_ops(
    "flash_attn::_flash_attn_forward", A, "attention", 0, 1, 2, causal=at(5, False), window=_window(6), **_TOKENS_FIRST
)
_ops(
    "flash_attn::_flash_attn_varlen_forward", A, "attention", 0, 1, 2, causal=at(9, False), varlen=True, **_TOKENS_FIRST
)
_ops(
    "_scaled_dot_product_flash_attention_backward",
    A,
    "attention_backward",
    1,
    2,
    3,
    0,
    4,
    5,
    causal=at(11, False),
    varlen=present(6),
    **_HEADS_FIRST,
)
_ops(
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    A,
    "attention_backward",
    1,
    2,
    3,
    0,
    4,
    5,
    causal=at(7, False),
    **_HEADS_FIRST,
)
_ops(
    "_scaled_dot_product_efficient_attention_backward",
    A,
    "attention_backward",
    1,
    2,
    3,
    0,
    5,
    6,
    4,
    causal=at(11, False),
    mask="top_left",
    **_HEADS_FIRST,
)
_ops(
    "_scaled_dot_product_cudnn_attention_backward _cudnn_attention_backward", A, "attention_backward", 1, 2, 3, 0, 4, 5, 8,
    causal=at(14, False), mask="top_left", varlen=present(9), **_HEADS_FIRST,
)  # fmt: skip
_ops(
    "_scaled_dot_product_fused_attention_overrideable_backward", A, "attention_backward", 1, 2, 3, 0, 6, 7, 4,
    causal=at(13, False), mask="top_left", varlen=present(8), **_HEADS_FIRST,
)  # fmt: skip
_ops(
    "_flash_attention_backward",
    A,
    "attention_backward",
    1,
    2,
    3,
    0,
    4,
    5,
    causal=at(11, False),
    varlen=present(6),
    window=_window(15),
    **_TOKENS_FIRST,
)
_ops(
    "_efficient_attention_backward", A, "attention_backward", 1, 2, 3, 0, 5, 10, 4,
    causal=_custom_mask(14, "causal"), mask=_custom_mask(14, "mask"), varlen=present(6), **_TOKENS_FIRST,
)  # fmt: skip
_ops(
    "flash_attn::_flash_attn_backward",
    A,
    "attention_backward",
    1,
    2,
    3,
    0,
    4,
    5,
    causal=at(11, False),
    window=_window(12),
    **_TOKENS_FIRST,
)
_ops(
    "flash_attn::_flash_attn_varlen_backward",
    A,
    "attention_backward",
    1,
    2,
    3,
    0,
    4,
    5,
    causal=at(15, False),
    varlen=True,
    **_TOKENS_FIRST,
)

# --- normalisations and softmax ----------------------------------------------------------------------------------------

N = OpClass.NORMALIZATION


def _row(position: int) -> Param:
    """Elements of a normalised row, from the `normalized_shape` argument."""

    def param(args: Args) -> int | None:
        shape = args.value(position)
        if not isinstance(shape, list):
            return None
        count = 1
        for n in shape:
            count *= int(n)
        return count

    return param


_ops("native_layer_norm", N, "layer_norm", 0, 2, 3, normalized=_row(1))
_ops("_fused_rms_norm", N, "rms_norm", 0, 2, normalized=_row(1))
_ops("native_layer_norm_backward", N, "layer_norm_backward", 0, 1, 5, 3, 4, output_mask=at(7))
_ops("_fused_rms_norm_backward", N, "rms_norm_backward", 0, 1, 4, 3, output_mask=at(5))
_ops(
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit _batch_norm_with_update",
    N,
    "batch_norm",
    0,
    1,
    2,
    3,
    4,
    training=at(5, True),
)
_ops("_native_batch_norm_legit_no_training _batch_norm_no_update", N, "batch_norm", 0, 1, 2, 3, 4, training=False)
_ops(
    "native_batch_norm_backward batch_norm_backward",
    N,
    "batch_norm_backward",
    0,
    1,
    2,
    5,
    6,
    output_mask=at(9),
    channels=size_of(1, 1),
)
_ops(
    "cudnn_batch_norm_backward miopen_batch_norm_backward",
    N,
    "batch_norm_backward",
    1,
    0,
    2,
    5,
    6,
    output_mask=(True, True, True),
    channels=size_of(0, 1),
)
_ops("native_group_norm", N, "group_norm", 0, 1, 2, groups=at(6))
_ops("native_group_norm_backward", N, "group_norm_backward", 0, 1, 4, 2, 3, output_mask=at(9), channels=at(6))
_ops("aiter::_groupnorm_run", N, "group_norm", 0, 2, 3, groups=at(1))
_ops("batch_norm_stats", N, "reduction", 0, dims=lambda a: [i for i in range(a.rank(0)) if i != 1], flops_per_element=3)
_ops("batch_norm_elemt", N, "elementwise", 0, flops_per_element=2)
_ops("_C::rms_norm vllm::rms_norm", N, "rms_norm", 1, 2, statistics=0)

S = OpClass.SOFTMAX
_ops("_softmax _log_softmax _safe_softmax", S, "softmax", 0, out_dtype=lambda a: "fp32" if a.value(2) is True else None)
_ops("_masked_softmax", S, "softmax", 0, 1)
_ops(
    "_softmax_backward_data _log_softmax_backward_data", S, "softmax_backward", 0, 1, out_dtype=dtype_at(3, dtype_of(0))
)

# --- elementwise -------------------------------------------------------------------------------------------------------

E = OpClass.ELEMENTWISE
_FLOAT_RESULT = {"out_dtype": lambda a: a.float_result(0)}


def _alpha(position: int) -> Param:
    """1 FLOP, or 2 where the other operand is scaled first."""
    return lambda a: 2 if a.value(position, 1) not in {1, 1.0, None} else 1


_ops("add sub rsub", E, "elementwise", 0, 1, flops_per_element=_alpha(2))
_ops("mul maximum minimum fmod remainder bitwise_and bitwise_or bitwise_xor __and__ __or__ floor_divide copysign fmax fmin gcd lcm "
     "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ heaviside nextafter", E, "elementwise", 0, 1)  # fmt: skip
_ops("div true_divide pow atan2 hypot xlogy logaddexp logaddexp2", E, "elementwise", 0, 1)
_ops("eq ne lt le gt ge logical_and logical_or logical_xor isclose", E, "elementwise", 0, 1, out_dtype="bool")
_ops("logical_not isnan isinf isfinite isposinf isneginf signbit", E, "elementwise", 0, out_dtype="bool")
_ops(
    "neg abs exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sqrt rsqrt reciprocal erf erfc erfinv sigmoid "
    "log_sigmoid_forward relu relu6 leaky_relu elu selu celu gelu silu mish softplus softshrink hardshrink hardtanh hardsigmoid hardswish threshold floor ceil round "
    "trunc frac sign sgn square bitwise_not digamma lgamma sinc logit nan_to_num clamp_min clamp_max positive conj_physical deg2rad rad2deg i0 special_i0 angle",
    E, "elementwise", 0,
)  # fmt: skip
_ops("clamp clip", E, "elementwise", 0, flops_per_element=2)
_ops("where", E, "elementwise", 0, 1, 2, out_dtype=lambda a: a.promoted(1, 2))
_ops("masked_fill", E, "elementwise", 0, 1, out_dtype=dtype_of(0))
_ops("addcmul addcdiv", E, "elementwise", 0, 1, 2, flops_per_element=3)
_ops("lerp", E, "elementwise", 0, 1, 2, flops_per_element=3)
_ops("prelu _prelu_kernel polar complex", E, "elementwise", 0, 1)
_ops("gelu_backward", E, "elementwise", 0, 1, flops_per_element=10)
_ops("silu_backward mish_backward", E, "elementwise", 0, 1, flops_per_element=6)
_ops(
    "threshold_backward hardtanh_backward leaky_relu_backward hardswish_backward hardsigmoid_backward",
    E,
    "elementwise",
    0,
    1,
)
_ops(
    "sigmoid_backward tanh_backward softplus_backward elu_backward logit_backward",
    E,
    "elementwise",
    0,
    1,
    flops_per_element=3,
)
_ops("log_sigmoid_backward", E, "elementwise", 0, 1, 2, flops_per_element=4)
_ops("glu", E, "gated_activation", 0)
_ops("mse_loss smooth_l1_loss huber_loss l1_loss", E, "elementwise", 0, 1, flops_per_element=2)
_ops(
    "mse_loss_backward smooth_l1_loss_backward huber_loss_backward l1_loss_backward",
    E,
    "elementwise",
    0,
    1,
    2,
    flops_per_element=3,
)
_ops("binary_cross_entropy", E, "elementwise", 0, 1, 2, flops_per_element=5)
_ops("binary_cross_entropy_backward", E, "elementwise", 0, 1, 2, 3, flops_per_element=6)
_ops("native_dropout", OpClass.RANDOM, "elementwise", 0, mask=True)
_ops("_fused_dropout", OpClass.RANDOM, "elementwise", 0, mask=True)
_ops("native_dropout_backward _masked_scale", E, "elementwise", 0, 1, flops_per_element=2, out_dtype=dtype_of(0))
_ops("_amp_foreach_non_finite_check_and_unscale", E, "foreach_elementwise", 0)
_ops("_C::silu_and_mul _C::gelu_and_mul _C::gelu_tanh_and_mul vllm::silu_and_mul", E, "gated_activation", 1)
_ops("_C::rotary_embedding vllm::rotary_embedding", E, "rotary_embedding", lambda a: a.pack(1, 2), 0, 4)
_ops("tril triu", E, "elementwise", 0)

ENTRIES |= {
    f"_foreach_{name}": Entry(op_class=e.op_class, kind="foreach_elementwise", tensors=e.tensors, params=e.params)
    for name, e in ENTRIES.items()
    if e.kind == "elementwise" and "::" not in name
}

# --- random ------------------------------------------------------------------------------------------------------------

_ops(
    "normal_ uniform_ random_ bernoulli_ exponential_ log_normal_ cauchy_ geometric_", OpClass.RANDOM, "random_fill", 0
)
_ops("bernoulli", OpClass.RANDOM, "elementwise", 0)

# --- reductions --------------------------------------------------------------------------------------------------------

R = OpClass.REDUCTION


def _dims(position: int, least_arguments: int = 0) -> Param:
    """The reduced dimensions: a number, a list, None for all, or "unknown". Overloads with fewer arguments reduce all."""

    def param(args: Args) -> Any:
        if args.count < max(least_arguments, position + 1):
            return None
        if not args.has_values:
            return "unknown"
        dims = args.value(position)
        return dims if isinstance(dims, int | list) and not isinstance(dims, bool) else None

    return param


_ops("sum nansum mean prod", R, "reduction", 0, dims=_dims(1, 3), out_dtype=lambda a: a.sum_result(0))
_ops("amax amin", R, "reduction", 0, dims=_dims(1))
_ops("max min", R, "reduction", 0, dims=_dims(1), index=lambda a: a.count > 1)
_ops("median nanmedian mode kthvalue aminmax", R, "reduction", 0, dims=_dims(1), index=True)
_ops("all any", R, "reduction", 0, dims=_dims(1), out_dtype="bool")
_ops("argmax argmin", R, "reduction", 0, dims=_dims(1), out_dtype="int64")
_ops("count_nonzero", R, "reduction", 0, dims=_dims(1), out_dtype="int64")
_ops("var std var_mean std_mean", R, "reduction", 0, dims=_dims(1, 3), flops_per_element=3)
_ops("norm linalg_vector_norm", R, "reduction", 0, dims=_dims(2), flops_per_element=2)
_ops("logsumexp", R, "reduction", 0, dims=_dims(1), flops_per_element=3)
_ops("_foreach_norm", R, "foreach_reduction", 0, flops_per_element=2)
_ops("_foreach_max", R, "foreach_reduction", 0)
_ops("cumsum cumprod logcumsumexp _cumsum _cumprod", R, "elementwise", 0)
_ops("cummax cummin _cummax_helper _cummin_helper", R, "elementwise", 0)
_ops("nll_loss_forward nll_loss2d_forward", R, "nll_loss", 0, 1)
_ops("nll_loss_backward nll_loss2d_backward", R, "nll_loss_backward", 0, 1, 2)
_ops(
    "max_pool2d_with_indices max_pool3d_with_indices",
    R,
    "pooling",
    0,
    kernel=at(1),
    stride=at(2),
    padding=at(3, [0]),
    dilation=at(4, [1]),
    ceil_mode=at(5, False),
    index=True,
)
_ops(
    "avg_pool2d avg_pool3d avg_pool1d",
    R,
    "pooling",
    0,
    kernel=at(1),
    stride=at(2),
    padding=at(3, [0]),
    ceil_mode=at(4, False),
)
_ops("_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool2d", R, "pooling", 0, out_size=at(1))
_ops("adaptive_max_pool2d", R, "pooling", 0, out_size=at(1), index=True)
_ops("max_pool2d_with_indices_backward max_pool3d_with_indices_backward", R, "pooling_backward", 0, 1, 7)
_ops(
    "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward",
    R,
    "pooling_backward",
    0,
    1,
)

# --- embeddings, gathers, sorting --------------------------------------------------------------------------------------

G = OpClass.EMBEDDING
_ops("embedding", G, "embedding", 0, 1)
_ops("embedding_dense_backward", G, "embedding_backward", 0, 1, rows=at(2))
_ops("_embedding_bag _embedding_bag_forward_only", G, "embedding_bag", 0, 1, 2)
_ops("index_select", G, "index_select", 0, 2, dim=at(1))
_ops("gather", G, "gather", 0, 2)
_ops("take", G, "gather", 0, 1)
_ops("index_add", G, "scatter", 3, 2, adds=True)
_ops("index_copy", G, "scatter", 3, 2)
_ops("scatter_add", G, "scatter", 3, 2, adds=True)
_ops("scatter", G, "scatter", 3, 2, dtype=dtype_of(0))
_ops("topk", OpClass.SORT, "sort", 0, results=at(1), dim=at(2, -1))
_ops(
    "sort argsort",
    OpClass.SORT,
    "sort",
    0,
    dim=lambda a: next((v for i in (1, 2) if type(v := a.value(i)) is int), -1) if a.has_values else None,
)
_ops("_unique2 unique_dim _unique unique_consecutive", OpClass.SORT, "sort", 0)

# --- moving data -------------------------------------------------------------------------------------------------------

D = OpClass.DATA_MOVEMENT
_ops("copy_", D, "copy", 0, 1)
_ops("_foreach_copy_", D, "copy", 0, 1)
_ops("clone contiguous cat _cat stack hstack vstack flip roll rot90 alias_copy permute_copy expand_copy repeat_interleave im2col col2im "
     "channel_shuffle pixel_shuffle pixel_unshuffle split_with_sizes_copy _chunk_cat fsdp::chunk_cat fsdp::split_with_sizes_copy view_copy",
     D, "rewrite", 0)  # fmt: skip
_ops("fill_ zero_ fill zero", D, "fill", 0)
_ops("_foreach_zero_", D, "fill", 0)
_ops(
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d", D, "resize", 0, out_size=at(1)
)
_ops(
    "upsample_bilinear2d upsample_linear1d _upsample_bilinear2d_aa", D, "resize", 0, out_size=at(1), flops_per_element=7
)
_ops("upsample_bicubic2d _upsample_bicubic2d_aa", D, "resize", 0, out_size=at(1), flops_per_element=35)

# --- optimizers --------------------------------------------------------------------------------------------------------

O = OpClass.OPTIMIZER  # noqa: E741
_ops("_fused_adam_ _fused_adamw_", O, "fused_optimizer", 0, 1, 2, 3, 4, flops_per_element=16)
_ops("_fused_sgd_", O, "fused_optimizer", 0, 1, 2, flops_per_element=4)
_ops("_fused_adagrad_", O, "fused_optimizer", 0, 1, 2, flops_per_element=6)

# --- no formula, and why -----------------------------------------------------------------------------------------------

REASONS: dict[str, tuple[OpClass, str]] = {
    "index": (G, "shapes of the index tensors are not in the trace"),
    "index_put_": (G, "shapes of the index tensors are not in the trace"),
    "_index_put_impl_": (G, "shapes of the index tensors are not in the trace"),
    "masked_select": (G, "size of the result depends on the data"),
    "nonzero": (G, "size of the result depends on the data"),
    "nonzero_static": (G, "size of the result depends on the data"),
    "masked_scatter_": (G, "how much is moved depends on the data"),
    "multinomial": (OpClass.RANDOM, "cost depends on the number of samples"),
    "arange": (D, "size of the result is not in the trace"),
    "linspace": (D, "size of the result is not in the trace"),
    "randperm": (OpClass.RANDOM, "size of the result is not in the trace"),
    "_local_scalar_dense": (OpClass.COPY, "reads one number back to the host"),
    "constant_pad_nd": (D, "its copies and fills are counted by themselves"),
    "histc": (R, "cost depends on the data"),
    "bincount": (R, "cost depends on the data"),
}
"""Operators whose cost the recorded arguments do not determine: class and reason."""

VIEWS = frozenset(
    "view reshape _reshape_alias _unsafe_view as_strided as_strided_ transpose transpose_ t t_ permute movedim moveaxis swapaxes "
    "swapdims expand expand_as broadcast_to squeeze squeeze_ unsqueeze unsqueeze_ slice select narrow narrow_copy_symint detach detach_ "
    "alias split split_with_sizes chunk unsafe_split unsafe_split_with_sizes unsafe_chunk tensor_split unbind unfold flatten unflatten "
    "diagonal view_as view_as_real view_as_complex real imag numpy_T matrix_H mT mH adjoint T lift_fresh lift lift_fresh_copy data _conj "
    "_neg_view resolve_conj resolve_neg empty empty_like empty_strided empty_permuted new_empty new_empty_strided _empty_affine_quantized "
    "resize_ resize_as_ set_ result_type is_nonzero values indices crow_indices _values _indices vsplit hsplit dsplit record_stream "
    "_nested_view_from_buffer rename refine_names pin_memory is_pinned _has_compatible_shallow_copy_type requires_grad_ output_nr _version "
    "can_cast is_floating_point size stride storage_offset numel dim _debug_has_internal_overlap atleast_1d atleast_2d atleast_3d".split()
)
"""`aten::` operators that make views or allocate: no kernel, no bytes."""

WRAPPERS = frozenset(
    "linear matmul __matmul__ einsum tensordot inner outer kron chain_matmul linalg_multi_dot bilinear _trilinear conv1d conv2d conv3d "
    "conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc _convolution_mode _conv_depthwise layer_norm batch_norm "
    "_batch_norm_impl_index _batch_norm_impl_index_backward instance_norm group_norm rms_norm scaled_dot_product_attention "
    "_scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps _fused_sdp_choice multi_head_attention_forward "
    "softmax log_softmax softmin gumbel_softmax cross_entropy_loss nll_loss nll_loss_nd nll_loss2d kl_div cosine_embedding_loss "
    "cosine_similarity binary_cross_entropy_with_logits margin_ranking_loss triplet_margin_loss poisson_nll_loss ctc_loss dropout dropout_ "
    "feature_dropout alpha_dropout feature_alpha_dropout to _to_copy type_as float half double int long cpu cuda contiguous_wrapper "
    "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor eye rand randn randint rand_like randn_like "
    "randint_like normal repeat pad reflect concat concatenate column_stack dstack embedding_bag max_pool1d max_pool2d max_pool3d "
    "adaptive_max_pool1d adaptive_avg_pool1d upsample interpolate norm_except_dim clip_ item is_same_size allclose equal "
    "embedding_backward gather_backward index_select_backward select_backward slice_backward value_selecting_reduction_backward "
    "linalg_norm linalg_matrix_norm dist cdist pairwise_distance addr ger frobenius_norm nuclear_norm meshgrid cartesian_prod tile "
    "broadcast_tensors one_hot unique bernoulli_wrapper sum_to_size lstm gru rnn_tanh rnn_relu _rnn _thnn_fused_lstm".split()
)
"""`aten::` operators that only call others: their leaves count. Where one stays a leaf and has a formula, it is used."""

AUTOGRAD = re.compile(
    r"^autograd::engine::evaluate_function: |^torch::autograd::|^\w*Backward\d*$|^(?:torch::)?jit::|^Optimizer\.|^ProfilerStep#|^## "
)
"""Nodes of the autograd graph and ranges that Kineto lists among operators."""

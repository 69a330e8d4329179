# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""Convolutions of any number of dimensions, forward and backward [M7].

Layouts: input [batch, C_in, *space], weights [C_out, C_in / groups, *kernel] (transposed: [C_in, C_out / groups,
*kernel]), result [batch, C_out, *space]. All taps count, those on padding too, as PyTorch's counter does; XLA counts
real ones only.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import formula
from tracegap.models.formulas.sizes import (
    UNKNOWN,
    bytes_of,
    elements,
    flat,
    join,
    math_dtype,
    nbytes,
    tensor,
    total,
    unknown_dtype_note,
)
from tracegap.models.ops import OpSpec
from tracegap.models.quantities import quantity


def output_size(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Positions of a kernel along one dimension."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def transposed_output_size(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Size that a transposed convolution makes of `size`, without output padding."""
    return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1


@quantity("conv_fwd_flops", "M7")
def conv_fwd_flops(
    *,
    N: int,
    C_in: int,
    H: int,
    W: int,
    C_out: int,
    kh: int,
    kw: int,
    stride: int,
    pad: int,
    groups: int,
    dilation: int = 1,
    transposed: bool = False,
) -> float:
    """FLOPs of a two-dimensional convolution of N images H x W: 2 N C_out out (C_in / groups) kh kw.

    `transposed` spreads each input position over the kernel: input positions instead of output positions.
    """
    positions = (
        H * W if transposed else output_size(H, kh, stride, pad, dilation) * output_size(W, kw, stride, pad, dilation)
    )
    return 2 * N * C_out * positions * (C_in // groups) * kh * kw


@quantity("conv_bwd_flops", "M7")
def conv_bwd_flops(
    *,
    N: int,
    C_in: int,
    H: int,
    W: int,
    C_out: int,
    kh: int,
    kw: int,
    stride: int,
    pad: int,
    groups: int,
    output_mask: Sequence[bool],
    dilation: int = 1,
    transposed: bool = False,
) -> float:
    """FLOPs of the backward: a forward's for each gradient, input's and weights', that `output_mask` asks for."""
    forward = conv_fwd_flops(
        N=N, C_in=C_in, H=H, W=W, C_out=C_out, kh=kh, kw=kw,
        stride=stride, pad=pad, groups=groups, dilation=dilation, transposed=transposed,
    )  # fmt: skip
    return forward * (bool(output_mask[0]) + bool(output_mask[1]))


def per_dimension(value: Any, dims: int, default: int) -> list[int]:
    """A setting for each spatial dimension: a number for all or one each."""
    given = default if value is None else value
    values = list(given) if isinstance(given, Sequence) else [given]
    if len(values) == 1:
        values *= dims
    if len(values) != dims:
        raise BadShape(f"convolution: {values} for {dims} spatial dimensions")
    return [int(v) for v in values]


@formula("convolution")
def convolution(spec: OpSpec) -> Cost:
    """A convolution of any number of dimensions.

    Tensors: input, weights, bias, others read. Params: `stride` (None = not known: then the result's size and the FLOPs
    are not, unless `out_shape` is), `padding`, `dilation`, `transposed`, `output_padding`, `groups`.
    """
    x, w = tensor(spec, 0), tensor(spec, 1)
    dims = len(w.shape) - 2
    if dims < 1 or len(x.shape) != dims + 2:
        raise BadShape(f"{spec.kind}: input {x.shape}, weights {w.shape}")
    p = spec.params
    transposed = bool(p.get("transposed"))
    taps = prod(w.shape[1:])
    if p.get("stride") is None and p.get("out_shape"):
        out = prod(p["out_shape"])
        return _forward(spec, 2 * (elements(x) if transposed else out) * taps, out)
    if p.get("stride") is None:
        flops = 2 * elements(x) * taps if transposed else None
        return Cost(flops=flops, bytes=None, dtype=math_dtype(x, w), note="stride and padding are not in the trace")
    settings = (
        per_dimension(p.get(key), dims, default) for key, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    each = list(zip(x.shape[2:], w.shape[2:], *settings, strict=True))
    groups = int(p.get("groups") or 1)
    if transposed:
        extra = per_dimension(p.get("output_padding"), dims, 0)
        space = [transposed_output_size(*args) + e for args, e in zip(each, extra, strict=True)]
        channels, channels_in = w.shape[1] * groups, w.shape[0]
    else:
        space = [output_size(*args) for args in each]
        channels, channels_in = w.shape[0], w.shape[1] * groups
    if channels_in != x.shape[1] or min(space) < 0:
        raise BadShape(f"{spec.kind}: input {x.shape}, weights {w.shape}, groups {groups}")
    out = x.shape[0] * channels * prod(space)
    return _forward(spec, 2 * (elements(x) if transposed else out) * taps, out)


def _forward(spec: OpSpec, flops: int, out: int) -> Cost:
    x, w = tensor(spec, 0), tensor(spec, 1)
    moved = total(nbytes(*spec.tensors), bytes_of(out, x.dtype))
    return Cost(flops=flops, bytes=moved, dtype=math_dtype(x, w), note=unknown_dtype_note(x, w))


@formula("convolution_backward")
def convolution_backward(spec: OpSpec) -> Cost:
    """Gradients of a convolution.

    Tensors: gradient of the result, input, weights. Params: `transposed`, `output_mask` (input, weights, bias; None =
    not known: input and weights are assumed, and noted).
    """
    grad, x, w = (tensor(spec, i) for i in range(3))
    mask = spec.params.get("output_mask")
    note = None
    if mask is None:
        mask, note = (True, True, False), "output mask is not in the trace: gradients of input and weights are assumed"
    want_x, want_w, want_bias = (bool(m) for m in mask)
    forward = 2 * elements(x if spec.params.get("transposed") else grad) * prod(w.shape[1:])
    flops = forward * (want_x + want_w) + (elements(grad) if want_bias else 0)
    moved = total(
        nbytes(grad),
        nbytes(w) if want_x else 0,
        nbytes(x) if want_w else 0,
        bytes_of(elements(x), x.dtype) if want_x else 0,
        bytes_of(elements(w), w.dtype) if want_w else 0,
        bytes_of(grad.shape[1], w.dtype) if want_bias else 0,
    )
    return Cost(flops=flops, bytes=moved, dtype=math_dtype(grad, w), note=join(note, unknown_dtype_note(grad, x, w)))


@formula("convolution_input_gradient", "convolution_weight_gradient")
def convolution_one_gradient(spec: OpSpec) -> Cost:
    """One gradient by itself, as older releases launch it.

    Tensors: gradient of the result, then weights (for the input's gradient) or input (for the weights'). Params:
    `size`, the shape of the gradient that is made (None = not known).
    """
    grad, other = tensor(spec, 0), tensor(spec, 1)
    size = spec.params.get("size")
    made = prod(size) if size else None
    weights = other.shape if spec.kind == "convolution_input_gradient" else size
    flops = 2 * elements(grad) * prod(weights[1:]) if weights else None
    if made is None:
        note = "size of the gradient is not in the trace"
        return Cost(flops=flops, bytes=None, dtype=math_dtype(grad, other), note=note)
    moved = total(nbytes(*flat(spec.tensors)), bytes_of(made, other.dtype if other.dtype != UNKNOWN else grad.dtype))
    return Cost(flops=flops, bytes=moved, dtype=math_dtype(grad, other), note=unknown_dtype_note(grad, other))

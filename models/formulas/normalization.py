"""Normalisations and softmax, forward and backward [M8]. Always bound by memory: FLOPs are conventions, bytes are not."""

from math import prod

from tracegap.models.cost import Cost
from tracegap.models.formulas import formula
from tracegap.models.formulas.sizes import (
    UNKNOWN,
    Operand,
    bytes_of,
    elements,
    join,
    math_dtype,
    nbytes,
    tensor,
    total,
    unknown_dtype_note,
)
from tracegap.models.ops import OpSpec, Tensor
from tracegap.models.quantities import quantity


@quantity("rms_norm_fwd_flops", "M8")
def rms_norm_fwd_flops(rows: int, cols: int, affine: bool) -> float:
    """FLOPs of RMSNorm: 2 cols + 2 a row for the mean square and its root, 2 an element to scale and multiply weights.

    Without weights 1 an element less... counted as the convention has it: 2 an element only where there are weights.
    """
    return rows * (2 * cols + 2 + (2 * cols if affine else 0))


def layer_norm_fwd_flops(n: int) -> int:
    """FLOPs of LayerNorm over n elements: 5 each [M8]."""
    return 5 * n


def _operand(spec: OpSpec, index: int) -> Operand:
    return spec.tensors[index] if index < len(spec.tensors) else None


def _statistics_bytes(x: Tensor, count: int) -> int | None:
    """Bytes of saved statistics: fp32, or fp64 for fp64 data."""
    return None if x.dtype == UNKNOWN else bytes_of(count, "fp64" if x.dtype == "fp64" else "fp32")


def _gradients(spec: OpSpec, x: Tensor, count: int) -> tuple[tuple[bool, ...], str | None]:
    """Which gradients are made (input, weights, bias), and what that assumes."""
    mask = spec.params.get("output_mask")
    if mask is not None:
        padded = (*(bool(m) for m in mask), False, False)
        return padded[:3], None
    has_weight = _operand(spec, count) is not None
    return (
        True,
        has_weight,
        has_weight and spec.kind != "rms_norm_backward",
    ), "output mask is not in the trace: all gradients are assumed"


@formula("layer_norm", "rms_norm")
def layer_norm(spec: OpSpec) -> Cost:
    """Normalises rows. Tensors: x, weights, bias. Params: `normalized` (elements of a row; None = those of the weights),
    `statistics` (saved a row: 2 for LayerNorm, 1 for RMSNorm, 0 in inference kernels).
    """
    x = tensor(spec, 0)
    weight = _operand(spec, 1)
    affine = isinstance(weight, Tensor)
    cols = spec.params.get("normalized") or (elements(weight) if isinstance(weight, Tensor) else None)
    rms = spec.kind == "rms_norm"
    n = elements(x)
    rows = None if not cols else n // cols
    note = None
    if rows is None:
        note, rows = "size of a row is not in the trace: statistics are not counted", 0
        flops = 4 * n if rms else layer_norm_fwd_flops(n)
    else:
        flops = int(rms_norm_fwd_flops(rows, cols or 0, affine)) if rms else layer_norm_fwd_flops(n)
    statistics = spec.params.get("statistics", 1 if rms else 2)
    moved = total(nbytes(*spec.tensors), bytes_of(n, x.dtype), _statistics_bytes(x, statistics * rows))
    return Cost(flops=flops, bytes=moved, dtype=math_dtype(x), note=join(note, unknown_dtype_note(x)))


@formula("layer_norm_backward", "rms_norm_backward", "batch_norm_backward", "group_norm_backward")
def norm_backward(spec: OpSpec) -> Cost:
    """Gradients of a normalisation: 7 FLOPs an element for the input's, 2 for the weights', 1 for the bias's.

    Tensors: gradient of the result, x, weights, then what else is read (statistics). Params: `output_mask` (input,
    weights, bias; None = not known). Moves 3 n, weights read, their gradients written.
    """
    grad, x = tensor(spec, 0), tensor(spec, 1)
    weight = _operand(spec, 2)
    (want_x, want_w, want_b), note = _gradients(spec, x, 2)
    n = elements(x)
    channels = spec.params.get("channels") or (elements(weight) if isinstance(weight, Tensor) else 0)
    weight_dtype = weight.dtype if isinstance(weight, Tensor) else x.dtype
    moved = total(
        nbytes(*spec.tensors),
        bytes_of(n, x.dtype) if want_x else 0,
        bytes_of(channels * (want_w + want_b), weight_dtype),
    )
    flops = n * (7 * want_x + 2 * want_w + want_b)
    return Cost(flops=flops, bytes=moved, dtype=math_dtype(grad, x), note=join(note, unknown_dtype_note(grad, x)))


@formula("batch_norm")
def batch_norm(spec: OpSpec) -> Cost:
    """Normalises channels (dimension 1). Tensors: x, weights, bias, running mean, running variance.

    Params: `training` (None = not known: assumed, and noted): 5 FLOPs an element and 6 a channel, running statistics are
    updated and batch statistics saved; else 2 an element. x counts once: kernels that read it twice are inefficient.
    """
    x = tensor(spec, 0)
    training = spec.params.get("training")
    note = "training flag is not in the trace: training is assumed" if training is None else None
    training = training is None or bool(training)
    n, channels = elements(x), x.shape[1] if len(x.shape) > 1 else 1
    updated = nbytes(_operand(spec, 3), _operand(spec, 4)) if training else 0
    saved = _statistics_bytes(x, 2 * channels) if training else 0
    return Cost(
        flops=5 * n + 6 * channels if training else 2 * n,
        bytes=total(nbytes(*spec.tensors), bytes_of(n, x.dtype), updated, saved),
        dtype=math_dtype(x),
        note=join(note, unknown_dtype_note(*spec.tensors)),
    )


@formula("group_norm")
def group_norm(spec: OpSpec) -> Cost:
    """Normalises groups of channels of each sample: 5 FLOPs an element. Tensors: x, weights, bias. Params: `groups`."""
    x = tensor(spec, 0)
    groups = spec.params.get("groups")
    note = None if groups else "groups are not in the trace: statistics are not counted"
    saved = _statistics_bytes(x, 2 * x.shape[0] * int(groups)) if groups else 0
    moved = total(nbytes(*spec.tensors), bytes_of(elements(x), x.dtype), saved)
    flops = layer_norm_fwd_flops(elements(x))
    return Cost(flops=flops, bytes=moved, dtype=math_dtype(x), note=join(note, unknown_dtype_note(*spec.tensors)))


@formula("softmax")
def softmax(spec: OpSpec) -> Cost:
    """Softmax or log-softmax: 5 FLOPs an element, one read, one write. Params: `out_dtype` (default that of x)."""
    x = tensor(spec, 0)
    n = elements(x)
    moved = total(nbytes(*spec.tensors), bytes_of(n, spec.params.get("out_dtype") or x.dtype))
    return Cost(flops=5 * n, bytes=moved, dtype=math_dtype(x), note=unknown_dtype_note(x))


@formula("softmax_backward")
def softmax_backward(spec: OpSpec) -> Cost:
    """4 FLOPs an element; reads the gradient and the result, writes a gradient. Params: `out_dtype` (default theirs)."""
    grad = tensor(spec, 0)
    n = prod(grad.shape)
    moved = total(nbytes(*spec.tensors), bytes_of(n, spec.params.get("out_dtype") or grad.dtype))
    return Cost(flops=4 * n, bytes=moved, dtype=math_dtype(grad), note=unknown_dtype_note(grad))

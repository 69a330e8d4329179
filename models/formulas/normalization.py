"""Normalisations and softmax, forward and backward [M8]. Bound by memory: FLOPs are conventions, bytes are not."""

from math import prod

from tracegap.models.cost import Cost
from tracegap.models.formulas import formula
from tracegap.models.formulas.sizes import (
    UNKNOWN,
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
def rms_norm_fwd_flops(*, rows: int, cols: int, affine: bool) -> float:
    """FLOPs of RMSNorm: 2 cols + 2 a row, and with weights 2 an element more."""
    return rows * (2 * cols + 2 + (2 * cols if affine else 0))


def layer_norm_fwd_flops(n: int) -> int:
    """FLOPs of LayerNorm over n elements: 5 each [M8]."""
    return 5 * n


def _weight(spec: OpSpec, index: int) -> Tensor | None:
    found = spec.tensors[index] if index < len(spec.tensors) else None
    return found if isinstance(found, Tensor) else None


def _statistics_bytes(x: Tensor, count: int) -> int | None:
    """Bytes of saved statistics: fp32, or fp64 for fp64 data."""
    return None if x.dtype == UNKNOWN else bytes_of(count, "fp64" if x.dtype == "fp64" else "fp32")


@formula("layer_norm", "rms_norm")
def layer_norm(spec: OpSpec) -> Cost:
    """Normalises rows.

    Tensors: x, weights, bias. Params: `normalized` (elements of a row; None = those of the weights, else the last
    dimension's, and noted), `statistics` (saved a row: 2 for LayerNorm, 1 for RMSNorm, 0 in inference kernels).
    """
    x, weight = tensor(spec, 0), _weight(spec, 1)
    rms = spec.kind == "rms_norm"
    cols, note = spec.params.get("normalized"), None
    if not cols and weight is not None:
        cols = elements(weight)
    elif not cols:
        cols, note = (x.shape or (1,))[-1], "rows are assumed to be the last dimension"
    n = elements(x)
    rows = n // max(cols, 1)
    flops = rms_norm_fwd_flops(rows=rows, cols=cols, affine=weight is not None) if rms else layer_norm_fwd_flops(n)
    statistics = spec.params.get("statistics", 1 if rms else 2)
    moved = total(nbytes(*spec.tensors), bytes_of(n, x.dtype), _statistics_bytes(x, statistics * rows))
    return Cost(flops=int(flops), bytes=moved, dtype=math_dtype(x), note=join(note, unknown_dtype_note(x)))


@formula("layer_norm_backward", "rms_norm_backward", "batch_norm_backward", "group_norm_backward")
def norm_backward(spec: OpSpec) -> Cost:
    """Gradients of a normalisation: 7 FLOPs an element for the input's, 2 for the weights', 1 for the bias's.

    Tensors: gradient of the result, x, weights, then what else is read (statistics). Params: `output_mask` (input,
    weights, bias; None = not known: all are assumed, and noted), `channels` (elements of weights; default by shape).
    Moves 3 n, weights read, their gradients written.
    """
    grad, x, weight = tensor(spec, 0), tensor(spec, 1), _weight(spec, 2)
    mask, note = spec.params.get("output_mask"), None
    if mask is None:
        affine = weight is not None
        mask = (True, affine, affine and spec.kind != "rms_norm_backward")
        note = "output mask is not in the trace: all gradients are assumed"
    want_x, want_w, want_b = (*(bool(m) for m in mask), False, False)[:3]
    n = elements(x)
    channels = spec.params.get("channels") or (elements(weight) if weight else 0)
    moved = total(
        nbytes(*spec.tensors),
        bytes_of(n, x.dtype) if want_x else 0,
        bytes_of(channels * (want_w + want_b), weight.dtype if weight else x.dtype),
    )
    flops = n * (7 * want_x + 2 * want_w + want_b)
    return Cost(flops=flops, bytes=moved, dtype=math_dtype(grad, x), note=join(note, unknown_dtype_note(grad, x)))


@formula("batch_norm")
def batch_norm(spec: OpSpec) -> Cost:
    """Normalises channels (dimension 1). Tensors: x, weights, bias, running mean, running variance.

    Params: `training` (None = not known: assumed, and noted): 5 FLOPs an element and 6 a channel, running statistics
    are updated and batch statistics saved; else 2 an element. x counts once, whether or not a kernel reads it twice.
    """
    x = tensor(spec, 0)
    training = spec.params.get("training")
    note = "training flag is not in the trace: training is assumed" if training is None else None
    training = training is None or bool(training)
    n, channels = elements(x), x.shape[1] if len(x.shape) > 1 else 1
    updated = nbytes(*spec.tensors[3:5]) if training else 0
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
    """4 FLOPs an element; reads gradient and result, writes a gradient. Params: `out_dtype` (default theirs)."""
    grad = tensor(spec, 0)
    n = prod(grad.shape)
    moved = total(nbytes(*spec.tensors), bytes_of(n, spec.params.get("out_dtype") or grad.dtype))
    return Cost(flops=4 * n, bytes=moved, dtype=math_dtype(grad), note=unknown_dtype_note(grad))


@formula("cross_entropy")
def cross_entropy(spec: OpSpec) -> Cost:
    """Fused cross-entropy: 5 FLOPs a logit; logits and targets read [M9]. Tensors: logits, targets.

    Params: `gradient` (it is written over the logits in the same call). One loss a row is written.
    """
    x, target = tensor(spec, 0), tensor(spec, 1)
    n = elements(x)
    written = bytes_of(n, x.dtype) if spec.params.get("gradient") else 0
    moved = total(nbytes(x, target), written, _statistics_bytes(x, n // max(x.shape[-1], 1) if x.shape else 1))
    return Cost(flops=5 * n, bytes=moved, dtype=math_dtype(x), note=unknown_dtype_note(x, target))


@formula("add_norm")
def add_norm(spec: OpSpec) -> Cost:
    """RMSNorm of x + residual, both written: one FLOP an element more than RMSNorm. Tensors: x, residual, weights."""
    x, residual = tensor(spec, 0), tensor(spec, 1)
    n, cols = elements(x), x.shape[-1] if x.shape else 1
    flops = n + rms_norm_fwd_flops(rows=n // max(cols, 1), cols=cols, affine=_weight(spec, 2) is not None)
    moved = total(nbytes(*spec.tensors), nbytes(x, residual))
    return Cost(flops=int(flops), bytes=moved, dtype=math_dtype(x), note=unknown_dtype_note(*spec.tensors))

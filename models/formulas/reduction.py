"""Reductions, scans, pooling, losses and sorting."""

from collections.abc import Sequence
from dataclasses import replace
from math import log2, prod
from typing import Any

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import formula
from tracegap.models.formulas.convolution import output_size, per_dimension
from tracegap.models.formulas.elementwise import elementwise
from tracegap.models.formulas.sizes import (
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
from tracegap.models.ops import OpSpec, Tensor


def _reduced_sizes(x: Tensor, dims: Any) -> list[int]:
    """Extents of the reduced dimensions; no dims = all."""
    chosen = list(dims) if isinstance(dims, Sequence) else [dims]
    if dims is None or not chosen:
        return list(x.shape)
    if any(not -max(len(x.shape), 1) <= int(d) < max(len(x.shape), 1) for d in chosen):
        raise BadShape(f"reduction over {chosen} of shape {x.shape}")
    return [x.shape[int(d)] for d in chosen] if x.shape else []


@formula("reduction")
def reduction(spec: OpSpec) -> Cost:
    """Many elements to one: (in - out) FLOPs, or `flops_per_element` for each input element.

    Tensors: x. Params: `dims` (a number or a list; None = all; "unknown" = not known: FLOPs are
    not, and what the result takes is left out), `flops_per_element`,
    `out_dtype` (default that of x), `outputs` (results, default 1), `index` (an 8-byte index with each result).
    """
    x = tensor(spec, 0)
    p = spec.params
    if p.get("dims") == "unknown":
        note = "reduced dimensions are not in the trace: only what is read counts"
        return Cost(flops=None, bytes=nbytes(x), dtype=math_dtype(x), note=join(note, unknown_dtype_note(x)))
    n = elements(x)
    out = n // max(prod(_reduced_sizes(x, p.get("dims"))), 1)
    each = p.get("flops_per_element")
    written = bytes_of(out * int(p.get("outputs", 1)), p.get("out_dtype") or x.dtype)
    return Cost(
        flops=n - out if each is None else int(each) * n,
        bytes=total(nbytes(x), written, 8 * out if p.get("index") else 0),
        dtype=math_dtype(x),
        note=unknown_dtype_note(x),
    )


@formula("elementwise_sums")
def elementwise_sums(spec: OpSpec) -> Cost:
    """Sums a channel of products of tensors of one shape, each read once; results are small and not counted.

    Params: `flops_per_element`.
    """
    tensors = flat(spec.tensors)
    if not tensors:
        raise BadShape(f"{spec.kind}: no tensors")
    n = elements(tensors[0])
    flops = int(spec.params["flops_per_element"]) * n
    return Cost(flops=flops, bytes=nbytes(*tensors), dtype=math_dtype(*tensors), note=unknown_dtype_note(*tensors))


@formula("extreme")
def extreme(spec: OpSpec) -> Cost:
    """Largest or smallest: of two tensors element by element, else of one. Tensors: x, other. Params: `reduction`'s."""
    other = spec.tensors[1] if len(spec.tensors) > 1 else None
    return reduction(spec) if other is None else elementwise(replace(spec, params={}))


@formula("foreach_reduction")
def foreach_reduction(spec: OpSpec) -> Cost:
    """Each tensor of a list to one number, such as its norm. Params: `flops_per_element`."""
    tensors = flat(spec.tensors)
    each = int(spec.params.get("flops_per_element", 1))
    moved = total(nbytes(*tensors), *(bytes_of(1, t.dtype) for t in tensors))
    n = sum(elements(t) for t in tensors)
    return Cost(flops=each * n, bytes=moved, dtype=math_dtype(*tensors), note=unknown_dtype_note(*tensors))


@formula("pooling")
def pooling(spec: OpSpec) -> Cost:
    """Windows over the last dimensions: one FLOP for each element of each window.

    Tensors: x. Params: `dims` (spatial ones), `kernel`, `stride` (empty = the kernel), `padding`, `dilation`,
    `ceil_mode`, `index` (an 8-byte index goes with each result); or `out_size` for adaptive pooling, whose windows
    cover the input once. Kernel and size None = not known; `out_shape` of the result then tells the bytes.
    """
    x = tensor(spec, 0)
    p = spec.params
    dims = int(p["dims"])
    planes = elements(x) // max(prod(x.shape[-dims:]), 1)
    if p.get("out_size"):
        made = planes * prod(per_dimension(p["out_size"], dims, 1))
        taps = elements(x)
    elif p.get("kernel"):
        kernel = per_dimension(p["kernel"], dims, 1)
        strides = per_dimension(p.get("stride") or kernel, dims, 1)
        paddings = per_dimension(p.get("padding"), dims, 0)
        dilations = per_dimension(p.get("dilation"), dims, 1)
        each = zip(x.shape[-dims:], kernel, strides, paddings, dilations, strict=True)
        made = planes * prod(_positions(*sizes, ceil_mode=bool(p.get("ceil_mode"))) for sizes in each)
        taps = made * prod(kernel)
    elif p.get("out_shape"):
        made, taps = prod(p["out_shape"]), None
    else:
        return Cost(flops=None, bytes=None, dtype=math_dtype(x), note="window sizes are not in the trace")
    note = "window sizes are not in the trace" if taps is None else None
    moved = total(nbytes(x), bytes_of(made, x.dtype), 8 * made if p.get("index") else 0)
    return Cost(flops=taps, bytes=moved, dtype=math_dtype(x), note=join(note, unknown_dtype_note(x)))


def _positions(size: int, kernel: int, stride: int, padding: int, dilation: int, *, ceil_mode: bool) -> int:
    """Windows along a dimension; in ceil mode a last one that is cut counts if it starts before the right padding."""
    if not ceil_mode:
        return output_size(size, kernel, stride, padding, dilation)
    count = output_size(size + stride - 1, kernel, stride, padding, dilation)
    return count - 1 if (count - 1) * stride >= size + padding else count


@formula("pooling_backward")
def pooling_backward(spec: OpSpec) -> Cost:
    """Spreads a gradient over an input's size. Tensors: gradient, x (its size, not read), indices."""
    grad, x = tensor(spec, 0), tensor(spec, 1)
    moved = total(nbytes(grad, *spec.tensors[2:]), bytes_of(elements(x), grad.dtype))
    return Cost(flops=elements(grad), bytes=moved, dtype=math_dtype(grad), note=unknown_dtype_note(grad))


@formula("nll_loss")
def nll_loss(spec: OpSpec) -> Cost:
    """Picks one log-probability a target: 1 FLOP and one element read each. Tensors: log-probabilities, targets."""
    x, target = tensor(spec, 0), tensor(spec, 1)
    n = elements(target)
    moved = total(nbytes(target), bytes_of(n, x.dtype), bytes_of(2, x.dtype))
    return Cost(flops=n, bytes=moved, dtype=math_dtype(x), note=unknown_dtype_note(x))


@formula("nll_loss_backward")
def nll_loss_backward(spec: OpSpec) -> Cost:
    """Writes a gradient of the input's size, zero but for targets. Tensors: gradient, log-probabilities, targets."""
    grad, x, target = (tensor(spec, i) for i in range(3))
    moved = total(nbytes(grad, target), bytes_of(elements(x), x.dtype))
    return Cost(flops=elements(target), bytes=moved, dtype=math_dtype(x), note=unknown_dtype_note(x))


@formula("sort")
def sort(spec: OpSpec) -> Cost:
    """Sorts along a dimension: n log2(length) comparisons; one pass of memory is counted, radix sorts make 4 to 8.

    Tensors: x. Params: `dim` (None = not known: the whole is one row), `results` (largest kept a row; None = all).
    """
    x = tensor(spec, 0)
    n = elements(x)
    dim = spec.params.get("dim")
    if dim is not None and x.shape and not -len(x.shape) <= int(dim) < len(x.shape):
        raise BadShape(f"sort along {dim} of shape {x.shape}")
    length = x.shape[int(dim)] if dim is not None and x.shape else n
    kept = spec.params.get("results")
    out = n if kept is None else n // max(length, 1) * int(kept)
    moved = total(nbytes(x), bytes_of(out, x.dtype), 8 * out)
    return Cost(flops=round(n * log2(max(length, 1))), bytes=moved, dtype=math_dtype(x), note=unknown_dtype_note(x))

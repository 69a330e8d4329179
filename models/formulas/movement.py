"""Copies by kernels, concatenations, fills, and kernels of which only the buffers are known."""

from math import prod

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import formula
from tracegap.models.formulas.sizes import (
    Operand,
    bytes_of,
    elements,
    flat,
    join,
    math_dtype,
    nbytes,
    stored_elements,
    tensor,
    total,
    unknown_dtype_note,
)
from tracegap.models.ops import OpSpec


@formula("copy")
def copy(spec: OpSpec) -> Cost:
    """Reads a source once, writes a target. Tensors: target, source (broadcast; None = a number), or lists of them.

    A cast is one FLOP an element.
    """
    targets, sources = flat(spec.tensors[:1]), flat(spec.tensors[1:2])
    if not targets:
        raise BadShape(f"{spec.kind}: no target")
    cast = bool(sources) and sources[0].dtype != targets[0].dtype
    return Cost(
        flops=sum(elements(t) for t in targets) if cast else 0,
        bytes=nbytes(*targets, *sources),
        dtype=math_dtype(*sources) if cast else None,
        note=unknown_dtype_note(*targets, *sources),
    )


@formula("rewrite")
def rewrite(spec: OpSpec) -> Cost:
    """Every element of the inputs is read once and written once elsewhere: clone, cat, transposing copies."""
    inputs = flat(spec.tensors)
    if not inputs:
        raise BadShape(f"{spec.kind}: no tensors")
    moved = total(nbytes(*inputs), *(bytes_of(elements(t), t.dtype) for t in inputs))
    return Cost(flops=0, bytes=moved, note=unknown_dtype_note(*inputs))


@formula("fill")
def fill(spec: OpSpec) -> Cost:
    """Writes every stored element once. Tensors: targets."""
    return Cost(flops=0, bytes=nbytes(*spec.tensors), note=unknown_dtype_note(*spec.tensors))


@formula("resize")
def resize(spec: OpSpec) -> Cost:
    """Makes an image of another size. Tensors: x. Params: `out_size` (None = not known), `flops_per_element`."""
    x = tensor(spec, 0)
    size = spec.params.get("out_size")
    if not size:
        return Cost(flops=None, bytes=None, note="size of the result is not in the trace")
    out = elements(x)
    for old, new in zip(x.shape[-len(size) :], size, strict=True):
        out = out // max(old, 1) * int(new)
    each = int(spec.params.get("flops_per_element", 0))
    moved = total(nbytes(x), bytes_of(out, x.dtype))
    return Cost(flops=each * out, bytes=moved, dtype=math_dtype(x) if each else None, note=unknown_dtype_note(x))


@formula("resize_backward")
def resize_backward(spec: OpSpec) -> Cost:
    """Adds the gradient of a resized image up in the input's size.

    Tensors: gradient. Params: `size` of the input, all dimensions (None = not known), `flops_per_element` of the
    gradient (default 1).
    """
    grad = tensor(spec, 0)
    size = spec.params.get("size")
    if not size:
        return Cost(flops=None, bytes=None, note="size of the input is not in the trace")
    moved = total(nbytes(grad), bytes_of(prod(size), grad.dtype))
    flops = int(spec.params.get("flops_per_element", 1)) * elements(grad)
    return Cost(flops=flops, bytes=moved, dtype=math_dtype(grad), note=unknown_dtype_note(grad))


@formula("buffers")
def buffers(spec: OpSpec) -> Cost:
    """A compiled kernel whose arithmetic is unknown: each of its buffers moves once.

    Tensors: inputs and results. Params: `iterations` (elements that the kernel visits: it touches no more of a buffer;
    None = not known).
    """
    limit = spec.params.get("iterations")

    def moved(operand: Operand) -> int | None:
        parts = [bytes_of(min(stored_elements(t), limit or stored_elements(t)), t.dtype) for t in flat([operand])]
        return total(*parts)

    if not flat(spec.tensors):
        return Cost(flops=None, bytes=None, note="no buffers in the trace")
    note = "arithmetic of a compiled kernel is not in the trace; each buffer counts once"
    return Cost(flops=None, bytes=total(*(moved(o) for o in spec.tensors)), note=note)


@formula("inputs")
def inputs(spec: OpSpec) -> Cost:
    """A kernel of which only the inputs are known, each read once; its results and its arithmetic are not."""
    if not flat(spec.tensors):
        raise BadShape(f"{spec.kind}: no tensors")
    note = "no formula: its inputs count once, results and arithmetic are not known"
    return Cost(flops=None, bytes=nbytes(*spec.tensors), note=join(note, unknown_dtype_note(*spec.tensors)))


@formula("pad")
def pad(spec: OpSpec) -> Cost:
    """Adds margins. Tensors: x. Params: `margins` before and after, last dimension first (None = not known)."""
    x, margins = tensor(spec, 0), spec.params.get("margins")
    if margins is None:
        return Cost(flops=None, bytes=None, note="size of the result is not in the trace")
    added = [int(a) + int(b) for a, b in zip(margins[::2], margins[1::2], strict=True)]
    if len(added) > len(x.shape):
        raise BadShape(f"{spec.kind}: margins {margins} of shape {x.shape}")
    kept = len(x.shape) - len(added)
    shape = x.shape[:kept] + tuple(n + a for n, a in zip(x.shape[kept:], reversed(added), strict=True))
    return Cost(flops=0, bytes=total(nbytes(x), bytes_of(prod(shape), x.dtype)), note=unknown_dtype_note(x))


@formula("pad_backward")
def pad_backward(spec: OpSpec) -> Cost:
    """Takes margins off a gradient, adding what they mirrored. Tensors: gradient, x (its size, not read)."""
    grad, x = tensor(spec, 0), tensor(spec, 1)
    moved = total(nbytes(grad), bytes_of(elements(x), grad.dtype))
    return Cost(flops=elements(grad), bytes=moved, dtype=math_dtype(grad), note=unknown_dtype_note(grad))

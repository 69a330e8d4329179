"""Elementwise operations [M9], random numbers and fused gates."""

from math import prod

from tracegap.models.cost import NOTHING, Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import formula
from tracegap.models.formulas.sizes import (
    broadcast,
    bytes_of,
    elements,
    flat,
    math_dtype,
    nbytes,
    promote,
    tensor,
    total,
    unknown_dtype_note,
)
from tracegap.models.ops import OpSpec, Tensor


@formula("elementwise")
def elementwise(spec: OpSpec) -> Cost:
    """One result element from the elements at its place [M9].

    Tensors: inputs, broadcast against each other, each read once at its stored size. Params: `flops_per_element` of the
    result (default 1), `in_place` (the result replaces the first input), `out_dtype` (default: promoted from the
    inputs), `mask` (a boolean for each result element is written as well).
    """
    inputs = flat(spec.tensors)
    if not inputs:
        raise BadShape(f"{spec.kind}: no tensors")
    return _one(spec, inputs)


def _one(spec: OpSpec, inputs: list[Tensor]) -> Cost:
    p = spec.params
    in_place = bool(p.get("in_place"))
    shape = inputs[0].shape if in_place else broadcast(t.shape for t in inputs)
    n = prod(shape)
    dtype = inputs[0].dtype if in_place else p.get("out_dtype") or promote(inputs)
    written = nbytes(inputs[0]) if in_place else bytes_of(n, dtype)
    mask = n if p.get("mask") else 0
    return Cost(
        flops=int(p.get("flops_per_element", 1)) * n,
        bytes=total(nbytes(*inputs), written, mask),
        dtype=math_dtype(*inputs),
        note=unknown_dtype_note(*inputs),
    )


@formula("foreach_elementwise")
def foreach_elementwise(spec: OpSpec) -> Cost:
    """The same elementwise operation on each tensor of lists. Tensors: lists of equal length, or one tensor for all."""
    lists = [o for o in spec.tensors if isinstance(o, tuple) and o]
    shared = [o for o in spec.tensors if isinstance(o, Tensor)]
    if not lists or len({len(o) for o in lists}) != 1:
        raise BadShape(f"{spec.kind}: lists of {[len(o) for o in lists]} tensors")
    return sum((_one(spec, [*group, *shared]) for group in zip(*lists, strict=True)), NOTHING)


@formula("random_fill")
def random_fill(spec: OpSpec) -> Cost:
    """Overwrites a tensor with random numbers: 1 FLOP an element beside the generator's own work, and one write."""
    x = tensor(spec, 0)
    return Cost(flops=elements(x), bytes=nbytes(x), dtype=math_dtype(x), note=unknown_dtype_note(x))


@formula("gated_activation")
def gated_activation(spec: OpSpec) -> Cost:
    """act(x[..., :h]) * x[..., h:] of one tensor of width 2h, as in SwiGLU: 6 FLOPs a result element."""
    x = tensor(spec, 0)
    out = elements(x) // 2
    moved = total(nbytes(x), bytes_of(out, x.dtype))
    return Cost(flops=6 * out, bytes=moved, dtype=math_dtype(x), note=unknown_dtype_note(x))


@formula("gated_activation_backward")
def gated_activation_backward(spec: OpSpec) -> Cost:
    """Gradients of both halves: 10 FLOPs an element of the result's gradient. Tensors: that gradient, x."""
    grad, x = tensor(spec, 0), tensor(spec, 1)
    moved = total(nbytes(grad, x), bytes_of(elements(x), x.dtype))
    return Cost(flops=10 * elements(grad), bytes=moved, dtype=math_dtype(grad, x), note=unknown_dtype_note(grad, x))


@formula("rotary_embedding")
def rotary_embedding(spec: OpSpec) -> Cost:
    """Rotates pairs in place: 3 FLOPs an element [M9]. Tensors: rotated ones as a list, then tables and positions read.

    Tables of cosines are read once where they are not larger than what is rotated.
    """
    rotated = spec.tensors[0] if spec.tensors else None
    if not isinstance(rotated, tuple):
        raise BadShape(f"{spec.kind}: a list of rotated tensors comes first")
    n = sum(elements(t) for t in rotated)
    tables = (min(total(nbytes(t)) or 0, total(nbytes(*rotated)) or 0) for t in flat(spec.tensors[1:]))
    moved = total(nbytes(*rotated), nbytes(*rotated))
    return Cost(
        flops=3 * n,
        bytes=None if moved is None else moved + sum(tables),
        dtype=math_dtype(*rotated),
        note=unknown_dtype_note(*rotated),
    )

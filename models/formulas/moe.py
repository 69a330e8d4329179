"""Mixtures of experts: routing, permutation, fused experts."""

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import formula
from tracegap.models.formulas.matmul import matmul_flops
from tracegap.models.formulas.sizes import (
    bytes_of,
    elements,
    join,
    math_dtype,
    nbytes,
    tensor,
    total,
    unknown_dtype_note,
)
from tracegap.models.ops import OpSpec


@formula("routing")
def routing(spec: OpSpec) -> Cost:
    """Scores of experts to the chosen ones: a softmax or sigmoid (5 FLOPs a score) and the choice, in one kernel.

    Tensors: scores [tokens, experts], then the results written (weights, indices).
    """
    scores = tensor(spec, 0)
    return Cost(
        flops=5 * elements(scores),
        bytes=nbytes(*spec.tensors),
        dtype=math_dtype(scores),
        note=unknown_dtype_note(*spec.tensors),
    )


@formula("histogram")
def histogram(spec: OpSpec) -> Cost:
    """Counts values in bins: one add an element. Tensors: x, then results written. Params: `bins` (of x's dtype)."""
    x = tensor(spec, 0)
    bins = spec.params.get("bins")
    written = 0 if bins is None else bytes_of(int(bins), x.dtype)
    return Cost(
        flops=elements(x),
        bytes=total(nbytes(*spec.tensors), written),
        dtype=math_dtype(x),
        note=unknown_dtype_note(*spec.tensors),
    )


@formula("fused_experts")
def fused_experts(spec: OpSpec) -> Cost:
    """Two grouped products and the gate between them, for the experts that each token uses.

    Tensors: x [T, D], first weights [E, 2F or F, D], second [E, D, F], expert weights, expert ids [T, k], then scales.
    Weights of at most T k experts are read. Balanced or not, FLOPs are the same; padding is not counted.
    """
    x, first, second, ids = tensor(spec, 0), tensor(spec, 1), tensor(spec, 2), tensor(spec, 4)
    if len(x.shape) != 2 or len(first.shape) != 3 or len(second.shape) != 3 or first.shape[0] != second.shape[0]:
        raise BadShape(f"{spec.kind}: {x.shape}, {first.shape}, {second.shape}")
    packed = x.shape[1] // max(first.shape[2], 1)
    if packed not in {1, 2} or first.shape[2] * packed != x.shape[1]:
        raise BadShape(f"{spec.kind}: weights {first.shape} do not fit {x.shape}")
    rows = elements(ids)
    experts = first.shape[0]
    flops = matmul_flops(rows, x.shape[1], first.shape[1]) + matmul_flops(
        rows, second.shape[2] * packed, second.shape[1]
    )
    weights = nbytes(first, second)
    touched = None if weights is None else weights * min(experts, rows) // experts
    moved = total(touched, nbytes(x, *spec.tensors[3:]), bytes_of(elements(x), x.dtype))
    note = "what lies between the two products is not counted; activations count as multiplied in their own dtype"
    return Cost(flops=flops, bytes=moved, dtype=math_dtype(x), note=join(note, unknown_dtype_note(*spec.tensors)))

"""Embeddings, gathers and scatters: what is touched counts, the table does not."""

from math import ceil, log2, prod

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import formula
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


@formula("embedding")
def embedding(spec: OpSpec) -> Cost:
    """Copies a row of the table for each index: 2 n(out) read and written, indices read. Tensors: table, indices."""
    table, index = tensor(spec, 0), tensor(spec, 1)
    out = elements(index) * prod(table.shape[1:])
    moved = total(bytes_of(2 * out, table.dtype), nbytes(index))
    return Cost(flops=0, bytes=moved, note=unknown_dtype_note(table, index))


@formula("embedding_backward")
def embedding_backward(spec: OpSpec) -> Cost:
    """Adds gradients into a zeroed table. Tensors: gradient, indices. Params: `rows` of the table (None = not known).

    Touched rows are read and written; they count as if no index came twice.
    """
    grad, index = tensor(spec, 0), tensor(spec, 1)
    rows = spec.params.get("rows")
    n = elements(grad)
    if rows is None:
        return Cost(flops=n, bytes=None, dtype=math_dtype(grad), note="rows of the table are not in the trace")
    table = int(rows) * (n // max(elements(index), 1))
    moved = total(nbytes(grad, index), bytes_of(table + 2 * n, grad.dtype))
    return Cost(flops=n, bytes=moved, dtype=math_dtype(grad), note=unknown_dtype_note(grad, index))


@formula("embedding_bag")
def embedding_bag(spec: OpSpec) -> Cost:
    """Sums the rows of each bag: an add for each element read. Tensors: table, indices, offsets."""
    table, index, offsets = (tensor(spec, i) for i in range(3))
    width = prod(table.shape[1:])
    read, bags = elements(index) * width, elements(offsets)
    moved = total(bytes_of(read + bags * width, table.dtype), nbytes(index, offsets))
    return Cost(flops=read, bytes=moved, dtype=math_dtype(table), note=unknown_dtype_note(table, index))


@formula("index_rows")
def index_rows(spec: OpSpec) -> Cost:
    """Copies a row for each index, as tokens to their experts: each row read once, written as often as it is asked for.

    Tensors: rows [T, D], indices [T, k].
    """
    source, index = tensor(spec, 0), tensor(spec, 1)
    width = prod(source.shape[1:])
    moved = total(nbytes(source, index), bytes_of(elements(index) * width, source.dtype))
    return Cost(flops=0, bytes=moved, note=unknown_dtype_note(source, index))


@formula("gather")
def gather(spec: OpSpec) -> Cost:
    """Reads one element for each index and writes it. Tensors: source, indices."""
    source, index = tensor(spec, 0), tensor(spec, 1)
    moved = total(bytes_of(2 * elements(index), source.dtype), nbytes(index))
    return Cost(flops=0, bytes=moved, note=unknown_dtype_note(source, index))


@formula("index_select")
def index_select(spec: OpSpec) -> Cost:
    """Copies slices along a dimension. Tensors: source, indices. Params: `dim` (None = not known)."""
    source, index = tensor(spec, 0), tensor(spec, 1)
    dim = spec.params.get("dim")
    if dim is None:
        return Cost(flops=0, bytes=None, note="the dimension is not in the trace")
    if not -len(source.shape) <= int(dim) < len(source.shape):
        raise BadShape(f"{spec.kind}: dimension {dim} of shape {source.shape}")
    out = elements(source) // max(source.shape[int(dim)], 1) * elements(index)
    moved = total(bytes_of(2 * out, source.dtype), nbytes(index))
    return Cost(flops=0, bytes=moved, note=unknown_dtype_note(source, index))


@formula("scatter")
def scatter(spec: OpSpec) -> Cost:
    """Writes (or adds) a source into places of a tensor.

    Tensors: source or None, indices. Params: `dtype` of the target when there is no source, `adds` (places are read as
    well, one FLOP each).
    """
    index = tensor(spec, 1)
    source = spec.tensors[0]
    n = elements(tensor(spec, 0)) if source is not None else elements(index)
    dtype = tensor(spec, 0).dtype if source is not None else str(spec.params["dtype"])
    adds = bool(spec.params.get("adds"))
    moved = total(nbytes(*spec.tensors), bytes_of(n * (2 if adds else 1), dtype))
    math = math_dtype(tensor(spec, 0)) if adds and source is not None else None
    return Cost(flops=n if adds else 0, bytes=moved, dtype=math, note=unknown_dtype_note(*spec.tensors))


@formula("search")
def search(spec: OpSpec) -> Cost:
    """Finds places in sorted boundaries by halving. Tensors: values, boundaries. Params: `out_dtype`."""
    values, boundaries = tensor(spec, 0), tensor(spec, 1)
    n, length = elements(values), boundaries.shape[-1] if boundaries.shape else 1
    moved = total(nbytes(values, boundaries), bytes_of(n, str(spec.params["out_dtype"])))
    note = unknown_dtype_note(values, boundaries)
    return Cost(flops=n * ceil(log2(length + 1)), bytes=moved, dtype=math_dtype(values), note=note)


@formula("put")
def put(spec: OpSpec) -> Cost:
    """Writes values where indices say that are not known themselves: each value read once, and written once.

    Tensors: values, target (for its dtype). Params: `adds` (the target is read and added to; None = not known: FLOPs are
    not). A number or values that are spread out tell no size.
    """
    values, target = tensor(spec, 0), tensor(spec, 1)
    n, adds = elements(values), spec.params.get("adds")
    if not values.shape:
        raise BadShape(f"{spec.kind}: a single value, of which the indices tell how often it is written")
    moved = total(nbytes(values), bytes_of(2 * n if adds else n, target.dtype))
    note = join("index tensors are not in the trace, and not counted", unknown_dtype_note(values, target))
    return Cost(flops=None if adds is None else n if adds else 0, bytes=moved, dtype=math_dtype(values), note=note)

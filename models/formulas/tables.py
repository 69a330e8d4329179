"""Lookups in many tables of embeddings at once, with their sums over bags, and quantisation of rows.

Each row that is looked up counts as read, and so each gradient row of a lookup: tables are larger than caches. Which rows
are the same depends on the data.
"""

from math import prod

from tracegap.models.cost import Cost
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

_NO_WIDTH = "the tables differ in width or tell none, and how many indices are of which is not in the trace"
_MEAN = "tables are taken to be equally wide: their mean is a whole number of elements"


@formula("table_lookup")
def table_lookup(spec: OpSpec) -> Cost:
    """Sums the rows of each bag into a row of the result, in fp32: an add for each element read, two if rows have weights.

    Tensors: tables, indices, offsets (one more than bags), weights of the rows (None = none). Params: `width` of the
    tables (None = not known), `mean` (whether they may differ from it).
    """
    tables, index, offsets = (tensor(spec, i) for i in range(3))
    weights = spec.tensors[3] if len(spec.tensors) > 3 else None
    width = spec.params.get("width")
    if width is None:
        return Cost(flops=None, bytes=None, note=_NO_WIDTH)
    read, bags = elements(index) * int(width), elements(offsets) - 1
    moved = total(bytes_of(read, tables.dtype), bytes_of(bags * int(width), "fp32"), nbytes(index, offsets, weights))
    note = join(_MEAN if spec.params.get("mean") else None, unknown_dtype_note(tables, index))
    return Cost(flops=read * (1 if weights is None else 2), bytes=moved, dtype="fp32", note=note)


@formula("table_lookup_backward")
def table_lookup_backward(spec: OpSpec) -> Cost:
    """Adds the gradients of the lookups of each row and updates the row: an add for each element of each lookup.

    Tensors: gradient of the result. Params: `width`, `mean` as above, `lookups` (None = not known). Left out, as they
    depend on the data, are the sort of the indices and the rows that are written.
    """
    grad = tensor(spec, 0)
    width, lookups = spec.params.get("width"), spec.params.get("lookups")
    if width is None or lookups is None:
        return Cost(flops=None, bytes=None, note=f"its lookup is not in the trace, or {_NO_WIDTH}")
    read = int(lookups) * int(width)
    moved = total(bytes_of(read, grad.dtype), bytes_of(int(lookups), "int64"))
    note = join(_MEAN if spec.params.get("mean") else None, "rows written and the sort of indices are not counted")
    return Cost(flops=read, bytes=moved, dtype=math_dtype(grad), note=join(note, unknown_dtype_note(grad)))


@formula("quantized_rows")
def quantized_rows(spec: OpSpec) -> Cost:
    """Makes rows of 8-bit numbers with their scale behind them, or the reverse: 2 FLOPs an element.

    Tensors: x [..., columns]. Params: `scale_bytes` behind a row of 8-bit numbers, `out_dtype` (uint8: quantises).
    """
    x = tensor(spec, 0)
    scale, out_dtype = int(spec.params.get("scale_bytes", 0)), str(spec.params["out_dtype"])
    rows = prod(x.shape[:-1])
    quantises = out_dtype == "uint8"
    columns = x.shape[-1] if quantises else x.shape[-1] - scale
    written = rows * (columns + (scale if quantises else 0))
    moved = total(nbytes(x), bytes_of(written, out_dtype))
    return Cost(flops=2 * rows * columns, bytes=moved, dtype="fp32", note=unknown_dtype_note(x))

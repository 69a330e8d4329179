# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""Matrix products: dense, batched, scaled, weight-only quantised, grouped [M1]."""

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
    tensor,
    total,
    unknown_dtype_note,
)
from tracegap.models.ops import OpSpec
from tracegap.models.quantities import quantity


def matmul_flops(M: int, K: int, N: int, batch: int = 1) -> int:
    """FLOPs of `batch` products [M, K] x [K, N]: 2 M K N each [M1]. An added bias or matrix is not counted."""
    return 2 * batch * M * K * N


@quantity("grouped_mm_bytes", "M1")
def grouped_mm_bytes(*, M: int, K: int, N: int, G: int, bytes_per_elem: float) -> float:
    """Bytes of a grouped product [M, K] x [G, K, N]: M rows over all groups; every group's weights are read [M1]."""
    return bytes_per_elem * (M * K + G * K * N + M * N)


@quantity("quantised_weight_bytes", "M1")
def quantised_weight_bytes(
    *, K: int, N: int, weight_bits: float, group: int, scale_bytes: float = 2, zero_bytes: float = 0
) -> float:
    """Bytes of [K, N] weights of few bits, with a scale (and a zero point) for each `group` of a column [M1]."""
    return K * N * weight_bits / 8 + K / group * N * (scale_bytes + zero_bytes)


def _cost(spec: OpSpec, flops: int, out_elements: int, *operands: Operand) -> Cost:
    """Cost of a product of the first two operands with a result in `out_dtype` (default: that of the first)."""
    a = tensor(spec, 0)
    out_dtype = spec.params.get("out_dtype", a.dtype)
    math = spec.params.get("math") or math_dtype(a)
    note = join(
        spec.params.get("note"),
        unknown_dtype_note(*operands),
        "dtype of the result is not in the trace" if out_dtype is None else None,
    )
    written = None if out_dtype is None else bytes_of(out_elements, out_dtype)
    return Cost(flops=flops, bytes=total(nbytes(*operands), written), dtype=math, note=note)


@formula("matmul")
def matmul(spec: OpSpec) -> Cost:
    """Product of a [..., M, K] and b [..., K, N] with equal batch dimensions; vectors are [K].

    Tensors: a, b, then whatever else is read once at its own size (bias, addend, scales). Params: `out_dtype` (default
    a's; None = unknown), `math` (dtype of the arithmetic; default a's), `transposed_b` (b is [N, K], as weights of a
    linear layer are; a may have any rank), `note` (what the bytes leave out).
    """
    a, b = tensor(spec, 0), tensor(spec, 1)
    if spec.params.get("transposed_b"):
        *rows, k = a.shape
        n, k_b = b.shape if len(b.shape) == 2 else (1, *b.shape)
        batch, m = 1, prod(rows)
    else:
        a_shape = a.shape if len(a.shape) > 1 else (1, *a.shape)
        b_shape = b.shape if len(b.shape) > 1 else (*b.shape, 1)
        (*batch_a, m, k), (*batch_b, k_b, n) = a_shape, b_shape
        if batch_a and batch_b and batch_a != batch_b:
            raise BadShape(f"{spec.kind}: batches differ: {a.shape} x {b.shape}")
        batch = prod(batch_a or batch_b)
        if batch_b and not batch_a:
            raise BadShape(f"{spec.kind}: {a.shape} x {b.shape}")
    if k != k_b:
        raise BadShape(f"{spec.kind}: contracted sizes differ: {a.shape} x {b.shape}")
    return _cost(spec, matmul_flops(m, k, n, batch), batch * m * n, *spec.tensors)


@formula("weight_only_matmul")
def weight_only_matmul(spec: OpSpec) -> Cost:
    """Activations [M, K] times packed low-precision weights of `out_features` rows; math in the activations' dtype.

    Tensors: activations, weights as stored, then scales and zero points. Params: `out_features`.
    """
    a = tensor(spec, 0)
    *rows, k = a.shape
    n = int(spec.params["out_features"])
    return _cost(spec, matmul_flops(prod(rows), k, n), prod(rows) * n, *spec.tensors)


@formula("grouped_matmul")
def grouped_matmul(spec: OpSpec) -> Cost:
    """Products of groups with ragged sizes, as in mixtures of experts [M1].

    [M, K] x [G, K, N]: rows are split over groups. [G, M, K] x [K, N]: columns are. [M, K] x [K, N] with G offsets: the
    contracted size is, the result is [G, M, N]. Tensors: a, b, offsets, bias or scales. Rows after the last offset
    count.
    """
    a, b = tensor(spec, 0), tensor(spec, 1)
    offsets = flat(spec.tensors[2:3])
    ranks = len(a.shape), len(b.shape)
    m, k = a.shape[-2:]
    k_b, n = b.shape[-2:]
    if k != k_b:
        raise BadShape(f"{spec.kind}: contracted sizes differ: {a.shape} x {b.shape}")
    groups = a.shape[0] if ranks == (3, 3) else 1
    if ranks == (2, 2):
        if not offsets:
            raise BadShape(f"{spec.kind}: {a.shape} x {b.shape} needs offsets")
        out = elements(offsets[0]) * m * n
    else:
        out = groups * m * n
    return _cost(spec, matmul_flops(m, k, n, groups), out, *spec.tensors)


@formula("two_layers")
def two_layers(spec: OpSpec) -> Cost:
    """Two linear layers in one call, with an activation (that may halve the width) between.

    Tensors: x [.., K], first weights [F, K], second [N, F or F/2], then what else is read. Params: `note`. What lies
    between the layers is not counted.
    """
    x, first, second = (tensor(spec, i) for i in range(3))
    rows, k = prod(x.shape[:-1]), x.shape[-1] if x.shape else 0
    if len(first.shape) != 2 or len(second.shape) != 2 or first.shape[1] != k:
        raise BadShape(f"{spec.kind}: {x.shape}, {first.shape}, {second.shape}")
    flops = matmul_flops(rows, k, first.shape[0]) + matmul_flops(rows, second.shape[1], second.shape[0])
    return _cost(spec, flops, rows * second.shape[0], *spec.tensors)


@formula("template_product")
def template_product(spec: OpSpec) -> Cost:
    """A compiler's kernel made from the template of a product, of which the buffers are known: operands, result, epilogue.

    Tensors: all buffers, each read or written once. FLOPs are those of the one product that fits three of them, [.., M, K]
    x [.., K, N] -> [.., M, N]; unknown where none or several of different cost do. The epilogue's are not counted.
    """
    buffers = flat(spec.tensors)
    found = {
        matmul_flops(m, k, n, prod(batch))
        for i, a in enumerate(buffers)
        for j, b in enumerate(buffers)
        for o, c in enumerate(buffers)
        if len({i, j, o}) == 3 and len(a.shape) == len(b.shape) == len(c.shape) >= 2
        for (*batch, m, k), (*batch_b, k_b, n) in ((a.shape, b.shape),)
        if k == k_b and batch == batch_b and c.shape == (*batch, m, n)
    }
    dtype = math_dtype(buffers[0]) if buffers else None
    if len(found) != 1:
        why = "the product of a compiled kernel cannot be told from its buffers"
        return Cost(flops=None, bytes=nbytes(*buffers), dtype=dtype, note=join(why, unknown_dtype_note(*buffers)))
    note = join("the product that fits the buffers of a compiled kernel", unknown_dtype_note(*buffers))
    return Cost(flops=found.pop(), bytes=nbytes(*buffers), dtype=dtype, note=note)

"""Elements and bytes of tensors, shared by the formulas: what is stored, what a result holds, which dtype it has."""

from collections.abc import Iterable
from math import ceil, prod

from tracegap.models.errors import BadShape
from tracegap.models.ops import DTYPE_BYTES, OpSpec, Tensor

UNKNOWN = "unknown"
"""Dtype of a tensor whose trace does not say it; its bytes are None."""

_CATEGORIES = (
    ("bool",),
    ("int4", "uint8", "int8", "int16", "int32", "int64"),
    ("fp4", "fp8", "fp16", "bf16", "tf32", "fp32", "fp64"),
    ("complex64", "complex128"),
)
"""PyTorch's categories of dtypes, each from narrow to wide."""

_NEITHER = {frozenset({"fp16", "bf16"}): "fp32", frozenset({"uint8", "int8"}): "int16"}
"""Pairs of which neither holds the other's values."""

_RANK = {dtype: (category, i) for category, names in enumerate(_CATEGORIES) for i, dtype in enumerate(names)}

Operand = Tensor | tuple[Tensor, ...] | None


def tensor(spec: OpSpec, index: int) -> Tensor:
    """The tensor at a place that the operation cannot do without; raises BadShape where it is missing or a list."""
    found = spec.tensors[index] if index < len(spec.tensors) else None
    if not isinstance(found, Tensor):
        raise BadShape(f"{spec.kind}: operand {index} must be a tensor, got {found!r}")
    return found


def flat(operands: Iterable[Operand]) -> list[Tensor]:
    """All tensors, those in lists as well, in order."""
    return [t for o in operands for t in (o if isinstance(o, tuple) else (o,)) if t is not None]


def elements(operand: Tensor) -> int:
    """Elements of the logical tensor, broadcast ones included."""
    return prod(operand.shape)


def stored_elements(operand: Tensor) -> int:
    """Elements in memory: a dimension of stride 0 is stored once, overlapping windows as far as they reach."""
    shape, strides = operand.shape, operand.strides
    if strides is None or len(strides) != len(shape) or 0 in shape:
        return prod(shape)
    distinct = prod(n for n, s in zip(shape, strides, strict=True) if s != 0)
    reach = 1 + sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True))
    return min(distinct, reach)


def bytes_of(count: int, dtype: str) -> int | None:
    """Bytes of `count` elements; None where the dtype is unknown."""
    size = DTYPE_BYTES.get(dtype)
    return None if size is None else ceil(count * size)


def nbytes(*operands: Operand) -> int | None:
    """Bytes that reading all of these once moves; None where a dtype is unknown."""
    return total(*(bytes_of(stored_elements(t), t.dtype) for t in flat(operands)))


def total(*parts: int | None) -> int | None:
    """Sum; None where a part is."""
    return None if any(p is None for p in parts) else sum(p for p in parts if p is not None)


def broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Shape of an elementwise result; raises BadShape where the operands do not go together."""
    result: list[int] = []
    for shape in shapes:
        if len(shape) > len(result):
            result = [1] * (len(shape) - len(result)) + result
        for i in range(1, len(shape) + 1):
            if shape[-i] != 1:
                if result[-i] not in {1, shape[-i]}:
                    raise BadShape(f"shapes do not broadcast: {shape} with {tuple(result)}")
                result[-i] = shape[-i]
    return tuple(result)


def promote(tensors: Iterable[Tensor]) -> str:
    """Dtype of an elementwise result by PyTorch's rules, UNKNOWN where an operand's is.

    The highest category wins; in it, operands with dimensions come before 0-dimensional ones, then the widest.
    """
    operands = list(tensors)
    if not operands or any(t.dtype not in _RANK for t in operands):
        return UNKNOWN
    category = max(_RANK[t.dtype][0] for t in operands)
    leading = [t for t in operands if _RANK[t.dtype][0] == category]
    dtypes = {t.dtype for t in leading if t.shape} or {t.dtype for t in leading}
    neither = _NEITHER.get(frozenset(dtypes))
    return neither or max(dtypes, key=lambda d: _RANK[d])


def math_dtype(*tensors: Tensor) -> str | None:
    """Dtype of the arithmetic on these operands, or None where unknown."""
    dtype = promote(tensors)
    return None if dtype == UNKNOWN else dtype


def unknown_dtype_note(*operands: Operand) -> str | None:
    """Why bytes are None, where a dtype is the reason."""
    return "dtypes are not in the trace" if any(t.dtype not in DTYPE_BYTES for t in flat(operands)) else None


def join(*notes: str | None) -> str | None:
    """One note of several."""
    return "; ".join(n for n in notes if n) or None

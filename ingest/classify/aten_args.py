"""Arguments of a PyTorch operator as Kineto records them, as tensors and values. Pure.

Quirks: a scalar and a 0-dimensional tensor both have the dims `[]`; a list of tensors has a list of shapes and no
element types, and in older releases no shapes either; releases before 2.1 have no scalars, the oldest no types.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracegap.ingest.classify.dtypes import DTYPES, PACKED
from tracegap.models.errors import BadShape
from tracegap.models.formulas.sizes import UNKNOWN, Operand, promote
from tracegap.models.ops import Tensor

_VALUE_KINDS = frozenset({"Int", "Double", "Bool", "ComplexDouble"})
"""What releases up to 1.11 call scalars, where dtypes have small letters."""

_PYTHON_NUMBERS = frozenset({"double", "long int", "bool", "c10::complex<double>"})
"""Types that a Python number has when it comes as a 0-dimensional tensor."""


@dataclass(frozen=True, slots=True)
class Args:
    """One call: `Input Dims`, `Input type`, `Input Strides`, `Concrete Inputs`; None where the trace lacks them."""

    dims: Sequence[Any]
    types: Sequence[Any] | None
    strides: Sequence[Any] | None
    concrete: Sequence[Any] | None
    list_dtype: str = UNKNOWN
    """Element dtype of tensor lists, which Kineto does not record."""
    bare_dtype: str = UNKNOWN
    """Element dtype of all tensors where the trace has no types at all."""

    @property
    def count(self) -> int:
        """Arguments of the call, defaults included."""
        return len(self.dims)

    @property
    def has_values(self) -> bool:
        """Whether the trace has scalar arguments at all."""
        return bool(self.concrete)

    def tensor(self, position: int) -> Operand:
        """The tensor or list of tensors at a position; None where there is neither.

        A Python number beside tensors comes as a 0-dimensional one; it is passed by value, moves no bytes: None too.
        """
        if position >= len(self.dims):
            return None
        shape = self.dims[position] or []
        kind = _get(self.types, position)
        strides = _get(self.strides, position)
        if kind == "TensorList" or (shape and isinstance(shape[0], list)):
            each = strides if isinstance(strides, list) and len(strides) == len(shape) else [None] * len(shape)
            dtype = DTYPES.get(str(kind), self.list_dtype)
            return tuple(_tensor(n, dtype, s) for n, s in zip(shape, each, strict=True))
        if not self.types:
            return _tensor(shape, self.bare_dtype, strides) if shape else None
        if kind not in DTYPES or kind in _VALUE_KINDS or (not shape and kind in _PYTHON_NUMBERS and any(self.dims)):
            return None
        return _tensor(shape, DTYPES[kind], strides, packed=kind in PACKED)

    def operands(self) -> tuple[Operand, ...]:
        """What `tensor` finds at each position."""
        return tuple(self.tensor(i) for i in range(self.count))

    def tensors(self, position: int) -> tuple[Tensor, ...]:
        """The list of tensors at a position; raises BadShape where the trace has no shapes of it."""
        operand = self.tensor(position)
        if not isinstance(operand, tuple) or not operand:
            raise BadShape("shapes of the tensor list are not in the trace")
        return operand

    def value(self, position: int, default: Any = None) -> Any:
        """The scalar at a position; None where the trace has no scalars, `default` where the call has none there."""
        if not self.concrete:
            return None
        if position >= len(self.concrete):
            return default
        found = _parse(self.concrete[position])
        return default if found is None else found

    def rank(self, position: int) -> int:
        """Dimensions of the tensor at a position; 0 where there is none."""
        operand = self.tensor(position)
        return len(operand.shape) if isinstance(operand, Tensor) else 0

    def pack(self, *positions: int) -> tuple[Tensor, ...]:
        """The tensors at these positions as one list."""
        return tuple(t for p in positions if isinstance(t := self.tensor(p), Tensor))

    def promoted(self, *positions: int) -> str | None:
        """Dtype of an elementwise result of these; None where none is a tensor."""
        tensors = self.pack(*positions)
        return promote(tensors) if tensors else None

    def number_result(self, position: int, number: int) -> str | None:
        """Dtype of integers with a Python number at another position: fp32 for a float; None = the tensors' own."""
        is_float = _get(self.types, number) == "double" or isinstance(self.value(number), float)
        by_value = is_float and self.tensor(number) is None
        return self.float_result(position) if by_value else None

    def float_result(self, position: int) -> str | None:
        """Dtype of a result that is floating point even for integers; None where the operand's own holds."""
        operand = self.tensor(position)
        integer = isinstance(operand, Tensor) and operand.dtype in {"bool", "uint8", "int8", "int16", "int32", "int64"}
        return "fp32" if integer else None

    def sum_result(self, position: int) -> str | None:
        """Dtype of a sum: 64-bit integers for all integers; None where the operand's own holds."""
        operand = self.tensor(position)
        small = isinstance(operand, Tensor) and operand.dtype in {"bool", "uint8", "int8", "int16", "int32"}
        return "int64" if small else None


def _get(values: Sequence[Any] | None, position: int) -> Any:
    return values[position] if values and position < len(values) else None


def _tensor(shape: Sequence[int], dtype: str, strides: Any, *, packed: bool = False) -> Tensor:
    sizes = tuple(int(n) for n in shape)
    known = isinstance(strides, list) and len(strides) == len(sizes)
    steps = tuple(int(s) for s in strides) if known else None
    if packed and sizes:
        # two values an element, along the dimension that is dense in memory
        dense = steps.index(1) if steps and 1 in steps else len(sizes) - 1
        sizes = tuple(2 * n if i == dense else n for i, n in enumerate(sizes))
        steps = None
    return Tensor(shape=sizes, dtype=dtype, strides=steps)


def _parse(text: Any) -> Any:
    """A value from Kineto's text; None for "" and "None"."""
    if not isinstance(text, str):
        return text
    if text in {"", "None"}:
        return None
    if text in {"True", "False"}:
        return text == "True"
    if text.startswith("["):
        inner = text.strip("[] ")
        return [_parse(part.strip()) for part in inner.split(",")] if inner else []
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text

"""The table of operators that have a formula, and how an entry says where its arguments are.

Entries come from `aten_ops` (PyTorch's own operators) and `library_ops` (those of libraries). Positions are those of the
operator's schema, as Kineto's `Input Dims` and `Concrete Inputs` count them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from math import prod
from typing import Any

from tracegap.ingest.classify.aten_args import Args
from tracegap.ingest.classify.dtypes import of_scalar_type
from tracegap.models.formulas.sizes import Operand
from tracegap.models.ops import OpClass, Tensor

Param = Callable[[Args], Any]
"""Computes a formula's parameter from the arguments of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How to cost an operator."""

    op_class: OpClass
    kind: str
    """The formula, an `OpSpec.kind`."""
    tensors: tuple[int | Callable[[Args], Operand], ...]
    """Positions of the tensors that the formula takes, in its order."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """What the formula documents: a constant, or a `Param`."""


ENTRIES: dict[str, Entry] = {}
"""What has been entered so far, by operator name: without the namespace for `aten::`, with it for others; `add` also
stands for `add_`. Readers take `entries()`."""


@cache
def entries() -> dict[str, Entry]:
    """All entries."""
    for module in ("aten_ops", "library_ops"):
        import_module(f"tracegap.ingest.classify.{module}")
    return ENTRIES


def ops(names: str, op_class: OpClass, kind: str, *tensors: int | Callable[[Args], Operand], **params: Any) -> None:
    """Enters operators, separated by blanks, that one formula costs; raises ValueError for a name that is in already."""
    entry = Entry(op_class=op_class, kind=kind, tensors=tensors, params=params)
    for name in names.split():
        if name in ENTRIES:
            raise ValueError(f"two entries for {name}")
        ENTRIES[name] = entry


# Where a parameter comes from


def at(position: int, default: Any = None) -> Param:
    """The scalar argument at a position; None where the trace has no scalars, `default` where the call left it out."""
    return lambda args: args.value(position, default)


def dtype_at(position: int, default: Param | None = None) -> Param:
    """The dtype argument at a position; where the call left it out, what `default` says."""

    def param(args: Args) -> str | None:
        number = args.value(position, -1)
        if isinstance(number, int) and number >= 0:
            return of_scalar_type(number)
        return default(args) if default and number is not None else None

    return param


def dtype_of(position: int) -> Param:
    """The dtype of the tensor at a position."""

    def param(args: Args) -> str | None:
        operand = args.tensor(position)
        return operand.dtype if isinstance(operand, Tensor) else None

    return param


def present(position: int) -> Param:
    """Whether there is a tensor at a position."""
    return lambda args: args.tensor(position) is not None


def size_of(position: int, dim: int, times: int = 1) -> Param:
    """Extent of a dimension of the tensor at a position, times a number; None where there is none."""

    def param(args: Args) -> int | None:
        operand = args.tensor(position)
        return operand.shape[dim] * times if isinstance(operand, Tensor) and len(operand.shape) > dim else None

    return param


def packed_batch(starts: int, longest: int) -> dict[str, Param]:
    """Sizes of a packed batch: starts of its sequences at one position, the longest of queries, then keys, at another."""
    ends = size_of(starts, 0)
    return {
        "sequences": lambda args: None if (count := ends(args)) is None else count - 1,
        "longest_q": at(longest),
        "longest_k": at(longest + 1),
    }


def list_at(position: int) -> Callable[[Args], Operand]:
    """The list of tensors at a position, without which the operator cannot be costed."""
    return lambda args: args.tensors(position)


def product_at(position: int) -> Param:
    """Product of a list of sizes; None where the trace has none."""
    return lambda args: prod(sizes) if isinstance(sizes := args.value(position), list) else None


def dims_at(position: int, least_arguments: int = 0) -> Param:
    """Reduced dimensions: a number, a list, None for all, "unknown". Overloads with fewer arguments reduce all."""

    def param(args: Args) -> Any:
        if args.count < max(least_arguments, position + 1):
            return None
        if not args.has_values:
            return "unknown"
        dims = args.value(position)
        return dims if isinstance(dims, int | list) and not isinstance(dims, bool) else None

    return param

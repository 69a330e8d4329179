"""From a PyTorch operator and its recorded arguments to class, FLOPs and bytes. Pure.

`describe` looks an operator up in the table of `aten_table`, and says why where it cannot tell a number. It is meant to
be called once for each distinct tuple of arguments: a trace has few of them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from tracegap.ingest.classify.aten_args import Args
from tracegap.ingest.classify.aten_names import AUTOGRAD, COMMUNICATION, REASONS, VIEWS, WRAPPERS
from tracegap.ingest.classify.aten_table import Entry, entries
from tracegap.ingest.classify.kernel import kernel_class
from tracegap.ingest.classify.table_lookups import plain_name
from tracegap.models import formulas
from tracegap.models.errors import BadInput, BadShape
from tracegap.models.formulas.sizes import UNKNOWN, join
from tracegap.models.ops import OpClass, OpSpec

_OF_INDICES = frozenset({OpClass.EMBEDDING, OpClass.SORT})
_BY_NAME = "element types are not in the trace: those of the kernel's name are taken"
_OVERLOAD = re.compile(r"\.[A-Za-z_]\w*$")


@dataclass(frozen=True, slots=True)
class Described:
    """What an operator's name and arguments tell."""

    op_class: OpClass | None
    """None where the name says nothing: the kernel's own name then decides."""
    dtype: str | None
    """Math dtype, a key of `models.ops.DTYPE_BYTES`; the kernel's name may know better (TF32)."""
    flops: int | None
    bytes: int | None
    """At least moved from and to device memory."""
    note: str | None
    """Why a number is None, or what the numbers assume."""


def _plain(name: str) -> str:
    """Operator name as the tables have it: no overload, no `aten::`."""
    return _OVERLOAD.sub("", plain_name(name).removeprefix("aten::"))


@lru_cache(1 << 14)
def is_wrapper(name: str) -> bool:
    """Whether the operator only calls others and counts nothing itself: linear, einsum, autograd nodes."""
    return _plain(name) in WRAPPERS or (AUTOGRAD.search(name) is not None and plain_name(name) == name)


@lru_cache(1 << 14)
def is_view(name: str) -> bool:
    """Whether the operator makes a view or allocates: no kernel, no bytes."""
    return (name.startswith("aten::") or name in {"detach", "detach_"}) and _plain(name) in VIEWS


def describe(
    name: str,
    dims: Sequence[Any] | None,
    types: Sequence[Any] | None,
    strides: Sequence[Any] | None = None,
    concrete: Sequence[Any] | None = None,
    *,
    list_dtype: str | None = None,
    causal: bool | None = None,
    told: Mapping[str, Any] | None = None,
) -> Described:
    """Class and cost of one call.

    Arguments are Kineto's `Input Dims`, `Input type`, `Input Strides` and `Concrete Inputs`, decoded from JSON; None or
    empty where the trace has none. What the arguments do not have but the name of the kernel tells: `list_dtype`, the
    element type of tensor lists (`kernel.element_dtype`) and of all tensors where the trace has no types, and `causal`,
    the mask of attention (`kernel.causal_mask`); and what other calls tell: `told`, parameters of the formula
    (`aten_elsewhere`).
    """
    if name.startswith("triton_"):
        return _triton(name, dims, types, strides, concrete)
    plain = _plain(name)
    if is_view(name):
        return Described(OpClass.DATA_MOVEMENT, None, 0, 0, "a view or an allocation: no work")
    if COMMUNICATION.search(name):
        return Described(OpClass.COLLECTIVE, None, None, None, "communication is counted by its message")
    if plain in REASONS:
        op_class, reason = REASONS[plain]
        return Described(op_class, None, None, None, reason)
    entry, in_place = _entry(plain)
    if entry is None:
        if is_wrapper(name):
            return Described(None, None, None, None, "only calls other operators: they are counted")
        return Described(None, None, None, None, f"no formula for {name}")
    if not dims:
        return Described(entry.op_class, None, None, None, "no shapes in this trace: record_shapes=True")
    alike = bool(list_dtype) and not types and entry.op_class not in _OF_INDICES and entry.kind != "copy"
    bare_dtype = list_dtype if alike and list_dtype else UNKNOWN
    args = Args(dims, types, strides, concrete, list_dtype or UNKNOWN, bare_dtype)
    found = _costed(entry.op_class, lambda: _filled(_spec(entry, args, in_place=in_place), told, causal))
    return replace(found, note=join(found.note, _BY_NAME)) if alike else found


def _filled(spec: OpSpec, told: Mapping[str, Any] | None, causal: bool | None) -> OpSpec:
    """The operation with what other calls and the kernel's name tell, where its arguments do not."""
    params = {key: value for key, value in (told or {}).items() if spec.params.get(key) is None}
    if causal is not None and spec.params.get("causal", causal) is None:
        params["causal"] = causal
    return replace(spec, params=spec.params | params) if params else spec


def _entry(plain: str) -> tuple[Entry | None, bool]:
    """The table's entry, and whether the operator writes into its first argument."""
    known = entries()
    if plain in known:
        return known[plain], False
    if plain.endswith("_") and plain[:-1] in known:
        return known[plain[:-1]], True
    return None, False


def _spec(entry: Entry, args: Args, *, in_place: bool) -> OpSpec:
    params = {key: value(args) if callable(value) else value for key, value in entry.params.items()}
    tensors = tuple(args.tensor(t) if isinstance(t, int) else t(args) for t in entry.tensors)
    return OpSpec(kind=entry.kind, tensors=tensors, params=params | ({"in_place": True} if in_place else {}))


def _costed(op_class: OpClass, spec: Callable[[], OpSpec]) -> Described:
    try:
        cost = formulas.cost(spec())
    except (BadInput, BadShape) as error:
        return Described(op_class, None, None, None, str(error))
    except (IndexError, KeyError, TypeError, ValueError) as error:
        # arguments come from a file: another release's operator of this name may have others
        return Described(op_class, None, None, None, f"arguments are not those of the known operator: {error}")
    if min(cost.flops or 0, cost.bytes or 0) < 0:
        return Described(op_class, None, None, None, "its shapes are those of no tensor")
    return Described(op_class, cost.dtype, cost.flops, cost.bytes, cost.note)


def inputs_only(
    dims: Sequence[Any] | None, types: Sequence[Any] | None, strides: Sequence[Any] | None
) -> Described | None:
    """Cost of an operator without a formula whose kernel works element by element: what it reads, each tensor once.

    None where no tensor is recorded with its type. Its FLOPs and its results are not known.
    """
    if not dims or not types:
        return None
    args = Args(dims, types, strides, None)
    found = _costed(OpClass.ELEMENTWISE, lambda: OpSpec(kind="inputs", tensors=args.operands()))
    return None if found.bytes is None else found


def _triton(
    name: str,
    dims: Sequence[Any] | None,
    types: Sequence[Any] | None,
    strides: Sequence[Any] | None,
    concrete: Sequence[Any] | None,
) -> Described:
    """A kernel of PyTorch's compiler: its buffers are its arguments; only a template's arithmetic can be told of them."""
    op_class = kernel_class(name)
    if not dims:
        return Described(op_class, None, None, None, "no shapes in this trace: record_shapes=True")
    is_product = name.startswith("triton_tem_") and op_class is OpClass.MATMUL
    return _costed(op_class, lambda: _buffers(Args(dims, types, strides, concrete), is_product=is_product))


def _buffers(args: Args, *, is_product: bool) -> OpSpec:
    """All tensors of a compiled kernel; its integers are the extents that it visits."""
    tensors = args.operands()
    if is_product:
        return OpSpec(kind="template_product", tensors=tensors)
    values = (args.value(i) for i, t in enumerate(tensors) if t is None)
    visited = prod(v for v in values if type(v) is int)
    return OpSpec(kind="buffers", tensors=tensors, params={"iterations": visited if visited > 1 else None})

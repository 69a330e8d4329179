"""FBGEMM's lookups in tables of embeddings: what width the tables have, and how much a backward looks up. Pure.

One call looks up in many tables that lie behind one another, and records the tables as one row of numbers. The states of a
row-wise optimizer have a number for each row; the gradient of the result has B rows and the widths of all tables in each.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

LOOKUP, DENSE_LOOKUP, BACKWARD = "fbgemm::table_lookup", "fbgemm::dense_table_lookup", "fbgemm::table_lookup_backward"
"""Names for all that FBGEMM generates, one set for each optimizer."""

_NAMES = (
    (re.compile(r"^fbgemm::split_embedding_codegen_lookup_\w+"), LOOKUP),
    (re.compile(r"^fbgemm::dense_embedding_codegen_lookup_\w+"), DENSE_LOOKUP),
    (re.compile(r"^torch::autograd::CppNode<(?:\w+::)*SplitLookupFunction_\w+>"), BACKWARD),
    (re.compile(r"^torch::autograd::CppNode<(?:\w+::)*PermutePooledEmbsFunction"), "fbgemm::permute_pooled_embs"),
)


@lru_cache(1 << 14)
def plain_name(name: str) -> str:
    """The name under which an operator of FBGEMM is in the table of formulas; other names as they are."""
    return next((plain for pattern, plain in _NAMES if pattern.match(name)), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lookup:
    """A call that looks up."""

    tables: int
    bags: int
    """Rows of the result times tables."""
    lookups: int
    size: int
    """Elements of all tables."""
    width: int | None
    """Mean width of the tables by their rows, where the state of a row-wise optimizer tells those."""


class Lookups:
    """The lookups of a file, with the gradients of their results."""

    def __init__(self, calls: Iterable[tuple[str, Sequence[Any] | None]]) -> None:
        """Takes name and `Input Dims` of calls; those of no lookup are left aside."""
        self._calls: list[_Lookup] = []
        self._gradients: set[tuple[int, int]] = set()
        for name, dims in calls:
            plain = plain_name(name)
            if plain in (LOOKUP, DENSE_LOOKUP) and (call := _lookup(plain, dims or ())) is not None:
                self._calls.append(call)
            elif plain == BACKWARD and dims and _rank(dims[0]) == 2:
                self._gradients.add((dims[0][0], dims[0][1]))

    def told(self, name: str, dims: Sequence[Any] | None) -> dict[str, int | bool]:
        """`width` and, of a backward, `lookups`; `mean` where the tables may differ in width. Empty where not known."""
        plain = plain_name(name)
        if plain in (LOOKUP, DENSE_LOOKUP):
            call = _lookup(plain, dims or ())
            return {} if call is None else self._width(call)
        if plain != BACKWARD or not dims or _rank(dims[0]) != 2:
            return {}
        batch, total = dims[0]
        matching = [c for c in self._calls if c.bags == batch * c.tables and self._fits(c, total)]
        widths = {total // c.tables for c in matching}
        if len(widths) != 1:
            return {}
        width = widths.pop()
        sure = all(c.width == width or c.tables == 1 for c in matching)
        return {"width": width, "lookups": min(c.lookups for c in matching), "mean": not sure}

    @staticmethod
    def _fits(call: _Lookup, total: int) -> bool:
        """Whether all tables may be equally wide: FBGEMM's widths are multiples of 4, and tables have whole rows."""
        width, rest = divmod(total, call.tables)
        return rest == width % 4 == 0 < width and call.size % width == 0 and call.width in (None, width)

    def _width(self, call: _Lookup) -> dict[str, int | bool]:
        totals = {t for batch, t in self._gradients if call.bags == batch * call.tables and self._fits(call, t)}
        if len(totals) == 1:
            width = totals.pop() // call.tables
            return {"width": width, "mean": not (call.width == width or call.tables == 1)}
        return {"width": call.width, "mean": False} if call.width is not None and call.tables == 1 else {}


_POSITIONS = {LOOKUP: ((1, 2), 6, 11, 12), DENSE_LOOKUP: ((0,), 2, 7, 8)}
"""Of each call the weights, where the columns of the tables begin (one more than tables), indices, offsets."""


def _lookup(plain: str, dims: Sequence[Any]) -> _Lookup | None:
    weights, columns, indices, offsets = _POSITIONS[plain]
    if len(dims) <= offsets or any(_rank(dims[i]) != 1 for i in (*weights, columns, indices, offsets)):
        return None
    tables, bags = dims[columns][0] - 1, dims[offsets][0] - 1
    if tables < 1 or bags < 1 or bags % tables:
        return None
    size = sum(dims[i][0] for i in weights)
    rows = _rows(dims[offsets + 1 :], tables)
    width = size // rows if rows and size % rows == 0 and size > rows else None
    return _Lookup(tables=tables, bags=bags, lookups=dims[indices][0], size=size, width=width)


def _rows(later: Sequence[Any], tables: int) -> int | None:
    """Numbers in the first state of an optimizer: on the device, on the host, where each table's begin (twice)."""
    for i in range(len(later) - 3):
        if all(_rank(d) == 1 for d in later[i : i + 4]) and later[i + 2] == later[i + 3] == [tables]:
            rows: int = later[i][0] + later[i + 1][0]
            return rows
    return None


def _rank(dims: Any) -> int:
    return len(dims) if isinstance(dims, list) and all(type(n) is int for n in dims) else -1

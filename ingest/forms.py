"""Rows of a `relation.Split` taken apart: what many of them have in common once, and numbers for each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.relation import FORM
from tracegap.ingest.schema import SPLITS

Codes = NDArray[Any]
_MANY = 20_000  # forms of one frame: looking each up would take longer than storing it twice
_NO_CODE = 2**32 - 1


@dataclass(slots=True)
class Splitter:
    """Takes frames apart; forms are numbered from 0 for each relation."""

    _next: dict[str, int] = field(default_factory=dict)
    _known: dict[str, dict[tuple[Any, ...], int]] = field(default_factory=dict)

    def parts(
        self, relation: str, frame: pl.DataFrame, same: Mapping[str, str | int | None]
    ) -> Iterator[tuple[str, pl.DataFrame]]:
        """The base tables that a frame goes to, with their rows.

        Args:
            relation: a table or a split view.
            frame: rows; columns are a subset of those of the relation and, of a split one, its hidden ones.
            same: further columns with one value in all rows.
        """
        split = SPLITS.get(relation)
        if split is None:
            kinds = {str: pl.Categorical(), int: pl.Int64(), type(None): pl.Int64()}
            yield relation, frame.with_columns(pl.lit(v, dtype=kinds[type(v)]).alias(n) for n, v in same.items())
            return
        own = [name for name in frame.columns if name in split.own]
        common = frame.select(pl.exclude(own))
        first, which = distinct(common.get_columns(), len(frame))
        told = [column.gather(first).alias(column.name) for column in common]
        told = [c.cast(pl.String) if isinstance(c.dtype, pl.Categorical) else c for c in told]
        told += [pl.Series(name, [value]).new_from_index(0, len(first)) for name, value in same.items()]
        numbers = self._numbers(relation, told, len(first))
        fresh = numbers >= self._next.get(relation, 0)
        self._next[relation] = max(self._next.get(relation, 0), int(numbers.max()) + 1)
        if fresh.any():
            yield split.forms.name, pl.DataFrame([*told, pl.Series(FORM, numbers, pl.Int32)]).filter(pl.Series(fresh))
        narrow = [frame[name].cast(pl.Int32) if split.own[name] == "INTEGER" else frame[name] for name in own]
        yield split.rows.name, pl.DataFrame([*narrow, pl.Series(FORM, numbers[which], pl.Int32)])

    def _numbers(self, relation: str, forms: list[pl.Series], count: int) -> Codes:
        """Numbers of forms: those that they have already, else the next."""
        first = self._next.get(relation, 0)
        if count > _MANY or not forms:
            return np.arange(first, first + count)
        known = self._known.setdefault(relation, {})
        start = first - len(known)
        rows = pl.DataFrame(forms).select(sorted(s.name for s in forms)).rows()
        return np.array([known.setdefault(form, start + len(known)) for form in rows])


def distinct(columns: list[pl.Series], count: int) -> tuple[Codes, Codes]:
    """The row in which each combination of values is first, and which of these combinations each of `count` rows has.

    Texts are compared by the numbers of their categories. A column that those before it determine costs a look-up a row.
    """
    first, which = np.zeros(min(count, 1), np.int64), np.zeros(count, np.int64)
    for values in chain.from_iterable(map(_values, columns)):
        if (values[first][which] == values).all():
            continue
        own, own_which = keyed(values)
        found, which = keyed(which * len(own) + own_which)
        first = np.empty(len(found), np.int64)
        first[which[::-1]] = np.arange(count - 1, -1, -1)
    return first, which


def _values(column: pl.Series) -> Iterator[Codes]:
    """Numbers that are equal where the values are; what stands for null may need a column of its own."""
    if column.dtype == pl.String:
        column = column.cast(pl.Categorical(pl.Categories.random()))
    if isinstance(column.dtype, pl.Categorical):
        yield column.to_physical().cast(pl.UInt32).fill_null(_NO_CODE).to_numpy()
        return
    yield column.cast(pl.Int64).fill_null(0).to_numpy()
    if column.null_count():
        yield column.is_null().cast(pl.UInt8).to_numpy()


def keyed(values: Codes) -> tuple[Codes, Codes]:
    """Distinct values in increasing order, and which of them each is. Small numbers need no sorting."""
    low = int(values.min()) if len(values) else 0
    if not len(values) or int(values.max()) - low > 4 * len(values) + 1000:
        distinct_values, which = np.unique(values, return_inverse=True)
        return distinct_values, which.astype(np.int64)
    at = values if not low else values - low
    place = np.zeros(int(at.max()) + 1, dtype=np.int64)
    place[at] = 1
    found = np.flatnonzero(place)
    place[found] = np.arange(len(found))
    return (found + low).astype(values.dtype), place[at]

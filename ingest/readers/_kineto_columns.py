"""Columns of what a Kineto trace says of its events: numbers, ids, and numbers in place of texts."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
NONE = -1
"""No such id, in columns of ids (which are positive) and of rows."""


class Ids(dict[Any, int]):
    """Numbers values in the order in which they come."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number

    def of(self, values: Sequence[Any], *beside: Sequence[Any]) -> NDArray[np.int32]:
        """The number of each value; with more sequences, of each tuple. Lists and objects are numbered by their text."""
        try:
            keys = zip(values, *beside, strict=True) if beside else values
            return np.fromiter(map(self.__getitem__, keys), np.int32, len(values))
        except TypeError:
            return self.of(*([str(v) if isinstance(v, list | dict) else v for v in part] for part in (values, *beside)))


def integer(value: Any) -> int | None:
    """A whole number that fits 64 bits, from a JSON number or its text; else None."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None


def whole_numbers(values: list[Any]) -> Ints:
    """Numbers as a column, NONE for what is no whole number of 64 bits."""
    types = {*map(type, values)}
    if types == {type(None)}:
        return np.full(len(values), NONE, np.int64)
    if types <= {int, type(None)}:
        with contextlib.suppress(OverflowError):
            given = [NONE if v is None else v for v in values] if len(types) > 1 else values
            return np.fromiter(given, np.int64, len(values))
    return np.array([NONE if v is None or (number := integer(v)) is None else number for v in values], np.int64)


def positive_ids(values: list[Any]) -> Ints:
    """Ids as a column: positive ones as they are, all else NONE (correlation 0 means that there is none)."""
    column = whole_numbers(values)
    return column if column.min(initial=1) > 0 else np.where(column > 0, column, NONE)


class Columns:
    """Growing columns: lists of arrays, joined once at the end."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}

    def add(self, **parts: NDArray[Any]) -> None:
        """Appends an array of the same length to each column."""
        for name, part in parts.items():
            self._parts[name].append(part)

    def extend(self, other: "Columns", numbers_of: dict[str, NDArray[Any]]) -> None:
        """Appends the rows of another one, whose columns of ids mean other numbers here."""
        for name, parts in other._parts.items():
            numbers = numbers_of.get(name)
            self._parts[name] += parts if numbers is None else [numbers[part] for part in parts]

    def order_by(self, name: str, value: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        """Replaces a column by what `value` makes of it, and sorts all rows by that."""
        columns = self.joined()
        columns[name] = value(columns[name])
        rows = np.argsort(columns[name], kind="stable")
        self._parts = {column: [values[rows]] if len(rows) else [] for column, values in columns.items()}

    def joined(self) -> dict[str, NDArray[Any]]:
        """All columns, taken out; those without a row are empty."""
        kind = {True: np.bool_, False: np.int64}
        parts, self._parts = self._parts, {name: [] for name in self.names}
        return {n: np.concatenate(p) if p else np.zeros(0, kind[n.startswith("has_")]) for n, p in parts.items()}

"""Rows of a table that belong to one another, side by side in numpy."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of each instance, side by side."""

    rows: np.ndarray
    """Rows with an instance, those of one together, each in their order."""
    first: np.ndarray
    """Place in `rows` of the first part of each instance."""
    number: np.ndarray
    """Number of the instance that each of `rows` is of, from 0."""

    @classmethod
    def of(cls, instance: np.ndarray) -> "Parts":
        """Of the instance of each row, -1 without one."""
        rows = np.argsort(instance, kind="stable")
        rows = rows[np.searchsorted(instance[rows], 0) :]
        new = np.ones(len(rows), dtype=np.bool_)
        new[1:] = instance[rows[1:]] != instance[rows[:-1]]
        return cls(rows, np.flatnonzero(new), np.cumsum(new) - 1)

    def most(self, values: np.ndarray) -> np.ndarray:
        """The largest value of a part, for each instance."""
        return np.maximum.reduceat(values[self.rows], self.first)

    def least(self, values: np.ndarray) -> np.ndarray:
        """The smallest."""
        return np.minimum.reduceat(values[self.rows], self.first)

    def first_where(self, mask: np.ndarray) -> np.ndarray:
        """The row of the first part of each instance that `mask` (over `rows`) marks."""
        places = np.flatnonzero(mask)
        return self.rows[places[np.unique(self.number[places], return_index=True)[1]]]

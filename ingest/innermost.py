"""Which span of a host thread is the innermost at an instant."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.hosttree import nest
from tracegap.ingest.intervals import Ints

NONE = -1


@dataclass(frozen=True, slots=True)
class Innermost:
    """Spans of one thread in order of start and falling end."""

    start: Ints
    end: Ints
    parent: Ints
    """Row of the span around each, NONE at the top."""
    order: Ints
    """Row of each in the arrays that `of` got."""

    @classmethod
    def of(cls, start: Ints, end: Ints) -> "Innermost":
        """From spans in any order; of equal ones the earlier row is the outer."""
        order = np.lexsort((-end, start))
        start, end = start[order], end[order]
        return cls(start, end, nest(np.zeros(len(start), np.uint8), start, end - start).parent, order)

    def at(self, instants: Ints) -> Ints:
        """The span that began last of those that are open at each instant, NONE where none is."""
        row = np.searchsorted(self.start, instants, side="right") - 1
        left = np.flatnonzero(row >= 0)
        while len(left):
            # What began between a span and its parent ended no later than the span itself.
            left = left[self.end[row[left]] <= instants[left]]
            row[left] = self.parent[row[left]]
            left = left[row[left] >= 0]
        return row

    def nearest(self, flags: NDArray[np.bool_]) -> Ints:
        """For each span the innermost flagged one from it outwards, itself included; NONE where there is none."""
        return self._chase(np.where(flags, np.arange(len(flags)), self.parent))

    def outermost_of_chain(self, flags: NDArray[np.bool_]) -> Ints:
        """For each span the last one outwards that is reached through flagged parents only; itself if none is."""
        above = np.append(flags, False)[self.parent] & (self.parent >= 0)
        return self._chase(np.where(above, self.parent, np.arange(len(flags))))

    @staticmethod
    def _chase(pointer: Ints) -> Ints:
        """Where pointers lead in the end: each round jumps twice as far."""
        table = np.append(pointer, NONE)  # NONE stays NONE: it is the last entry
        while True:
            further = table[table]
            if np.array_equal(further, table):
                return table[:-1]
            table = further

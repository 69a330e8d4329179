"""Kernels that nothing in the file explains, by equal kernels in an equal sequence that something does explain.

Work that was queued before the recording began has no launch in the file, and what a graph replays has no shapes. A
program repeats: where the same kernels, of the same grids and blocks, stand in the same order around a kernel whose
operator is known, and all such places have one cost, that cost is taken.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.readers._kineto_columns import NONE, Ints

REACH = 8
"""Kernels on each side that must be equal; at the ends of a stream twice as many on the one side."""

_LENGTH = 2 * REACH + 1
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no power of it is 0 in 64 bits


@dataclass(frozen=True, slots=True)
class Repeats:
    """Rows that repeat others."""

    row: Ints
    """Rows without an explanation that have one now, whole operators only."""
    of: Ints
    """For each, the row that explains it."""
    group: Ints
    """For each, a number that the rows of one operator share."""


def find_repeats(
    lane: Ints,
    kernel: Ints,
    start: Ints,
    op: Ints,
    cost: Ints,
    *,
    known: NDArray[np.bool_],
    wanted: NDArray[np.bool_],
    places: int = 1,
) -> Repeats:
    """Looks for the sequences around the wanted rows among those around known ones.

    Each row is a kernel: `lane` numbers its stream, `kernel` its name (with grid and block, where
    all have them), `op` the operator that
    launched it, `cost` what that operator costs; the last two only count where it is known. So many `places` at least
    must have the sequence.
    """
    none = np.zeros(0, np.int64)
    if not wanted.any() or not known.any():
        return Repeats(none, none, none)
    order = np.lexsort((start, lane))
    place = np.empty(len(order), np.int64)  # of each row in the lanes laid end to end
    place[order] = np.arange(len(order))
    rank, count = _ranks(op, place, known)
    meaning = np.unique(np.stack([cost, rank, count], axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    explained, asked = np.flatnonzero(known), np.flatnonzero(wanted)
    found = np.full(len(asked), NONE, np.int64)
    unsure = np.zeros(len(asked), np.bool_)
    known_places = _Places(_sequences(kernel[order], lane[order]), place, explained, meaning, places)
    for before in (REACH, 0, _LENGTH - 1):
        source = known_places.look_up(asked, before)
        clash = (source >= 0) & (found >= 0) & (meaning[source] != meaning[found])
        unsure |= clash
        found = np.where(found < 0, source, found)
    found[unsure] = NONE
    return _whole(asked[found >= 0], found[found >= 0], place, rank, count)


def _ranks(op: Ints, place: Ints, known: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Of each known row, which kernel of its operator it is, and of how many; else 0 of 0."""
    rank, count = np.zeros(len(op), np.int64), np.zeros(len(op), np.int64)
    rows = np.flatnonzero(known)
    rows = rows[np.lexsort((place[rows], op[rows]))]
    _, first, size = np.unique(op[rows], return_index=True, return_counts=True)
    count[rows] = np.repeat(size, size)
    rank[rows] = np.arange(len(rows)) - np.repeat(first, size)
    return rank, count


def _sequences(kernel: Ints, lane: Ints) -> NDArray[np.uint64]:
    """A hash of the sequence of `_LENGTH` kernels that begins at each place; 0 where the lane ends before."""
    n = max(len(kernel) - _LENGTH + 1, 0)
    hashes = np.zeros(len(kernel), np.uint64)
    with np.errstate(over="ignore"):
        total = np.zeros(n, np.uint64)
        for i in range(_LENGTH):
            total = total * _FACTOR + (kernel[i : i + n].astype(np.uint64) + np.uint64(1))
    hashes[:n] = np.where(lane[:n] == lane[_LENGTH - 1 : _LENGTH - 1 + n], total, 0)
    return hashes


@dataclass(frozen=True, slots=True)
class _Places:
    """Where explained rows stand, and what is known of them."""

    hashes: NDArray[np.uint64]
    place: Ints
    explained: Ints
    meaning: Ints
    least: int
    """Places that a sequence must have."""

    def look_up(self, asked: Ints, before: int) -> Ints:
        """For each asked row an explained one whose sequence, begun so many kernels before, is equal; NONE if they differ."""
        theirs = self._around(self.explained, before)
        order = np.argsort(theirs, kind="stable")
        keys, first, size = np.unique(theirs[order], return_index=True, return_counts=True)
        told = self.meaning[self.explained[order]]
        agreed = np.minimum.reduceat(told, first) == np.maximum.reduceat(told, first)
        mine = self._around(asked, before)
        at = np.minimum(np.searchsorted(keys, mine), len(keys) - 1)
        fits = (keys[at] == mine) & (mine != 0) & agreed[at] & (size[at] >= self.least)
        return np.where(fits, self.explained[order[first[at]]], NONE)

    def _around(self, rows: Ints, before: int) -> NDArray[np.uint64]:
        at = self.place[rows] - before
        return np.where(at >= 0, self.hashes[np.maximum(at, 0)], 0)


def _whole(rows: Ints, of: Ints, place: Ints, rank: Ints, count: Ints) -> Repeats:
    """Leaves out operators of which not all kernels are found."""
    begin = place[rows] - rank[of]
    _, group, size = np.unique(begin, return_inverse=True, return_counts=True)
    steady = size[group] == count[of]
    return Repeats(rows[steady], of[steady], group[steady])


class LaunchShapes(dict[tuple[Any, ...], int]):
    """Numbers for grids and blocks, the same in every process."""

    def __missing__(self, key: tuple[Any, ...]) -> int:
        number = 0
        for value in key:
            number = (number * 1_000_003 + (value + 1 if type(value) is int else 0)) % (1 << 61)
        self[key] = number
        return number

    def of(self, grid: Any, block: Any) -> int:
        """The number of a grid and a block, from what JSON has of them; 0 where it has none."""
        if grid is None and block is None:
            return 0
        try:
            return self[*grid, *block]
        except TypeError:  # no lists, or lists of what is no number
            return 0

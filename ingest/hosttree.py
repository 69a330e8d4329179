"""Which span of a host thread lies in which, and how much of its time is its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_TOGETHER = 1 << 17  # spans that are nested at once: this much fits the cache


@dataclass(slots=True)
class HostTree:
    """Nesting of spans; rows are in the order of the arrays that `nest` got."""

    parent: Ints
    """Row of the innermost span of the thread that holds this one whole; -1 at the top."""
    self_ns: Ints
    """Duration less what children cover."""
    order: Ints
    """Rows so that each comes after its parent, thread by thread."""


def nest(thread: NDArray[Any], start_ns: Ints, dur_ns: Ints) -> HostTree:
    """Nests the spans of each thread.

    Of two spans with the same extent the earlier row holds the other; a span that ends when the next one starts is
    closed. Spans that overlap without nesting (clock trouble, merged threads) become siblings under the one that holds
    both.
    """
    by_thread = np.argsort(thread, kind="stable")
    ordered = thread[by_thread]
    changes = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    parent = np.full(len(start_ns), -1, np.int64)
    self_ns = np.zeros(len(start_ns), np.int64)
    order = np.empty(len(start_ns), np.int64)
    at = 0
    for rows in np.split(by_thread, changes):
        mine = rows[_outer_first(start_ns[rows], dur_ns[rows])]
        order[at : at + len(mine)] = mine
        at += len(mine)
        for part in _apart(mine, start_ns, dur_ns):
            starts, durations = start_ns[part], dur_ns[part]
            local = _nested(starts, starts + durations)
            if local is not None:
                inner = np.flatnonzero(local >= 0)
                np.subtract.at(durations, local[inner], dur_ns[part[inner]])
                self_ns[part] = durations
            else:
                local, covered = _overlapping(starts, starts + durations)
                self_ns[part] = durations - covered
            parent[part] = np.where(local >= 0, part[local], -1)
    return HostTree(parent, self_ns, order)


def _apart(rows: Ints, start_ns: Ints, dur_ns: Ints) -> list[Ints]:
    """Cuts the spans of a thread, outer ones first, where none is open, into parts of _TOGETHER or a little more."""
    if len(rows) <= _TOGETHER:
        return [rows]
    reach = np.maximum.accumulate(start_ns[rows] + dur_ns[rows])
    closed = np.flatnonzero(start_ns[rows[1:]] >= reach[:-1]) + 1
    at = np.searchsorted(closed, np.arange(_TOGETHER, len(rows), _TOGETHER))
    return np.split(rows, np.unique(closed[at[at < len(closed)]]))


def _outer_first(starts: Ints, durations: Ints) -> Ints:
    """Order of spans of a thread by start, longer ones first, then by row."""
    order = np.argsort(starts, kind="stable")
    ordered = starts[order]
    tied = np.flatnonzero(ordered[1:] == ordered[:-1])  # few: sorting all by two keys would cost several times as much
    if len(tied):
        places = np.unique(np.concatenate((tied, tied + 1)))
        rows = order[places]
        order[places] = rows[np.lexsort((rows, -durations[rows], starts[rows]))]
    return order


def _nested(starts: Ints, ends: Ints) -> Ints | None:
    """Encloser of each span of a thread (-1: none), outer ones first; None where spans overlap without nesting.

    The depth of a span is how many that began before it are still open; its encloser is the last one before it that is
    one less deep. That holds if and only if every span ends within the encloser found so.
    """
    n = len(starts)
    rows = np.arange(n)
    empty = np.concatenate(([0], np.cumsum(ends == starts)))  # of no length: closed for what follows, not for itself
    same_start_end = np.searchsorted(starts, starts, side="right")
    closed = np.searchsorted(np.sort(ends), starts, side="right") - (empty[same_start_end] - empty[rows])
    depth = rows - closed
    parent = np.full(n, -1, np.int64)
    above = rows[depth == 0]
    for level in range(1, int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(depth == level)
        parent[here] = above[np.searchsorted(above, here) - 1]
        above = here
    inner = np.flatnonzero(parent >= 0)
    sound = (ends[inner] <= ends[parent[inner]]) & (ends[parent[inner]] > starts[inner])
    return parent if sound.all() else None


def _overlapping(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Encloser of each span of a thread (-1: none), outer ones first, and how much of it the spans inside cover."""
    spans = list(zip(starts.tolist(), ends.tolist(), strict=True))
    parents = [-1] * len(spans)
    covered = [0] * len(spans)
    reach = [start for start, _ in spans]  # up to where it is covered
    stack: list[int] = []
    for i, (start, end) in enumerate(spans):
        while stack and spans[stack[-1]][1] <= start:
            stack.pop()
        for above in reversed(stack):  # nearly always the innermost open span holds it
            if spans[above][1] >= end and spans[above][1] > start:
                parents[i] = above
                if end > reach[above]:
                    covered[above] += end - max(start, reach[above])
                    reach[above] = end
                break
        stack.append(i)
    return np.array(parents, np.int64), np.array(covered, np.int64)


@dataclass(slots=True)
class Pairing:
    """What `pair` made of begin and end events: rows of them."""

    begins: list[int]
    ends: list[int]
    unmatched_begins: list[int]
    unmatched_ends: list[int]


def pair(thread: Sequence[int], time_ns: Sequence[int], is_end: Sequence[bool], name: Sequence[str | None]) -> Pairing:
    """Pairs begin with end events of each thread, as a stack.

    At one moment, ends come first for what began before it, then begins, then ends of what began at it. An end that has
    a name closes the innermost open slice of that name, and those inside it never end.
    """
    result = Pairing([], [], [], [])
    rows = sorted(range(len(thread)), key=lambda i: (thread[i], time_ns[i], i))
    stack: list[int] = []
    at = 0
    while at < len(rows):
        here = rows[at]
        if at and thread[rows[at - 1]] != thread[here]:
            result.unmatched_begins += stack
            stack = []
        group = at
        while group < len(rows) and (thread[rows[group]], time_ns[rows[group]]) == (thread[here], time_ns[here]):
            group += 1
        same = rows[at:group]
        ends = [i for i in same if is_end[i]]
        early = len(stack)  # so many ends can close what began before this moment
        for i in [*ends[:early], *(i for i in same if not is_end[i]), *ends[early:]]:
            if not is_end[i]:
                stack.append(i)
                continue
            wanted = name[i]
            depth = len(stack) - 1
            while depth >= 0 and wanted is not None and name[stack[depth]] != wanted:
                depth -= 1
            if depth < 0:
                result.unmatched_ends.append(i)
                continue
            result.unmatched_begins += stack[depth + 1 :]
            result.begins.append(stack[depth])
            result.ends.append(i)
            del stack[depth:]
        at = group
    result.unmatched_begins += stack
    return result

"""Which span of a host thread lies in which, and how much of its time is its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(slots=True)
class HostTree:
    """Nesting of spans; rows are in the order of the arrays that `nest` got."""

    parent: Ints
    """Row of the innermost span of the thread that holds this one whole; -1 at the top."""
    self_ns: Ints
    """Duration less what children cover."""
    order: Ints
    """Rows so that each comes after its parent, thread by thread."""


def nest(thread: NDArray[Any], start_ns: Ints, dur_ns: Ints, old: NDArray[np.bool_] | None = None) -> HostTree:
    """Nests the spans of each thread.

    Of two spans with the same extent the earlier row holds the other; a span that ends when the next one starts is
    closed. Spans that overlap without nesting (clock trouble, merged threads) become siblings under the one that holds
    both. What `old` marks covers nothing of its parent: that was counted when an earlier part of the thread was nested.
    """
    n = len(start_ns)
    end_ns = start_ns + dur_ns
    order = _order(thread, start_ns, end_ns)
    start, end, threads = start_ns[order], end_ns[order], thread[order]
    first_of_thread = np.ones(n, np.bool_)
    first_of_thread[1:] = threads[1:] != threads[:-1]
    local_parent, crossing = _holders(start, end, first_of_thread)
    counted = None if old is None else ~old[order]
    covered = _covered(local_parent, start, end, counted, crossing=crossing)
    parent, self_ns = np.full(n, -1, np.int64), np.zeros(n, np.int64)
    parent[order] = np.where(local_parent >= 0, order[local_parent], -1) if n else local_parent
    self_ns[order] = end - start - covered
    return HostTree(parent, self_ns, order)


def _order(thread: NDArray[Any], start: Ints, end: Ints) -> Ints:
    """Rows in order of thread, start and falling end; to see that they lie so already is quicker than to sort them."""
    earlier, later = (thread[:-1], start[:-1], end[:-1]), (thread[1:], start[1:], end[1:])
    same = later[0] == earlier[0]
    follows = (later[1] > earlier[1]) | ((later[1] == earlier[1]) & (later[2] <= earlier[2]))
    if ((later[0] > earlier[0]) | (same & follows)).all():
        return np.arange(len(start))
    return np.lexsort((-end, start, thread))


def _holders(start: Ints, end: Ints, first_of_thread: NDArray[np.bool_]) -> tuple[Ints, bool]:
    """Row of the innermost span around each, -1 at the top, and whether any two spans overlap without nesting.

    Spans come in order of thread, start and falling end. The holder is the last one before that ends no earlier: found
    by pointers from span to span that skip what ends too early, each step jumping as far as the skipped one has come.
    """
    n = len(start)
    reach = np.concatenate(([np.iinfo(np.int64).max], 2 * end))  # 0 stands for the top, row i is i + 1
    wanted = np.concatenate(([0], 2 * end + (end == start)))  # a span without length needs one that goes on
    begin = np.concatenate(([0], 2 * start))
    pointer = np.arange(-1, n)
    pointer[0] = 0
    pointer[1:][first_of_thread] = 0
    short = np.arange(1, n + 1)
    crossing = False
    while True:
        reached = reach[pointer[short]]
        skips = reached < wanted[short]
        short = short[skips]
        if not len(short):
            return pointer[1:] - 1, crossing
        crossing = crossing or bool((reached[skips] > begin[short]).any())
        pointer[short] = pointer[pointer[short]]


def _covered(parent: Ints, start: Ints, end: Ints, counted: NDArray[np.bool_] | None, *, crossing: bool) -> Ints:
    """Time of each span that children cover; of those that overlap, each instant once."""
    covered = np.zeros(len(parent), np.int64)
    children = np.flatnonzero(parent >= 0)
    if crossing:
        children = children[np.argsort(parent[children], kind="stable")]
    of, begin, finish = parent[children], start[children], end[children]
    same = of[1:] == of[:-1]
    if crossing and (same & (begin[1:] < finish[:-1])).any():
        # How far the children before have come: a running maximum for each parent, on ranks so that parents stay apart.
        rank = np.empty(len(children), np.int64)
        by_end = np.argsort(finish, kind="stable")
        rank[by_end] = np.arange(len(children))
        group = np.concatenate(([0], np.cumsum(~same))) * len(children)
        furthest = finish[by_end[np.maximum.accumulate(rank + group)[:-1] - group[:-1]]]
        begin[1:] = np.where(same, np.maximum(begin[1:], furthest), begin[1:])
    added = np.maximum(finish - begin, 0)
    if counted is not None:
        added *= counted[children]
    np.add.at(covered, of, added)
    return covered


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

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


def nest(thread: NDArray[Any], start_ns: Ints, dur_ns: Ints) -> HostTree:
    """Nests the spans of each thread.

    Of two spans with the same extent the earlier row holds the other; a span that ends when the next one starts is
    closed. Spans that overlap without nesting (clock trouble, merged threads) become siblings under the one that holds
    both.
    """
    end_ns = start_ns + dur_ns
    order = np.lexsort((np.arange(len(start_ns)), -end_ns, start_ns, thread))
    threads = thread[order]
    starts: list[int] = start_ns[order].tolist()
    ends: list[int] = end_ns[order].tolist()
    first_of_thread = np.ones(len(order), np.bool_)
    first_of_thread[1:] = threads[1:] != threads[:-1]
    firsts: list[bool] = first_of_thread.tolist()
    parents = [-1] * len(starts)
    covered = [0] * len(starts)  # ns of a span that its children cover
    reach = list(starts)  # up to where they cover it
    stack: list[int] = []
    for i, (start, end, first) in enumerate(zip(starts, ends, firsts, strict=True)):
        if first:
            stack.clear()
        while stack and ends[stack[-1]] <= start:
            stack.pop()
        for above in reversed(stack):  # nearly always the innermost open span holds it
            if ends[above] >= end and ends[above] > start:
                parents[i] = above
                if end > reach[above]:
                    covered[above] += end - max(start, reach[above])
                    reach[above] = end
                break
        stack.append(i)
    local_parent = np.array(parents, np.int64)
    parent = np.full(len(order), -1, np.int64)
    parent[order] = np.where(local_parent >= 0, order[local_parent], -1) if len(order) else local_parent
    self_ns = np.zeros(len(order), np.int64)
    self_ns[order] = dur_ns[order] - np.array(covered, np.int64)
    return HostTree(parent, self_ns, order)


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

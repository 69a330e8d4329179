"""Idle intervals of a device cut where the host turns to something else, each piece with its cause and what was done."""

import re
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.classify.activity import TELLING, WEAK, activity
from tracegap.ingest.classify.host import RECEIVE
from tracegap.ingest.idle import CAUSE_OF_WAIT, CAUSES, WAITS, Idle, covers
from tracegap.ingest.innermost import NONE, Innermost
from tracegap.ingest.intervals import Cover, Ints, sorted_unique

Mask = NDArray[np.bool_]

NOTHING = "nothing_recorded"
DEVICE = "device"
CHUNK = 1 << 16
"""Idle intervals that are split at once."""
_CALLERS = ("op", "collective", "python", "module", "annotation")
_STRUCTURE = frozenset({"op", "python", "module", "annotation", "step", "input"})  # kinds that are no call of a driver


class Labels:
    """The distinct names and kinds of spans, by number."""

    def __init__(self, names: list[str], kinds: list[str]) -> None:
        """Entry i belongs to label i."""
        activities = [activity(n, k) for n, k in zip(names, kinds, strict=True)]
        self.words = [*dict.fromkeys([*(a for a in activities if a), DEVICE, NOTHING, "launch", "data_loading"])]
        number = {word: i for i, word in enumerate(self.words)}
        kind = np.array(kinds, dtype=np.object_)

        def flags(values: list[bool]) -> Mask:
            return np.array([*values, False], dtype=np.bool_)  # the last entry is that of label NONE

        self.activity = np.array([number.get(a, NONE) if a else NONE for a in activities] + [NONE], dtype=np.int64)
        self.telling = flags([a in TELLING for a in activities])
        self.weak = flags([a in WEAK for a in activities]) | (np.arange(len(names) + 1) == len(names))
        self.structure = flags([k in _STRUCTURE for k in kinds])
        self.aten = flags([n.startswith("aten::") for n in names])
        self.of_kind = {k: flags((kind == k).tolist()) for k in (*_CALLERS, "input", "sync", "overhead")}
        receive = re.compile(RECEIVE)
        received = [k == "collective" and bool(receive.search(n)) for n, k in zip(names, kinds, strict=True)]
        self.of_kind["receive"] = flags(received)

    def code(self, word: str) -> int:
        """Number of an activity."""
        return self.words.index(word)


@dataclass(frozen=True, slots=True)
class Told:
    """What a thread did at some instants; NONE where nothing was recorded."""

    activity: Ints
    name: Ints
    caller: Ints


class Thread:
    """The spans of a thread, and what each says."""

    def __init__(self, labels: Labels, start: Ints, end: Ints, label: Ints) -> None:
        """From spans in the order of the file."""
        self.labels = labels
        self.inner = Innermost.of(start, end)
        self.label = np.append(label[self.inner.order], NONE)  # the last entry is that of row NONE
        mine = self.label[:-1]
        telling = self.inner.nearest(labels.telling[mine])
        self._row = np.append(np.where(telling >= 0, telling, np.arange(len(mine))), NONE)
        self._waits = {wait: self._only(np.flatnonzero(labels.of_kind[wait][mine])) for wait in WAITS}
        self._caller = np.append(self._callers(mine), NONE)

    def _only(self, rows: Ints) -> tuple[Innermost, Ints]:
        """Some of the spans alone, and the row of each; the last entry is that of row NONE."""
        alone = Innermost.of(self.inner.start[rows], self.inner.end[rows])
        return alone, np.append(rows[alone.order], NONE)

    def _callers(self, mine: Ints) -> Ints:
        """Row of what called each span: for a call the operator (of nested ATen operators the outermost), else a frame or range."""
        of_kind, tree = self.labels.of_kind, self.inner
        around = tree.parent
        is_op = of_kind["op"][mine] | of_kind["collective"][mine]
        top = np.append(tree.outermost_of_chain(self.labels.aten[mine]), NONE)
        op = top[np.append(tree.nearest(is_op), NONE)[around]]
        frame = np.append(tree.nearest(of_kind["python"][mine]), NONE)[around]
        region = np.append(tree.nearest(of_kind["module"][mine] | of_kind["annotation"][mine]), NONE)[around]
        found = np.where(frame >= 0, frame, region)
        found = np.where(is_op | of_kind["python"][mine], found, np.where(op >= 0, op, found))
        found = np.where(of_kind["python"][mine], region, found)
        return np.where(of_kind["module"][mine] | of_kind["annotation"][mine], NONE, found)

    def told(self, instants: Ints, wait: str | None = None) -> Told:
        """What the thread did; with a kind of wait, only the innermost span of that kind."""
        if wait is None:
            row = self._row[self.inner.at(instants)]
        else:
            waits, rows = self._waits[wait]
            row = rows[waits.at(instants)]
        label = self.label[row]
        return Told(self.labels.activity[label], label, self.label[self._caller[row]])

    def weak(self, told: Told) -> Mask:
        """Where that says little."""
        found: Mask = self.labels.weak[told.name] | (told.activity < 0)
        return found

    def boundaries(self) -> Ints:
        """Instants at which the thread turns to something else."""
        return np.concatenate((self.inner.start, self.inner.end))

    def ends_of_calls(self, begin: Ints) -> Ints:
        """When the outermost calls of driver or runtime that began at these instants ended; NONE where none did."""
        row = np.searchsorted(self.inner.start, begin, side="left")
        found = np.full(len(row), NONE, dtype=np.int64)
        left = np.arange(len(row))
        start = np.append(self.inner.start, np.iinfo(np.int64).max)
        while len(left := left[start[row[left]] == begin[left]]):
            call = ~self.labels.structure[self.label[row[left]]]
            found[left[call]] = self.inner.end[row[left[call]]]
            left = left[~call]
            row[left] += 1
        return found


@dataclass(frozen=True, slots=True)
class Cuts:
    """Pieces of idle intervals: `of` the interval, [begin, end)."""

    of: Ints
    begin: Ints
    end: Ints


def pieces(begin: Ints, end: Ints, boundaries: Ints, *own: Ints) -> Cuts:
    """Cuts each interval at the boundaries inside it and at instants of its own, which lie in it."""
    first, last = np.searchsorted(boundaries, begin, side="right"), np.searchsorted(boundaries, end, side="left")
    count = np.maximum(last - first, 0)
    inside = np.arange(count.sum()) + np.repeat(first - np.cumsum(count) + count, count)
    every = np.arange(len(begin))
    of = np.concatenate((every, *(every for _ in own), np.repeat(every, count)))
    at = np.concatenate((begin, *own, boundaries[inside]))
    order = np.lexsort((at, of))
    of, at = of[order], at[order]
    until = end[of]
    until[:-1] = np.where(of[1:] == of[:-1], at[1:], until[:-1])
    keep = until > at
    return Cuts(of[keep], at[keep], until[keep])


def split(
    idle: Idle,
    rows: Ints,
    labels: Labels,
    waits: pl.DataFrame,
    *,
    name: str,
    launching: Thread,
    other: Thread | None,
    marks: str | None,
    overhead: Thread | None,
) -> pl.DataFrame:
    """Pieces of the idle intervals `rows`, whose next operation one thread launches.

    Args:
        idle: the idle intervals of a device.
        rows: which of them.
        labels: names of the spans.
        waits: as `ingest.idle.WAIT_SPANS`.
        name: the launching thread.
        launching: its spans.
        other: spans of the thread that is looked at where the launching one tells little; None = there is none.
        marks: thread of the step marks, whose waits count too.
        overhead: what the profiler and the driver say of their own work, on whatever thread; None = nothing.

    Returns:
        gap (index into `idle`), cause (index into CAUSES), activity (into `labels.words`), name, caller (labels, NONE =
        none), other (whether it is the other thread's), idle_ns.
    """
    a, b, h = idle.begin[rows], idle.end[rows], idle.launch[rows]
    called = np.clip(launching.ends_of_calls(idle.call[rows]), h, b)
    held = covers(waits, [name, marks or name])
    threads = [t for t in (launching, other, overhead) if t is not None]
    bounds = sorted_unique(np.concatenate([*(t.boundaries() for t in threads), *(c.points for c in held)]))
    cut = pieces(a, b, bounds, h, called)
    t, gap = cut.begin, cut.of
    waiting = _waiting(held, t)
    launched = t >= h[gap]
    cause = np.where(launched, CAUSES.index("idle_gap"), CAUSES.index("idle_host"))
    own = launching.told(t)
    what, label, caller = own.activity.copy(), own.name.copy(), own.caller.copy()
    of_other = np.zeros(len(t), dtype=np.bool_)

    def take(told: Told, where: Mask, *, from_other: bool) -> None:
        for column, new in ((what, told.activity), (label, told.name), (caller, told.caller)):
            column[where] = new[where]
        of_other[where] = from_other

    weak = launching.weak(own) & ~launched
    if other is not None and weak.any():
        theirs = other.told(t)
        better = ~other.weak(theirs) | ((own.activity < 0) & (theirs.activity >= 0))
        take(theirs, weak & better, from_other=True)
    for number, wait in enumerate(WAITS):
        here = ~launched & (waiting == number)
        if not here.any():
            continue
        cause[here] = CAUSES.index(CAUSE_OF_WAIT[wait])
        mine = launching.told(t, wait)
        take(mine, here, from_other=False)
        if other is not None:
            take(other.told(t, wait), here & (mine.name < 0), from_other=True)
        if wait == "input":
            what[here] = labels.code("data_loading")
    over = launched & (t >= called[gap])  # the call has ended: the device has its turn
    what[over], label[over], caller[over] = labels.code(DEVICE), NONE, NONE
    what[launched & ~over & labels.weak[label]] = labels.code("launch")
    if overhead is not None:
        said = overhead.told(t)
        quiet = np.isin(what, [NONE, labels.code("launch")]) & (said.activity >= 0)
        take(said, quiet & (waiting < 0) & (~launched | (t < called[gap])), from_other=False)
    what[what < 0] = labels.code(NOTHING)
    return pl.DataFrame(
        {
            "gap": rows[gap],
            "cause": cause,
            "activity": what,
            "name": label,
            "caller": caller,
            "other": of_other,
            "idle_ns": cut.end - t,
        }
    )


def _waiting(held: list[Cover], instants: Ints) -> Ints:
    """Which of WAITS holds the host at each instant, NONE where none does."""
    found = np.full(len(instants), NONE, dtype=np.int64)
    for number, cover in reversed(list(enumerate(held))):
        found[cover.within(instants, instants + 1) > 0] = number
    return found

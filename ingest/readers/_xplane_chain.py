"""Where the events of a line of an XSpace stand: each begins where the one before it ends.

That is a loop over all events. So a long piece of a line is cut into lanes that are followed side by side, each from
where an event seems to begin. Whether it does is known when the lane before arrives: its last event must end at an event
of the lane. Statistics inside an event look like events, but end where an event begins, so that most lanes are right
after a few of them. Where a lane is wrong, the one before is followed on its own.
"""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

TAG = 4 << 3 | 2
"""How an event begins: its field number in XLine and wire type; its length follows."""
SPARE = 16
"""Bytes without meaning that must stand behind the data."""

_LANE = 1 << 12  # bytes of a lane
_SHORT = 1 << 16  # bytes that are not worth it
_GUESS = 1 << 7  # of its first bytes, among which an event is looked for
_MERGE = 16  # steps of a lane within which it must have found to the events
_STRIDE = 16  # steps between two looks whether all lanes are through

_LENGTHS = np.arange(1 << 16)
_ADVANCE = np.where(
    _LENGTHS & 0x80 == 0,
    (_LENGTHS & 0x7F) + 2,
    np.where(_LENGTHS & 0x8000 == 0, (_LENGTHS >> 8 << 7 | _LENGTHS & 0x7F) + 3, 0),
)
"""By the two bytes after the tag: bytes from an event to the next; 0 where the length takes more than two bytes."""


def events_from(data: bytes, at: int, end: int) -> tuple[Ints, int]:
    """Events that stand one behind the other: the bytes of their tags, and where the last one ends.

    Ends where something else stands, or an event of more than 16 KB, or one that is not whole before `end`.

    Args:
        data: with SPARE bytes behind `end`.
        at: where the first event would begin.
        end: where the data end.
    """
    if end - at < _SHORT:
        return follow(data, at, end)
    return _joined(data, *_lanes(data, at, end), end)


def follow(data: bytes, at: int, end: int, until: int | None = None) -> tuple[Ints, int]:
    """As `events_from`, one by one; not further than to the first that begins at or behind `until`."""
    until = end if until is None else until
    found: list[int] = []
    while at < until and data[at] == TAG:
        after = at + 2 + data[at + 1]
        if data[at + 1] >= 0x80:
            after = at + int(_ADVANCE[data[at + 1] | data[at + 2] << 8])
        if after == at or after > end:
            break
        found.append(at)
        at = after
    return np.array(found, dtype=np.int64), at


def _lanes(data: bytes, at: int, end: int) -> tuple[Ints, Ints]:
    """Where each lane begins, with `end` behind the last, and where it is after each step, shape [steps, lanes]."""
    tags = np.frombuffer(data, dtype=np.uint8)
    lengths = np.ndarray((len(data) - 2,), dtype="<u2", buffer=data, offset=1, strides=(1,))
    begins = np.arange(at, end - _GUESS, _LANE)
    near = np.ndarray((len(begins), _GUESS), dtype=np.uint8, buffer=data, offset=at, strides=(_LANE, 1))
    seems = (near[:, :-2] == TAG) & (near[:, 2:] == 1 << 3)  # an event begins with its metadata_id
    begins[1:] += seems.argmax(axis=1)[1:]
    begins = np.append(begins, end)
    here, last = begins[:-1], len(lengths) - 1
    steps = [here]
    while True:
        for _ in range(_STRIDE):
            here = np.minimum(here + _ADVANCE[lengths[here]] * (tags[here] == TAG), last)
            steps.append(here)
        if ((here >= begins[1:]) | (here == steps[-2])).all():
            return begins, np.stack(steps)


def _joined(data: bytes, begins: Ints, visited: Ints, end: int) -> tuple[Ints, int]:
    """The events of all lanes in order; see `events_from`."""
    lanes = visited.shape[1]
    leaves = (visited < begins[1:]).sum(axis=0)  # step at which a lane is at or behind the beginning of the next
    through = leaves < len(visited)  # the others came upon what is no event
    arrives = visited[np.minimum(leaves, len(visited) - 1), np.arange(lanes)]
    met = visited[:_MERGE, 1:] == arrives[:-1]
    enters = np.append(0, met.argmax(axis=0))
    sound = through & np.append(True, met.any(axis=0)) & (enters <= leaves)
    parts: list[Ints] = []
    lane, here = 0, int(begins[0])
    while lane < lanes and here >= begins[lane]:
        if sound[lane]:
            wrong = np.flatnonzero(~sound[lane:])
            run = slice(lane, lane + int(wrong[0]) if len(wrong) else lanes)
            steps = np.arange(len(visited))[:, None]
            taken = (steps >= enters[run]) & (steps < leaves[run])
            parts.append(visited[:, run].T[taken.T])
            lane, here = run.stop, int(arrives[run.stop - 1])
        else:  # the events before lead on; perhaps the next lane is met
            found, here = follow(data, here, end, int(begins[lane + 1]))
            parts.append(found)
            lane += 1
            if lane < lanes:
                step = np.flatnonzero(visited[: min(_MERGE, leaves[lane] + 1), lane] == here)
                sound[lane] = through[lane] and len(step)
                enters[lane] = step[0] if len(step) else 0
    starts = np.concatenate(parts)
    if here > end:  # the last one is not whole
        starts, here = starts[:-1], int(starts[-1])
    return starts, here

"""Parts of a job that share no collective, such as the stages of a pipeline, on one clock by the messages between them.

Nobody receives before it is sent: messages one way bound the distance of two clocks from below, messages the other way
from above. No more is known, so half of what is between the bounds is the error that is stated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracegap.reports.clocks import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Sends with their receives, ns by the clock of each trace; a row a message."""

    source: np.ndarray
    """Number of the trace that sends."""
    target: np.ndarray
    """Of the one that receives."""
    send_ns: np.ndarray
    """Start of the send."""
    received_ns: np.ndarray
    """End of the receive."""


def join(clocks: dict[str, Clock], messages: Messages, names: Sequence[str]) -> dict[str, Clock]:
    """The clocks with those of further parts brought to that of the part which they exchange messages with.

    The surest pair of parts goes first. Parts whose clocks may agree as they are stay as they are; parts between which
    messages go one way only, or whose bounds contradict each other (their clocks drift), are not joined.
    """
    if not len(messages.source):
        return clocks
    found = dict(clocks)
    part = np.arange(len(names))
    number = {name: i for i, name in enumerate(names)}
    for name, clock in clocks.items():
        part[number[name]] = number[clock.reference]
    sent, received = (
        _common(found, names, trace, t)
        for trace, t in ((messages.source, messages.send_ns), (messages.target, messages.received_ns))
    )
    bounds = _bounds(part[messages.source], part[messages.target], sent, received)
    moved = dict.fromkeys(range(len(names)), 0)  # of each part against the one that it is joined to
    top = list(range(len(names)))
    for a, b, lower, upper in sorted(bounds, key=lambda bound: (bound[3] - bound[2], bound)):
        if top[a] == top[b]:
            continue
        # In terms of the parts as they are moved by now: b + shift = a.
        low, high = lower + moved[a] - moved[b], upper + moved[a] - moved[b]
        shift = 0 if low <= 0 <= high else round((low + high) / 2)
        error = max(high - shift, shift - low)
        keep, gone = (top[a], top[b]) if top[a] < top[b] else (top[b], top[a])
        by = shift if gone == top[b] else -shift
        for other in [i for i, t in enumerate(top) if t == gone]:
            top[other], moved[other] = keep, moved[other] + by
            for i in np.flatnonzero(part == other).tolist():
                clock = found.get(names[i], Clock(reference=names[other]))
                found[names[i]] = replace(
                    clock,
                    offset_ns=clock.offset_ns + by,
                    between_ns=max(clock.between_ns, error),
                    reference=names[keep],
                )
        for i in np.flatnonzero(part == keep).tolist():
            found.setdefault(names[i], Clock(reference=names[keep]))
    return found


def _common(clocks: dict[str, Clock], names: Sequence[str], trace: np.ndarray, t: np.ndarray) -> np.ndarray:
    common = t.copy()
    for i in np.unique(trace).tolist():
        if clock := clocks.get(names[i]):
            common[trace == i] = clock.common(t[trace == i])
    return common


def _bounds(
    source: np.ndarray, target: np.ndarray, sent: np.ndarray, received: np.ndarray
) -> list[tuple[int, int, int, int]]:
    """(a, b, lower, upper) of each two parts with messages both ways: what is added to b's clock to have a's."""
    ahead: dict[tuple[int, int], int] = {}
    across = np.flatnonzero(source != target)
    key = source[across] * (int(max(source.max(), target.max())) + 1) + target[across]
    order = np.argsort(key, kind="stable")
    cuts = np.flatnonzero(np.diff(key[order])) + 1
    for rows in np.split(across[order], cuts) if len(across) else []:
        # From a to b: received + shift >= sent, so the shift is at least the most of sent - received.
        ahead[int(source[rows[0]]), int(target[rows[0]])] = int((sent[rows] - received[rows]).max())
    return [
        (a, b, lower, -ahead[b, a])
        for (a, b), lower in ahead.items()
        if a < b and (b, a) in ahead and lower <= -ahead[b, a]
    ]

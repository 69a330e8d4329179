"""Which call of the host launched which work of a device."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.readers._kineto_columns import NONE, Ints

CLOCK_SKEW_NS = 1_000_000
"""A call that begins so much after the work did not launch it: the id was used twice."""

Table = dict[str, NDArray[Any]]


@dataclass(slots=True)
class Launches:
    """The launch calls of device work."""

    call: Ints
    """Row of the call in `calls`, by row of the device work; NONE where it is not in the file."""
    calls: Table
    """Runtime calls: order, start, dur, corr, ext, thread, label."""
    ambiguous: int
    """Work whose correlation id several processes used."""
    before_call: int
    """Work that starts before its call: clocks of host and device disagree by so much."""

    def of(self, column: str) -> NDArray[Any]:
        """A column of the calls, by row of the device work; NONE where the call is not in the file."""
        values = self.calls[column]
        return np.where(self.call >= 0, values[self.call], NONE) if len(values) else self.call


def find_launches(device: Table, calls: Table, processes: NDArray[Any]) -> Launches:
    """Joins device work with runtime calls by correlation id; where an id repeats, the last call before the work.

    `processes` has the process of each thread id.
    """
    corr, start = calls["corr"], calls["start"]
    by_id = np.lexsort((calls["order"], start, corr))
    ids = corr[by_id]
    low = np.searchsorted(ids, device["corr"], side="left")
    high = np.searchsorted(ids, device["corr"], side="right")
    high = np.where(device["corr"] < 0, low, high)
    one = np.flatnonzero(high - low == 1)
    found = np.full(len(low), NONE, np.int64)
    found[one] = by_id[low[one]]
    ambiguous = 0
    for i in np.flatnonzero(high - low > 1).tolist():
        rows = by_id[low[i] : high[i]]
        found[i], unsure = _choose(rows, int(device["start"][i]), int(device["ext"][i]), calls, processes)
        ambiguous += unsure
    joined = np.flatnonzero(found >= 0)
    late = start[found[joined]] - device["start"][joined]
    found[joined[late > CLOCK_SKEW_NS]] = NONE
    return Launches(found, calls, ambiguous, int(((late > 0) & (late <= CLOCK_SKEW_NS)).sum()))


def _choose(rows: Ints, start: int, ext: int, calls: Table, processes: NDArray[Any]) -> tuple[int, bool]:
    """Which of several calls with one correlation id launched work at `start`: (row or NONE, whether it is unsure)."""
    if len(np.unique(processes[calls["thread"][rows]])) > 1:
        same = rows[calls["ext"][rows] == ext] if ext >= 0 else rows[:0]
        return (int(same[0]), False) if len(same) == 1 else (NONE, True)
    begins = calls["start"][rows]
    before = rows[begins <= start]
    row = before[-1] if len(before) else rows[0]
    # A runtime call holds the driver call that it makes: the outermost is the one.
    ends = begins + calls["dur"][rows]
    holds = (begins <= calls["start"][row]) & (ends >= calls["start"][row] + calls["dur"][row])
    holds &= calls["thread"][rows] == calls["thread"][row]
    return int(rows[holds][0]), False

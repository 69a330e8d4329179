"""Words of the dependency graph: what it needs to know, its instants, and what its edges stand for."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import polars as pl

from tracegap.ingest.intervals import Ints
from tracegap.reports.replay import Edges

OPS = {
    "device": pl.Int64,  # number of the device in the run
    "trace": pl.Int64,  # number of its trace
    "stream": pl.Int64,  # number of the stream in the run
    "is_async": pl.Boolean,  # of a line whose operations begin and end on the core of an XLA device
    "is_core": pl.Boolean,  # of the core line of a device that has such a line
    "on_cpu": pl.Boolean,  # its stream is a thread of a CPU
    "step": pl.Int64,
    "key": pl.UInt64,  # equal for operations of one name
    "start_ns": pl.Int64,  # on the common clock, as all times here
    "end_ns": pl.Int64,
    "launch_ns": pl.Int64,  # None = its launch is not known
    "thread": pl.Int64,  # number of the launching thread in the run; None as above
    "instance": pl.Int64,  # number of the collective over its ranks; None = no partner
    "likeness": pl.UInt64,  # equal for collectives of one kind, size and group size; None = no collective
    "predicted_ns": pl.Int64,  # what the collective model gives; None = unknown, or no collective
}
"""What the graph needs of an operation on a device."""

POINTS = {
    "trace": pl.Int64,
    "thread": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "is_sync": pl.Boolean,  # the host waits for a device in it
}
"""What it needs of a call on the host: those that launch something, and synchronisations."""

INPUTS = {"thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
"""Ranges in which a host thread loads data."""


class Why(IntEnum):
    """What an edge stands for. Of two that bind alike, the higher one is named."""

    FIXED = 0
    """Nothing is known that it waits for: it happens when it happened."""
    HOST = 1
    """A host thread goes on from one call to the next."""
    HANDOVER = 2
    """A host thread goes on where another one of the process stopped."""
    CALL = 3
    """From begin to end of a call."""
    LAUNCH = 4
    """From the begin of the launch call to the operation."""
    STREAM = 5
    """The operation before in the stream."""
    CORE = 6
    """What the core of an XLA device did before: operations and halves of asynchronous ones."""
    CROSS = 7
    """An operation of another stream of the device."""
    RETURN = 8
    """From the end of an operation to the return of the host call that waits for it."""
    ARRIVAL = 9
    """A rank begins a collective."""
    RUN = 10
    """From begin to end of an operation."""
    TRANSFER = 11
    """From the arrival of the last rank to the end of a collective."""


RANK_OF_WHY = np.arange(len(Why))
_PHASES = {"device_end": 0, "call_end": 1, "call_begin": 2, "device_begin": 3, "arrival": 4}
QUANTILE = 0.1
"""Latencies are taken to be what the quickest tenth takes: more than that has a reason."""


@dataclass(slots=True, kw_only=True)
class Instants:
    """Instants while they are numbered: 0 is the first of all."""

    time_ns: list[Ints]
    phase: list[Ints]
    count: int = 1

    @classmethod
    def since(cls, first_ns: int) -> "Instants":
        """Begins with the instant to which everything is fixed that has no other reason."""
        return cls(time_ns=[np.array([first_ns])], phase=[np.array([-1])])

    def add(self, time_ns: Ints, phase: str) -> Ints:
        """Adds instants and gives their numbers."""
        self.time_ns.append(time_ns)
        self.phase.append(np.full(len(time_ns), _PHASES[phase]))
        numbers = np.arange(self.count, self.count + len(time_ns))
        self.count += len(time_ns)
        return numbers

    def add_ends(self, begins: Ints, start_ns: Ints, end_ns: Ints, phase: str) -> Ints:
        """Adds the ends of what begins; what takes no time ends as the instant at which it begins."""
        out = begins.copy()
        lasting = end_ns > start_ns
        out[lasting] = self.add(end_ns[lasting], phase)
        return out


def edges(why: Why, src: Ints, dst: Ints, lag_ns: Ints | int, of: Ints) -> Edges:
    """Edges of one kind."""
    lag = np.broadcast_to(np.asarray(lag_ns, dtype=np.int64), src.shape)
    return Edges(src=src, dst=dst, lag_ns=lag, why=np.full(len(src), int(why)), of=of)


def low(values: Ints, default: int = 0) -> int:
    """The latency that the quickest tenth shows."""
    return int(np.quantile(values, QUANTILE, method="lower")) if len(values) else default

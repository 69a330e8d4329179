"""What is taken from the host side of a Kineto trace: its rows, and what stands around each launch."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.readers._kineto_columns import NONE, Ints
from tracegap.ingest.readers._kineto_comms import SENT_BY
from tracegap.ingest.readers._kineto_events import Collector
from tracegap.ingest.readers._kineto_host import AROUND, Lost, Names, Window, windows
from tracegap.ingest.readers._kineto_launches import Launches
from tracegap.ingest.readers._kineto_ops import cpu_work
from tracegap.ingest.readers._kineto_roles import Role
from tracegap.ingest.readers._kineto_spool import SPAN, together


@dataclass
class HostSide:
    """The host side of a file; what it tells is known when `nested` has come to its end."""

    collected: Collector
    names: Names
    device: dict[str, NDArray[Any]]
    launches: Launches
    on_cpu: bool
    """Whether the CPU is the device."""
    zero_is_none: bool
    around: NDArray[Any] = field(init=False)
    """What stands around the launch of each piece of device work, as `AROUND`."""
    lost: Lost = field(default_factory=Lost)
    steps: list[Any] = field(default_factory=list)
    """Spans that mark steps, in the file's order."""
    cpu_work: list[tuple[dict[str, Any], tuple[int, int]]] = field(default_factory=list)
    """Rows of `ops` where the CPU is the device."""
    slices: int = 0
    ops: int = 0
    ops_with_dims: int = 0

    def nested(self) -> Iterator[NDArray[Any]]:
        """All spans, nested, as `DONE`. Goes through them once; again if device work must be joined by External id."""
        launched = self.launches.of("order")
        self.around = _nothing(len(launched))
        by_call = np.argsort(launched, kind="stable")
        by_call = by_call[np.searchsorted(launched[by_call], 0) :]
        calls = launched[by_call]
        comm = np.array(sorted(self.collected.comm_args), np.int64)
        sends = np.array([name.startswith(tuple(SENT_BY)) for name in self.names.names], np.bool_)
        forwards = []
        for window in windows(self.collected, self.names, self.lost, zero_is_none=self.zero_is_none):
            self._count(window)
            done = window.done()
            self.slices += len(done)
            yield done
            if self.on_cpu:
                self.cpu_work += cpu_work(window)
            if len(calls):
                spans = window.spans
                at = np.minimum(np.searchsorted(calls, spans["order"]), len(calls) - 1)
                is_call = (spans["role"] == Role.RUNTIME) & (calls[at] == spans["order"])
                found = window.around(np.flatnonzero(is_call & ~spans["old"]), comm, sends)
                first, end = (np.searchsorted(calls, found["order"], at_end) for at_end in ("left", "right"))
                self.around[by_call[_ranges(first, end - first)]] = np.repeat(found, end - first)
                if self.names.has_modules:
                    forwards.append(window.forward_paths())
        self.steps.sort(key=lambda span: int(span["order"]))
        _join_by_ext(self)
        _take_forward_paths(self.around, forwards)

    def _count(self, window: Window) -> None:
        spans = window.spans
        new = ~spans["old"]
        ops = new & (spans["role"] == Role.OP)
        self.ops += int(ops.sum())
        self.ops_with_dims += int(self.names.has_dims[spans["inputs"][ops]].sum())
        self.steps += list(spans[new & self.names.is_step[spans["label"]]])


def _nothing(rows: int) -> NDArray[Any]:
    nothing = np.full(rows, NONE, AROUND)
    nothing["has_formula"] = False
    return nothing


def _ranges(first: Ints, lengths: Ints) -> Ints:
    """The numbers of ranges, one after the other."""
    return np.arange(lengths.sum()) + np.repeat(first - np.cumsum(lengths) + lengths, lengths)


def _by_order(around: NDArray[Any], orders: Ints) -> NDArray[Any]:
    """The entry of each event number, all NONE where there is none."""
    table = np.concatenate([around, _nothing(1)])
    by_order = np.argsort(around["order"])
    ids = around["order"][by_order]
    at = np.searchsorted(ids, orders)
    found = np.append(by_order, len(around))[at]
    return table[np.where(np.append(ids, NONE)[at] == orders, found, len(around))]


def _join_by_ext(host: HostSide) -> None:
    """Framework ops of work that has none around its launch, by External id.

    Thread names differ, or the calls were not recorded. Only if the id is one op's and not just the correlation id again
    (as some versions write it).
    """
    around, device, launches, names = host.around, host.device, host.launches, host.names
    wanted = (device["ext"] >= 0) & (device["ext"] != device["corr"]) & (around["op"] < 0)
    if not wanted.any():
        return
    rows = np.flatnonzero(wanted)
    ids = np.unique(device["ext"][rows])
    found = [np.zeros(0, SPAN)]
    for chunk in together(host.collected.spans):
        maybe = chunk[np.isin(chunk["ext"], ids) & (chunk["role"] == Role.OP)]
        spans = Lost().sound(maybe, zero_is_none=host.zero_is_none)
        found.append(spans[names.is_op[spans["label"]]])
    ops = np.concatenate(found)
    ids, first, count = np.unique(ops["ext"], return_index=True, return_counts=True)
    ids, ops = ids[count == 1], ops[first[count == 1]]
    if not len(ops):
        return
    at = np.minimum(np.searchsorted(ids, device["ext"][rows]), len(ids) - 1)
    launched = launches.call[rows] >= 0
    moment = np.where(launched, launches.of("start")[rows], device["start"][rows])
    begin = ops["start"][at]
    fits = (ids[at] == device["ext"][rows]) & (begin <= moment) & (~launched | (moment < begin + ops["dur"][at]))
    if not fits.any():
        return
    orders = np.unique(ops["order"][at[fits]])
    nothing = np.zeros(len(names.names), np.bool_)
    parts = [np.zeros(0, AROUND)]
    for window in windows(host.collected, names, Lost(), zero_is_none=host.zero_is_none):
        here = ~window.spans["old"] & np.isin(window.spans["order"], orders)
        parts.append(window.around(np.flatnonzero(here), orders[:0], nothing))
    told = _by_order(np.concatenate(parts), ops["order"][at])
    for name in ("op", "label", "inputs", "caller", "has_formula"):
        around[name][rows[fits]] = told[name][fits]
    bare = fits & ~launched
    for name in ("path", "forward"):
        around[name][rows[bare]] = told[name][bare]


def _take_forward_paths(around: NDArray[Any], forwards: list[tuple[Ints, NDArray[np.int32]]]) -> None:
    """Module paths of backward passes: those of the forward ops that they belong to."""
    if not forwards:
        return
    numbers = np.concatenate([numbers for numbers, _ in forwards])
    paths = np.concatenate([paths for _, paths in forwards])
    numbers, first = np.unique(numbers, return_index=True)
    rows = np.flatnonzero((around["path"] < 0) & (around["forward"] >= 0))
    if len(rows) and len(numbers):
        at = np.minimum(np.searchsorted(numbers, around["forward"][rows]), len(numbers) - 1)
        same = numbers[at] == around["forward"][rows]
        around["path"][rows[same]] = paths[first[at[same]]]

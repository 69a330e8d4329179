"""What is taken from the host side of a Kineto trace: its rows, and what stands around each launch."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.readers._kineto_columns import NONE, Ints
from tracegap.ingest.readers._kineto_comms import SENT_BY
from tracegap.ingest.readers._kineto_events import Collector
from tracegap.ingest.readers._kineto_host import AROUND, Lost, Names, windows
from tracegap.ingest.readers._kineto_launches import Launches
from tracegap.ingest.readers._kineto_ops import cpu_work
from tracegap.ingest.readers._kineto_roles import Role
from tracegap.ingest.readers._kineto_spool import DONE, SPAN, Spool, together

_NEVER = 2**62


@dataclass
class HostSide:
    """The host side of a file, read."""

    around: NDArray[Any]
    """What stands around the launch of each piece of device work, as `AROUND`."""
    done: Spool = field(default_factory=lambda: Spool(DONE))
    """All spans, nested."""
    lost: Lost = field(default_factory=Lost)
    steps: list[Any] = field(default_factory=list)
    """Spans that mark steps, in the file's order."""
    cpu_work: list[tuple[dict[str, Any], tuple[int, int]]] = field(default_factory=list)
    """Rows of `ops` where the CPU is the device."""
    first_ns: int = _NEVER
    ops: int = 0
    ops_with_dims: int = 0


def read_host(
    collected: Collector,
    names: Names,
    device: dict[str, NDArray[Any]],
    launches: Launches,
    *,
    on_cpu: bool,
    zero_is_none: bool,
) -> HostSide:
    """Goes through the host's spans once; a second time if device work must be joined by External id."""
    launched = launches.of("order")
    side = HostSide(_nothing(len(launched)))
    by_call = np.argsort(launched, kind="stable")
    by_call = by_call[np.searchsorted(launched[by_call], 0) :]
    calls = launched[by_call]
    comm = np.array(sorted(collected.comm_args), np.int64)
    sends = np.array([name.startswith(tuple(SENT_BY)) for name in names.names], np.bool_)
    has_dims = names.has_dims()
    steps = np.array([kind == "step" for kind in names.kinds], np.bool_)
    forwards = []
    for window in windows(collected, names, side.lost, zero_is_none=zero_is_none):
        spans = window.spans
        new = ~spans["old"]
        ops = new & (spans["role"] == Role.OP)
        side.ops += int(ops.sum())
        side.ops_with_dims += int(has_dims[spans["inputs"][ops]].sum())
        side.first_ns = min(side.first_ns, int(spans["start"].min(initial=_NEVER)))
        side.steps += list(spans[new & steps[spans["label"]]])
        side.done.add(window.done())
        if on_cpu:
            side.cpu_work += cpu_work(window)
        if len(calls):
            at = np.minimum(np.searchsorted(calls, spans["order"]), len(calls) - 1)
            rows = np.flatnonzero(new & (spans["role"] == Role.RUNTIME) & (calls[at] == spans["order"]))
            found = window.around(rows, comm, sends)
            first, end = (np.searchsorted(calls, found["order"], at_end) for at_end in ("left", "right"))
            work = by_call[_ranges(first, end - first)]
            side.around[work] = np.repeat(found, end - first)
            if names.has_modules:
                forwards.append(window.forward_paths())
    side.steps.sort(key=lambda span: int(span["order"]))
    _join_by_ext(side.around, collected, names, device, launches, zero_is_none=zero_is_none)
    _take_forward_paths(side.around, forwards)
    return side


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


def _join_by_ext(
    around: NDArray[Any],
    collected: Collector,
    names: Names,
    device: dict[str, NDArray[Any]],
    launches: Launches,
    *,
    zero_is_none: bool,
) -> None:
    """Framework ops of work that has none around its launch, by External id.

    Thread names differ, or the calls were not recorded. Only if the id is one op's and not just the correlation id again
    (as some versions write it).
    """
    wanted = (device["ext"] >= 0) & (device["ext"] != device["corr"]) & (around["op"] < 0)
    if not wanted.any():
        return
    rows = np.flatnonzero(wanted)
    ids = np.unique(device["ext"][rows])
    found = [np.zeros(0, SPAN)]
    for chunk in together(collected.spans):
        maybe = chunk[np.isin(chunk["ext"], ids) & (chunk["role"] == Role.OP)]
        spans = Lost().sound(maybe, zero_is_none=zero_is_none)
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
    for window in windows(collected, names, Lost(), zero_is_none=zero_is_none):
        here = ~window.spans["old"] & np.isin(window.spans["order"], orders)
        parts.append(window.around(np.flatnonzero(here), orders[:0], nothing))
    told = _by_order(np.concatenate(parts), ops["order"][at])
    for name in ("op", "label", "inputs", "has_formula"):
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

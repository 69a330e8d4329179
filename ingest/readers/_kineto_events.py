"""Blocks of Kineto events to columns, sorted by what they are: work of a device, spans of host threads, samples."""

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.hosttree import pair
from tracegap.ingest.readers._kineto_json import Block
from tracegap.ingest.readers._kineto_schema import Args, Event

Ints = NDArray[np.int64]
NONE = -1
"""No such id, in columns of ids (which are positive) and of rows."""


class Role(IntEnum):
    """What an event is to us."""

    IGNORED = -2  # flows and names of rows: only counted
    LOOK = -1  # no complete span, but it may hold something: begins, ends, samples
    LABEL = 0  # labels, waits and windows, on a lane of a device without being its work
    KERNEL = 1
    COPY = 2
    MEMSET = 3
    RUNTIME = 4
    OP = 5
    HOST = 6  # any other span of a host thread


_ROLES = {
    "kernel": Role.KERNEL,
    "mtia_ccp_events": Role.KERNEL,
    "mtia_workloadd": Role.KERNEL,
    "hpu_op": Role.KERNEL,
    "privateuse1_kernel": Role.KERNEL,
    "privateuse1_device": Role.KERNEL,
    "gpu_memcpy": Role.COPY,
    "memcpy": Role.COPY,
    "privateuse1_memcpy": Role.COPY,
    "gpu_memset": Role.MEMSET,
    "memset": Role.MEMSET,
    "privateuse1_memset": Role.MEMSET,
    "cuda_runtime": Role.RUNTIME,
    "cuda_driver": Role.RUNTIME,
    "hip_runtime": Role.RUNTIME,
    "runtime": Role.RUNTIME,
    "xpu_runtime": Role.RUNTIME,
    "xpu_driver": Role.RUNTIME,
    "mtia_runtime": Role.RUNTIME,
    "glow_runtime": Role.RUNTIME,
    "privateuse1_runtime": Role.RUNTIME,
    "privateuse1_driver": Role.RUNTIME,
    "cpu_op": Role.OP,
    "operator": Role.OP,
    "gpu_user_annotation": Role.LABEL,
    "privateuse1_user_annotation": Role.LABEL,
    "cuda_sync": Role.LABEL,
    "xpu_sync": Role.LABEL,
    "cuda_event": Role.LABEL,
    "cuda_profiler_range": Role.LABEL,
    "hardware_counters": Role.LABEL,
    "collective_comm": Role.LABEL,
    "trace": Role.LABEL,
}
"""By `cat` in small letters (1.8 to 1.11 write Kernel, Operator, Runtime); any other complete event is a host span."""


def _role(ph: Any, cat: Any) -> Role:
    if ph == "X":
        return _ROLES.get(cat.lower() if isinstance(cat, str) else "", Role.HOST)
    return Role.IGNORED if ph in ("s", "f", "t", "M") else Role.LOOK


class Ids(dict[Any, int]):
    """Numbers values in the order in which they come."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number

    def of(self, values: list[Any]) -> NDArray[np.int32]:
        """The number of each value."""
        return np.fromiter(map(self.__getitem__, values), np.int32, len(values))


def integer(value: Any) -> int | None:
    """A whole number that fits 64 bits, from a JSON number or its text; else None."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None


def _ids(values: list[Any]) -> Ints:
    """Ids as a column: positive ones as they are, all else NONE (correlation 0 means that there is none)."""
    if {*map(type, values)} != {int} or max(values) >= 2**63:
        values = [NONE if v is None or (number := integer(v)) is None else number for v in values]
    column = np.array(values, np.int64)
    return np.where(column > 0, column, NONE)


class Columns:
    """Growing columns: lists of arrays, joined once at the end."""

    def __init__(self, *names: str) -> None:
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}

    def add(self, **parts: NDArray[Any]) -> None:
        """Appends an array of the same length to each column."""
        for name, part in parts.items():
            self._parts[name].append(part)

    def joined(self) -> dict[str, NDArray[Any]]:
        """All columns; those without a row are empty."""
        kind = {True: np.bool_, False: np.int64}
        return {n: np.concatenate(p) if p else np.zeros(0, kind[n.startswith("has_")]) for n, p in self._parts.items()}


@dataclass
class Collector:
    """Takes blocks and keeps what the reader needs of them. Times stay in ns of the file's own clock."""

    texts: Ids = field(default_factory=Ids)
    """Names, categories, process, thread, device and stream ids of all events."""
    shapes: Ids = field(default_factory=Ids)
    """Raw (Input Dims, Input type, Input Strides, Concrete Inputs) of framework ops."""
    empty: int = 0
    """Entries of the list that are no event: `{}`."""
    slices_without_time: int = 0
    """Begins and ends without a time."""
    first_ns: int | None = None
    """Earliest start of a complete event, and below the latest end; host and device, labels too."""
    last_end_ns: int | None = None
    device_args: set[Any] = field(default_factory=set)
    """The values of `device` in the arguments of device work; None where there is none."""
    comm_args: dict[int, Args] = field(default_factory=dict)
    """Collective metadata of kernels and host ops, by event number."""
    call_bytes: dict[int, int] = field(default_factory=dict)
    """Size argument of runtime calls that copy, by event number (ROCm has it there only)."""
    nested_document: bool = False
    """Whether an entry of the list is itself a trace."""
    gpu_step_labels: int = 0
    """`ProfilerStep#N` copies on device lanes."""
    counters: list[tuple[str, str, int, float]] = field(default_factory=list)
    """(device, name, ns, value)."""
    _codes: Counter[int] = field(default_factory=Counter)
    _kinds: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    _roles: dict[int, Role] = field(default_factory=dict)
    _events: int = 0

    def __post_init__(self) -> None:
        self._device = Columns(
            "order", "start", "dur", "name", "role", "device", "stream", "corr", "ext", "bytes", "has_start", "has_dur"
        )
        self._host = Columns(
            "order", "start", "dur", "name", "cat", "pid", "tid", "role", "corr", "ext", "shape", "seq", "has_start"
        )
        self._slices: list[tuple[int, int, bool, Event]] = []

    def add(self, block: Block) -> None:
        """Takes the events of a block."""
        events = block.events
        first = self._events
        self._events += len(events)
        ph, cat = self.texts.of([e.ph for e in events]), self.texts.of([e.cat for e in events])
        codes, inverse, counts = np.unique(ph.astype(np.int64) << 32 | cat, return_inverse=True, return_counts=True)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
            self._codes[code] += count
            if code not in self._roles:
                at = int(np.flatnonzero((ph == code >> 32) & (cat == code & 0xFFFFFFFF))[0])
                self._kinds[code] = events[at].ph, events[at].cat
                self._roles[code] = _role(*self._kinds[code])
        role = np.array([self._roles[code] for code in codes.tolist()], np.int8)[inverse]
        others = np.flatnonzero((role == Role.LOOK) | (role == Role.LABEL))
        if len(others):
            self._take_others(block, first, others.tolist())
        timed = (role >= Role.LABEL) & block.has_start
        self._extend(block.start_ns[timed], block.dur_ns[timed])
        device = (role >= Role.KERNEL) & (role <= Role.MEMSET)
        if device.any():
            self._take_device(list(compress(events, device.tolist())), block, np.flatnonzero(device), first, role)
        host = role >= Role.RUNTIME
        if host.any():
            self._take_host(list(compress(events, host.tolist())), block, np.flatnonzero(host), first, role, cat=cat)

    @property
    def phases(self) -> dict[tuple[Any, Any], int]:
        """Events by (ph, cat)."""
        return {self._kinds[code]: count for code, count in self._codes.items()}

    def _extend(self, start: Ints, dur: Ints) -> None:
        if len(start):
            low, high = int(start.min()), int((start + np.maximum(dur, 0)).max())
            self.first_ns = low if self.first_ns is None else min(self.first_ns, low)
            self.last_end_ns = high if self.last_end_ns is None else max(self.last_end_ns, high)

    def _take_device(self, events: list[Event], block: Block, rows: Ints, first: int, role: NDArray[np.int8]) -> None:
        args = [e.args for e in events]
        self.device_args.update([a.device for a in args])
        ext = [a.external_id if a.external_id is not None else a.external_id_18 for a in args]
        self._device.add(
            order=rows + first,
            start=block.start_ns[rows],
            dur=block.dur_ns[rows],
            name=self.texts.of(_names(events)),
            role=role[rows],
            device=self.texts.of([str(e.pid if e.args.device is None else e.args.device) for e in events]),
            stream=self.texts.of([str(e.tid if e.args.stream is None else e.args.stream) for e in events]),
            corr=_ids([a.correlation for a in args]),
            ext=_ids(ext),
            bytes=np.array([NONE if a.bytes is None or (b := integer(a.bytes)) is None else b for a in args], np.int64),
            has_start=block.has_start[rows],
            has_dur=block.has_dur[rows],
        )
        for row, a in zip(rows.tolist(), args, strict=True):
            if a.collective is not None or a.in_nelems is not None:
                self.comm_args[row + first] = a

    def _take_host(
        self,
        events: list[Event],
        block: Block,
        rows: Ints,
        first: int,
        role: NDArray[np.int8],
        *,
        cat: NDArray[np.int32],
    ) -> None:
        n = len(events)
        roles = role[rows]
        corr, ext, shape, seq = (np.full(n, NONE, np.int64) for _ in range(4))
        calls = np.flatnonzero(roles == Role.RUNTIME)
        if len(calls):
            args = [events[i].args for i in calls.tolist()]
            corr[calls] = _ids([a.correlation for a in args])
            ext[calls] = _ids([a.external_id if a.external_id is not None else a.external_id_18 for a in args])
            for i, a in zip(calls.tolist(), args, strict=True):
                if a.size is not None and (size := integer(a.size)) is not None:
                    self.call_bytes[int(rows[i]) + first] = size
        ops = np.flatnonzero(roles == Role.OP)
        if len(ops):
            args = [events[i].args for i in ops.tolist()]
            ext[ops] = _ids([a.external_id for a in args])
            seq[ops] = _sequence(args)
            for i, a in zip(ops.tolist(), args, strict=True):
                if a.collective is not None or a.in_nelems is not None:
                    self.comm_args[int(rows[i]) + first] = a
        spans = np.flatnonzero(roles == Role.HOST).tolist()
        shaped = [*ops.tolist(), *(i for i in spans if events[i].cat == "user_annotation")]
        if shaped:
            shape[shaped] = self.shapes.of([_shape_key(events[i].args) for i in shaped])
        self._host.add(
            order=rows + first,
            start=block.start_ns[rows],
            dur=block.dur_ns[rows],
            name=self.texts.of(_names(events)),
            cat=cat[rows],
            pid=self.texts.of([e.pid for e in events]),
            tid=self.texts.of([e.tid for e in events]),
            role=roles,
            corr=corr,
            ext=ext,
            shape=shape,
            seq=seq,
            has_start=block.has_start[rows],
        )

    def _take_others(self, block: Block, first: int, rows: list[int]) -> None:
        """Begin and end events, memory samples, labels on device lanes, entries that are no event."""
        for i in rows:
            event = block.events[i]
            if event.ph in ("B", "E"):
                if block.has_start[i]:
                    self._slices.append((i + first, int(block.start_ns[i]), event.ph == "E", event))
                else:
                    self.slices_without_time += 1
            elif event.ph == "X":
                self.gpu_step_labels += event.cat != "Trace" and str(event.name).startswith("ProfilerStep#")
            elif event.ph == "i" and event.name == "[memory]" and block.has_start[i]:
                self._sample_memory(event.args, int(block.start_ns[i]))
            elif event.ph is None and event.name is None and event.cat is None:
                self.empty += 1
                self.nested_document |= bool(bytes(event.nested))

    def _sample_memory(self, args: Args, at_ns: int) -> None:
        device = "cpu" if args.device_type == 0 else str(args.device_index)
        for name, value in (("allocated_bytes", args.allocated), ("reserved_bytes", args.reserved)):
            if isinstance(value, int):
                self.counters.append((device, name, at_ns, float(value)))

    def device_columns(self) -> dict[str, NDArray[Any]]:
        """Work of devices, in the file's order."""
        return self._device.joined()

    def host_columns(self) -> tuple[dict[str, NDArray[Any]], list[str], int]:
        """Spans of host threads in the file's order; names of slices that never end; ends that nothing began."""
        open_names: list[str] = []
        unmatched_ends = 0
        if self._slices:
            where = Ids()
            slices = self._slices
            threads = [where[(str(e.pid), str(e.tid))] for *_, e in slices]
            pairs = pair(threads, [s[1] for s in slices], [s[2] for s in slices], [s[3].name for s in slices])
            open_names = [_text(slices[i][3].name) for i in sorted(pairs.unmatched_begins)]
            unmatched_ends = len(pairs.unmatched_ends)
            n = len(pairs.begins)
            begins = [slices[i] for i in pairs.begins]
            start = np.array([s[1] for s in begins], np.int64)
            end = np.array([slices[i][1] for i in pairs.ends], np.int64)
            self._extend(start, end - start)
            roles = [max(_role("X", s[3].cat), Role.RUNTIME) for s in begins]
            self._host.add(
                order=np.array([s[0] for s in begins], np.int64),
                start=start,
                dur=end - start,
                name=self.texts.of([_text(s[3].name) for s in begins]),
                cat=self.texts.of([s[3].cat for s in begins]),
                pid=self.texts.of([s[3].pid for s in begins]),
                tid=self.texts.of([s[3].tid for s in begins]),
                role=np.array(roles, np.int8),
                corr=_ids([s[3].args.correlation for s in begins]),
                ext=_ids([s[3].args.external_id for s in begins]),
                shape=self.shapes.of([_shape_key(s[3].args) for s in begins]).astype(np.int64),
                seq=np.full(n, NONE, np.int64),
                has_start=np.ones(n, np.bool_),
            )
            self._slices = []
        host = self._host.joined()
        order = np.argsort(host["order"], kind="stable")
        if len(order) and (np.diff(host["order"]) < 0).any():
            host = {name: column[order] for name, column in host.items()}
        return host, open_names, unmatched_ends


def _text(name: Any) -> str:
    return name if isinstance(name, str) else "" if name is None else str(name)


def _names(events: list[Event]) -> list[str]:
    names = [e.name for e in events]
    return names if {*map(type, names)} == {str} else [_text(name) for name in names]


def _shape_key(a: Args) -> tuple[bytes, bytes, bytes, bytes]:
    dims = bytes(a.input_dims) or bytes(a.input_dims_18)
    return dims, bytes(a.input_type), bytes(a.input_strides), bytes(a.concrete_inputs)


def _sequence(args: list[Args]) -> Ints:
    """Autograd's sequence number: 2 n of a forward op, 2 n + 1 of the backward op that belongs to it, NONE without."""
    numbers = [a.sequence for a in args]
    if {*map(type, numbers)} != {int} or max(numbers) >= 2**61 or min(numbers) < 0:
        numbers = [n if type(n) is int and 0 <= n < 2**61 else NONE for n in numbers]
    column = np.array(numbers, np.int64)
    backward = np.fromiter((bool(a.fwd_thread) for a in args), np.int64, len(args))
    return np.where(column < 0, NONE, 2 * column + backward)

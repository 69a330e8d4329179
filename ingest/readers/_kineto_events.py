"""Blocks of Kineto events to columns, sorted by what they are: work of a device, spans of host threads, samples."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import compress, islice
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.hosttree import pair
from tracegap.ingest.readers._kineto_json import Block
from tracegap.ingest.readers._kineto_schema import Args, Event
from tracegap.ingest.readers._kineto_spool import SPAN, Spool

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

    def of(self, values: Sequence[Any], *beside: Sequence[Any]) -> NDArray[np.int32]:
        """The number of each value; with more sequences, of each tuple. Lists and objects are numbered by their text."""
        try:
            keys = zip(values, *beside, strict=True) if beside else values
            return np.fromiter(map(self.__getitem__, keys), np.int32, len(values))
        except TypeError:
            return self.of(*([str(v) if isinstance(v, list | dict) else v for v in part] for part in (values, *beside)))


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
        self.names = names
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}

    def add(self, **parts: NDArray[Any]) -> None:
        """Appends an array of the same length to each column."""
        for name, part in parts.items():
            self._parts[name].append(part)

    def joined(self) -> dict[str, NDArray[Any]]:
        """All columns, taken out; those without a row are empty."""
        kind = {True: np.bool_, False: np.int64}
        parts, self._parts = self._parts, {name: [] for name in self.names}
        return {n: np.concatenate(p) if p else np.zeros(0, kind[n.startswith("has_")]) for n, p in parts.items()}


_NEVER = 2**62


class CommArgs(NamedTuple):
    """What PyTorch says of a collective, as it says it; None where it does not."""

    collective: Any = None
    in_nelems: Any = None
    out_nelems: Any = None
    in_split: Any = None
    out_split: Any = None
    group_size: Any = None
    dtype: Any = None
    group_name: Any = None
    group_number: Any = None
    group_ranks: Any = None
    rank_start: Any = None
    rank_stride: Any = None
    src_rank: Any = None
    dst_rank: Any = None
    seq: Any = None


NO_COMM = CommArgs()
_COMM_FIELDS = attrgetter(*CommArgs._fields)


@dataclass
class Collector:
    """Takes blocks and keeps what the reader needs of them. Times stay in ns of the file's own clock."""

    texts: Ids = field(default_factory=Ids)
    """Names of device work, device and stream ids."""
    labels: Ids = field(default_factory=Ids)
    """(name, category) of host spans."""
    threads: Ids = field(default_factory=Ids)
    """(process, thread) of host spans."""
    inputs: Ids = field(default_factory=Ids)
    """(label, raw Input Dims, Input type, Input Strides, Concrete Inputs joined by NUL) of framework ops."""
    spans: Spool = field(default_factory=lambda: Spool(SPAN))
    """Host spans, in chunks."""
    span_starts: list[int] = field(default_factory=list)
    """Earliest start in each chunk of `spans`."""
    first_positive_ns: int = _NEVER
    """Earliest start of a host span above 0."""
    empty: int = 0
    """Entries of the list that are no event: `{}`."""
    slices_without_time: int = 0
    """Begins and ends without a time."""
    first_ns: int | None = None
    """Earliest start of a complete event, and below the latest end; host and device, labels too."""
    last_end_ns: int | None = None
    device_args: set[Any] = field(default_factory=set)
    """The values of `device` in the arguments of device work; None where there is none."""
    comm_args: dict[int, CommArgs] = field(default_factory=dict)
    """Collective metadata of kernels and host ops, by event number."""
    call_bytes: dict[int, int] = field(default_factory=dict)
    """Size argument of runtime calls that copy, by event number (ROCm has it there only)."""
    nested_document: bool = False
    """Whether an entry of the list is itself a trace."""
    gpu_step_labels: int = 0
    """`ProfilerStep#N` copies on device lanes."""
    open_slices: list[str] = field(default_factory=list)
    """Names of slices that never end; known once `finish` is called, as are the ends that nothing began."""
    unmatched_ends: int = 0
    _counts: Counter[int] = field(default_factory=Counter)
    _kinds: Ids = field(default_factory=Ids)
    _roles: list[Role] = field(default_factory=list)
    _texts_of_comm: dict[Any, Any] = field(default_factory=dict)
    _events: int = 0

    def __post_init__(self) -> None:
        self._device = Columns(
            "order", "start", "dur", "name", "role", "device", "stream", "corr", "ext", "bytes", "has_start", "has_dur"
        )
        self._calls = Columns("order", "start", "dur", "corr", "ext", "thread", "label", "has_start")
        self._samples = Columns("device", "at", "allocated", "reserved")
        self._slices: list[tuple[int, int, bool, Event]] = []

    def add(self, block: Block) -> None:
        """Takes the events of a block."""
        events = block.events
        first = self._events
        self._events += len(events)
        kind = self._kinds.of([e.ph for e in events], [e.cat for e in events])
        self._roles += [_role(*key) for key in islice(self._kinds, len(self._roles), None)]
        counts = np.bincount(kind)
        for i in np.flatnonzero(counts).tolist():
            self._counts[i] += int(counts[i])
        role = np.array(self._roles, np.int8)[kind]
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
            rows = np.flatnonzero(host)
            self._take_host(
                list(compress(events, host.tolist())),
                orders=rows + first,
                start=block.start_ns[rows],
                dur=block.dur_ns[rows],
                has_start=block.has_start[rows],
                roles=role[rows],
            )

    @property
    def phases(self) -> dict[tuple[Any, Any], int]:
        """Events by (ph, cat)."""
        return {key: self._counts[i] for i, key in enumerate(self._kinds)}

    def _extend(self, start: Ints, dur: Ints) -> None:
        if len(start):
            low, high = int(start.min()), int((start + np.maximum(dur, 0)).max())
            self.first_ns = low if self.first_ns is None else min(self.first_ns, low)
            self.last_end_ns = high if self.last_end_ns is None else max(self.last_end_ns, high)

    def _take_device(self, events: list[Event], block: Block, rows: Ints, first: int, role: NDArray[np.int8]) -> None:
        args = [e.args for e in events]
        self.device_args.update([a.device for a in args])
        self._device.add(
            order=rows + first,
            start=block.start_ns[rows],
            dur=block.dur_ns[rows],
            name=self.texts.of(_names(events)),
            role=role[rows],
            device=self.texts.of(
                [str(e.pid if a.device is None else a.device) for e, a in zip(events, args, strict=True)]
            ),
            stream=self.texts.of(
                [str(e.tid if a.stream is None else a.stream) for e, a in zip(events, args, strict=True)]
            ),
            corr=_ids([a.correlation for a in args]),
            ext=_ids([a.external_id if a.external_id is not None else a.external_id_18 for a in args]),
            bytes=np.array([NONE if a.bytes is None or (b := integer(a.bytes)) is None else b for a in args], np.int64),
            has_start=block.has_start[rows],
            has_dur=block.has_dur[rows],
        )
        self._take_comm(args, rows + first)

    def _take_comm(self, args: list[Args], orders: Ints) -> None:
        """Keeps collective metadata; equal texts of it once."""
        for i in [i for i, a in enumerate(args) if a.collective is not None or a.in_nelems is not None]:
            known = self._texts_of_comm
            self.comm_args[int(orders[i])] = CommArgs(
                *(known.setdefault(v, v) if isinstance(v, str) else v for v in _COMM_FIELDS(args[i]))
            )

    def _take_host(
        self,
        events: list[Event],
        *,
        orders: Ints,
        start: Ints,
        dur: Ints,
        has_start: NDArray[np.bool_],
        roles: NDArray[np.int8],
    ) -> None:
        n = len(events)
        cats = [e.cat for e in events]
        args = [e.args for e in events]
        spans = np.zeros(n, SPAN)
        label = self.labels.of(_names(events), cats)
        spans["order"], spans["start"], spans["dur"], spans["has_start"] = orders, start, dur, has_start
        spans["label"], spans["role"] = label, roles
        spans["thread"] = self.threads.of([e.pid for e in events], [e.tid for e in events])
        for column in ("corr", "ext", "seq", "inputs"):
            spans[column] = NONE
        calls = np.flatnonzero(roles == Role.RUNTIME)
        if len(calls):
            of_calls = [args[i] for i in calls.tolist()]
            corr = _ids([a.correlation for a in of_calls])
            ext = _ids([a.external_id if a.external_id is not None else a.external_id_18 for a in of_calls])
            spans["corr"][calls], spans["ext"][calls] = corr, ext
            for i, a in enumerate(of_calls):
                if a.size is not None and (size := integer(a.size)) is not None:
                    self.call_bytes[int(orders[calls[i]])] = size
            joined = calls[corr >= 0]
            if len(joined):
                self._calls.add(**{name: spans[name][joined] for name in self._calls.names})
        ops = np.flatnonzero(roles == Role.OP)
        if len(ops):
            of_ops = args if len(ops) == n else [args[i] for i in ops.tolist()]
            spans["ext"][ops] = _ids([a.external_id for a in of_ops])
            numbered = [i for i, a in enumerate(of_ops) if a.sequence is not None]
            if numbered:
                spans["seq"][ops[numbered]] = _sequence([of_ops[i] for i in numbered])
            self._take_comm(of_ops, orders[ops])
        shaped = [
            i
            for i, (a, role, cat) in enumerate(zip(args, roles.tolist(), cats, strict=True))
            if (role == _OP or cat == "user_annotation")
            and (a.input_dims or a.input_type or a.input_dims_18 or a.concrete_inputs or a.input_strides)
        ]
        if shaped:
            raws = [_raw_inputs(args[i]) for i in shaped]
            spans["inputs"][shaped] = self.inputs.of(label[shaped].tolist(), raws)
        self._add_spans(spans)

    def _add_spans(self, spans: NDArray[Any]) -> None:
        start = spans["start"]
        least = int(start.min())
        self.spans.add(spans)
        self.span_starts.append(least)
        if least <= 0:
            least = int(start.min(where=start > 0, initial=_NEVER))
        self.first_positive_ns = min(self.first_positive_ns, least)

    def _take_others(self, block: Block, first: int, rows: list[int]) -> None:
        """Begin and end events, memory samples, labels on device lanes, entries that are no event."""
        samples: list[tuple[int, int, int, int]] = []
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
                a = event.args
                device = self.texts["cpu" if a.device_type == 0 else str(a.device_index)]
                samples.append((device, int(block.start_ns[i]), _size(a.allocated), _size(a.reserved)))
            elif event.ph is None and event.name is None and event.cat is None:
                self.empty += 1
                self.nested_document |= bool(bytes(event.nested))
        if samples:
            table = np.array(samples, np.int64)
            self._samples.add(**{name: table[:, i] for i, name in enumerate(self._samples.names)})

    def finish(self) -> None:
        """Pairs begins with ends; called after the last block."""
        if not self._slices:
            return
        where = Ids()
        slices, self._slices = self._slices, []
        threads = [where[(str(e.pid), str(e.tid))] for *_, e in slices]
        pairs = pair(threads, [s[1] for s in slices], [s[2] for s in slices], [s[3].name for s in slices])
        self.open_slices = [_text(slices[i][3].name) for i in sorted(pairs.unmatched_begins)]
        self.unmatched_ends = len(pairs.unmatched_ends)
        if not pairs.begins:
            return
        begins = [slices[i] for i in pairs.begins]
        start = np.array([s[1] for s in begins], np.int64)
        dur = np.array([slices[i][1] for i in pairs.ends], np.int64) - start
        self._extend(start, dur)
        roles = np.array([max(_role("X", s[3].cat), Role.RUNTIME) for s in begins], np.int8)
        orders = np.array([s[0] for s in begins], np.int64)
        has_start = np.ones(len(begins), np.bool_)
        self._take_host([s[3] for s in begins], orders=orders, start=start, dur=dur, has_start=has_start, roles=roles)

    def device_columns(self) -> dict[str, NDArray[Any]]:
        """Work of devices, in the file's order; taken out."""
        return self._device.joined()

    def call_columns(self) -> dict[str, NDArray[Any]]:
        """Runtime calls with a correlation id; taken out."""
        return self._calls.joined()

    def samples(self) -> dict[str, NDArray[Any]]:
        """Samples of memory: device (a text), time in ns, bytes allocated and reserved (NONE: not told); taken out."""
        return self._samples.joined()


_OP = int(Role.OP)


def _size(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**63 else NONE


def _text(name: Any) -> str:
    return name if isinstance(name, str) else "" if name is None else str(name)


def _names(events: list[Event]) -> list[str]:
    names = [e.name for e in events]
    return names if {*map(type, names)} == {str} else [_text(name) for name in names]


def _raw_inputs(a: Args) -> bytes:
    """Input Dims, Input type, Input Strides and Concrete Inputs as the file has them, joined by NUL."""
    return b"\0".join((a.input_dims or a.input_dims_18, a.input_type, a.input_strides, a.concrete_inputs))


def _sequence(args: list[Args]) -> Ints:
    """Autograd's sequence number: 2 n of a forward op, 2 n + 1 of the backward op that belongs to it, NONE without."""
    numbers = [n if type(n) is int and 0 <= n < 2**61 else NONE for n in (a.sequence for a in args)]
    column = np.array(numbers, np.int64)
    backward = np.fromiter((bool(a.fwd_thread) for a in args), np.int64, len(args))
    return np.where(column < 0, NONE, 2 * column + backward)

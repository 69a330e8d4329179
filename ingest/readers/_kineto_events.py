"""Blocks of Kineto events to columns, sorted by what they are: work of a device, spans of host threads, samples."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import compress, islice
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.hosttree import pair
from tracegap.ingest.readers._kineto_columns import NONE, Columns, Ids, Ints, integer, positive_ids, whole_numbers
from tracegap.ingest.readers._kineto_json import BLOCK_SHIFT, Block
from tracegap.ingest.readers._kineto_repeats import LaunchShapes
from tracegap.ingest.readers._kineto_roles import Role, role_of
from tracegap.ingest.readers._kineto_schema import Args, Event
from tracegap.ingest.readers._kineto_spool import SPAN, Joined, Spool

NEVER = 2**62
NO_INPUTS = b"\0" * 4
"""Inputs of which nothing is recorded."""


class _Part(NamedTuple):
    """Some events of a block, with their numbers, roles and times in ns."""

    events: list[Event]
    order: Ints
    role: NDArray[np.int8]
    start: Ints
    dur: Ints
    has_start: NDArray[np.bool_]
    has_dur: NDArray[np.bool_]

    def where(self, mask: NDArray[np.bool_]) -> "_Part":
        """The marked ones."""
        if mask.all():
            return self
        columns: tuple[Any, ...] = self[1:]
        return _Part(list(compress(self.events, mask.tolist())), *(column[mask] for column in columns))


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
    group_desc: Any = None
    group_number: Any = None
    group_ranks: Any = None
    rank_start: Any = None
    rank_stride: Any = None
    src_rank: Any = None
    dst_rank: Any = None
    seq: Any = None


NO_COMM = CommArgs()
_COMM_FIELDS = attrgetter(*CommArgs._fields)


class _Texts(Ids):
    """Numbers the texts of values, in another table of numbers: values are many, few of them differ."""

    def __init__(self, texts: Ids) -> None:
        super().__init__()
        self._texts = texts

    def __missing__(self, key: Any) -> int:
        self[key] = number = self._texts[str(key)]
        return number


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
    """(label, the raw `_INPUTS` joined by NUL) of framework ops."""
    spans: Spool | Joined = field(default_factory=lambda: Spool(SPAN))
    """Host spans, in chunks."""
    span_starts: list[int] = field(default_factory=list)
    """Earliest start in each chunk of `spans`."""
    first_positive_ns: int = NEVER
    """Earliest start of a host span above 0."""
    _first_host_ns: int = NEVER
    _first_nonzero_ns: int = NEVER
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
    _comm_calls: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    _launch_shapes: LaunchShapes = field(default_factory=LaunchShapes)
    _words: "_Texts" = field(init=False)

    def __post_init__(self) -> None:
        self._words = _Texts(self.texts)
        self._device = Columns(
            "order", "start", "dur", "name", "role", "device", "stream", "corr", "ext", "bytes", "launch_shape",
            "has_start", "has_dur",
        )  # fmt: skip
        self._calls = Columns("order", "start", "dur", "corr", "ext", "thread", "label", "has_start")
        self._samples = Columns("order", "device", "at", "allocated", "reserved", "thread", "address", "bytes")
        self._slices: list[tuple[int, int, bool, Event]] = []

    def add(self, block: Block) -> None:
        """Takes the events of a block."""
        events = block.events
        kind = self._kinds.of([e.ph for e in events], [e.cat for e in events])
        self._roles += [role_of(*key) for key in islice(self._kinds, len(self._roles), None)]
        counts = np.bincount(kind)
        for i in np.flatnonzero(counts).tolist():
            self._counts[i] += int(counts[i])
        role = np.array(self._roles, np.int8)[kind]
        rows = np.flatnonzero(role != Role.IGNORED)
        if len(rows) < len(events):
            events = [events[i] for i in rows.tolist()]
            role = role[rows]
        if not events:
            return
        part = _Part(events, rows + block.first, role, *block.times(events, rows))
        self._extend(part.start[of := (role >= Role.LABEL) & part.has_start], part.dur[of])
        for take, of in (
            (self._take_others, role <= Role.LABEL),
            (self._take_device, (role >= Role.KERNEL) & (role <= Role.MEMSET)),
            (self._take_host, role >= Role.RUNTIME),
        ):
            if of.any():
                take(part.where(of))

    @property
    def phases(self) -> dict[tuple[Any, Any], int]:
        """Events by (ph, cat)."""
        return {key: self._counts[i] for i, key in enumerate(self._kinds)}

    def _extend(self, start: Ints, dur: Ints) -> None:
        if len(start):
            low, high = int(start.min()), int((start + np.maximum(dur, 0)).max())
            self.first_ns = low if self.first_ns is None else min(self.first_ns, low)
            self.last_end_ns = high if self.last_end_ns is None else max(self.last_end_ns, high)

    def _take_device(self, part: "_Part") -> None:
        args = [e.args for e in part.events]
        devices, streams = [a.device for a in args], [a.stream for a in args]
        self.device_args.update(devices)
        if None in devices:
            devices = [e.pid if d is None else d for e, d in zip(part.events, devices, strict=True)]
        if None in streams:
            streams = [e.tid if s is None else s for e, s in zip(part.events, streams, strict=True)]
        self._device.add(
            order=part.order,
            start=part.start,
            dur=part.dur,
            name=self.texts.of(_names(part.events)),
            role=part.role,
            device=self._words.of(devices),
            stream=self._words.of(streams),
            corr=positive_ids([a.correlation for a in args]),
            ext=_external_ids(args),
            bytes=whole_numbers([a.bytes for a in args]),
            launch_shape=np.fromiter((self._launch_shapes.of(a.grid, a.block) for a in args), np.int64, len(args)),
            has_start=part.has_start,
            has_dur=part.has_dur,
        )
        self._take_comm(args, part.order)

    def _take_comm(self, args: list[Args], orders: Ints) -> None:
        """Keeps collective metadata; equal texts of it once."""
        names, sizes = [a.collective for a in args], [a.in_nelems for a in args]
        if names.count(None) == sizes.count(None) == len(args):
            return
        named = {i for i, name in enumerate(names) if name is not None}
        for i in sorted(named | {i for i, size in enumerate(sizes) if size is not None}):
            self.comm_args[int(orders[i])] = self._comm_of(*_COMM_FIELDS(args[i]))

    def _comm_of(self, *said: Any) -> CommArgs:
        call, seq = said[:-1], said[-1]
        try:
            known = self._comm_calls.setdefault(call, call)  # calls are many, few of them differ but by their number
        except TypeError:  # lists
            return self._comm_of(*(str(value) if isinstance(value, list | dict) else value for value in said))
        return CommArgs._make((*known, seq))

    def _take_host(self, part: "_Part") -> None:
        events, roles = part.events, part.role
        n = len(events)
        cats = [e.cat for e in events]
        spans = np.zeros(n, SPAN)
        label = self.labels.of(_names(events), cats)
        spans["order"], spans["start"], spans["dur"], spans["has_start"] = (
            part.order,
            part.start,
            part.dur,
            part.has_start,
        )
        spans["label"], spans["role"] = label, roles
        spans["thread"] = self._threads_of([e.pid for e in events], [e.tid for e in events])
        for column in ("corr", "ext", "seq", "inputs"):
            spans[column] = NONE
        args = [e.args for e in events]
        calls = np.flatnonzero(roles == Role.RUNTIME)
        if len(calls):
            self._take_calls(spans, calls, [args[i] for i in calls.tolist()])
        ops = np.flatnonzero(roles == Role.OP)
        if len(ops):
            of_ops = args if len(ops) == n else [args[i] for i in ops.tolist()]
            spans["ext"][ops] = positive_ids([a.external_id for a in of_ops])
            spans["seq"][ops] = _sequence(of_ops)
            spans["inputs"][ops] = self._inputs_of(label[ops], of_ops)
            self._take_comm(of_ops, part.order[ops])
        if "user_annotation" in cats:
            marks = [i for i, cat in enumerate(cats) if cat == "user_annotation"]
            spans["inputs"][marks] = self._inputs_of(label[marks], [args[i] for i in marks])
        self._add_spans(spans)

    def _threads_of(self, pids: list[Any], tids: list[Any]) -> NDArray[np.int32]:
        n = len(pids)
        if pids.count(pids[0]) == n and tids.count(tids[0]) == n:
            return np.full(n, self.threads.of(pids[:1], tids[:1])[0], np.int32)
        return self.threads.of(pids, tids)

    def _take_calls(self, spans: NDArray[Any], calls: Ints, args: list[Args]) -> None:
        corr, ext = positive_ids([a.correlation for a in args]), _external_ids(args)
        spans["corr"][calls], spans["ext"][calls] = corr, ext
        sizes = [a.size for a in args]
        if sizes.count(None) < len(sizes):
            for order, size in zip(spans["order"][calls].tolist(), map(integer, sizes), strict=True):
                if size is not None:
                    self.call_bytes[order] = size
        joined = calls[corr >= 0]
        if len(joined):
            self._calls.add(**{name: spans[name][joined] for name in self._calls.names})

    def _inputs_of(self, label: NDArray[np.int32], args: list[Args]) -> NDArray[np.int32]:
        """Ids of the inputs of each, NONE where none are recorded."""
        raws = [
            b"\0".join((a.input_dims, a.input_dims_18, a.input_type, a.input_strides, a.concrete_inputs)) for a in args
        ]
        if nothing := raws.count(NO_INPUTS):
            given = [i for i, raw in enumerate(raws) if raw != NO_INPUTS] if nothing < len(raws) else []
            found = np.full(len(raws), NONE, np.int32)
            found[given] = self.inputs.of(label[given].tolist(), [raws[i] for i in given])
            return found
        return self.inputs.of(label.tolist(), raws)

    def _add_spans(self, spans: NDArray[Any]) -> None:
        start, timed = spans["start"], spans["has_start"]
        self.spans.add(spans)
        self.span_starts.append(int(start.min()))
        self._first_host_ns = min(self._first_host_ns, int(start.min(where=timed, initial=NEVER)))
        self._first_nonzero_ns = min(self._first_nonzero_ns, int(start.min(where=timed & (start != 0), initial=NEVER)))
        self.first_positive_ns = min(self.first_positive_ns, int(start.min(where=start > 0, initial=NEVER)))

    def first_host_ns(self, *, zero_is_none: bool) -> int:
        """Earliest start of a host span that has one, `NEVER` without; 0 is none where the file has no such time."""
        return self._first_nonzero_ns if zero_is_none else self._first_host_ns

    def _take_others(self, part: "_Part") -> None:
        """Begin and end events, memory samples, labels on device lanes, entries that are no event."""
        samples: list[tuple[int, ...]] = []
        for i, event in enumerate(part.events):
            if event.ph in ("B", "E"):
                if part.has_start[i]:
                    is_end = event.ph == "E"
                    self._slices.append((int(part.order[i]), int(part.start[i]), is_end, event.lasting()))
                else:
                    self.slices_without_time += 1
            elif event.ph == "X":
                self.gpu_step_labels += event.cat != "Trace" and str(event.name).startswith("ProfilerStep#")
            elif event.ph == "i" and event.name == "[memory]" and part.has_start[i]:
                a = event.args
                device = self.texts["cpu" if a.device_type == 0 else str(a.device_index)]
                totals = _size(a.allocated), _size(a.reserved)
                piece = self.threads[event.pid, event.tid], _size(a.address), integer(a.memory) or 0
                samples.append((int(part.order[i]), device, int(part.start[i]), *totals, *piece))
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
        roles = np.array([max(role_of("X", s[3].cat), Role.RUNTIME) for s in begins], np.int8)
        orders = np.array([s[0] for s in begins], np.int64)
        known = np.ones(len(begins), np.bool_)
        self._take_host(_Part([s[3] for s in begins], orders, roles, start, dur, known, known))

    def joined(self, other: "Collector", firsts: Ints) -> None:
        """Takes what another process collected of other blocks of the file; `firsts` has the first event of each block."""

        def whole(order: Ints) -> Ints:
            numbers: Ints = firsts[order >> BLOCK_SHIFT] + (order & (1 << BLOCK_SHIFT) - 1)
            return numbers

        def merged(own: dict[int, Any], others: dict[int, Any]) -> dict[int, Any]:
            both = own | others
            numbers = whole(np.array(list(both), np.int64)) if both else ()
            return dict(sorted(zip(map(int, numbers), both.values(), strict=True)))

        texts, threads = self.texts.of(list(other.texts)), self.threads.of(*_unzipped(other.threads))
        labels = self.labels.of(*_unzipped(other.labels))
        label_of_inputs, raws = _unzipped(other.inputs)
        inputs = np.append(self.inputs.of([int(labels[i]) for i in label_of_inputs], raws), NONE).astype(np.int32)

        def numbered(spans: NDArray[Any]) -> None:
            spans["order"] = whole(spans["order"])

        def translated(spans: NDArray[Any]) -> None:
            numbered(spans)
            for column, numbers in (("label", labels), ("thread", threads), ("inputs", inputs)):
                spans[column] = numbers[spans[column]]

        self.spans = Joined([(self.spans, numbered), (other.spans, translated)])
        self.span_starts += other.span_starts
        for columns, of_other, numbers_of in (
            (self._device, other._device, {"name": texts, "device": texts, "stream": texts}),
            (self._calls, other._calls, {"thread": threads, "label": labels}),
            (self._samples, other._samples, {"device": texts, "thread": threads}),
        ):
            columns.extend(of_other, numbers_of)
            columns.order_by("order", whole)
        self.comm_args = merged(self.comm_args, other.comm_args)
        self.call_bytes = merged(self.call_bytes, other.call_bytes)
        slices = [*self._slices, *other._slices]
        numbers = whole(np.array([s[0] for s in slices], np.int64)).tolist()
        self._slices = sorted((number, *s[1:]) for number, s in zip(numbers, slices, strict=True))
        for key, count in other.phases.items():
            self._counts[self._kinds[key]] += count
        for name in ("first_positive_ns", "_first_host_ns", "_first_nonzero_ns"):
            setattr(self, name, min(getattr(self, name), getattr(other, name)))
        self.empty += other.empty
        self.slices_without_time += other.slices_without_time
        self.gpu_step_labels += other.gpu_step_labels
        self.nested_document |= other.nested_document
        self.device_args |= other.device_args
        if other.first_ns is not None and other.last_end_ns is not None:
            span = np.array([other.first_ns]), np.array([other.last_end_ns - other.first_ns])
            self._extend(*span)

    def device_columns(self) -> dict[str, NDArray[Any]]:
        """Work of devices, in the file's order; taken out."""
        return self._device.joined()

    def call_columns(self) -> dict[str, NDArray[Any]]:
        """Runtime calls with a correlation id; taken out."""
        return self._calls.joined()

    def samples(self) -> dict[str, NDArray[Any]]:
        """Samples of memory, taken out; NONE where something is not told.

        Device (a text), time in ns, bytes allocated and reserved, thread, and the piece that was handed out (negative:
        given back; 0: not told) with its address.
        """
        return self._samples.joined()


def _unzipped(pairs: Ids) -> tuple[list[Any], list[Any]]:
    return [one for one, _ in pairs], [other for _, other in pairs]


def _size(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**63 else NONE


def _text(name: Any) -> str:
    return name if isinstance(name, str) else "" if name is None else str(name)


def _names(events: list[Event]) -> list[str]:
    names = [e.name for e in events]
    return names if {*map(type, names)} == {str} else [_text(name) for name in names]


def _external_ids(args: list[Args]) -> Ints:
    ids = [a.external_id for a in args]
    if None in ids:
        ids = [a.external_id_18 if i is None else i for i, a in zip(ids, args, strict=True)]
    return positive_ids(ids)


def _sequence(args: list[Args]) -> Ints:
    """Autograd's sequence number: 2 n of a forward op, 2 n + 1 of the backward op that belongs to it, NONE without."""
    given = [a.sequence for a in args]
    if given.count(None) == len(given):
        return np.full(len(given), NONE, np.int64)
    numbers = whole_numbers(given)
    numbers[(numbers < 0) | (numbers >= 2**61)] = NONE
    backward = np.fromiter([True if a.fwd_thread else False for a in args], np.bool_, len(args))  # noqa: SIM210 (faster)
    return np.where(numbers < 0, NONE, 2 * numbers + backward)

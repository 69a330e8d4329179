"""TPU planes of an XSpace: the compiler states the cost of each operation, and asynchronous ones come in halves."""

import re
from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.classify import hlo, hlo_cost
from tracegap.ingest.classify.hlo_cost import Cost
from tracegap.ingest.classify.hlo_module import Instruction, Module, parse_text
from tracegap.ingest.forms import keyed
from tracegap.ingest.protobuf import DecodeError, messages
from tracegap.ingest.readers._xplane import MISSING, EventKind, Ints, Line, Plane, Value
from tracegap.ingest.readers._xspace_host import Launch
from tracegap.ingest.readers._xspace_ops import (
    ASYNC,
    Batch,
    Context,
    Op,
    Programs,
    holds_next,
    number,
    shapes_of,
    site_of,
    text,
)
from tracegap.models.ops import OpClass

PLANE = re.compile(r"^/device:TPU:(\d+)(?: SparseCore (\d+))?$")
OPS_LINES = ("XLA Ops", "Sparse Core Ops")
"""Lines that hold operations, nested."""
ASYNC_LINE = "Async XLA Ops"
"""Line that holds asynchronous operations from start to done."""
MODULE_LINES = ("XLA Modules", "Sparse Core Modules")

_SLACK_PS = 1000  # the clocks of the two lines agree to the nanosecond
_HBM = 1
_BREAKDOWN = messages(
    "tracegap.memory_access",
    {
        "Breakdown": "memory_accessed 1 Access*",
        "Access": "operation_type 1 i32; memory_space 2 i64; bytes_accessed 3 i64",
    },
)["Breakdown"]

_CORE = messages("tracegap.core", {"CoreDetails": "global_chip_id 5 i64; global_core_id 6 i64"})["CoreDetails"]


def tpu_device(plane: Plane) -> tuple[str, int] | None:
    """Id and number of the device of a TPU plane. None: no TPU plane."""
    match = PLANE.match(plane.name)
    return (f"TPU:{match[1]}", _global_id(plane, int(match[1]))) if match is not None else None


def tpu_executions(plane: Plane, context: Context) -> list[Batch]:
    """Leaves of the operation lines, asynchronous operations as one from start to done; of a TPU plane."""
    match = PLANE.match(plane.name)
    if match is None:
        return []
    local, core = int(match[1]), match[2]
    reader = _Reader(plane, context)
    for line in plane.lines:
        if line.name in OPS_LINES and len(line):
            reader.read_ops(line, line.name if core is None else f"SparseCore {core}")
    if not reader.batches:  # a plane without halves
        reader.add_async(reader.from_async_line())
    launches, code = _launches(plane, local, context)
    for batch in reader.batches:
        batch.launches, batch.launch = launches, code(batch.start_ps)
    return [batch for batch in reader.batches if len(batch.op)]


def _global_id(plane: Plane, local: int) -> int:
    """Number of the device among those of all hosts: a plane's own number starts from 0 on each host.

    With megacore a device is a chip, else a core.
    """
    data = plane.stats.get("core_details")
    if not isinstance(data, bytes):
        return local
    try:
        details = _CORE.FromString(data)
    except DecodeError:
        return local
    return int(details.global_chip_id if plane.stats.get("has_megacore") else details.global_core_id) or local


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What an event kind is."""

    instruction: Instruction
    program: int | None
    op: Op
    half: str | None
    """`start` or `done` of an asynchronous operation."""
    starts: tuple[str, ...]
    """Names that the first half may have; the first one that exists is it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Async:
    """Executions of asynchronous operations, one entry each."""

    begun: Ints
    """Key of the kind of the first half, or of the whole."""
    done: Ints
    start_ps: Ints
    end_ps: Ints
    group: Ints


class _Spans:
    """Spans of one asynchronous operation, by start; those of the asynchronous line are disjoint."""

    def __init__(self, starts: Ints, ends: Ints) -> None:
        order = np.lexsort((ends, starts))
        self.starts, self.ends = starts[order], ends[order]

    def meet(self, starts: Ints, ends: Ints) -> NDArray[np.bool_]:
        """Which of some spans meet one of these."""
        before = np.searchsorted(self.starts, ends)
        return (before > 0) & (np.append(self.ends, 0)[before - 1] > starts)

    def with_new(self, starts: Ints, ends: Ints) -> tuple["_Spans", NDArray[np.bool_]]:
        """Adds spans, in their order, that meet none that is there by then; which ones."""
        new = ~self.meet(starts, ends)
        added = _Spans(starts[new], ends[new])
        if (added.starts[1:] < added.ends[:-1]).any():
            spans = list(zip(self.starts.tolist(), self.ends.tolist(), strict=True))
            for i in np.flatnonzero(new).tolist():
                span = (int(starts[i]), int(ends[i]))
                at = bisect_right(spans, (span[1],))
                if at > 0 and spans[at - 1][1] > span[0]:
                    new[i] = False
                else:
                    insort(spans, span)
        return self.and_more(starts[new], ends[new]), new

    def and_more(self, starts: Ints, ends: Ints) -> "_Spans":
        """With others, whether they meet or not."""
        return _Spans(np.append(self.starts, starts), np.append(self.ends, ends))


@dataclass(frozen=True, slots=True)
class _Slices:
    """An operation line, when its events begin and end, and which are still to be kept."""

    line: Line
    start_ps: Ints
    end_ps: Ints
    keep: NDArray[np.bool_]


@dataclass(slots=True)
class _Reader:
    plane: Plane
    context: Context
    batches: list[Batch] = field(default_factory=list)
    spans: dict[str, _Spans] = field(default_factory=dict)
    """Asynchronous operations found so far, in ps, by instruction."""

    def describe(self, key: int) -> _Known:
        """What an event kind is; found once."""
        kind = self.plane.kinds.get(key)
        if kind is None:
            kind = self.plane.kinds[key] = EventKind(name=f"#{key}", display_name="", stats={})
        known = self.context.known
        if kind not in known:
            instruction = _instruction(kind)
            known[kind] = _Known(
                instruction=instruction,
                program=number(kind.stats.get("program_id")),
                op=_op(kind, instruction, self.context.programs),
                half="start" if instruction.opcode in ("send", "recv") else hlo.is_half(instruction.opcode),
                starts=_start_names(instruction),
            )
        found: _Known = known[kind]
        return found

    def read_ops(self, line: Line, stream: str) -> None:
        """An operation line: what is left when control flow and halves are taken out, and the halves together."""
        start = self.context.clock.starts_ps(line)
        end = start + line.duration_ps
        present, which = keyed(line.kind)
        kinds = {key: self.describe(key) for key in present.tolist()}
        control = np.array([known.instruction.opcode in hlo.STRUCTURE for known in kinds.values()])
        keep = ~(control[which] & holds_next(start, end))
        group = line.numbers("group_id")
        begun, done = _pair_halves(line.kind, which, start, kinds)
        keep[begun] = keep[done] = False
        first, names = line.kind[begun], [_whole_name(known.instruction) for known in kinds.values()]
        for name, rows in _by_name(names, which[begun]):
            self.spans[name] = self._known(name).and_more(start[begun][rows], end[done][rows])
        found = [_Async(begun=first, done=line.kind[done], start_ps=start[begun], end_ps=end[done], group=group[begun])]
        found += self.from_async_line(_Slices(line, start, end, keep))
        self.batches.append(
            Batch(
                stream=stream,
                ops=[known.op for known in kinds.values()],
                op=which[keep],
                start_ps=start[keep],
                end_ps=end[keep],
                group=group[keep],
            )
        )
        self.add_async(found)

    def _known(self, name: str) -> _Spans:
        return self.spans.get(name) or _Spans(np.zeros(0, np.int64), np.zeros(0, np.int64))

    def from_async_line(self, slices: _Slices | None = None) -> list[_Async]:
        """Operations of the asynchronous line that are not known yet. Their halves are no longer kept."""
        found: list[_Async] = []
        for other in self.plane.lines:
            if other.name != ASYNC_LINE or not len(other):
                continue
            start = self.context.clock.starts_ps(other)
            end = start + other.duration_ps
            present, which = keyed(other.kind)
            names = [_whole_name(self.describe(key).instruction) for key in present.tolist()]
            new = np.zeros(len(other), np.bool_)
            for name, rows in _by_name(names, which):
                self.spans[name], new[rows] = self._known(name).with_new(start[rows], end[rows])
            at = np.flatnonzero(new)
            kind, group = other.kind[at], other.numbers("group_id")[at]
            found.append(_Async(begun=kind, done=kind, start_ps=start[at], end_ps=end[at], group=group))
            if slices is not None and len(at):
                self._drop_slices(other, at, (start[at], end[at]), slices)
        return found

    def _drop_slices(self, other: Line, at: Ints, spans: tuple[Ints, Ints], slices: _Slices) -> None:
        """Takes the halves of events `at` of the asynchronous line, which lie inside their `spans`, out of those kept."""
        codes, done_names = other.codes("hlo_op")
        keys, own_codes, of_form = _pairs_of(other.kind[at], codes[at])
        present, which = keyed(slices.line.kind)
        names = [self.describe(key).instruction.name for key in present.tolist()]
        for form, (key, code) in enumerate(zip(keys.tolist(), own_codes.tolist(), strict=True)):
            name = self.describe(key).instruction.name
            halves = {name, name.replace("-start", "-done"), done_names[code] if code >= 0 else name}
            slots = np.flatnonzero(np.array([own in halves for own in names])[which])
            begin, finish = (edge[of_form == form] for edge in spans)
            order = np.argsort(begin)
            reach = np.maximum.accumulate(finish[order])
            before = np.searchsorted(begin[order], slices.start_ps[slots] + _SLACK_PS, side="right")
            inside = (before > 0) & (reach[before - 1] >= slices.end_ps[slots] - _SLACK_PS)
            slices.keep[slots[inside]] = False

    def add_async(self, found: list[_Async]) -> None:
        if not any(len(part.begun) for part in found):
            return
        begun, done, start, end, group = (
            np.concatenate([getattr(part, name) for part in found])
            for name in ("begun", "done", "start_ps", "end_ps", "group")
        )
        first, second, op = _pairs_of(begun, done)
        table = [
            _together(self.describe(a).op, self.describe(b).op)
            for a, b in zip(first.tolist(), second.tolist(), strict=True)
        ]
        self.batches.append(Batch(stream=ASYNC, ops=table, op=op, start_ps=start, end_ps=end, group=group))


def _pairs_of(a: Ints, b: NDArray[Any]) -> tuple[Ints, NDArray[Any], Ints]:
    """The distinct pairs of two columns, as two columns, and which of them each row has."""
    first, of_first = keyed(a)
    second, of_second = keyed(b)
    found, which = keyed(of_first * len(second) + of_second)
    return first[found // len(second)], second[found % len(second)], which


def _by_name(names: list[str], which: Ints) -> Iterator[tuple[str, Ints]]:
    """Rows by the name of their kind, each in their order; `which` has the kind of each row."""
    codes: dict[str, int] = {}
    code = np.array([codes.setdefault(name, len(codes)) for name in names], dtype=np.int64)[which]
    order = np.argsort(code, kind="stable")
    bounds = np.searchsorted(code[order], np.arange(len(codes) + 1))
    for name, first, last in zip(codes, bounds[:-1], bounds[1:], strict=True):
        if first < last:
            yield name, order[first:last]


def _whole_name(instruction: Instruction) -> str:
    """Name of an asynchronous operation by that of its first half."""
    return instruction.name.replace("-start", "")


def _instruction(kind: EventKind) -> Instruction:
    """The instruction of an operation event: its name is the HLO text, or only the instruction's name."""
    found = parse_text(kind.name)
    if found is not None:
        return found
    name = kind.display_name or kind.name.lstrip("%").split(" ")[0]
    category = text(kind.stats.get("hlo_category"))
    stated = category in hlo.STRUCTURE or hlo.is_half(category)
    return Instruction(name=name, opcode=category if stated else hlo.opcode_of_name(name), result=(), operands=())


def _start_names(instruction: Instruction) -> tuple[str, ...]:
    """For the second half of an asynchronous operation, names of the first: its operand, else by the naming habit."""
    name = instruction.name
    return (*instruction.operand_names, name.replace("-done", "-start"), name.replace("-done", ""))


def _op(kind: EventKind, instruction: Instruction, programs: Programs) -> Op:
    stats = kind.stats
    framework_op = text(stats.get("tf_op")).rstrip(":")
    program = number(stats.get("program_id"))
    module, member = programs.find(program, instruction.name)
    known = member or instruction
    stated = hlo.category_class(text(stats.get("hlo_category")), framework_op)
    looked = known.opcode == "custom-call" or (known.opcode == "fusion" and member is not None)
    inside = hlo.op_class(known, module, framework_op) if looked or stated is None else OpClass.OTHER
    op_class = inside if inside is not OpClass.OTHER else stated or OpClass.OTHER
    if hlo.is_half(known.opcode) and op_class is not OpClass.COLLECTIVE:
        op_class = OpClass.COLLECTIVE if hlo.collective(known, module).kind is not None else OpClass.COPY
    cost, source = stated_cost(stats, known.opcode, op_class), "trace"
    if cost.flops is None and cost.bytes is None:
        cost, source = _unstated_cost(cost, known, module if member is not None else None, op_class), "hlo"
    communicates = op_class is OpClass.COLLECTIVE
    return Op(
        name=kind.display_name or instruction.name,
        op_class=op_class,
        framework_op=framework_op or None,
        module=hlo.module_path(framework_op) if framework_op else None,
        dtype=_math_dtype(known, module, source),
        shapes=shapes_of(known),
        flops=cost.flops,
        bytes=cost.bytes,
        cost_source="none" if cost.flops is None and cost.bytes is None else source,
        cost_note=cost.note,
        collective=hlo.collective(known, module) if communicates else None,
        site=site_of(module.name if module is not None else "", program, known) if communicates else None,
    )


_CONTEXTS = "lengths of the contexts and the mask are not in the trace (Pallas: `cost_estimate`)"


def _unstated_cost(stated: Cost, known: Instruction, module: Module | None, op_class: OpClass) -> Cost:
    """Cost of an operation of which the compiler states none: from its HLO; of a custom call also from its text."""
    if known.opcode == "custom-call":
        found = hlo_cost.cost(known, module) if module is not None else hlo_cost.call_cost(known)
    elif module is not None:
        found = hlo_cost.cost(known, module)
    else:
        return stated
    if found.flops is not None or found.bytes is not None:
        return found
    reasons = (stated.note, _CONTEXTS if op_class is OpClass.ATTENTION else found.note)
    return replace(stated, note="; ".join(dict.fromkeys(filter(None, reasons))))


def _math_dtype(known: Instruction, module: Module | None, source: str) -> str | None:
    """Element type of the arithmetic; a hand-written product of two types may be done in either: None."""
    if source == "hlo" and known.opcode == "custom-call":
        types = {operand[0].dtype for operand in known.operands if operand and len(operand[0].dims) == 2}
        if len(types) > 1:
            return None
    return hlo.math_dtype(known, module)


def stated_cost(stats: Mapping[str, Value], opcode: str, op_class: OpClass) -> Cost:
    """Cost that a TPU plane states for one execution.

    FLOPs are those of the model where they are given (the others count padding); bytes are those of the HBM where the
    memories are told apart. Of a loop, which is here only where the operations inside it are not recorded, they are those of
    one iteration: unknown. No FLOPs and no bytes at all means that the compiler does not know, except of copies.
    """
    if opcode == "while":
        return Cost(flops=None, bytes=None, note="while: the compiler states one iteration")
    flops = number(stats.get("model_flops", stats.get("flops")))
    moved = number(stats.get("bytes_accessed"))
    if not flops and not moved and op_class not in (OpClass.COPY, OpClass.COLLECTIVE) and opcode not in hlo.FREE:
        stated = flops is not None or moved is not None
        why = "the compiler states no cost (0 FLOPs, 0 bytes)" if stated else "no cost in the trace"
        return Cost(flops=None, bytes=None, note=why)
    hbm = _hbm_bytes(stats.get("memory_access_breakdown"))
    note = None if flops is not None or moved is None else "FLOPs are not stated"
    return Cost(flops=flops, bytes=moved if hbm is None else hbm, note=note)


def _hbm_bytes(breakdown: Value | None) -> int | None:
    """HBM part of a serialized breakdown; None where it has no entries."""
    if not isinstance(breakdown, bytes) or not breakdown:
        return None
    try:
        accesses = [
            (int(a.memory_space), int(a.bytes_accessed)) for a in _BREAKDOWN.FromString(breakdown).memory_accessed
        ]
    except DecodeError:
        return None
    return sum(size for space, size in accesses if space == _HBM) if any(size for _, size in accesses) else None


def _pair_halves(kind: Ints, which: Ints, start: Ints, kinds: Mapping[int, _Known]) -> tuple[Ints, Ints]:
    """Events that start and end asynchronous operations: each start with the first done that follows it.

    Args:
        kind: key of the kind of each event.
        which: place of it in `kinds`.
        start: when each begins.
        kinds: what they are, in the order of their keys.
    """
    begins = {(known.program, known.instruction.name): key for key, known in kinds.items() if known.half == "start"}
    halves = np.array([known.half is not None for known in kinds.values()], dtype=bool)
    at_half = np.flatnonzero(halves[which])
    order = at_half[np.lexsort((start[at_half], kind[at_half]))]
    ordered = kind[order]
    pairs = [(order[:0], order[:0])]
    for key, known in kinds.items():
        begun = next((begins[known.program, n] for n in known.starts if (known.program, n) in begins), None)
        if known.half != "done" or begun is None:
            continue
        first, second = (
            order[np.searchsorted(ordered, wanted) : np.searchsorted(ordered, wanted, side="right")]
            for wanted in (begun, key)
        )
        at = np.searchsorted(start[second], start[first])
        following = np.append(start[first][1:], np.iinfo(np.int64).max)
        sound = (at < len(second)) & (start[second[np.minimum(at, len(second) - 1)]] < following)
        pairs.append((first[sound], second[at[sound]]))
    begun_at, done_at = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return begun_at, done_at


def _together(begun: Op, done: Op) -> Op:
    """The operation that a start and its done are: the start, with what only the done knows."""

    def larger(a: int | None, b: int | None) -> int | None:
        return max(a or 0, b or 0) if (a, b) != (None, None) else None

    collective = begun.collective or done.collective
    return replace(
        begun,
        op_class=OpClass.COLLECTIVE if collective is not None else OpClass.COPY,
        flops=larger(begun.flops, done.flops),
        bytes=larger(begun.bytes, done.bytes),
        cost_source="trace" if "trace" in (begun.cost_source, done.cost_source) else begun.cost_source,
        framework_op=begun.framework_op or done.framework_op,
        module=begun.module or done.module,
        collective=collective,
        site=begun.site or done.site,
    )


class _ModuleAt:
    """Which module execution an instant falls into; 0 for none."""

    def __init__(self, begins: list[int], ends: list[int]) -> None:
        order = np.argsort(np.array(begins, dtype=np.int64), kind="stable")
        self.begins, self.ends = np.array(begins, dtype=np.int64)[order], np.array(ends, dtype=np.int64)[order]
        self.codes = order + 1

    def __call__(self, at_ps: Ints) -> Ints:
        if not len(self.begins):
            return np.zeros(len(at_ps), dtype=np.int64)
        i = np.searchsorted(self.begins, at_ps, side="right") - 1
        inside = (i >= 0) & (at_ps <= self.ends[np.maximum(i, 0)])
        return np.where(inside, self.codes[np.maximum(i, 0)], 0)


def _launches(plane: Plane, ordinal: int, context: Context) -> tuple[list[Launch | None], _ModuleAt]:
    """Launches of the module executions (the first entry is for none), and a lookup of them by time."""
    launches: list[Launch | None] = [None]
    begins: list[int] = []
    ends: list[int] = []
    for line in plane.lines:
        if line.name not in MODULE_LINES:
            continue
        start = context.clock.starts_ps(line)
        begins += start.tolist()
        ends += (start + line.duration_ps).tolist()
        ids = (line.numbers(name).tolist() for name in ("_ct", "_c", "run_id"))
        for begin, kind, key, run in zip(start.tolist(), *ids, strict=True):
            launch = context.host.by_context(kind, key) if key != MISSING else None
            if launch is None and run != MISSING:
                launch = context.host.by_run(run, ordinal)
            launches.append(launch if launch is not None and launch.start_ns * 1000 <= begin else None)
    return launches, _ModuleAt(begins, ends)

"""TPU planes of an XSpace: the compiler states the cost of each operation, and asynchronous ones come in halves."""

import re
from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
    reader.read_rest()
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


@dataclass(frozen=True, slots=True)
class _Async:
    """An execution of an asynchronous operation."""

    begun: _Known
    done: _Known
    start_ps: int
    end_ps: int
    group: int


@dataclass(slots=True)
class _Reader:
    plane: Plane
    context: Context
    batches: list[Batch] = field(default_factory=list)
    spans: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Asynchronous operations found so far: (start, end) in ps by instruction."""

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
        overlapped: list[_Async] = []
        for begun, done in _pair_halves(line, start, kinds):
            keep[[begun, done]] = False
            halves = kinds[int(line.kind[begun])], kinds[int(line.kind[done])]
            found = _Async(*halves, int(start[begun]), int(end[done]), int(group[begun]))
            overlapped.append(found)
            self.spans.setdefault(_whole_name(found.begun.instruction), []).append((found.start_ps, found.end_ps))
        for known_spans in self.spans.values():
            known_spans.sort()
        overlapped += self._from_async_line(line, (start, end), keep)
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
        self._add_async(overlapped)

    def read_rest(self) -> None:
        """Asynchronous operations of a plane without their halves."""
        self._add_async(self._from_async_line(None, None, None))

    def _from_async_line(
        self, line: Line | None, times: tuple[Ints, Ints] | None, keep: NDArray[np.bool_] | None
    ) -> list[_Async]:
        """Operations of the asynchronous line that are not known yet. Their slices on `line` leave `keep`."""
        found: list[_Async] = []
        for other in self.plane.lines:
            if other.name != ASYNC_LINE:
                continue
            start = self.context.clock.starts_ps(other)
            end = start + other.duration_ps
            group = other.numbers("group_id")
            codes, done_names = other.codes("hlo_op")
            for i, key in enumerate(other.kind.tolist()):
                span = (int(start[i]), int(end[i]))
                known = self.describe(key)
                if _overlaps(self.spans.get(_whole_name(known.instruction), []), span):
                    continue
                insort(self.spans.setdefault(_whole_name(known.instruction), []), span)
                found.append(_Async(known, known, *span, int(group[i])))
                if line is None or times is None or keep is None:
                    continue
                name = known.instruction.name
                halves = {name, name.replace("-start", "-done"), done_names[codes[i]] if codes[i] >= 0 else name}
                inside = keep & (times[0] >= span[0] - _SLACK_PS) & (times[1] <= span[1] + _SLACK_PS)
                for slot in np.flatnonzero(inside).tolist():
                    if self.describe(int(line.kind[slot])).instruction.name in halves:
                        keep[slot] = False
        return found

    def _add_async(self, found: list[_Async]) -> None:
        if not found:
            return
        ops: dict[tuple[int, int], int] = {}
        table: list[Op] = []
        rows = []
        for one in found:
            key = (id(one.begun), id(one.done))
            if key not in ops:
                ops[key] = len(table)
                table.append(_together(one.begun.op, one.done.op))
            rows.append((ops[key], one.start_ps, one.end_ps, one.group))
        op, start, end, group = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
        self.batches.append(Batch(stream=ASYNC, ops=table, op=op, start_ps=start, end_ps=end, group=group))


def _whole_name(instruction: Instruction) -> str:
    """Name of an asynchronous operation by that of its first half."""
    return instruction.name.replace("-start", "")


def _overlaps(spans: list[tuple[int, int]], span: tuple[int, int]) -> bool:
    """Whether a span meets one of sorted, disjoint spans."""
    i = bisect_right(spans, (span[1],))
    return i > 0 and spans[i - 1][1] > span[0]


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


def _pair_halves(line: Line, start: Ints, kinds: Mapping[int, _Known]) -> list[tuple[int, int]]:
    """(start event, done event) of asynchronous operations: each start with the first done that follows it."""
    begins = {(known.program, known.instruction.name): key for key, known in kinds.items() if known.half == "start"}
    pairs: list[tuple[int, int]] = []
    for key, known in kinds.items():
        begun = next((begins[known.program, n] for n in known.starts if (known.program, n) in begins), None)
        if known.half != "done" or begun is None:
            continue
        first, second = np.flatnonzero(line.kind == begun), np.flatnonzero(line.kind == key)
        first, second = first[np.argsort(start[first])], second[np.argsort(start[second])]
        at = np.searchsorted(start[second], start[first])
        following = np.append(start[first][1:], np.iinfo(np.int64).max)
        sound = (at < len(second)) & (start[second[np.minimum(at, len(second) - 1)]] < following)
        pairs += zip(first[sound].tolist(), second[at[sound]].tolist(), strict=True)
    return pairs


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

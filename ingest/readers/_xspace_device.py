"""The device side of an XSpace: which events are operations, what they are, what they cost and who launched them.

Three kinds of planes carry operations: TPU planes state costs themselves; kernels of GPU planes and thunks of the CPU
backend name an instruction of an HLO module in the same file, from which the cost is computed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.classify import hlo
from tracegap.ingest.classify.hlo_module import Instruction, Module, parse_text
from tracegap.ingest.classify.kernel import collective_kind, is_collective, kernel_class, kernel_dtype
from tracegap.ingest.protobuf import messages
from tracegap.ingest.readers._xplane import MISSING, EventKind, Ints, Line, Plane, Value
from tracegap.ingest.readers._xspace_host import Clock, Host, Launch, nullable, thread_name, to_ns
from tracegap.ingest.trace import OPS, shapes_json
from tracegap.models.ops import OpClass

OPS_LINES = ("XLA Ops", "Sparse Core Ops")
"""Lines of a TPU plane that hold operations, nested."""
ASYNC_LINE = "Async XLA Ops"
"""Line of a TPU plane that holds asynchronous operations from start to done."""
MODULE_LINES = ("XLA Modules", "Sparse Core Modules")
KNOWN_LINES = frozenset(
    {
        *OPS_LINES,
        *MODULE_LINES,
        ASYNC_LINE,
        *"Steps|Sparse Core Steps|XLA TraceMe|Framework Ops|Framework Name Scope|Source code|Source Code".split("|"),
        *"TensorFlow Ops|TensorFlow Name Scope|_counters_|TC Overlay|Overlay|Host Offload Ops|Launch Stats".split("|"),
        *"Tensor Core Sync Flag|XLA Async Ops|Data Motion|Scalar Unit|DcnHostTraffic|DcnCollectiveTraffic".split("|"),
    }
)
"""Lines of device planes whose meaning is known; all but the ops lines are derived, structure or annotations."""

_BREAKDOWN = messages(
    "tracegap.memory_access",
    {
        "Breakdown": "memory_accessed 1 Access*",
        "Access": "operation_type 1 i32; memory_space 2 i64; bytes_accessed 3 i64",
    },
)["Breakdown"]
_HBM = 1
_STREAM = re.compile(r"^Stream #(\S+?)(?:\((.*)\))?$")
_SIZE = re.compile(r"\b(?:size|num_bytes):(\d+)")
_MODULE_NAME = re.compile(r"^(.*)\((-?\d+)\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """What all executions of one operation have in common: columns of `trace.OPS`, and its communication."""

    name: str
    op_class: OpClass
    framework_op: str | None = None
    module: str | None = None
    dtype: str | None = None
    shapes: str | None = None
    flops: int | None = None
    bytes: int | None = None
    cost_source: str = "none"
    cost_note: str | None = None
    collective: hlo.Collective | None = None
    site: str | None = None
    """The instruction as all devices know it: module and channel or name."""


@dataclass(slots=True, kw_only=True)
class Executions:
    """Operations that ran on one device. Columns have one entry for each execution."""

    device_id: str
    ordinal: int | None
    ops: list[Op]
    op: Ints
    """Which of `ops`."""
    start_ps: Ints
    end_ps: Ints
    stream: list[str]
    """Names of streams."""
    stream_code: Ints
    correlation: Ints
    group: Ints
    """Group id, MISSING where there is none."""
    launches: list[Launch | None]
    launch_code: Ints
    """Which of `launches`."""
    flops: list[int | None] | None = None
    """Where executions of one operation differ (several kernels share its cost)."""
    bytes: list[int | None] | None = None

    def frame(self, step_of_group: Mapping[int, int]) -> pl.DataFrame:
        """Rows in the columns of OPS (op_id aside), with `start_ps`, `end_ps` and the operation's number `op`."""
        groups, which = np.unique(self.group, return_inverse=True)
        steps = np.array([step_of_group.get(g, MISSING) for g in groups.tolist()], dtype=np.int64)[which]
        start = to_ns(self.start_ps)
        columns: dict[str, pl.Series | Ints] = {
            name: pl.Series([getattr(op, name) for op in self.ops], dtype=kind).gather(self.op)
            for name, kind in OPS.items()
            if name in Op.__dataclass_fields__
        }
        for name, own in (("flops", self.flops), ("bytes", self.bytes)):
            if own is not None:
                columns[name] = pl.Series(own, dtype=pl.Int64)
        launched = {"launch_ns": [x and x.start_ns for x in self.launches], "launch_thread": [x and x.thread for x in self.launches]}
        columns |= {name: pl.Series(values, dtype=OPS[name]).gather(self.launch_code) for name, values in launched.items()}
        columns |= {
            "op_id": np.zeros(len(self.op), dtype=np.int64),
            "device_id": pl.Series([self.device_id]).gather(np.zeros(len(self.op), dtype=np.int64)),
            "stream": pl.Series(self.stream, dtype=pl.String).gather(self.stream_code),
            "start_ns": start,
            "dur_ns": to_ns(self.end_ps) - start,
            "step": nullable("step", steps),
            "correlation_id": nullable("correlation_id", self.correlation),
        }
        return pl.DataFrame(
            {name: columns[name] for name in OPS} | {"start_ps": self.start_ps, "end_ps": self.end_ps, "op": self.op}
        )


@dataclass(slots=True)
class Programs:
    """HLO modules of a file by program id."""

    modules: dict[int, Module] = field(default_factory=dict)
    entries: dict[int, str] = field(default_factory=dict)
    """Names as the file lists them: `jit_f(12)`."""

    @classmethod
    def of(cls, planes: list[Plane]) -> "Programs":
        """From the metadata planes."""
        found = cls()
        for plane in planes:
            for key, kind in plane.kinds.items():
                data = kind.stats.get("Hlo Proto") or kind.stats.get("hlo_proto")
                module = Module.parse(data) if isinstance(data, bytes) and data else None
                if module is not None:
                    stated = _MODULE_NAME.match(kind.name)  # older writers use the program id as key as well
                    program = signed(int(stated[2])) if stated is not None else key
                    found.modules[program] = module
                    found.entries[program] = kind.name
        return found

    def find(self, program: object, name: str) -> tuple[Module | None, Instruction | None]:
        """Module and instruction."""
        module = self.modules.get(signed(program)) if isinstance(program, int) else None
        return module, module.find(name) if module is not None else None


def signed(number: int) -> int:
    """An unsigned id as the signed one that is the same 64 bits."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def text(value: Value | None) -> str:
    """A statistic as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else "" if value is None else str(value)


def number(value: Value | None) -> int | None:
    """A statistic as a whole number; None where there is none."""
    return int(value) if isinstance(value, int | float) else None


# ---------------------------------------------------------------------------------------------- TPU


def tpu_executions(plane: Plane, device_id: str, ordinal: int, clock: Clock, programs: Programs, host: Host) -> Executions:
    """Leaves of the operation lines; an asynchronous operation is one execution from start to done."""
    ops: list[Op] = []
    described: dict[int, int] = {}
    opcodes: dict[int, str] = {}
    names: dict[int, tuple[int | None, str, str]] = {}  # program, instruction, and for a done half the start's instruction
    rows: list[tuple[Ints, Ints, Ints, Ints, int]] = []
    streams: list[str] = []

    def describe(key: int) -> int:
        if key not in described:
            kind = plane.kinds.get(key) or EventKind(name=f"#{key}", display_name="", stats={})
            instruction = _instruction(kind)
            described[key] = len(ops)
            ops.append(_tpu_op(kind, instruction, programs))
            opcodes[key] = instruction.opcode
            names[key] = (number(kind.stats.get("program_id")), instruction.name, _start_name(instruction))
        return described[key]

    lines = [line for line in plane.lines if line.name in OPS_LINES and len(line)]
    overlapped = [line for line in plane.lines if line.name == ASYNC_LINE and len(line)]
    for key in np.unique(np.concatenate([line.kind for line in (*lines, *overlapped)] or [np.zeros(0, np.int64)])).tolist():
        describe(key)
    pairs: list[tuple[int, int, int]] = []  # operation, start, end
    for line in lines:
        start = clock.starts_ps(line)
        end = start + line.duration_ps
        control = [key for key, opcode in opcodes.items() if opcode in hlo.STRUCTURE]
        keep = ~(np.isin(line.kind, control) & _holds_next(start, end))
        paired = _pair_halves(line, start, opcodes, names)
        for begun, done in paired:
            keep[[begun, done]] = False
        pairs += [(_both(ops, described, line.kind[a], line.kind[b]), int(start[a]), int(end[b])) for a, b in paired]
        pairs += _overlapped(line, overlapped, clock, (start, end), keep, (described, names), {p[1:] for p in pairs})
        keys, which = np.unique(line.kind[keep], return_inverse=True)
        op = np.array([described[key] for key in keys.tolist()], dtype=np.int64)[which]
        rows.append((op, start[keep], end[keep], line.numbers("group_id")[keep], len(streams)))
        streams.append(line.name)
    if not lines:
        pairs += _overlapped(None, overlapped, clock, None, None, (described, names), set())
    if pairs:
        op, start, end = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
        for i in np.unique(op).tolist():
            if ops[i].op_class not in (OpClass.COLLECTIVE, OpClass.COPY):
                ops[i] = replace(ops[i], op_class=OpClass.COPY)
        rows.append((op, start, end, np.full(len(op), MISSING, dtype=np.int64), len(streams)))
        streams.append("async")
    columns = [np.concatenate([row[i] for row in rows] or [np.zeros(0, np.int64)]) for i in range(4)]
    launches, code = _tpu_launches(plane, ordinal, columns[1], clock, host)
    return Executions(
        device_id=device_id,
        ordinal=ordinal,
        ops=ops,
        op=columns[0],
        start_ps=columns[1],
        end_ps=columns[2],
        stream=streams,
        stream_code=np.repeat([row[4] for row in rows], [len(row[0]) for row in rows]).astype(np.int64),
        correlation=np.full(len(columns[0]), MISSING, dtype=np.int64),
        group=columns[3],
        launches=launches,
        launch_code=code,
    )


def _instruction(kind: EventKind) -> Instruction:
    """The instruction of an operation event: its name is the HLO text, or only the instruction's name."""
    found = parse_text(kind.name)
    if found is not None:
        return found
    name = kind.display_name or kind.name.lstrip("%").split(" ")[0]
    category = text(kind.stats.get("hlo_category"))
    opcode = hlo.opcode_of_name(name)
    if category in hlo.STRUCTURE or hlo.is_half(category):
        opcode = category
    return Instruction(name=name, opcode=opcode, result=(), operands=())


def _start_name(instruction: Instruction) -> str:
    """For the second half of an asynchronous operation, the name of the first."""
    if hlo.is_half(instruction.opcode) != "done":
        return instruction.name
    return next(iter(instruction.operand_names), instruction.name.replace("-done", "-start"))


def _tpu_op(kind: EventKind, instruction: Instruction, programs: Programs) -> Op:
    stats = kind.stats
    category = text(stats.get("hlo_category"))
    framework_op = text(stats.get("tf_op")).rstrip(":")
    module, member = programs.find(stats.get("program_id"), instruction.name)
    known = member or instruction
    found = hlo.category_class(category, framework_op)
    if known.opcode in ("fusion", "custom-call") and (member is not None or known.opcode == "custom-call"):
        inside = hlo.op_class(known, module, framework_op)
        found = inside if inside is not OpClass.OTHER or found is None else found
    op_class = found or hlo.op_class(known, module, framework_op)
    if hlo.is_half(known.opcode) and op_class is not OpClass.COLLECTIVE:
        op_class = OpClass.COLLECTIVE if hlo.collective(known, module).kind is not None else OpClass.COPY
    cost = stated_cost(stats, known.opcode, op_class)
    program = number(stats.get("program_id"))
    shared = hlo.collective(member or instruction, module) if op_class is OpClass.COLLECTIVE else None
    if shared is not None and shared.groups is None and member is not None:
        shared = replace(shared, groups=hlo.collective(instruction).groups)
    where = (module.name if module is not None else "") + ("" if program is None else f"({program})")
    return Op(
        name=kind.display_name or instruction.name,
        op_class=op_class,
        framework_op=framework_op or None,
        module=hlo.module_path(framework_op) if framework_op else None,
        dtype=hlo.math_dtype(known, module),
        shapes=shapes_of(known),
        flops=cost.flops,
        bytes=cost.bytes,
        cost_source="none" if cost.flops is None and cost.bytes is None else "trace",
        cost_note=cost.note,
        collective=shared,
        site=f"{where}/{_base_name(known)}" if shared is not None else None,
    )


def _base_name(instruction: Instruction) -> str:
    return instruction.name if instruction.channel_id is None else f"channel {instruction.channel_id}"


def shapes_of(instruction: Instruction) -> str | None:
    """Shapes of the operands as `ops.shapes` has them; None where they are not known."""
    if not instruction.operands:
        return None
    one = [[list(a.dims) for a in operand] for operand in instruction.operands]
    return shapes_json([shapes[0] if len(shapes) == 1 else shapes for shapes in one])


def stated_cost(stats: Mapping[str, Value], opcode: str, op_class: OpClass) -> hlo.Cost:
    """Cost that a TPU plane states for one execution.

    FLOPs are those of the model where they are given (the others count padding); bytes are those of the HBM where the
    memories are told apart. No FLOPs and no bytes at all means that the compiler does not know, except of copies.
    """
    flops = number(stats.get("model_flops", stats.get("flops")))
    moved = number(stats.get("bytes_accessed"))
    if not flops and not moved and op_class not in (OpClass.COPY, OpClass.COLLECTIVE) and opcode not in hlo.FREE:
        stated = "flops" in stats or "model_flops" in stats or "bytes_accessed" in stats
        note = "the compiler states no cost (0 FLOPs, 0 bytes)" if stated else "no cost in the trace"
        return hlo.Cost(flops=None, bytes=None, note=note)
    hbm = _hbm_bytes(stats.get("memory_access_breakdown"))
    note = None if flops is not None or moved is None else "FLOPs are not stated"
    return hlo.Cost(flops=flops, bytes=moved if hbm is None else hbm, note=note)


def _hbm_bytes(breakdown: Value | None) -> int | None:
    """HBM part of a serialized breakdown; None where it has no entries."""
    if not isinstance(breakdown, bytes) or not breakdown:
        return None
    accesses = _BREAKDOWN.FromString(breakdown).memory_accessed
    if not any(a.bytes_accessed for a in accesses):
        return None
    return sum(a.bytes_accessed for a in accesses if a.memory_space == _HBM)


def _holds_next(start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Which spans hold the span that begins next after them."""
    order = np.lexsort((-end, start))
    holds = np.zeros(len(start), dtype=bool)
    here, after = order[:-1], order[1:]
    holds[here] = (start[after] < end[here]) & (end[after] <= end[here])
    return holds


def _pair_halves(
    line: Line, start: Ints, opcodes: Mapping[int, str], names: Mapping[int, tuple[int | None, str, str]]
) -> list[tuple[int, int]]:
    """(start event, done event) of asynchronous operations: each start with the first done that follows it."""
    present = np.unique(line.kind).tolist()
    begins = {names[key][:2]: key for key in present if hlo.is_half(opcodes[key]) == "start"}
    pairs: list[tuple[int, int]] = []
    for key in present:
        begun = begins.get((names[key][0], names[key][2])) if hlo.is_half(opcodes[key]) == "done" else None
        if begun is None:
            continue
        first, second = np.flatnonzero(line.kind == begun), np.flatnonzero(line.kind == key)
        first, second = first[np.argsort(start[first])], second[np.argsort(start[second])]
        at = np.searchsorted(start[second], start[first])
        following = np.append(start[first][1:], np.iinfo(np.int64).max)
        sound = (at < len(second)) & (start[second[np.minimum(at, len(second) - 1)]] < following)
        pairs += zip(first[sound].tolist(), second[at[sound]].tolist(), strict=True)
    return pairs


def _both(ops: list[Op], described: dict[int, int], begun: int, done: int) -> int:
    """The operation that a start and its done are together: the start, with what only the done knows."""
    first, second = described[int(begun)], described[int(done)]
    one, two = ops[first], ops[second]
    merged = replace(
        one,
        op_class=two.op_class if OpClass.COLLECTIVE in (one.op_class, two.op_class) else one.op_class,
        flops=max(one.flops or 0, two.flops or 0) if (one.flops, two.flops) != (None, None) else None,
        bytes=max(one.bytes or 0, two.bytes or 0) if (one.bytes, two.bytes) != (None, None) else None,
        framework_op=one.framework_op or two.framework_op,
        module=one.module or two.module,
        collective=one.collective or two.collective,
        site=one.site or two.site,
    )
    if merged.collective is not None:
        merged = replace(merged, op_class=OpClass.COLLECTIVE)
    if merged != one:
        ops[first] = merged
    return first


def _overlapped(
    line: Line | None,
    overlapped: list[Line],
    clock: Clock,
    times: tuple[Ints, Ints] | None,
    keep: NDArray[np.bool_] | None,
    tables: tuple[dict[int, int], dict[int, tuple[int | None, str, str]]],
    known: set[tuple[int, int]],
) -> list[tuple[int, int, int]]:
    """Operations of the asynchronous line that are not known as a pair yet. Their slices on `line` are dropped from `keep`."""
    described, names = tables
    found = []
    for other in overlapped:
        start = clock.starts_ps(other)
        end = start + other.duration_ps
        codes, done_names = other.codes("hlo_op")
        for i, key in enumerate(other.kind.tolist()):
            span = (int(start[i]), int(end[i]))
            if span in known:
                continue
            known.add(span)
            found.append((described[key], *span))
            if line is None or times is None or keep is None:
                continue
            name = names[key][1]
            done = done_names[codes[i]] if codes[i] >= 0 else name.replace("-start", "-done")
            inside = keep & (times[0] >= span[0] - 1000) & (times[1] <= span[1] + 1000)
            for slot in np.flatnonzero(inside).tolist():
                if names[int(line.kind[slot])][1] in (name, done):
                    keep[slot] = False
    return found


def _tpu_launches(plane: Plane, ordinal: int, start_ps: Ints, clock: Clock, host: Host) -> tuple[list[Launch | None], Ints]:
    """Launch of the module execution in which each operation starts."""
    lines = [line for line in plane.lines if line.name in MODULE_LINES and len(line)]
    launches: list[Launch | None] = [None]
    begins, ends, codes = [], [], []
    for line in lines:
        start = clock.starts_ps(line)
        columns = (start, start + line.duration_ps, line.numbers("_ct"), line.numbers("_c"), line.numbers("run_id"))
        for begin, end, kind, key, run in zip(*(column.tolist() for column in columns), strict=True):
            launch = host.by_context(kind, key) if key != MISSING else None
            if launch is None and run != MISSING:
                launch = host.by_run(run, ordinal)
            begins.append(begin)
            ends.append(end)
            codes.append(len(launches))
            launches.append(launch if launch is not None and launch.start_ns * 1000 <= begin else None)
    if not begins:
        return launches, np.zeros(len(start_ps), dtype=np.int64)
    order = np.argsort(np.array(begins), kind="stable")
    begun, ended, code = (np.array(column, dtype=np.int64)[order] for column in (begins, ends, codes))
    at = np.searchsorted(begun, start_ps, side="right") - 1
    inside = (at >= 0) & (start_ps <= ended[np.maximum(at, 0)])
    return launches, np.where(inside, code[np.maximum(at, 0)], 0)


# ---------------------------------------------------------------------------------------------- GPU and CPU


def distinct(*columns: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """First rows of the distinct combinations of some columns, and which combination each row has."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        code = np.unique(code * max(len(values), 1) + inverse, return_inverse=True)[1].astype(np.int64)
    return np.unique(code, return_index=True)[1].astype(np.int64), code


def is_stream(line: Line) -> bool:
    """Whether a line of a GPU plane is a stream; the others repeat the same work under other names."""
    return _STREAM.match(line.name) is not None


def gpu_executions(plane: Plane, device_id: str, ordinal: int, clock: Clock, programs: Programs, host: Host) -> Executions:
    """Kernels, copies and fills of the streams."""
    lines = [line for line in plane.lines if is_stream(line) and len(line)]
    collected = _Collector(device_id, ordinal)
    for line in lines:
        match = _STREAM.match(line.name)
        kinds = (match[2] or "") if match is not None else ""
        start = clock.starts_ps(line)
        correlation = line.numbers("correlation_id")
        texts = {key: line.codes(key) for key in ("hlo_op", "name", "tf_op", "annotation", "memcpy_details", "memset_details")}
        firsts, code = distinct(line.kind, line.numbers("program_id"), *(codes for codes, _ in texts.values()))
        ops = []
        for row in firsts.tolist():
            own = {key: values[codes[row]] if codes[row] >= 0 else "" for key, (codes, values) in texts.items()}
            name = plane.kinds[int(line.kind[row])].name if int(line.kind[row]) in plane.kinds else ""
            ops.append(_gpu_op(name, kinds, own, int(line.numbers("program_id")[row]), programs))
        launches: list[Launch | None] = [None]
        known, which = np.unique(correlation, return_inverse=True)
        launches += [host.by_correlation(int(c)) if c != MISSING else None for c in known.tolist()]
        flops, moved = _shared_costs(ops, code, line, start)
        collected.add(
            ops, code, start, start + line.duration_ps, line.name, correlation, line.numbers("group_id"), launches, which + 1,
            flops, moved,
        )  # fmt: skip
    return collected.done()


def _gpu_op(name: str, kinds: str, own: Mapping[str, str], program: int, programs: Programs) -> Op:
    label = f"{name} {kinds}".lower()
    details = own["memcpy_details"] or own["memset_details"]
    if own["memset_details"] or name.lower().startswith("memset"):
        return _engine_op(name, OpClass.MEMSET, details)
    if own["memcpy_details"] or name.lower().startswith("memcpy") or (not name and "memcpy" in label):
        return _engine_op(name, OpClass.COPY, details)
    module, member = programs.find(program if program != MISSING else None, own["hlo_op"])
    framework_op = (member.op_name if member is not None else "") or _framework_op(own)
    op_class = OpClass.COLLECTIVE if is_collective(name) else kernel_class(name)
    if member is not None and op_class is not OpClass.COLLECTIVE:
        inside = hlo.op_class(member, module, framework_op)
        op_class = inside if inside is not OpClass.OTHER else op_class
    shared = None
    if op_class is OpClass.COLLECTIVE:
        shared = hlo.collective(member, module) if member is not None else None
        if shared is None or shared.kind is None:
            shared = hlo.Collective(kind=collective_kind(name), message_bytes=None, dtype=kernel_dtype(name))
    cost = hlo.cost(member, module) if member is not None and module is not None else _no_hlo(own["hlo_op"])
    math = op_class in (OpClass.MATMUL, OpClass.CONVOLUTION, OpClass.ATTENTION)
    dtype = hlo.math_dtype(member, module) if member is not None else None
    return Op(
        name=name,
        op_class=op_class,
        framework_op=framework_op or None,
        module=hlo.module_path(framework_op) if framework_op else None,
        dtype=(kernel_dtype(name) or dtype) if math or dtype is None else dtype,
        shapes=shapes_of(member) if member is not None else None,
        flops=cost.flops,
        bytes=cost.bytes,
        cost_source="none" if cost.flops is None else "hlo",
        cost_note=cost.note,
        collective=shared,
        site=f"{module.name}({program})/{_base_name(member)}" if module is not None and member is not None else None,
    )


def _no_hlo(hlo_op: str) -> hlo.Cost:
    note = f"the HLO of {hlo_op} is not in the trace" if hlo_op else "the trace names no HLO operation"
    return hlo.Cost(flops=None, bytes=None, note=note)


def _engine_op(name: str, op_class: OpClass, details: str) -> Op:
    """A copy or fill by the driver; its size stands in the details, where 0 means that the profiler did not know."""
    size = _SIZE.search(details)
    known = int(size[1]) if size is not None else 0
    return Op(
        name=name,
        op_class=op_class,
        flops=0 if known else None,
        bytes=known or None,
        cost_source="trace" if known else "none",
        cost_note=None if known else "the trace gives no size",
    )


def _framework_op(own: Mapping[str, str]) -> str:
    """Framework path of a kernel: newer JAX writes it as `name`, older as `tf_op`, TensorFlow as `annotation`."""
    tf_op = own["tf_op"].rstrip(":")
    if "/" in own["name"]:
        return own["name"]
    return tf_op if tf_op and tf_op != "XlaModule" else own["annotation"].split("#")[0]


def _shared_costs(ops: list[Op], code: Ints, line: Line, start: Ints) -> tuple[list[int | None], list[int | None]]:
    """FLOPs and bytes of each kernel, where several kernels carry out one HLO operation: each its part by duration.

    One execution of an operation is a row of neighbours on the stream that name it; it is over where another operation is
    named or its first kernel comes again.
    """
    hlo_codes, _ = line.codes("hlo_op")
    program = line.numbers("program_id")
    order = np.argsort(start, kind="stable").tolist()
    flops: list[int | None] = [ops[c].flops for c in code.tolist()]
    moved: list[int | None] = [ops[c].bytes for c in code.tolist()]
    group: list[int] = []
    for i in [*order, -1]:
        same = bool(group) and i >= 0 and hlo_codes[i] >= 0
        same = same and hlo_codes[i] == hlo_codes[group[0]] and program[i] == program[group[0]]
        if same and line.kind[i] != line.kind[group[0]]:
            group.append(i)
            continue
        if len(group) > 1:
            weights = line.duration_ps[group].tolist()
            for column in (flops, moved):
                for member, part in zip(group, split(column[group[0]], weights), strict=True):
                    column[member] = part
        group = [i]
    return flops, moved


def split(total: int | None, weights: list[int]) -> list[int | None]:
    """A whole number in proportion to weights; the parts add up to it."""
    if total is None:
        return [None] * len(weights)
    ends = np.cumsum(np.maximum(weights, 0)).tolist()
    whole = ends[-1] or 1
    edges = [0, *(total * e // whole for e in ends[:-1]), total]
    return [b - a for a, b in zip(edges, edges[1:], strict=False)]


def cpu_work(plane: Plane, line: Line) -> NDArray[np.bool_]:
    """Which events of a host line are operations that a CPU backend ran: they name themselves as an HLO instruction.

    Runtime calls that launch GPU kernels carry the same statistics under another name.
    """
    codes, values = line.codes("hlo_op")
    if not values:
        return np.zeros(len(line), dtype=bool)
    numbers = {value: i for i, value in enumerate(values)}
    own = {key: numbers.get(kind.name, -2) for key, kind in plane.kinds.items()}
    keys, which = np.unique(line.kind, return_inverse=True)
    return (codes >= 0) & (np.array([own.get(k, -2) for k in keys.tolist()])[which] == codes)


def cpu_executions(
    plane: Plane, work: Mapping[int, NDArray[np.bool_]], clock: Clock, programs: Programs, host: Host
) -> list[Executions]:
    """Operations of the CPU backend, by device."""
    collectors: dict[int, _Collector] = {}
    launches = _cpu_launches(plane, work, clock, host)
    for line in plane.lines:
        mine = work.get(id(line))
        if mine is None or not mine.any():
            continue
        start = clock.starts_ps(line)
        end = start + line.duration_ps
        program, (codes, values) = line.numbers("program_id"), line.codes("hlo_op")
        rows = np.flatnonzero(mine)
        firsts, code = distinct(codes[rows], program[rows])
        ops, opcodes = [], []
        for row in rows[firsts].tolist():
            op, opcode = _cpu_op(values[codes[row]], int(program[row]), programs)
            ops.append(op)
            opcodes.append(opcode)
        control = np.isin(code, [i for i, opcode in enumerate(opcodes) if opcode in hlo.STRUCTURE])
        leaf = ~(control & _holds_next(start[rows], end[rows]))
        devices = np.where(line.numbers("device_ordinal") == MISSING, 0, line.numbers("device_ordinal"))[rows]
        runs = line.numbers("run_id")[rows]
        for device in np.unique(devices).tolist():
            pick = leaf & (devices == device)
            known, which = np.unique(runs[pick], return_inverse=True)
            collector = collectors.setdefault(device, _Collector(f"CPU:{device}", device))
            missing = np.full(int(pick.sum()), MISSING, dtype=np.int64)
            collector.add(
                ops, code[pick], start[rows][pick], end[rows][pick], line.name, missing, line.numbers("group_id")[rows][pick],
                [launches.get((run, device)) for run in known.tolist()], which,
            )  # fmt: skip
    return [collectors[device].done() for device in sorted(collectors)]


def _cpu_launches(
    plane: Plane, work: Mapping[int, NDArray[np.bool_]], clock: Clock, host: Host
) -> dict[tuple[int, int], Launch | None]:
    """Launch of each (run, device): the call that names the run, else the call that handed over its first operation."""
    first: dict[tuple[int, int], tuple[int, str]] = {}
    for line in plane.lines:
        if id(line) not in work:
            continue
        thread = thread_name(line, plane.stats.get("process_id"))
        rows = np.flatnonzero(work[id(line)] & (line.numbers("run_id") != MISSING))
        columns = (line.numbers("run_id"), line.numbers("device_ordinal"), to_ns(clock.starts_ps(line)))
        for run, device, start in zip(*(column[rows].tolist() for column in columns), strict=True):
            key = (run, max(device, 0))
            first[key] = min(first.get(key, (start, thread)), (start, thread))
    launches: dict[tuple[int, int], Launch | None] = {}
    for (run, device), (start, thread) in first.items():
        named = host.by_run(run, device)
        launches[run, device] = named if named is not None and named.start_ns <= start else host.by_region(thread, start)
    return launches


def _cpu_op(name: str, program: int, programs: Programs) -> tuple[Op, str]:
    module, member = programs.find(program if program != MISSING else None, name)
    if module is None or member is None:
        opcode = hlo.opcode_of_name(name)
        guess = Instruction(name=name, opcode=opcode, result=(), operands=())
        op_class = hlo.op_class(guess)
        note = _no_hlo(name).note
        shared = hlo.collective(guess) if op_class is OpClass.COLLECTIVE else None
        return Op(name=name, op_class=op_class, cost_note=note, collective=shared), opcode
    op_class = hlo.op_class(member, module)
    cost = hlo.cost(member, module)
    op = Op(
        name=name,
        op_class=op_class,
        framework_op=member.op_name or None,
        module=hlo.module_path(member.op_name) if member.op_name else None,
        dtype=hlo.math_dtype(member, module),
        shapes=shapes_of(member),
        flops=cost.flops,
        bytes=cost.bytes,
        cost_source="none" if cost.flops is None else "hlo",
        cost_note=cost.note,
        collective=hlo.collective(member, module) if op_class is OpClass.COLLECTIVE else None,
        site=f"{module.name}({program})/{_base_name(member)}",
    )
    return op, member.opcode


class _Collector:
    """Joins the executions of several lines of one device."""

    def __init__(self, device_id: str, ordinal: int) -> None:
        self.device_id, self.ordinal = device_id, ordinal
        self.ops: list[Op] = []
        self.streams: list[str] = []
        self.launches: list[Launch | None] = []
        self.columns: list[tuple[Ints, ...]] = []
        self.flops: list[int | None] = []
        self.bytes: list[int | None] = []

    def add(
        self,
        ops: list[Op],
        op: Ints,
        start: Ints,
        end: Ints,
        stream: str,
        correlation: Ints,
        group: Ints,
        launches: list[Launch | None],
        launch: NDArray[np.integer],
        flops: list[int | None] | None = None,
        moved: list[int | None] | None = None,
    ) -> None:
        """Adds a line."""
        streams = np.full(len(op), len(self.streams), dtype=np.int64)
        self.columns.append((op + len(self.ops), start, end, streams, correlation, group, launch + len(self.launches)))
        self.flops += flops if flops is not None else [ops[i].flops for i in op.tolist()]
        self.bytes += moved if moved is not None else [ops[i].bytes for i in op.tolist()]
        self.ops += ops
        self.launches += launches
        self.streams.append(stream)

    def done(self) -> Executions:
        """All lines together."""
        columns = [np.concatenate([c[i] for c in self.columns] or [np.zeros(0, np.int64)]) for i in range(7)]
        op, start, end, stream, correlation, group, launch = (c.astype(np.int64) for c in columns)
        return Executions(
            device_id=self.device_id,
            ordinal=self.ordinal,
            ops=self.ops,
            op=op,
            start_ps=start,
            end_ps=end,
            stream=self.streams,
            stream_code=stream,
            correlation=correlation,
            group=group,
            launches=self.launches,
            launch_code=launch,
            flops=self.flops,
            bytes=self.bytes,
        )

"""GPU planes and the CPU backend of an XSpace: what ran names an HLO instruction, which tells the cost."""

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.classify import hlo
from tracegap.ingest.classify.hlo_cost import Cost, cost
from tracegap.ingest.classify.hlo_module import Instruction
from tracegap.ingest.classify.kernel import collective_kind, flops_by, is_collective, kernel_class, kernel_dtype
from tracegap.ingest.readers._xplane import MISSING, Ints, Line, Plane
from tracegap.ingest.readers._xspace_host import Launch, thread_name, to_ns
from tracegap.ingest.readers._xspace_ops import Batch, Context, Executions, Op, Programs, holds_next, shapes_of, site_of
from tracegap.models.ops import OpClass

PLANE = re.compile(r"^/device:GPU:(\d+)$")
_STREAM = re.compile(r"^Stream #\S+")
_SIZE = re.compile(r"\b(?:size|num_bytes):(\d+)")
_MATH = (OpClass.MATMUL, OpClass.CONVOLUTION, OpClass.ATTENTION)
_DETAILS = ("hlo_op", "name", "tf_op", "annotation", "memcpy_details", "memset_details")

Masks = Mapping[int, NDArray[np.bool_]]
"""Events of host lines that a CPU backend ran as a device, by `id` of the line."""


def is_stream(line: Line) -> bool:
    """Whether a line of a GPU plane is a stream; the others repeat the same work under other names."""
    return _STREAM.match(line.name) is not None


def gpu_device(plane: Plane) -> tuple[str, int] | None:
    """Id and number of the device of a GPU plane. None: no GPU plane."""
    match = PLANE.match(plane.name)
    return (f"GPU:{match[1]}", int(match[1])) if match is not None else None


def gpu_executions(plane: Plane, context: Context) -> list[Batch]:
    """Kernels, copies and fills of the streams of a GPU plane."""
    return [_stream(plane, line, context) for line in plane.lines if is_stream(line) and len(line)]


def _stream(plane: Plane, line: Line, context: Context) -> Batch:
    start = context.clock.starts_ps(line)
    program, correlation = line.numbers("program_id"), line.numbers("correlation_id")
    texts = {key: line.codes(key) for key in _DETAILS}
    firsts, code = distinct(line.kind, program, *(codes for codes, _ in texts.values()))
    ops = []
    for row in firsts.tolist():
        own = {key: values[codes[row]] if codes[row] >= 0 else "" for key, (codes, values) in texts.items()}
        kind = plane.kinds.get(int(line.kind[row]))
        ops.append(_gpu_op(kind.name if kind is not None else "", own, _known(program[row]), context.programs))
    ids, launch = np.unique(correlation, return_inverse=True)
    flops, moved = _shared_costs(ops, code, line, start)
    return Batch(
        stream=line.name,
        ops=ops,
        op=code,
        start_ps=start,
        end_ps=start + line.duration_ps,
        group=line.numbers("group_id"),
        correlation=correlation,
        launches=[context.host.by_correlation(i) if i != MISSING else None for i in ids.tolist()],
        launch=launch.astype(np.int64),
        flops=flops,
        bytes=moved,
    )


def _known(number: np.int64) -> int | None:
    return int(number) if number != MISSING else None


def distinct(*columns: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """First rows of the distinct combinations of some columns, and which combination each row has."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        code = np.unique(code * max(len(values), 1) + inverse, return_inverse=True)[1].astype(np.int64)
    return np.unique(code, return_index=True)[1].astype(np.int64), code


def _gpu_op(name: str, own: Mapping[str, str], program: int | None, programs: Programs) -> Op:
    lower = name.lower()
    if own["memset_details"] or lower.startswith("memset"):
        return _engine_op(name, OpClass.MEMSET, own["memset_details"])
    if own["memcpy_details"] or lower.startswith("memcpy"):
        return _engine_op(name, OpClass.COPY, own["memcpy_details"])
    if own["hlo_op"]:
        op = _hlo_op(own["hlo_op"], program, programs)[0]
    else:
        op = Op(name=name, op_class=OpClass.OTHER, cost_note="the trace names no HLO operation")
    framework_op = op.framework_op or _framework_op(own)
    op_class = op.op_class if op.op_class is not OpClass.OTHER else kernel_class(name)
    shared = op.collective
    if is_collective(name):
        op_class = OpClass.COLLECTIVE
        if shared is None or shared.kind is None:
            shared = hlo.Collective(kind=collective_kind(name), message_bytes=None, dtype=kernel_dtype(name))
    stated = kernel_dtype(name)  # what the kernel computes in can differ from what it reads: TF32
    return Op(
        name=name,
        op_class=op_class,
        framework_op=framework_op or None,
        module=hlo.module_path(framework_op) if framework_op else None,
        dtype=(stated or op.dtype) if op_class in _MATH else (op.dtype or stated),
        shapes=op.shapes,
        flops=op.flops,
        bytes=op.bytes,
        cost_source=op.cost_source,
        cost_note=op.cost_note,
        collective=shared,
        site=op.site,
    )


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


def _hlo_op(name: str, program: int | None, programs: Programs) -> tuple[Op, str]:
    """An instruction by name, and its opcode. Without its module, class and opcode are those that the name suggests."""
    module, member = programs.find(program, name)
    if module is None or member is None:
        opcode = hlo.opcode_of_name(name)
        guess = Instruction(name=name, opcode=opcode, result=(), operands=())
        op_class = hlo.op_class(guess)
        shared = hlo.collective(guess) if op_class is OpClass.COLLECTIVE else None
        note = f"the HLO of {name} is not in the trace"
        return Op(name=name, op_class=op_class, cost_note=note, collective=shared), opcode
    op_class = hlo.op_class(member, module)
    done: Cost = cost(member, module)
    op = Op(
        name=name,
        op_class=op_class,
        framework_op=member.op_name or None,
        module=hlo.module_path(member.op_name) if member.op_name else None,
        dtype=hlo.math_dtype(member, module),
        shapes=shapes_of(member),
        flops=done.flops,
        bytes=done.bytes,
        cost_source="none" if done.flops is None else "hlo",
        cost_note=done.note,
        collective=hlo.collective(member, module) if op_class is OpClass.COLLECTIVE else None,
        site=site_of(module.name, program, member),
    )
    return op, member.opcode


def _shared_costs(ops: list[Op], code: Ints, line: Line, start: Ints) -> tuple[list[int | None], list[int | None]]:
    """FLOPs and bytes of each kernel, where several carry out one HLO operation: bytes by duration, FLOPs as `flops_by`.

    One execution of an operation is a row of neighbours on the stream that name it; it is over where another operation
    is named or its first kernel comes again. The notes in `ops` then say that the cost is shared.
    """
    names, _ = line.codes("hlo_op")
    program = line.numbers("program_id")
    flops: list[int | None] = [ops[c].flops for c in code.tolist()]
    moved: list[int | None] = [ops[c].bytes for c in code.tolist()]
    group: list[int] = []
    for i in [*np.argsort(start, kind="stable").tolist(), -1]:
        same = bool(group) and i >= 0 and names[i] >= 0
        same = same and names[i] == names[group[0]] and program[i] == program[group[0]]
        if same and line.kind[i] != line.kind[group[0]]:
            group.append(i)
            continue
        if len(group) > 1:
            weights = line.duration_ps[group].tolist()
            first = ops[code[group[0]]]
            multiplying = flops_by(first.op_class, [ops[code[member]].name for member in group], weights)
            for column, by in ((flops, multiplying), (moved, weights)):
                for member, part in zip(group, split(column[group[0]], by), strict=True):
                    column[member] = part
            for c in {int(code[member]) for member in group if ops[code[member]].cost_note is None}:
                ops[c] = replace(
                    ops[c], cost_note="its part, by duration, of the cost of an operation of several kernels"
                )
        group = [i]
    return flops, moved


def split(total: int | None, weights: list[int]) -> list[int | None]:
    """A whole number in proportion to weights; the parts add up to it."""
    if total is None:
        return [None] * len(weights)
    ends = np.cumsum(np.maximum(weights, 0)).tolist()
    edges = [0, *(total * end // (ends[-1] or 1) for end in ends[:-1]), total]
    return [b - a for a, b in pairwise(edges)]


# --- CPU backend -----------------------------------------------------------------------------------------------------


def cpu_work(plane: Plane, line: Line) -> NDArray[np.bool_]:
    """Which events of a host line are operations that a CPU backend ran: they name themselves as an HLO instruction.

    Runtime calls that launch GPU kernels carry the same statistics under another name.
    """
    codes, values = line.codes("hlo_op")
    if not values:
        return np.zeros(len(line), dtype=bool)
    numbers = {value: i for i, value in enumerate(values)}
    keys, which = np.unique(line.kind, return_inverse=True)
    own = [numbers.get(plane.kinds[key].name, -2) if key in plane.kinds else -2 for key in keys.tolist()]
    return np.asarray((codes >= 0) & (np.array(own)[which] == codes))


def cpu_executions(plane: Plane, work: Masks, context: Context) -> list[Executions]:
    """Operations of the CPU backend, by device."""
    found: dict[int, list[Batch]] = {}
    launches = _cpu_launches(plane, work, context)
    for line in plane.lines:
        if id(line) not in work:
            continue
        rows = np.flatnonzero(work[id(line)])
        start = context.clock.starts_ps(line)[rows]
        end = start + line.duration_ps[rows]
        program, (codes, values) = line.numbers("program_id")[rows], line.codes("hlo_op")
        firsts, code = distinct(codes[rows], program)
        described = [_hlo_op(values[codes[rows[i]]], _known(program[i]), context.programs) for i in firsts.tolist()]
        control = [i for i, (_, opcode) in enumerate(described) if opcode in hlo.STRUCTURE]
        leaf = ~(np.isin(code, control) & holds_next(start, end))
        devices, runs = np.maximum(line.numbers("device_ordinal")[rows], 0), line.numbers("run_id")[rows]
        for device in np.unique(devices).tolist():
            pick = leaf & (devices == device)
            ids, launch = np.unique(runs[pick], return_inverse=True)
            batch = Batch(
                stream=line.name,
                ops=[op for op, _ in described],
                op=code[pick],
                start_ps=start[pick],
                end_ps=end[pick],
                group=line.numbers("group_id")[rows][pick],
                launches=[launches.get((run, device)) for run in ids.tolist()],
                launch=launch.astype(np.int64),
            )
            found.setdefault(device, []).append(batch)
    return [Executions(device_id=f"CPU:{device}", ordinal=device, batches=found[device]) for device in sorted(found)]


def _cpu_launches(plane: Plane, work: Masks, context: Context) -> dict[tuple[int, int], Launch | None]:
    """Launch of each (run, device): the call that names the run, else the call that handed over its first operation."""
    first: dict[tuple[int, int], tuple[int, str]] = {}
    for line in plane.lines:
        if id(line) not in work:
            continue
        thread = thread_name(line, plane.stats.get("process_id"))
        rows = np.flatnonzero(work[id(line)] & (line.numbers("run_id") != MISSING))
        devices = np.maximum(line.numbers("device_ordinal"), 0)
        columns = (line.numbers("run_id"), devices, to_ns(context.clock.starts_ps(line)))
        for run, device, start in zip(*(column[rows].tolist() for column in columns), strict=True):
            key = (run, device)
            first[key] = min(first.get(key, (start, thread)), (start, thread))
    launches: dict[tuple[int, int], Launch | None] = {}
    for (run, device), (start, thread) in first.items():
        named = context.host.by_run(run, device)
        timely = named is not None and named.start_ns <= start
        launches[run, device] = named if timely else context.host.by_region(thread, start)
    return launches

"""Writes the TPU job as the XLA profiler does: one serialized XSpace of the host, without a protobuf library."""

import gzip
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _sim.fsdp import ASYNC, CORE, HBM_GB_PER_S, PEAK_TFLOPS, ChipRun, Host, Instruction
from _sim.schedule import DeviceOp

START_UNIX_NS = 1_788_220_800_123_456_000
"""`profile_start_time`: t = 0."""
HOST_LINE_NS = 81_920
"""The host's lines begin so long after it."""
PROGRAM_ID = 13_527_902_441_763_905_118
MODULE = f"jit_train_step({PROGRAM_ID})"
READ, WRITE, HBM, VMEM = 1, 2, 1, 3
STAT_FIELD = {int: 4, float: 2, str: 5, bytes: 6}
"""Member of the oneof of XStat by type of value; whole numbers go to int64 (uint64 from 2^63 on)."""


def varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A varint field."""
    return varint(field << 3) + varint(value)


def block(field: int, value: bytes | str) -> bytes:
    """A length-delimited field: text, bytes or a message."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


class Plane:
    """One XPlane under construction; hands out the ids of its metadata."""

    def __init__(self, plane_id: int, name: str) -> None:
        self._head = number(1, plane_id) + block(2, name)
        self._lines: list[bytes] = []
        self._stats = b""
        self._stat_ids: dict[str, int] = {}
        self._events: dict[tuple[str, str], tuple[int, bytes]] = {}

    def stats(self, field: int, values: dict[str, Any]) -> bytes:
        """XStat messages in `field`."""
        return b"".join(block(field, self._stat(k, v)) for k, v in values.items())

    def _stat(self, name: str, value: Any) -> bytes:
        stat_id = self._stat_ids.setdefault(name, len(self._stat_ids) + 1)
        member = STAT_FIELD[type(value)]
        if isinstance(value, float):
            return number(1, stat_id) + double(member, value)
        if isinstance(value, int):
            return number(1, stat_id) + number(member if value < 2**63 else 3, value)
        return number(1, stat_id) + block(member, value)

    def set(self, **values: Any) -> None:
        """Stats of the plane itself."""
        self._stats += self.stats(6, values)

    def event(self, name: str, start_ns: int, end_ns: int, meta: dict[str, Any] | None = None, **stats: Any) -> bytes:
        """An XEvent; `meta` holds for all events of this name and `display_name`, which is in it."""
        meta = dict(meta or {})
        shown = meta.pop("display_name", "")
        if (name, shown) not in self._events:
            event_id = len(self._events) + 1
            body = number(1, event_id) + block(2, name) + (block(4, shown) if shown else b"") + self.stats(5, meta)
            self._events[name, shown] = (event_id, body)
        event_id = self._events[name, shown][0]
        times = number(2, start_ns * 1000) + number(3, (end_ns - start_ns) * 1000)
        return number(1, event_id) + times + self.stats(4, stats)

    def line(self, line_id: int, name: str, events: Sequence[bytes], timestamp_ns: int = 0) -> None:
        body = number(1, line_id) + block(2, name) + number(3, timestamp_ns)
        self._lines.append(body + b"".join(block(4, e) for e in events))

    def encode(self) -> bytes:
        out = self._head + b"".join(block(3, line) for line in self._lines)
        for event_id, body in self._events.values():
            out += block(4, number(1, event_id) + block(2, body))
        for name, stat_id in self._stat_ids.items():
            out += block(5, number(1, stat_id) + block(2, number(1, stat_id) + block(2, name)))
        return out + self._stats


def write(host: Host, path: Path) -> None:
    """Write the host's file."""
    planes = [_device_plane(chip) for chip in host.chips] + [_host_plane(host), _environment(host)]
    data = b"".join(block(1, plane.encode()) for plane in planes) + block(4, "tpu-host-0")
    path.write_bytes(gzip.compress(data, compresslevel=9, mtime=0))


def _device_plane(chip: ChipRun) -> Plane:
    plane = Plane(2 + 8 * chip.chip, f"/device:TPU:{chip.chip}")
    plane.set(
        device_type_string="TPU v5p",
        peak_teraflops_per_second=PEAK_TFLOPS,
        peak_hbm_bw_gigabytes_per_second=HBM_GB_PER_S,
        peak_vmem_rd_bw_gigabytes_per_second=33792.0,
        peak_vmem_wr_bw_gigabytes_per_second=22528.0,
        has_megacore=1,
        has_merged_vmem=1,
    )
    group = {step: i + 1 for i, (step, _, _) in enumerate(chip.modules)}
    plane.line(1, "Steps", list(_steps(plane, chip, group)))
    modules = [
        plane.event(MODULE, a, b, run_id=step + 1, replica_id=chip.chip, queue_id=0, core_type=0, group_id=group[step])
        for step, a, b in chip.modules
    ]
    plane.line(2, "XLA Modules", modules)
    starts = [(a, step) for step, a, _ in chip.modules]
    core = []
    for event in chip.core:
        step = max((a, step) for a, step in starts if a <= event.start_ns)[1]
        span = (event.start_ns, event.end_ns)
        stats = {"device_offset_ps": span[0] * 1000, "device_duration_ps": (span[1] - span[0]) * 1000}
        name, meta = event.instruction.text, _instruction_stats(event.instruction)
        core.append(plane.event(name, *span, meta, **stats, run_id=step + 1, group_id=group[step]))
    plane.line(3, CORE, core)
    pending = [op for op in chip.ops if op.stream == ASYNC]
    plane.line(4, ASYNC, [_async_event(plane, op, i, group) for i, op in enumerate(pending)])
    return plane


def _steps(plane: Plane, chip: ChipRun, group: dict[int, int]) -> Iterator[bytes]:
    """A step lasts from its first operation to that of the next, the last to its last operation."""
    edges = [min(op.start_ns for op in chip.ops if op.step == step) for step, _, _ in chip.modules]
    edges.append(max(op.end_ns for op in chip.ops))
    for i, (step, _, _) in enumerate(chip.modules):
        yield plane.event(str(step), edges[i], edges[i + 1], group_id=group[step], step_name=str(step))


def _async_event(plane: Plane, op: DeviceOp, flow: int, group: dict[int, int]) -> bytes:
    instruction: Instruction = op.args["instruction"]
    meta = _instruction_stats(instruction) | {"display_name": "async-" + instruction.category.removesuffix("-start")}
    stats = {"hlo_op": op.args["done"], "_a": 1, "flow": 7000 + flow, "id": flow, "group_id": group[op.step]}
    return plane.event(instruction.text, op.start_ns, op.end_ns, meta, **stats)


def _instruction_stats(instruction: Instruction) -> dict[str, Any]:
    stats: dict[str, Any] = {"display_name": instruction.name, "hlo_category": instruction.category}
    symbol = zlib.crc32(instruction.name.encode())  # XProf knows an operation by its program and symbol
    stats |= {"program_id": PROGRAM_ID, "symbol_id": symbol}
    stats |= {"tf_op": instruction.tf_op} if instruction.tf_op else {}
    cost, vmem = instruction.cost, instruction.vmem_bytes
    if cost:
        read = cost.bytes * 2 // 3
        parts = [(READ, HBM, read), (WRITE, HBM, cost.bytes - read), *([(READ, VMEM, vmem)] if vmem else [])]
        stats |= {"flops": cost.flops, "model_flops": cost.flops, "bytes_accessed": cost.bytes + vmem}
        stats |= {"raw_bytes_accessed": cost.bytes + vmem, "memory_access_breakdown": _breakdown(parts)}
    elif instruction.op_class == "custom":
        stats |= {"flops": 0, "model_flops": 0, "bytes_accessed": 0}
    return stats


def _breakdown(parts: Sequence[tuple[int, int, int]]) -> bytes:
    return b"".join(block(1, number(1, op) + number(2, space) + number(3, size)) for op, space, size in parts)


def _host_plane(host: Host) -> Plane:
    plane = Plane(701, "/host:CPU")
    events = []
    for span in host.spans:
        stats = dict(span.args)
        if span.kind == "step":
            stats["_r"] = 1
        if span.kind == "launch":
            stats |= {"queue_id": 0, "core_type": 0}
        events.append(plane.event(span.name, span.start_ns - HOST_LINE_NS, span.end_ns - HOST_LINE_NS, **stats))
    plane.line(61_300, "python", events, HOST_LINE_NS)
    plane.set(process_id=61_300)
    return plane


def _environment(host: Host) -> Plane:
    plane = Plane(0, "Task Environment")
    end = max(span.end_ns for span in host.spans) + 500_000
    plane.set(profile_start_time=START_UNIX_NS, profile_stop_time=START_UNIX_NS + end)
    return plane

"""What every reader returns: one file as tables of one vocabulary. Formats end here.

Times are integer nanoseconds since `origin_unix_ns`. A reader rounds both ends of a span, never its length.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl

from tracegap.ingest.issues import Issues

OPS = {
    "op_id": pl.Int64,  # order in the file, from 0, unique in the trace
    "device_id": pl.String,  # a Device.device_id
    "stream": pl.String,
    "name": pl.String,  # as the trace has it
    "op_class": pl.String,  # a models.ops.OpClass
    "framework_op": pl.String,  # aten::mm, jit(f)/dot_general, ...
    "module": pl.String,  # path of the layer, where the trace has one
    "start_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "step": pl.Int64,  # only where the trace itself says it (group id); else None and `ingest.steps` fills it
    "dtype": pl.String,  # math dtype, a key of models.ops.DTYPE_BYTES
    "shapes": pl.String,  # JSON list of input shapes (lists of them for tensor lists)
    "flops": pl.Int64,  # done, one multiply-add = 2; None = unknown
    "bytes": pl.Int64,  # moved from or to device memory at least; None = unknown
    "cost_source": pl.String,  # trace, hlo, shapes, nvtx, config, none
    "cost_note": pl.String,  # why flops or bytes are None, or what they assume
    "correlation_id": pl.Int64,
    "launch_ns": pl.Int64,  # when the host began the call that launched it; None = launch not in the file
    "launch_thread": pl.String,  # a host_events.thread
}
"""Operations on devices, leaves only: no modules, loops, annotations or derived lines. Asynchronous ones from start to done."""

HOST_EVENTS = {
    "event_id": pl.Int64,  # order in the file
    "thread": pl.String,  # "pid/tid"
    "kind": pl.String,  # op, python, module, annotation, step, launch, sync, input, runtime, memory, overhead, collective, other
    "name": pl.String,
    "start_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "self_ns": pl.Int64,  # duration less what children on the same thread cover; None = not a nested span
    "parent_id": pl.Int64,  # event_id of the enclosing span on the thread
    "correlation_id": pl.Int64,
}
"""Spans on host threads."""

STEP_MARKS = {
    "step": pl.Int64,
    "device_id": pl.String,  # None: the mark is on the host and holds for every device of the trace
    "start_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "source": pl.String,  # xplane_steps, profiler_step, nvtx, step_trace_annotation
    "thread": pl.String,  # of a host mark
}
"""Where the trace says that a step is. Host marks: an operation belongs to the step in which it was launched."""

COLLECTIVES = {
    "op_id": pl.Int64,  # an OPS.op_id of class collective
    "collective": pl.String,  # a models.ops.CollectiveKind; None = communication of unknown kind
    "group_id": pl.String,  # the same text on all ranks of the group; None = unknown
    "group_ranks": pl.String,  # JSON list of global ranks (device ordinals in XSpace)
    "group_size": pl.Int64,
    "group_desc": pl.String,  # what the framework calls it
    "seq": pl.Int64,  # number of the call within its group, where the trace says it
    "message_bytes": pl.Int64,  # S of nccl-tests: all-gather output, reduce-scatter input, else this rank's input
    "dtype": pl.String,
    "peer": pl.Int64,  # the other rank of a send or receive
    "sent_bytes": pl.Int64,  # of an all-to-all: what leaves this rank for others
    "received_bytes": pl.Int64,  # and what comes from them
    "send_splits": pl.String,  # JSON list of bytes for each rank of the group, where they differ
    "recv_splits": pl.String,  # and from each
}
"""One row for every row of OPS of class collective."""

COUNTERS = {
    "device_id": pl.String,
    "name": pl.String,
    "ts_ns": pl.Int64,
    "value": pl.Float64,
}
"""Sampled values."""

MEMORY = {
    "device_id": pl.String,
    "thread": pl.String,  # a host_events.thread; None = not told
    "ts_ns": pl.Int64,
    "address": pl.Int64,  # None = not told
    "bytes": pl.Int64,  # handed out; negative = given back; None = not told
    "allocated_bytes": pl.Int64,  # in use after it, as the allocator counts; None = not told
    "reserved_bytes": pl.Int64,  # held by the allocator after it
    "peak_bytes": pl.Int64,  # most that was in use since the allocator began, as it says
    "name": pl.String,  # operation that asked for it, where the event itself says it
    "source": pl.String,  # torch_allocator, xla_allocator, cuda_calls
}
"""Pieces of device memory handed out and given back, in order of time. The CPU counts as a device where it is one."""

DeviceKind = Literal["gpu", "tpu", "cpu", "accelerator"]


@dataclass(slots=True, kw_only=True)
class Device:
    """A device of a trace."""

    device_id: str
    """As operations name it: "0", "TPU:0", "GPU:1", "CPU:0"."""
    kind: DeviceKind
    name: str | None = None
    """As the trace names the part ("NVIDIA H100 80GB HBM3", "TPU v6 Lite"); None where it does not."""
    ordinal: int | None = None
    """Number in its group where one file holds several ranks (XSpace)."""
    properties: dict[str, Any] = field(default_factory=dict)
    """What the trace says of it: memory_bytes, core_count, compute_capability ("9.0"), clock_hz."""
    stated_peaks: dict[str, float] = field(default_factory=dict)
    """Peaks that the trace itself states: `flops_per_s` (matrix, its native 16-bit), `hbm_bytes_per_s`."""


@dataclass(slots=True, kw_only=True)
class Trace:
    """One file, read. Frames have exactly the columns of the schemas above."""

    format: str
    """NAME of the reader."""
    framework: str
    """pytorch, jax, tensorflow, cuda, ..."""
    origin_unix_ns: int | None
    """Unix time of t = 0; None where the file does not tell."""
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    devices: list[Device] = field(default_factory=list)
    ops: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=OPS))
    host_events: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=HOST_EVENTS))
    step_marks: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=STEP_MARKS))
    collectives: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=COLLECTIVES))
    counters: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=COUNTERS))
    memory: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=MEMORY))
    config: dict[str, Any] = field(default_factory=dict)
    """Configuration found in the trace (flat, dotted keys); no secrets, no environment."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Counts of the raw file that a person can check: events, by_phase, ... (free form, by format)."""
    issues: Issues = field(default_factory=Issues)
    further_host_events: Iterator[pl.DataFrame] = field(default_factory=lambda: iter(()))
    """More host events, in frames made when asked for and read once: a large file need not be in memory whole."""
    further_ops: Iterator[pl.DataFrame] = field(default_factory=lambda: iter(()))
    """Operations of further devices, a frame a device, likewise; asked for after the host events. A frame's device, its
    rows of `collectives` (in place of those of the frame before), its issues and facts are there when the frame is; the
    step marks when the host events are. Texts of either kind of frame may be categories."""

    def host_batches(self) -> Iterator[pl.DataFrame]:
        """All host events, in frames."""
        yield self.host_events
        yield from self.further_host_events

    def by_device(self) -> Iterator[tuple[str, pl.DataFrame]]:
        """Operations of each device in turn."""
        for (device_id,), ops in self.ops.partition_by("device_id", as_dict=True, maintain_order=True).items():
            yield str(device_id), ops
        for ops in self.further_ops:
            device_id = str(ops["device_id"][0])
            yield device_id, ops
            del ops  # nor two devices at once


def shapes_json(shapes: Any) -> str:
    """Compact JSON of shapes, as `ops.shapes` has it."""
    return json.dumps(shapes, separators=(",", ":"))


def complete(trace: Trace) -> Trace:
    """The trace with what was still to come, in the types of the schemas."""
    ops, collectives = [trace.ops], [trace.collectives]
    trace.host_events = pl.concat([batch.cast(HOST_EVENTS) for batch in trace.host_batches()])  # type: ignore[arg-type]
    for frame in trace.further_ops:
        ops.append(frame.cast(OPS))  # type: ignore[arg-type]
        collectives.append(trace.collectives.cast(COLLECTIVES))  # type: ignore[arg-type]
    trace.ops, trace.collectives = pl.concat(ops), pl.concat(collectives)
    return trace

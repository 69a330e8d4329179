"""What is decoded of an event of a Kineto trace, as typed structs: the fields that the reader uses, under their own names.

Scalars are `Any`: a strange type in one event must not stop the decoding of its block.
"""

from typing import Any, Literal

import msgspec


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments that the reader uses; all others are skipped unread."""

    device: Any = None
    stream: Any = None
    correlation: Any = None
    external_id: Any = msgspec.field(default=None, name="External id")
    external_id_18: Any = msgspec.field(default=None, name="external id")
    bytes: Any = None
    grid: Any = None
    block: Any = None
    size: Any = None  # of a copy's runtime call (ROCm)
    input_dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    input_dims_18: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input dims")
    input_type: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")
    input_strides: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Strides")
    concrete_inputs: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Concrete Inputs")
    sequence: Any = msgspec.field(default=None, name="Sequence number")
    fwd_thread: Any = msgspec.field(default=None, name="Fwd thread id")
    collective: Any = msgspec.field(default=None, name="Collective name")
    in_nelems: Any = msgspec.field(default=None, name="In msg nelems")
    out_nelems: Any = msgspec.field(default=None, name="Out msg nelems")
    in_split: Any = msgspec.field(default=None, name="In split size")
    out_split: Any = msgspec.field(default=None, name="Out split size")
    group_size: Any = msgspec.field(default=None, name="Group size")
    dtype: Any = None
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_desc: Any = msgspec.field(default=None, name="Process Group Description")
    group_number: Any = msgspec.field(default=None, name="Process Group ID")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    rank_start: Any = msgspec.field(default=None, name="Global rank start")
    rank_stride: Any = msgspec.field(default=None, name="Global rank stride")
    src_rank: Any = msgspec.field(default=None, name="Src Rank")
    dst_rank: Any = msgspec.field(default=None, name="Dst Rank")
    seq: Any = msgspec.field(default=None, name="Seq")
    address: Any = msgspec.field(default=None, name="Addr")
    memory: Any = msgspec.field(default=None, name="Bytes")
    allocated: Any = msgspec.field(default=None, name="Total Allocated")
    reserved: Any = msgspec.field(default=None, name="Total Reserved")
    device_type: Any = msgspec.field(default=None, name="Device Type")
    device_index: Any = msgspec.field(default=None, name="Device Id")


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One entry of the event list."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args = NO_ARGS
    nested: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="traceEvents")  # another document in this one

    def lasting(self) -> "Event":
        """The event with raw texts of its own, not those of a block that the next one overwrites."""
        raws = {f: v.copy() for f in self.args.__struct_fields__ if isinstance(v := getattr(self.args, f), msgspec.Raw)}
        self.args = msgspec.structs.replace(self.args, **raws)
        return self


Phase = Literal["X", "s", "f", "t", "M", "i", "I", "B", "E", "C"]
Category = Literal[
    "cpu_op", "python_function", "cuda_runtime", "cuda_driver", "hip_runtime", "kernel", "gpu_memcpy", "gpu_memset",
    "user_annotation", "gpu_user_annotation", "ac2g", "fwdbwd", "async", "async_gpu", "async_cpu_to_gpu", "overhead",
    "cuda_sync", "cuda_event", "cpu_instant_event", "Trace", "Operator", "Kernel", "Memcpy", "Memset", "Runtime",
]  # fmt: skip
"""The usual ones: these are decoded without making a new text each time."""


class UsualEvent(Event, gc=False):
    """An entry with a usual phase and category."""

    ph: Phase | None = None
    cat: Category | None = None


class Times(msgspec.Struct, gc=False):
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")

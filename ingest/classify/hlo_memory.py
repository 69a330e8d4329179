"""Device memory that a compiled program needs, as XLA's buffer assignment in its HLO states it."""

from tracegap.ingest.protobuf import DecodeError, messages

_PROTO = messages(
    "tracegap.hlo_memory",
    {
        "HloProto": "buffer_assignment 3 BufferAssignment",
        "BufferAssignment": "buffer_allocations 3 BufferAllocation*",
        "BufferAllocation": "size 2 i64; is_thread_local 3 bool; is_parameter 5 bool; maybe_live_out 7 bool; color 8 i64;"
        "is_constant 12 bool",
    },
)
"""Fields of xla/service/hlo.proto."""

PROGRAM_PARTS = ("parameters", "outputs", "constants", "temporaries")


def program_memory(data: bytes) -> dict[str, int] | None:
    """Bytes of a serialized xla.HloProto by PROGRAM_PARTS; None where it has no buffer assignment.

    Each allocation is one part: a parameter of the program (also one that an output takes over), else an output, else a
    constant, else temporary. They are those of the default memory space; what a thread keeps to itself is left out. It is
    what `memory_analysis()` of a compiled JAX function counts (BufferAssignment::ComputeStats).
    """
    try:
        proto = _PROTO["HloProto"].FromString(data)
    except DecodeError:
        return None
    allocations = proto.buffer_assignment.buffer_allocations
    if not allocations:
        return None
    sums = dict.fromkeys(PROGRAM_PARTS, 0)
    for one in allocations:
        if one.color == 0 and not one.is_thread_local:
            part = (
                "parameters"
                if one.is_parameter
                else "outputs"
                if one.maybe_live_out
                else "constants"
                if one.is_constant
                else "temporaries"
            )
            sums[part] += one.size
    return sums

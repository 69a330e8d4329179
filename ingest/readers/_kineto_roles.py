"""What the categories of Kineto's events are to the reader."""

from enum import IntEnum
from typing import Any


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


def role_of(ph: Any, cat: Any) -> Role:
    """Role of an event by its phase and category."""
    if ph == "X":
        return _ROLES.get(cat.lower() if isinstance(cat, str) else "", Role.HOST)
    return Role.IGNORED if ph in ("s", "f", "t", "M") else Role.LOOK

"""Device memory in an XSpace: what the allocators of TensorFlow and JAX handed out and took back."""

import re

import numpy as np
import polars as pl

from tracegap.ingest.readers._xplane import MISSING, Line, Plane
from tracegap.ingest.readers._xspace_host import Clock, nullable, thread_name, to_ns
from tracegap.ingest.trace import MEMORY

_EVENTS = {"MemoryAllocation": 1, "MemoryDeallocation": -1}
"""Names and signs; xprof's memory profile is made of the same events (`convert_xplane_to_memory_profile`)."""
_OF_GPU = re.compile(r"^GPU_(\d+)_bfc$")


def memory_of(planes: list[Plane], clock: Clock) -> pl.DataFrame:
    """MEMORY of the devices; allocators of the host are left out.

    GPUs stand in the allocator's name (`GPU_0_bfc`), TPUs are numbered (`index_on_host`).
    """
    frames = [pl.DataFrame(schema=MEMORY)]
    for plane in planes:
        signs = {key: _EVENTS[kind.name] for key, kind in plane.kinds.items() if kind.name in _EVENTS}
        frames += [
            _memory_of_line(plane, line, signs, clock) for line in plane.lines if np.isin(line.kind, list(signs)).any()
        ]
    return pl.concat(frames).sort("ts_ns", maintain_order=True)


def _memory_of_line(plane: Plane, line: Line, signs: dict[int, int], clock: Clock) -> pl.DataFrame:
    keep = np.isin(line.kind, list(signs))
    sign = np.array([signs[key] for key in line.kind[keep].tolist()], dtype=np.int64)
    size = line.numbers("allocation_bytes")[keep]
    tpu = line.numbers("index_on_host")[keep].tolist()
    allocators, operations = (_texts(line, name, keep) for name in ("allocator_name", "tf_op"))
    frame = pl.DataFrame(
        {
            "device_id": pl.Series(list(map(_device, allocators, tpu)), dtype=pl.String),
            "thread": pl.Series([thread_name(line, plane.stats.get("process_id"))] * len(sign), dtype=pl.String),
            "ts_ns": to_ns(clock.starts_ps(line)[keep]),
            "address": nullable("address", line.numbers("addr")[keep]),
            "bytes": nullable("bytes", np.where(size == MISSING, MISSING, sign * size)),
            "allocated_bytes": nullable("allocated_bytes", line.numbers("bytes_allocated")[keep]),
            "reserved_bytes": pl.Series([None] * len(sign), dtype=pl.Int64),
            "peak_bytes": nullable("peak_bytes", line.numbers("peak_bytes_in_use")[keep]),
            "name": pl.Series(operations, dtype=pl.String),
            "source": pl.Series(["xla_allocator"] * len(sign), dtype=pl.String),
        }
    )
    return frame.filter(pl.col("device_id").is_not_null())


def _texts(line: Line, name: str, keep: np.typing.NDArray[np.bool_]) -> list[str | None]:
    codes, words = line.codes(name)
    return [words[code] if code >= 0 else None for code in codes[keep].tolist()]


def _device(allocator: str | None, tpu: int) -> str | None:
    if allocator is None:
        return f"TPU:{tpu}" if tpu != MISSING else None
    found = _OF_GPU.match(allocator)
    return f"GPU:{found[1]}" if found else None

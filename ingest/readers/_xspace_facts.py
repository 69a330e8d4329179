"""Counts and sums of the raw events of an XSpace that a person can check against other tools, picoseconds exact."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from tracegap.ingest.forms import keyed
from tracegap.ingest.intervals import Cover, Ints, sums_by, union
from tracegap.ingest.readers import _xspace_tpu as tpu
from tracegap.ingest.readers import _xspace_xla as xla
from tracegap.ingest.readers._xplane import MISSING, Line, Plane, Space, Value
from tracegap.ingest.readers._xspace_host import Host
from tracegap.ingest.readers._xspace_ops import Batch, Programs, number, text
from tracegap.models.ops import STATE_OF_CLASS, State

_DERIVED = (
    "Steps|Sparse Core Steps|XLA TraceMe|Framework Ops|Framework Name Scope|Source code|Source Code|TensorFlow Ops|"
    "TensorFlow Name Scope|_counters_|TC Overlay|Overlay|Host Offload Ops|Launch Stats|Tensor Core Sync Flag|Sparse Core Syncs"
)
KNOWN_LINES = frozenset({*tpu.OPS_LINES, *tpu.MODULE_LINES, tpu.ASYNC_LINE, *_DERIVED.split("|")})
"""Lines of device planes whose meaning is known, streams aside."""


def is_unknown(plane: Plane, line: Line) -> bool:
    """Whether a line of a device plane has a name whose meaning is not known."""
    is_gpu = xla.PLANE.match(plane.name) is not None
    if not len(line) or not (is_gpu or tpu.PLANE.match(plane.name)):
        return False
    return line.name not in KNOWN_LINES and not (is_gpu and xla.is_stream(line))


def space_facts(space: Space, programs: Programs) -> dict[str, Any]:
    """What is known of the file before its lines are read; the lists by plane and device are filled when they are."""
    modules = sorted((programs.entries[key], module.name, *module.counts) for key, module in programs.modules.items())
    facts: dict[str, Any] = {
        "planes": [{"name": plane.name} for plane in space.planes],
        "hostnames": space.hostnames,
        "errors": space.errors,
        "warnings": space.warnings,
        "aggregated_records": 0,
        "devices": {},
    }
    if programs.memory:
        entry, parts = max(programs.memory.items(), key=lambda item: (sum(item[1].values()), item[0]))
        facts["largest_program"] = {"entry": entry, "bytes": parts}
    if modules:
        facts["hlo_modules[entry,name,computations,instructions]"] = [list(module) for module in modules]
    return facts


def plane_facts(plane: Plane, programs: Programs, host: Host) -> dict[str, Any]:
    """Counts and sums of the events of a plane as they stand in the file."""
    facts: dict[str, Any] = {
        "name": plane.name,
        "lines": len(plane.lines),
        "events": sum(len(line) + line.aggregated for line in plane.lines),
        "event_metadata": len(plane.kinds),
    }
    if plane.stats:
        facts["stats"] = {name: _shown(value) for name, value in plane.stats.items()}
    if plane.name.startswith("/device:"):
        lines = _sums((line.name, len(line) + line.aggregated, int(line.duration_ps.sum())) for line in plane.lines)
        if lines:
            facts["line[n,sum_ps]"] = lines
        by_category, by_name = _xla_ops(plane)
        if by_category:
            facts["xla_ops_by_hlo_category[n,ps,device_duration_ps,flops,bytes]"] = by_category
            facts["xla_ops_by_name[n,ps,device_duration_ps]"] = by_name
    unknown = [line.name for line in plane.lines if is_unknown(plane, line)]
    if unknown:
        facts["unknown_lines"] = unknown
    if plane.name == "/host:metadata" and programs.modules:
        facts["hlo_protos"] = len(programs.modules)
    with_hlo = [(line.codes("hlo_op")[0] >= 0, line.duration_ps) for line in plane.lines if "hlo_op" in line.texts]
    if with_hlo:
        facts["events_with_hlo_op[n,ps]"] = [
            int(sum(mask.sum() for mask, _ in with_hlo)),
            int(sum(ps[mask].sum() for mask, ps in with_hlo)),
        ]
    if plane.name == "/host:CPU" and host.steps:
        names = host.events["name"]
        facts["step_annotations"] = [f"{names[row]} {step}" for step, _, row in host.steps]
    return facts


def _shown(value: Value) -> int | float | str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else value


def _sums(parts: Iterable[tuple[Any, ...]]) -> dict[str, list[int]]:
    """Sums of [n, ps, ...] by name."""
    total: dict[str, list[int]] = {}
    for name, *values in parts:
        old = total.get(name, [0] * len(values))
        total[name] = [a + b for a, b in zip(old, values, strict=True)]
    return total


def _xla_ops(plane: Plane) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Sums over all events of the ops lines, nested ones too: by category, and by program and operation."""
    categories, names = [], []
    for line in plane.lines:
        if line.name not in tpu.OPS_LINES or not len(line):
            continue
        keys, which = keyed(line.kind)
        device_ps = np.where(
            line.numbers("device_duration_ps") == MISSING, line.duration_ps, line.numbers("device_duration_ps")
        )
        columns = [np.bincount(which, minlength=len(keys)).tolist()]
        columns += [sums_by(which, values, len(keys)).tolist() for values in (line.duration_ps, device_ps)]
        for key, n, ps, own_ps in zip(keys.tolist(), *columns, strict=True):
            kind = plane.kinds.get(key)
            stats = kind.stats if kind is not None else {}
            name = (kind.display_name or kind.name) if kind is not None else f"#{key}"
            flops, moved = number(stats.get("flops")) or 0, number(stats.get("bytes_accessed")) or 0
            categories.append((text(stats.get("hlo_category")), n, ps, own_ps, n * flops, n * moved))
            names.append((f"{text(stats.get('program_id'))}/{name}", n, ps, own_ps))
    return _sums(categories), _sums(names)


def device_facts(batches: list[Batch]) -> dict[str, int]:
    """Unions of a device's operations in ps, before anything is rounded."""
    start = np.concatenate([batch.start_ps for batch in batches])
    end = np.concatenate([batch.end_ps for batch in batches])
    states = list(State)
    state_of = [np.array([states.index(STATE_OF_CLASS[op.op_class]) for op in batch.ops]) for batch in batches]
    state = np.concatenate([own[batch.op] for own, batch in zip(state_of, batches, strict=True)])

    def part(wanted: State) -> tuple[Ints, Ints]:
        mask = state == states.index(wanted)
        return start[mask], end[mask]

    def length(spans: tuple[Ints, Ints]) -> int:
        first, last = union(*spans)
        return int((last - first).sum())

    compute, comm = part(State.COMPUTE), part(State.EXPOSED_COMM)
    hidden = int(Cover.of(*compute).within(*union(*comm)).sum())
    return {
        "kernels": len(compute[0]) + len(comm[0]),
        "ops": len(start),
        "busy_ps": length((start, end)),
        "compute_ps": length(compute),
        "comm_ps": length(comm),
        "exposed_comm_ps": length(comm) - hidden,
        "first_start_ps": int(start.min()),
        "last_end_ps": int(end.max()),
    }

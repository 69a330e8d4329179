"""XSpace (`.xplane.pb`): what jax.profiler, TensorFlow and PyTorch/XLA write, one file a host."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracegap.ingest.errors import TraceError
from tracegap.ingest.files import open_plain
from tracegap.ingest.intervals import Cover, union
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers._xplane import MISSING, Line, Plane, Space, Value, WireError, read_space
from tracegap.ingest.readers._xspace_device import (
    ASYNC_LINE,
    KNOWN_LINES,
    OPS_LINES,
    Executions,
    Op,
    Programs,
    cpu_executions,
    cpu_work,
    gpu_executions,
    is_stream,
    number,
    text,
    tpu_executions,
)
from tracegap.ingest.readers._xspace_host import Clock, Host, read_host, to_ns
from tracegap.ingest.trace import COLLECTIVES, OPS, STEP_MARKS, Device, DeviceKind, Trace
from tracegap.models.ops import STATE_OF_CLASS, OpClass, State

NAME = "xspace"

_TPU = re.compile(r"^/device:TPU:(\d+)(?: SparseCore (\d+))?$")
_GPU = re.compile(r"^/device:GPU:(\d+)$")
_HOST = re.compile(r"^/host:(?!metadata$|CUPTI$|ROCTRACER$|tfstreamz$)")
_STEP_LINES = ("Steps", "Sparse Core Steps")
_UTF8_REPLACEMENT = b"\xef\xbf\xbd"


def sniff(name: str, head: bytes) -> bool:
    """An XSpace begins with a plane: field 1, a length, and in it the plane's id or name. `name` decides a cut or mangled one."""
    if name.removesuffix(".gz").removesuffix(".zst").endswith((".xplane.pb", ".xspace.pb")):
        return True
    if len(head) < 4 or head[0] != 0x0A:
        return False
    inside = 1 + next((i for i, byte in enumerate(head[1:11], start=1) if byte < 0x80), 10)
    if head[inside : inside + 1] == b"\x08":  # the plane's id
        inside += 1 + next((i for i, byte in enumerate(head[inside + 1 : inside + 11], start=1) if byte < 0x80), 10)
    return head[inside : inside + 1] == b"\x12" and head[inside + 2 : inside + 3] in (b"/", b"T", b"#", b"S", b"H")


def read(path: Path) -> Trace:
    """Reads a file. Raises TraceError where not even one plane is whole."""
    with open_plain(path) as stream:
        space = read_space(stream)
    _check(path, space)
    return trace_of(space)


def _check(path: Path, space: Space) -> None:
    damage = space.damage
    if space.planes:
        return
    if damage is None:
        raise TraceError(str(path), "holds no plane", code="foreign", todo="is this an .xplane.pb of a profiler?")
    todo = "copy the file again, or record again"
    if damage.code == "malformed" and _is_mangled_text(path):
        todo = "it was copied as text, which replaced every byte that is not UTF-8; copy it again as binary"
    raise TraceError(str(path), f"is no whole XSpace: {damage.what} at byte {damage.byte}", code=damage.code, todo=todo)


def _is_mangled_text(path: Path) -> bool:
    """Whether bytes that are not UTF-8 were replaced, as copying through a text tool does."""
    with open_plain(path) as stream:
        head = stream.read(1 << 16)
    return head.count(_UTF8_REPLACEMENT) > 8 and "\ufffd" in head[:-4].decode("utf-8", errors="ignore")


def trace_of(space: Space, issues: Issues | None = None) -> Trace:
    """The tables of a decoded XSpace, wherever it came from."""
    issues = issues if issues is not None else Issues()
    _report(space, issues)
    planes = space.planes
    clock = Clock.of(planes)
    programs = Programs.of(planes)
    hosts = [plane for plane in planes if _HOST.match(plane.name)]
    work = {id(line): mask for plane in hosts for line in plane.lines if (mask := cpu_work(plane, line)).any()}
    host = read_host(hosts, clock, work)
    executions: list[Executions] = []
    devices: dict[str, Device] = {}
    for plane in planes:
        if match := _TPU.match(plane.name):
            device_id, ordinal = f"TPU:{match[1]}", int(match[1])
            devices.setdefault(device_id, _device(plane, device_id, "tpu", ordinal))
            executions.append(tpu_executions(plane, device_id, ordinal, clock, programs, host))
        elif match := _GPU.match(plane.name):
            device_id, ordinal = f"GPU:{match[1]}", int(match[1])
            devices.setdefault(device_id, _device(plane, device_id, "gpu", ordinal))
            executions.append(gpu_executions(plane, device_id, ordinal, clock, programs, host))
    for plane in hosts:
        for mine in cpu_executions(plane, work, clock, programs, host):
            devices.setdefault(mine.device_id, Device(device_id=mine.device_id, kind="cpu", ordinal=mine.ordinal))
            executions.append(mine)
    executions = [e for e in executions if len(e.op)]
    marks, step_of_group = _steps(planes, clock, host)
    ops = _number([e.frame(step_of_group) for e in executions])
    trace = Trace(
        format=NAME,
        framework=_framework(planes, programs),
        origin_unix_ns=clock.origin_unix_ns,
        host=next(iter(space.hostnames), None),
        devices=list(devices.values()),
        ops=ops.select(*OPS),
        host_events=host.events,
        step_marks=marks,
        collectives=_collectives(ops, executions),
        config=_config(planes),
        facts=_facts(space, programs, ops, host),
        issues=issues,
    )
    unpaired = ops.filter(pl.col("name").str.contains(r"-(start|done)(\.\d+)?$") & (pl.col("stream") != "async"))
    issues.add(
        "async_unpaired",
        "halves of asynchronous operations whose other half is not in the trace: each stands for itself",
        count=len(unpaired),
        where=unpaired["name"][0] if len(unpaired) else "",
    )
    return trace


def _report(space: Space, issues: Issues) -> None:
    """What the file lost or says of itself."""
    if space.damage is not None:
        issues.add(
            space.damage.code,
            f"{space.damage.what}; the {len(space.planes)} planes before it are whole, the rest of the file is not read",
            where=f"byte {space.damage.byte}",
            severity="data_loss",
        )
    for message in space.errors:
        issues.add("profiler_error", f"the profiler reported: {message}", severity="data_loss")
    for message in space.warnings:
        issues.add("profiler_warning", f"the profiler warned: {message}")
    for plane in space.planes:
        for line in plane.lines:
            issues.add(
                "aggregated_events",
                "records with a number of occurrences in place of a start have no place on the timeline and are left out",
                where=f"{plane.name} {line.name}",
                count=line.aggregated,
            )
            issues.add(
                "negative_duration",
                "events of negative length",
                where=f"{plane.name} {line.name}",
                count=int((line.duration_ps < 0).sum()),
                severity="data_loss",
            )
            if _is_unknown(plane, line):
                issues.add(
                    "unknown_line", "lines of device planes whose meaning is not known are left out", where=f"{plane.name} {line.name}"
                )


def _is_unknown(plane: Plane, line: Line) -> bool:
    on_device = _TPU.match(plane.name) or _GPU.match(plane.name)
    return bool(on_device and len(line) and line.name not in KNOWN_LINES and not (_GPU.match(plane.name) and is_stream(line)))


_PROPERTIES: dict[str, tuple[str, int]] = {
    "memory_size": ("memory_bytes", 1),
    "core_count": ("core_count", 1),
    "clock_rate": ("clock_hz", 1000),
    "memory_bandwidth": ("memory_bytes_per_s", 1),
    "has_megacore": ("has_megacore", 1),
}
"""Plane statistics: our name and the factor to its unit."""


def _device(plane: Plane, device_id: str, kind: DeviceKind, ordinal: int) -> Device:
    stats = plane.stats
    properties: dict[str, Any] = {
        ours: value * factor for name, (ours, factor) in _PROPERTIES.items() if (value := number(stats.get(name))) is not None
    }
    major, minor = number(stats.get("compute_cap_major")), number(stats.get("compute_cap_minor"))
    if major is not None and minor is not None:
        properties["compute_capability"] = f"{major}.{minor}"
    if "device_vendor" in stats:
        properties["vendor"] = text(stats["device_vendor"])
    peaks = {
        "flops_per_s": ("peak_teraflops_per_second", 1e12),
        "hbm_bytes_per_s": ("peak_hbm_bw_gigabytes_per_second", 1e9),
    }
    stated = {ours: float(value) * unit for ours, (name, unit) in peaks.items() if isinstance(value := stats.get(name), int | float)}
    return Device(
        device_id=device_id,
        kind=kind,
        name=text(stats.get("device_type_string") or stats.get("gpu_device_name")) or None,
        ordinal=ordinal,
        properties=properties,
        stated_peaks={name: value for name, value in stated.items() if value > 0},
    )


def _framework(planes: list[Plane], programs: Programs) -> str:
    """Who wrote the file: JAX states its version or names its modules `jit_...`."""
    if any("jax_version" in plane.stats for plane in planes):
        return "jax"
    names = [m.name for m in programs.modules.values()]
    names += [k.name for p in planes for line in p.lines if line.name == "XLA Modules" for k in _kinds(p, line)]
    names += [k.name for p in planes if _HOST.match(p.name) for k in p.kinds.values() if k.name.startswith("PjitFunction(")]
    if any(name.startswith(("jit_", "pjit_", "pmap_", "PjitFunction(")) for name in names):
        return "jax"
    if any(name.startswith(("SyncTensorsGraph", "IrToHlo")) for name in names):
        return "pytorch"
    return "tensorflow" if any(line.name.startswith(("TensorFlow", "tf_")) for p in planes for line in p.lines) else "xla"


def _kinds(plane: Plane, line: Line) -> list[Any]:
    return [plane.kinds[key] for key in np.unique(line.kind).tolist() if key in plane.kinds]


def _config(planes: list[Plane]) -> dict[str, Any]:
    """Versions that the file states."""
    return {
        name.removesuffix("_version") + ".version": text(value)
        for plane in planes
        for name, value in plane.stats.items()
        if name.endswith("_version")
    }


def _steps(planes: list[Plane], clock: Clock, host: Host) -> tuple[pl.DataFrame, dict[int, int]]:
    """Step marks of the best source, and the step of each group id.

    Raw files have no group ids; where they are, they join device events to the step that launched them.
    """
    marks: list[dict[str, Any]] = []
    groups: dict[int, int] = {}
    for plane in planes:
        match = _TPU.match(plane.name) or _GPU.match(plane.name)
        for line in plane.lines if match is not None else ():
            if line.name not in _STEP_LINES:
                continue
            start = clock.starts_ps(line)
            begin, end = to_ns(start), to_ns(start + line.duration_ps)
            group = line.numbers("group_id")
            for i, key in enumerate(line.kind.tolist()):
                step = _step_number(plane, line, i, key)
                if step is None:
                    continue
                if group[i] != MISSING:
                    groups.setdefault(int(group[i]), step)
                if line.name == _STEP_LINES[0]:
                    device = plane.name.removeprefix("/device:")
                    marks.append(
                        {
                            "step": step,
                            "device_id": device,
                            "start_ns": int(begin[i]),
                            "dur_ns": int(end[i] - begin[i]),
                            "source": "xplane_steps",
                            "thread": None,
                        }
                    )
    annotated = host.events[[row for _, _, row in host.steps]].select("start_ns", "dur_ns", "thread").to_dicts()
    for step, group_id, _ in host.steps:
        if group_id is not None:
            groups.setdefault(group_id, step)
    if not marks:
        marks = [
            {"step": step, "device_id": None, "source": "step_trace_annotation", **span}
            for (step, _, _), span in zip(host.steps, annotated, strict=True)
        ]
    return pl.DataFrame(marks, schema=STEP_MARKS), groups


def _step_number(plane: Plane, line: Line, i: int, key: int) -> int | None:
    """Number of a step: its statistic, its name, or its place in the line."""
    stated = line.numbers("step_num")[i]
    if stated != MISSING:
        return int(stated)
    codes, values = line.codes("step_name")
    names = [values[codes[i]] if codes[i] >= 0 else "", plane.kinds[key].name if key in plane.kinds else ""]
    digits = (re.search(r"(\d+)$", name.strip()) for name in names)
    return next((int(found[1]) for found in digits if found is not None), i)


def _number(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """All operations, numbered in file order."""
    if not frames:
        return pl.DataFrame(schema=OPS | dict.fromkeys(("start_ps", "end_ps", "op", "part"), pl.Int64))
    ops = pl.concat([frame.with_columns(part=pl.lit(i, dtype=pl.Int64)) for i, frame in enumerate(frames)])
    return ops.with_columns(op_id=pl.int_range(pl.len(), dtype=pl.Int64))


def _collectives(ops: pl.DataFrame, executions: list[Executions]) -> pl.DataFrame:
    """A row for each operation that communicates. Group ids are the same text on all devices of the group."""
    described = [
        {"part": part, "op": key, **_communication(op, execution.ordinal)}
        for part, execution in enumerate(executions)
        for key, op in enumerate(execution.ops)
        if op.op_class is OpClass.COLLECTIVE
    ]
    known = pl.DataFrame(described, schema={"part": pl.Int64, "op": pl.Int64} | COLLECTIVES).drop("op_id", "seq")
    mine = ops.filter(pl.col("op_class") == OpClass.COLLECTIVE.value).select("op_id", "part", "op", "start_ps")
    grouped = pl.col("group_id").is_not_null()
    return (
        mine.join(known, on=("part", "op"), how="left")
        .sort("part", "start_ps", "op_id")
        .with_columns(seq=pl.when(grouped).then(pl.col("op_id").cum_count().over("part", "group_id").cast(pl.Int64) - 1))
        .sort("op_id")
        .select(*COLLECTIVES)
    )


def _communication(op: Op, ordinal: int | None) -> dict[str, Any]:
    """Columns of COLLECTIVES that all executions of an operation on one device share."""
    shared = op.collective
    if shared is None:
        return {}
    group = shared.group_of(ordinal) if ordinal is not None else None
    return {
        "collective": shared.kind.value if shared.kind is not None else None,
        "group_id": f"{op.site}:{','.join(map(str, group))}" if group is not None and op.site is not None else None,
        "group_ranks": json.dumps(list(group), separators=(",", ":")) if group is not None else None,
        "group_size": len(group) if group is not None else None,
        "message_bytes": shared.message_bytes,
        "dtype": shared.dtype,
        "peer": next((b for a, b in shared.pairs if a == ordinal), None),
    }


# ---------------------------------------------------------------------------------------------- facts


def _facts(space: Space, programs: Programs, ops: pl.DataFrame, host: Host) -> dict[str, Any]:
    """Counts and sums of the raw file, with picoseconds exact."""
    modules = sorted((programs.entries[key], module.name, *module.counts) for key, module in programs.modules.items())
    facts: dict[str, Any] = {
        "planes": [_plane_facts(plane, programs, host) for plane in space.planes],
        "hostnames": space.hostnames,
        "errors": space.errors,
        "warnings": space.warnings,
        "devices": {
            device: _device_facts(mine)
            for (device,), mine in ops.select("device_id", "op_class", "start_ps", "end_ps")
            .partition_by("device_id", as_dict=True)
            .items()
        },
    }
    if modules:
        facts["hlo_modules[entry,name,computations,instructions]"] = [list(module) for module in modules]
    return facts


def _plane_facts(plane: Plane, programs: Programs, host: Host) -> dict[str, Any]:
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
    unknown = [line.name for line in plane.lines if _is_unknown(plane, line)]
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


def _sums(parts: Any) -> dict[str, list[int]]:
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
        if line.name not in OPS_LINES or not len(line):
            continue
        keys, which = np.unique(line.kind, return_inverse=True)
        device_ps = np.where(line.numbers("device_duration_ps") == MISSING, line.duration_ps, line.numbers("device_duration_ps"))
        columns = [np.bincount(which, minlength=len(keys)).tolist()]
        for values in (line.duration_ps, device_ps):
            sums = np.zeros(len(keys), dtype=np.int64)
            np.add.at(sums, which, values)
            columns.append(sums.tolist())
        for key, n, ps, own_ps in zip(keys.tolist(), *columns, strict=True):
            kind = plane.kinds.get(key)
            stats = kind.stats if kind is not None else {}
            name = (kind.display_name or kind.name) if kind is not None else f"#{key}"
            flops, moved = number(stats.get("flops")) or 0, number(stats.get("bytes_accessed")) or 0
            categories.append((text(stats.get("hlo_category")), n, ps, own_ps, n * flops, n * moved))
            names.append((f"{text(stats.get('program_id'))}/{name}", n, ps, own_ps))
    return _sums(categories), _sums(names)


def _device_facts(ops: pl.DataFrame) -> dict[str, int]:
    """Unions of a device's operations in ps, before anything is rounded."""
    state = ops["op_class"].replace_strict({c.value: s.value for c, s in STATE_OF_CLASS.items()})
    start, end = ops["start_ps"].to_numpy(), ops["end_ps"].to_numpy()

    def part(*states: State) -> tuple[Any, Any]:
        mask = state.is_in([s.value for s in states]).to_numpy()
        return start[mask], end[mask]

    def length(spans: tuple[Any, Any]) -> int:
        first, last = union(*spans)
        return int((last - first).sum())

    comm = union(*part(State.EXPOSED_COMM))
    hidden = int(Cover.of(*part(State.COMPUTE)).within(*comm).sum()) if len(comm[0]) else 0
    return {
        "kernels": int(state.is_in([State.COMPUTE.value, State.EXPOSED_COMM.value]).sum()),
        "ops": len(ops),
        "busy_ps": length((start, end)),
        "compute_ps": length(part(State.COMPUTE)),
        "comm_ps": length(comm),
        "exposed_comm_ps": length(comm) - hidden,
        "first_start_ps": int(start.min()),
        "last_end_ps": int(end.max()),
    }

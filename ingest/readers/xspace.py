"""XSpace (`.xplane.pb`): what jax.profiler, TensorFlow and PyTorch/XLA write, one file a host."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracegap.ingest.errors import TraceError
from tracegap.ingest.files import open_plain
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers import _xspace_tpu as tpu
from tracegap.ingest.readers import _xspace_xla as xla
from tracegap.ingest.readers._xplane import MISSING, Line, Plane, Source, Space, WireError, read_space
from tracegap.ingest.readers._xspace_facts import device_facts, is_unknown, plane_facts, space_facts
from tracegap.ingest.readers._xspace_host import Clock, Host, read_host, to_ns
from tracegap.ingest.readers._xspace_memory import memory_of
from tracegap.ingest.readers._xspace_ops import (
    ASYNC,
    LEAN_COLLECTIVES,
    Batch,
    Context,
    Executions,
    Op,
    Programs,
    number,
    text,
)
from tracegap.ingest.trace import (
    COLLECTIVES,
    COUNTERS,
    STEP_MARKS,
    Device,
    DeviceKind,
    Trace,
    complete,
)
from tracegap.models.ops import OpClass

NAME = "xspace"

_HOST = re.compile(r"^/host:(?!metadata$|CUPTI$|ROCTRACER$|tfstreamz$)")
_HALF = re.compile(r"-(start|done)(\.\d+)?$")
_FAR_PS = 10**18  # eleven days
_LARGE_BYTES = 1 << 24  # larger files come device by device
_STEP_LINES = ("Steps", "Sparse Core Steps")
_UTF8_REPLACEMENT = b"\xef\xbf\xbd"


def sniff(name: str, head: bytes) -> bool:
    """An XSpace begins with a plane, and that with its id or name. The file's name decides on a cut or mangled one."""
    if name.removesuffix(".gz").removesuffix(".zst").endswith((".xplane.pb", ".xspace.pb")):
        return True
    if len(head) < 4 or head[0] != 0x0A:
        return False
    inside = 1 + next((i for i, byte in enumerate(head[1:11], start=1) if byte < 0x80), 10)
    if head[inside : inside + 1] == b"\x08":  # the plane's id
        inside += 1 + next((i for i, byte in enumerate(head[inside + 1 : inside + 11], start=1) if byte < 0x80), 10)
    return head[inside : inside + 1] == b"\x12" and head[inside + 2 : inside + 3] in (b"/", b"T", b"#", b"S", b"H")


def read(path: Path, processes: int = 1) -> Trace:  # noqa: ARG001 (one does)
    """Reads a file. Raises TraceError where not even one plane is whole.

    Devices of a large file come one by one in `further_ops`, those of a small one at once.
    """
    space = read_space(Source.of(path))
    _check(path, space)
    trace = trace_of(space)
    return trace if sum(plane.size for plane in space.planes) > _LARGE_BYTES else complete(trace)


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
    """The tables of a decoded XSpace, wherever it came from; operations come in `further_ops`, a frame a device.

    With each frame, `collectives` has its rows; facts and issues of its planes are added.
    """
    issues = issues if issues is not None else Issues()
    _report(space, issues)
    clock = Clock.of(space.planes)
    programs = Programs.of(space.planes)
    facts = space_facts(space, programs)
    devices: dict[str, _Parts] = {}
    raw: dict[int, Plane] = {}
    for i, plane in enumerate(space.planes):
        found = tpu.tpu_device(plane) or xla.gpu_device(plane)
        if found is None:
            raw[i] = _load(plane, issues)
        else:
            kind: DeviceKind = "tpu" if found[0].startswith("TPU") else "gpu"
            devices.setdefault(found[0], _Parts(_device(plane, *found, kind))).planes.append(i)
    planes = {i: _sound(plane, clock, issues) for i, plane in raw.items()}
    hosts = [plane for plane in planes.values() if _HOST.match(plane.name)]
    work = {id(line): mask for plane in hosts for line in plane.lines if (mask := xla.cpu_work(plane, line)).any()}
    host = read_host(hosts, clock, work)
    context = Context(clock=clock, programs=programs, host=host)
    for plane in hosts:
        for mine in xla.cpu_executions(plane, work, context):
            device = Device(device_id=mine.device_id, kind="cpu", ordinal=mine.ordinal)
            devices.setdefault(mine.device_id, _Parts(device)).batches += mine.batches
    for i, plane in raw.items():
        _note_plane(facts, i, plane, context)
    elsewhere = [_samples(plane, None, clock) for plane in planes.values()]
    marks, step_of_group = _steps([space.planes[i] for parts in devices.values() for i in parts.planes], clock, host)
    trace = Trace(
        format=NAME,
        framework=_framework(space.planes, hosts, programs),
        origin_unix_ns=clock.origin_unix_ns,
        host=next(iter(space.hostnames), None),
        devices=[parts.device for parts in devices.values()],
        further_host_events=iter([host.events] if len(host.events) else []),
        step_marks=marks,
        counters=pl.concat([pl.DataFrame(schema=COUNTERS), *elsewhere]),
        memory=memory_of(hosts, clock),
        config=_config(space.planes),
        facts=facts,
        issues=issues,
    )
    trace.further_ops = _frames(trace, space, devices, context, step_of_group)
    return trace


@dataclass(slots=True)
class _Parts:
    """A device, and where its operations are."""

    device: Device
    planes: list[int] = field(default_factory=list)
    """Planes still to be read, by their place in the file."""
    batches: list[Batch] = field(default_factory=list)
    """What is read already."""


def _frames(
    trace: Trace, space: Space, devices: dict[str, _Parts], context: Context, step_of_group: dict[int, int]
) -> Iterator[pl.DataFrame]:
    """Operations of each device in turn. Nothing of a device is held here when the next one is read."""
    first = 0
    while devices:
        parts = devices.pop(next(iter(devices)))
        rows = _read_device(trace, space, parts, context)
        del parts
        if rows.batches:
            size = sum(len(batch.op) for batch in rows.batches)
            _note_halves(rows, trace.issues)
            trace.collectives = _collectives(rows, first)
            yield rows.frame(first, step_of_group)
            first += size


def _read_device(trace: Trace, space: Space, parts: _Parts, context: Context) -> Executions:
    """What a device ran; notes facts and issues of its planes."""
    batches = [batch for batch in parts.batches if len(batch.op)]
    for i in parts.planes:
        batches += _read_plane(trace, i, space.planes[i], parts.device.device_id, context)
    if batches:
        trace.facts["devices"][parts.device.device_id] = device_facts(batches)
    return Executions(device_id=parts.device.device_id, ordinal=parts.device.ordinal or 0, batches=batches)


def _read_plane(trace: Trace, i: int, plane: Plane, device_id: str, context: Context) -> list[Batch]:
    """What a device ran according to plane `i`; the plane's lines are gone afterwards."""
    plane = _load(plane, trace.issues)
    _note_plane(trace.facts, i, plane, context)
    plane = _sound(plane, context.clock, trace.issues)
    trace.counters = pl.concat([trace.counters, _samples(plane, device_id, context.clock)])
    return (tpu.tpu_executions if tpu.tpu_device(plane) else xla.gpu_executions)(plane, context)


def _samples(plane: Plane, device_id: str | None, clock: Clock) -> pl.DataFrame:
    """Samples of the counters of a plane that have a value."""
    frames = [pl.DataFrame(schema=COUNTERS)]
    for line in plane.lines:
        if line.values is None:
            continue
        names = [plane.kinds[key].name if key in plane.kinds else f"#{key}" for key in line.kind.tolist()]
        columns = {"name": names, "ts_ns": to_ns(clock.starts_ps(line)), "value": line.values}
        sampled = pl.DataFrame(columns).filter(pl.col("value").is_not_nan())
        frames.append(sampled.select(pl.lit(device_id, dtype=pl.String).alias("device_id"), "name", "ts_ns", "value"))
    return pl.concat(frames)


def _note_halves(rows: Executions, issues: Issues) -> None:
    for batch in rows.batches:
        if batch.stream == ASYNC:
            continue
        half = np.array([_HALF.search(op.name) is not None for op in batch.ops])
        at = np.flatnonzero(half[batch.op])
        issues.add(
            "async_unpaired",
            "halves of asynchronous operations whose other half is not in the trace: each stands for itself",
            count=len(at),
            where=batch.ops[int(batch.op[at[0]])].name if len(at) else "",
        )


def _load(plane: Plane, issues: Issues) -> Plane:
    """The plane with its lines; without any where they are damaged."""
    try:
        plane = plane.whole()
    except WireError as error:
        issues.add(
            error.code,
            f"{error.what}: the lines of plane {plane.name} are not read",
            where=f"byte {error.byte}",
            severity="data_loss",
        )
        return replace(plane, load=None, unread=[])
    for line in plane.lines:
        issues.add(
            "aggregated_events",
            "records with a number of occurrences in place of a start are left out: they have no place in time",
            where=f"{plane.name} {line.name}",
            count=line.aggregated,
        )
        if is_unknown(plane, line):
            message = "lines of device planes whose meaning is not known are left out"
            issues.add("unknown_line", message, where=f"{plane.name} {line.name}")
    return plane


def _note_plane(facts: dict[str, Any], i: int, plane: Plane, context: Context) -> None:
    facts["planes"][i] = plane_facts(plane, context.programs, context.host)
    facts["aggregated_records"] += sum(line.aggregated for line in plane.lines)


def _report(space: Space, issues: Issues) -> None:
    """What the file lost or says of itself."""
    if space.damage is not None:
        issues.add(
            space.damage.code,
            f"{space.damage.what}; the {len(space.planes)} planes before are whole, the rest of the file is not read",
            where=f"byte {space.damage.byte}",
            severity="data_loss",
        )
    for message in space.errors:
        issues.add("profiler_error", f"the profiler reported: {message}", severity="data_loss")
    for message in space.warnings:
        issues.add("profiler_warning", f"the profiler warned: {message}")


def _sound(plane: Plane, clock: Clock, issues: Issues) -> Plane:
    """The plane without events that cannot be: of negative length, or further from the origin than a profile lasts."""
    lines = []
    for line in plane.lines:
        negative = line.duration_ps < 0
        far = (
            (line.offset_ps > _FAR_PS)
            | (line.offset_ps < -_FAR_PS)
            | (line.duration_ps > _FAR_PS)
            | (abs(clock.shifted_ns(line)) > _FAR_PS // 1000)
        )
        where = f"{plane.name} {line.name}"
        issues.add(
            "negative_duration",
            "events of negative length",
            where=where,
            count=int(negative.sum()),
            severity="data_loss",
        )
        issues.add(
            "bad_time",
            "events at impossible times",
            where=where,
            count=int((far & ~negative).sum()),
            severity="data_loss",
        )
        lines.append(line.where(~(far | negative)) if (far | negative).any() else line)
    return replace(plane, lines=lines)


_PROPERTIES: dict[str, tuple[str, int]] = {
    "memory_size": ("memory_bytes", 1),
    "core_count": ("core_count", 1),
    "clock_rate": ("clock_hz", 1000),
    "memory_bandwidth": ("memory_bytes_per_s", 1),
    "has_megacore": ("has_megacore", 1),
}
"""Plane statistics: our name and the factor to its unit."""


def _device(plane: Plane, device_id: str, ordinal: int, kind: DeviceKind) -> Device:
    stats = plane.stats
    properties: dict[str, Any] = {
        ours: value * factor
        for name, (ours, factor) in _PROPERTIES.items()
        if (value := number(stats.get(name))) is not None
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
    stated = {
        ours: float(peak) * unit
        for ours, (name, unit) in peaks.items()
        if isinstance(peak := stats.get(name), int | float)
    }
    return Device(
        device_id=device_id,
        kind=kind,
        name=text(stats.get("device_type_string") or stats.get("gpu_device_name")) or None,
        ordinal=ordinal,
        properties=properties,
        stated_peaks={name: value for name, value in stated.items() if value > 0},
    )


def _framework(planes: list[Plane], hosts: list[Plane], programs: Programs) -> str:
    """Who wrote the file: JAX states its version or names its modules `jit_...`."""
    if any("jax_version" in plane.stats for plane in planes):
        return "jax"
    modules = [m.name for m in programs.modules.values()]
    modules += [k.name for p in planes if p.name.startswith("/device:") for k in p.kinds.values()]
    calls = any(k.name.startswith("PjitFunction(") for p in hosts for k in p.kinds.values())
    if calls or any(name.startswith(("jit_", "pjit_", "pmap_")) for name in modules):
        return "jax"
    if any(name.startswith(("SyncTensorsGraph", "IrToHlo")) for name in modules):
        return "pytorch"
    return "tensorflow" if any(n.startswith(("TensorFlow", "tf_")) for p in planes for n in p.line_names()) else "xla"


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
        for line in _step_lines(plane, clock):
            start = clock.starts_ps(line)
            begin, end = to_ns(start), to_ns(start + line.duration_ps)
            group = line.numbers("group_id")
            for i, step in enumerate(_step_numbers(plane, line)):
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


def _step_lines(plane: Plane, clock: Clock) -> list[Line]:
    """Lines of a device plane that mark steps. What is wrong in them is reported when the whole plane is read."""
    lines = plane.sound_lines(lambda name: name in _STEP_LINES)
    return _sound(replace(plane, lines=lines, load=None), clock, Issues()).lines


def _step_numbers(plane: Plane, line: Line) -> Iterator[int]:
    """Number of each step: its statistic, its name, or its place in the line."""
    codes, values = line.codes("step_name")
    stated = line.numbers("step_num").tolist()
    for i, (key, number_of, code) in enumerate(zip(line.kind.tolist(), stated, codes.tolist(), strict=True)):
        if number_of != MISSING:
            yield number_of
            continue
        names = [values[code] if code >= 0 else "", plane.kinds[key].name if key in plane.kinds else ""]
        digits = (re.search(r"(\d+)$", name.strip()) for name in names)
        yield next((int(found[1]) for found in digits if found is not None), i)


def _collectives(rows: Executions, first: int) -> pl.DataFrame:
    """A row for each operation of a device that communicates. Group ids are the same text on all devices of the group."""
    found = [pl.DataFrame(schema={**LEAN_COLLECTIVES, "start": pl.Int64})]
    for batch in rows.batches:
        talks = np.array([op.op_class is OpClass.COLLECTIVE for op in batch.ops])
        at = np.flatnonzero(talks[batch.op])
        described = [
            _communication(op, rows.ordinal) if talk else {} for op, talk in zip(batch.ops, talks, strict=True)
        ]
        columns = {name: [row.get(name) for row in described] for name in COLLECTIVES}
        frame = pl.DataFrame(columns, schema=LEAN_COLLECTIVES)[batch.op[at]]
        found.append(frame.with_columns(op_id=pl.Series(first + at), start=pl.Series(batch.start_ps[at])))
        first += len(batch.op)
    nth = pl.col("op_id").cum_count().over("group_id").cast(pl.Int64) - 1
    return (
        pl.concat(found)
        .sort("start", "op_id")
        .with_columns(seq=pl.when(pl.col("group_id").is_not_null()).then(nth))
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

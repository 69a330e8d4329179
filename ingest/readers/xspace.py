"""XSpace (`.xplane.pb`): what jax.profiler, TensorFlow and PyTorch/XLA write, one file a host."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracegap.ingest.errors import TraceError
from tracegap.ingest.files import open_plain
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers import _xspace_tpu as tpu
from tracegap.ingest.readers import _xspace_xla as xla
from tracegap.ingest.readers._xplane import MISSING, Line, Plane, Space, read_space
from tracegap.ingest.readers._xspace_facts import is_unknown, space_facts
from tracegap.ingest.readers._xspace_host import Clock, Host, read_host, to_ns
from tracegap.ingest.readers._xspace_ops import Context, Executions, Op, Programs, number, text
from tracegap.ingest.trace import COLLECTIVES, OPS, STEP_MARKS, Device, DeviceKind, Trace
from tracegap.models.ops import OpClass

NAME = "xspace"

_HOST = re.compile(r"^/host:(?!metadata$|CUPTI$|ROCTRACER$|tfstreamz$)")
_FAR_PS = 10**18  # eleven days
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
    clock = Clock.of(space.planes)
    planes = [_sound(plane, clock, issues) for plane in space.planes]
    hosts = [plane for plane in planes if _HOST.match(plane.name)]
    work = {id(line): mask for plane in hosts for line in plane.lines if (mask := xla.cpu_work(plane, line)).any()}
    host = read_host(hosts, clock, work)
    context = Context(clock=clock, programs=Programs.of(planes), host=host)
    executions: list[Executions] = []
    devices: dict[str, Device] = {}
    for plane in planes:
        for kind, mine in _on_devices(plane, work, context):
            devices.setdefault(mine.device_id, _device(plane, mine, kind))
            executions.append(mine)
    marks, step_of_group = _steps(planes, clock, host)
    ops = _number(executions, step_of_group)
    trace = Trace(
        format=NAME,
        framework=_framework(planes, context.programs),
        origin_unix_ns=clock.origin_unix_ns,
        host=next(iter(space.hostnames), None),
        devices=list(devices.values()),
        ops=ops.select(*OPS),
        host_events=host.events,
        step_marks=marks,
        collectives=_collectives(ops, executions),
        config=_config(planes),
        facts=space_facts(space, context.programs, executions, host),
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


def _on_devices(plane: Plane, work: xla.Masks, context: Context) -> list[tuple[DeviceKind, Executions]]:
    """What a plane ran, with the kind of device; nothing for planes that are no device."""
    if plane.name.startswith("/device:"):
        found: list[tuple[DeviceKind, Executions | None]] = [
            ("tpu", tpu.tpu_executions(plane, context)),
            ("gpu", xla.gpu_executions(plane, context)),
        ]
        return [(kind, mine) for kind, mine in found if mine is not None]
    return [("cpu", mine) for mine in xla.cpu_executions(plane, work, context)] if _HOST.match(plane.name) else []


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
    for plane in space.planes:
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


def _sound(plane: Plane, clock: Clock, issues: Issues) -> Plane:
    """The plane without events that cannot be: of negative length, or further from the origin than a profile lasts."""
    lines = []
    for line in plane.lines:
        negative = line.duration_ps < 0
        far = (
            (np.abs(line.offset_ps) > _FAR_PS)
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


def _device(plane: Plane, mine: Executions, kind: DeviceKind) -> Device:
    if kind == "cpu":
        return Device(device_id=mine.device_id, kind=kind, ordinal=mine.ordinal)
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
        device_id=mine.device_id,
        kind=kind,
        name=text(stats.get("device_type_string") or stats.get("gpu_device_name")) or None,
        ordinal=mine.ordinal,
        properties=properties,
        stated_peaks={name: value for name, value in stated.items() if value > 0},
    )


def _framework(planes: list[Plane], programs: Programs) -> str:
    """Who wrote the file: JAX states its version or names its modules `jit_...`."""
    if any("jax_version" in plane.stats for plane in planes):
        return "jax"
    names = [m.name for m in programs.modules.values()]
    names += [k.name for p in planes for line in p.lines if line.name == "XLA Modules" for k in _kinds(p, line)]
    names += [
        k.name for p in planes if _HOST.match(p.name) for k in p.kinds.values() if k.name.startswith("PjitFunction(")
    ]
    if any(name.startswith(("jit_", "pjit_", "pmap_", "PjitFunction(")) for name in names):
        return "jax"
    if any(name.startswith(("SyncTensorsGraph", "IrToHlo")) for name in names):
        return "pytorch"
    return (
        "tensorflow" if any(line.name.startswith(("TensorFlow", "tf_")) for p in planes for line in p.lines) else "xla"
    )


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
        match = tpu.PLANE.match(plane.name) or xla.PLANE.match(plane.name)
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


def _number(executions: list[Executions], step_of_group: dict[int, int]) -> pl.DataFrame:
    """All operations, numbered in file order; `part` and `batch` say where they come from."""
    frames = [
        batch.frame(mine.device_id, step_of_group).with_columns(
            part=pl.lit(i, dtype=pl.Int64), batch=pl.lit(j, dtype=pl.Int64)
        )
        for i, mine in enumerate(executions)
        for j, batch in enumerate(mine.batches)
    ]
    if not frames:
        extra = dict.fromkeys(("op", "part", "batch"), pl.Int64)
        return pl.DataFrame(schema={**OPS, **extra})
    return pl.concat(frames).with_columns(op_id=pl.int_range(pl.len(), dtype=pl.Int64))


def _collectives(ops: pl.DataFrame, executions: list[Executions]) -> pl.DataFrame:
    """A row for each operation that communicates. Group ids are the same text on all devices of the group."""
    place = ("part", "batch", "op")
    described = [
        {"part": i, "batch": j, "op": key, **_communication(op, mine.ordinal)}
        for i, mine in enumerate(executions)
        for j, batch in enumerate(mine.batches)
        for key, op in enumerate(batch.ops)
        if op.op_class is OpClass.COLLECTIVE
    ]
    known = pl.DataFrame(described, schema={**dict.fromkeys(place, pl.Int64), **COLLECTIVES}).drop("op_id", "seq")
    mine = ops.filter(pl.col("op_class") == OpClass.COLLECTIVE.value).select("op_id", "device_id", *place, "start_ns")
    nth = pl.col("op_id").cum_count().over("device_id", "group_id").cast(pl.Int64) - 1
    return (
        mine.join(known, on=place, how="left")
        .sort("device_id", "start_ns", "op_id")
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

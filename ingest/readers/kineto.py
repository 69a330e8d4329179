"""Kineto: the Chrome JSON that torch.profiler writes (PyTorch 1.8 to 2.x; CUDA, ROCm, CPU, MTIA and others).

The text is decoded by `_kineto_json`, sorted into columns by `_kineto_events`; `_kineto_host` nests the host's spans,
`_kineto_ops` and `_kineto_comms` make the rows. Here: what the file says of itself, and the pieces put together.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.errors import TraceError
from tracegap.ingest.files import open_plain
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers._kineto_comms import Groups, all_to_all_splits, collectives
from tracegap.ingest.readers._kineto_events import NONE, Collector, Role, integer
from tracegap.ingest.readers._kineto_host import Host, Launches, find_launches
from tracegap.ingest.readers._kineto_json import KinetoText
from tracegap.ingest.readers._kineto_ops import OpRows, cpu_ops, device_ops
from tracegap.ingest.readers._kineto_sound import sound_records
from tracegap.ingest.trace import COUNTERS, HOST_EVENTS, STEP_MARKS, Device, DeviceKind, Trace

NAME = "kineto"

_XLA = re.compile(rb'"highres-ticks"')
_SIGNS = re.compile(
    rb'"(?:traceEvents|schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|ph|nodes)"\s*:'
)
"""Words of Kineto's file; and `nodes` of PyTorch's execution traces, so that `read` can say what such a file is."""

_OTHER_ACCELERATORS = {"mtia_ccp_events", "mtia_workloadd", "hpu_op", "privateuse1_kernel", "privateuse1_device"}
_EARLIEST_UNIX_NS = 10**18  # September 2001: smaller times are no Unix times
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_RANK_IN_NAME = re.compile(r"(?:^|[^A-Za-z])(?:rank|worker)[-_]?(\d+)(?![0-9A-Za-z])", re.IGNORECASE)
_CONFIG = (
    "schemaVersion", "record_shapes", "with_stack", "with_flops", "with_modules", "profile_memory", "cupti_version",
    "cuda_runtime_version", "cuda_driver_version", "roctracer_version", "hip_runtime_version", "hip_driver_version",
)  # fmt: skip
"""Metadata kept as configuration. Jobs add their own keys (names of people, jobs, machines): those are left alone."""


def sniff(name: str, head: bytes) -> bool:
    """Whether a file that begins with `head` may be Kineto's: JSON with events, and not XLA's Chrome JSON."""
    del name
    is_json = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")
    return is_json and not _XLA.search(head) and bool(_SIGNS.search(head))


def read(path: Path) -> Trace:
    """Reads one file.

    Raises `TraceError` with code empty, truncated, malformed, foreign (no Kineto trace) or interleaved (two processes
    wrote into the file) if nothing of it can be used; smaller damage is counted in the trace's issues.
    """
    issues = Issues()
    collected = Collector()
    with open_plain(path) as stream:
        text = KinetoText(stream, str(path), issues)
        for block in text.blocks():
            collected.add(block)
        if collected.nested_document:
            raise text.interleaved("inside the first")
    metadata = text.metadata
    _refuse_foreign(path, metadata)
    columns, open_slices, unmatched_ends = collected.host_columns()
    facts = {"unmatched_begin": len(open_slices), "unmatched_end": unmatched_ends, "open": open_slices[:100]}
    recorded = collected.device_columns()
    device, columns = sound_records(recorded, columns, issues, facts)
    host = Host(list(collected.texts), list(collected.shapes), columns)
    facts |= _facts(collected, text, device, host)
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    groups = Groups(info)
    launches = find_launches(device, host)
    if len(recorded["order"]):
        rows = device_ops(device, host, launches, collected.call_bytes, set(collected.comm_args))
        comms = collectives(
            rows.values,
            op_events=device["order"].tolist(),
            host_rows=launches.call.tolist(),
            host=host,
            comm_args=collected.comm_args,
            groups=groups,
        )
        devices = _devices(rows, facts, metadata, issues)
    else:
        rows, spans = cpu_ops(host)
        comms = collectives(
            rows.values, op_events=[NONE] * rows.n, host_rows=spans, host=host, comm_args={}, groups=groups
        )
        devices = [Device(device_id="cpu", kind="cpu", name=None)] if rows.n else []
    origin, shift = _origin(metadata, device, host)
    facts["ts_offset_ns"] = shift
    facts["gpu_events_without_launch"] = int((launches.call < 0).sum())
    facts["gpu_time_without_launch_ns"] = int(device["dur"][launches.call < 0].sum())
    _count_issues(issues, collected, launches, facts)
    facts["warnings"] = _warnings(metadata, issues)
    rank = _rank(info, path, issues)
    facts["all_to_all"] = all_to_all_splits(rows.values, device["order"].tolist(), collected.comm_args, rank, groups)
    return Trace(
        format=NAME,
        framework="pytorch",
        origin_unix_ns=origin,
        rank=rank,
        world_size=integer(info.get("world_size")),
        host=metadata["host_name"] if isinstance(metadata.get("host_name"), str) else None,
        devices=devices,
        ops=rows.frame(shift),
        host_events=_host_frame(host, shift),
        step_marks=_step_marks(host, shift),
        collectives=comms,
        counters=_counters(collected, shift),
        config=_config(metadata, info),
        facts=facts,
        issues=issues,
    )


def _refuse_foreign(path: Path, metadata: dict[str, Any]) -> None:
    beside = metadata.get("metadata")
    if isinstance(beside, dict) and "highres-ticks" in beside:
        raise TraceError(
            str(path),
            "is the Chrome JSON of the XLA profiler, not Kineto's",
            code="foreign",
            todo="give the .xplane.pb that lies beside it",
        )


def _origin(metadata: dict[str, Any], device: dict[str, NDArray[Any]], host: Host) -> tuple[int | None, int]:
    """Unix time of t = 0, None where the file does not tell, and the file's time of t = 0; both in ns."""
    base = integer(metadata.get("baseTimeNanoseconds"))
    first = int(np.concatenate([device["start"], host.columns["start"]]).min(initial=2**62))
    first = 0 if first == 2**62 else first
    if base is not None:
        return base + first, first
    if first >= _EARLIEST_UNIX_NS:
        return first, first
    return None, 0


def _rank(info: dict[str, Any], path: Path, issues: Issues) -> int | None:
    rank = integer(info.get("rank"))
    if rank is not None and rank >= 0:
        return rank
    if found := _RANK_IN_NAME.search(path.name):
        issues.add("rank_from_name", "the file does not say its rank; taken from its name", where=path.name)
        return int(found[1])
    return None


def _config(metadata: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
    plain = {key: metadata.get(key) for key in _CONFIG}
    config = {f"torch.profiler.{key}": value for key, value in plain.items() if isinstance(value, int | float | str)}
    config |= {f"distributed.{k}": info[k] for k in ("backend", "nccl_version", "pg_count") if k in info}
    listed = info.get("pg_config")
    for group in listed if isinstance(listed, list) else []:
        if isinstance(group, dict):
            for key in ("pg_desc", "pg_size", "backend_config"):
                if isinstance(group.get(key), int | str):
                    config[f"distributed.group.{group.get('pg_name')}.{key}"] = group[key]
    return config


def _warnings(metadata: dict[str, Any], issues: Issues) -> list[str]:
    """What the profiler itself complained of."""
    said: list[str] = []
    for level in ("WARNING", "ERROR"):
        lines = metadata.get(level)
        lines = [lines] if isinstance(lines, str) else lines
        if isinstance(lines, list) and lines:
            issues.add(
                f"profiler_{level.lower()}", f"the profiler wrote: {str(lines[0])[:300]}", where=level, count=len(lines)
            )
            said += [str(line)[:300] for line in lines]
    return said


def _count_issues(issues: Issues, collected: Collector, launches: Launches, facts: dict[str, Any]) -> None:
    issues.add("slice_without_time", "begins and ends without a time, left out", count=collected.slices_without_time)
    issues.add("open_slice", "slices begin (B) and never end (E), left out", count=facts["unmatched_begin"])
    issues.add("unmatched_end", "slices end (E) that never began (B)", count=facts["unmatched_end"])
    issues.add(
        "no_launch",
        "device work whose launch is not in the file: busy time of no step",
        count=facts["gpu_events_without_launch"],
    )
    issues.add("ambiguous_launch", "device work whose correlation id several processes used", count=launches.ambiguous)
    issues.add(
        "start_before_launch", "device work that starts before its launch: clocks disagree", count=launches.before_call
    )


def _facts(collected: Collector, text: KinetoText, device: dict[str, NDArray[Any]], host: Host) -> dict[str, Any]:
    """Counts of the raw file, under the names that `reference` counts of traces use."""
    phases = {key: n for key, n in collected.phases.items() if key != (None, None)}
    by_phase: Counter[str] = Counter()
    by: dict[str, Counter[str]] = {"X": Counter(), "i": Counter(), "flow": Counter()}
    for (ph, cat), n in phases.items():
        by_phase[str(ph)] += n
        if ph in ("s", "f"):
            by["flow"][f"{cat}:{ph}"] += n
        elif ph in by:
            by[ph][str(cat)] += n
    by["X"].pop("None", None)
    role, dur = device["role"], device["dur"]
    facts: dict[str, Any] = {
        "events": text.events - collected.empty,
        "by_phase": dict(sorted(by_phase.items())),
        "by_cat": dict(sorted(by["X"].items())),
        "instants_by_cat": dict(sorted(by["i"].items())),
        "flows": dict(sorted(by["flow"].items())),
        "top_level": "array" if text.bare_array else "object",
        "damaged_events": text.damaged_events,
        "null_fields": text.null_fields,
        "steps_on_gpu_rows": collected.gpu_step_labels,
        "slices": len(host.kind),
    }
    for name, wanted in (("kernel", Role.KERNEL), ("memcpy", Role.COPY), ("memset", Role.MEMSET)):
        facts[f"{name}s"] = int((role == wanted).sum())
        facts[f"{name}_time_ns"] = int(dur[role == wanted].sum())
    ops = host.columns["role"] == Role.OP
    shaped = np.array([bool(key[0]) for key in host.shapes] + [False], np.bool_)
    facts["cpu_ops"] = int(ops.sum())
    facts["cpu_ops_with_input_dims"] = int(shaped[host.columns["shape"][ops]].sum()) if ops.any() else 0
    facts["gpu_device_arg"] = sorted(map(str, collected.device_args))
    facts["gpu_streams"] = len(np.unique(device["stream"][role == Role.KERNEL]))
    on_device = set(device["order"].tolist())
    kernels = [a for order, a in collected.comm_args.items() if order in on_device]
    facts["kernels_with_collective_args"] = dict(Counter(str(a.collective) for a in kernels))
    facts["ts_min_ns"], facts["end_max_ns"] = collected.first_ns, collected.last_end_ns
    for key in ("schemaVersion", "displayTimeUnit", "baseTimeNanoseconds"):
        facts[key] = text.metadata.get(key)
    properties = _properties(text.metadata)
    facts["devices"] = [[p.get("name"), p.get("numSms")] for p in properties]
    steps = np.flatnonzero(host.kind == "step").tolist()
    facts["steps"] = len({host.name(r) for r in steps})
    facts["step_dur_ns"] = {host.name(r): int(host.columns["dur"][r]) for r in steps}
    return facts


def _properties(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    listed = metadata.get("deviceProperties")
    return [p for p in listed if isinstance(p, dict)] if isinstance(listed, list) else []


def _devices(rows: OpRows, facts: dict[str, Any], metadata: dict[str, Any], issues: Issues) -> list[Device]:
    """The devices that did work, with their properties.

    ROCm numbers devices by node, so the number in an event may not be one of `deviceProperties`: then what all listed
    devices have in common is taken, and nothing where they differ.
    """
    properties = _properties(metadata)
    by_id = {str(p.get("id")): p for p in properties}
    kind: DeviceKind = "accelerator" if _OTHER_ACCELERATORS & facts["by_cat"].keys() else "gpu"
    devices = []
    for device_id in sorted(set(rows.values["device_id"])):
        entry = by_id.get(device_id)
        if entry is None and properties:
            first = {k: v for k, v in properties[0].items() if k != "id"}
            entry = {k: v for k, v in first.items() if all(p.get(k) == v for p in properties)}
            issues.add(
                "device_number",
                "an event's device number is not among deviceProperties; what all of those have in common is taken",
                where=f"device {device_id}",
            )
        entry = entry or {}
        known = {
            "memory_bytes": integer(entry.get("totalGlobalMem")),
            "core_count": integer(entry.get("numSms")),
            "compute_capability": f"{entry['computeMajor']}.{entry['computeMinor']}"
            if {"computeMajor", "computeMinor"} <= entry.keys()
            else None,
        }
        devices.append(
            Device(
                device_id=device_id,
                kind=kind,
                name=entry.get("name") or None,
                properties={k: v for k, v in known.items() if v is not None},
            )
        )
    return devices


def _host_frame(host: Host, shift: int) -> pl.DataFrame:
    c = host.columns
    texts = pl.Series([str(t) for t in host.texts], dtype=pl.String)
    parent, corr = host.tree.parent, c["corr"]
    kinds = sorted(set(host.kind.tolist()))
    number = {kind: i for i, kind in enumerate(kinds)}
    kind_ids = np.fromiter((number[k] for k in host.kind.tolist()), np.int32, len(host.kind))
    frame = pl.DataFrame(
        {
            "event_id": c["order"],
            "thread": pl.Series(host.threads, dtype=pl.String).gather(host.thread),
            "kind": pl.Series(kinds, dtype=pl.String).gather(kind_ids),
            "name": texts.gather(c["name"]),
            "start_ns": c["start"] - shift,
            "dur_ns": c["dur"],
            "self_ns": host.tree.self_ns,
            "parent_id": pl.Series(np.where(parent >= 0, c["order"][parent] if len(parent) else parent, -1)),
            "correlation_id": pl.Series(corr),
        }
    )
    return frame.with_columns(
        pl.when(pl.col(x) >= 0).then(pl.col(x)).otherwise(None).alias(x) for x in ("parent_id", "correlation_id")
    ).cast(HOST_EVENTS)  # type: ignore[arg-type]


def _step_marks(host: Host, shift: int) -> pl.DataFrame:
    rows = [
        {
            "step": int(found[1]),
            "start_ns": int(host.columns["start"][row]) - shift,
            "dur_ns": int(host.columns["dur"][row]),
            "source": "profiler_step",
            "thread": host.threads[host.thread[row]],
        }
        for row in np.flatnonzero(host.kind == "step").tolist()
        if (found := _STEP.match(host.name(row)))
    ]
    return pl.DataFrame(rows, schema=STEP_MARKS)


def _counters(collected: Collector, shift: int) -> pl.DataFrame:
    rows = [(device, name, at - shift, value) for device, name, at, value in collected.counters]
    return pl.DataFrame(rows, schema=COUNTERS, orient="row")

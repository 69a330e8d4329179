"""Kineto: the Chrome JSON that torch.profiler writes (PyTorch 1.8 to 2.x; CUDA, ROCm, CPU, MTIA and others).

The text is decoded by `_kineto_json`, sorted into columns by `_kineto_events`; `_kineto_host` nests the host's spans
window by window, `_kineto_side` takes from the windows what is needed, `_kineto_ops` and `_kineto_comms` make the rows.
Here: what the file says of itself, and the pieces put together.
"""

import re
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.errors import TraceError
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers._kineto_columns import NONE, integer
from tracegap.ingest.readers._kineto_comms import Groups, all_to_all_splits, device_collectives, span_collectives
from tracegap.ingest.readers._kineto_events import Collector
from tracegap.ingest.readers._kineto_host import Names
from tracegap.ingest.readers._kineto_json import KinetoText
from tracegap.ingest.readers._kineto_launches import Launches, find_launches
from tracegap.ingest.readers._kineto_ops import cpu_ops, device_ops, texts
from tracegap.ingest.readers._kineto_roles import Role
from tracegap.ingest.readers._kineto_share import collect
from tracegap.ingest.readers._kineto_side import HostSide
from tracegap.ingest.readers._kineto_sound import count_lost_spans, sound_calls, sound_records, zero_is_no_time
from tracegap.ingest.readers._kineto_spool import together
from tracegap.ingest.trace import COUNTERS, MEMORY, STEP_MARKS, Device, DeviceKind, Trace, complete

NAME = "kineto"

LARGE_ROWS = 1 << 15
"""Where there are more operations, tables are made in parts, when they are asked for."""

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


def read(path: Path, processes: int = 1) -> Trace:
    """Reads one file, a large one with so many processes.

    Raises `TraceError` with code empty, truncated, malformed, foreign (no Kineto trace) or interleaved (two processes
    wrote into the file) if nothing of it can be used; smaller damage is counted in the trace's issues.
    """
    text, collected = collect(path, processes)
    if collected.nested_document:
        raise text.interleaved("inside the first")
    issues = text.issues
    collected.finish()
    metadata = text.metadata
    _refuse_foreign(path, metadata)
    facts: dict[str, Any] = {
        "unmatched_begin": len(collected.open_slices),
        "unmatched_end": collected.unmatched_ends,
        "open": collected.open_slices[:100],
    }
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    recorded = collected.device_columns()
    has_device = len(recorded["order"]) > 0
    zero_is_none = zero_is_no_time(recorded, collected.first_positive_ns)
    device = sound_records(recorded, issues, facts, zero_is_none=zero_is_none)
    del recorded
    names = Names(collected)
    launches = find_launches(device, sound_calls(collected.call_columns(), zero_is_none), names.processes)
    host = HostSide(collected, names, device, launches, on_cpu=not has_device, zero_is_none=zero_is_none)
    origin, shift = _origin(metadata, device, collected.first_host_ns(zero_is_none=zero_is_none))
    facts["ts_offset_ns"] = shift
    facts["gpu_events_without_launch"] = int((launches.call < 0).sum())
    facts["gpu_time_without_launch_ns"] = int(device["dur"][launches.call < 0].sum())
    _count_issues(issues, collected, launches, facts)
    facts["warnings"] = _warnings(metadata, issues)
    samples, words = collected.samples(), list(collected.texts)
    trace = Trace(
        format=NAME,
        framework="pytorch",
        origin_unix_ns=origin,
        rank=_rank(info, path, issues),
        world_size=integer(info.get("world_size")),
        host=metadata["host_name"] if isinstance(metadata.get("host_name"), str) else None,
        counters=_counters(samples, words, shift),
        memory=_memory(samples, words, names, shift),
        config=_config(metadata, info),
        facts=facts,
        issues=issues,
    )
    trace.further_host_events = _host_events(trace, host, text, shift)
    trace.further_ops = _operations(trace, host, metadata, shift)
    # What run a trace belongs to may depend on its collectives, where the file does not know the number of ranks.
    return trace if len(device["order"]) > LARGE_ROWS and trace.world_size is not None else complete(trace)


def _host_events(trace: Trace, host: HostSide, text: KinetoText, shift: int) -> Iterator[pl.DataFrame]:
    """The table `host_events` in parts; behind the last one, what the host side tells of the file."""
    for spans in together(host.nested()):
        yield _host_frame(spans, host.names, shift)
    count_lost_spans(host.lost, trace.issues)
    trace.facts |= _facts(text, host)
    trace.step_marks = _step_marks(host, shift)


def _operations(trace: Trace, host: HostSide, metadata: dict[str, Any], shift: int) -> Iterator[pl.DataFrame]:
    """The table `ops` of each device, once the host side is gone through; with each, its collectives."""
    facts, issues, collected = trace.facts, trace.issues, host.collected
    info = metadata.get("distributedInfo")
    groups = Groups(info if isinstance(info, dict) else {})
    facts["all_to_all"] = []
    if not host.on_cpu:
        of_device = device_ops(
            host.device, list(collected.texts), host.names, host.launches, host.around,
            call_bytes=collected.call_bytes, comm=collected.comm_args,
        )  # fmt: skip
        ops = of_device.frame(shift)
        comms = device_collectives(of_device, collected.comm_args, groups, trace.rank)
        facts["all_to_all"] = all_to_all_splits(of_device, collected.comm_args, trace.rank, groups)
        trace.devices = _devices(ops["device_id"].unique().to_list(), facts, metadata, issues)
        del of_device
    elif _device_work_is_lost(metadata, host.names, issues):
        trace.devices = _devices([str(p.get("id")) for p in _properties(metadata)], facts, metadata, issues)
        return
    else:
        on_cpu = cpu_ops(host.cpu_work)
        ops, comms = on_cpu.frame(shift), span_collectives(on_cpu, host.names, groups)
        trace.devices = [Device(device_id="cpu", kind="cpu", name=None)] if len(ops) else []
    parts = deque([ops] if ops["device_id"].n_unique() < 2 else ops.partition_by("device_id", maintain_order=True))
    del ops, host, collected  # what is handed on is not held here, nor what it was made of
    while parts:
        trace.collectives = comms.join(parts[0].select("op_id"), on="op_id", how="semi")
        yield parts.popleft()


def _device_work_is_lost(metadata: dict[str, Any], names: Names, issues: Issues) -> bool:
    """Whether a file without device work may have had some: what its host did is then no work of a CPU.

    Kineto writes device events last. A damaged file with launch calls or GPUs has lost them; one that breaks off without
    saying that there is no GPU (an empty deviceProperties) may have.
    """
    of_gpu = "launch" in names.kinds or bool(_properties(metadata))
    unknown = "truncated" in issues.by_code and "deviceProperties" not in metadata
    lost = issues.lost_data and (of_gpu or unknown)
    issues.add(
        "no_device_work", "the file breaks off before the work of its devices: no device is accounted", count=int(lost)
    )
    return lost


def _refuse_foreign(path: Path, metadata: dict[str, Any]) -> None:
    beside = metadata.get("metadata")
    if isinstance(beside, dict) and "highres-ticks" in beside:
        raise TraceError(
            str(path),
            "is the Chrome JSON of the XLA profiler, not Kineto's",
            code="foreign",
            todo="give the .xplane.pb that lies beside it",
        )


def _origin(metadata: dict[str, Any], device: dict[str, NDArray[Any]], first_host_ns: int) -> tuple[int | None, int]:
    """Unix time of t = 0, None where the file does not tell, and the file's time of t = 0; both in ns."""
    base = integer(metadata.get("baseTimeNanoseconds"))
    first = int(device["start"].min(initial=first_host_ns))
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


def _facts(text: KinetoText, host: HostSide) -> dict[str, Any]:
    """Counts of the raw file, under the names that `reference` counts of traces use."""
    collected, device, names = host.collected, host.device, host.names
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
        "slices": host.slices,
    }
    for name, wanted in (("kernel", Role.KERNEL), ("memcpy", Role.COPY), ("memset", Role.MEMSET)):
        facts[f"{name}s"] = int((role == wanted).sum())
        facts[f"{name}_time_ns"] = int(dur[role == wanted].sum())
    facts["cpu_ops"], facts["cpu_ops_with_input_dims"] = host.ops, host.ops_with_dims
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
    facts["step_dur_ns"] = {names.names[span["label"]]: int(span["dur"]) for span in host.steps}
    facts["steps"] = len(facts["step_dur_ns"])
    return facts


def _properties(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    listed = metadata.get("deviceProperties")
    return [p for p in listed if isinstance(p, dict)] if isinstance(listed, list) else []


def _devices(device_ids: list[str], facts: dict[str, Any], metadata: dict[str, Any], issues: Issues) -> list[Device]:
    """Devices with their properties.

    ROCm numbers devices by node, so the number in an event may not be one of `deviceProperties`: then what all listed
    devices have in common is taken, and nothing where they differ.
    """
    properties = _properties(metadata)
    by_id = {str(p.get("id")): p for p in properties}
    kind: DeviceKind = "accelerator" if _OTHER_ACCELERATORS & facts["by_cat"].keys() else "gpu"
    devices = []
    for device_id in sorted(device_ids):
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


def _host_frame(spans: NDArray[Any], names: Names, shift: int) -> pl.DataFrame:
    """The table `host_events` of some spans."""
    frame = pl.DataFrame(
        {
            "event_id": spans["order"],
            "thread": texts(names.threads, spans["thread"]),
            "kind": texts(names.kinds, spans["label"]),
            "name": texts(names.names, spans["label"]),
            "start_ns": spans["start"] - shift,
            "dur_ns": spans["dur"],
            "self_ns": spans["own"],
            "parent_id": spans["parent"],
            "correlation_id": spans["corr"],
        }
    )
    return frame.with_columns(
        pl.when(pl.col(x) >= 0).then(pl.col(x)).otherwise(None).alias(x) for x in ("parent_id", "correlation_id")
    )


def _step_marks(host: HostSide, shift: int) -> pl.DataFrame:
    names = host.names
    rows = [
        {
            "step": int(found[1]),
            "start_ns": int(span["start"]) - shift,
            "dur_ns": int(span["dur"]),
            "source": "profiler_step",
            "thread": names.threads[span["thread"]],
        }
        for span in host.steps
        if (found := _STEP.match(names.names[span["label"]]))
    ]
    return pl.DataFrame(rows, schema=STEP_MARKS)


def _counters(samples: dict[str, NDArray[Any]], words: list[str], shift: int) -> pl.DataFrame:
    """Memory of each device, two values a sample."""
    values = np.stack([samples["allocated"], samples["reserved"]], axis=1).ravel()
    told = values >= 0
    n = len(samples["at"])
    return pl.DataFrame(
        {
            "device_id": texts(words, np.repeat(samples["device"], 2)[told]),
            "name": texts(["allocated_bytes", "reserved_bytes"], np.tile([0, 1], n)[told]),
            "ts_ns": np.repeat(samples["at"], 2)[told] - shift,
            "value": values[told].astype(np.float64),
        }
    ).cast(COUNTERS)  # type: ignore[arg-type]


def _memory(samples: dict[str, NDArray[Any]], words: list[str], names: Names, shift: int) -> pl.DataFrame:
    """What PyTorch's allocators handed out and took back."""
    told = {name: pl.Series(samples[name]) for name in ("address", "allocated", "reserved", "bytes")}
    nothing = {"address": NONE, "allocated": NONE, "reserved": NONE, "bytes": 0}
    known = {name: column.set(column == nothing[name], None) for name, column in told.items()}
    thread = names.thread_of[samples["thread"]] if len(names.thread_of) else samples["thread"]
    return pl.DataFrame(
        {
            "device_id": texts(words, samples["device"]),
            "thread": texts(names.threads, thread),
            "ts_ns": samples["at"] - shift,
            "address": known["address"],
            "bytes": known["bytes"],
            "allocated_bytes": known["allocated"],
            "reserved_bytes": known["reserved"],
            "peak_bytes": pl.Series([None] * len(thread), dtype=pl.Int64),
            "name": pl.Series([None] * len(thread), dtype=pl.String),
            "source": pl.Series(["torch_allocator"] * len(thread), dtype=pl.String),
        }
    ).cast(MEMORY)  # type: ignore[arg-type]

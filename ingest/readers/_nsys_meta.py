"""What an export says of the devices, the capture and itself. Nothing private leaves the file: what may is listed."""

import json
import re
from dataclasses import replace
from typing import Any

import polars as pl

from tracegap.ingest.issues import Issues, Severity
from tracegap.ingest.readers._nsys_export import Export
from tracegap.ingest.trace import Device

EXPORT_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""Since schema 3.13, and before."""
_SYSTEM = {
    "NvDriverVersion": "nsys.driver_version",
    "CudaDriverVersion": "nsys.cuda_driver_version",
    "CpuCores": "nsys.cpu_cores",
    "CpuDescription": "nsys.cpu",
    "OsDescription": "nsys.os",
}
_CAPTURE = re.compile(
    r"^(CAPTURE_EVENT_TYPE|CUDA_\w+|CUDA_GRAPH_TRACE_OPTIONS:\w+|NVTX_OPTIONS:\w+|OS_RUNTIME_OPTIONS:\w+|"
    r"LINUX_PERF_OPTIONS:\w+|COLLECT_\w+|START_TRIGGER|STOP_TRIGGER|RUN_DURATION_MS|RATE_HZ)$"
)
"""Options of the capture. Commands, arguments, environments, users, folders and hosts are not among them."""
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_WORLD_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
"""Of one launcher at the same place; read to number the ranks, never kept."""


_NODE_BITS = 48
"""Of a global id: below them stand the process and the thread."""
_SEVERITIES = {2: "nsys_warning", 3: "nsys_error"}
_LOSS = re.compile(r"(?i)\b(dropped|lost|not all|incomplete|overflow(ed)?|discarded)\b")
"""Words with which the profiler says that events are missing."""


def pairs(db: Export, table: str) -> list[tuple[str, str]]:
    """Rows of a table of names and values."""
    rows = db.read(table, {"name": pl.String, "value": pl.String})
    return [(n, v) for n, v in rows.iter_rows() if n is not None and v is not None]


def export_of(db: Export) -> tuple[str | None, dict[str, str]]:
    """Name of the table that describes the export, and its rows."""
    table = next((t for t in EXPORT_TABLES if t in db.columns), None)
    return table, dict(pairs(db, table)) if table else {}


def config_of(db: Export) -> dict[str, Any]:
    """Versions and options of the capture, flat; an option that is given more than once becomes a sorted list."""
    _, export = export_of(db)
    config: dict[str, Any] = {
        key: export[name]
        for name, key in (
            ("EXPORT_PRODUCT_VERSION", "nsys.export_version"),
            ("EXPORT_SCHEMA_VERSION", "nsys.schema_version"),
        )
        if name in export
    }
    config |= {_SYSTEM[n]: v for n, v in pairs(db, "TARGET_INFO_SYSTEM_ENV") if n in _SYSTEM and v}
    options: dict[str, list[str]] = {}
    for name, value in pairs(db, "META_DATA_CAPTURE"):
        if _CAPTURE.match(name):
            options.setdefault("nsys.capture." + name.lower().replace(":", "."), []).append(value)
    return config | {k: v[0] if len(v) == 1 else sorted(v) for k, v in options.items()}


def origin_unix_ns(db: Export) -> int | None:
    """Unix time of the session's start."""
    starts = db.read("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": pl.Int64})["utcEpochNs"].drop_nulls()
    return int(starts[0]) if len(starts) else None


def host_of(db: Export) -> str | None:
    """Name of the machine, for telling the hosts of a job apart."""
    return next((v for n, v in pairs(db, "TARGET_INFO_SYSTEM_ENV") if n == "Hostname" and v), None)


def rank_of(db: Export) -> tuple[int | None, int | None]:
    """Rank and world size where the captured command itself was started as one rank by a launcher."""
    variables: dict[str, str] = {}
    for name, value in pairs(db, "META_DATA_CAPTURE"):
        if name.endswith(":ENVIRONMENT_VARIABLE"):
            key, _, text = value.partition("=")
            variables[key] = text.strip('"')
    for rank, world in zip(_RANK_VARIABLES, _WORLD_VARIABLES, strict=True):
        if variables.get(rank, "").isdecimal() and variables.get(world, "").isdecimal():
            return int(variables[rank]), int(variables[world])
    return None, None


def diagnostics(db: Export, issues: Issues) -> None:
    """Warnings and errors of the profiler itself become an issue a severity; those that tell of lost events, one more."""
    columns = {"severity": pl.Int64, "text": pl.String}
    rows = db.read("DIAGNOSTIC_EVENT", columns).filter(pl.col("severity").is_in(list(_SEVERITIES)))
    counts = rows.group_by("severity", "text", maintain_order=True).len()
    said: dict[str, dict[str, int]] = {}
    for severity, text, count in counts.iter_rows():
        code = "nsys_lost" if _LOSS.search(text or "") else _SEVERITIES[severity]
        told = said.setdefault(code, {})
        message = " ".join((text or "(without a text)").split())
        told[message] = told.get(message, 0) + count
    for code, texts in said.items():
        message = "; ".join(t if n == 1 else f"{t} ({n} times)" for t, n in texts.items())
        loss: Severity = "data_loss" if code == "nsys_lost" else "info"
        issues.add(code, message, where="DIAGNOSTIC_EVENT", count=sum(texts.values()), severity=loss)


def counters_of(db: Export, issues: Issues) -> pl.DataFrame:
    """Sampled GPU metrics; the low byte of a metric's type is the number of its GPU."""
    keys = {"typeId": pl.Int64, "metricId": pl.Int64}
    samples = db.read("GPU_METRICS", keys | {"timestamp": pl.Int64, "value": pl.Float64})
    names = db.read("TARGET_INFO_GPU_METRICS", keys | {"metricName": pl.String}).unique(list(keys), keep="first")
    named = samples.join(names, on=list(keys), maintain_order="left").rename({"metricName": "name"})
    wanted = ["typeId", "name", "timestamp", "value"]
    return pl.concat([named.select(wanted), _generic_metrics(db, issues).select(wanted)]).select(
        (pl.col("typeId") % 256).cast(pl.String).alias("device_id"), "name", pl.col("timestamp").alias("ts_ns"), "value"
    )


MEMORY_TABLE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_ON_DEVICE = (2, 3, 4, 5, 6)
"""memKind of device, array, managed, and static variables; pageable and pinned memory is the host's."""


def memory_of(db: Export, devices: dict[tuple[int | None, int], Device]) -> pl.DataFrame:
    """Allocations of device memory through CUDA (`nsys --cuda-memory-usage=true`), as MEMORY; totals are not told."""
    columns = ("start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType")
    events = db.read(MEMORY_TABLE, dict.fromkeys(columns, pl.Int64))
    events = events.filter(pl.col("memKind").is_in(_ON_DEVICE), pl.col("bytes").is_not_null()).sort(
        "start", maintain_order=True
    )
    known = {key: device.device_id for key, device in devices.items()}
    owners = [
        known.get((None if pid is None else pid >> 24, number)) or known.get((None, number)) or str(number)
        for pid, number in events.select("globalPid", "deviceId").iter_rows()
    ]
    return events.select(
        pl.Series("device_id", owners, dtype=pl.String),
        pl.lit(None, pl.String).alias("thread"),
        pl.col("start").alias("ts_ns"),
        "address",
        pl.when(pl.col("memoryOperationType") == 1).then(-pl.col("bytes")).otherwise("bytes").alias("bytes"),
        *(pl.lit(None, pl.Int64).alias(c) for c in ("allocated_bytes", "reserved_bytes", "peak_bytes")),
        pl.lit(None, pl.String).alias("name"),
        pl.lit("cuda_calls").alias("source"),
    )


def _generic_metrics(db: Export, issues: Issues) -> pl.DataFrame:
    """GPU metrics as exports of 2021 and 2022 have them: a row an instant, its values by name in JSON text.

    Other events of that table (of ETW, ftrace and the like) hold texts too: those are no counters.
    """
    columns = {"typeId": pl.Int64, "timestamp": pl.Int64, "data": pl.String}
    rows, broken = [], 0
    for kind, at, text in db.read("GENERIC_EVENTS", columns).drop_nulls().iter_rows():
        try:
            values = {name: float(value) for name, value in json.loads(text).items()}
        except json.JSONDecodeError:
            broken += 1
        except (ValueError, TypeError, AttributeError):
            continue
        else:
            rows += [(kind, name, at, value) for name, value in values.items()]
    issues.add(
        "malformed_metric", "sampled metrics that are no JSON were left out", where="GENERIC_EVENTS", count=broken,
        severity="data_loss",
    )  # fmt: skip
    schema = {"typeId": pl.Int64, "name": pl.String, "timestamp": pl.Int64, "value": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def gpus_of(db: Export) -> list[dict[str, Any]]:
    """GPUs of the nodes, by node and id; adapters without multiprocessors are no CUDA devices."""
    numbers = (
        "vmId", "id", "deviceId", "smCount", "memoryBandwidth", "totalMemory", "clockRate", "computeMajor",
        "computeMinor", "cuDevice",
    )  # fmt: skip
    rows = db.read("TARGET_INFO_GPU", dict.fromkeys(numbers, pl.Int64) | {"name": pl.String}).to_dicts()
    several = len({row["vmId"] for row in rows}) > 1
    for row in rows:
        device, node = row.pop("deviceId"), row.pop("vmId")
        row["id"] = device if row["id"] is None else row["id"]
        if several and node is not None:
            row["node"] = node >> _NODE_BITS
    return sorted((r for r in rows if r["id"] is not None), key=lambda r: (r.get("node", 0), int(r["id"])))


def devices_of(db: Export, used: list[tuple[int | None, int]], issues: Issues) -> dict[tuple[int | None, int], Device]:
    """The device behind each (process, CUDA device number) that has work.

    A device is named by its CUDA number. Where processes see different GPUs under one number (CUDA_VISIBLE_DEVICES) and
    the file has the mapping (since 2025), devices are named by the GPU's number in the node. Exports that were merged
    from several nodes have the node before the number: the top bits of a process's id tell it.
    """
    every = gpus_of(db)
    mapping = {
        (pid, cuda): gpu
        for gpu, cuda, pid in db.read(
            "TARGET_INFO_CUDA_DEVICE", dict.fromkeys(("gpuId", "cudaId", "pid"), pl.Int64)
        ).iter_rows()
    }
    nodes = sorted({_node(process) for process, _ in used})
    devices: dict[tuple[int | None, int], Device] = {}
    for node in nodes:
        gpus = {g["id"]: g for g in every if g.get("node", node) == node}
        mine = [key for key in used if _node(key[0]) == node]
        named = _devices_of_node(gpus, mapping, mine, issues)
        devices |= {
            key: replace(device, device_id=f"{node:x}:{device.device_id}") if len(nodes) > 1 else device
            for key, device in named.items()
        }
    return devices


def _node(process: int | None) -> int:
    """Hardware and virtual machine of a process: what stands above its number."""
    return 0 if process is None else process >> (_NODE_BITS - 24)


def _devices_of_node(
    gpus: dict[int, dict[str, Any]],
    mapping: dict[tuple[int, int], int],
    used: list[tuple[int | None, int]],
    issues: Issues,
) -> dict[tuple[int | None, int], Device]:
    gpu_of = {key: mapping.get((key[0] & 0xFFFFFF, key[1])) if key[0] is not None else None for key in used}
    seen: dict[int, set[int | None]] = {}
    for key in used:
        seen.setdefault(key[1], set()).add(gpu_of[key])
    hidden = any(len(found - {None}) > 1 for found in seen.values())
    shared = {n for n in seen if sum(key[1] == n for key in used) > 1 and seen[n] == {None}}
    issues.add(
        "shared_device_number",
        "several processes use a device of the same number, and the file does not say whether it is the same GPU: "
        "they are taken as one; with CUDA_VISIBLE_DEVICES set, export with Nsight Systems 2025.3 or newer",
        where="device " + ", ".join(map(str, sorted(shared))),
        count=len(shared),
    )
    devices = {}
    for key in used:
        gpu = gpu_of[key]
        name = str(gpu if hidden and gpu is not None else key[1])
        devices[key] = _device(name, _known_gpu(gpus, gpu, key[1], issues))
    return devices


def _known_gpu(gpus: dict[int, dict[str, Any]], gpu: int | None, number: int, issues: Issues) -> dict[str, Any] | None:
    """The GPU's row: by the file's mapping; else any where all are alike; else the one of the same number."""
    if gpu is not None:
        return gpus.get(gpu)
    cuda = {i: g for i, g in gpus.items() if g["smCount"] != 0}
    if len({(g["name"], g["totalMemory"], g["smCount"]) for g in cuda.values()}) == 1:
        return next(iter(cuda.values()))
    if cuda:
        issues.add(
            "gpu_by_number",
            "the node's GPUs differ and the file does not say which CUDA device is which: taken by number",
            where=f"device {number}",
        )
    return cuda.get(number)


def _device(name: str, gpu: dict[str, Any] | None) -> Device:
    if gpu is None:
        return Device(device_id=name, kind="gpu")
    facts = {
        "memory_bytes": "totalMemory",
        "core_count": "smCount",
        "clock_hz": "clockRate",
        "memory_bytes_per_s": "memoryBandwidth",
    }
    properties: dict[str, Any] = {ours: gpu[theirs] for ours, theirs in facts.items() if gpu[theirs]}
    if gpu["computeMajor"]:
        properties["compute_capability"] = f"{gpu['computeMajor']}.{gpu['computeMinor'] or 0}"
    return Device(device_id=name, kind="gpu", name=gpu["name"], properties=properties)

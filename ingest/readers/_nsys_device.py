"""What ran on the devices: kernels, copies, fills and whole graphs, joined to the calls that launched them."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracegap.ingest.classify import aten
from tracegap.ingest.classify.kernel import is_collective, kernel_class, kernel_dtype
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers._nsys_db import Database
from tracegap.ingest.readers._nsys_nccl import Calls
from tracegap.ingest.readers._nsys_nvtx import Enclosures, sizes_of
from tracegap.ingest.trace import COLLECTIVES, OPS, shapes_json
from tracegap.models.ops import OpClass

COPY_KINDS = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "HtoD UVM", "DtoH UVM", "DtoD UVM")
"""By CUPTI's copyKind."""

KERNEL, MEMCPY, MEMSET, GRAPH = (f"CUPTI_ACTIVITY_KIND_{k}" for k in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"))
_COMMON = dict.fromkeys(
    ("start", "end", "deviceId", "streamId", "correlationId", "globalPid"), pl.Int64
)  # fmt: skip
_OWN = {
    KERNEL: ("demangledName", "shortName", "graphNodeId"),
    MEMCPY: ("bytes", "copyKind"),
    MEMSET: ("bytes",),
    GRAPH: ("graphId", "graphExecId"),
}
"""Tables of device work in the order in which operations are numbered, and the columns of their own."""


@dataclass(slots=True)
class DeviceWork:
    """Device records with sound times."""

    frame: pl.DataFrame
    """Columns of _COMMON and _OWN, table, process; a row an operation."""
    rows: dict[str, int]
    """Rows by table, unsound ones included."""


def read_device_work(db: Database, issues: Issues) -> DeviceWork:
    """All records of device work; those with lost or reversed times are set aside and counted."""
    every = {c: pl.Int64 for own in _OWN.values() for c in own}
    parts = []
    for table, own in _OWN.items():
        part = db.read(table, _COMMON | dict.fromkeys(own, pl.Int64))
        missing = [pl.lit(None, dtype=t).alias(c) for c, t in every.items() if c not in own]
        part = part.with_columns(pl.lit(table).alias("table"), *missing).with_row_index("source_row")
        parts.append(part.select("table", "source_row", *_COMMON, *every))
    frame = pl.concat(parts).with_columns((pl.col("globalPid") // 0x1000000).alias("process"))
    rows = {t: len(p) for t, p in zip(_OWN, parts, strict=True)}
    lost = pl.col("start").is_null() | pl.col("end").is_null() | ((pl.col("start") == 0) & (pl.col("end") == 0))
    for code, bad, message in (
        ("lost_timestamp", lost, "device records without times were set aside: the profiler lost them"),
        ("negative_duration", pl.col("end") < pl.col("start"), "records that end before they start were set aside"),
    ):
        found = frame.filter(bad)
        where = f"{found['table'][0]} row {found['source_row'][0]}" if len(found) else ""
        issues.add(code, message, where=where, count=len(found), severity="data_loss")
    return DeviceWork(frame.filter(~lost & (pl.col("end") >= pl.col("start"))), rows)


def with_launches(frame: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds launch_ns, launch_thread and call_row of the host call with the same (process, correlation id).

    `calls` has row, process, correlationId, start, thread. Records without a process belong to the only one that calls.
    """
    processes = calls["process"].unique()
    if len(processes) == 1:
        frame = frame.with_columns(pl.col("process").fill_null(processes[0]))
    launches = (
        calls.filter(pl.col("correlationId") > 0)
        .sort("start")
        .unique(["process", "correlationId"], keep="first", maintain_order=True)
        .select("process", "correlationId", launch_ns="start", launch_thread="thread", call_row="row")
    )
    return frame.join(launches, on=["process", "correlationId"], how="left", maintain_order="left")


def named(frame: pl.DataFrame, strings: pl.DataFrame, issues: Issues) -> pl.DataFrame:
    """Adds `name`: kernels by their full C++ name, copies by their kind."""
    full = strings.select(demangledName="id", full="value")
    short = strings.select(shortName="id", short="value")
    frame = frame.join(full, on="demangledName", how="left", maintain_order="left")
    frame = frame.join(short, on="shortName", how="left", maintain_order="left")
    kinds = pl.col("copyKind").replace_strict(dict(enumerate(COPY_KINDS)), default="", return_dtype=pl.String)
    graph = pl.coalesce("graphExecId", "graphId").cast(pl.String)
    names = (
        pl.when(pl.col("table") == KERNEL)
        .then(pl.coalesce("full", "short"))
        .when(pl.col("table") == MEMCPY)
        .then(("Memcpy " + kinds).str.strip_chars_end())
        .when(pl.col("table") == MEMSET)
        .then(pl.lit("Memset"))
        .otherwise("CUDA graph " + graph.fill_null("?"))
    )
    frame = frame.with_columns(names.alias("name"))
    unnamed = frame["name"].null_count()
    issues.add("unnamed_kernel", "kernels whose names are not in the file", where=KERNEL, count=unnamed)
    return frame.with_columns(pl.col("name").fill_null("(unnamed kernel)"), pl.col("short").fill_null(pl.col("full")))


def to_ops(
    frame: pl.DataFrame, enclosures: Enclosures, range_names: pl.Series, calls: Calls
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """OPS and COLLECTIVES of device work that has its name, device_id and launch.

    `range_names` has the names of host events by row. Of the kernels of one framework operator the longest one of the
    operator's class carries its cost: counting it for each would count it twice.
    """
    count = len(frame)
    around = [enclosures.of(-1 if r is None else r) for r in frame["call_row"]]
    names = frame["name"].to_list()
    is_kernel = (frame["table"] == KERNEL).to_list()
    durations = (frame["end"] - frame["start"]).to_list()
    kernel_names = {n for n, k in zip(names, is_kernel, strict=True) if k}
    collective = {n: is_collective(n) for n in kernel_names}
    class_by_name = {n: OpClass.COLLECTIVE if collective[n] else kernel_class(n) for n in kernel_names}
    dtype_by_name = {n: kernel_dtype(n) for n in kernel_names}

    op_class: list[str] = [_CLASS_OF_TABLE.get(t, OpClass.OTHER).value for t in frame["table"]]
    columns: dict[str, list[Any]] = {c: [None] * count for c in ("framework_op", "dtype", "shapes", "flops", "cost_note")}
    columns["bytes"] = frame["bytes"].to_list()
    source = ["none" if k else "trace" for k in is_kernel]
    by_range: dict[int, list[int]] = {}
    for i in range(count):
        op = around[i].op
        if op is not None:
            columns["framework_op"][i] = range_names[op].split(", ", 1)[0]
        if not is_kernel[i]:
            columns["flops"][i] = None if op_class[i] == OpClass.GRAPH else 0
            continue
        op_class[i] = class_by_name[names[i]].value
        columns["dtype"][i] = dtype_by_name[names[i]]
        columns["cost_note"][i] = "no NVTX range of a framework operator around the launch"
        if op is not None and not collective[names[i]]:
            by_range.setdefault(op, []).append(i)
    _mark_graphs(op_class, source, columns["cost_note"])

    described: dict[tuple[str, str | None], aten.Described] = {}
    for op, mine in by_range.items():
        text = range_names[op]
        name, sizes = text.split(", ", 1)[0], sizes_of(text)
        key = (name, None if sizes is None else shapes_json(sizes))
        if key not in described:
            described[key] = _describe(name, sizes)
        known = described[key]
        carrier = max(mine, key=lambda i: (class_by_name[names[i]] == known.op_class, durations[i]))
        for i in mine:
            columns["shapes"][i] = key[1]
            if known.op_class is not None:
                op_class[i] = known.op_class.value
            columns["dtype"][i] = known.dtype or columns["dtype"][i]
            if i == carrier:
                columns["flops"][i], columns["bytes"][i] = known.flops, known.bytes
                columns["cost_note"][i] = known.note
                source[i] = "none" if known.flops is None and known.bytes is None else "nvtx"
            else:
                columns["cost_note"][i] = f"the cost of {name} is with another kernel of the same call"

    ops = pl.DataFrame(
        {
            "op_id": range(count), "device_id": frame["device_id"], "stream": frame["streamId"].cast(pl.String),
            "name": names, "op_class": op_class, "module": [a.module for a in around],
            "start_ns": frame["start"], "dur_ns": durations, "step": [None] * count, "cost_source": source,
            "correlation_id": frame["correlationId"], "launch_ns": frame["launch_ns"],
            "launch_thread": frame["launch_thread"], **columns,
        },
        schema_overrides=OPS,
    ).select(*OPS)  # fmt: skip
    communicating = [i for i in range(count) if op_class[i] == OpClass.COLLECTIVE]
    kernels_of_call = Counter(around[i].library for i in communicating)
    rows = []
    for i in communicating:
        library = around[i].library
        call = calls.of(names[i], library, alone=kernels_of_call[library] == 1)
        kind = call.kind.value if call.kind else None
        dtype = columns["dtype"][i]
        rows.append((i, kind, call.group_id, None, call.group_size, None, call.message_bytes, dtype, call.peer))
    return ops, pl.DataFrame(rows, schema=COLLECTIVES, orient="row")


_CLASS_OF_TABLE = {MEMCPY: OpClass.COPY, MEMSET: OpClass.MEMSET, GRAPH: OpClass.GRAPH}


def _mark_graphs(op_class: list[str], source: list[str], notes: list[str | None]) -> None:
    """A graph that hides its kernels: nothing of its cost is known."""
    for i, name in enumerate(op_class):
        if name == OpClass.GRAPH:
            source[i], notes[i] = "none", "its kernels are not in the file: record with --cuda-graph-trace=node"


def _describe(name: str, sizes: list[Any] | None) -> aten.Described:
    """Cost of an operator from what its range says; element types are not recorded in NVTX ranges."""
    if sizes is None:
        nothing = aten.describe(name, None, None)
        note = "the NVTX range has no shapes: use emit_nvtx(record_shapes=True)"
        return aten.Described(op_class=nothing.op_class, dtype=None, flops=None, bytes=None, note=note)
    known = aten.describe(name, sizes, None)
    if known.bytes is None and known.note is None:
        note = "bytes are unknown: NVTX ranges do not record element types"
        return aten.Described(op_class=known.op_class, dtype=known.dtype, flops=known.flops, bytes=None, note=note)
    return known

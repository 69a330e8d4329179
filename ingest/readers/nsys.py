"""Nsight Systems: exports to SQLite or Parquet of any version since 2021; reports where nsys is installed.

Every table but StringIds is optional and columns are taken by name, since versions add, drop and move both. All times
in an export are integer nanoseconds from the session's start.
"""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracegap.ingest.issues import Issues
from tracegap.ingest.naming import TABLE_FOLDER
from tracegap.ingest.readers import _nsys_device as device
from tracegap.ingest.readers import _nsys_meta as meta
from tracegap.ingest.readers._nsys_db import SQLITE_MAGIC, Database, unpacked
from tracegap.ingest.readers._nsys_export import ROW, Export
from tracegap.ingest.readers._nsys_host import KEY, Host, read_calls, thread_names, unseen_syncs
from tracegap.ingest.readers._nsys_nccl import Calls, read_schemas
from tracegap.ingest.readers._nsys_nvtx import NVTX, PUSH_POP, Ranges, enclosing, read_ranges, step_marks
from tracegap.ingest.readers._nsys_parquet import Folder
from tracegap.ingest.readers._nsys_rep import REPORT_MAGIC, exported
from tracegap.ingest.trace import HOST_EVENTS, OPS, STEP_MARKS, Device, Trace

NAME = "nsys"
_REPORTS = (".nsys-rep", ".qdrep")
_SUFFIXES = (*_REPORTS, ".sqlite")
_PAYLOAD = {"jsonTextId": pl.Int64, "jsonText": pl.String, "binaryData": pl.Binary}
_AT_ONCE = 1 << 16
"""Rows of host events or operations above which they are made as they are asked for."""


def sniff(name: str, head: bytes) -> bool:
    """Whether a file is one of ours by its first bytes, or says so by its name (a pointer or an empty file then).

    Of a folder, `head` are the names of its files.
    """
    plain = name.lower().removesuffix(".gz").removesuffix(".zst")
    if not set(TABLE_FOLDER).isdisjoint(head.decode("utf-8", "replace").split("\n")):
        return True
    return head.startswith((SQLITE_MAGIC, REPORT_MAGIC)) or plain.endswith(_SUFFIXES)


def read(path: Path, processes: int = 1) -> Trace:  # noqa: ARG001 (one does)
    """Reads an export (a SQLite file, compressed or not, or a folder of Parquet files), or a report.

    Raises:
        TraceError: empty, truncated, malformed, foreign, lfs_pointer; for reports also no_nsys and needs_newer_nsys.

    """
    with _database(path) as db:
        return _read(db)


@contextmanager
def _database(path: Path) -> Iterator[Export]:
    plain_name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    with ExitStack() as stack:
        if path.is_dir():
            db: Export = Folder(path)
        elif plain_name.endswith(_REPORTS):
            report = stack.enter_context(unpacked(path, REPORT_MAGIC, "an Nsight Systems report"))
            db = Database(stack.enter_context(exported(report, str(path))), str(path))
        else:
            plain = unpacked(path, SQLITE_MAGIC, "an SQLite export of Nsight Systems")
            db = Database(stack.enter_context(plain), str(path))
        stack.callback(db.close)
        yield db


def _read(db: Export) -> Trace:
    issues = Issues()
    for table, what in db.damaged.items():
        issues.add("malformed", f"a table cannot be read: {what}", where=table, severity="data_loss")
    strings = db.read("StringIds", {"id": pl.Int64, "value": pl.String}).unique("id", keep="first", maintain_order=True)
    work = device.read_device_work(db, strings, issues)
    ranges = read_ranges(db, strings, issues)
    calls, correlation = read_calls(db, strings, issues)
    host_spans = [(int(s.start.min()), int(s.end.max())) for s in (calls, ranges.spans) if len(s.start)]
    device.cut_impossible(work, host_spans, issues)
    host = Host.of(calls, correlation, ranges.spans, PUSH_POP)
    first_range = len(correlation)
    ends = [end for _, end in host_spans] + ([int(work.frame["end"].to_numpy().max())] if len(work.frame) else [])
    threads = host.threads | thread_names(ranges.open["globalTid"])
    marks, step_rows = step_marks(ranges, threads, max(ends, default=0), issues)
    steps = [first_range + r for r in step_rows]

    of_cuda = host.calls()
    device.join_launches(work, of_cuda)
    work.keys = work.keys.with_columns(pl.col("deviceId").fill_null(0))
    used_keys = work.keys[work.frame[KEY].unique()]
    used = list(used_keys.select("process", "deviceId").unique().sort("process", "deviceId").iter_rows())
    devices = meta.devices_of(db, used, issues)
    device_of_key = [
        devices[lane].device_id if lane in devices else None
        for lane in work.keys.select("process", "deviceId").iter_rows()
    ]
    work.keys = work.keys.with_columns(pl.Series("device_id", device_of_key, dtype=pl.String))
    no_launch = work.frame["launch_ns"].null_count()
    issues.add("no_launch", "device work whose launch call is not in the file", count=no_launch)

    around = enclosing(host, work.frame["call_row"].fill_null(-1).to_numpy(), steps)
    known = device.costs(work, around, host)
    collectives = device.collectives(work, around, known, _nccl_calls(db, strings, ranges, first_range))
    rank, world = meta.rank_of(db) if len({p for p, _ in used}) == 1 else (None, None)
    meta.diagnostics(db, issues)
    unique = {d.device_id: d for d in devices.values()}
    trace = Trace(
        format=NAME,
        framework=_framework(host, work),
        origin_unix_ns=meta.origin_unix_ns(db),
        rank=rank,
        world_size=world,
        host=meta.host_of(db),
        devices=[unique[k] for k in sorted(unique, key=lambda k: (len(k), k))],
        step_marks=marks.select(*STEP_MARKS),
        collectives=collectives,
        counters=meta.counters_of(db, issues),
        memory=meta.memory_of(db, devices),
        config=meta.config_of(db),
        facts=_facts(db, ranges, work),
        issues=issues,
    )
    unseen = unseen_syncs(db, of_cuda, len(host.spans.key))
    _put_host_events(trace, itertools.chain(host.frames(steps), [unseen]), len(host.spans.key))
    _put_ops(trace, device.Launched.of(work, around, known, host), work.of_key("device_id"))
    return trace


def _put_host_events(trace: Trace, frames: Iterator[pl.DataFrame], count: int) -> None:
    """At once where they are few, else as they are asked for."""
    if count <= _AT_ONCE:
        trace.host_events = pl.concat(f.cast(HOST_EVENTS) for f in frames)  # type: ignore[arg-type]
    else:
        trace.further_host_events = frames


def _put_ops(trace: Trace, launched: device.Launched, device_id: pl.Series) -> None:
    """At once where they are few, else a device at a time as they are asked for."""
    if len(device_id) <= _AT_ONCE:
        trace.ops = launched.ops(np.arange(len(device_id))).cast(OPS)  # type: ignore[arg-type]
    else:
        trace.further_ops = _ops_by_device(launched, device_id, trace.devices)


def _ops_by_device(launched: device.Launched, device_id: pl.Series, devices: list[Device]) -> Iterator[pl.DataFrame]:
    """Operations of each device in turn; when the last ones are handed on, nothing else is held."""
    rows = [np.flatnonzero((device_id == d.device_id).to_numpy()) for d in devices]
    rows = [of_device for of_device in reversed(rows) if len(of_device)]
    while rows:
        made = [launched.ops(rows.pop())]
        if not rows:
            del launched, device_id
        yield made.pop()


def _nccl_calls(db: Export, strings: pl.DataFrame, ranges: Ranges, first_range: int) -> Calls:
    """NCCL's own ranges with their payloads."""
    found = ranges.spans.where(pl.col("is_library") & (pl.col("kind") == "collective"))
    payload = dict.fromkeys(_PAYLOAD)
    if set(payload) & set(db.columns.get(NVTX, ())) and len(found):
        row_ids = ranges.row_ids[found["row"].to_numpy()]
        told = db.pick(NVTX, _PAYLOAD, row_ids.tolist())
        told = told.join(strings.rename({"value": "json"}), left_on="jsonTextId", right_on="id", how="left")
        told = told.select(pl.col(ROW), pl.coalesce("jsonText", "json").alias("jsonText"), "binaryData")
        found = found.with_columns(pl.Series(ROW, row_ids)).join(told, on=ROW, how="left", maintain_order="left")
        schemas = read_schemas(db)
    else:
        found = found.with_columns(
            pl.lit(None, pl.String).alias("jsonText"), pl.lit(None, pl.Binary).alias("binaryData")
        )
        schemas = {}
    return Calls(found.with_columns(pl.col("row") + first_range), schemas)


def _framework(host: Host, work: device.DeviceWork) -> str:
    """It is jax where ranges of XLA show, pytorch where its operators or kernels do, else cuda."""
    keys = host.spans.keys
    if keys["name"].str.contains("^(TSL:)?(Thunk|XlaModule):#").any():
        return "jax"
    used = work.keys["name"].gather(work.frame[KEY].unique())
    return "pytorch" if keys["is_op"].any() or used.str.contains("at::native", literal=True).any() else "cuda"


def _facts(db: Export, ranges: Ranges, work: device.DeviceWork) -> dict[str, Any]:
    """Counts of the raw file; lists are [records, (bytes,) ns]."""
    counts = {t: db.count(t) for t in db.columns if not t.startswith("ENUM_") and not t.startswith("sqlite_")}
    table, export = meta.export_of(db)
    frame = work.frame.with_columns((pl.col("end") - pl.col("start")).alias("ns"))
    by_key = frame.group_by(KEY).agg(
        pl.len(), pl.col("bytes", "ns").sum(), pl.col("start").min(), pl.col("end").max(), pl.col("launch_ns").count()
    )
    by_key = pl.concat([by_key, work.keys[by_key[KEY]]], how="horizontal")
    kernels, copies, fills = (
        by_key.filter(pl.col("table") == t) for t in (device.KERNEL, device.MEMCPY, device.MEMSET)
    )
    sums = pl.col("len", "bytes", "ns").sum()
    by_device = kernels.group_by("deviceId").agg(sums).sort("deviceId").select("deviceId", "len", "ns")
    by_short = kernels.group_by("short").agg(pl.col("len", "ns").sum()).sort("ns", "short", descending=[True, False])
    nccl = kernels.filter(pl.col("name").str.contains("(?i)nccl"))
    by_kind = copies.group_by("copyKind").agg(sums)
    spans = ranges.spans
    return {
        "meta_table": table,
        "product_version": export.get("EXPORT_PRODUCT_VERSION"),
        "schema_version": export.get("EXPORT_SCHEMA_VERSION"),
        "tables": {t: n for t, n in counts.items() if n},
        "empty_tables": sum(not n for n in counts.values()),
        "enum_tables": sum(t.startswith("ENUM_") for t in db.columns),
        "device_records": work.rows,
        "kernels_by_device": {str(d): [n, ns] for d, n, ns in by_device.iter_rows()},
        "top_kernel_short": list(by_short.row(0)) if len(by_short) else None,
        "nccl_kernels": [int(nccl["len"].sum()), int(nccl["ns"].sum())],
        "kernel_span_ns": [kernels["start"].min(), kernels["end"].max()] if len(kernels) else None,
        "kernels_matched_to_runtime": int(kernels["launch_ns"].sum()),
        "memcpy_by_copyKind": {str(k): [n, size, ns] for k, n, size, ns in by_kind.sort("copyKind").iter_rows()},
        "memset": [int(fills[c].sum()) for c in ("len", "bytes", "ns")],
        "nvtx_by_eventType": ranges.by_type,
        "nvtx_text/textId": list(ranges.text_and_id),
        "nvtx_closed_ranges": [len(spans.start), int((spans.end - spans.start).sum())],
        "open": ranges.open.sort("start")["label"].to_list(),
        "graph_node_kernels": int(kernels.filter("is_node")["len"].sum()),
        "gpus": meta.gpus_of(db),
    }

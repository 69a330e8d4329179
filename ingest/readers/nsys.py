"""Nsight Systems: files of `nsys export --type sqlite` of any version since 2021; reports where nsys is installed.

Every table but StringIds is optional and columns are taken by name, since versions add, drop and move both. All times
in an export are integer nanoseconds from the session's start.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracegap.ingest.classify.host import host_kind
from tracegap.ingest.hosttree import nest
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers import _nsys_device as device
from tracegap.ingest.readers import _nsys_meta as meta
from tracegap.ingest.readers._nsys_db import SQLITE_MAGIC, Database, unpacked
from tracegap.ingest.readers._nsys_nccl import Calls, read_schemas
from tracegap.ingest.readers._nsys_nvtx import PUSH_POP, Ints, Ranges, enclosing, read_ranges, step_marks, thread_name
from tracegap.ingest.readers._nsys_rep import REPORT_MAGIC, exported
from tracegap.ingest.trace import HOST_EVENTS, STEP_MARKS, Trace

NAME = "nsys"
_REPORTS = (".nsys-rep", ".qdrep")
_SUFFIXES = (*_REPORTS, ".sqlite")

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_HOST_TABLES = {
    RUNTIME: "runtime",
    "CUDNN_EVENTS": "other",
    "CUBLAS_EVENTS": "other",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "overhead",
    "PROFILER_OVERHEAD": "overhead",
}
"""Tables of named spans on host threads, with the category by which `host_kind` judges them."""
_SPAN = dict.fromkeys(("start", "end", "globalTid", "nameId", "correlationId"), pl.Int64)
_BLOCKING = {1: "Event Sync", 3: "Stream Sync", 4: "Context Sync"}
"""Synchronisations in which the host waits, by syncType; a stream that waits for an event holds up no host."""


def sniff(name: str, head: bytes) -> bool:
    """Whether a file is one of ours by its first bytes, or says so by its name (a pointer or an empty file then)."""
    plain = name.lower().removesuffix(".gz").removesuffix(".zst")
    return head.startswith((SQLITE_MAGIC, REPORT_MAGIC)) or plain.endswith(_SUFFIXES)


def read(path: Path) -> Trace:
    """Reads an export, compressed or not, or a report.

    Raises:
        TraceError: empty, truncated, malformed, foreign, lfs_pointer; for reports also no_nsys and needs_newer_nsys.

    """
    with _database(path) as db:
        return _read(db)


@contextmanager
def _database(path: Path) -> Iterator[Database]:
    plain_name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    if plain_name.endswith(_REPORTS):
        with unpacked(path, REPORT_MAGIC, "an Nsight Systems report") as report, exported(report, str(path)) as export:
            db = Database(export, str(path))
            try:
                yield db
            finally:
                db.close()
        return
    with unpacked(path, SQLITE_MAGIC, "an SQLite export of Nsight Systems") as plain:
        db = Database(plain, str(path))
        try:
            yield db
        finally:
            db.close()


def _read(db: Database) -> Trace:
    issues = Issues()
    strings = db.read("StringIds", {"id": pl.Int64, "value": pl.String}).unique("id", keep="first", maintain_order=True)
    ranges = read_ranges(db, strings, issues)
    spans = _host_spans(db, strings, issues)
    work = device.read_device_work(db, issues)
    host_spans = [(_least(f["start"]), _most(f["end"])) for f in (spans, ranges.frame) if len(f)]
    work.frame = device.cut_impossible(work.frame, host_spans, issues)
    events, parents = _host_events(spans, ranges)
    first_range = len(spans)

    ends = [end for _, end in host_spans] + ([_most(work.frame["end"])] if len(work.frame) else [])
    marks, step_rows = step_marks(ranges, max(ends, default=0), issues)
    steps = [first_range + r for r in step_rows]
    events = events.with_columns(
        pl.when(pl.col("row").is_in(steps)).then(pl.lit("step")).otherwise("kind").alias("kind")
    )

    calls = events.filter(pl.col("table") == RUNTIME).select(
        "row", "process", pl.col("correlation_id").alias("correlationId"), pl.col("start_ns").alias("start"), "thread"
    )
    frame = device.named(device.with_launches(work.frame, calls), strings, issues)
    frame = frame.with_columns(pl.col("deviceId").fill_null(0))
    used = [(p, d) for p, d in frame.select("process", "deviceId").unique().sort("process", "deviceId").iter_rows()]
    devices = meta.devices_of(db, used, issues)
    frame = frame.with_columns(
        pl.Series(
            "device_id", [devices[key].device_id for key in frame.select("process", "deviceId").iter_rows()], pl.String
        )
    )
    no_launch = frame["launch_ns"].null_count()
    issues.add("no_launch", "device work whose launch call is not in the file", count=no_launch)

    library = events.filter(pl.col("kind") == "collective", pl.col("is_library"))
    library = library.select("row", "globalTid", "label", "jsonText", "binaryData", start="start_ns")
    nccl = Calls(library, read_schemas(db) if len(library) else {})
    around = enclosing(events, parents, frame["call_row"].fill_null(-1).to_numpy(), steps)
    ops, collectives = device.to_ops(frame, around, events, nccl)
    if marks["process"].n_unique() > 1:
        ops = _steps_by_process(ops, frame["process"], marks)
    rank, world = meta.rank_of(db) if frame["process"].n_unique() == 1 else (None, None)
    meta.diagnostics(db, issues)
    unique = {d.device_id: d for d in devices.values()}
    return Trace(
        format=NAME,
        framework=_framework(events, ops),
        origin_unix_ns=meta.origin_unix_ns(db),
        rank=rank,
        world_size=world,
        host=meta.host_of(db),
        devices=[unique[k] for k in sorted(unique, key=lambda k: (len(k), k))],
        ops=ops,
        host_events=_with_unseen_syncs(db, events, calls).select(*HOST_EVENTS),
        step_marks=marks.select(*STEP_MARKS),
        collectives=collectives,
        counters=meta.counters_of(db),
        config=meta.config_of(db),
        facts=_facts(db, ranges, work, frame),
        issues=issues,
    )


def _least(times: pl.Series) -> int:
    return int(times.to_numpy().min())


def _most(times: pl.Series) -> int:
    return int(times.to_numpy().max())


def _host_spans(db: Database, strings: pl.DataFrame, issues: Issues) -> pl.DataFrame:
    """Spans of all host tables with table, name and kind; those without a whole span are set aside and counted."""
    parts = []
    for table, category in _HOST_TABLES.items():
        part = db.read(table, _SPAN)
        names = strings.join(part.select(id="nameId").unique(), on="id")
        kinds = [host_kind(n, category) for n in names["value"]]
        names = names.with_columns(pl.Series("kind", kinds, dtype=pl.String))
        part = part.join(names, left_on="nameId", right_on="id", how="left", maintain_order="left")
        parts.append(part.with_columns(pl.lit(table).alias("table"), pl.col("kind").fill_null(category)))
    spans = pl.concat(parts).with_columns(pl.col("value").fill_null("(unnamed call)").alias("name"))
    whole = pl.col("start").is_not_null() & pl.col("globalTid").is_not_null() & (pl.col("end") >= pl.col("start"))
    bad = spans.filter(~whole.fill_null(value=False))
    where = f"{bad['table'][0]}, {bad['name'][0]}" if len(bad) else ""
    message = "host calls without a whole span (they began and never ended, or have no thread) were set aside"
    issues.add("open_call", message, where=where, count=len(bad))
    return spans.filter(whole)


def _host_events(spans: pl.DataFrame, ranges: Ranges) -> tuple[pl.DataFrame, Ints]:
    """HOST_EVENTS with what the rest of this module asks of them, and the row of each one's encloser (-1: none).

    Start/end ranges may end on another thread: they nest in nothing and enclose nothing.
    """
    columns = ["start", "end", "globalTid", "name", "kind", "table", "correlationId", "label", "is_op", "is_library"]
    columns += ["eventType", "jsonText", "binaryData"]
    calls = spans.with_columns(
        pl.lit(None, dtype=t).alias(c)
        for c, t in {
            "label": pl.String, "is_op": pl.Boolean, "is_library": pl.Boolean, "eventType": pl.Int64,
            "jsonText": pl.String, "binaryData": pl.Binary,
        }.items()
    )  # fmt: skip
    nvtx = ranges.frame.with_columns(
        pl.lit("NVTX_EVENTS").alias("table"), pl.lit(None, dtype=pl.Int64).alias("correlationId")
    )
    events = pl.concat([calls.select(columns), nvtx.select(columns)]).with_row_index("row")
    events = events.with_columns(
        pl.col("row").cast(pl.Int64),
        (pl.col("globalTid") // 0x1000000).alias("process"),
        (pl.col("end") - pl.col("start")).alias("dur_ns"),
    )
    threads = {t: thread_name(t) for t in events["globalTid"].unique()}
    nested = events.filter((pl.col("eventType") == PUSH_POP) | pl.col("eventType").is_null())
    rows = nested["row"].to_numpy()
    tree = nest(nested["globalTid"].to_numpy(), nested["start"].to_numpy(), nested["dur_ns"].to_numpy())
    parents = np.full(len(events), -1, dtype=np.int64)
    parents[rows] = np.where(tree.parent >= 0, rows[tree.parent] if len(rows) else -1, -1)
    self_ns = np.full(len(events), -1, dtype=np.int64)
    self_ns[rows] = tree.self_ns
    return events.with_columns(
        pl.Series("self_ns", self_ns).replace(-1, None),
        pl.Series("parent_id", parents).replace(-1, None),
        pl.col("globalTid").replace_strict(threads, return_dtype=pl.String).alias("thread"),
    ).rename({"start": "start_ns", "correlationId": "correlation_id"}).with_columns(event_id="row"), parents


def _with_unseen_syncs(db: Database, events: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds waits of the host whose API calls are not in the file; their threads are unknown ("pid/?")."""
    columns = dict.fromkeys(("start", "end", "globalPid", "correlationId", "syncType"), pl.Int64)
    waits = db.read(SYNCHRONIZATION, columns).filter(
        pl.col("syncType").is_in(list(_BLOCKING)), pl.col("end") >= pl.col("start"), pl.col("globalPid").is_not_null()
    )
    waits = waits.with_columns((pl.col("globalPid") // 0x1000000).alias("process"))
    waits = waits.join(calls, on=["process", "correlationId"], how="anti", maintain_order="left")
    if not len(waits):
        return events
    pids = {p: f"{p & 0xFFFFFF}/?" for p in waits["process"].unique()}
    added = waits.with_row_index("event_id", offset=len(events)).select(
        pl.col("event_id").cast(pl.Int64),
        pl.col("process").replace_strict(pids, return_dtype=pl.String).alias("thread"),
        pl.lit("sync").alias("kind"),
        pl.col("syncType").replace_strict(_BLOCKING, return_dtype=pl.String).alias("name"),
        pl.col("start").alias("start_ns"),
        (pl.col("end") - pl.col("start")).alias("dur_ns"),
        pl.col("correlationId").alias("correlation_id"),
    )
    return pl.concat([events.select(*HOST_EVENTS), added], how="diagonal")


def _steps_by_process(ops: pl.DataFrame, process: pl.Series, marks: pl.DataFrame) -> pl.DataFrame:
    """Where several processes mark steps at the same time, a launch belongs to a step of its own process."""
    launched = ops.select("op_id", "launch_ns").with_columns(process).filter(pl.col("launch_ns").is_not_null())
    found = launched.sort("launch_ns").join_asof(
        marks.select("process", "start_ns", "dur_ns", "step").sort("start_ns"),
        left_on="launch_ns", right_on="start_ns", by="process", strategy="backward",
    )  # fmt: skip
    found = found.filter(pl.col("launch_ns") < pl.col("start_ns") + pl.col("dur_ns")).select("op_id", mine="step")
    joined = ops.join(found, on="op_id", how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce("step", "mine").alias("step")).drop("mine")


def _framework(events: pl.DataFrame, ops: pl.DataFrame) -> str:
    """It is jax where ranges of XLA show, pytorch where its operators or kernels do, else cuda."""
    if events["name"].str.contains("^(TSL:)?(Thunk|XlaModule):#").any():
        return "jax"
    aten = events["is_op"].any() or ops["name"].str.contains("at::native", literal=True).any()
    return "pytorch" if aten else "cuda"


def _facts(db: Database, ranges: Ranges, work: device.DeviceWork, frame: pl.DataFrame) -> dict[str, Any]:
    """Counts of the raw file; lists are [records, (bytes,) ns]."""
    counts = {t: db.count(t) for t in db.columns if not t.startswith("ENUM_") and not t.startswith("sqlite_")}
    table, export = meta.export_of(db)
    kernels = frame.filter(pl.col("table") == device.KERNEL).with_columns((pl.col("end") - pl.col("start")).alias("ns"))
    copies = frame.filter(pl.col("table") == device.MEMCPY).with_columns((pl.col("end") - pl.col("start")).alias("ns"))
    fills = frame.filter(pl.col("table") == device.MEMSET).with_columns((pl.col("end") - pl.col("start")).alias("ns"))
    by_device = kernels.group_by("deviceId").agg(pl.len(), pl.col("ns").sum()).sort("deviceId")
    by_short = kernels.group_by("short").agg(pl.len(), pl.col("ns").sum()).sort("ns", "short", descending=[True, False])
    nccl = kernels.filter(pl.col("name").str.contains("(?i)nccl"))
    by_kind = copies.group_by("copyKind").agg(pl.len(), pl.col("bytes").sum(), pl.col("ns").sum()).sort("copyKind")
    closed = ranges.frame
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
        "nccl_kernels": [len(nccl), int(nccl["ns"].sum())],
        "kernel_span_ns": [kernels["start"].min(), kernels["end"].max()] if len(kernels) else None,
        "kernels_matched_to_runtime": len(kernels) - kernels["launch_ns"].null_count(),
        "memcpy_by_copyKind": {str(k): [n, size, ns] for k, n, size, ns in by_kind.iter_rows()},
        "memset": [len(fills), int(fills["bytes"].sum()), int(fills["ns"].sum())],
        "nvtx_by_eventType": ranges.by_type,
        "nvtx_text/textId": list(ranges.text_and_id),
        "nvtx_closed_ranges": [len(closed), int((closed["end"] - closed["start"]).sum())],
        "open": ranges.open.sort("start")["name"].to_list(),
        "graph_node_kernels": len(kernels.filter(pl.col("graphNodeId").fill_null(0) != 0)),
        "gpus": meta.gpus_of(db),
    }

"""What ran on the devices: kernels, copies, fills and whole graphs, joined to the calls that launched them."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import polars as pl

from tracegap.ingest.classify import aten
from tracegap.ingest.classify.kernel import causal_mask, element_dtype, is_collective, kernel_class, kernel_dtype
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers._nsys_db import Database
from tracegap.ingest.readers._nsys_nccl import Calls, bytes_of_inputs
from tracegap.ingest.readers._nsys_nvtx import Enclosing
from tracegap.ingest.trace import COLLECTIVES, OPS, shapes_json
from tracegap.models.ops import OpClass

COPY_KINDS = (
    "",
    "HtoD",
    "DtoH",
    "HtoA",
    "AtoH",
    "AtoA",
    "AtoD",
    "DtoA",
    "DtoD",
    "HtoH",
    "PtoP",
    "HtoD UVM",
    "DtoH UVM",
    "DtoD UVM",
)
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
_LONGEST_NS = 10 * 10**9  # what runs past its stream's next start for longer than this is not believed


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


def cut_impossible(frame: pl.DataFrame, host: list[tuple[int, int]], issues: Issues) -> pl.DataFrame:
    """Cuts work that would outlast the recording by its whole length, at the next start on its stream.

    `host` are the first start and last end of host tables. Kernels of a stream may truly overlap (graphs, programmatic
    launches): a smaller overlap is left as it is.
    """
    lane = ["process", "deviceId", "streamId"]
    frame = frame.with_columns(pl.col("start").shift(-1).over(lane, order_by="start").alias("following"))
    runs_on = (pl.col("end") > pl.col("following")) & (pl.col("following") > pl.col("start"))
    runs_on = runs_on.fill_null(value=False)
    if not len(frame.filter(runs_on)):
        return frame.drop("following")
    first = min([int(frame["start"].to_numpy().min()), *(start for start, _ in host)])
    sound_ends = frame.filter(~runs_on)["end"]
    last = max([int(sound_ends.to_numpy().max()), *(end for _, end in host)]) if len(sound_ends) else first
    impossible = runs_on & (pl.col("end") - last > max(last - first, _LONGEST_NS))
    cut = frame.filter(impossible)
    issues.add(
        "impossible_duration",
        "device work that would outlast the whole recording; cut where the next on its stream starts",
        where=f"{cut['table'][0]} row {cut['source_row'][0]}" if len(cut) else "",
        count=len(cut),
        severity="data_loss",
    )
    return frame.with_columns(pl.when(impossible).then("following").otherwise("end").alias("end")).drop("following")


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
    frame: pl.DataFrame, around: Enclosing, events: pl.DataFrame, calls: Calls
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """OPS and COLLECTIVES of device work that has its name, device_id and launch.

    `around` is what encloses the launch of each row; `events` has name and label of host events by row.
    """
    frame = frame.with_row_index("op_id").with_columns(
        pl.col("op_id").cast(pl.Int64),
        (pl.col("end") - pl.col("start")).alias("dur_ns"),
        pl.Series("op_row", around.op),
        pl.Series("library_row", around.library),
        pl.Series("module", around.module, dtype=pl.String),
    )
    frame = frame.join(_by_name(frame), on="name", how="left", maintain_order="left")
    frame = frame.join(_by_range(frame, events), on="op_row", how="left", maintain_order="left")
    is_kernel, is_graph = pl.col("table") == KERNEL, pl.col("table") == GRAPH
    described = is_kernel & pl.col("known_note").is_not_null() & ~pl.col("is_collective")
    frame = frame.with_columns(described.alias("described"))
    frame = _with_parts(frame, "known_flops", "known_bytes")
    costed = pl.col("known_flops").is_not_null() | pl.col("known_bytes").is_not_null()
    ops = frame.with_columns(
        pl.when("described")
        .then(pl.coalesce("known_class", "class_by_name"))
        .otherwise("class_by_name")
        .alias("op_class"),
        pl.when("described")
        .then(pl.coalesce("known_dtype", "dtype_by_name"))
        .otherwise("dtype_by_name")
        .alias("dtype"),
        pl.when("described").then("known_shapes").alias("shapes"),
        pl.when("described").then("known_flops").when(~is_kernel & ~is_graph).then(0).alias("flops"),
        pl.when("described").then("known_bytes").when(~is_kernel).then("bytes").alias("bytes"),
        pl.when(described & costed)
        .then(pl.lit("nvtx"))
        .when(is_kernel | is_graph)
        .then(pl.lit("none"))
        .otherwise(pl.lit("trace"))
        .alias("cost_source"),
        pl.when(is_graph)
        .then(pl.lit("its kernels are not in the file: record with --cuda-graph-trace=node"))
        .when("described")
        .then(pl.col("known_note").replace("", None))
        .when("is_collective")
        .then(pl.lit("communication: its size stands in collectives"))
        .when(is_kernel & pl.col("launch_ns").is_null())
        .then(pl.lit("its launch is not in the file"))
        .when(is_kernel)
        .then(pl.lit("no NVTX range of a framework operator around its launch"))
        .alias("cost_note"),
        pl.col("streamId").cast(pl.String).alias("stream"),
        pl.col("start").alias("start_ns"),
        pl.lit(None, dtype=pl.Int64).alias("step"),
        pl.col("correlationId").alias("correlation_id"),
    ).select(*OPS)
    communicating = frame.filter(is_kernel & pl.col("is_collective"))
    of_call, of_op = Counter(communicating["library_row"]), Counter(communicating["op_row"])
    wanted = communicating.select("op_id", "name", "dtype_by_name", "library_row", "op_row", "known_shapes")
    rows = []
    for op_id, name, dtype, library, op, shapes in wanted.iter_rows():
        call = calls.of(name, library, alone=of_call[library] == 1)
        size = call.message_bytes
        if size is None and of_op[op] == 1:
            size = bytes_of_inputs(call.kind, shapes, dtype)
        kind = call.kind.value if call.kind else None
        rows.append((op_id, kind, call.group_id, None, call.group_size, None, size, dtype, call.peer))
    return ops, pl.DataFrame(rows, schema=COLLECTIVES, orient="row")


def _by_name(frame: pl.DataFrame) -> pl.DataFrame:
    """What the name alone tells: class_by_name, dtype_by_name, is_collective; a row a name."""
    rows = []
    for table, name in frame.select("table", "name").unique("name").iter_rows():
        collective = table == KERNEL and is_collective(name)
        by_name = OpClass.COLLECTIVE if collective else _CLASS_OF_TABLE.get(table) or kernel_class(name)
        told = (kernel_dtype(name), element_dtype(name), causal_mask(name)) if table == KERNEL else (None, None, None)
        rows.append((name, by_name.value, *told, collective))
    schema = {
        "name": pl.String, "class_by_name": pl.String, "dtype_by_name": pl.String, "dtype_of_list": pl.String,
        "is_causal": pl.Boolean, "is_collective": pl.Boolean,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def _by_range(frame: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """What the operator around a launch tells: framework_op, known_* (known_note "" where none); a row a range."""
    kernels = frame.filter((pl.col("op_row") >= 0) & (pl.col("table") == KERNEL)).sort("dur_ns", descending=True)
    longest = kernels.unique("op_row", keep="first", maintain_order=True)
    longest = longest.select("op_row", element="dtype_by_name", listed="dtype_of_list", causal="is_causal")
    others = frame.filter(pl.col("op_row") >= 0).select("op_row").unique()
    ranges = others.join(longest, on="op_row", how="left").sort("op_row")
    sizes = pl.col("name").str.splitn(", sizes = ", 2).struct.field("field_1")
    ranges = pl.concat([ranges, events.select("name", framework_op="label")[ranges["op_row"]]], how="horizontal")
    ranges = ranges.with_columns(sizes.str.splitn(", input_op_ids", 2).struct.field("field_0").alias("sizes")).drop(
        "name"
    )
    schema = {
        "framework_op": pl.String, "sizes": pl.String, "element": pl.String, "listed": pl.String, "causal": pl.Boolean,
        "known_class": pl.String, "known_dtype": pl.String, "known_flops": pl.Int64, "known_bytes": pl.Int64,
        "known_note": pl.String, "known_shapes": pl.String,
    }  # fmt: skip
    described = []
    keys = ["framework_op", "sizes", "element", "listed", "causal"]
    for key in ranges.select(keys).unique().iter_rows():
        name, text, *told = key
        shapes = _parsed(text)
        known = _describe(name, shapes, *told)
        op_class = known.op_class.value if known.op_class and not aten.is_view(name) else None
        shown = None if shapes is None else shapes_json(shapes)
        described.append((*key, op_class, known.dtype, known.flops, known.bytes, known.note or "", shown))
    table = pl.DataFrame(described, schema=schema, orient="row")
    return ranges.join(table, on=keys, how="left", nulls_equal=True).drop(keys[1:])


def _with_parts(frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Splits an operator's totals over the kernels that it launched, by their durations; the parts add up exactly."""
    several = frame.filter("described").filter(pl.len().over("op_row") > 1)
    parts: dict[str, list[Any]] = {"op_id": [], **{c: [] for c in columns}}
    for group in several.select("op_row", "op_id", "dur_ns", *columns).partition_by("op_row", maintain_order=True):
        weights = group["dur_ns"].to_list()
        weights = weights if any(weights) else [1] * len(weights)
        upto = [0, *accumulate(weights)]
        parts["op_id"] += group["op_id"].to_list()
        for column in columns:
            total = group[column][0]
            cuts = [None if total is None else total * w // upto[-1] for w in upto]
            parts[column] += [None if b is None else b - a for a, b in pairwise(cuts)]
    split = pl.DataFrame(parts, schema=dict.fromkeys(parts, pl.Int64))
    return frame.update(split, on="op_id", how="left")


_CLASS_OF_TABLE = {MEMCPY: OpClass.COPY, MEMSET: OpClass.MEMSET, GRAPH: OpClass.GRAPH}


def _parsed(text: str | None) -> list[Any] | None:
    """Shapes of an operator's inputs from the text in its range's name; None where there is none or it is damaged."""
    try:
        shapes = json.loads(text or "null")
    except ValueError:
        return None
    return shapes if isinstance(shapes, list) else None


def _describe(
    name: str, shapes: list[Any] | None, element: str | None, listed: str | None, causal: bool | None
) -> aten.Described:
    """Cost of an operator from its range's name and what the name of its kernel adds.

    NVTX ranges have no element types. Kernels of matrix products, attention and convolutions have that of their
    operands in their names: for these `element` stands for the type of every tensor. Kernels over lists of tensors have
    theirs, `listed`; those of flash attention whether the mask is `causal`.
    """
    known = aten.describe(name, shapes, None, list_dtype=listed)
    if shapes is None:
        return known if known.op_class is None else replace(known, note=_NO_SHAPES)
    if known.op_class in _OPERANDS_IN_NAME and known.bytes is None and element is not None:
        log_sum_exp = _LOG_SUM_EXP.get(name)
        types = ["" if not s else "fp32" if i == log_sum_exp else element for i, s in enumerate(shapes)]
        typed = aten.describe(name, shapes, types, causal=causal)
        assumed = "element types are those in the kernel's name"
        return replace(typed, note=f"{typed.note}; {assumed}" if typed.note else assumed)
    return known


_NO_SHAPES = "no shapes in the NVTX range: torch.autograd.profiler.emit_nvtx(record_shapes=True)"
_OPERANDS_IN_NAME = {OpClass.MATMUL, OpClass.ATTENTION, OpClass.CONVOLUTION}
_LOG_SUM_EXP = {
    "aten::_scaled_dot_product_flash_attention_backward": 5,
    "aten::_flash_attention_backward": 5,
    "flash_attn::_flash_attn_backward": 5,
}
"""Position of the log-sum-exp, which is always fp32, among the arguments of flash attention's operators."""

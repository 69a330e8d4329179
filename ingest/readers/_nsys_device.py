"""What ran on the devices: kernels, copies, fills and whole graphs, joined to the calls that launched them."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.classify import aten
from tracegap.ingest.classify.kernel import causal_mask, element_dtype, is_collective, kernel_class, kernel_dtype
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers._nsys_export import Export
from tracegap.ingest.readers._nsys_host import Host
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


_NAMED_BY = ["table", "demangledName", "shortName", "copyKind", "graph"]
_TABLE = pl.Enum(list(_OWN))


@dataclass(slots=True)
class DeviceWork:
    """Device records with sound times."""

    frame: pl.DataFrame
    """Columns of _COMMON, table, source_row, bytes, graphNodeId, process, name_id (a row of `names`); a row an operation."""
    names: pl.DataFrame
    """table, copyKind, name, short, and what the name tells: class_by_name, dtype_by_name, is_collective, ..."""
    rows: dict[str, int]
    """Rows by table, unsound ones included."""


def read_device_work(db: Export, strings: pl.DataFrame, issues: Issues) -> DeviceWork:
    """All records of device work; those with lost or reversed times are set aside and counted."""
    every = {c: pl.Int64 for own in _OWN.values() for c in own}
    parts = []
    for table, own in _OWN.items():
        part = db.read(table, _COMMON | dict.fromkeys(own, pl.Int64))
        missing = [pl.lit(None, dtype=t).alias(c) for c, t in every.items() if c not in own]
        part = part.with_columns(pl.lit(table, dtype=_TABLE).alias("table"), *missing).with_row_index("source_row")
        parts.append(part.select("table", "source_row", *_COMMON, *every))
    rows = {t: len(p) for t, p in zip(_OWN, parts, strict=True)}
    frame = pl.concat(parts).with_columns(pl.coalesce("graphExecId", "graphId").alias("graph"))
    del parts
    frame = frame.drop("graphExecId", "graphId")
    keys = frame.select(_NAMED_BY).unique(maintain_order=True).with_row_index("name_id")
    frame = frame.join(keys, on=_NAMED_BY, how="left", nulls_equal=True, maintain_order="left").drop(_NAMED_BY[1:])
    frame = frame.with_columns((pl.col("globalPid") // 0x1000000).alias("process")).drop("globalPid")
    lost = pl.col("start").is_null() | pl.col("end").is_null() | ((pl.col("start") == 0) & (pl.col("end") == 0))
    negative = (pl.col("end") < pl.col("start")).fill_null(value=False)
    for code, bad, message in (
        ("lost_timestamp", lost, "device records without times were set aside: the profiler lost them"),
        ("negative_duration", negative, "records that end before they start were set aside"),
    ):
        found = frame.filter(bad)
        where = f"{found['table'][0]} row {found['source_row'][0]}" if len(found) else ""
        issues.add(code, message, where=where, count=len(found), severity="data_loss")
    frame = _without_whole_graphs(frame.filter(~lost & ~negative), issues)
    unnamed_ids = keys.filter(pl.col("table") == KERNEL)
    names = _names(keys, strings)
    unnamed = names.filter(pl.col("unnamed")).select("name_id")
    count = int(frame["name_id"].is_in(unnamed["name_id"].implode()).sum()) if len(unnamed_ids) else 0
    issues.add("unnamed_kernel", "kernels whose names are not in the file", where=KERNEL, count=count)
    return DeviceWork(frame, names, rows)


def _without_whole_graphs(frame: pl.DataFrame, issues: Issues) -> pl.DataFrame:
    """Leaves out records of whole graphs whose kernels are in the file: these are the work, the graph encloses them."""
    launch = ["process", "correlationId"]
    graphs = frame.filter((pl.col("table") == GRAPH) & (pl.col("correlationId") > 0))
    if not len(graphs):
        return frame
    nodes = frame.filter(pl.col("table") != GRAPH).select(launch).unique()
    hollow = graphs.join(nodes, on=launch, how="semi", nulls_equal=True)
    issues.add(
        "graph_of_kernels",
        "records of whole graphs whose kernels are recorded too were left out",
        where=GRAPH,
        count=len(hollow),
    )
    key = ["table", "source_row"]
    return frame.join(hollow.select(key), on=key, how="anti", maintain_order="left")


def _names(keys: pl.DataFrame, strings: pl.DataFrame) -> pl.DataFrame:
    """Names by name_id: kernels by their full C++ name, copies by their kind; with what a name alone tells."""
    full = strings.select(demangledName="id", full="value")
    short = strings.select(shortName="id", short="value")
    keys = keys.join(full, on="demangledName", how="left", maintain_order="left")
    keys = keys.join(short, on="shortName", how="left", maintain_order="left")
    kinds = pl.col("copyKind").replace_strict(dict(enumerate(COPY_KINDS)), default="", return_dtype=pl.String)
    names = (
        pl.when(pl.col("table") == KERNEL)
        .then(pl.coalesce("full", "short"))
        .when(pl.col("table") == MEMCPY)
        .then(("Memcpy " + kinds).str.strip_chars_end())
        .when(pl.col("table") == MEMSET)
        .then(pl.lit("Memset"))
        .otherwise("CUDA graph " + pl.col("graph").cast(pl.String).fill_null("?"))
    )
    keys = keys.with_columns(names.alias("name")).with_columns(pl.col("name").is_null().alias("unnamed"))
    keys = keys.with_columns(pl.col("name").fill_null("(unnamed kernel)"), pl.col("short").fill_null(pl.col("full")))
    told = []
    for table, name in keys.select("table", "name").iter_rows():
        collective = table == KERNEL and is_collective(name)
        by_name = OpClass.COLLECTIVE if collective else _CLASS_OF_TABLE.get(table) or kernel_class(name)
        types = (kernel_dtype(name), element_dtype(name), causal_mask(name)) if table == KERNEL else (None, None, None)
        told.append((by_name.value, *types, collective))
    schema = {
        "class_by_name": pl.String, "dtype_by_name": pl.String, "dtype_of_list": pl.String, "is_causal": pl.Boolean,
        "is_collective": pl.Boolean,
    }  # fmt: skip
    return pl.concat([keys, pl.DataFrame(told, schema=schema, orient="row")], how="horizontal")


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
    """Adds launch_ns and call_row of the host call with the same (process, correlation id).

    `calls` has row, process, correlationId, start. Records without a process belong to the only one that calls.
    """
    processes = calls["process"].unique()
    if len(processes) == 1:
        frame = frame.with_columns(pl.col("process").fill_null(processes[0]))
    launches = (
        calls.filter(pl.col("correlationId") > 0)
        .sort("start")
        .unique(["process", "correlationId"], keep="first", maintain_order=True)
        .select("process", "correlationId", launch_ns="start", call_row="row")
    )
    return frame.join(launches, on=["process", "correlationId"], how="left", maintain_order="left")


@dataclass(slots=True)
class Costs:
    """What the operators around launches tell; a row a way in which an operator was called."""

    of_op: NDArray[np.int64]
    """Row of `table` for each record of device work; -1: no operator around it, or no kernel."""
    table: pl.DataFrame
    """known_class, known_dtype, known_flops, known_bytes, known_note ("" where there is none), known_shapes."""


def costs(work: DeviceWork, around: Enclosing, host: Host) -> Costs:
    """Cost of each operator with kernels, by its name, its shapes and what the name of its longest kernel adds."""
    kernels = np.flatnonzero((work.frame["table"] == KERNEL).to_numpy() & (around.op >= 0))
    op_row = around.op[kernels]
    dur = (work.frame["end"] - work.frame["start"]).to_numpy()[kernels]
    order = np.lexsort((-dur, op_row))  # the longest of each operator first
    first = np.ones(len(order), np.bool_)
    first[1:] = op_row[order][1:] != op_row[order][:-1]
    name_id = work.frame["name_id"].to_numpy()[kernels][order][first]
    operator = host.spans.key[op_row[order][first]].astype(np.int64)
    called, which = np.unique(operator * max(len(work.names), 1) + name_id, return_inverse=True)
    of_op = np.full(len(work.frame), -1, np.int64)
    of_op[kernels[order]] = which[np.cumsum(first) - 1]
    told = work.names.select("dtype_by_name", "dtype_of_list", "is_causal").rows()
    keys = host.spans.keys.select("label", "name").rows()
    known = []
    for code in called.tolist():
        label, name = keys[code // len(work.names)]
        shapes = _parsed(name.partition(", sizes = ")[2])
        cost = _describe(label, shapes, *told[code % len(work.names)])
        op_class = cost.op_class.value if cost.op_class and not aten.is_view(label) else None
        shown = None if shapes is None else shapes_json(shapes)
        known.append((op_class, cost.dtype, cost.flops, cost.bytes, cost.note or "", shown))
    schema = {
        "known_class": pl.String, "known_dtype": pl.String, "known_flops": pl.Int64, "known_bytes": pl.Int64,
        "known_note": pl.String, "known_shapes": pl.String,
    }  # fmt: skip
    return Costs(of_op, pl.DataFrame(known, schema=schema, orient="row"))


def collectives(work: DeviceWork, around: Enclosing, known: Costs, calls: Calls) -> pl.DataFrame:
    """COLLECTIVES of the communication kernels."""
    is_collective = work.names["is_collective"].to_numpy()
    ops = np.flatnonzero(is_collective[work.frame["name_id"].to_numpy()]) if len(work.names) else np.zeros(0, np.int64)
    library, operator = around.library[ops].tolist(), around.op[ops].tolist()
    of_call, of_op = Counter(library), Counter(operator)
    names = work.names.select("name", "dtype_by_name").rows()
    shapes = known.table["known_shapes"].to_list()
    rows = []
    for op_id, name_id, call_row, op_row, cost in zip(
        ops.tolist(), work.frame["name_id"].gather(ops), library, operator, known.of_op[ops].tolist(), strict=True
    ):
        name, dtype = names[name_id]
        call = calls.of(name, call_row, alone=of_call[call_row] == 1)
        size = call.message_bytes
        if size is None and of_op[op_row] == 1:
            size = bytes_of_inputs(call.kind, shapes[cost] if cost >= 0 else None, dtype)
        kind = call.kind.value if call.kind else None
        rows.append((op_id, kind, call.group_id, None, call.group_size, None, size, dtype, call.peer))
    return pl.DataFrame(rows, schema=COLLECTIVES, orient="row")


def to_ops(work: DeviceWork, wanted: NDArray[np.int64], around: Enclosing, known: Costs, host: Host) -> pl.DataFrame:
    """OPS of some records, which have device_id, launch_ns and call_row."""
    labels = host.spans.keys["label"]
    op_row, call_row = around.op[wanted], work.frame["call_row"].fill_null(-1).to_numpy()[wanted]
    cost = pl.Series(known.of_op[wanted]).cast(pl.Int32)
    frame = pl.concat(
        [
            work.frame[wanted].rename({"start": "start_ns"}),
            work.names.select("name", "class_by_name", "dtype_by_name", "is_collective")[
                work.frame["name_id"].gather(wanted)
            ],
            known.table.select(pl.all().gather(cost.set(cost < 0, None)))
            if len(known.table)
            else _nothing(known, cost),
            pl.DataFrame(
                {
                    "op_id": wanted,
                    "op_row": op_row,
                    "framework_op": _texts(labels, host.spans.key, op_row),
                    "module": pl.Series(around.paths, dtype=pl.String).gather(around.module[wanted]),
                    "launch_thread": _texts(_threads(host), host.spans.key, call_row),
                }
            ),
        ],
        how="horizontal",
    ).with_columns((pl.col("end") - pl.col("start_ns")).alias("dur_ns"))
    is_kernel, is_graph = pl.col("table") == KERNEL, pl.col("table") == GRAPH
    described = is_kernel & pl.col("known_note").is_not_null() & ~pl.col("is_collective")
    frame = _with_parts(frame.with_columns(described.alias("described")), "known_flops", "known_bytes")
    costed = pl.col("known_flops").is_not_null() | pl.col("known_bytes").is_not_null()
    return frame.select(
        pl.when("described").then(pl.coalesce("known_class", "class_by_name")).otherwise("class_by_name").alias("op_class"),
        pl.when("described").then(pl.coalesce("known_dtype", "dtype_by_name")).otherwise("dtype_by_name").alias("dtype"),
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
        pl.lit(None, dtype=pl.Int64).alias("step"),
        pl.col("correlationId").alias("correlation_id"),
        "op_id", "device_id", "name", "framework_op", "module", "start_ns", "dur_ns", "launch_ns", "launch_thread",
    ).select(*OPS)  # fmt: skip


def _nothing(known: Costs, like: pl.Series) -> pl.DataFrame:
    return pl.DataFrame({c: pl.Series([None] * len(like), dtype=t) for c, t in known.table.schema.items()})


def _threads(host: Host) -> pl.Series:
    """Name of the thread by key."""
    return host.spans.keys["globalTid"].replace_strict(host.threads, return_dtype=pl.String)


def _texts(of_key: pl.Series, key: NDArray[np.uint32], rows: NDArray[np.int64]) -> pl.Series:
    """The text of each host row's key; null for row -1."""
    if not len(key):
        return pl.Series([None] * len(rows), dtype=pl.String)
    keys = pl.Series(key[rows])  # -1 is the last row here, and null in the end
    return of_key.gather(keys.set(pl.Series(rows < 0), None))


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

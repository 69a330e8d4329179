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
from tracegap.ingest.classify.kernel import (
    causal_mask,
    element_dtype,
    flops_by,
    is_collective,
    kernel_class,
    kernel_dtype,
)
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers._nsys_export import Export
from tracegap.ingest.readers._nsys_host import KEY, Host, coded, recoded
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
_SAME = [*_NAMED_BY, "globalPid", "deviceId", "streamId", "is_node"]


@dataclass(slots=True)
class DeviceWork:
    """Device records with sound times."""

    frame: pl.DataFrame
    """start, end, correlationId, bytes, source_row, key (a row of `keys`); a row an operation."""
    keys: pl.DataFrame
    """table, process, deviceId, streamId, copyKind, is_node (of a graph), name, short, and what the name tells:
    class_by_name, dtype_by_name, dtype_of_list, is_causal, is_collective."""
    rows: dict[str, int]
    """Rows by table, unsound ones included."""

    def of_key(self, column: str) -> pl.Series:
        """A column of the keys, for each operation."""
        return self.keys[column].gather(self.frame[KEY])


def read_device_work(db: Export, strings: pl.DataFrame, issues: Issues) -> DeviceWork:
    """All records of device work; those with lost or reversed times are set aside and counted."""
    every = {c: pl.Int64 for own in _OWN.values() for c in own}
    parts, rows = [], {}
    for table, own in _OWN.items():
        missing = [pl.lit(None, dtype=t).alias(c) for c, t in every.items() if c not in own]

        def prepare(
            part: pl.DataFrame, table: str = table, missing: list[pl.Expr] = missing
        ) -> tuple[pl.DataFrame, pl.DataFrame]:
            part = part.with_columns(pl.lit(table).alias("table"), *missing).with_columns(
                pl.coalesce("graphExecId", "graphId").alias("graph"),
                (pl.col("graphNodeId").fill_null(0) != 0).alias("is_node"),
            )
            return coded(part.select("start", "end", "correlationId", "bytes", *_SAME), _SAME)

        columns = _COMMON | dict.fromkeys(own, pl.Int64)
        of_table = [prepare(pl.DataFrame(schema=columns)), *db.batches(table, columns, prepare)]
        first_row = 0
        for frame, keys in of_table:
            source_row = pl.int_range(first_row, first_row + pl.len(), dtype=pl.UInt32).alias("source_row")
            parts.append((frame.with_columns(source_row), keys))
            first_row += len(frame)
        rows[table] = first_row
    frame, keys = recoded(parts)
    del parts
    keys = _names(keys, strings).with_columns((pl.col("globalPid") // 0x1000000).alias("process"))
    work = DeviceWork(frame, keys, rows)
    lost = pl.col("start").is_null() | pl.col("end").is_null() | ((pl.col("start") == 0) & (pl.col("end") == 0))
    negative = (pl.col("end") < pl.col("start")).fill_null(value=False)
    for code, bad, message in (
        ("lost_timestamp", lost, "device records without times were set aside: the profiler lost them"),
        ("negative_duration", negative, "records that end before they start were set aside"),
    ):
        found = frame.filter(bad)
        issues.add(code, message, where=_place(found, keys), count=len(found), severity="data_loss")
    work.frame = frame.filter(~lost & ~negative)
    _leave_out_whole_graphs(work, issues)
    unnamed = int(work.of_key("unnamed").sum())
    issues.add("unnamed_kernel", "kernels whose names are not in the file", where=KERNEL, count=unnamed)
    return work


def _place(found: pl.DataFrame, keys: pl.DataFrame) -> str:
    return f"{keys['table'][found[KEY][0]]} row {found['source_row'][0]}" if len(found) else ""


def _leave_out_whole_graphs(work: DeviceWork, issues: Issues) -> None:
    """Leaves out records of whole graphs whose kernels are in the file: these are the work, the graph encloses them."""
    if GRAPH not in work.keys["table"]:
        return
    frame = work.frame.with_columns(work.of_key("table"), work.of_key("process"))
    launch = ["process", "correlationId"]
    nodes = frame.filter(pl.col("table") != GRAPH).select(launch).unique().with_columns(has_nodes=True)
    frame = frame.join(nodes, on=launch, how="left", nulls_equal=True, maintain_order="left")
    hollow = (pl.col("table") == GRAPH) & (pl.col("correlationId") > 0) & pl.col("has_nodes")
    hollow = hollow.fill_null(value=False)
    message = "records of whole graphs whose kernels are recorded too were left out"
    issues.add("graph_of_kernels", message, where=GRAPH, count=len(frame.filter(hollow)))
    work.frame = frame.filter(~hollow).drop("table", "process", "has_nodes")


def _names(keys: pl.DataFrame, strings: pl.DataFrame) -> pl.DataFrame:
    """Adds names: kernels by their full C++ name, copies by their kind; with what a name alone tells."""
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
    told = {row: _told_by_name(*row) for row in keys.select("table", "name").unique().iter_rows()}
    schema = {
        "class_by_name": pl.String, "dtype_by_name": pl.String, "dtype_of_list": pl.String, "is_causal": pl.Boolean,
        "is_collective": pl.Boolean,
    }  # fmt: skip
    by_key = [told[row] for row in keys.select("table", "name").iter_rows()]
    return pl.concat([keys, pl.DataFrame(by_key, schema=schema, orient="row")], how="horizontal")


def _told_by_name(table: str, name: str) -> tuple[str, str | None, str | None, bool | None, bool]:
    if table != KERNEL:
        return _CLASS_OF_TABLE[table].value, None, None, None, False
    collective = is_collective(name)
    by_name = OpClass.COLLECTIVE if collective else kernel_class(name)
    return by_name.value, kernel_dtype(name), element_dtype(name), causal_mask(name), collective


def cut_impossible(work: DeviceWork, host: list[tuple[int, int]], issues: Issues) -> None:
    """Cuts work that would outlast the recording by its whole length, at the next start on its stream.

    `host` are the first start and last end of host tables. Kernels of a stream may truly overlap (graphs, programmatic
    launches): a smaller overlap is left as it is.
    """
    lane = work.keys.select(pl.struct("process", "deviceId", "streamId").rank("dense").alias("lane"))["lane"]
    frame = work.frame.with_columns(lane.gather(work.frame[KEY]))
    frame = frame.with_columns(pl.col("start").shift(-1).over("lane", order_by="start").alias("following"))
    runs_on = (pl.col("end") > pl.col("following")) & (pl.col("following") > pl.col("start"))
    runs_on = runs_on.fill_null(value=False)
    if not len(frame.filter(runs_on)):
        return
    first = min([int(frame["start"].to_numpy().min()), *(start for start, _ in host)])
    sound_ends = frame.filter(~runs_on)["end"]
    last = max([int(sound_ends.to_numpy().max()), *(end for _, end in host)]) if len(sound_ends) else first
    impossible = runs_on & (pl.col("end") - last > max(last - first, _LONGEST_NS))
    cut = frame.filter(impossible)
    issues.add(
        "impossible_duration",
        "device work that would outlast the whole recording; cut where the next on its stream starts",
        where=_place(cut, work.keys),
        count=len(cut),
        severity="data_loss",
    )
    ends = frame.with_columns(pl.when(impossible).then("following").otherwise("end").alias("end"))
    work.frame = ends.drop("lane", "following")


def join_launches(work: DeviceWork, calls: pl.DataFrame) -> None:
    """Adds launch_ns and call_row of the host call with the same (process, correlation id).

    `calls` has row, process, correlationId, start. Records without a process belong to the only one that calls.
    """
    processes = calls["process"].unique()
    if len(processes) == 1:
        work.keys = work.keys.with_columns(pl.col("process").fill_null(processes[0]))
    known = pl.concat([processes, work.keys["process"]]).drop_nulls().unique().sort()
    number = {process: i for i, process in enumerate(known)}
    of_key = np.array([number.get(process, -1) for process in work.keys["process"]], np.int64)
    ids = _launch_ids(known.search_sorted(calls["process"]).cast(pl.Int64).to_numpy(), calls["correlationId"])
    launched = calls.select("start", "row")
    if not (ids[1:] > ids[:-1]).all():
        order = np.lexsort((calls["start"].to_numpy(), ids))
        ids, first = np.unique(ids[order], return_index=True)  # of two calls with one id the earlier launched
        launched = launched[order[first]]
    frame = work.frame.drop("source_row")
    of_work = _launch_ids(of_key[frame[KEY].to_numpy()], frame["correlationId"])
    at = np.searchsorted(ids, of_work)
    hit = (at < len(ids)) & (of_work >= 0)
    hit[hit] = ids[at[hit]] == of_work[hit]
    rows = pl.Series(at).set(pl.Series(~hit), None)
    work.frame = frame.with_columns(
        launched["start"].gather(rows).alias("launch_ns"), launched["row"].cast(pl.Int32).gather(rows).alias("call_row")
    )


def _launch_ids(process: NDArray[np.int64], correlation: pl.Series) -> NDArray[np.int64]:
    """One number for each process (-1: unknown) and correlation id (32 bits, 0: none); -1 where one is missing."""
    ids = correlation.fill_null(0).to_numpy()
    return np.where((process >= 0) & (ids > 0) & (ids < 1 << 32), process << 32 | ids, -1)


@dataclass(slots=True)
class Costs:
    """What the operators around launches tell; a row a way in which an operator was called."""

    of_op: NDArray[np.int32]
    """Row of `table` for each record of device work; -1: no operator around it, or no kernel."""
    table: pl.DataFrame
    """known_class, known_dtype, known_flops, known_bytes, known_note ("" where there is none), known_shapes."""


def costs(work: DeviceWork, around: Enclosing, host: Host) -> Costs:
    """Cost of each operator with kernels, by its name, its shapes and what the name of its longest kernel adds."""
    kernels = np.flatnonzero((work.of_key("table") == KERNEL).to_numpy() & (around.op >= 0))
    op_row = around.op[kernels]
    dur = (work.frame["end"] - work.frame["start"]).to_numpy()[kernels]
    order = np.lexsort((-dur, op_row))  # the longest of each operator first
    first = np.ones(len(order), np.bool_)
    first[1:] = op_row[order][1:] != op_row[order][:-1]
    key = work.frame[KEY].to_numpy()[kernels][order][first]
    operator = host.spans.key[op_row[order][first]].astype(np.int64)
    called, which = np.unique(operator * max(len(work.keys), 1) + key, return_inverse=True)
    of_op = np.full(len(work.frame), -1, np.int32)
    of_op[kernels[order]] = which[np.cumsum(first) - 1]
    told = work.keys.select("dtype_by_name", "dtype_of_list", "is_causal").rows()
    ranges = host.spans.keys.select("label", "name").rows()
    known = []
    for code in called.tolist():
        label, name = ranges[code // len(work.keys)]
        shapes = _parsed(name.partition(", sizes = ")[2])
        cost = _describe(label, shapes, *told[code % len(work.keys)])
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
    ops = np.flatnonzero(work.of_key("is_collective").to_numpy())
    library, operator = around.library[ops].tolist(), around.op[ops].tolist()
    of_call, of_op = Counter(library), Counter(operator)
    names = work.keys.select("name", "dtype_by_name").rows()
    shapes = known.table["known_shapes"].to_list()
    rows = []
    for op_id, key, call_row, op_row, cost in zip(
        ops.tolist(), work.frame[KEY].gather(ops), library, operator, known.of_op[ops].tolist(), strict=True
    ):
        name, dtype = names[key]
        call = calls.of(name, call_row, alone=of_call[call_row] == 1)
        size = call.message_bytes
        if size is None and of_op[op_row] == 1:
            size = bytes_of_inputs(call.kind, shapes[cost] if cost >= 0 else None, dtype)
        kind = call.kind.value if call.kind else None
        rows.append(
            {
                "op_id": op_id, "collective": kind, "group_id": call.group_id, "group_size": call.group_size,
                "message_bytes": size, "dtype": dtype, "peer": call.peer, "sent_bytes": call.sent_bytes,
                "received_bytes": call.received_bytes,
            }
        )  # fmt: skip
    return pl.DataFrame(rows, schema=COLLECTIVES)


@dataclass(slots=True)
class Launched:
    """Device work with all that is known of it, for the making of OPS. Does not hold the host's spans."""

    work: DeviceWork
    around: Enclosing
    known: Costs
    framework_op: pl.Series
    thread: pl.Series

    @classmethod
    def of(cls, work: DeviceWork, around: Enclosing, known: Costs, host: Host) -> "Launched":
        """Takes from the host what operations need."""
        call_row = work.frame["call_row"].fill_null(-1).to_numpy()
        threads = host.spans.keys["globalTid"].replace_strict(host.threads, return_dtype=pl.String)
        return cls(
            work, around, known, _texts(host.spans.keys["label"], host.spans.key, around.op),
            _texts(threads, host.spans.key, call_row),
        )  # fmt: skip

    def ops(self, wanted: NDArray[np.int64]) -> pl.DataFrame:
        """OPS of some records, texts as categories."""
        frame = self.work.frame if len(wanted) == len(self.work.frame) else self.work.frame[wanted]
        form = pl.DataFrame(
            {"of": frame[KEY], "cost": self.known.of_op[wanted], "launched": frame["launch_ns"].is_not_null()}
        )
        of_form, forms = coded(form, form.columns)
        forms = _forms(forms, self.work.keys, self.known.table)
        category = pl.Categorical(pl.Categories.random())
        forms = forms.with_columns(pl.col(pl.String).cast(category))
        paths = pl.Series(self.around.paths, dtype=pl.String).cast(category)
        rows = pl.Series(wanted)
        ops = frame.select(
            pl.Series("op_id", wanted, dtype=pl.Int64),
            pl.Series("op_row", self.around.op[wanted]),
            pl.col("start").alias("start_ns"),
            (pl.col("end") - pl.col("start")).alias("dur_ns"),
            pl.lit(None, dtype=pl.Int64).alias("step"),
            pl.col("correlationId").alias("correlation_id"),
            "launch_ns",
            "bytes",
            self.framework_op.gather(rows).alias("framework_op"),
            self.thread.gather(rows).alias("launch_thread"),
            paths.gather(self.around.module[wanted]).alias("module"),
        )
        ops = pl.concat([ops, forms[of_form[KEY]]], how="horizontal")
        ops = _with_parts(ops)
        ops = ops.with_columns(pl.col("known_flops").alias("flops"), pl.coalesce("known_bytes", "bytes").alias("bytes"))
        return ops.select(*OPS)


def _forms(forms: pl.DataFrame, keys: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """What operations of one key, cost and launch have in common: texts of OPS, described, known_flops, known_bytes."""
    cost = forms["cost"].set(forms["cost"] < 0, None)
    unknown = pl.DataFrame({c: pl.Series([None] * len(forms), dtype=t) for c, t in known.schema.items()})
    told = known.select(pl.all().gather(cost)) if len(known) else unknown
    forms = pl.concat([forms, keys[forms["of"]], told], how="horizontal")
    is_kernel, is_graph = pl.col("table") == KERNEL, pl.col("table") == GRAPH
    described = is_kernel & pl.col("known_note").is_not_null() & ~pl.col("is_collective")
    forms = forms.with_columns(described.alias("described"))
    costed = pl.col("known_flops").is_not_null() | pl.col("known_bytes").is_not_null()
    return forms.select(
        "name",
        "described",
        pl.when("described").then(pl.coalesce("known_class", "class_by_name")).otherwise("class_by_name").alias("op_class"),
        pl.when("described").then(pl.coalesce("known_dtype", "dtype_by_name")).otherwise("dtype_by_name").alias("dtype"),
        pl.when("described").then("known_shapes").alias("shapes"),
        pl.when("described").then("known_flops").when(~is_kernel & ~is_graph).then(0).alias("known_flops"),
        pl.when("described").then("known_bytes").alias("known_bytes"),
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
        .when(is_kernel & ~pl.col("launched"))
        .then(pl.lit("its launch is not in the file"))
        .when(is_kernel)
        .then(pl.lit("no NVTX range of a framework operator around its launch"))
        .alias("cost_note"),
        pl.col("streamId").cast(pl.String).alias("stream"),
        "device_id",
    )  # fmt: skip


def _texts(of_key: pl.Series, key: NDArray[np.uint32], rows: NDArray[np.int64]) -> pl.Series:
    """The text of each host row's key, as categories; null for row -1."""
    if not len(key):
        return pl.Series([None] * len(rows), dtype=pl.String)
    keys = pl.Series(key[rows])  # -1 is the last row here, and null in the end
    return of_key.cast(pl.Categorical(pl.Categories.random())).gather(keys.set(pl.Series(rows < 0), None))


def _with_parts(frame: pl.DataFrame) -> pl.DataFrame:
    """Splits an operator's totals over the kernels that it launched; the parts add up exactly.

    Bytes by their durations, FLOPs as `flops_by`.
    """
    columns = ("known_flops", "known_bytes")
    described, op_row = frame["described"].to_numpy(), frame["op_row"].to_numpy()
    kernels = np.bincount(op_row[described])
    known = np.flatnonzero(described)
    known = known[kernels[op_row[known]] > 1]
    if not len(known):
        return frame
    several = frame.select("op_row", "op_id", "dur_ns", "op_class", "name", *columns)[known]
    parts: dict[str, list[Any]] = {"op_id": [], **{c: [] for c in columns}}
    for group in several.partition_by("op_row", maintain_order=True):
        by_time = group["dur_ns"].to_list()
        by_time = by_time if any(by_time) else [1] * len(by_time)
        multiplying = flops_by(OpClass(group["op_class"][0]), group["name"].to_list(), by_time)
        parts["op_id"] += group["op_id"].to_list()
        for column, weights in zip(columns, (multiplying, by_time), strict=True):
            upto = [0, *accumulate(weights)]
            total = group[column][0]
            cuts = [None if total is None else total * w // upto[-1] for w in upto]
            parts[column] += [None if b is None else b - a for a, b in pairwise(cuts)]
    at = parts.pop("op_id")
    rows = frame["op_id"].search_sorted(pl.Series(at, dtype=pl.Int64))
    return frame.with_columns(frame[c].scatter(rows, pl.Series(v, dtype=pl.Int64)) for c, v in parts.items())


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

"""Spans of host threads: few columns a row, and what many rows have in common (name, thread, kind) said once.

A capture has millions of such spans of some thousand names; as rows of HOST_EVENTS they would fill the memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.classify.host import host_kind
from tracegap.ingest.forms import distinct
from tracegap.ingest.hosttree import nest
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers._nsys_export import Export
from tracegap.ingest.trace import HOST_EVENTS

Ints = NDArray[np.int64]
KEY = "key"

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_TABLES = {
    RUNTIME: ("runtime", "nameId"),
    "CUDNN_EVENTS": ("other", "nameId"),
    "CUBLAS_EVENTS": ("other", "nameId"),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": ("overhead", "nameId"),
    "PROFILER_OVERHEAD": ("overhead", "nameId"),
    "OSRT_API": ("osrt", "nameId"),
    "MPI_COLLECTIVES_EVENTS": ("collective", "textId"),
    "MPI_P2P_EVENTS": ("collective", "textId"),
    "MPI_START_WAIT_EVENTS": ("collective", "textId"),
    "MPI_OTHER_EVENTS": ("other", "textId"),
}
"""Tables of named spans on host threads: the category by which `host_kind` judges them, and the column of the name."""
_BLOCKING = {1: "Event Sync", 3: "Stream Sync", 4: "Context Sync"}
"""Synchronisations in which the host waits, by syncType; a stream that waits for an event holds up no host."""


_FRAME_ROWS = 122_880
"""Rows of a frame of host events: as many as the store writes together, so that none are put together again."""
_NESTED_ROWS = 1 << 15
"""Spans that are nested at once: what this takes fits the cache."""


@dataclass(slots=True)
class Spans:
    """Spans with both ends, ns; `key` is a row of `keys`."""

    start: Ints
    end: Ints
    key: NDArray[np.uint32]
    keys: pl.DataFrame

    @classmethod
    def of(cls, frame: pl.DataFrame, keys: pl.DataFrame) -> "Spans":
        """From a coded frame."""
        return cls(frame["start"].to_numpy(), frame["end"].to_numpy(), frame[KEY].to_numpy(), keys)

    def where(self, condition: pl.Expr) -> pl.DataFrame:
        """row, start, end and the columns of the keys, of spans whose key meets a condition."""
        wanted = self.keys.with_row_index(KEY).filter(condition)
        rows = np.flatnonzero(np.isin(self.key, wanted[KEY].to_numpy()))
        found = pl.DataFrame({"row": rows, "start": self.start[rows], "end": self.end[rows], KEY: self.key[rows]})
        return found.join(wanted, on=KEY, how="left", maintain_order="left")


def coded(frame: pl.DataFrame, columns: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The frame with KEY in place of `columns`, and the distinct values of these, by KEY, in order of appearance."""
    first, which = distinct([frame[column] for column in columns], len(frame))
    order = np.argsort(first)
    key = np.empty(len(first), np.uint32)
    key[order] = np.arange(len(first))
    keys = frame.select(columns)[first[order]].with_row_index(KEY)
    return frame.drop(columns).with_columns(pl.Series(KEY, key[which])), keys


def recoded(parts: Sequence[tuple[pl.DataFrame, pl.DataFrame]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Puts coded frames together, with one numbering of the keys."""
    told = pl.concat([keys.drop(KEY) for _, keys in parts])
    every, keys = coded(told, told.columns)
    numbers = np.split(every[KEY].to_numpy(), np.cumsum([len(keys) for _, keys in parts])[:-1])
    frames = [f.with_columns(pl.Series(KEY, n[f[KEY].to_numpy()])) for n, (f, _) in zip(numbers, parts, strict=True)]
    return pl.concat(frames, how="vertical_relaxed"), keys.drop(KEY)


def read_calls(db: Export, strings: pl.DataFrame, issues: Issues) -> tuple[Spans, pl.Series]:
    """Spans of all host tables and their correlation ids; those without a whole span are set aside and counted."""
    same = ["table", "globalTid", "id"]
    columns = dict.fromkeys(("start", "end", "globalTid", "id", "correlationId"), pl.Int64)
    parts = [coded(pl.DataFrame(schema=columns | {"table": pl.String}), same)]
    bad, first_bad = 0, ""
    for table, (_, name_column) in _TABLES.items():
        wanted = {name_column if c == "id" else c: t for c, t in columns.items()}

        def prepare(
            rows: pl.DataFrame, table: str = table, name_column: str = name_column
        ) -> tuple[tuple[pl.DataFrame, pl.DataFrame], pl.DataFrame]:
            rows = rows.rename({name_column: "id"}).with_columns(pl.lit(table).alias("table"))
            whole = pl.col("globalTid").is_not_null() & (pl.col("end") >= pl.col("start"))
            whole = whole.fill_null(value=False)
            return coded(rows.filter(whole), same), rows.filter(~whole)

        for sound, unsound in db.batches(table, wanted, prepare):
            parts.append(sound)
            if len(unsound) and not bad:
                first_bad = f"{table}, {_names(strings, unsound.head(1))['name'][0]}"
            bad += len(unsound)
    message = "host calls without a whole span (they began and never ended, or have no thread) were set aside"
    issues.add("open_call", message, where=first_bad, count=bad)
    calls, keys = recoded(parts)
    keys = _names(strings, keys)
    categories = [_TABLES[table][0] for table in keys["table"]]
    kinds = [c if c == "collective" else host_kind(n, c) for n, c in zip(keys["name"], categories, strict=True)]
    return Spans.of(calls, keys.with_columns(pl.Series("kind", kinds, dtype=pl.String))), calls["correlationId"]


def _names(strings: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    named = rows.join(strings.rename({"value": "name"}), on="id", how="left", maintain_order="left")
    return named.with_columns(pl.col("name").fill_null("(unnamed call)"))


def thread_names(global_tids: pl.Series) -> dict[int, str]:
    """Host threads as "pid/tid"; where the file holds several nodes, as "node:pid/tid"."""
    tids = global_tids.drop_nulls().unique().to_list()
    several = len({t >> 48 for t in tids}) > 1
    return {
        t: f"{f'{t >> 48:x}:' if several else ''}{(t >> 24) & 0xFFFFFF}/{t & 0xFFFFFF}" for t in tids
    }  # fmt: skip


@dataclass(slots=True)
class Host:
    """All spans of the host, in the order of HOST_EVENTS: calls, then ranges."""

    spans: Spans
    """`keys` has globalTid, process, table, name, label, kind, is_range, is_op, is_library."""
    correlation: pl.Series
    """Of the calls."""
    parent: NDArray[Any]
    """Row of the encloser, -1 at the top."""
    self_ns: Ints
    """Time that no child covers; -1: the span nests in nothing."""
    threads: dict[int, str]

    @classmethod
    def of(cls, calls: Spans, correlation: pl.Series, ranges: Spans, push_pop: int) -> "Host":
        """Start/end ranges may end on another thread: they nest in nothing and enclose nothing."""
        unknown = [pl.lit(value=False).alias(c) for c in ("is_range", "is_op", "is_library")]
        nests = pl.lit(value=True).alias("nests")
        common = ["globalTid", "table", "name", "label", "kind", "is_range", "is_op", "is_library", "nests"]
        of_calls = calls.keys.with_columns(pl.col("name").alias("label"), nests, *unknown)
        of_ranges = ranges.keys.with_columns(
            pl.lit("NVTX_EVENTS").alias("table"),
            pl.lit(value=True).alias("is_range"),
            (pl.col("eventType") == push_pop).alias("nests"),
        )
        keys = pl.concat([of_calls.select(common), of_ranges.select(common)])
        keys = keys.with_columns((pl.col("globalTid") // 0x1000000).alias("process"))
        start = np.concatenate((calls.start, ranges.start))
        end = np.concatenate((calls.end, ranges.end))
        key = np.concatenate((calls.key, ranges.key + np.uint32(len(calls.keys))))
        for part, rows in ((calls, slice(len(calls.start))), (ranges, slice(len(calls.start), None))):
            part.start, part.end = start[rows], end[rows]  # once in memory
        width = np.int32 if len(start) < 2**31 else np.int64
        ordered = []
        for thread in keys["globalTid"].unique(maintain_order=True):
            nests = (keys["nests"] & (keys["globalTid"] == thread)).to_numpy()[key]
            ordered.append(_by_start(np.flatnonzero(nests).astype(width), start, end))
        parent, self_ns = np.full(len(start), -1, width), np.full(len(start), -1)
        for rows_of_thread in ordered:
            _nest(rows_of_thread, start, end, parent, self_ns)
        return cls(Spans(start, end, key, keys), correlation, parent, self_ns, thread_names(keys["globalTid"]))

    def calls(self) -> pl.DataFrame:
        """row, process, correlationId, start of the CUDA API's calls."""
        n = len(self.correlation)
        keys = self.spans.keys
        frame = pl.DataFrame(
            {
                "row": np.arange(n),
                "process": keys["process"].gather(self.spans.key[:n]) if len(keys) else pl.Series([], dtype=pl.Int64),
                "correlationId": self.correlation,
                "start": self.spans.start[:n],
            }
        )
        is_runtime = (keys["table"] == RUNTIME).to_numpy()
        return frame.filter(is_runtime[self.spans.key[:n]]) if n else frame

    def frames(self, steps: list[int]) -> Iterator[pl.DataFrame]:
        """HOST_EVENTS, some thousand at a time, texts as categories; `steps` are rows of step ranges."""
        category = pl.Categorical(pl.Categories.random())
        keys = self.spans.keys.select(
            pl.col("globalTid").replace_strict(self.threads, return_dtype=pl.String).cast(category).alias("thread"),
            pl.col("kind", "label").cast(category),
        )
        marks = np.array(sorted(steps), np.int64)
        calls = len(self.correlation)
        for at in range(0, len(self.spans.key), _FRAME_ROWS):
            rows = slice(at, at + _FRAME_ROWS)
            key = pl.Series(self.spans.key[rows])
            count = len(key)
            inside = marks[(marks >= at) & (marks < at + count)] - at
            correlation = self.correlation[at : min(at + count, calls)] if at < calls else self.correlation[:0]
            yield pl.DataFrame(
                {
                    "event_id": np.arange(at, at + count),
                    "thread": keys["thread"].gather(key),
                    "kind": keys["kind"].gather(key).scatter(inside, ["step"] * len(inside)),
                    "name": keys["label"].gather(key),
                    "start_ns": self.spans.start[rows],
                    "dur_ns": self.spans.end[rows] - self.spans.start[rows],
                    "self_ns": _without_minus_one(self.self_ns[rows]),
                    "parent_id": _without_minus_one(self.parent[rows]),
                    "correlation_id": correlation.extend_constant(None, count - len(correlation)),
                }
            )


def _nest(rows: NDArray[Any], start: Ints, end: Ints, parent: NDArray[Any], self_ns: Ints) -> None:
    """Fills in parent and self_ns of a thread's spans `rows`, which are in order, a window at a time: it needs room."""
    still_open = rows[:0]
    for at in range(0, len(rows), _NESTED_ROWS):
        window = np.concatenate((still_open, rows[at : at + _NESTED_ROWS]))
        old = np.arange(len(window)) < len(still_open)
        begin, finish = start[window], end[window]
        tree = nest(np.zeros(len(window), np.uint8), begin, finish - begin, old)
        new = slice(len(still_open), None)
        parent[window[new]] = np.where(tree.parent[new] >= 0, window[tree.parent[new]], -1)
        self_ns[window[new]] = tree.self_ns[new]
        # What was open before has had its length counted: what is left of that is what children of now cover.
        self_ns[still_open] -= (finish - begin - tree.self_ns)[: len(still_open)]
        following = rows[at + _NESTED_ROWS : at + _NESTED_ROWS + 1]
        still_open = window[finish > start[following]] if len(following) else still_open


def _by_start(rows: NDArray[Any], start: Ints, end: Ints) -> NDArray[Any]:
    """Rows in order of start, falling end, and row."""
    rows = rows[np.argsort(start[rows], kind="stable")]
    begin = start[rows]
    again = np.zeros(len(rows), np.bool_)  # starts where another does
    again[1:] = begin[1:] == begin[:-1]
    again[:-1] |= again[1:]
    tied = rows[again]
    rows[again] = tied[np.lexsort((tied, -end[tied], start[tied]))]
    return rows


def _without_minus_one(values: NDArray[Any]) -> pl.Series:
    series = pl.Series(values).cast(pl.Int64)
    return series.set(series < 0, None)


def unseen_syncs(db: Export, calls: pl.DataFrame, first_id: int) -> pl.DataFrame:
    """Waits of the host whose API calls are not in the file; their threads are unknown ("pid/?")."""
    columns = dict.fromkeys(("start", "end", "globalPid", "correlationId", "syncType"), pl.Int64)
    waits = db.read(SYNCHRONIZATION, columns).filter(
        pl.col("syncType").is_in(list(_BLOCKING)), pl.col("end") >= pl.col("start"), pl.col("globalPid").is_not_null()
    )
    waits = waits.with_columns((pl.col("globalPid") // 0x1000000).alias("process"))
    launch = ["process", "correlationId"]
    seen = calls.select(launch).join(waits.select(launch), on=launch, how="semi")
    waits = waits.join(seen, on=launch, how="anti", maintain_order="left")
    if not len(waits):
        return pl.DataFrame(schema=HOST_EVENTS)
    pids = {p: f"{p & 0xFFFFFF}/?" for p in waits["process"].unique()}
    added = waits.with_row_index("event_id", offset=first_id).select(
        pl.col("event_id").cast(pl.Int64),
        pl.col("process").replace_strict(pids, return_dtype=pl.String).alias("thread"),
        pl.lit("sync").alias("kind"),
        pl.col("syncType").replace_strict(_BLOCKING, return_dtype=pl.String).alias("name"),
        pl.col("start").alias("start_ns"),
        (pl.col("end") - pl.col("start")).alias("dur_ns"),
        pl.lit(None, dtype=pl.Int64).alias("self_ns"),
        pl.lit(None, dtype=pl.Int64).alias("parent_id"),
        pl.col("correlationId").alias("correlation_id"),
    )
    return added.select(*HOST_EVENTS)

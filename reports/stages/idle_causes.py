"""Idle time of every step by cause and by what the host did meanwhile."""

from collections.abc import Iterator

import duckdb
import numpy as np
import polars as pl

from tracegap.ingest import store
from tracegap.ingest.account import Windows
from tracegap.ingest.classify.activity import shown_name
from tracegap.ingest.idle import CAUSES, Idle, waits_of
from tracegap.ingest.intervals import Cover
from tracegap.reports import host_spans
from tracegap.reports.idle_split import CHUNK, NOTHING, Labels, Thread, split
from tracegap.reports.stage import Run

ORDER = 20
TABLES = ("idle_causes",)
MOST_NAMES = 12
"""Names that are told apart for each activity of a device; the others are one row without a name."""
_NO_THREAD = ""


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills idle_causes."""
    traces = con.execute("select trace_id from traces where run_id = ? order by trace_id", [run.run_id]).fetchall()
    for (trace_id,) in traces:
        steps = store.frame_of(
            con,
            "select device_id, step, start_ns, wall_ns, mark_thread from steps where trace_id = ? order by device_id, start_ns",
            [trace_id],
        )
        devices = []
        for (device_id,), windows in steps.partition_by("device_id", as_dict=True, maintain_order=True).items():
            found = _idle_of(con, trace_id, str(device_id), windows)
            if len(found):
                devices.append((str(device_id), windows, found))
        if devices:
            _fill(con, trace_id, devices)


Devices = list[tuple[str, pl.DataFrame, Idle]]
"""device_id, its steps, its idle intervals."""


def _idle_of(con: duckdb.DuckDBPyConnection, trace_id: str, device_id: str, steps: pl.DataFrame) -> Idle:
    ops = store.frame_of(
        con,
        "select op_id, start_ns, dur_ns, launch_ns, launch_thread from ops where trace_id = ? and device_id = ? "
        "order by start_ns, op_id",
        [trace_id, device_id],
    )
    starts = steps["start_ns"].to_numpy()
    return Idle.of(ops, Windows(starts, starts + steps["wall_ns"].to_numpy()))


def _fill(con: duckdb.DuckDBPyConnection, trace_id: str, devices: Devices) -> None:
    wanted = {
        thread
        for _, steps, idle in devices
        for column in (idle.thread.filter(pl.Series(idle.known)), idle.before, steps["mark_thread"].drop_nulls())
        for thread in column.unique()
    }
    host = _Host(con, trace_id, sorted(wanted), devices)
    for device_id, steps, idle in devices:
        marks = steps["mark_thread"][0]
        parts = list(_pieces(host, idle, marks))
        unknown = np.flatnonzero(~idle.known)
        rows = _rows(host, pl.concat(parts), idle, steps["step"]) if parts else pl.DataFrame()
        if len(unknown):
            lost = pl.DataFrame(
                {
                    "step": steps["step"].gather(idle.window[unknown]),
                    "idle_ns": (idle.end - idle.begin)[unknown],
                }
            )
            lost = lost.group_by("step").agg(pl.col("idle_ns").sum(), gaps=pl.len().cast(pl.Int64))
            rows = pl.concat([rows, lost.with_columns(cause=pl.lit("idle_unknown"))], how="diagonal")
        same = {"trace_id": pl.lit(trace_id), "device_id": pl.lit(device_id)}
        store.insert(con, "idle_causes", rows.with_columns(**same))


class _Host:
    """The spans of the threads of a trace that launch, as far as they lie in idle time."""

    def __init__(self, con: duckdb.DuckDBPyConnection, trace_id: str, threads: list[str], devices: Devices) -> None:
        idle_time = Cover.of(
            np.concatenate([idle.begin for *_, idle in devices]), np.concatenate([idle.end for *_, idle in devices])
        )
        found = host_spans.load(
            con, trace_id, threads, lambda start, end: idle_time.within(start, end) > 0, overhead=True
        )
        self.names = found.names
        self.labels = Labels(found.names, found.kinds)
        spans = found.spans
        named = pl.DataFrame({"name": found.names, "kind": found.kinds}, schema={"name": pl.String, "kind": pl.String})
        kinds = self.labels.of_kind
        holding = kinds["input"] | kinds["sync"] | kinds["receive"]
        waiting = spans.filter(pl.Series(holding[spans["label"].to_numpy()]))
        self.waits = waits_of(pl.concat([waiting, named.gather(waiting["label"])], how="horizontal"))
        is_overhead = pl.Series(kinds["overhead"][spans["label"].to_numpy()])
        by_thread = spans.filter(~is_overhead).partition_by("thread", as_dict=True)
        self._spans = {str(thread): of_thread for (thread,), of_thread in by_thread.items()}
        self._none = spans.clear()
        self._threads: dict[str, Thread] = {}
        overhead = spans.filter(is_overhead)
        self.overhead = self._made(overhead) if len(overhead) else None

    def _made(self, spans: pl.DataFrame) -> Thread:
        start = spans["start_ns"].to_numpy()
        return Thread(self.labels, start, start + spans["dur_ns"].to_numpy(), spans["label"].cast(pl.Int64).to_numpy())

    def thread(self, name: str) -> Thread:
        """A thread; without a span where nothing of it was recorded in idle time."""
        if name not in self._threads:
            self._threads[name] = self._made(self._spans.get(name, self._none))
        return self._threads[name]


def _pieces(host: _Host, idle: Idle, marks: str | None) -> Iterator[pl.DataFrame]:
    """Pieces of the idle intervals of a device, summed by interval and by what was done."""
    other = pl.Series([marks or _NO_THREAD] * len(idle), dtype=pl.String)
    asked = pl.DataFrame({"row": np.arange(len(idle)), "thread": idle.thread, "marks": other, "before": idle.before})
    asked = asked.filter(pl.Series(idle.known)).with_columns(
        other=pl.when((pl.col("marks") != "") & (pl.col("marks") != pl.col("thread")))
        .then("marks")
        .when(pl.col("before") != pl.col("thread"))
        .then("before")
        .otherwise(pl.lit(_NO_THREAD))
    )
    key = ["gap", "cause", "activity", "name", "caller", "other"]
    for (thread, partner), of_thread in asked.partition_by(["thread", "other"], as_dict=True).items():
        rows = of_thread["row"].to_numpy()
        for first in range(0, len(rows), CHUNK):
            cut = split(
                idle, rows[first : first + CHUNK], host.labels, host.waits,
                name=str(thread), launching=host.thread(str(thread)),
                other=host.thread(str(partner)) if partner else None, marks=marks, overhead=host.overhead,
            )  # fmt: skip
            yield cut.group_by(key).agg(pl.col("idle_ns").sum())


def _rows(host: _Host, cut: pl.DataFrame, idle: Idle, steps: pl.Series) -> pl.DataFrame:
    """Rows of idle_causes: names as text, those that take least time together."""
    names = pl.Series([shown_name(n) for n in host.names] + [None], dtype=pl.String)
    nothing = len(names) - 1
    told = cut.select(
        "gap",
        "idle_ns",
        cause=pl.Series(CAUSES).gather(cut["cause"]),
        activity=pl.Series(host.labels.words).gather(cut["activity"]),
        name=names.gather(cut["name"].replace(-1, nothing)),
        caller=names.gather(cut["caller"].replace(-1, nothing)),
        of_thread=pl.when("other").then(pl.lit("other")).otherwise(pl.lit("launching")),
        step=steps.gather(idle.window[cut["gap"].to_numpy()]),
    )
    named = ["activity", "name", "caller", "of_thread"]
    bare = pl.col("activity") == NOTHING
    told = told.with_columns(pl.when(~bare).then(c).alias(c) for c in ("name", "caller"))
    shown = (
        told.filter(pl.col("name").is_not_null())
        .group_by(named)
        .agg(total=pl.col("idle_ns").sum())
        .sort(["total", *named], descending=[True, False, False, False, False])
        .group_by("activity", maintain_order=True)
        .head(MOST_NAMES)
    )
    told = told.join(shown.with_columns(shown=pl.lit(True)).drop("total"), on=named, how="left", nulls_equal=True)
    told = told.with_columns(pl.when(pl.col("shown")).then(c).alias(c) for c in ("name", "caller"))
    return told.group_by("step", "cause", *named).agg(
        pl.col("idle_ns").sum(), gaps=pl.col("gap").n_unique().cast(pl.Int64)
    )

"""Device memory at its peak, measured where the traces hold memory events, beside what the plan of the run needs."""

import json
from collections.abc import Iterator

import duckdb
import numpy as np
import polars as pl

from tracegap.ingest import store
from tracegap.ingest.intervals import Ints
from tracegap.models.footprint import Memory
from tracegap.reports import host_spans, memory_theory
from tracegap.reports.memory_parts import BEFORE, asked, lifetimes, parts_at
from tracegap.reports.stage import Run

ORDER = 55
TABLES = ("memory",)

_ROWS = {
    "step": pl.Int64, "part": pl.String, "part_of": pl.String, "name": pl.String, "operator": pl.String,
    "bytes": pl.Int64, "predicted_bytes": pl.Int64, "at_ns": pl.Int64, "detail": pl.Boolean, "source": pl.String,
    "note": pl.String,
}  # fmt: skip
_NO_EVENTS = (
    "not measured: the trace holds no memory events; record them with profile_memory=True (torch), or"
    " nsys --cuda-memory-usage=true; XLA's GPU and TPU allocators are traced by default"
)
_SINCE = "by when it was handed out; what was there before recording began is one part"
_LOWER = "allocations through CUDA that the capture holds; what was allocated before is not in it: a lower bound"
_NO_TOTALS = "the trace has sizes but no totals: growth since recording began; what was in use before is not in it"
_CONTRADICT = "parts are not told: more is handed out than the allocator counts, so releases are missing in the trace"
_NO_ADDRESS = "parts are not told: the events have no addresses, so releases cannot be joined with what they release"


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills memory."""
    predicted = _predicted(*memory_theory.predicted(con, run))
    devices = con.execute(
        "select trace_id, device_id from devices join traces using (trace_id) where run_id = ? order by 1, 2",
        [run.run_id],
    ).fetchall()
    for trace_id, device_id in devices:
        rows = pl.concat([_measured(con, trace_id, device_id), _program(con, trace_id), predicted])
        store.insert(con, "memory", rows.with_columns(trace_id=pl.lit(trace_id), device_id=pl.lit(device_id)))


def _frame(rows: list[dict[str, object]]) -> pl.DataFrame:
    return pl.DataFrame([{"detail": False} | row for row in rows], schema=_ROWS)


def _predicted(memory: Memory | None, note: str) -> pl.DataFrame:
    """Rows of what the plan needs; of a run that cannot be planned one that says why."""
    total: dict[str, object] = {"part": "predicted", "source": "plan", "note": note}
    if memory is None:
        return _frame([total])
    parts = {name: round(getattr(memory, name)) for name in memory_theory.PARTS}
    rows: list[dict[str, object]] = [total | {"predicted_bytes": sum(parts.values())}]
    rows += [
        {"part": name, "part_of": "predicted", "predicted_bytes": size, "source": "plan"}
        for name, size in parts.items()
    ]
    return _frame(rows)


def _program(con: duckdb.DuckDBPyConnection, trace_id: str) -> pl.DataFrame:
    """Rows of the program that needs most, as its compiler planned it."""
    ((text,),) = con.execute("select facts -> 'largest_program' from traces where trace_id = ?", [trace_id]).fetchall()
    if text is None:
        return _frame([])
    found = json.loads(text)
    parts = {part: size for part, size in found["bytes"].items() if size}
    note = f"{found['entry']}: the compiler's buffer assignment of the largest program, default memory space"
    rows: list[dict[str, object]] = [{"part": "program", "note": note, "predicted_bytes": sum(parts.values())}]
    rows += [{"part": part, "part_of": "program", "predicted_bytes": size} for part, size in parts.items()]
    return _frame([row | {"source": "hlo"} for row in rows])


def _measured(con: duckdb.DuckDBPyConnection, trace_id: str, device_id: str) -> pl.DataFrame:
    events = store.frame_of(
        con,
        """
        select thread, ts_ns, address, bytes, allocated_bytes, reserved_bytes, peak_bytes, name, source
        from memory_events where trace_id = ? and device_id = ? order by rowid
        """,
        [trace_id, device_id],
    ).sort("ts_ns", maintain_order=True)
    if not len(events):
        return _frame([{"part": "peak_allocated", "note": _NO_EVENTS}])
    source = str(events["source"][0])
    told = events["allocated_bytes"].null_count() == 0
    if not told:
        total = "peak_reserved" if source == "cuda_calls" else "peak_allocated"
        growth = events["bytes"].fill_null(0).cum_sum()
        at = int(np.argmax(growth.to_numpy()))
        note = _LOWER if source == "cuda_calls" else _NO_TOTALS
        row = {"part": total, "bytes": max(int(growth[at]), 0), "at_ns": int(events["ts_ns"][at])}
        return _frame([row | {"source": source, "note": note}])
    return pl.concat(
        [
            _frame(list(_reserved(events, source))),
            *_allocated(con, trace_id, events, source, _windows(con, trace_id, device_id)),
        ]
    )


def _reserved(events: pl.DataFrame, source: str) -> Iterator[dict[str, object]]:
    """Peak of what the allocator held, with what of it was in use."""
    held = events["reserved_bytes"].fill_null(-1).to_numpy()
    most = np.flatnonzero(held == held.max())
    at = int(most[np.argmax(events["allocated_bytes"].to_numpy()[most])])  # when it was fullest
    if held[at] <= 0:
        return
    used, when = int(events["allocated_bytes"][at]), int(events["ts_ns"][at])
    same = {"source": source, "at_ns": when}
    yield same | {"part": "peak_reserved", "bytes": int(held[at]), "note": "held by the allocator, in use or not"}
    yield same | {"part": "in_use", "part_of": "peak_reserved", "bytes": used}
    cached = {"note": "free blocks that the allocator kept when most of this was in use: fragmentation, pools"}
    yield same | {"part": "cached", "part_of": "peak_reserved", "bytes": int(held[at]) - used} | cached


Window = tuple[int, int, int]
"""Step, begin and end on the host, ns."""


def _windows(con: duckdb.DuckDBPyConnection, trace_id: str, device_id: str) -> list[Window]:
    """Steps on the host: as their marks there say, else from the first launch of one to that of the next."""
    marks = con.execute(
        """
        select s.step, h.start_ns, h.start_ns + h.dur_ns
        from steps s join host_events h
            on h.trace_id = s.trace_id and h.thread = s.mark_thread and h.kind = 'step'
            and try_cast(regexp_extract(h.name, '#(\\d+)$', 1) as bigint) = s.step
        where s.trace_id = ? and s.device_id = ? order by 2
        """,
        [trace_id, device_id],
    ).fetchall()
    if marks:
        return marks
    launched = con.execute(
        """
        select step, min(launch_ns) from ops join steps using (trace_id, device_id, step)
        where trace_id = ? and device_id = ? and source <> 'whole_trace' and launch_ns is not null
        group by step order by 2
        """,
        [trace_id, device_id],
    ).fetchall()
    begins = [begin for _, begin in launched] + [np.iinfo(np.int64).max]
    return [(step, begin, begins[i + 1]) for i, (step, begin) in enumerate(launched)]


def _allocated(
    con: duckdb.DuckDBPyConnection, trace_id: str, events: pl.DataFrame, source: str, windows: list[Window]
) -> Iterator[pl.DataFrame]:
    """The peak of what was in use, of the whole trace and of each step, with its parts."""
    at_ns, in_use = events["ts_ns"].to_numpy(), events["allocated_bytes"].to_numpy()
    peaks: list[tuple[int | None, int]] = [(None, int(np.argmax(in_use)))]
    for step, begin, end in windows:
        first, last = np.searchsorted(at_ns, [begin, end], side="left")
        if last > first:
            peaks.append((step, int(first + np.argmax(in_use[first:last]))))
    addressed = events["address"].null_count() == 0
    ends: Ints | None = None
    if addressed:
        size = events["bytes"].fill_null(-1).to_numpy()
        ends = lifetimes(events["address"].to_numpy(), size)

        def near(start: Ints, end: Ints) -> np.typing.NDArray[np.bool_]:
            return np.searchsorted(at_ns, end, side="left") > np.searchsorted(at_ns, start, side="left")

        why = asked(events, host_spans.load(con, trace_id, events["thread"].drop_nulls().unique().to_list(), near))
    limit = events["peak_bytes"].max()
    for of_step, at in peaks:
        same: dict[str, object] = {"step": of_step, "at_ns": int(at_ns[at]), "source": source}
        total = same | {"part": "peak_allocated", "bytes": int(in_use[at]), "note": _SINCE}
        if of_step is None and isinstance(limit, int) and limit > in_use[at]:
            total["note"] = f"{_SINCE}; the allocator says that {limit:,} bytes were in use before"
        if ends is None:
            yield _frame([total | {"note": _NO_ADDRESS}])
            continue
        since = next((b for n, b, e in windows if b <= at_ns[at] < e and of_step in (None, n)), None)
        parts = parts_at(at, ends, events, why, since, named=of_step is None)
        if any(part["part"] == BEFORE and part["bytes"] < 0 for part in parts):
            yield _frame([total | {"note": _CONTRADICT}])
            continue
        yield _frame([total, *(same | {"part_of": "peak_allocated"} | part for part in parts)])

"""From paths to rows: finds trace files, reads each with the reader that knows it, accounts its time, stores it."""

import datetime
import importlib
import itertools
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import polars as pl

from tracegap.ingest import account, files, manifest, readers, steps, store
from tracegap.ingest.errors import TraceError, UnknownFormat
from tracegap.ingest.intervals import Cover
from tracegap.ingest.spool import Spool
from tracegap.ingest.trace import Device, Trace
from tracegap.models import hardware
from tracegap.models.errors import TracegapError
from tracegap.models.ops import State

_SAME_RUN_NS = 3600 * 10**9
PARSER_VERSION = 1
"""Raised when a reader, a classification or the account changes what is stored."""
_IGNORED = {*manifest.NAMES, "truth.json", "SOURCE.md", "expected.json", "case.json"}
_SUFFIXES = (".json", ".gz", ".zst", ".pb", ".sqlite", ".nsys-rep", ".qdrep")
_REPORTS = (".nsys-rep", ".qdrep")
_STRIP = (".gz", ".zst", ".json", ".trace", ".pt", ".pb", ".xplane", ".sqlite", ".nsys-rep", ".qdrep")


@dataclass(slots=True, kw_only=True)
class Ingested:
    """What became of one file."""

    path: str
    status: str
    """ok, partial (something is lost), already (the same content is stored), failed."""
    format: str | None = None
    run_id: str | None = None
    trace_id: str | None = None
    rank: int | None = None
    ops: int = 0
    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    """One line for a person; None where the file is whole."""

    @property
    def sound(self) -> bool:
        """Whether nothing of the file was lost."""
        return self.status in ("ok", "already")


@cache
def all_readers() -> tuple[ModuleType, ...]:
    """The readers, found by walking `ingest.readers`; names that begin with _ are their helpers."""
    names = sorted(m.name for m in pkgutil.iter_modules(readers.__path__) if not m.name.startswith("_"))
    return tuple(importlib.import_module(f"tracegap.ingest.readers.{name}") for name in names)


def read_trace(path: Path) -> Trace:
    """Reads one file with the reader that knows it.

    Raises:
        TraceError: no reader knows it, or it cannot be read.
    """
    head = files.head_of(path)
    for reader in all_readers():
        if reader.sniff(path.name, head):
            trace: Trace = reader.read(path)
            return trace
    known = ", ".join(str(r.NAME) for r in all_readers())
    raise UnknownFormat(str(path), f"not a trace that any reader knows ({known})", code="foreign")


def find_traces(paths: Sequence[Path]) -> Iterator[Path]:
    """Files given by name, and in folders everything that may be a trace, in order of name.

    In a folder, a report of Nsight Systems whose SQLite export lies beside it is left to that: it holds the same data.

    Raises:
        TracegapError: a path does not exist.
    """
    for path in paths:
        if path.is_dir():
            found = sorted(
                p
                for p in path.rglob("*")
                if p.is_file() and p.name not in _IGNORED and p.name.endswith(_SUFFIXES) and not _hidden(p, path)
            )
            exported = {p.parent / plain_stem(p.name) for p in found if ".sqlite" in p.suffixes}
            yield from (p for p in found if not (p.suffix in _REPORTS and p.parent / plain_stem(p.name) in exported))
        elif path.exists():
            yield path
        else:
            raise TracegapError(f"{path}: no such file or folder")


def plain_stem(name: str) -> str:
    """A file name without the endings that say format and compression."""
    while name.endswith(_STRIP):
        name = next(name.removesuffix(s) for s in _STRIP if name.endswith(s))
    return name


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def ingest_paths(
    con: duckdb.DuckDBPyConnection,
    paths: Sequence[Path],
    *,
    run: str | None = None,
    part: str | None = None,
    progress: Callable[[Path], None] = lambda _: None,
) -> list[Ingested]:
    """Ingests files and folders. A file that fails is named in the result; the others are stored all the same.

    Args:
        con: the open store.
        paths: files and folders.
        run: name of the run that all of them belong to; else by manifest, folder or file.
        part: catalogue id of the hardware, before the manifest's and the name in the trace.
        progress: called with each file before it is read.
    """
    results = []
    for path in find_traces(paths):
        progress(path)
        results.append(_ingest_file(con, path, run, part))
    return results


def _ingest_file(con: duckdb.DuckDBPyConnection, path: Path, run: str | None, part: str | None) -> Ingested:
    try:
        sha256 = store.sha256_of(path)
        trace_id = sha256[:16]
        had = con.execute(
            "select run_id, format, rank, diagnostics from traces where trace_id = ? and parser_version = ?",
            [trace_id, PARSER_VERSION],
        ).fetchall()
        if had:
            return Ingested(
                path=str(path), status="already", run_id=had[0][0], format=had[0][1], rank=had[0][2], trace_id=trace_id
            )
        described = _manifest_for(path)
        trace = read_trace(path)
        _rank_from_name(trace, path)
    except TraceError as e:
        lost = {"code": e.code, "count": 1, "where": "", "message": e.what}
        return Ingested(path=str(path), status="failed", error=str(e), diagnostics=[lost])
    run_id = run or _run_id(con, path, trace, described)
    with store.transaction(con):
        store.remove_trace(con, trace_id)
        store_trace(
            con, trace, trace_id=trace_id, run_id=run_id, path=str(path.resolve()), sha256=sha256, size_bytes=path.stat().st_size,
            described=described, part=part,
        )  # fmt: skip
    lost_rows = [r for r in trace.issues.rows() if r["severity"] != "info"]
    return Ingested(
        path=str(path),
        status="partial" if lost_rows else "ok",
        format=trace.format,
        run_id=run_id,
        trace_id=trace_id,
        rank=trace.rank,
        ops=len(trace.ops),
        diagnostics=[{k: r[k] for k in ("code", "count", "where", "message")} for r in trace.issues.rows()],
        error="; ".join(f"{path}: {r['message']}" + (f" ({r['where']})" if r["where"] else "") for r in lost_rows)
        or None,
    )


def _rank_from_name(trace: Trace, path: Path) -> None:
    """Takes the rank from a file name that says `rank` and a number, where the trace itself says none; notes it."""
    said = re.search(r"rank[-_.]?(\d+)", path.name, re.IGNORECASE)
    if trace.rank is None and said:
        trace.rank = int(said.group(1))
        trace.issues.add("rank_from_name", f"the trace does not say its rank; the file name says {trace.rank}")


def _manifest_for(path: Path) -> manifest.Manifest | None:
    found = manifest.find(path.parent)
    return manifest.load(found) if found else None


def _run_id(con: duckdb.DuckDBPyConnection, path: Path, trace: Trace, described: manifest.Manifest | None) -> str:
    """The manifest's job and run; else the folder where the trace is one rank of several; else the file.

    Ranks of one job agree on their folder, format and number of ranks, and began within an hour of each other; others get a name
    of their own, so that nothing is put together that does not belong together.
    """
    if described and described.run:
        return f"{described.job}/{described.run}" if described.job else described.run
    folder = path.resolve().parent
    stem = plain_stem(path.name)
    several = (trace.world_size or 1) > 1
    names = [folder.name] if several else [stem, f"{folder.name}/{stem}"]
    for name in itertools.chain(names, (f"{names[-1]}~{n}" for n in itertools.count(2))):
        others = con.execute(
            "select t.path, t.format, r.world_size, t.origin_unix_ns from traces t join runs r using (run_id) where run_id = ?",
            [name],
        ).fetchall()
        near = trace.origin_unix_ns or 0
        if all(
            Path(other) == path.resolve()
            or (several and Path(other).parent == folder and (form, size) == (trace.format, trace.world_size)
                and abs((origin or 0) - near) < _SAME_RUN_NS)
            for other, form, size, origin in others
        ):  # fmt: skip
            break
    return name


def store_trace(
    con: duckdb.DuckDBPyConnection,
    trace: Trace,
    *,
    trace_id: str,
    run_id: str,
    path: str,
    sha256: str,
    size_bytes: int | None = None,
    described: manifest.Manifest | None = None,
    part: str | None = None,
    spool: Spool | None = None,
) -> None:
    """Accounts the time of a trace and stores it with its run; `part` goes before the manifest's hardware.

    `spool` holds host events that the reader has not kept in the trace.
    """
    spool = spool or Spool()
    spool.write(trace.host_events)
    waits = spool.waits()
    tag = pl.lit(trace_id).alias("trace_id")
    trace.ops = steps.assign(trace)
    by_device = {d.device_id: d for d in trace.devices}
    ops_parts, window_parts, step_parts, comm_parts = [], [], [], []
    for (device_id,), ops in trace.ops.partition_by("device_id", as_dict=True, maintain_order=True).items():
        device = by_device[str(device_id)]
        accounted = account_device(ops, trace, str(device_id), waits)
        ops_parts.append(accounted.ops)
        window_parts.append(accounted.op_windows)
        comm_parts.append(accounted.comm)
        rank = device.ordinal if device.ordinal is not None else trace.rank
        step_parts.append(
            accounted.steps.with_columns(
                tag,
                pl.lit(run_id).alias("run_id"),
                pl.lit(rank, dtype=pl.Int64).alias("rank"),
                device_id=pl.lit(device_id),
            )
        )
    _put_run(con, run_id, trace, described)
    store.insert_row(
        con,
        "traces",
        {
            "trace_id": trace_id, "run_id": run_id, "rank": trace.rank, "host": trace.host, "path": path,
            "format": trace.format, "framework": trace.framework, "origin_unix_ns": trace.origin_unix_ns,
            "sha256": sha256, "size_bytes": size_bytes, "status": "partial" if trace.issues.lost_data else "ok",
            "diagnostics": trace.issues.rows(), "facts": trace.facts, "parser_version": PARSER_VERSION,
            "ingested_at": store.now(),
        },
    )  # fmt: skip
    for device in trace.devices:
        _put_device(con, trace_id, device, part or (described.hardware if described else None))
    for table, frames in (("ops", ops_parts), ("op_windows", window_parts), ("steps", step_parts)):
        if frames:
            store.insert(con, table, pl.concat(frames).with_columns(tag))
    if comm_parts:
        ranks = {d.device_id: d.ordinal if d.ordinal is not None else trace.rank for d in trace.devices}
        collectives = trace.collectives.join(pl.concat(comm_parts), on="op_id", how="inner")
        rank_of = pl.col("device_id").replace_strict(ranks, return_dtype=pl.Int64).alias("rank")
        store.insert(con, "collectives", collectives.with_columns(tag, rank_of))
    for batch in spool.frames():
        store.insert(con, "host_events", batch.with_columns(tag))
    store.insert(con, "counters", trace.counters.with_columns(tag))


@dataclass(slots=True, kw_only=True)
class Accounted:
    """The account of one device, as rows of the store without their trace."""

    ops: pl.DataFrame
    op_windows: pl.DataFrame
    steps: pl.DataFrame
    comm: pl.DataFrame
    """op_id, device_id, exposed_ns, hidden_ns of communication."""


def account_device(ops: pl.DataFrame, trace: Trace, device_id: str, waits: pl.DataFrame) -> Accounted:
    """Windows, states, shares and idle causes of one device; `waits` are the host's spans of waiting."""
    marks = trace.step_marks.filter(pl.col("device_id").is_null() | (pl.col("device_id") == device_id))
    found = steps.windows_of(ops, marks, trace.issues)
    if found is None:
        raise ValueError(f"device {device_id} has no operation")
    starts = ops["start_ns"].to_numpy()
    ends = starts + ops["dur_ns"].to_numpy()
    states = account.states_of(ops["op_class"])
    windows = found.windows
    if found.source == steps.INFERRED:
        at = np.searchsorted(windows.starts, starts, side="right") - 1
        ops = ops.with_columns(step=pl.Series(at).replace(-1, None).cast(pl.Int64))
    line = account.Timeline.of(starts, ends, states, np.concatenate((windows.starts, windows.ends)))
    shares = account.shares(line, starts, ends, states, windows)
    share_ns = np.zeros(len(ops), dtype=np.int64)
    np.add.at(share_ns, shares.op, shares.share_ns)
    inside = shares.window != account.OUTSIDE
    state_names = np.array([s.value for s in account.WORK_STATES])
    op_windows = pl.DataFrame(
        {
            "op_id": ops["op_id"].to_numpy()[shares.op[inside]],
            "device_id": [device_id] * int(inside.sum()),
            "step": np.array(found.steps, dtype=np.int64)[shares.window[inside]],
            "state": state_names[states[shares.op[inside]]],
            "dur_ns": shares.dur_ns[inside],
            "share_ns": shares.share_ns[inside],
        }
    )
    times = line.states_within(windows.starts, windows.ends)
    thread = marks["thread"].drop_nulls()
    idle = account.idle_by_cause(ops, windows, waits, str(thread[0]) if len(thread) else None)
    step_rows = pl.DataFrame(
        {
            "step": found.steps,
            "start_ns": windows.starts,
            "wall_ns": windows.ends - windows.starts,
            "source": [found.source] * len(found.steps),
            "complete": [r is None for r in found.incomplete],
            "incomplete_reason": pl.Series(found.incomplete, dtype=pl.String),
            "kernels": found.kernels,
            **{f"{s.value}_ns": times[i] for i, s in enumerate((*account.WORK_STATES, State.IDLE))},
            **idle,
        }
    )
    comm_state = account.WORK_STATES.index(State.EXPOSED_COMM)
    compute_state = account.WORK_STATES.index(State.COMPUTE)
    is_comm = states == comm_state
    computing = Cover.of(starts[states == compute_state], ends[states == compute_state])
    hidden = computing.within(starts[is_comm], ends[is_comm])
    comm = pl.DataFrame(
        {
            "op_id": ops["op_id"].to_numpy()[is_comm],
            "device_id": [device_id] * int(is_comm.sum()),
            "exposed_ns": (ends - starts)[is_comm] - hidden,
            "hidden_ns": hidden,
        },
        schema_overrides={"device_id": pl.String},
    )
    return Accounted(
        ops=ops.with_columns(share_ns=pl.Series(share_ns)), op_windows=op_windows, steps=step_rows, comm=comm
    )


def _put_device(con: duckdb.DuckDBPyConnection, trace_id: str, device: Device, given: str | None) -> None:
    """Stores a device with the peaks that the theory is to use: those of the trace, else the catalogue's."""
    chip, matched_by = chip_of(device, given)
    bandwidth = device.stated_peaks.get("hbm_bytes_per_s")
    source = "trace" if bandwidth else ("catalogue" if chip else None)
    if bandwidth is None and chip is not None:
        bandwidth = chip.device_hbm_bytes_per_s
    store.insert_row(
        con,
        "devices",
        {
            "trace_id": trace_id, "device_id": device.device_id, "kind": device.kind, "name": device.name,
            "ordinal": device.ordinal, "hardware": chip.id if chip else None, "matched_by": matched_by,
            "hbm_bytes_per_s": bandwidth, "hbm_source": source, "properties": device.properties,
        },
    )  # fmt: skip
    for unit, dtype, flops_per_s, origin in _peaks(device, chip):
        store.insert_row(
            con,
            "peaks",
            {
                "trace_id": trace_id, "device_id": device.device_id, "unit": unit, "dtype": dtype,
                "flops_per_s": flops_per_s, "source": origin,
            },
        )  # fmt: skip


def chip_of(device: Device, given: str | None) -> tuple[hardware.Chip | None, str]:
    """The part of a device and how it was recognised, or None and why not; `given` is a catalogue id that goes first."""
    if given:
        return hardware.get(given), "named by hand"
    p = device.properties
    match = hardware.match(
        device.name,
        memory_bytes=p.get("memory_bytes"),
        core_count=p.get("core_count"),
        compute_capability=p.get("compute_capability"),
    )
    if match:
        return match.chip, match.matched_by
    return (
        None,
        f"no part of the catalogue is called {device.name!r}" if device.name else "the trace does not name the part",
    )


def _peaks(device: Device, chip: hardware.Chip | None) -> Iterator[tuple[str, str, float, str]]:
    """Unit, dtype, FLOP/s and source of each known peak. What the trace states holds for all units and 16-bit dtypes."""
    stated = device.stated_peaks.get("flops_per_s")
    for dtype in hardware.PEAK_COLUMNS:
        known = chip.device_flops_per_s(dtype) if chip else None
        if stated and dtype in ("bf16", "fp16", "fp32"):
            known, source = stated, "trace"
        else:
            source = f"catalogue: {chip.id}" if chip else ""
        if known:
            yield "matrix", dtype, known, source
    vector = stated or (chip.device_vector_flops_per_s if chip else None)
    if vector:
        yield "vector", "any", vector, "trace" if stated else f"catalogue: {chip.id if chip else ''}"


def _put_run(con: duckdb.DuckDBPyConnection, run_id: str, trace: Trace, described: manifest.Manifest | None) -> None:
    """Makes the run, or adds what this trace knows of it."""
    old = con.execute(
        "select framework, world_size, config, started_at from runs where run_id = ?", [run_id]
    ).fetchall()
    d = described or manifest.Manifest()
    row: dict[str, Any] = {
        "run_id": run_id, "job": d.job or run_id, "simulated": d.simulated, "model": d.model, "mesh": d.mesh,
        "topology": d.topology, "tokens_per_step": d.tokens_per_step, "git_commit": d.git_commit, "tags": d.tags,
    }  # fmt: skip
    frameworks, sizes, config = {trace.framework}, {d.world_size or trace.world_size}, dict(trace.config)
    began = d.started_at or _utc(trace.origin_unix_ns)
    if old:
        frameworks |= set(old[0][0].split("+"))
        sizes.add(old[0][1])
        config = json.loads(old[0][2] or "{}") | config
        began = min((t for t in (began, old[0][3]) if t), default=None)
    row["framework"] = "+".join(sorted(frameworks))
    row["world_size"] = max((s for s in sizes if s), default=None)
    row["config"] = manifest.without_secrets(config) | d.config
    row["started_at"] = began
    con.execute("delete from runs where run_id = ?", [run_id]).fetchall()
    store.insert_row(con, "runs", row)


def _utc(unix_ns: int | None) -> datetime.datetime | None:
    """Naive UTC time of a Unix time in ns."""
    if unix_ns is None:
        return None
    return datetime.datetime.fromtimestamp(unix_ns / 1e9, datetime.UTC).replace(tzinfo=None)

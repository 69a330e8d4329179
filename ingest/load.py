"""One trace into the store: the time of each device accounted, its parts named, its run made or added to."""

import datetime
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest import account, idle, manifest, steps, store
from tracegap.ingest.intervals import Cover, Ints, sums_by
from tracegap.ingest.trace import Device, Trace
from tracegap.models import hardware
from tracegap.models.ops import State

Bools = NDArray[np.bool_]
PARSER_VERSION = 2
"""Raised when a reader, a classification or the account changes what is stored."""


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
    put: Callable[["Sink", str], int] | None = None,
) -> int:
    """Accounts the time of a trace and stores it with its run; the number of operations.

    `part` goes before the manifest's hardware. `put` brings the rows of a trace that was accounted elsewhere, of the run
    that it is given.
    """
    with store.Appender(con) as out:
        stored = put(out, run_id) if put else put_tables(out, trace, trace_id, run_id)
        given = part or (described.hardware if described else None)
        chips = [chip_of(device, given) for device in trace.devices]  # while the last rows are stored
    for device, found in zip(trace.devices, chips, strict=True):
        _put_device(con, trace_id, device, *found)
    _put_run(con, run_id, trace, described)
    store.insert_row(
        con,
        "traces",
        {
            "trace_id": trace_id, "run_id": run_id, "rank": trace.rank, "host": trace.host, "path": path,
            "format": trace.format, "framework": trace.framework, "origin_unix_ns": trace.origin_unix_ns,
            "sha256": sha256, "size_bytes": size_bytes, "status": "partial" if trace.issues.lost_data else "ok",
            "diagnostics": trace.issues.rows(), "facts": trace.facts, "parser_version": PARSER_VERSION,
            "manifest_sha256": described.sha256 if described else None,
            "ingested_at": store.now(),
        },
    )  # fmt: skip
    return stored


class Sink(Protocol):
    """What takes rows of tables of the store."""

    def add(self, table: str, frame: pl.DataFrame, **same: str | int | None) -> None:
        """Takes a frame; `same` are columns with one value for all its rows."""


def put_tables(out: Sink, trace: Trace, trace_id: str, run_id: str) -> int:
    """Host events, and the account of each device in turn; the number of operations."""
    held = []
    for batch in trace.host_batches():
        out.add("host_events", batch, trace_id=trace_id)
        held.append(idle.waits_of(batch))
    waits = pl.concat(held)
    stored = 0
    for device_id, ops in trace.by_device():
        device = next(d for d in trace.devices if d.device_id == device_id)
        rank = device.ordinal if device.ordinal is not None else trace.rank
        accounted = account_device(ops, trace, device_id, waits)
        stored += len(ops)
        del ops  # the next device's are made while the loop still holds these
        out.add("ops", accounted.ops, trace_id=trace_id)
        out.add("op_parts", accounted.op_parts, trace_id=trace_id, device_id=device_id)
        out.add("steps", accounted.steps, trace_id=trace_id, device_id=device_id, rank=rank, run_id=run_id)
        comm = trace.collectives.join(accounted.comm, on="op_id", how="inner")
        out.add("collectives", comm, trace_id=trace_id, device_id=device_id, rank=rank)
        del accounted, comm
    out.add("counters", trace.counters, trace_id=trace_id)
    out.add("memory_events", _on_devices(trace.memory, trace.devices), trace_id=trace_id)
    return stored


def _on_devices(memory: pl.DataFrame, devices: list[Device]) -> pl.DataFrame:
    """Memory events under the name that a device has in the file.

    ROCm numbers devices by node in device work, and as the process sees them in its allocator: where one device has work
    and one other number has memory, they are the same.
    """
    known = {device.device_id for device in devices}
    others = set(memory["device_id"].unique()) - known - {"cpu"}
    if len(others) == 1 and len(known) == 1 and not known & {"cpu", *memory["device_id"].unique()}:
        return memory.with_columns(device_id=pl.col("device_id").replace(others.pop(), next(iter(known))))
    return memory


@dataclass(slots=True, kw_only=True)
class Accounted:
    """The account of one device, as rows of the store without their trace."""

    ops: pl.DataFrame
    """With state and whole, the hidden columns of the view `ops`."""
    op_parts: pl.DataFrame
    """What of them lies in the windows of steps, but for those that lie as a whole in the window of their own."""
    steps: pl.DataFrame
    comm: pl.DataFrame
    """op_id, exposed_ns, hidden_ns of communication."""


def account_device(ops: pl.DataFrame, trace: Trace, device_id: str, waits: pl.DataFrame) -> Accounted:
    """Windows, states, shares and idle causes of one device; `waits` are the host's spans of waiting (`idle`)."""
    marks = steps.marks_of(trace.step_marks, device_id)
    ops = steps.assign(ops, marks, trace.issues)
    steps.note_early_starts(ops, trace.issues)
    found = steps.windows_of(ops.select(*steps.NEEDED), marks, trace.issues)
    if found is None:
        raise ValueError(f"device {device_id} has no operation")
    starts = ops["start_ns"].to_numpy()
    ends = starts + ops["dur_ns"].to_numpy()
    states = account.states_of(ops["op_class"])
    windows = found.windows
    if found.source == steps.WHOLE_TRACE:
        launched = ops["launch_ns"].is_not_null()
        ops = ops.with_columns(step=pl.when(launched if launched.any() else True).then(pl.lit(0, dtype=pl.Int64)))
    if found.source == steps.INFERRED:
        at = np.searchsorted(windows.starts, starts, side="right") - 1
        ops = ops.with_columns(step=pl.Series(at).replace(-1, None).cast(pl.Int64))
    thread = marks["thread"].drop_nulls()
    mark_thread = str(thread[0]) if len(thread) else None
    causes = idle.idle_by_cause(ops, windows, waits, mark_thread)
    comm_state = account.WORK_STATES.index(State.EXPOSED_COMM)
    compute_state = account.WORK_STATES.index(State.COMPUTE)
    is_comm = states == comm_state
    computing = Cover.of(starts[states == compute_state], ends[states == compute_state])
    hidden = computing.within(starts[is_comm], ends[is_comm])
    comm = pl.DataFrame(
        {
            "op_id": ops["op_id"].to_numpy()[is_comm],
            "exposed_ns": (ends - starts)[is_comm] - hidden,
            "hidden_ns": hidden,
        }
    )
    shares = account.shares(starts, ends, states, windows)
    uncut = len(shares.op) == len(ops)  # each operation is one piece, in their order
    share_ns = shares.share_ns if uncut else sums_by(shares.op, shares.share_ns, len(ops))
    state_names = pl.Series([s.value for s in account.WORK_STATES], dtype=pl.Categorical).gather(states)
    step_numbers = np.append(np.array(found.steps, dtype=np.int64), 0)  # the last stands for OUTSIDE
    whole, parts = _whole(shares, step_numbers, ops["step"], uncut=uncut)
    of = shares.op[parts]
    op_parts = pl.DataFrame(
        {
            "op_id": ops["op_id"].to_numpy()[of],
            "step": step_numbers[shares.window[parts]],
            "state": state_names.gather(of),
            "dur_ns": shares.dur_ns[parts],
            "share_ns": shares.share_ns[parts],
        }
    )
    step_rows = pl.DataFrame(
        {
            "step": found.steps,
            "start_ns": windows.starts,
            "wall_ns": windows.ends - windows.starts,
            "source": [found.source] * len(found.steps),
            "complete": [r is None for r in found.incomplete],
            "incomplete_reason": pl.Series(found.incomplete, dtype=pl.String),
            "kernels": found.kernels,
            **{f"{s.value}_ns": shares.times[i] for i, s in enumerate((*account.WORK_STATES, State.IDLE))},
            **causes,
            "mark_thread": pl.Series([mark_thread] * len(found.steps), dtype=pl.String),
        }
    )
    ops = ops.with_columns(share_ns=pl.Series(share_ns), state=state_names, whole=pl.Series(whole))
    return Accounted(ops=ops, op_parts=op_parts, steps=step_rows, comm=comm)


def _whole(shares: account.Shares, step_numbers: Ints, steps: pl.Series, *, uncut: bool) -> tuple[Bools, Ints]:
    """Which operations lie as a whole in the window of their step and in no other; the pieces of all others.

    Args:
        shares: the pieces.
        step_numbers: step of each window; one more for OUTSIDE.
        steps: step of each operation, null where it is not known.
        uncut: each operation is one piece, in their order.
    """
    inside = shares.window != account.OUTSIDE
    known, step = steps.is_not_null().to_numpy(), steps.fill_null(0).to_numpy()
    if uncut:
        whole = inside & known & (step_numbers[shares.window] == step)
        return whole, np.flatnonzero(inside & ~whole)
    whole = np.zeros(len(steps), np.bool_)
    of = shares.op
    alone = np.bincount(of, minlength=len(steps))[of] == 1
    whole[of] = alone & inside & known[of] & (step_numbers[shares.window] == step[of])
    return whole, np.flatnonzero(inside & ~whole[of])


def _put_device(
    con: duckdb.DuckDBPyConnection, trace_id: str, device: Device, chip: hardware.Chip | None, matched_by: str
) -> None:
    """Stores a device with the peaks that the theory is to use: those of the trace, else the catalogue's."""
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
        "select framework, world_size, config, started_at, calibration from runs where run_id = ?", [run_id]
    ).fetchall()
    d = described or manifest.Manifest()
    row: dict[str, Any] = {
        "run_id": run_id, "job": d.job or run_id, "simulated": d.simulated, "model": d.model, "mesh": d.mesh,
        "topology": d.topology, "recipe": d.recipe, "calibration": d.calibration or None,
        "tokens_per_step": d.tokens_per_step, "git_commit": d.git_commit, "tags": d.tags,
    }  # fmt: skip
    frameworks, sizes, config = {trace.framework}, {d.world_size or trace.world_size}, dict(trace.config)
    began = d.started_at or _utc(trace.origin_unix_ns)
    if old:
        frameworks |= set(old[0][0].split("+"))
        sizes.add(old[0][1])
        config = json.loads(old[0][2] or "{}") | config
        began = min((t for t in (began, old[0][3]) if t), default=None)
        row["calibration"] = row["calibration"] or json.loads(old[0][4] or "null")
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

"""The one place where measurement meets theory: fills the tables that the gap views read, run by run."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl

from tracegap.ingest import account, store
from tracegap.ingest.schema import BY_NAME, TABLES, quoted
from tracegap.models import collectives, hardware, transformer
from tracegap.models.errors import TracegapError
from tracegap.models.ops import CollectiveKind, State
from tracegap.reports import findings, matching, planning

VIEWS = {"op_gap": "ops", "collective_gap": "collectives", "step_gap": "steps"}
"""Views and the table whose rows theirs are, in the order in which they build on each other; one file each in `sql/`."""
_SQL = Path(__file__).parent / "sql"
_PIPELINE = ("recv", "send_recv")  # with a known peer: RCCL and NCCL also run all-to-all under the name of send_recv


def install_views(con: duckdb.DuckDBPyConnection) -> None:
    """Creates or replaces the gap views and their comments; a column that a view takes over keeps its own."""
    anywhere = {c.name: c.doc for table in reversed(TABLES) for c in table.columns}
    for name, table in VIEWS.items():
        base = (
            anywhere
            | {c.name: c.doc for c in BY_NAME["steps"].columns}
            | {c.name: c.doc for c in BY_NAME[table].columns}
        )
        text = (_SQL / f"{name}.sql").read_text()
        con.execute(text).fetchall()
        grain, *notes = [line[3:] for line in text.splitlines() if line.startswith("-- ")]
        said = dict(note.split(": ", 1) for note in notes)
        con.execute(f"comment on view {name} is {quoted(grain)}").fetchall()
        columns = con.execute("select column_name from duckdb_columns() where table_name = ?", [name]).fetchall()
        for (column,) in columns:
            meaning = said.get(column) or base.get(column)
            if meaning:
                con.execute(f"comment on column {name}.{column} is {quoted(meaning)}").fetchall()


def load_hardware(con: duckdb.DuckDBPyConnection) -> None:
    """The table `hardware`: the catalogue as it is in this version."""
    rows = [chip.row() for chip in hardware.catalogue().values()]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    con.execute("drop table if exists hardware").fetchall()
    columns = ", ".join(
        f"{name} {'DOUBLE' if dtype.is_float() else 'BIGINT' if dtype.is_integer() else 'VARCHAR'}"
        for name, dtype in frame.schema.items()
    )
    con.execute(f"create table hardware ({columns})").fetchall()
    con.execute("comment on table hardware is 'a chip of the catalogue; units are in the names'").fetchall()
    store.insert(con, "hardware", frame)


def evaluate(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Joins one run with theory: collectives matched and predicted, waits, model FLOPs, findings.

    What an earlier evaluation wrote for the run is replaced.
    """
    found = con.execute(
        "select model, topology, tokens_per_step, world_size from runs where run_id = ?", [run_id]
    ).fetchall()
    if not found:
        raise TracegapError(f"{run_id}: no such run in the store; `tracegap sql 'select run_id from runs'` lists them")
    model, topology, tokens, world_size = (json.loads(v) if isinstance(v, str) else v for v in found[0])
    prepare(con)
    with store.transaction(con):
        traces = [r[0] for r in con.execute("select trace_id from traces where run_id = ?", [run_id]).fetchall()]
        for table in ("collective_matches", "comm_windows", "step_work", "step_theory"):
            con.execute(f"delete from {table} where list_contains(?, trace_id)", [traces]).fetchall()
        _match(con, run_id, topology or {}, world_size)
        for (trace_id, device_id), own in _devices_with_comm(con, run_id):
            store.insert(con, "comm_windows", _split_waits(con, trace_id, device_id, own))
        con.execute((_SQL / "step_work.sql").read_text(), [run_id]).fetchall()
        _step_theory(con, run_id, model, tokens, world_size)
        findings.find(con, run_id)
        con.execute("update runs set evaluated_at = ? where run_id = ?", [store.now(), run_id]).fetchall()


def prepare(con: duckdb.DuckDBPyConnection) -> None:
    """Views and the catalogue, also in a store without any run."""
    with store.transaction(con):
        install_views(con)
        load_hardware(con)


def evaluate_stale(con: duckdb.DuckDBPyConnection, run_ids: Iterable[str]) -> None:
    """Evaluates those of the runs that changed since they were last evaluated, once each."""
    stale = {r[0] for r in con.execute("select run_id from runs where evaluated_at is null").fetchall()}
    for run_id in dict.fromkeys(run_ids):
        if run_id in stale:
            evaluate(con, run_id)


def _match(con: duckdb.DuckDBPyConnection, run_id: str, topology: dict[str, Any], world_size: int | None) -> None:
    """Fills collective_matches and the clocks of the traces."""
    calls = store.frame_of(
        con,
        """
        select c.trace_id, c.op_id, c.device_id, c.rank, o.step, c.collective, c.group_id, c.group_ranks, c.group_size,
               c.seq, c.message_bytes, o.start_ns + coalesce(t.origin_unix_ns, 0) as start_ns, o.dur_ns,
               coalesce(t.origin_unix_ns, 0) as origin_ns, d.hardware
        from collectives c join ops o using (trace_id, op_id) join traces t using (trace_id)
        join devices d on d.trace_id = c.trace_id and d.device_id = c.device_id
        where t.run_id = ? order by c.trace_id, c.op_id
        """,
        [run_id],
    )
    if not len(calls):
        return
    matched = matching.match(calls.select(list(matching.CALL_SCHEMA)))
    calls = _whole_job_groups(con, calls, matched.rows, world_size)
    rows = matched.rows.with_columns(
        (pl.col("arrival_ns") - calls["origin_ns"]).alias("arrival_ns"),
        *_predictions(calls, topology),
    )
    store.insert(con, "collective_matches", rows)
    for trace_id, clock in matched.clocks.items():
        con.execute(
            "update traces set clock_offset_ns = ?, clock_drift_frac = ?, clock_residual_ns = ? where trace_id = ?",
            [clock.offset_ns, clock.drift, clock.residual_ns, trace_id],
        ).fetchall()


def _whole_job_groups(
    con: duckdb.DuckDBPyConnection, calls: pl.DataFrame, rows: pl.DataFrame, world_size: int | None
) -> pl.DataFrame:
    """Sets the size of groups that the traces do not say, where every rank of the job takes part in the collective."""
    partners = rows.select(pl.len().over("instance_id"), pl.col("instance_id").is_not_null().alias("matched"))
    whole = calls["group_size"].is_null() & partners["matched"] & (partners["len"] == (world_size or 0))
    for trace_id, op_id in calls.filter(whole).select("trace_id", "op_id").rows():
        con.execute(
            "update collectives set group_size = ? where trace_id = ? and op_id = ?", [world_size, trace_id, op_id]
        ).fetchall()
    return calls.with_columns(group_size=pl.when(whole).then(pl.lit(world_size)).otherwise("group_size"))


def _predictions(calls: pl.DataFrame, topology: dict[str, Any]) -> list[pl.Series]:
    """predicted_ns and predicted_by of each call; equal calls are predicted once."""
    key = ["hardware", "collective", "message_bytes", "group_size", "group_ranks"]
    different = calls.select(key).unique()
    answers = [predict(*row, topology=topology) for row in different.rows()]
    told = different.with_columns(
        pl.Series("predicted_ns", [a[0] for a in answers], dtype=pl.Int64),
        pl.Series("predicted_by", [a[1] for a in answers], dtype=pl.String),
    )
    of_calls = calls.select(key).join(told, on=key, how="left", nulls_equal=True, maintain_order="left")
    return [of_calls["predicted_ns"], of_calls["predicted_by"]]


def predict(
    chip_id: str | None,
    kind: str | None,
    message_bytes: int | None,
    group_size: int | None,
    group_ranks: str | None,
    *,
    topology: dict[str, Any],
) -> tuple[int | None, str]:
    """Time of a collective by the model, ns, and the model used; None and the reason where something is unknown."""
    missing = [
        name
        for name, value in (("part", chip_id), ("kind", kind), ("size", message_bytes), ("group size", group_size))
        if value is None
    ]
    if missing or chip_id is None or kind is None or message_bytes is None or group_size is None:
        return None, f"unknown {' and '.join(missing)}"
    ranks = json.loads(group_ranks) if group_ranks else list(range(group_size))
    try:
        fabric = collectives.fabric_for(
            hardware.get(chip_id),
            ranks,
            ranks_per_domain=topology.get("ranks_per_domain"),
            torus=topology.get("torus"),
            wrap=topology.get("wrap"),
        )
        prediction = collectives.predict(CollectiveKind(kind), message_bytes, group_size, fabric)
    except TracegapError as e:
        return None, str(e)
    return prediction.total_ns, prediction.model


def _devices_with_comm(con: duckdb.DuckDBPyConnection, run_id: str) -> list[tuple[tuple[str, str], pl.DataFrame]]:
    """Exposed pieces of communication of a run, by trace and device."""
    own = store.frame_of(
        con,
        """
        select w.trace_id, w.device_id, w.op_id, w.step, w.share_ns, o.start_ns, o.dur_ns, s.start_ns as win_start_ns,
               s.start_ns + s.wall_ns as win_end_ns, m.arrival_ns, m.predicted_ns,
               c.collective, c.peer
        from op_windows w
        join ops o using (trace_id, op_id)
        join collectives c using (trace_id, op_id)
        join steps s on s.trace_id = w.trace_id and s.device_id = w.device_id and s.step = w.step
        join collective_matches m using (trace_id, op_id)
        where s.run_id = ? and w.state = ?
        order by w.trace_id, w.device_id, w.op_id, s.start_ns
        """,
        [run_id, State.EXPOSED_COMM.value],
    )
    parts = own.partition_by(["trace_id", "device_id"], as_dict=True, maintain_order=True)
    return [((str(t), str(d)), frame) for (t, d), frame in parts.items()]


def _split_waits(con: duckdb.DuckDBPyConnection, trace_id: str, device_id: str, own: pl.DataFrame) -> pl.DataFrame:
    """Splits the exposed share of each piece into wait, pipeline wait and minimum; the rest is inefficiency.

    The wait is the share of the instants before the arrival; of the rest, the predicted time is the minimum. An
    operation in two windows spends its predicted time in the first of them first.
    """
    share = own["share_ns"].to_numpy()
    wait = np.zeros(len(own), dtype=np.int64)
    if own["arrival_ns"].null_count() < len(own):
        ops = store.frame_of(
            con,
            "select start_ns, dur_ns, op_class from ops where trace_id = ? and device_id = ?",
            [trace_id, device_id],
        )
        starts = ops["start_ns"].to_numpy()
        ends = starts + ops["dur_ns"].to_numpy()
        line = account.Timeline.of(starts, ends, account.states_of(ops["op_class"]), np.empty(0, dtype=np.int64))
        start = own["start_ns"].to_numpy()
        begin = np.maximum(start, own["win_start_ns"].to_numpy())
        end = np.minimum(start + own["dur_ns"].to_numpy(), own["win_end_ns"].to_numpy())
        until = np.clip(own["arrival_ns"].fill_null(np.iinfo(np.int64).min).to_numpy(), begin, np.maximum(begin, end))
        state = np.full(len(own), account.WORK_STATES.index(State.EXPOSED_COMM), dtype=np.int64)
        wait = np.clip(np.rint(line.own_time(begin, until, state)).astype(np.int64), 0, share)
    after = own.select("op_id", predicted=pl.col("predicted_ns").fill_null(0), rest_ns=pl.Series(share - wait))
    spent = pl.col("rest_ns").cum_sum().over("op_id") - pl.col("rest_ns")  # in the windows before
    least = pl.max_horizontal(pl.min_horizontal("rest_ns", pl.col("predicted") - spent), 0)
    minimum = after.select(least).to_series().to_numpy()
    pipeline = (own["collective"].is_in(_PIPELINE).fill_null(value=False) & own["peer"].is_not_null()).to_numpy()
    return own.select("trace_id", "op_id", "device_id", "step").with_columns(
        wait_ns=pl.Series(np.where(pipeline, 0, wait)),
        pipeline_ns=pl.Series(np.where(pipeline, wait, 0)),
        minimum_ns=pl.Series(minimum),
    )


def _step_theory(
    con: duckdb.DuckDBPyConnection,
    run_id: str,
    model: dict[str, Any] | None,
    tokens: int | None,
    world_size: int | None,
) -> None:
    """Model FLOPs of a step on one device, and the peak of the dtype that does most of the matrix arithmetic."""
    devices = con.execute(
        """
        with used as (
            select o.trace_id, o.device_id, o.dtype, p.flops_per_s,
                   row_number() over (partition by o.trace_id, o.device_id order by sum(o.flops) desc, o.dtype) as place
            from ops o join traces t using (trace_id)
            left join peaks p on p.trace_id = o.trace_id and p.device_id = o.device_id
                             and p.unit = 'matrix' and p.dtype = o.dtype
            where t.run_id = ? and o.op_class in ('matmul', 'attention', 'convolution') and o.flops > 0
            group by o.trace_id, o.device_id, o.dtype, p.flops_per_s
        )
        select d.trace_id, d.device_id, u.dtype, u.flops_per_s
        from devices d join traces t using (trace_id)
        left join used u on u.trace_id = d.trace_id and u.device_id = d.device_id and u.place = 1
        where t.run_id = ?
        """,
        [run_id, run_id],
    ).fetchall()
    count = (
        world_size
        or con.execute(
            "select count(*) from (select distinct trace_id, device_id from steps where run_id = ?)", [run_id]
        ).fetchall()[0][0]
    )
    total, note = _model_flops(model, tokens)
    per_device = round(total / count) if total is not None and count else None
    rows = [
        {
            "trace_id": trace_id,
            "device_id": device_id,
            "model_flops": per_device,
            "peak_flops_per_s": peak,
            "mfu_dtype": dtype,
            "mfu_note": note
            if peak
            else f"{note}; no peak of this part for dtype {dtype or '(no matrix product with known FLOPs)'}",
        }
        for trace_id, device_id, dtype, peak in devices
    ]
    schema = {
        "trace_id": pl.String, "device_id": pl.String, "model_flops": pl.Int64, "peak_flops_per_s": pl.Float64,
        "mfu_dtype": pl.String, "mfu_note": pl.String,
    }  # fmt: skip
    steps = store.frame_of(con, "select trace_id, device_id, step, source from steps where run_id = ?", [run_id])
    joined = steps.join(pl.DataFrame(rows, schema=schema), on=["trace_id", "device_id"])
    unmarked = pl.col("source").is_in(["whole_trace", "inferred"])
    store.insert(
        con,
        "step_theory",
        joined.with_columns(
            model_flops=pl.when(~unmarked).then("model_flops"),
            mfu_note=pl.when(unmarked & pl.col("model_flops").is_not_null())
            .then(pl.lit("no MFU: no step is marked, and what stands for one may be more or less than a step"))
            .otherwise("mfu_note"),
        ).drop("source"),
    )


def _model_flops(model: dict[str, Any] | None, tokens: int | None) -> tuple[int | None, str]:
    """FLOPs of one training step over all ranks by the description of the model, and the convention or the reason."""
    if model is None:
        return None, "no MFU: the model is not described; add [model] and tokens_per_step to manifest.toml"
    if tokens is None:
        return None, "no MFU: tokens_per_step is not in the manifest"
    try:
        config = planning.model_of(model)
    except TracegapError as e:
        return None, f"no MFU: {e}"
    mask = "causal attention (half)" if config.causal else "full attention"
    return round(transformer.train_flops(config, tokens)), f"matrix products only, {mask}, no recomputation, no look-up"

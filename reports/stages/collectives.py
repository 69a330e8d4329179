"""Collectives matched over ranks and predicted, the clocks of the traces aligned."""

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.reports import matching, predictions
from tracegap.reports.stage import Run

ORDER = 10
TABLES = ("collective_matches",)
_OF_TWO = ("send", "recv", "send_recv", "permute")  # not all of the group take part


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills collective_matches and the clocks of the traces."""
    calls = store.frame_of(
        con,
        """
        select c.trace_id, c.op_id, c.device_id, c.rank, o.step, c.collective, c.group_id, c.group_ranks, c.group_size,
               c.seq, c.message_bytes, c.peer, c.sent_bytes, c.received_bytes, c.send_splits,
               o.start_ns + coalesce(t.origin_unix_ns, 0) as start_ns, o.dur_ns,
               coalesce(t.origin_unix_ns, 0) as origin_ns, d.hardware
        from collectives c join ops o using (trace_id, op_id) join traces t using (trace_id)
        join devices d on d.trace_id = c.trace_id and d.device_id = c.device_id
        where t.run_id = ? order by c.trace_id, c.op_id
        """,
        [run.run_id],
    )
    if not len(calls):
        return
    matched = matching.match(calls.select(list(matching.CALL_SCHEMA)))
    calls = _whole_job_groups(con, calls, matched.rows, run.world_size)
    rows = matched.rows.with_columns(
        (pl.col("arrival_ns") - calls["origin_ns"]).alias("arrival_ns"),
        *predictions.predictions(
            calls.with_columns(matched.rows["instance_id"]), run.topology, predictions.algorithm_of(run.config)
        ),
    )
    store.insert(con, "collective_matches", _without_the_absent(calls, rows))
    origins = dict(calls.select("trace_id", "origin_ns").unique().rows())
    for trace_id, clock in matched.clocks.items():
        con.execute(
            """
            update traces set clock_offset_ns = ?, clock_drift_frac = ?, clock_residual_ns = ?, clock_error_ns = ?,
                              clock_reference = ?
            where trace_id = ?
            """,
            [clock.at(origins[trace_id]), clock.drift, clock.residual_ns, _error_ns(clock), clock.reference, trace_id],
        ).fetchall()


def _without_the_absent(calls: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Takes back who came last, and when, where a rank of the group is not in the run: it may have come later still."""
    seen = calls.select("group_size", pl.col("collective").is_in(_OF_TWO).alias("of_two")).with_columns(
        rows["instance_id"]
    )
    seen = seen.with_columns(parts=pl.len().over("instance_id"))
    absent = pl.col("instance_id").is_not_null() & (pl.col("parts") < pl.col("group_size")) & ~pl.col("of_two")
    words = pl.format("{} of {} ranks are in the run: who came last is not known", "parts", "group_size")
    told = seen.select(absent=absent.fill_null(value=False), words=words)
    return rows.with_columns(
        *(pl.when(~told["absent"]).then(name).alias(name) for name in ("arrival_ns", "last_rank", "late_ns")),
        matched_by=pl.when(told["absent"])
        .then(pl.format("{}; {}", "matched_by", told["words"]))
        .otherwise("matched_by"),
    )


def _error_ns(clock: matching.Clock) -> int | None:
    """Of the offset against the reference, through messages too where only these lead to it."""
    return max(clock.error_ns or 0, clock.between_ns) if clock.between_ns else clock.error_ns


def _whole_job_groups(
    con: duckdb.DuckDBPyConnection, calls: pl.DataFrame, rows: pl.DataFrame, world_size: int | None
) -> pl.DataFrame:
    """Sets the size of groups that the traces do not say, where every rank of the job takes part in the collective."""
    partners = rows.select(pl.len().over("instance_id"), pl.col("instance_id").is_not_null().alias("matched"))
    whole = calls["group_size"].is_null() & partners["matched"] & (partners["len"] == (world_size or 0))
    store.update(con, "collectives", calls.filter(whole).select("trace_id", "op_id", group_size=pl.lit(world_size)))
    return calls.with_columns(group_size=pl.when(whole).then(pl.lit(world_size)).otherwise("group_size"))

"""Which rank comes last to collectives, how often, by how much, and why; and which are slow though nobody is late."""

import duckdb
import numpy as np
import polars as pl

from tracegap.ingest import idle, store
from tracegap.reports import lateness
from tracegap.reports.stage import Run

ORDER = 35
TABLES = ("late_arrivals",)


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills late_arrivals."""
    calls = store.frame_of(
        con,
        """
        select c.trace_id, c.device_id, c.op_id, c.rank, o.step, c.group_id,
               coalesce(cast(c.group_ranks as varchar), c.group_id, '?') as "group",
               c.collective, m.instance_id, m.last_rank, m.late_ns, m.arrival_ns, m.predicted_ns, o.start_ns, o.dur_ns
        from collectives c join ops o using (trace_id, op_id) join collective_matches m using (trace_id, op_id)
        join traces t using (trace_id)
        where t.run_id = ? and m.arrival_ns is not null and c.rank is not null
        order by c.trace_id, c.device_id, c.op_id
        """,
        [run.run_id],
    )
    if not len(calls):
        return
    waited = (pl.min_horizontal("arrival_ns", pl.col("start_ns") + pl.col("dur_ns")) - pl.col("start_ns")).clip(0)
    calls = lateness.since_the_one_before(calls.with_columns(wait_ns=waited))
    calls = calls.with_columns(cause=lateness.causes(calls, *_spent(con, calls)))
    store.insert(con, "late_arrivals", pl.concat([_late(calls), _slow(calls)]).with_columns(run_id=pl.lit(run.run_id)))


def _spent(con: duckdb.DuckDBPyConnection, calls: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """What the device of each call did since the collective before and in the step, by cause, shape [9, n], ns.

    One device at a time.
    """
    spent, in_step = np.zeros((2, len(lateness.CAUSES), len(calls)), dtype=np.int64)
    late = calls["last_rank"].is_not_null().any()
    rows = calls.with_row_index("row").filter(pl.col("from_ns").is_not_null() & late)
    for (trace_id, device_id), mine in rows.partition_by("trace_id", "device_id", as_dict=True).items():
        ops = store.frame_of(
            con,
            """
            select op_id, start_ns, dur_ns, op_class, launch_ns, launch_thread
            from ops where trace_id = ? and device_id = ? order by start_ns, op_id
            """,
            [trace_id, device_id],
        )
        host = idle.waits_of(
            store.frame_of(
                con,
                "select thread, kind, name, start_ns, dur_ns from host_events "
                "where trace_id = ? and kind in ('input', 'sync', 'collective')",
                [trace_id],
            )
        )
        marks = con.execute(
            "select thread from host_events where trace_id = ? and kind = 'step' group by thread order by count(*) desc, thread",
            [trace_id],
        ).fetchall()
        ledger = lateness.Ledger.of(ops, host, marks[0][0] if marks else None)
        for since, into in (("from_ns", spent), ("step_ns", in_step)):
            into[:, mine["row"].to_numpy()] = ledger.between(mine[since].to_numpy(), mine["start_ns"].to_numpy())
    return spent, in_step


_COLUMNS = (
    "trace_id",
    "device_id",
    "rank",
    "step",
    "group_id",
    "collective",
    "cause",
    "arrivals",
    "late_ns",
    "wait_ns",
)


def _late(calls: pl.DataFrame) -> pl.DataFrame:
    """A row for each rank that came last, with what the others waited for it."""
    others = pl.col("wait_ns").sum().over("instance_id") - pl.col("wait_ns")
    last = calls.with_columns(wait_ns=others).filter(pl.col("cause").is_not_null())
    keys = ["trace_id", "device_id", "rank", "step", "group_id", "collective", "cause"]
    return (
        last.group_by(keys, maintain_order=True)
        .agg(pl.len().cast(pl.Int64).alias("arrivals"), pl.col("late_ns", "wait_ns").sum())
        .select(_COLUMNS)
    )


def _slow(calls: pl.DataFrame) -> pl.DataFrame:
    """A row for the collectives of a group to which nobody came late, and which took longer than they should on all ranks."""
    together = calls.group_by("instance_id", maintain_order=True).agg(
        pl.col("trace_id", "device_id", "step", "group_id", "collective").first(),
        late=pl.col("last_rank").is_not_null().any(),
        beyond=(pl.col("dur_ns") - pl.col("wait_ns")).min() - pl.col("predicted_ns").max(),
        slow=(pl.col("dur_ns") - pl.col("wait_ns")).min() > lateness.SLOW * pl.col("predicted_ns").max(),
        wait_ns=pl.col("wait_ns").sum(),
    )
    found = together.filter(~pl.col("late") & pl.col("slow"))
    return (
        found.group_by("step", "group_id", "collective", maintain_order=True)
        .agg(
            pl.col("trace_id", "device_id").first(),
            rank=pl.lit(None, dtype=pl.Int64),
            cause=pl.lit(lateness.COLLECTIVE),
            arrivals=pl.len().cast(pl.Int64),
            late_ns=pl.col("beyond").sum(),
            wait_ns=pl.col("wait_ns").sum(),
        )
        .select(_COLUMNS)
    )

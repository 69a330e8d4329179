"""What waiting for other stages of a pipeline costs each step, beside what its schedule must cost."""

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.reports import pipeline_shape
from tracegap.reports.stage import Run

ORDER = 55
TABLES = ("pipeline_bubbles",)

_MESSAGES = """
select o.step, c.rank, c.peer, c.collective = 'send' as sends, o.start_ns, o.start_ns + o.dur_ns as end_ns
from collectives c join ops o using (trace_id, op_id) join traces t using (trace_id)
where t.run_id = ? and c.collective in ('send', 'recv') and c.peer is not null and c.rank is not null and o.step is not null
"""
# What an XLA pipeline passes on by permutes waits for the last rank like any collective: the mesh says that it is one.
_WAITS = """
select g.run_id, g.trace_id, g.device_id, g.rank, g.step, s.compute_ns as busy_ns,
       g.idle_pipeline_ns + coalesce(sum(w.wait_ns) filter (c.collective = 'permute' and $pipeline), 0)::bigint as bubble_ns
from step_gap g
join steps s using (trace_id, device_id, step)
left join comm_windows w on w.trace_id = g.trace_id and w.device_id = g.device_id and w.step = g.step
left join collectives c on c.trace_id = w.trace_id and c.op_id = w.op_id
where g.run_id = $run_id
group by g.run_id, g.trace_id, g.device_id, g.rank, g.step, s.compute_ns, g.idle_pipeline_ns
"""


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills pipeline_bubbles."""
    messages = store.frame_of(con, _MESSAGES, [run.run_id])
    if pipeline_shape.recognise(messages, run.mesh, run.config) is None:
        return
    axis = pipeline_shape.recognise(messages.clear(), run.mesh, run.config)
    shapes = {
        int(step): pipeline_shape.recognise(part, run.mesh, run.config)
        for (step,), part in messages.partition_by("step", as_dict=True).items()
    }
    waits = pl.DataFrame(con.sql(_WAITS, params={"run_id": run.run_id, "pipeline": axis is not None}))
    rows = []
    for row in waits.to_dicts():
        shape = shapes.get(row["step"], axis)
        if shape is not None:
            rows.append(
                row
                | {
                    "stage": shape.stage_of.get(row["rank"]),
                    "stages": shape.stages,
                    "microbatches": shape.microbatches,
                    "schedule": shape.schedule,
                    "bubble_over_busy_frac": row["bubble_ns"] / row["busy_ns"] if row["busy_ns"] else None,
                    "plain_over_busy_frac": shape.plain_over_ideal,
                    "schedule_over_busy_frac": shape.schedule_over_ideal,
                    "told_by": shape.told_by,
                }
            )
    if rows:
        store.insert(con, "pipeline_bubbles", pl.DataFrame(rows, schema=_ROWS))


_ROWS = {
    "run_id": pl.String, "trace_id": pl.String, "device_id": pl.String, "rank": pl.Int64, "step": pl.Int64,
    "busy_ns": pl.Int64, "bubble_ns": pl.Int64, "stage": pl.Int64, "stages": pl.Int64, "microbatches": pl.Int64,
    "schedule": pl.String, "bubble_over_busy_frac": pl.Float64, "plain_over_busy_frac": pl.Float64,
    "schedule_over_busy_frac": pl.Float64, "told_by": pl.String,
}  # fmt: skip

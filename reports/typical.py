"""The typical step of a run, spread out for the rules of findings: temporary tables that their queries read.

`typical_step`: the rows of `step_gap` that stand for the run, as in `reports.summary`. `typical_size`: one row with
`n` (device steps, the number of those rows), `devices`, `steps` and `wall_ns` (their mean). `typical_op`: a row a piece of
an operation in such a step with its `unit` (a number), its theory cut at the window as in `step_work`, what each bucket
has of it and, of a collective, its partners. `typical_idle`: a row a piece of idle time with its `unit`, its bucket and
what the host did meanwhile, as in `idle_causes`; what that table does not tell has no activity. No unit is in both.
`typical_host`: a row an event on the host that starts in the window of such a step; Python calls are one row, counted
(`events`).
"""

import contextlib
from collections.abc import Iterator

import duckdb

from tracegap.reports.summary import TYPICAL

TABLES = ("typical_step", "typical_size", "typical_op", "typical_idle", "typical_host")
IDLE_BUCKETS = ("idle_host", "idle_sync", "idle_input", "idle_gap", "idle_unknown")
"""Buckets of `steps` whose pieces are rows of `typical_idle`."""
OP_BUCKETS = (
    "useful_math", "memory_bound", "kernel_inefficiency", "unmodelled_compute", "comm_minimum", "comm_wait",
    "comm_inefficiency", "idle_pipeline", "exposed_copy",
)  # fmt: skip
"""Buckets whose pieces are rows of `typical_op`."""

_SIZE = """
select count(*) as n, count(distinct (trace_id, device_id)) as devices, count(distinct step) as steps,
       avg(wall_ns) as wall_ns
from typical_step
"""
_OP = """
with piece as (
    select
        w.trace_id, w.op_id, w.device_id, w.step, s.rank, s.complete, g.stream, g.name, g.op_class,
        coalesce(g.framework_op, g.name) as operation, g.framework_op, g.module, coalesce(g.shapes::varchar, '') as shapes,
        g.dtype, g.start_ns, g.dur_ns, w.dur_ns as cut_ns, w.share_ns, w.state, g.flops, g.bytes, g.launch_ns, g.launch_thread,
        d.hardware, d.kind as device_kind, d.hbm_bytes_per_s, t.format,
        case when w.dur_ns = g.dur_ns then g.t_math_ns
             else cast(g.t_math_ns::hugeint * w.dur_ns // g.dur_ns as bigint) end as math_ns,
        case when w.dur_ns = g.dur_ns then g.t_min_ns
             else cast(g.t_min_ns::hugeint * w.dur_ns // g.dur_ns as bigint) end as min_ns,
        w.state = 'compute' and g.t_min_ns is not null as modelled,
        cw.wait_ns as waited_ns, cw.pipeline_ns, cw.minimum_ns
    from typical_step s
    join op_windows w using (trace_id, device_id, step)
    join op_gap g using (trace_id, op_id)
    join devices d on d.trace_id = w.trace_id and d.device_id = w.device_id
    join traces t on t.trace_id = w.trace_id
    left join comm_windows cw on cw.trace_id = w.trace_id and cw.op_id = w.op_id and cw.step = w.step
)
select
    row_number() over (order by p.trace_id, p.device_id, p.start_ns, p.op_id, p.step) - 1 as unit, p.*,
    case when modelled then coalesce(math_ns, 0) else 0 end as useful_math_ns,
    case when modelled then min_ns - coalesce(math_ns, 0) else 0 end as memory_bound_ns,
    case when modelled then share_ns - min_ns else 0 end as kernel_inefficiency_ns,
    case when state = 'compute' and not modelled then share_ns else 0 end as unmodelled_compute_ns,
    case when state = 'exposed_comm' then coalesce(minimum_ns, 0) else 0 end as comm_minimum_ns,
    case when state = 'exposed_comm' then coalesce(waited_ns, 0) else 0 end as comm_wait_ns,
    case when state = 'exposed_comm' then coalesce(pipeline_ns, 0) else 0 end as idle_pipeline_ns,
    case when state = 'exposed_comm' then share_ns - coalesce(waited_ns + pipeline_ns + minimum_ns, 0) else 0 end
        as comm_inefficiency_ns,
    case when state = 'exposed_copy' then share_ns else 0 end as exposed_copy_ns,
    c.collective, c.group_id, c.group_ranks, c.group_size, c.message_bytes, c.seq, c.peer, c.exposed_ns, c.hidden_ns,
    c.instance_id, c.last_rank, c.wait_ns, c.transfer_ns, c.predicted_ns, c.busbw_gb_per_s
from piece p left join collective_gap c on c.trace_id = p.trace_id and c.op_id = p.op_id and c.run_id = $run_id
"""
_IDLE = f"""
with bucket as (
    unpivot (
        select trace_id, device_id, rank, step, {", ".join(f"{b}_ns as {b}" for b in IDLE_BUCKETS)} from typical_step
    ) on {", ".join(IDLE_BUCKETS)} into name bucket value bucket_ns
),
known as (
    select trace_id, device_id, s.rank, step, i.cause as bucket, i.activity, i.name, i.idle_ns, i.gaps
    from typical_step s join idle_causes i using (trace_id, device_id, step)
),
told as (
    select trace_id, device_id, step, bucket, sum(idle_ns) as told_ns from known group by all
),
pieces as (
    from known
    union all by name
    select b.trace_id, b.device_id, b.rank, b.step, b.bucket, b.bucket_ns - coalesce(t.told_ns, 0) as idle_ns
    from bucket b left join told t using (trace_id, device_id, step, bucket)
)
select (select count(*) from typical_op) + row_number() over (order by trace_id, device_id, step, bucket, activity, name) - 1
       as unit, *
from pieces where idle_ns > 0
"""

_HOST = """
with inside as (
    select s.trace_id, s.device_id, s.step, h.thread, h.kind, h.name, h.start_ns, h.dur_ns
    from typical_step s
    join host_events h on h.trace_id = s.trace_id and h.start_ns >= s.start_ns and h.start_ns < s.start_ns + s.wall_ns
    where h.kind <> 'memory'
)
select *, 1 as events from inside where kind not in ('python', 'module')
union all by name
select trace_id, device_id, step, 'python' as kind, count(*) as events from inside where kind in ('python', 'module') group by all
"""


@contextlib.contextmanager
def typical(con: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[None]:
    """The temporary tables, while the block runs."""
    queries = (f"with {TYPICAL} select * from typical", _SIZE, _OP, _IDLE, _HOST)
    made = []
    try:
        for table, query in zip(TABLES, queries, strict=True):
            values = {"run_id": run_id} if "$run_id" in query else {}
            con.execute(f"create temp table {table} as {query}", values).fetchall()
            made.append(table)
        yield
    finally:
        for table in made:
            con.execute(f"drop table temp.{table}").fetchall()

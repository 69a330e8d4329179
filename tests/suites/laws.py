"""Laws of the account, each a query for what breaks it."""

from collections.abc import Callable
from typing import Any

from tests.suites.subject import Subject

from tracegap.ingest.idle import CAUSES
from tracegap.reports.buckets import COLUMNS

_STATES = ("compute", "exposed_comm", "exposed_copy", "idle")
_IDLE_CAUSES = tuple(f"{cause}_ns" for cause in CAUSES)

_QUERIES = {
    "buckets add up to the step": f"""
        select trace_id, device_id, step, wall_ns from step_gap where {" + ".join(COLUMNS)} <> wall_ns
    """,
    "states add up to the step": f"""
        select trace_id, device_id, step, wall_ns from steps where {" + ".join(f"{s}_ns" for s in _STATES)} <> wall_ns
    """,
    "idle has a cause": f"""
        select trace_id, device_id, step from steps where {" + ".join(_IDLE_CAUSES)} <> idle_ns
    """,
    "what the host did adds up to each cause of idle": f"""
        with done as (
            select trace_id, device_id, step, cause || '_ns' as cause, sum(idle_ns) as ns from idle_causes group by all
        )
        select trace_id, device_id, step, cause from (
            unpivot (select trace_id, device_id, step, {", ".join(_IDLE_CAUSES)} from steps) on {", ".join(_IDLE_CAUSES)}
            into name cause value want_ns
        ) full join done using (trace_id, device_id, step, cause)
        where coalesce(ns, 0) <> coalesce(want_ns, 0)
        union all by name
        select trace_id, device_id, step, cause from idle_causes where idle_ns <= 0 or gaps <= 0
    """,
    "parts of memory add up": """
        select t.trace_id, t.device_id, t.step, t.part from memory t
        join memory p on p.trace_id = t.trace_id and p.device_id = t.device_id and p.step is not distinct from t.step
                     and p.part_of = t.part and not p.detail
        where t.part_of is null
        group by t.trace_id, t.device_id, t.step, t.part, t.bytes, t.predicted_bytes
        having sum(p.bytes) is distinct from t.bytes or sum(p.predicted_bytes) is distinct from t.predicted_bytes
        union all by name
        select t.trace_id, t.device_id, t.step, t.part from memory t
        join memory p on p.trace_id = t.trace_id and p.device_id = t.device_id and p.step is not distinct from t.step
                     and p.part_of = t.part_of and p.part = t.part and p.detail
        where not t.detail group by t.trace_id, t.device_id, t.step, t.part, t.bytes having sum(p.bytes) <> t.bytes
        union all by name
        select trace_id, device_id, step, part from memory where bytes < 0 or predicted_bytes < 0
        union all by name
        select trace_id, device_id, step, part from memory
        where part_of is null and coalesce(bytes, predicted_bytes) is null and note is null
    """,
    "nothing is negative": f"""
        select trace_id, device_id, step from steps
        where wall_ns < 0 or least({", ".join((*(f"{s}_ns" for s in _STATES), *_IDLE_CAUSES))}) < 0
        union all by name
        select trace_id, device_id, step from ops where dur_ns < 0 or share_ns < 0 or share_ns > dur_ns
    """,
    "windows tile the timeline": """
        select trace_id, device_id, step, start_ns + wall_ns as end_ns,
               lead(start_ns) over (partition by trace_id, device_id order by start_ns, step) as next_ns
        from steps qualify next_ns <> end_ns
    """,
    "shares add up to each state": """
        select s.trace_id, s.device_id, s.step
        from steps s left join (
            select trace_id, device_id, step, sum(share_ns) filter (state = 'compute') as compute_ns,
                   sum(share_ns) filter (state = 'exposed_comm') as comm_ns,
                   sum(share_ns) filter (state = 'exposed_copy') as copy_ns
            from op_windows group by all
        ) w using (trace_id, device_id, step)
        where coalesce(w.compute_ns, 0) <> s.compute_ns or coalesce(w.comm_ns, 0) <> s.exposed_comm_ns
           or coalesce(w.copy_ns, 0) <> s.exposed_copy_ns
    """,
    "shares in windows are shares of the whole": """
        select o.trace_id, o.op_id from ops o join op_windows w using (trace_id, op_id)
        group by all having sum(w.share_ns) > any_value(o.share_ns) or sum(w.dur_ns) > any_value(o.dur_ns)
    """,
    "communication is exposed or hidden": """
        select c.trace_id, c.op_id from collectives c join ops o using (trace_id, op_id)
        where c.exposed_ns + c.hidden_ns <> o.dur_ns or c.exposed_ns < 0 or c.hidden_ns < 0
    """,
    "every collective has its row": """
        select trace_id, op_id from ops anti join collectives using (trace_id, op_id) where op_class = 'collective'
        union all
        select trace_id, op_id from collectives
        anti join (select * from ops where op_class = 'collective') using (trace_id, op_id)
    """,
    "what is known has a source": """
        select trace_id, op_id from ops
        where ((flops is null and bytes is null) <> (cost_source = 'none') and op_class not in ('copy', 'memset'))
           or flops < 0 or bytes < 0
    """,
    "what is unknown has a reason": """
        select trace_id, op_id, name from op_gap where t_min_ns is null and unknown_because is null
    """,
}

_TYPICAL = f"""
    with by_step as (
        select run_id, step, complete, avg(wall_ns) as mean_ns from step_gap group by all
    ),
    usable as (
        select * from by_step qualify complete or not bool_or(complete) over (partition by run_id)
    ),
    ranked as (
        select *, row_number() over (partition by run_id order by mean_ns, step) as place,
               count(*) over (partition by run_id) as steps
        from usable
    ),
    bucket as (
        select g.run_id, {", ".join(f"avg(g.{c}) as {c.removesuffix('_ns')}" for c in COLUMNS)}, avg(g.wall_ns) as wall
        from step_gap g join ranked r using (run_id, step, complete)
        where r.place between (r.steps + 1) // 2 and r.steps // 2 + 1 group by g.run_id
    ),
    claimed as (
        select run_id, unnest(map_entries(cast(evidence -> 'drawn_ns' as map(varchar, bigint))), recursive := true)
        from findings where (evidence -> 'drawn_ns') is not null
    ),
    drawn as (
        select run_id, key as bucket, sum(value) as drawn_ns, min(value) as least_ns from claimed group by all
    )
"""
"""Buckets of the typical step of each run, and what findings draw on them."""

_QUERIES |= {
    "savings are never more than the gap": f"""
        {_TYPICAL}
        select run_id, sum(f.saves_ns) as saves_ns, any_value(wall - useful_math - memory_bound - comm_minimum) as gap_ns
        from findings f join bucket using (run_id) group by run_id
        -- Whole nanoseconds, and sums of floats: half a nanosecond is none.
        having sum(f.saves_ns) > greatest(gap_ns, 0) + 0.5
    """,
    "savings never draw more on a bucket than it has": f"""
        {_TYPICAL}
        select d.run_id, d.bucket, d.drawn_ns, b.ns from drawn d
        left join (unpivot bucket on {", ".join(c.removesuffix("_ns") for c in COLUMNS)} into name bucket value ns) b
        using (run_id, bucket)
        where d.drawn_ns > greatest(coalesce(b.ns, 0), 0) + 0.5 or d.least_ns < 0
    """,
    "what a finding saves is what it draws": """
        with claimed as (
            select rowid as finding, unnest(map_entries(cast(evidence -> 'drawn_ns' as map(varchar, bigint))), recursive := true)
            from findings where (evidence -> 'drawn_ns') is not null
        ),
        added as (
            select finding, sum(value) as drawn_ns, count(*) as buckets from claimed group by finding
        )
        -- Each bucket is rounded down alone.
        select f.run_id, f.kind, f.saves_ns, a.drawn_ns from findings f left join added a on a.finding = f.rowid
        where f.saves_ns is not null and (a.drawn_ns is null or f.saves_ns - a.drawn_ns not between 0 and a.buckets - 1)
           or f.saves_ns <= 0 or f.saves_ns > cast(f.evidence ->> 'alone_ns' as bigint) + 1
    """,
}


def _broken(sql: str) -> Callable[[Subject], list[Any]]:
    return lambda subject: subject.con.execute(f"{sql} limit 5").fetchall()


LAWS = {name: _broken(sql) for name, sql in _QUERIES.items()}
"""First rows that break the law, by its name."""

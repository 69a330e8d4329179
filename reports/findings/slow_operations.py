"""Operations far from their roofline bound, the most expensive ones."""

from tracegap.reports.finding import GRADE, TYPICAL, Rule

RULE = Rule(
    sentence="{operation:name} {shapes:shapes}: {calls:.0f} a step at {efficiency:.0f}% of its roofline bound, "
    "{saves_ns:ns} a step beyond it",
    sql=f"""
        {TYPICAL},
        own as (
            select coalesce(g.framework_op, g.name) as operation, coalesce(g.shapes::varchar, '') as shapes, g.dur_ns,
                   g.t_min_ns, w.share_ns,
                   case when w.dur_ns = g.dur_ns then g.t_min_ns else g.t_min_ns * w.dur_ns / g.dur_ns end as min_ns
            from op_gap g
            join op_windows w using (trace_id, op_id)
            join typical on typical.step = w.step
            where g.run_id = $1 and w.state = 'compute' and g.t_min_ns is not null
        )
        select operation, shapes, count(*) / any_value(devices) / any_value(steps) as calls,
               100.0 * sum(t_min_ns) / nullif(sum(dur_ns), 0) as efficiency,
               cast(sum(share_ns - min_ns) / any_value(devices) / any_value(steps) as bigint) as saves_ns, {GRADE}
        from own, size group by operation, shapes
        having saves_ns > 0.01 * any_value(wall_ns) order by saves_ns desc limit 5
    """,
)

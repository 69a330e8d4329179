"""The same matrix products take longer and longer: the clock of the device falls."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="rank {rank}: the same {kinds} matrix products take {percent:.1f}% longer in the last third of the "
    "steps than in the first: its clocks fall (power or heat limit)",
    query="""
        with numbered as (
            select trace_id, device_id, step, ntile(3) over (partition by trace_id, device_id order by step) as third,
                   count(*) over (partition by trace_id, device_id) as steps
            from steps where run_id = $1 and complete
        ),
        own as (
            select o.trace_id, o.device_id, coalesce(o.framework_op, o.name) as operation, o.name,
                   coalesce(o.shapes::varchar, '') as shapes, median(o.dur_ns) filter (third = 1) as first_ns,
                   median(o.dur_ns) filter (third = 2) as middle_ns,
                   median(o.dur_ns) filter (third = 3) as last_ns, sum(o.dur_ns) as total_ns
            from ops o join numbered n using (trace_id, device_id, step)
            where o.op_class in ('matmul', 'attention', 'convolution') and o.dur_ns > 20000 and n.steps >= 6
            group by all
        ),
        fallen as (
            select trace_id, device_id, operation, name, shapes, first_ns, last_ns, total_ns from own
            where last_ns > 1.03 * first_ns and middle_ns between first_ns and last_ns
        ),
        every as (
            select trace_id, device_id, sum(total_ns) as total_ns from own group by all
        ),
        mean as (
            select f.trace_id, f.device_id, count(*) as kinds,
                   100 * (sum(f.total_ns * f.last_ns / f.first_ns) / sum(f.total_ns) - 1) as percent
            from fallen f join every e using (trace_id, device_id)
            group by f.trace_id, f.device_id having sum(f.total_ns) >= 0.8 * any_value(e.total_ns)
        )
        select any_value(o.rank) as rank, o.device_id, any_value(m.kinds) as kinds, any_value(m.percent) as percent,
               cast(sum(greatest(o.share_ns * (1 - f.first_ns / o.dur_ns), 0)) / any_value(n) as bigint) as saves_ns,
               list(o.unit) as units
        from mean m join fallen f using (trace_id, device_id)
        join typical_op o using (trace_id, device_id, operation, name, shapes), typical_size
        where o.dur_ns > 0 group by o.trace_id, o.device_id having any_value(m.percent) >= 5
    """,
    draws=("kernel_inefficiency",),
    least_frac=0,
    severity="medium",
)

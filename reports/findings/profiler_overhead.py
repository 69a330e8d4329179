"""Time that the profiler itself takes inside steps."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="the profiler itself takes {overhead_ns:ns} of host time a step ({percent:.0f}%, most in {name}): "
    "without it the step is shorter; record fewer things or a longer warm-up",
    query="""
        with own as (
            select h.name, least(h.dur_ns, s.start_ns + s.wall_ns - h.start_ns) as cut_ns
            from typical_step s join typical_host h using (trace_id, device_id, step)
            where h.kind = 'overhead' and h.dur_ns > 0 and not regexp_matches(h.name, 'Module Loading|^dlopen', 'i')
        )
        select cast(sum(cut_ns) / any_value(n) as bigint) as overhead_ns, 100 * sum(cut_ns) / any_value(n) / any_value(z.wall_ns)
               as percent, arg_max(name, cut_ns) as name, count(*) as events
        from own, typical_size z having percent > 1
    """,
    severity="low",
)

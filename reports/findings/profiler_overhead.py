"""Time that the profiler itself takes inside steps."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="the profiler itself takes {overhead_ns:ns} of host time a step ({percent:.0f}%, most in {name}): "
    "without it the step is shorter; record fewer things or a longer warm-up",
    query="""
        with own as (
            select s.wall_ns, h.name, greatest(least(h.start_ns + h.dur_ns, s.start_ns + s.wall_ns) - h.start_ns, 0) as cut_ns
            from typical_step s
            join host_events h on h.trace_id = s.trace_id and h.start_ns >= s.start_ns and h.start_ns < s.start_ns + s.wall_ns
            where h.kind = 'overhead' and h.dur_ns > 0 and not regexp_matches(h.name, 'Module Loading|^dlopen', 'i')
        )
        select cast(sum(cut_ns) / any_value(n) as bigint) as overhead_ns, 100 * sum(cut_ns) / any_value(n) / any_value(z.wall_ns)
               as percent, arg_max(name, cut_ns) as name, count(*) as events
        from own, typical_size z having percent > 1
    """,
    severity="low",
)

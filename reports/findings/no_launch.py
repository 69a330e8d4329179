"""Operations whose launch is not in the file, when they are much."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{percent:.0f}% of device time has no launch in the file and belongs to no step: record a warm-up "
    "step before",
    query="""
        select 100.0 * sum(o.dur_ns) filter (o.launch_ns is null and o.step is null) / nullif(sum(o.dur_ns), 0) as percent,
               count(*) filter (o.launch_ns is null and o.step is null) as operations
        from ops o join traces t using (trace_id)
        where t.run_id = $1 and o.trace_id in (
            select trace_id from steps where run_id = $1 and source not in ('whole_trace', 'inferred'))
        having percent > 5
    """,
    severity="low",
)

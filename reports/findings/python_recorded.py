"""A host that is too slow in a trace that records every Python call."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="the trace records {events:.0f} Python calls a step, which slows the host, and the device idles "
    "{percent:.0f}% of the step waiting for it: without with_stack the host may be fast enough",
    query="""
        with own as (
            select coalesce(sum(events), 0) as events from typical_host where kind = 'python'
        )
        select any_value(events) / count(*) as events, 100 * avg(idle_host_ns) / avg(wall_ns) as percent
        from typical_step, own having any_value(events) > 1000 * count(*) and percent > 5
    """,
    severity="low",
)

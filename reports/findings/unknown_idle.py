"""Idle time whose cause the trace does not tell."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="the device idles {idle_ns:ns} a step ({percent:.0f}%) and the trace does not tell why: record host "
    "activities too",
    query="""
        select cast(avg(idle_unknown_ns) as bigint) as idle_ns, 100 * avg(idle_unknown_ns) / avg(wall_ns) as percent
        from typical_step having percent > 5
    """,
    severity="low",
)

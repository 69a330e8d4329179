"""Collectives that could not be matched over ranks."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{count} collectives could not be matched over ranks ({why}): their waiting is not known",
    query="""
        select m.matched_by as why, count(*) as count
        from collective_matches m join traces t using (trace_id)
        where t.run_id = $1 and m.arrival_ns is null group by m.matched_by
    """,
)

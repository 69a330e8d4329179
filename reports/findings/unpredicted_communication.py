"""Exposed communication for which no minimum can be said."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="what {exposed_ns:ns} a step ({percent:.0f}%) of exposed communication should take is not known, "
    "most of it because: {why}",
    query="""
        with own as (
            select o.share_ns, m.predicted_by from typical_op o join collective_matches m using (trace_id, op_id)
            where o.state = 'exposed_comm' and m.predicted_ns is null
        )
        select cast(sum(share_ns) / any_value(n) as bigint) as exposed_ns,
               100 * sum(share_ns) / any_value(n) / any_value(wall_ns) as percent,
               (select predicted_by from own group by predicted_by order by sum(share_ns) desc, predicted_by limit 1) as why,
               count(*) / any_value(n) as calls
        from own, typical_size having percent > 5
    """,
    severity="low",
)

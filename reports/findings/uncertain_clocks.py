"""Ranks whose clocks do not agree well enough for what is said of waiting."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="after alignment the clocks of the ranks disagree by up to {residual_ns:ns}, and ranks wait "
    "{wait_ns:ns} a collective: who is late by less than that is not known",
    query="""
        with clocks as (
            select max(clock_residual_ns) as residual_ns from traces where run_id = $1
        )
        select any_value(residual_ns) as residual_ns, cast(avg(wait_ns) as bigint) as wait_ns, count(*) as calls
        from typical_op, clocks where instance_id is not null and wait_ns > 0
        having any_value(residual_ns) > 0.5 * avg(wait_ns)
    """,
    severity="low",
)

"""Steps left out of averages."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="step {step} is left out of averages: {reason}",
    query="""
        select step, any_value(incomplete_reason) as reason, count(*) as devices
        from steps where run_id = $1 and not complete group by step order by step limit 5
    """,
)

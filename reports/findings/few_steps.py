"""Too few complete steps to trust their end."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="complete steps: {steps}. Nothing marks the end of the last one, so what the host does after its last "
    "operation is not in it; record three or more",
    query="""
        select count(distinct step) as steps from steps
        where run_id = $1 and complete and source not in ('whole_trace', 'inferred')
        having count(distinct step) between 1 and 2
           and count(distinct step) = (select count(distinct step) from steps where run_id = $1)
    """,
)

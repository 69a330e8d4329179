"""Steps that only a repeating pattern tells."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="no step is marked: a repeating pattern of {kernels:.0f} operations stands for one, which may be a layer; "
    "mark steps to be sure",
    query="""
        select median(kernels) as kernels, count(*) as steps from steps
        where run_id = $1 and source = 'inferred' having count(*) > 0
    """,
    severity="low",
)

"""Graph launches whose kernels are not in the trace."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{percent:.0f}% of compute is {calls:.0f} graph launches a step whose kernels the trace does not "
    "show: record them (Nsight: --cuda-graph-trace=node)",
    query="""
        select 100.0 * sum(share_ns) filter (op_class = 'graph') / nullif(sum(share_ns), 0) as percent,
               count(*) filter (op_class = 'graph') / any_value(n) as calls
        from typical_op, typical_size where state = 'compute' having percent > 5
    """,
    severity="low",
)

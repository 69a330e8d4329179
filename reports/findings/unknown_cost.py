"""Compute whose cost is not known, when it is much."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{percent:.0f}% of compute time has no known cost, most of it in {operation:name}: {why}",
    query="""
        with compute as (
            select coalesce(framework_op, name) as operation, unknown_because, share_ns, t_min_ns
            from op_gap where run_id = $1 and op_class not in ('collective', 'copy', 'memset')
        ),
        total as (
            select 100.0 * sum(share_ns) filter (t_min_ns is null) / nullif(sum(share_ns), 0) as percent from compute
        )
        select percent, operation, any_value(unknown_because) as why, sum(share_ns) as share_ns
        from compute, total where t_min_ns is null and percent > 5
        group by percent, operation order by share_ns desc limit 1
    """,
    severity="low",
)

"""Operations faster than their bound: a number is wrong, or the data came from cache."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{operation:name} takes {percent:.0f}% of its bound: its FLOPs, its bytes or the peak are wrong, "
    "or its data came from cache",
    query="""
        with ticks as (
            -- Old traces have whole microseconds: an operation may be a tick longer than it says.
            select trace_id, case when bool_and(dur_ns % 1000 = 0) then 1000 else 0 end as tick_ns
            from ops group by trace_id
        )
        select coalesce(framework_op, name) as operation, op_class, count(*) as calls, sum(dur_ns) as dur_ns,
               sum(t_min_ns) as t_min_ns, 100.0 * sum(dur_ns) / sum(t_min_ns) as percent
        from op_gap join ticks using (trace_id)
        where run_id = $1 and t_min_ns is not null and op_class not in ('collective', 'copy', 'memset')
          and dur_ns + tick_ns < t_min_ns
        group by operation, op_class having sum(dur_ns) < 0.98 * sum(t_min_ns)
        order by sum(t_min_ns) - sum(dur_ns) desc limit 5
    """,
    severity="low",
)

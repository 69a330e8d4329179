"""Idle because the host has not begun to launch, and what it did instead."""

from tracegap.reports.finding import REST, Rule, Turn

RULE = Rule(
    sentence="the device idles {alone_ns:ns} a step ({percent:.1f}%) because the host has not begun to launch"
    "[[; most of it ({most_percent:.0f}%) {doing}]]" + REST,
    query="""
        with did as (
            select activity, sum(idle_ns) as idle_ns, arg_max(name, idle_ns) filter (name is not null) as name
            from typical_idle where bucket = 'idle_host' and activity is not null group by activity
        ),
        most as (
            select activity, name, idle_ns, case activity
                       when 'operator' then 'in operators' when 'python' then 'in Python' when 'annotation' then 'in named ranges'
                       when 'launch' then 'in launch calls' when 'runtime' then 'in other calls of the runtime'
                       when 'thread_wait' then 'waiting for other threads'
                       when 'nothing_recorded' then 'in nothing that was recorded'
                       else 'in ' || replace(activity, '_', ' ') end || coalesce(' (longest in ' || name || ')', '') as doing
            from did order by idle_ns desc, activity limit 1
        )
        select cast(avg(s.idle_host_ns) as bigint) as saves_ns, 100 * avg(s.idle_host_ns) / avg(s.wall_ns) as percent,
               any_value(m.activity) as activity, any_value(m.doing) as doing,
               100 * any_value(m.idle_ns) / nullif(sum(s.idle_host_ns), 0) as most_percent
        from typical_step s left join most m on true having saves_ns > 0
    """,
    draws=("idle_host",),
    turn=Turn.REST,
)

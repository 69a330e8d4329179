"""Exposed communication that compute of the same step could hide."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{collective}[[ over {group_size} ranks]]: {exposed_ns:ns} of {dur_ns:ns} a step runs with nothing "
    "beside it, while {free_ns:ns} of compute runs without communication: overlap them",
    query="""
        with compute as (
            select sum(compute_ns) as compute_ns from typical_step
        ),
        hidden as (
            select coalesce(sum(hidden_ns * cut_ns / nullif(dur_ns, 0)), 0) as hidden_ns
            from typical_op where op_class = 'collective'
        ),
        own as (
            select o.*, greatest(c.compute_ns - h.hidden_ns, 0) as free_ns from typical_op o, compute c, hidden h
            where o.op_class = 'collective' and o.collective not in ('barrier', 'send', 'recv')
        )
        select collective, group_size, cast(sum(cut_ns) / any_value(n) as bigint) as dur_ns,
               cast(sum(share_ns - comm_wait_ns - idle_pipeline_ns) / any_value(n) as bigint) as exposed_ns,
               cast(any_value(free_ns) / any_value(n) as bigint) as free_ns,
               -- That it is slow or waits is told elsewhere: only what it must take is asked for here.
               cast(least(sum(comm_minimum_ns), any_value(free_ns)) / any_value(n) as bigint) as saves_ns, list(unit) as units
        from own, typical_size group by collective, group_size having exposed_ns > 0.5 * dur_ns
    """,
    draws=("comm_minimum",),
    least_frac=0.02,
    config="overlap|prefetch|no_sync",
)

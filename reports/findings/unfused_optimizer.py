"""An optimizer that updates its parameters with many kernels where one could."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="the optimizer runs {calls:.0f} kernels a step and takes {share_ns:ns}: use its fused form (fused=True)"
    "[[, which reads and writes {percent:.0f}% of the bytes]]",
    query="""
        with spans as (
            select trace_id, start_ns, start_ns + dur_ns as end_ns from host_events
            where kind = 'annotation' and name like 'Optimizer.step#%'
        ),
        own as (
            select o.* from typical_op o
            join spans h on h.trace_id = o.trace_id and o.launch_ns >= h.start_ns and o.launch_ns < h.end_ns
            where o.state = 'compute' and o.device_kind = 'gpu'
        ),
        total as (
            -- Adam: one pass reads parameter, gradient and two moments and writes three of them; addcdiv moves four tensors.
            select *, sum(bytes) filter (operation ilike '%addcdiv%') over () * 7 / 4 / nullif(sum(bytes) over (), 0) as needs_frac
            from own
        )
        select count(*) / any_value(n) as calls, cast(sum(share_ns) / any_value(n) as bigint) as share_ns,
               case when max(needs_frac) < 1 then 100 * max(needs_frac) end as percent,
               cast(sum(kernel_inefficiency_ns) * (1 - percent / 100) / any_value(n) as bigint) as kernel_inefficiency_saves_ns,
               cast(sum(memory_bound_ns) * (1 - percent / 100) / any_value(n) as bigint) as memory_bound_saves_ns,
               list(unit) as units
        from total, typical_size
        having calls > 30 and share_ns > 0.01 * any_value(wall_ns) and not bool_or(operation ilike '%fused_adam%')
    """,
    draws=("kernel_inefficiency", "memory_bound"),
    severity="medium",
    config="fused|foreach|optim",
)

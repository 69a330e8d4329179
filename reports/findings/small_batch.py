"""Matrix products that read weights for few rows: memory, not arithmetic, is their limit."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{calls:.0f} matrix products a step are bound by memory ({percent:.0f}% of compute, {intensity:.0f} "
    "FLOP a byte where the part needs {ridge:.0f}): more rows a product (a larger batch, less splitting) would "
    "use the arithmetic that is there",
    query="""
        with own as (
            select o.*, p.flops_per_s / o.hbm_bytes_per_s as ridge,
                   o.op_class = 'matmul' and o.modelled and o.memory_bound_ns > o.useful_math_ns as starved
            from typical_op o left join peaks p on p.trace_id = o.trace_id and p.device_id = o.device_id and p.unit = 'matrix'
                                               and p.dtype = o.dtype
            where o.state = 'compute'
        )
        select count(*) filter (starved) / any_value(n) as calls,
               100.0 * sum(share_ns) filter (starved) / nullif(sum(share_ns), 0) as percent,
               sum(flops) filter (starved) / nullif(sum(bytes) filter (starved), 0) as intensity,
               max(ridge) filter (starved) as ridge,
               -- The same products as part of larger ones: their arithmetic stays, what memory adds to it goes.
               cast(sum(memory_bound_ns) filter (starved) / any_value(n) as bigint) as saves_ns,
               list(unit) filter (starved) as units
        from own, typical_size having percent >= 20
    """,
    draws=("memory_bound",),
    least_frac=0.05,
    config="batch|micro",
)

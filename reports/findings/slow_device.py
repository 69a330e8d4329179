"""One device of several that takes longer for the same matrix products than the others."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="rank {rank} takes {percent:.1f}% longer than the median device for the same {kinds} matrix "
    "products: a slower part, lower clocks or other work on it; swap or drain it",
    query="""
        with own as (
            select trace_id, device_id, rank, operation, name, shapes, median(dur_ns) as dur_ns, sum(share_ns) as share_ns,
                   list(unit) as units
            from typical_op
            where op_class in ('matmul', 'attention', 'convolution') and cut_ns = dur_ns and dur_ns > 20000 and state = 'compute'
            group by all
        ),
        peer as (
            select operation, name, shapes, median(dur_ns) as peer_ns from own group by all having count(*) >= 3
        )
        select rank, device_id, count(*) as kinds,
               100 * (sum(o.share_ns) / sum(o.share_ns * p.peer_ns / o.dur_ns) - 1) as percent,
               cast((sum(o.share_ns) - sum(o.share_ns * p.peer_ns / o.dur_ns)) / any_value(n) as bigint) as saves_ns,
               flatten(list(o.units)) as units
        from own o join peer p using (operation, name, shapes), typical_size
        -- Nearly all of them: a rank with other work is slower in some.
        group by trace_id, device_id, rank having percent >= 4 and avg(cast(o.dur_ns > 1.02 * p.peer_ns as int)) >= 0.8
    """,
    draws=("kernel_inefficiency",),
    least_frac=0,
    severity="medium",
)

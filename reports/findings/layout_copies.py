"""Time that only moves or converts data on the device: transposes, contiguous copies, casts."""

from tracegap.reports.finding import REST, Rule, Turn

RULE = Rule(
    sentence="{calls:.0f} kernels a step only move or convert data, {share_ns:ns} ({percent:.0f}% of compute), "
    "most in {operation:name}: keep one layout and dtype, or let the compiler fuse the conversion into its user" + REST,
    query="""
        with own as (
            select *, op_class = 'data_movement'
                      or operation in ('aten::copy_', 'aten::contiguous', 'aten::clone', 'aten::_to_copy') as moves
            from typical_op where state = 'compute'
        )
        select count(*) filter (moves) / any_value(n) as calls,
               (select operation from own where moves group by operation order by sum(share_ns) desc, operation limit 1)
               as operation,
               cast(sum(share_ns) filter (moves) / any_value(n) as bigint) as share_ns,
               100.0 * sum(share_ns) filter (moves) / nullif(sum(share_ns), 0) as percent,
               cast(sum(kernel_inefficiency_ns) filter (moves) / any_value(n) as bigint) as kernel_inefficiency_saves_ns,
               cast(sum(memory_bound_ns) filter (moves) / any_value(n) as bigint) as memory_bound_saves_ns,
               cast(sum(unmodelled_compute_ns) filter (moves) / any_value(n) as bigint) as unmodelled_compute_saves_ns,
               list(unit) filter (moves) as units
        from own, typical_size having percent >= 5
    """,
    draws=("kernel_inefficiency", "memory_bound", "unmodelled_compute"),
    turn=Turn.GROUP,
    least_frac=0.02,
)

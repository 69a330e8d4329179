"""Operations far from their roofline bound, the most expensive ones."""

from tracegap.reports.finding import REST, Rule, Turn

RULE = Rule(
    sentence="{operation:name} {shapes:shapes}: {calls:.0f} a step at {efficiency:.0f}% of its roofline bound, "
    "{alone_ns:ns} a step beyond it" + REST,
    query="""
        select operation, shapes, count(*) / any_value(n) as calls,
               100.0 * sum(min_ns) / nullif(sum(cut_ns), 0) as efficiency,
               cast(sum(kernel_inefficiency_ns) / any_value(n) as bigint) as saves_ns, list(unit) as units
        from typical_op, typical_size where state = 'compute' and modelled
        group by operation, shapes having saves_ns > 0.01 * any_value(wall_ns) order by saves_ns desc limit 5
    """,
    draws=("kernel_inefficiency",),
    turn=Turn.GROUP,
)

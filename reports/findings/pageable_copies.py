"""Copies from or to memory of the host that is not pinned, beside which nothing runs."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{calls:.0f} copies a step from or to pageable memory run alone for {alone_ns:ns}: pin the memory "
    "(pin_memory=True) and copy with non_blocking=True",
    query="""
        select count(*) / any_value(n) as calls, sum(bytes) / any_value(n) as bytes,
               cast(sum(exposed_copy_ns) / any_value(n) as bigint) as saves_ns, list(unit) as units
        from typical_op, typical_size where state = 'exposed_copy' and name ilike '%pageable%' having count(*) > 0
    """,
    draws=("exposed_copy",),
    config="pin_memory|non_blocking",
)

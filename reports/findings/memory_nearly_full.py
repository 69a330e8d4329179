"""Device memory that is nearly used up: the allocator frees and asks again, and synchronises."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="rank {rank} reserves {reserved_bytes:bytes} of {memory_bytes:bytes}[[ ({allocated_bytes:bytes} in "
    "use at most)]]: near the limit the allocator frees and allocates inside steps; lower the peak or defragment "
    "(expandable_segments)",
    query="""
        with peak as (
            select c.trace_id, c.device_id, max(value) filter (c.name = 'reserved_bytes') as reserved_bytes,
                   max(value) filter (c.name = 'allocated_bytes') as allocated_bytes
            from counters c join traces t using (trace_id) where t.run_id = $1 group by all
        )
        select t.rank, p.device_id, p.reserved_bytes, p.allocated_bytes,
               cast(d.properties ->> 'memory_bytes' as double) as memory_bytes
        from peak p join devices d using (trace_id, device_id) join traces t using (trace_id)
        where p.reserved_bytes > 0.95 * cast(d.properties ->> 'memory_bytes' as double)
    """,
    severity="medium",
)

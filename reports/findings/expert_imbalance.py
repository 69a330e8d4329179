"""All-to-all in which ranks send very different amounts: experts that are not loaded alike."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="all_to_all over {group_size} ranks: rank {most} sends {times:.1f} times the mean: experts are not "
    "loaded alike; balance the router (auxiliary loss, capacity) or place experts anew",
    query="""
        with instance as (
            select instance_id, step, any_value(group_size) as group_size, arg_max(rank, message_bytes) as most,
                   max(message_bytes) / nullif(avg(message_bytes), 0) as times, list(unit) as units,
                   sum(comm_wait_ns) as wait_ns, count(*) as members
            from typical_op where collective = 'all_to_all' and instance_id is not null and message_bytes is not null
            group by instance_id, step having members > 1
        )
        select group_size, mode(most) as most, avg(times) as times, count(*) as calls,
               cast(sum(wait_ns) / any_value(n) as bigint) as saves_ns, flatten(list(units)) as units
        from instance, typical_size group by group_size having avg(times) >= 1.2
    """,
    draws=("comm_wait",),
    least_frac=0.005,
    config="router|expert|capacity|moe",
)

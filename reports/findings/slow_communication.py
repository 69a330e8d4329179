"""Exposed communication beyond waiting and the minimum of the collective model, by collective and size of group."""

from tracegap.reports.finding import REST, Rule, Turn

RULE = Rule(
    sentence="{collective}[[ over {ranks}]]: {calls:.0f} a step[[ of {mean_bytes:bytes} on average]]"
    "[[, bus bandwidth {busbw:digits} GB/s]]; {exposed_ns:ns} a step exposed[[ beyond {known}]][[, {unknown}]]" + REST,
    query="""
        with own as (
            select coalesce(collective, 'communication of unknown kind') as collective, group_size, message_bytes, busbw_gb_per_s,
                   comm_inefficiency_ns, unit, predicted_ns is not null as predicted, wait_ns is not null as matched
            from typical_op where state = 'exposed_comm'
        )
        select collective, group_size,
               case when group_size is not null then group_size || if(group_size = 1, ' rank', ' ranks') end as ranks,
               count(*) / any_value(n) as calls, avg(message_bytes) as mean_bytes, median(busbw_gb_per_s) as busbw,
               case when bool_and(predicted and matched) then 'the minimum and waiting'
                    when bool_and(predicted) then 'the minimum' when bool_and(matched) then 'waiting' end as known,
               case when not bool_and(matched) then 'waiting for ranks that are not matched included' end as unknown,
               cast(sum(comm_inefficiency_ns) / any_value(n) as bigint) as exposed_ns,
               -- Without a minimum nobody knows how much of it could go.
               case when bool_and(predicted) then exposed_ns end as saves_ns,
               case when saves_ns is null then if(exposed_ns > 0.05 * any_value(wall_ns), 'high', 'medium') end as severity,
               list(unit) as units
        from own, typical_size group by collective, group_size having exposed_ns > 0.01 * any_value(wall_ns)
    """,
    draws=("comm_inefficiency",),
    turn=Turn.GROUP,
)

"""Exposed communication beyond waiting and the minimum of the collective model, by collective and size of group."""

from tracegap.reports.finding import TYPICAL, Rule

RULE = Rule(
    sentence="{collective}[[ over {ranks}]]: {calls:.0f} a step[[ of {mean_bytes:bytes} on average]]"
    "[[, bus bandwidth {busbw:digits} GB/s]]; {exposed_ns:ns} a step exposed[[ beyond {known}]][[, {unknown}]]",
    sql=f"""
        {TYPICAL},
        own as (
            select g.collective, g.group_size, g.message_bytes, g.busbw_gb_per_s, w.share_ns,
                   coalesce(c.wait_ns + c.pipeline_ns + c.minimum_ns, 0) as explained_ns,
                   g.predicted_ns is not null as predicted, g.instance_id is not null as matched
            from collective_gap g
            join op_windows w using (trace_id, op_id)
            join typical on typical.step = w.step
            left join comm_windows c on c.trace_id = w.trace_id and c.op_id = w.op_id and c.step = w.step
            where g.run_id = $1
        )
        select coalesce(collective, 'communication of unknown kind') as collective, group_size,
               case when group_size is not null then group_size || if(group_size = 1, ' rank', ' ranks') end as ranks,
               count(*) / any_value(devices) / any_value(steps) as calls, avg(message_bytes) as mean_bytes,
               median(busbw_gb_per_s) as busbw,
               case when bool_and(predicted and matched) then 'the minimum and waiting'
                    when bool_and(predicted) then 'the minimum' when bool_and(matched) then 'waiting' end as known,
               case when not bool_and(matched) then 'waiting for ranks that are not matched included' end as unknown,
               cast(sum(share_ns - explained_ns) / any_value(devices) / any_value(steps) as bigint) as exposed_ns,
               -- Without a minimum nobody knows how much of it could go.
               case when bool_and(predicted) then exposed_ns end as saves_ns,
               case when exposed_ns > 0.05 * any_value(wall_ns) then 'high' else 'medium' end as severity
        from own, size group by collective, group_size having exposed_ns > 0.01 * any_value(wall_ns)
    """,
)

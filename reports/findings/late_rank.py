"""The rank that the others wait for in most steps."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="rank {last_rank} arrives last in {late} of {steps} steps[[ ({why})]]; the others wait {others_ns:ns} a step for it",
    query="""
        with exposed as (
            select c.step, g.last_rank, sum(c.wait_ns) as wait_ns
            from collective_gap g
            join comm_windows c using (trace_id, op_id)
            join steps s on s.trace_id = c.trace_id and s.device_id = c.device_id and s.step = c.step and s.complete
            where g.run_id = $1 and g.last_rank is not null group by all
        ),
        blamed as (
            select step, last_rank, row_number() over (partition by step order by wait_ns desc) as place from exposed
        ),
        late as (
            select last_rank, count(*) as late, (select count(distinct step) from exposed) as steps
            from blamed where place = 1 group by last_rank
        ),
        reason as (
            -- What the rank had more of than the others, by how much later it came for it; and how much later it came than
            -- the last but one, which is all that mending it can save.
            select rank as last_rank, arg_max(cause, cause_ns) as cause, sum(typical_ns) as late_ns from (
                select a.rank, a.cause, sum(a.late_ns) as cause_ns,
                       sum(a.late_ns) filter (a.step in (select step from typical_step)) as typical_ns
                from late_arrivals a where a.run_id = $1 and a.rank is not null group by a.rank, a.cause
            ) group by rank
        ),
        idle as (
            select i.rank as last_rank, i.bucket, sum(i.idle_ns) as idle_ns, list(i.unit) as units
            from typical_idle i group by i.rank, i.bucket
        ),
        told as (
            select l.last_rank, any_value(l.late) as late, any_value(l.steps) as steps, any_value(r.cause) as cause,
                   sum(o.comm_wait_ns) as wait_ns, list(o.unit) as units, any_value(r.late_ns) as late_ns
            from late l join typical_op o using (last_rank) left join reason r using (last_rank)
            where l.late >= 0.5 * l.steps
            group by l.last_rank
        )
        -- What the others wait, and what mending it saves: their waiting and its own idle time for the same reason, both as
        -- means over the devices, and no more than it came later than the last but one.
        select t.last_rank, t.late, t.steps,
               case t.cause
                   when 'compute' then 'it computes longer' when 'communication' then 'other collectives take it longer'
                   when 'copy' then 'it copies longer' when 'host' then 'its host launches late'
                   when 'sync' then 'its host synchronises' when 'input' then 'it waits for data'
                   when 'pipeline' then 'it waits for another stage' when 'gap' then 'its launches take longer' end as why,
               cast(t.wait_ns / nullif(z.devices - 1, 0) / z.steps as bigint) as others_ns,
               least(t.wait_ns / z.n, coalesce(t.late_ns, 0) / z.steps * (z.devices - 1) / z.devices) as comm_wait_saves_ns,
               case when t.cause = 'input' then least(i.idle_ns / z.n, t.late_ns / z.steps / z.devices) end as idle_input_saves_ns,
               case when t.cause = 'host' then least(i.idle_ns / z.n, t.late_ns / z.steps / z.devices) end as idle_host_saves_ns,
               case when t.cause = 'sync' then least(i.idle_ns / z.n, t.late_ns / z.steps / z.devices) end as idle_sync_saves_ns,
               list_concat(t.units, coalesce(i.units, [])) as units
        from told t left join idle i on i.last_rank = t.last_rank and i.bucket = 'idle_' || t.cause, typical_size z
    """,
    draws=("comm_wait", "idle_input", "idle_host", "idle_sync"),
    least_frac=0.005,
)

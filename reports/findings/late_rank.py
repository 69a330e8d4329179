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
            -- What the rank had more of than the others, by how much later it came for it.
            select rank as last_rank, arg_max(cause, cause_ns) as cause from (
                select rank, cause, sum(late_ns) as cause_ns from late_arrivals
                where run_id = $1 and rank is not null and cause <> 'unknown' group by rank, cause
            ) group by rank
        )
        -- What the others wait; and what mending it saves: the mean over all ranks, one of which does not wait.
        select l.last_rank, any_value(l.late) as late, any_value(l.steps) as steps,
               case any_value(r.cause)
                   when 'compute' then 'it computes longer' when 'communication' then 'other collectives take it longer'
                   when 'copy' then 'it copies longer' when 'host' then 'its host launches late'
                   when 'sync' then 'its host synchronises' when 'input' then 'it waits for data'
                   when 'pipeline' then 'it waits for another stage' when 'gap' then 'its launches take longer' end as why,
               cast(sum(o.comm_wait_ns) / nullif(any_value(z.devices) - 1, 0) / any_value(z.steps) as bigint) as others_ns,
               cast(sum(o.comm_wait_ns) / any_value(z.n) as bigint) as saves_ns, list(o.unit) as units
        from late l join typical_op o using (last_rank) left join reason r using (last_rank), typical_size z
        where l.late >= 0.5 * l.steps
        group by l.last_rank
    """,
    draws=("comm_wait",),
    least_frac=0.005,
)

"""The rank that the others wait for in most steps."""

from tracegap.reports.finding import GRADE, TYPICAL, Rule

RULE = Rule(
    sentence="rank {last_rank} arrives last in {late} of {steps} steps; the others wait {others_ns:ns} a step for it",
    sql=f"""
        {TYPICAL},
        exposed as (
            select w.step, g.last_rank, sum(c.wait_ns) as wait_ns
            from collective_gap g
            join op_windows w using (trace_id, op_id)
            join step on step.step = w.step
            join comm_windows c on c.trace_id = w.trace_id and c.op_id = w.op_id and c.step = w.step
            where g.run_id = $1 and g.last_rank is not null group by all
        ),
        blamed as (
            select step, last_rank, row_number() over (partition by step order by wait_ns desc) as place from exposed
        ),
        late as (
            select last_rank, count(*) as late, (select count(distinct step) from exposed) as steps
            from blamed where place = 1 group by last_rank
        )
        -- What the others wait; and what mending it saves: the mean over all ranks, one of which does not wait.
        select l.last_rank, any_value(l.late) as late, any_value(l.steps) as steps,
               cast(sum(e.wait_ns) / nullif(any_value(size.devices) - 1, 0) / any_value(size.steps) as bigint) as others_ns,
               cast(sum(e.wait_ns) / any_value(size.devices) / any_value(size.steps) as bigint) as saves_ns, {GRADE}
        from late l join exposed e using (last_rank) join typical on typical.step = e.step, size
        where l.late >= 0.5 * l.steps
        group by l.last_rank having saves_ns > 0.005 * any_value(size.wall_ns)
    """.replace("any_value(wall_ns)", "any_value(size.wall_ns)"),
)

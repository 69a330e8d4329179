"""Compilation in the middle of a run: of steps that should all run what was compiled before."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="the device waits for the host to compile in {steps} of {all_steps} steps, {compile_ns:ns} in all"
    "[[ (most in {name})]]: "
    "sizes or guards change from step to step; mark them dynamic or pad them",
    query="""
        with counted as (
            select trace_id, device_id, step, row_number() over (partition by trace_id, device_id order by start_ns) as place
            from steps where run_id = $1 and source not in ('whole_trace', 'inferred')
        )
        -- The first step may compile.
        select count(distinct step) as steps, (select count(distinct step) from counted) as all_steps,
               cast(sum(i.idle_ns) as bigint) as compile_ns, arg_max(i.name, i.idle_ns) as name,
               count(distinct (trace_id, device_id)) as devices
        from idle_causes i join counted c using (trace_id, device_id, step)
        where i.activity = 'compilation' and i.idle_ns > 0 and c.place > 1 having steps >= 2
    """,
    severity="medium",
)

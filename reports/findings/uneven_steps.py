"""Steps that take much longer than the typical one."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{slow} of {steps} steps take more than 1.2 times the typical {typical_ns:ns}, the slowest "
    "{slowest_ns:ns} (step {slowest}): `tracegap explain RUN --step {slowest}` says why",
    query="""
        with step as (
            select step, avg(wall_ns) as wall_ns from steps
            where run_id = $1 and complete and source not in ('inferred', 'whole_trace') group by step
        )
        select count(*) filter (s.wall_ns > 1.2 * z.wall_ns) as slow, count(*) as steps,
               cast(any_value(z.wall_ns) as bigint) as typical_ns,
               cast(max(s.wall_ns) as bigint) as slowest_ns, arg_max(s.step, s.wall_ns) as slowest,
               avg(s.wall_ns) / any_value(z.wall_ns) as mean_over_typical
        from step s, typical_size z having count(*) >= 4 and slow > 0
    """,
    severity="medium",
)

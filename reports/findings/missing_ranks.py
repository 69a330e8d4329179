"""Ranks of the job without a trace."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{have} of {world_size} ranks are there: what the others did is unknown",
    query="""
        with job as (select world_size from runs where run_id = $1),
        present as (select distinct rank from traces where run_id = $1 and rank is not null),
        absent as (select unnest(range(world_size)) as rank from job except select rank from present)
        select (select count(*) from present) as have, world_size, list(absent.rank order by absent.rank) as missing
        from job, absent group by world_size having have > 0
    """,
    severity="medium",
)

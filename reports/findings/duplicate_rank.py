"""Several files of one rank."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="rank {rank} is there {files} times: {paths}",
    query="""
        select rank, count(*) as files, string_agg(path, ', ' order by path) as paths from traces
        where run_id = $1 and rank is not null group by rank having count(*) > 1
    """,
    severity="high",
)

"""What a reader could not read."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{path}: {message}",
    query="""
        select t.path, d.value ->> 'message' as message, d.value ->> 'code' as code, d.value ->> 'where' as place
        from traces t, json_each(t.diagnostics) d where t.run_id = $1 and d.value ->> 'severity' <> 'info'
    """,
    severity="high",
)

"""Devices that the catalogue does not know."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{where}: {matched_by}; its peaks are unknown: name it in manifest.toml (hardware = ...) or with "
    "`tracegap ingest --hardware`, or add models/chips/<part>.toml",
    query="""
        select case when count(distinct d.device_id) = 1 then 'device ' || any_value(d.device_id)
                    else count(distinct d.device_id) || ' devices' end as where,
               d.name, d.matched_by, count(*) as devices, list(distinct d.device_id order by d.device_id) as device_ids
        from devices d join traces t using (trace_id)
        where t.run_id = $1 and d.hardware is null and d.hbm_bytes_per_s is null group by d.name, d.matched_by
    """,
    severity="low",
)

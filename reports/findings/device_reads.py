"""Values that the host reads from the device: it waits until they are there."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{operator}, {calls:.0f} times a step: the host waits for the device to read a value; the device "
    "then idles up to {alone_ns:ns}; keep the value on the device, or read it every so many steps",
    query="""
        with reads as (
            select trace_id, device_id, step, name, dur_ns from typical_host
            where kind = 'op' and name in ('aten::_local_scalar_dense', 'aten::nonzero', 'aten::_unique2', 'aten::equal')
        ),
        waits as (
            select trace_id, device_id, step, list(unit) as units, sum(idle_ns) as idle_ns from typical_idle
            where bucket = 'idle_sync' group by all
        ),
        by_step as (
            select r.trace_id, r.device_id, r.step, count(*) as calls, sum(r.dur_ns) as read_ns, mode(r.name) as operator
            from reads r group by all
        )
        select case mode(operator) when 'aten::_local_scalar_dense' then '.item()' else mode(operator) end as operator,
               sum(calls) / any_value(n) as calls, cast(sum(read_ns) / any_value(n) as bigint) as read_ns,
               cast(sum(least(read_ns, idle_ns)) / any_value(n) as bigint) as saves_ns, flatten(list(units)) as units
        from by_step join waits using (trace_id, device_id, step), typical_size having count(*) > 0
    """,
    draws=("idle_sync",),
    config="log|print|clip|item",
)

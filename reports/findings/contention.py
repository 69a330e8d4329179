"""Kernels that are slower while communication runs beside them than without."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="beside communication the same kernels take {percent:.0f}% longer ({slower} kinds of operation were "
    "seen with and without it), {alone_ns:ns} a step: fewer channels for communication (NCCL_MAX_NCHANNELS), or "
    "other work beside it",
    query="""
        with comm as (
            select trace_id, device_id, step, start_ns, start_ns + dur_ns as end_ns from typical_op where op_class = 'collective'
        ),
        own as (
            select o.unit, o.operation, o.shapes, o.name, o.cut_ns, o.share_ns, o.dur_ns, o.trace_id, o.device_id,
                   exists (select 1 from comm c where c.trace_id = o.trace_id and c.device_id = o.device_id
                           and c.start_ns <= o.start_ns and c.end_ns >= o.start_ns + o.dur_ns) as beside,
                   exists (select 1 from comm c where c.trace_id = o.trace_id and c.device_id = o.device_id
                           and c.start_ns < o.start_ns + o.dur_ns and c.end_ns > o.start_ns) as touched
            from typical_op o where o.state = 'compute' and o.modelled and o.cut_ns = o.dur_ns and o.dur_ns > 20000
        ),
        alone as (
            select trace_id, device_id, operation, name, shapes, median(dur_ns) as alone_ns, count(*) as calls from own
            where not touched group by all having count(*) >= 3
        ),
        pair as (
            select o.*, a.alone_ns from own o join alone a using (trace_id, device_id, operation, name, shapes) where o.beside
        )
        select 100.0 * (sum(dur_ns) / sum(alone_ns) - 1) as percent, count(distinct (operation, name, shapes)) as slower,
               count(*) / any_value(n) as calls, cast(sum(dur_ns - p.alone_ns) / any_value(n) as bigint) as saves_ns,
               list(unit) as units
        from pair p, typical_size having percent >= 10 and count(*) >= 3
    """,
    draws=("kernel_inefficiency",),
    config="nccl.*(channel|cta)",
)

"""Code for the device that is loaded when it is first needed, in the middle of steps."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="the host loads code for the device in the middle of steps, {loading_ns:ns} a step "
    "({percent:.0f}%): record more warm-up steps, or load it at the start (CUDA_MODULE_LOADING=EAGER)",
    query="""
        with own as (
            select dur_ns from typical_host
            where dur_ns > 0 and regexp_matches(name, 'Module Loading|^cu(Module|Library)Load|^hipModuleLoad', 'i')
        )
        select cast(sum(dur_ns) / any_value(n) as bigint) as loading_ns,
               100 * sum(dur_ns) / any_value(n) / any_value(wall_ns) as percent,
               count(*) as events
        from own, typical_size having percent > 1
    """,
    severity="low",
)

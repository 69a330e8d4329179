"""Kernels that have less to do than a launch takes."""

from tracegap.models.silicon import LAUNCH_FLOOR_US
from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{calls:.0f} kernels a step ({percent:.0f}% of them) have less than {floor_us:.0f} µs of work each "
    "and take {share_ns:ns} together: fuse or batch them (torch.compile, foreach, larger microbatches)",
    query=f"""
        with floored as (
            select *, case device_kind when 'gpu' then {LAUNCH_FLOOR_US["gpu"]} when 'tpu' then {LAUNCH_FLOOR_US["tpu"]} end
                      as floor_us
            from typical_op where state = 'compute'
        )
        select count(*) filter (tiny) / any_value(n) as calls, 100.0 * count(*) filter (tiny) / count(*) as percent,
               max(floor_us) as floor_us, cast(sum(share_ns) filter (tiny) / any_value(n) as bigint) as share_ns,
               -- What they have to do would still be done.
               cast(sum(kernel_inefficiency_ns) filter (tiny) / any_value(n) as bigint) as saves_ns,
               list(unit) filter (tiny) as units
        from (select *, modelled and min_ns < 1000 * floor_us and dur_ns < 10000 as tiny from floored), typical_size
        having calls >= 20 and percent >= 20
    """,
    draws=("kernel_inefficiency",),
    least_frac=0.02,
)

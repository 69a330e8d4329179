"""Many short waits for the host between kernels: it launches them more slowly than they run."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{gaps:.0f} times a step the device waits less than 50 µs ({mean_ns:ns} on average) for the next launch, "
    "{alone_ns:ns} in all: the host launches {kernels:.0f} operations of {median_ns:ns} one by one; capture them in a graph "
    "(CUDA graphs, torch.compile, jit) or fuse them",
    query="""
        with line as (
            select trace_id, device_id, step, start_ns, launch_ns, max(start_ns + dur_ns) over (
                       partition by trace_id, device_id, step order by start_ns, unit
                       rows between unbounded preceding and 1 preceding
                   ) as busy_until_ns
            from typical_op
        ),
        short as (
            -- As in the account: from when the launch began it is idle_gap, before idle_host.
            select start_ns - busy_until_ns as wait_ns, start_ns - greatest(least(launch_ns, start_ns), busy_until_ns) as gap_ns
            from line where start_ns > busy_until_ns and start_ns - busy_until_ns < 50000
              -- What was launched well before waits in the queue of the device, not for the host.
              and launch_ns > busy_until_ns - 5000
        ),
        waits as (
            select count(*) as gaps, avg(wait_ns) as mean_ns, sum(gap_ns) as gap_ns, sum(wait_ns - gap_ns) as host_ns from short
        ),
        kernels as (
            select count(*) as kernels, median(dur_ns) as median_ns from typical_op where state <> 'exposed_copy'
        ),
        pieces as (
            select list(unit) as units, coalesce(sum(idle_ns) filter (bucket = 'idle_host'), 0) as host_ns,
                   coalesce(sum(idle_ns) filter (bucket = 'idle_gap'), 0) as gap_ns
            from typical_idle
            where bucket in ('idle_host', 'idle_gap') and (activity is null
                  or activity in ('operator', 'python', 'annotation', 'launch', 'runtime', 'device', 'nothing_recorded'))
        )
        select w.gaps / n as gaps, w.mean_ns, k.kernels / n as kernels, k.median_ns,
               cast(least(w.host_ns, p.host_ns) / n as bigint) as idle_host_saves_ns,
               cast(least(w.gap_ns, p.gap_ns) / n as bigint) as idle_gap_saves_ns, p.units
        from waits w, kernels k, pieces p, typical_size where w.gaps / n >= 20
    """,
    draws=("idle_host", "idle_gap"),
    least_frac=0.03,
    config="graph|compile|capture|eager",
)

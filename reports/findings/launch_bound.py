"""Many short waits for the host between kernels: it launches them more slowly than they run."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="{gaps:.0f} times a step the device waits {mean_ns:ns} on average for the next launch, "
    "{alone_ns:ns} in all: the host launches {kernels:.0f} kernels of {median_ns:ns} one by one; capture them in "
    "a graph (CUDA graphs, torch.compile, jit) or fuse them",
    query="""
        with short as (
            select *, row_number() over () as i from typical_idle
            where bucket in ('idle_host', 'idle_gap') and gaps > 0 and idle_ns / gaps < 50000
              and activity in ('operator', 'python', 'launch', 'nothing_recorded')
        ),
        kernels as (
            select count(*) as kernels, median(dur_ns) as median_ns from typical_op where state <> 'exposed_copy'
        )
        select sum(gaps) / any_value(n) as gaps, sum(idle_ns) / sum(gaps) as mean_ns,
               any_value(k.kernels) / any_value(n) as kernels, any_value(k.median_ns) as median_ns,
               cast(sum(idle_ns) filter (bucket = 'idle_host') / any_value(n) as bigint) as idle_host_saves_ns,
               cast(sum(idle_ns) filter (bucket = 'idle_gap') / any_value(n) as bigint) as idle_gap_saves_ns,
               list(unit) as units
        from short, kernels k, typical_size having gaps >= 20
    """,
    draws=("idle_host", "idle_gap"),
    least_frac=0.03,
    config="graph|compile|capture|eager",
)

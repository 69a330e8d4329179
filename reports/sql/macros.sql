-- overlap_ns(a_start, a_end, b_start, b_end): time that two intervals have in common, ns
create or replace macro overlap_ns(a_start, a_end, b_start, b_end) as
    greatest(least(a_end, b_end) - greatest(a_start, b_start), 0);
-- union_ns(list(start_ns), list(dur_ns)): time that at least one of some intervals covers, ns
create or replace macro union_ns(starts, durations) as
    list_reduce(
        list_sort(list_transform(list_zip(starts, durations), lambda x: {'s': x[1], 'e': x[1] + x[2], 'covered': x[2]})),
        -- What is covered so far, and how far it reaches.
        lambda a, b: {
            's': a.s,
            'e': greatest(a.e, b.e),
            'covered': a.covered + greatest(b.e - greatest(a.e, b.s), 0)
        },
        {'s': 0::bigint, 'e': -9223372036854775807, 'covered': 0::bigint}
    ).covered;
-- ms(ns): nanoseconds as milliseconds
create or replace macro ms(ns) as ns / 1e6;
-- us(ns): nanoseconds as microseconds
create or replace macro us(ns) as ns / 1e3;
-- busy_intervals(trace, device): rows start_ns, end_ns, operations of the intervals in which anything runs on a device
create or replace macro busy_intervals(of_trace, of_device) as table
    with op as (
        select
            start_ns, start_ns + dur_ns as end_ns,
            max(start_ns + dur_ns) over (order by start_ns, dur_ns rows between unbounded preceding and 1 preceding) as reach_ns
        from ops where trace_id = of_trace and device_id = of_device
    ),
    numbered as (
        select *, count(*) filter (reach_ns is null or start_ns > reach_ns) over (order by start_ns, end_ns rows unbounded preceding)
            as interval
        from op
    )
    select min(start_ns) as start_ns, max(end_ns) as end_ns, count(*) as operations
    from numbered group by interval order by start_ns;

-- a collective on a rank with its partners and what it should have cost
-- trace_id: trace, a traces.trace_id
-- run_id: run of the trace
-- step: step that launched it
-- axis: axis of the mesh that the group is; NULL = see axis_source
-- axis_source: how the axis is known, or why it is not
-- instance_id: number of the collective within the run, equal on all its ranks; NULL = not matched
-- arrival_ns: latest start over the ranks, on the clock of this trace, ns; NULL = not matched
-- wait_ns: arrival less own start, ns; NULL = not matched
-- transfer_ns: end less arrival, ns; NULL = not matched
-- algbw_gb_per_s: message over transfer time (over duration where not matched), 10^9 bytes a second
-- busbw_gb_per_s: algbw times the factor of nccl-tests, 10^9 bytes a second
-- busbw_vs_measured_frac: busbw over the measured ceiling of the calibration; NULL = none is given
-- bandwidth_over: transfer or duration: the time that the bandwidths are taken over
-- predicted_ns: time of the collective model, ns; NULL = unknown
-- efficiency_frac: predicted_ns over the time that bandwidth_over names
create or replace view collective_gap as
with matched as (
    select
        c.trace_id, c.op_id, t.run_id, c.rank, c.device_id, o.step, o.name, o.stream, o.start_ns, o.dur_ns, c.collective,
        c.group_id, c.group_ranks, c.group_size, c.seq, c.message_bytes, c.dtype, c.peer, c.exposed_ns, c.hidden_ns,
        coalesce(own.bytes_per_s, any_kind.bytes_per_s) as ceiling_bytes_per_s,
        g.axis, g.axis_source, c.sent_bytes, c.received_bytes, m.instance_id, m.matched_by, m.arrival_ns, m.last_rank,
        m.late_ns, m.predicted_ns, m.predicted_by, m.tuned_ns, m.tuned_by,
        case when m.arrival_ns is not null
             then greatest(least(m.arrival_ns, o.start_ns + o.dur_ns) - o.start_ns, 0) end as wait_ns
    from collectives c
    join ops o using (trace_id, op_id)
    join traces t using (trace_id)
    left join collective_matches m using (trace_id, op_id)
    left join ceilings own on own.trace_id = c.trace_id and own.device_id = c.device_id and own.kind = 'busbw'
                          and own.collective = c.collective
    left join ceilings any_kind on any_kind.trace_id = c.trace_id and any_kind.device_id = c.device_id
                               and any_kind.kind = 'busbw' and any_kind.collective is null
    left join collective_groups g on g.run_id = t.run_id and g.group_id = c.group_id
),
timed as (
    select
        *,
        dur_ns - wait_ns as transfer_ns,
        nullif(coalesce(dur_ns - wait_ns, dur_ns), 0) as basis_ns,
        case collective
            when 'all_reduce' then 2 * (group_size - 1) / nullif(group_size, 0)
            when 'all_gather' then (group_size - 1) / nullif(group_size, 0)
            when 'reduce_scatter' then (group_size - 1) / nullif(group_size, 0)
            when 'all_to_all' then (group_size - 1) / nullif(group_size, 0)
            when 'gather' then (group_size - 1) / nullif(group_size, 0)
            when 'scatter' then (group_size - 1) / nullif(group_size, 0)
            when 'barrier' then null
            else case when collective is not null then 1 end
        end as bus_factor
    from matched
)
select
    trace_id, op_id, run_id, rank, device_id, step, name, stream, start_ns, dur_ns, collective, group_id, group_ranks,
    group_size, axis, axis_source, seq, message_bytes, sent_bytes, received_bytes, dtype, peer, exposed_ns, hidden_ns,
    instance_id, matched_by, last_rank, late_ns,
    arrival_ns, wait_ns, transfer_ns,
    message_bytes / basis_ns as algbw_gb_per_s,
    message_bytes / basis_ns * bus_factor as busbw_gb_per_s,
    message_bytes / basis_ns * bus_factor * 1e9 / ceiling_bytes_per_s as busbw_vs_measured_frac,
    case when transfer_ns is null then 'duration' else 'transfer' end as bandwidth_over,
    predicted_ns,
    predicted_by,
    tuned_ns,
    tuned_by,
    predicted_ns / basis_ns as efficiency_frac
from timed;

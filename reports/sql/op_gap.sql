-- an operation with what it should have cost
-- trace_id: trace, a traces.trace_id
-- run_id: run of the trace
-- rank: rank; for a file that holds several devices, the device ordinal
-- t_math_ns: FLOPs over the dense peak of the math dtype, ns; NULL = FLOPs or peak unknown
-- t_mem_ns: bytes over memory bandwidth, ns; NULL = bytes or bandwidth unknown
-- t_comm_ns: time of the collective model, ns; NULL = no collective, or not predicted
-- t_min_ns: the largest of those that apply, ns; by memory alone where cost_note says so; NULL = one that applies is unknown
-- bound: which of them it is: compute, memory, communication
-- efficiency_frac: t_min_ns over the duration
-- t_measured_ns: t_min_ns with the measured ceilings of the calibration in place of peaks, ns; NULL = none is given that applies
-- efficiency_vs_measured_frac: t_measured_ns over the duration; NULL = see there
-- gap_ns: what it takes beyond t_min_ns: its share for compute, its duration for communication and copies, ns
-- unknown_because: why there is no t_min_ns
create or replace view op_gap as
with priced as (
    select
        o.*,
        t.run_id,
        coalesce(d.ordinal, t.rank) as rank,
        o.op_class = 'collective' as is_collective,
        -- The limit of a copy to or from the host is not the memory of the device.
        o.op_class <> 'copy' or o.name ilike '%DtoD%' as at_memory,
        d.hbm_bytes_per_s,
        -- The one peak that a trace states holds for all of it, also where the dtype is not known.
        case when o.op_class in ('matmul', 'attention', 'convolution')
             then coalesce(m.flops_per_s, case when v.source = 'trace' then v.flops_per_s end)
             else coalesce(v.flops_per_s, m.flops_per_s) end as peak_flops_per_s,
        c.predicted_ns,
        c.predicted_by,
        -- Measured ceilings: those of matrix products hold for matrix products only.
        case when o.op_class in ('matmul', 'attention', 'convolution') then e.flops_per_s end as measured_flops_per_s,
        h.bytes_per_s as measured_hbm_bytes_per_s
    from ops o
    join traces t using (trace_id)
    join devices d using (trace_id, device_id)
    left join peaks m on m.trace_id = o.trace_id and m.device_id = o.device_id and m.unit = 'matrix' and m.dtype = o.dtype
    left join peaks v on v.trace_id = o.trace_id and v.device_id = o.device_id and v.unit = 'vector'
    left join ceilings e on e.trace_id = o.trace_id and e.device_id = o.device_id and e.kind = 'matmul' and e.dtype = o.dtype
    left join ceilings h on h.trace_id = o.trace_id and h.device_id = o.device_id and h.kind = 'hbm'
    left join collective_matches c on c.trace_id = o.trace_id and c.op_id = o.op_id
),
timed as (
    select
        *,
        case when is_collective then null
             when flops = 0 then 0
             else cast(round(flops * 1e9 / peak_flops_per_s) as bigint) end as t_math_ns,
        case when is_collective or not at_memory then null
             when bytes = 0 then 0
             else cast(round(bytes * 1e9 / hbm_bytes_per_s) as bigint) end as t_mem_ns,
        predicted_ns as t_comm_ns,
        -- Kernels that memory bounds by nature: a compiler's tell their buffers and not their arithmetic. What they move is a
        -- lower bound; their FLOPs stay unknown and add nothing to useful math.
        flops is null and op_class in (
            'elementwise', 'reduction', 'normalization', 'softmax', 'data_movement', 'embedding', 'sort'
        ) as by_memory_alone
    from priced
),
bounded as (
    select
        *,
        case when is_collective then t_comm_ns
             when by_memory_alone then t_mem_ns
             when t_math_ns is null or t_mem_ns is null then null
             else greatest(t_math_ns, t_mem_ns) end as t_min_ns,
        case when is_collective or coalesce(measured_flops_per_s, measured_hbm_bytes_per_s) is null then null
             when by_memory_alone then cast(round(bytes * 1e9 / measured_hbm_bytes_per_s) as bigint)
             when t_math_ns is null or t_mem_ns is null then null
             else greatest(cast(round(flops * 1e9 / coalesce(measured_flops_per_s, peak_flops_per_s)) as bigint),
                           cast(round(bytes * 1e9 / coalesce(measured_hbm_bytes_per_s, hbm_bytes_per_s)) as bigint))
             end as t_measured_ns
    from timed
)
select
    trace_id, op_id, run_id, rank, device_id, stream, step, name, op_class, framework_op, module, start_ns, dur_ns,
    share_ns, dtype, shapes, flops, bytes, cost_source,
    case when by_memory_alone and t_min_ns is not null
         then concat_ws('; ', cost_note, 'the bound is that of memory alone: FLOPs are unknown and count nothing')
         else cost_note end as cost_note,
    correlation_id, launch_ns, launch_thread,
    t_math_ns, t_mem_ns, t_comm_ns, t_min_ns,
    case when t_min_ns is null then null
         when is_collective then 'communication'
         when t_math_ns >= t_mem_ns then 'compute'
         else 'memory' end as bound,
    case when dur_ns > 0 then t_min_ns / dur_ns end as efficiency_frac,
    t_measured_ns,
    case when dur_ns > 0 then t_measured_ns / dur_ns end as efficiency_vs_measured_frac,
    case when is_collective or op_class in ('copy', 'memset') then dur_ns else share_ns end - t_min_ns as gap_ns,
    case when t_min_ns is not null then null
         when is_collective then predicted_by
         when not at_memory then 'a copy between host and device: its limit is the host link'
         when flops is null or bytes is null then coalesce(cost_note, 'FLOPs or bytes unknown')
         when hbm_bytes_per_s is null then 'unknown part: no peaks'
         else 'no peak for dtype ' || coalesce(dtype, '(unknown)') end as unknown_because
from bounded;

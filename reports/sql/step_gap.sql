-- the waterfall of a step on a device: the buckets add up to wall_ns
-- run_id: run
-- trace_id: trace, a traces.trace_id
-- wall_ns: length of the step window, ns
-- useful_math_ns: FLOPs that the mathematics needs, at peak (FLOPs done where those are unknown), ns
-- recompute_math_ns: matrix FLOPs done beyond them, at peak; 0 where model FLOPs are unknown, ns
-- memory_bound_ns: what memory bandwidth adds to that over modelled operations, ns
-- kernel_inefficiency_ns: share less t_min over modelled compute operations; negative = something beat its bound, ns
-- unmodelled_compute_ns: share of compute operations whose cost is unknown, ns
-- comm_minimum_ns: exposed communication that is unavoidable by the collective model, ns
-- comm_wait_ns: exposed communication before the last rank arrived, ns
-- comm_inefficiency_ns: the rest of exposed communication, ns
-- exposed_copy_ns: only copies and fills run, ns
-- idle_host_ns: idle, the host had not begun to launch the next operation, ns
-- idle_sync_ns: idle, the host sat in a synchronisation, ns
-- idle_input_ns: idle, the host was loading data, ns
-- idle_pipeline_ns: waiting for another pipeline stage, in a receive on the device or on the host, ns
-- idle_gap_ns: idle after the launch call of the next operation began, ns
-- idle_unknown_ns: idle, nothing in the trace tells why, ns
-- modelled_share_frac: part of compute time with a known cost; known bytes are enough for kernels that memory bounds (op_gap)
-- comm_modelled_share_frac: part of exposed communication that is predicted
-- flops_done: FLOPs of the operations in the window whose FLOPs are known
-- matrix_flops_done: those of them in matrix products, attention and convolutions, which model FLOPs are held against
-- recomputed_flops: those of matrix_flops_done that were recognised as done before (recomputed_ops, fused attention's scores)
-- model_flops: FLOPs that the mathematics needs; NULL = unknown
-- model_flops_source: config: from the description of the model; operations: matrix FLOPs done less those recomputed
-- mfu: model FLOPs over wall time times peak; NULL = see mfu_note
-- hfu: matrix FLOPs done over wall time times peak; a lower bound where modelled_share_frac < 1
-- mfu_vs_measured: model FLOPs over wall time times the measured ceiling of matrix products; NULL = no calibration has one
-- mfu_dtype: dtype of the peak
-- mfu_note: convention of mfu, or why there is none
create or replace view step_gap as
with split as (
    select
        s.*, w.* exclude (trace_id, device_id, step), t.model_flops, t.model_flops_source, t.peak_flops_per_s,
        t.measured_flops_per_s, t.mfu_dtype, t.mfu_note,
        -- Model FLOPs are those of matrix products, so they are held against matrix products done.
        case when t.model_flops is null or coalesce(w.matrix_flops_done, 0) <= t.model_flops then 0
             else cast(round(w.matrix_math_ns * (1 - t.model_flops / w.matrix_flops_done)) as bigint)
             end as recompute_math_ns
    from steps s
    left join step_work w using (trace_id, device_id, step)
    left join step_theory t using (trace_id, device_id, step)
)
select
    run_id, trace_id, rank, device_id, step, source, complete, incomplete_reason, start_ns,
    wall_ns,
    cast(coalesce(math_ns, 0) - recompute_math_ns as bigint) as useful_math_ns,
    cast(recompute_math_ns as bigint) as recompute_math_ns,
    cast(coalesce(memory_bound_ns, 0) as bigint) as memory_bound_ns,
    cast(coalesce(kernel_inefficiency_ns, 0) as bigint) as kernel_inefficiency_ns,
    cast(coalesce(unmodelled_compute_ns, compute_ns) as bigint) as unmodelled_compute_ns,
    cast(coalesce(comm_minimum_ns, 0) as bigint) as comm_minimum_ns,
    cast(coalesce(comm_wait_ns, 0) as bigint) as comm_wait_ns,
    cast(exposed_comm_ns - coalesce(comm_minimum_ns + comm_wait_ns + pipeline_ns, 0) as bigint) as comm_inefficiency_ns,
    exposed_copy_ns,
    idle_host_ns,
    idle_sync_ns,
    idle_input_ns,
    cast(coalesce(idle_pipeline_ns, 0) + coalesce(pipeline_ns, 0) as bigint) as idle_pipeline_ns,
    idle_gap_ns,
    idle_unknown_ns,
    compute_ns,
    exposed_comm_ns,
    idle_ns,
    case when compute_ns > 0 then 1 - coalesce(unmodelled_compute_ns, compute_ns) / compute_ns end as modelled_share_frac,
    case when exposed_comm_ns > 0 then predicted_share_ns / exposed_comm_ns end as comm_modelled_share_frac,
    cast(flops_done as bigint) as flops_done,
    cast(matrix_flops_done as bigint) as matrix_flops_done,
    cast(recomputed_flops as bigint) as recomputed_flops,
    model_flops,
    model_flops_source,
    case when wall_ns > 0 then model_flops * 1e9 / (wall_ns * peak_flops_per_s) end as mfu,
    case when wall_ns > 0 then matrix_flops_done * 1e9 / (wall_ns * peak_flops_per_s) end as hfu,
    case when wall_ns > 0 then model_flops * 1e9 / (wall_ns * measured_flops_per_s) end as mfu_vs_measured,
    mfu_dtype,
    mfu_note
from split;

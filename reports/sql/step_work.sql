-- operations of the step windows of a run added up with their theory: fills the table step_work for one run ($1)
insert into step_work by name
with pieces as (
    select
        w.trace_id, w.device_id, w.step, w.state, w.share_ns, g.t_min_ns,
        -- An operation that the window cuts counts by the part of its duration inside.
        case when w.dur_ns = g.dur_ns then g.t_math_ns
             else cast(g.t_math_ns::hugeint * w.dur_ns // g.dur_ns as bigint) end as math_ns,
        case when w.dur_ns = g.dur_ns then g.t_min_ns
             else cast(g.t_min_ns::hugeint * w.dur_ns // g.dur_ns as bigint) end as min_ns,
        case when w.dur_ns = g.dur_ns then g.flops
             else cast(g.flops::hugeint * w.dur_ns // g.dur_ns as bigint) end as flops,
        g.op_class in ('matmul', 'attention', 'convolution') as is_matrix,
        -- What may hide a matrix product where nobody knows the FLOPs.
        g.flops is null and g.op_class in ('matmul', 'attention', 'convolution', 'custom', 'graph', 'other') as may_be_matrix,
        case when r.op_id is not null then 1.0
             -- Fused attention does five products in its backward pass, of which the first is the scores once more (M5).
             when g.op_class = 'attention' and g.cost_source in ('shapes', 'nvtx')
                  and (contains(g.framework_op, 'ackward') or contains(g.name, 'bwd') or contains(g.name, 'ackward')) then 0.2
             else 0.0 end as recomputed_part,
        cw.wait_ns, cw.pipeline_ns, cw.minimum_ns
    from op_windows w
    join op_gap g using (trace_id, op_id)
    left join recomputed_ops r on r.trace_id = w.trace_id and r.op_id = w.op_id
    left join comm_windows cw on cw.trace_id = w.trace_id and cw.op_id = w.op_id and cw.step = w.step
    where w.trace_id in (select trace_id from traces where run_id = $1)
)
select
    trace_id, device_id, step,
    coalesce(sum(math_ns) filter (state = 'compute' and t_min_ns is not null), 0) as math_ns,
    coalesce(sum(math_ns) filter (state = 'compute' and t_min_ns is not null and is_matrix), 0) as matrix_math_ns,
    -- Where memory alone is the bound (`op_gap`), the time of the arithmetic is unknown and counts nothing.
    coalesce(sum(min_ns - coalesce(math_ns, 0)) filter (state = 'compute' and t_min_ns is not null), 0) as memory_bound_ns,
    coalesce(sum(share_ns - min_ns) filter (state = 'compute' and t_min_ns is not null), 0) as kernel_inefficiency_ns,
    coalesce(sum(share_ns) filter (state = 'compute' and t_min_ns is null), 0) as unmodelled_compute_ns,
    coalesce(sum(minimum_ns) filter (state = 'exposed_comm'), 0) as comm_minimum_ns,
    coalesce(sum(wait_ns) filter (state = 'exposed_comm'), 0) as comm_wait_ns,
    coalesce(sum(pipeline_ns) filter (state = 'exposed_comm'), 0) as pipeline_ns,
    coalesce(sum(share_ns) filter (state = 'exposed_comm' and t_min_ns is not null), 0) as predicted_share_ns,
    sum(flops) filter (state = 'compute') as flops_done,
    sum(flops) filter (state = 'compute' and is_matrix) as matrix_flops_done,
    coalesce(cast(round(sum(flops * recomputed_part) filter (state = 'compute' and is_matrix and recomputed_part > 0)) as bigint),
             0) as recomputed_flops,
    coalesce(sum(share_ns) filter (state = 'compute' and may_be_matrix), 0) as matrix_unknown_ns
from pieces
group by all;

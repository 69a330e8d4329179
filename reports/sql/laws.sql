-- Laws of a store: each statement gives the rows that break one, none where it holds.
-- `tracegap doctor --store FILE` runs them all; so does DuckDB's own shell: duckdb FILE < laws.sql
-- A statement begins with a line of its name and what it says.

-- windows_tile: Each step window of a device ends where the next one starts.
select 'windows_tile' as law, trace_id, device_id, step, start_ns + wall_ns as end_ns,
       lead(start_ns) over (partition by trace_id, device_id order by start_ns, step) as next_start_ns
from steps
qualify next_start_ns <> end_ns;

-- windows_start_at_a_kernel: A marked step starts at the first kernel that it launched, on a device that has any.
select 'windows_start_at_a_kernel' as law, s.trace_id, s.device_id, s.step, s.start_ns, k.first_kernel_ns
from steps s
join (
    select trace_id, device_id, step, min(start_ns) as first_kernel_ns
    from ops where op_class not in ('copy', 'memset') group by all
) k using (trace_id, device_id, step)
where s.source not in ('whole_trace', 'inferred') and s.start_ns <> k.first_kernel_ns;

-- kernels_counted: A marked step has as many kernels as operations that it launched and that are no copies or fills.
select 'kernels_counted' as law, s.trace_id, s.device_id, s.step, s.kernels, k.launched
from steps s
join (
    select trace_id, device_id, step, count(*) as launched
    from ops where op_class not in ('copy', 'memset') group by all
) k using (trace_id, device_id, step)
where s.source not in ('whole_trace', 'inferred') and s.kernels <> k.launched;

-- states_add_up: compute + exposed communication + exposed copies + idle = wall time of the step.
select 'states_add_up' as law, trace_id, device_id, step, wall_ns,
       compute_ns + exposed_comm_ns + exposed_copy_ns + idle_ns as sum_ns
from steps
where sum_ns <> wall_ns;

-- states_are_unions: Each state of a step is the measure of a union of intervals: the operations of it and those above.
with pieces as (
    select w.trace_id, w.device_id, w.step, w.dur_ns, greatest(o.start_ns, s.start_ns) as begin_ns,
           begin_ns + w.dur_ns as end_ns,
           case w.state when 'compute' then 1 when 'exposed_comm' then 2 else 3 end as level
    from op_windows w
    join ops o using (trace_id, op_id)
    join steps s on s.trace_id = w.trace_id and s.device_id = w.device_id and s.step = w.step
    where w.dur_ns > 0
),
reached as (
    select trace_id, device_id, step, level, begin_ns, end_ns,
           max(end_ns) over before_it as any_ns,
           max(end_ns) filter (level <= 2) over before_it as comm_ns,
           max(end_ns) filter (level = 1) over before_it as compute_ns
    from pieces
    window before_it as (
        partition by trace_id, device_id, step order by begin_ns, end_ns rows between unbounded preceding and 1 preceding
    )
),
covered as (
    select trace_id, device_id, step,
           sum(greatest(end_ns - greatest(begin_ns, coalesce(any_ns, begin_ns)), 0)) as busy_ns,
           sum(greatest(end_ns - greatest(begin_ns, coalesce(comm_ns, begin_ns)), 0)) filter (level <= 2) as comm_or_compute_ns,
           sum(greatest(end_ns - greatest(begin_ns, coalesce(compute_ns, begin_ns)), 0)) filter (level = 1) as computing_ns
    from reached group by all
)
select 'states_are_unions' as law, s.trace_id, s.device_id, s.step, s.compute_ns, s.exposed_comm_ns, s.exposed_copy_ns,
       coalesce(c.computing_ns, 0) as computing_ns, coalesce(c.comm_or_compute_ns, 0) as comm_or_compute_ns,
       coalesce(c.busy_ns, 0) as busy_ns
from steps s left join covered c using (trace_id, device_id, step)
where computing_ns <> s.compute_ns or comm_or_compute_ns <> s.compute_ns + s.exposed_comm_ns
   or busy_ns <> s.compute_ns + s.exposed_comm_ns + s.exposed_copy_ns;

-- buckets_add_up: The 15 buckets of a step add up to its wall time.
select 'buckets_add_up' as law, trace_id, device_id, step, wall_ns,
       useful_math_ns + recompute_math_ns + memory_bound_ns + kernel_inefficiency_ns + unmodelled_compute_ns
           + comm_minimum_ns + comm_wait_ns + comm_inefficiency_ns + exposed_copy_ns
           + idle_host_ns + idle_sync_ns + idle_input_ns + idle_pipeline_ns + idle_gap_ns + idle_unknown_ns as sum_ns
from step_gap
where sum_ns <> wall_ns;

-- buckets_are_times: No bucket is negative but kernel_inefficiency, where an operation beat its bound.
select 'buckets_are_times' as law, trace_id, device_id, step, useful_math_ns, recompute_math_ns, memory_bound_ns,
       unmodelled_compute_ns, comm_minimum_ns, comm_wait_ns, comm_inefficiency_ns, idle_pipeline_ns
from step_gap
where least(useful_math_ns, recompute_math_ns, memory_bound_ns, unmodelled_compute_ns, comm_minimum_ns, comm_wait_ns,
            comm_inefficiency_ns, idle_pipeline_ns) < 0;

-- states_are_times: Wall time, states and causes of idleness are not negative.
select 'states_are_times' as law, trace_id, device_id, step, wall_ns, compute_ns, exposed_comm_ns, exposed_copy_ns, idle_ns
from steps
where least(wall_ns, compute_ns, exposed_comm_ns, exposed_copy_ns, idle_ns, idle_host_ns, idle_sync_ns, idle_input_ns,
            idle_pipeline_ns, idle_gap_ns, idle_unknown_ns) < 0;

-- idle_has_causes: The causes of idleness of a step add up to its idle time.
select 'idle_has_causes' as law, trace_id, device_id, step, idle_ns,
       idle_host_ns + idle_sync_ns + idle_input_ns + idle_pipeline_ns + idle_gap_ns + idle_unknown_ns as sum_ns
from steps
where sum_ns <> idle_ns;

-- idle_activities_add_up: What the host did adds up to each cause of idleness, in steps for which idle_causes has rows.
with told as (
    select trace_id, device_id, step, cause, sum(idle_ns) as told_ns, min(idle_ns) as least_ns, min(gaps) as least_gaps
    from idle_causes group by all
),
causes as (
    select trace_id, device_id, step, unnest([
        {'cause': 'idle_host', 'cause_ns': idle_host_ns}, {'cause': 'idle_sync', 'cause_ns': idle_sync_ns},
        {'cause': 'idle_input', 'cause_ns': idle_input_ns}, {'cause': 'idle_pipeline', 'cause_ns': idle_pipeline_ns},
        {'cause': 'idle_gap', 'cause_ns': idle_gap_ns}, {'cause': 'idle_unknown', 'cause_ns': idle_unknown_ns}],
        recursive := true)
    from steps semi join idle_causes using (trace_id, device_id, step)
)
select 'idle_activities_add_up' as law, trace_id, device_id, step, cause, cause_ns, told_ns
from causes full join told using (trace_id, device_id, step, cause)
where coalesce(told_ns, 0) <> coalesce(cause_ns, 0) or least_ns <= 0 or least_gaps <= 0;

-- pieces_are_overlaps: The piece of an operation in a step window is as long as the two overlap.
select 'pieces_are_overlaps' as law, w.trace_id, w.device_id, w.step, w.op_id, w.dur_ns,
       least(o.start_ns + o.dur_ns, s.start_ns + s.wall_ns) - greatest(o.start_ns, s.start_ns) as overlap_ns
from op_windows w
join ops o using (trace_id, op_id)
join steps s on s.trace_id = w.trace_id and s.device_id = w.device_id and s.step = w.step
where overlap_ns <> w.dur_ns;

-- no_busy_time_left_out: The pieces of an operation cover all of it that lies in any step window.
with tiled as (
    select trace_id, device_id, min(start_ns) as first_ns, max(start_ns + wall_ns) as last_ns from steps group by all
),
cut as (
    select trace_id, op_id, sum(dur_ns) as pieces_ns from op_windows group by all
)
select 'no_busy_time_left_out' as law, o.trace_id, o.device_id, o.op_id, coalesce(c.pieces_ns, 0) as pieces_ns,
       greatest(least(o.start_ns + o.dur_ns, t.last_ns) - greatest(o.start_ns, t.first_ns), 0) as inside_ns
from ops o
join tiled t using (trace_id, device_id)
left join cut c on c.trace_id = o.trace_id and c.op_id = o.op_id
where inside_ns <> coalesce(c.pieces_ns, 0);

-- shares_add_up: The shares of the operations of a state in a step add up to that state.
select 'shares_add_up' as law, s.trace_id, s.device_id, s.step, s.compute_ns, s.exposed_comm_ns, s.exposed_copy_ns,
       coalesce(w.compute_ns, 0) as compute_shares_ns, coalesce(w.comm_ns, 0) as comm_shares_ns,
       coalesce(w.copy_ns, 0) as copy_shares_ns
from steps s
left join (
    select trace_id, device_id, step,
           sum(share_ns) filter (state = 'compute') as compute_ns,
           sum(share_ns) filter (state = 'exposed_comm') as comm_ns,
           sum(share_ns) filter (state = 'exposed_copy') as copy_ns
    from op_windows group by all
) w using (trace_id, device_id, step)
where compute_shares_ns <> s.compute_ns or comm_shares_ns <> s.exposed_comm_ns or copy_shares_ns <> s.exposed_copy_ns;

-- shares_are_parts: The share of an operation is between 0 and its duration, in all and in each window.
select 'shares_are_parts' as law, trace_id, device_id, step, op_id, dur_ns, share_ns
from ops where share_ns < 0 or share_ns > dur_ns
union all
select 'shares_are_parts', trace_id, device_id, step, op_id, dur_ns, share_ns
from op_windows where share_ns < 0 or share_ns > dur_ns;

-- windows_have_no_more: The shares of an operation in step windows are no more than its share in all.
select 'windows_have_no_more' as law, o.trace_id, o.device_id, o.op_id, o.share_ns, w.shares_ns
from ops o join (select trace_id, op_id, sum(share_ns) as shares_ns from op_windows group by all) w using (trace_id, op_id)
where w.shares_ns > o.share_ns;

-- classes_have_states: An operation counts for the state of its class.
select 'classes_have_states' as law, w.trace_id, w.device_id, w.step, w.op_id, w.state, o.op_class
from op_windows w join ops o using (trace_id, op_id)
where w.state is distinct from
      case o.op_class when 'collective' then 'exposed_comm' when 'copy' then 'exposed_copy' when 'memset' then 'exposed_copy'
                      else 'compute' end;

-- times_are_sane: Operations last from 0 ns to a day, and everything starts within a century of its origin.
select 'times_are_sane' as law, trace_id, device_id, step, op_id, start_ns, dur_ns
from ops where dur_ns is null or dur_ns not between 0 and 86_400_000_000_000
            or start_ns is null or start_ns not between -3_155_760_000_000_000_000 and 3_155_760_000_000_000_000;

-- launches_come_first: An operation starts after its launch call began, but for those that diagnostics count.
with early as (
    select trace_id, any_value(device_id) as device_id, arg_max(op_id, launch_ns - start_ns) as op_id,
           max(launch_ns - start_ns) as early_ns, count(*) as operations
    from ops where launch_ns > start_ns group by trace_id
),
told as (
    select t.trace_id, sum((d.value ->> 'count')::bigint) as told
    from traces t, json_each(t.diagnostics) d where d.value ->> 'code' = 'starts_before_launch' group by t.trace_id
)
select 'launches_come_first' as law, e.*, coalesce(t.told, 0) as told
from early e left join told t using (trace_id)
where e.operations > coalesce(t.told, 0);

-- host_time_is_its_own: The own time of a host event is between 0 and its duration.
select 'host_time_is_its_own' as law, trace_id, event_id, thread, name, dur_ns, self_ns
from host_events where dur_ns < 0 or self_ns < 0 or self_ns > dur_ns;

-- communication_is_hidden_or_exposed: For each collective hidden + exposed = duration, and neither is negative.
select 'communication_is_hidden_or_exposed' as law, c.trace_id, c.device_id, c.op_id, c.hidden_ns, c.exposed_ns, o.dur_ns
from collectives c join ops o using (trace_id, op_id)
where c.hidden_ns + c.exposed_ns <> o.dur_ns or least(c.hidden_ns, c.exposed_ns) < 0;

-- shares_of_communication_are_exposed: A collective has no larger share of exposed communication than it is exposed.
select 'shares_of_communication_are_exposed' as law, c.trace_id, c.device_id, c.op_id, c.exposed_ns, o.share_ns
from collectives c join ops o using (trace_id, op_id)
where o.share_ns > c.exposed_ns;

-- exposed_communication_is_split: wait + pipeline + minimum <= exposed share of a collective in a window, each 0 or more.
select 'exposed_communication_is_split' as law, c.trace_id, c.device_id, c.step, c.op_id, c.wait_ns, c.pipeline_ns,
       c.minimum_ns, w.share_ns
from comm_windows c left join op_windows w using (trace_id, op_id, step)
where least(c.wait_ns, c.pipeline_ns, c.minimum_ns) < 0 or w.share_ns is null
   or c.wait_ns + c.pipeline_ns + c.minimum_ns > w.share_ns;

-- waiting_has_an_arrival: Only a collective that is matched over ranks waits, and no longer than until the arrival.
select 'waiting_has_an_arrival' as law, c.trace_id, c.device_id, c.op_id, c.waited_ns, m.arrival_ns, o.start_ns
from (
    select trace_id, device_id, op_id, sum(wait_ns + pipeline_ns) as waited_ns from comm_windows group by all
) c
join ops o using (trace_id, op_id)
left join collective_matches m using (trace_id, op_id)
where c.waited_ns > greatest(coalesce(m.arrival_ns - o.start_ns, 0), 0);

-- minimum_is_predicted: The unavoidable part of a collective is no more than what the model predicts.
select 'minimum_is_predicted' as law, c.trace_id, c.device_id, c.op_id, c.minimum_ns, m.predicted_ns
from (select trace_id, device_id, op_id, sum(minimum_ns) as minimum_ns from comm_windows group by all) c
left join collective_matches m using (trace_id, op_id)
where c.minimum_ns > coalesce(m.predicted_ns, 0);

-- nobody_arrives_after_the_last: The arrival of a collective is not before the start on any rank.
select 'nobody_arrives_after_the_last' as law, m.trace_id, o.device_id, m.op_id, m.arrival_ns, o.start_ns,
       t.clock_residual_ns
from collective_matches m
join ops o using (trace_id, op_id)
join traces t using (trace_id)
where m.arrival_ns + coalesce(t.clock_residual_ns, 0) + 1 < o.start_ns;

-- ranks_agree_on_a_collective: The ranks of a matched collective agree on its kind and on who came last, and are different.
select 'ranks_agree_on_a_collective' as law, any_value(m.trace_id) as trace_id, t.run_id, m.instance_id,
       list(distinct c.collective) as kinds, list(distinct m.last_rank) as last_ranks, list(c.rank order by c.rank) as ranks
from collective_matches m
join collectives c using (trace_id, op_id)
join traces t using (trace_id)
where m.instance_id is not null
group by t.run_id, m.instance_id
having len(kinds) > 1 or len(last_ranks) > 1 or count(*) > count(distinct (m.trace_id, c.device_id));

-- collectives_are_operations: Each operation of class collective has its row in collectives, and each row its operation.
select 'collectives_are_operations' as law, trace_id, op_id
from (select trace_id, op_id from ops where op_class = 'collective') o
full join (select trace_id, op_id, true as described from collectives) c using (trace_id, op_id)
where o.op_id is null or c.described is null;

-- groups_have_their_size: Sizes are not negative, a group has as many ranks as it says, and a matched rank is one of them.
select 'groups_have_their_size' as law, trace_id, device_id, op_id, group_size, group_ranks, message_bytes
from collectives
where group_size < 1 or message_bytes < 0 or seq < 0
   or json_array_length(group_ranks) <> group_size;

-- costs_have_a_source: FLOPs and bytes are 0 or more, and cost_source is none exactly where both are unknown.
select 'costs_have_a_source' as law, trace_id, device_id, op_id, flops, bytes, cost_source
from ops
where flops < 0 or bytes < 0
   or (flops is null and bytes is null) <> (cost_source = 'none') and op_class not in ('copy', 'memset');

-- work_adds_up: Bound, loss and unknown of the compute operations of a step add up to its compute time.
select 'work_adds_up' as law, s.trace_id, s.device_id, s.step, s.compute_ns,
       w.math_ns + w.memory_bound_ns + w.kernel_inefficiency_ns + w.unmodelled_compute_ns as sum_ns
from steps s join step_work w using (trace_id, device_id, step)
where sum_ns <> s.compute_ns or w.matrix_math_ns not between 0 and w.math_ns
   or w.matrix_flops_done > w.flops_done or w.predicted_share_ns not between 0 and s.exposed_comm_ns;

-- evaluated_steps_have_theory: Every step of an evaluated run is joined with theory.
select 'evaluated_steps_have_theory' as law, s.run_id, s.trace_id, s.device_id, s.step
from steps s
join runs r using (run_id)
left join step_work w using (trace_id, device_id, step)
left join step_theory t using (trace_id, device_id, step)
where r.evaluated_at is not null and (t.step is null or w.step is null and s.compute_ns + s.exposed_comm_ns > 0);

-- peaks_are_positive: Peaks and bandwidths are more than nothing.
select 'peaks_are_positive' as law, trace_id, device_id, unit, dtype, flops_per_s as per_s from peaks where not flops_per_s > 0
union all
select 'peaks_are_positive', trace_id, device_id, 'memory', null, hbm_bytes_per_s from devices where not hbm_bytes_per_s > 0;

-- unknown_costs_have_a_reason: Where no bound of an operation is known, it is said why.
select 'unknown_costs_have_a_reason' as law, trace_id, device_id, op_id, name, op_class
from op_gap where t_min_ns is null and coalesce(unknown_because, '') = '';

-- unknown_parts_have_a_reason: Where the part, the match or the utilisation is unknown, it is said why.
select 'unknown_parts_have_a_reason' as law, trace_id, device_id, null::bigint as step, null::bigint as op_id,
       'devices.matched_by' as missing
from devices where hardware is null and coalesce(matched_by, '') = ''
union all
select 'unknown_parts_have_a_reason', trace_id, null, null, op_id, 'collective_matches.matched_by'
from collective_matches where instance_id is null and coalesce(matched_by, '') = ''
union all
select 'unknown_parts_have_a_reason', trace_id, null, null, op_id, 'collective_matches.predicted_by'
from collective_matches where predicted_ns is null and coalesce(predicted_by, '') = ''
union all
select 'unknown_parts_have_a_reason', trace_id, device_id, step, null, 'step_theory.mfu_note'
from step_theory where (model_flops is null or peak_flops_per_s is null) and coalesce(mfu_note, '') = ''
union all
select 'unknown_parts_have_a_reason', trace_id, device_id, step, null, 'steps.incomplete_reason'
from steps where complete <> (incomplete_reason is null) or complete is null;

-- words_are_known: Columns of fixed words hold no others.
select 'words_are_known' as law, trace_id, op_id, 'ops.op_class' as col, op_class as word
from ops where op_class not in ('matmul', 'attention', 'convolution', 'normalization', 'softmax', 'elementwise', 'reduction',
    'embedding', 'optimizer', 'data_movement', 'sort', 'random', 'collective', 'copy', 'memset', 'graph', 'custom', 'other')
union all
select 'words_are_known', trace_id, op_id, 'ops.cost_source', cost_source
from ops where cost_source not in ('trace', 'hlo', 'shapes', 'nvtx', 'config', 'none')
union all
select 'words_are_known', trace_id, op_id, 'collectives.collective', collective
from collectives where collective not in ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'broadcast', 'reduce',
    'gather', 'scatter', 'send', 'recv', 'send_recv', 'permute', 'barrier')
union all
select 'words_are_known', trace_id, null, 'steps.source', source
from steps where source not in ('xplane_steps', 'profiler_step', 'nvtx', 'step_trace_annotation', 'inferred', 'whole_trace',
    'group_id')
union all
select 'words_are_known', trace_id, null, 'host_events.kind', kind
from host_events where kind not in ('op', 'python', 'module', 'annotation', 'step', 'launch', 'sync', 'input', 'runtime',
    'memory', 'overhead', 'collective', 'other')
union all
select 'words_are_known', trace_id, null, 'idle_causes.cause', cause
from idle_causes where cause not in ('idle_host', 'idle_sync', 'idle_input', 'idle_gap', 'idle_pipeline', 'idle_unknown')
union all
select 'words_are_known', null, null, 'findings.severity', severity
from findings where severity not in ('high', 'medium', 'low', 'info');

-- savings_are_within_the_gap: What the findings of a run would save is no more than the typical step has over its minimum.
select 'savings_are_within_the_gap' as law, run_id, sum(f.saves_ns) as savings_ns,
       greatest(any_value(g.wall_ns - g.useful_math_ns - g.memory_bound_ns - g.comm_minimum_ns), 0) as over_ns,
       min(f.saves_ns) as least_ns
from findings f left join run_gap g using (run_id)
where f.saves_ns is not null
group by run_id
-- Whole nanoseconds, and sums of floats: half a nanosecond is none.
having savings_ns > coalesce(over_ns, 0) + 0.5 or least_ns <= 0;

-- savings_draw_on_buckets: The findings of a run draw no more on a bucket of its typical step than it has.
with claimed as (
    select run_id, unnest(map_entries(cast(evidence -> 'drawn_ns' as map(varchar, bigint))), recursive := true)
    from findings where (evidence -> 'drawn_ns') is not null
),
drawn as (
    select run_id, key as bucket, sum(value) as drawn_ns, min(value) as least_ns from claimed group by all
),
bucket as (
    unpivot (select run_id, columns('.*_ns') from run_gap) on columns(* exclude (run_id)) into name bucket value ns
)
select 'savings_draw_on_buckets' as law, d.run_id, d.bucket, d.drawn_ns, b.ns as bucket_ns
from drawn d left join bucket b on b.run_id = d.run_id and b.bucket = d.bucket || '_ns'
where d.drawn_ns > greatest(coalesce(b.ns, 0), 0) + 0.5 or d.least_ns < 0;

-- savings_are_drawn: A finding saves what it draws, each bucket rounded down, and no more than it would save alone.
with claimed as (
    select rowid as finding, unnest(map_entries(cast(evidence -> 'drawn_ns' as map(varchar, bigint))), recursive := true)
    from findings where (evidence -> 'drawn_ns') is not null
),
added as (
    select finding, sum(value) as drawn_ns, count(*) as buckets from claimed group by finding
)
select 'savings_are_drawn' as law, f.run_id, f.kind, f.saves_ns, a.drawn_ns
from findings f left join added a on a.finding = f.rowid
where f.saves_ns is not null and (a.drawn_ns is null or f.saves_ns - a.drawn_ns not between 0 and a.buckets - 1)
   or f.saves_ns > cast(f.evidence ->> 'alone_ns' as bigint) + 1;

-- memory_adds_up: The parts of device memory add up to their total, and parts of a part to it; what is unknown says why.
select 'memory_adds_up' as law, t.trace_id, t.device_id, t.step, t.part, t.bytes, sum(p.bytes) as parts_bytes
from memory t
join memory p on p.trace_id = t.trace_id and p.device_id = t.device_id and p.step is not distinct from t.step
             and p.part_of = t.part and not p.detail
where t.part_of is null
group by t.trace_id, t.device_id, t.step, t.part, t.bytes, t.predicted_bytes
having sum(p.bytes) is distinct from t.bytes or sum(p.predicted_bytes) is distinct from t.predicted_bytes
union all
select 'memory_adds_up', t.trace_id, t.device_id, t.step, t.part, t.bytes, sum(p.bytes)
from memory t
join memory p on p.trace_id = t.trace_id and p.device_id = t.device_id and p.step is not distinct from t.step
             and p.part_of = t.part_of and p.part = t.part and p.detail
where not t.detail
group by t.trace_id, t.device_id, t.step, t.part, t.bytes
having sum(p.bytes) <> t.bytes
union all
select 'memory_adds_up', trace_id, device_id, step, part, bytes, null from memory
where bytes < 0 or predicted_bytes < 0 or part_of is null and coalesce(bytes, predicted_bytes) is null and note is null;

-- critical_paths_are_whole: The pieces of a critical path add up to the step of a device, as long as it is on the common clock.
with path as (
    select run_id, step, sum(dur_ns) as pieces_ns, min(dur_ns) as least_ns from critical_path group by run_id, step
)
select 'critical_paths_are_whole' as law, p.run_id, p.step, p.pieces_ns, p.least_ns
from path p
where p.least_ns < 0 or not exists (
    select 1 from steps s join traces t using (trace_id)
    where s.run_id = p.run_id and s.step = p.step
      and abs(s.wall_ns - p.pieces_ns) <= ceil(abs(coalesce(t.clock_drift_frac, 0)) * s.wall_ns)
);

-- lateness_adds_up: Over the ranks that came last, late_arrivals adds up to how much later they came to each collective.
with told as (
    select run_id, sum(late_ns) as told_ns from late_arrivals where rank is not null group by run_id
),
instance as (
    select t.run_id, m.instance_id, max(m.late_ns) as late_ns
    from collective_matches m join collectives c using (trace_id, op_id) join traces t using (trace_id)
    where m.last_rank is not null and c.rank is not null group by t.run_id, m.instance_id
),
was as (
    select run_id, sum(late_ns) as late_ns from instance group by run_id
)
select 'lateness_adds_up' as law, run_id, told_ns, late_ns
from told full join was using (run_id) where coalesce(told_ns, 0) <> coalesce(late_ns, 0);

-- what_if_saves_the_difference: What a change would save is the step before it less the step after it.
select 'what_if_saves_the_difference' as law, run_id, step, change, what, before_ns, after_ns, saves_ns
from what_if where saves_ns <> before_ns - after_ns;

-- rows_have_a_home: Every row belongs to a run, trace, device, step or operation that is there.
select 'rows_have_a_home' as law, trace_id, null as device_id, null::bigint as step, null::bigint as op_id,
       'traces.run_id' as what
from traces anti join runs using (run_id)
union all
select 'rows_have_a_home', null, null, null, null, 'findings.run_id' from findings anti join runs using (run_id)
union all
select 'rows_have_a_home', trace_id, device_id, null, null, 'devices.trace_id' from devices anti join traces using (trace_id)
union all
select 'rows_have_a_home', trace_id, device_id, step, null, 'steps.run_id' from steps anti join traces using (run_id, trace_id)
union all
select 'rows_have_a_home', trace_id, device_id, step, null, 'steps.device_id' from steps anti join devices using (trace_id, device_id)
union all
select 'rows_have_a_home', trace_id, device_id, step, op_id, 'ops.device_id' from ops anti join devices using (trace_id, device_id)
union all
select 'rows_have_a_home', trace_id, device_id, step, op_id, 'ops without steps'
from ops anti join steps using (trace_id, device_id)
union all
select 'rows_have_a_home', trace_id, device_id, step, op_id, 'op_windows.op_id'
from op_windows anti join ops using (trace_id, device_id, op_id)
union all
select 'rows_have_a_home', trace_id, device_id, step, op_id, 'op_windows.step'
from op_windows anti join steps using (trace_id, device_id, step)
union all
select 'rows_have_a_home', trace_id, null, null, op_id, 'collective_matches.op_id'
from collective_matches anti join collectives using (trace_id, op_id)
union all
select 'rows_have_a_home', trace_id, device_id, step, op_id, 'comm_windows.op_id'
from comm_windows anti join (select * from op_windows where state = 'exposed_comm') using (trace_id, op_id, step)
union all
select 'rows_have_a_home', trace_id, device_id, step, null, 'step_work.step'
from step_work anti join steps using (trace_id, device_id, step)
union all
select 'rows_have_a_home', trace_id, device_id, step, null, 'step_theory.step'
from step_theory anti join steps using (trace_id, device_id, step)
union all
select 'rows_have_a_home', trace_id, null, null, null, 'host_events.trace_id'
from (select distinct trace_id from host_events) anti join traces using (trace_id);

-- keys_are_unique: No table has two rows of one key.
select 'keys_are_unique' as law, 'runs' as in_table, {'run_id': run_id}::varchar as key from runs group by all having count(*) > 1
union all
select 'keys_are_unique', 'traces', {'trace_id': trace_id}::varchar from traces group by all having count(*) > 1
union all
select 'keys_are_unique', 'devices', {'trace_id': trace_id, 'device_id': device_id}::varchar
from devices group by all having count(*) > 1
union all
select 'keys_are_unique', 'peaks', {'trace_id': trace_id, 'device_id': device_id, 'unit': unit, 'dtype': dtype}::varchar
from peaks group by all having count(*) > 1
union all
select 'keys_are_unique', 'steps', {'trace_id': trace_id, 'device_id': device_id, 'step': step}::varchar
from steps group by all having count(*) > 1
union all
select 'keys_are_unique', 'ops', {'trace_id': trace_id, 'op_id': op_id}::varchar
from ops group by trace_id, op_id having count(*) > 1
union all
select 'keys_are_unique', 'op_windows', {'trace_id': trace_id, 'op_id': op_id, 'step': step}::varchar
from op_windows group by trace_id, op_id, step having count(*) > 1
union all
select 'keys_are_unique', 'host_events', {'trace_id': trace_id, 'event_id': event_id}::varchar
from host_events group by trace_id, event_id having count(*) > 1
union all
select 'keys_are_unique', 'collectives', {'trace_id': trace_id, 'op_id': op_id}::varchar
from collectives group by trace_id, op_id having count(*) > 1
union all
select 'keys_are_unique', 'collective_matches', {'trace_id': trace_id, 'op_id': op_id}::varchar
from collective_matches group by trace_id, op_id having count(*) > 1
union all
select 'keys_are_unique', 'comm_windows', {'trace_id': trace_id, 'op_id': op_id, 'step': step}::varchar
from comm_windows group by trace_id, op_id, step having count(*) > 1
union all
select 'keys_are_unique', 'step_work', {'trace_id': trace_id, 'device_id': device_id, 'step': step}::varchar
from step_work group by trace_id, device_id, step having count(*) > 1
union all
select 'keys_are_unique', 'step_theory', {'trace_id': trace_id, 'device_id': device_id, 'step': step}::varchar
from step_theory group by trace_id, device_id, step having count(*) > 1
union all
select 'keys_are_unique', 'recomputed_ops', {'trace_id': trace_id, 'op_id': op_id}::varchar
from recomputed_ops group by trace_id, op_id having count(*) > 1
union all
select 'keys_are_unique', 'mfu_conventions', {'run_id': run_id, 'convention': convention}::varchar
from mfu_conventions group by run_id, convention having count(*) > 1
union all
select 'keys_are_unique', 'device_links', {'trace_id': trace_id, 'device_id': device_id, 'link': link}::varchar
from device_links group by trace_id, device_id, link having count(*) > 1
union all
select 'keys_are_unique', 'collective_groups', {'run_id': run_id, 'group_id': group_id}::varchar
from collective_groups group by run_id, group_id having count(*) > 1
union all
select 'keys_are_unique', 'pipeline_bubbles', {'trace_id': trace_id, 'device_id': device_id, 'step': step}::varchar
from pipeline_bubbles group by trace_id, device_id, step having count(*) > 1;

-- a run's waterfall: its typical step, the mean over its devices; the buckets add up to wall_ns
-- steps: complete steps, which the others are over; all where none is complete
-- wall_ns: median step by wall time; of an even number the mean of the two in the middle, ns
create or replace view run_gap as
with by_step as (
    select run_id, step, avg(wall_ns) as mean_wall_ns, complete from step_gap group by run_id, step, complete
),
counted as (
    select *, bool_or(complete) over (partition by run_id) as any_complete from by_step
),
ranked as (
    select
        run_id, step, complete,
        row_number() over (partition by run_id order by mean_wall_ns, step) as place,
        count(*) over (partition by run_id) as steps
    from counted where complete or not any_complete
)
select
    r.run_id, r.job, r.started_at, r.git_commit, r.simulated, any_value(k.steps) as steps, bool_and(k.complete) as complete,
    avg(g.wall_ns) as wall_ns,
    avg(g.useful_math_ns) as useful_math_ns,
    avg(g.recompute_math_ns) as recompute_math_ns,
    avg(g.memory_bound_ns) as memory_bound_ns,
    avg(g.kernel_inefficiency_ns) as kernel_inefficiency_ns,
    avg(g.unmodelled_compute_ns) as unmodelled_compute_ns,
    avg(g.comm_minimum_ns) as comm_minimum_ns,
    avg(g.comm_wait_ns) as comm_wait_ns,
    avg(g.comm_inefficiency_ns) as comm_inefficiency_ns,
    avg(g.exposed_copy_ns) as exposed_copy_ns,
    avg(g.idle_host_ns) as idle_host_ns,
    avg(g.idle_sync_ns) as idle_sync_ns,
    avg(g.idle_input_ns) as idle_input_ns,
    avg(g.idle_pipeline_ns) as idle_pipeline_ns,
    avg(g.idle_gap_ns) as idle_gap_ns,
    avg(g.idle_unknown_ns) as idle_unknown_ns,
    avg(g.mfu) as mfu,
    avg(g.hfu) as hfu,
    any_value(g.mfu_note) as mfu_note,
    1 - sum(g.unmodelled_compute_ns) / nullif(sum(g.compute_ns), 0) as modelled_share_frac
from ranked k
join step_gap g on g.run_id = k.run_id and g.step = k.step and g.complete = k.complete
join runs r on r.run_id = k.run_id
where k.place between (k.steps + 1) // 2 and k.steps // 2 + 1
group by r.run_id, r.job, r.started_at, r.git_commit, r.simulated;

"""How far the numbers can be trusted: what is modelled, where costs, steps and peaks come from, and what files lost."""

from tracegap.reports import people
from tracegap.reports.section import Column, Context, Figure, Section

ORDER = 90

STEPS_SQL = """
select
    source,
    count(*) as device_steps,
    count(*) filter (complete) as complete_steps,
    string_agg(distinct incomplete_reason, '; ') as incomplete_reasons,
    sum(compute_ns - unmodelled_compute_ns) / nullif(sum(compute_ns), 0) as modelled_share_frac,
    sum(exposed_comm_ns * comm_modelled_share_frac) / nullif(sum(exposed_comm_ns), 0) as comm_modelled_share_frac,
    sum(idle_unknown_ns) / nullif(sum(wall_ns), 0) as idle_unknown_frac,
    string_agg(distinct mfu_note, '; ') as mfu_note
from step_gap
where run_id = $run_id
group by source
order by source
"""
SOURCES_SQL = """
with by_source as (
    select
        coalesce(cost_source, 'none') as cost_source, cost_note, op_class, dur_ns, share_ns
    from op_gap
    where run_id = $run_id and op_class not in ('collective', 'copy', 'memset')
)
select
    cost_source,
    count(*) as ops,
    cast(sum(share_ns) as bigint) as share_ns,
    sum(share_ns) / nullif(sum(sum(share_ns)) over (), 0) as share_frac,
    mode(cost_note) as cost_note
from by_source
group by cost_source
order by share_ns desc, cost_source
"""
DEVICES_SQL = """
with bf16 as (
    select trace_id, device_id, flops_per_s, source from peaks where unit = 'matrix' and dtype = 'bf16'
)
select
    d.name, d.hardware, d.matched_by, d.hbm_bytes_per_s, d.hbm_source, p.flops_per_s as bf16_flops_per_s,
    p.source as peak_source, count(*) as devices, count(distinct t.host) as hosts
from devices d
join traces t using (trace_id)
left join bf16 p using (trace_id, device_id)
where t.run_id = $run_id
group by all
order by devices desc, d.hardware, d.name
"""
TRACES_SQL = """
select
    t.rank, t.host, t.path, t.format, t.size_bytes, t.status, t.clock_offset_ns, t.clock_residual_ns,
    (select count(*) from ops o where o.trace_id = t.trace_id) as ops,
    (select count(*) from ops o where o.trace_id = t.trace_id and o.step is null) as ops_without_step
from traces t
where t.run_id = $run_id
order by t.rank, t.path
limit 512
"""
DIAGNOSTICS_SQL = """
with listed as (
    select t.rank, t.path, unnest(from_json(t.diagnostics,
        '[{"code":"VARCHAR","severity":"VARCHAR","count":"BIGINT","where":"VARCHAR","message":"VARCHAR"}]')) as d
    from traces t
    where t.run_id = $run_id
)
select
    d.code as code, d.severity as severity, cast(sum(d.count) as bigint) as count, count(*) as traces,
    min(path) as first_path, arg_min(d.where, path) as first_place, min(d.message) as message
from listed
group by d.code, d.severity
order by array_position(['error', 'data_loss', 'info'], severity), count desc, code
"""


def build(ctx: Context) -> Section:
    """Tables of what the numbers rest on."""
    steps = ctx.query(STEPS_SQL)
    step = ctx.summary.step
    sentence = "Every number above rests on what these tables say. "
    if step is not None:
        sentence += (
            f"In the median step the cost of {people.percent(step['modelled_share_frac'])} of compute time is known; "
        )
        sentence += f"MFU: {ctx.summary.mfu_note}. "
    sentence += " ".join(ctx.summary.doubts)
    diagnostics = ctx.query(DIAGNOSTICS_SQL)
    figures = [
        Figure(
            title="Steps: what marked them, and how much of them is known",
            query=steps,
            columns=(
                Column("source", "marked by"),
                Column("device_steps", "steps × devices", people.count),
                Column("complete_steps", "complete", people.count),
                Column("incomplete_reasons", "why the others are not", _dash),
                Column("modelled_share_frac", "compute with known cost", people.percent),
                Column("comm_modelled_share_frac", "exposed communication predicted", people.percent),
                Column("idle_unknown_frac", "idle without a cause", people.percent, "part of the wall time"),
                Column("mfu_note", "MFU", _dash),
            ),
        ),
        Figure(
            title="Where the costs of compute operations come from",
            query=ctx.query(SOURCES_SQL),
            columns=(
                Column("cost_source", "source"),
                Column("ops", "operations", people.count),
                Column("share_ns", "time", people.duration),
                Column("share_frac", "of compute", people.percent),
                Column("cost_note", "most frequent note", _dash),
            ),
            note="trace: the profiler said so; hlo: from the compiled program; shapes: a formula over recorded shapes;"
            " none: unknown.",
        ),
        Figure(
            title="Hardware: which part, how it was recognised, and the peaks used",
            query=ctx.query(DEVICES_SQL),
            columns=(
                Column("devices", "devices", people.count),
                Column("name", "name in the trace"),
                Column("hardware", "part"),
                Column("matched_by", "recognised by"),
                Column("bf16_flops_per_s", "bf16 peak", people.flops_per_s),
                Column("peak_source", "peak from"),
                Column("hbm_bytes_per_s", "memory bandwidth", people.bytes_per_s),
                Column("hbm_source", "bandwidth from"),
            ),
        ),
        Figure(
            title="Traces and their clocks",
            query=ctx.query(TRACES_SQL),
            columns=(
                Column("rank", "rank", people.text),
                Column("path", "file"),
                Column("format", "format"),
                Column("size_bytes", "size", people.size),
                Column("status", "status"),
                Column("ops", "operations", people.count),
                Column("ops_without_step", "launch not in the file", people.count),
                Column("clock_offset_ns", "clock offset", people.signed_duration, "added to compare ranks"),
                Column(
                    "clock_residual_ns",
                    "clock residual",
                    people.duration,
                    "no statement across ranks is finer than this",
                ),
            ),
            note="Clocks are aligned on the completions of collectives; unknown: not aligned (one rank, or no match).",
        ),
    ]
    if len(diagnostics.rows):
        figures.append(
            Figure(
                title="What the readers lost, repaired or doubt",
                query=diagnostics,
                columns=(
                    Column("severity", "severity"),
                    Column("code", "code"),
                    Column("count", "count", people.count),
                    Column("traces", "traces", people.count),
                    Column("message", "what it is"),
                    Column("first_place", "first at", _dash),
                    Column("first_path", "in"),
                ),
            )
        )
    else:
        sentence += " The readers lost, repaired and doubt nothing."
    return Section(
        title="Can these numbers be trusted",
        sentence=sentence.strip(),
        figures=[figure for figure in figures if len(figure.table)],
    )


def _dash(value: str | None) -> str:
    return value or "–"

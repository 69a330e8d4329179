"""Ranks by steps: which rank has more time of its own than the others."""

import altair as alt
import polars as pl

from tracegap.reports import people, theme
from tracegap.reports.section import Column, Context, Figure, Section
from tracegap.reports.summary import differing_sources

ORDER = 70
MAX_SIDE = 60
"""Cells along each side; more ranks or steps share a cell, and the slowest of a cell is shown."""

SQL = """
with own as (
    select
        rank, step, wall_ns, complete,
        wall_ns - exposed_comm_ns as own_ns,
        median(wall_ns - exposed_comm_ns) over (partition by step) as median_ns
    from step_gap
    where run_id = $run_id and rank is not null
)
select
    rank // $ranks_per_cell * $ranks_per_cell as rank,
    step // $steps_per_cell * $steps_per_cell as step,
    cast(arg_max(own_ns - median_ns, own_ns - median_ns) as bigint) as behind_ns,
    arg_max(own_ns, own_ns - median_ns) as own_ns,
    arg_max(wall_ns, own_ns - median_ns) as wall_ns,
    bool_and(complete) as complete
from own
group by rank // $ranks_per_cell, step // $steps_per_cell
order by rank, step
"""
_SPAN = """
select
    count(distinct rank) as ranks,
    coalesce(max(rank) - min(rank) + 1, 1) as rank_span,
    coalesce(max(step) - min(step) + 1, 1) as step_span
from step_gap
where run_id = $run_id
"""


def build(ctx: Context) -> Section:
    """Heat map of each rank's own time against the median of the ranks."""
    title = "Ranks by steps"
    span = ctx.query(_SPAN).rows.to_dicts()[0]
    if span["ranks"] < 2:
        return Section(
            title=title,
            sentence="There is the trace of one rank only, so ranks cannot be compared.",
            todo="Profile several ranks and ingest the folder with all their files.",
        )
    differing = differing_sources(ctx.con, ctx.run_id)
    if differing:
        return Section(
            title=title,
            sentence=f"Ranks cannot be compared: their steps are marked in different ways ({differing}).",
            todo="Mark the steps of every rank: profiler.step(), jax.profiler.StepTraceAnnotation or an NVTX range a step.",
        )
    per_rank, per_step = -(-span["rank_span"] // MAX_SIDE), -(-span["step_span"] // MAX_SIDE)
    query = ctx.query(SQL, ranks_per_cell=per_rank, steps_per_cell=per_step)
    rows = query.rows
    whole = rows.filter("complete")
    by_rank = (
        (whole if len(whole) else rows)
        .group_by("rank")
        .agg(pl.col("behind_ns").median())
        .sort("behind_ns", descending=True)
    )
    worst, behind = by_rank.row(0)
    sentence = "Colour: a rank's own time (the step without exposed communication) against the median of the ranks. "
    sentence += (
        f"Rank {worst} has the most work, copies and idle time of its own: {people.duration(behind)} more than the"
        " median rank in its median step."
        if behind > 0
        else "No rank has more time of its own than the others."
    )
    sentence += (
        " That is another question than which rank arrives last in collectives and keeps the others waiting"
        " (above): own time after the last collective of a step delays nobody in that step."
    )
    if per_rank > 1 or per_step > 1:
        sentence += f" A cell holds {per_rank} × {per_step} ranks and steps and shows the slowest."
    return Section(
        title=title,
        sentence=sentence,
        figures=[
            Figure(
                title="Own time (without exposed communication) against the median rank",
                query=query,
                chart=_chart(rows),
                alt=f"Heat map of {span['ranks']} ranks. Most own time against the median: "
                + ", ".join(f"rank {r} {people.signed_duration(b)}" for r, b in by_rank.head(3).iter_rows())
                + ".",
                columns=(
                    Column("rank", "rank", people.count),
                    Column("step", "step", people.count),
                    Column("behind_ns", "against the median", people.signed_duration),
                    Column("own_ns", "own time", people.duration),
                    Column("wall_ns", "step time", people.duration),
                ),
            )
        ],
    )


def _chart(rows: pl.DataFrame) -> alt.TopLevelMixin:
    shown = theme.say(rows, "behind_ns", people.signed_duration, "against the median")
    shown = theme.say(shown, "own_ns", people.duration, "own time")
    most = max(1, *(abs(int(v)) for v in rows["behind_ns"]))
    chart: alt.TopLevelMixin = (
        alt.Chart(shown)
        .mark_rect()
        .encode(
            x=alt.X("step:O", title="step", axis=alt.Axis(labelOverlap=True, labelAngle=0)),
            y=alt.Y("rank:O", title="rank", axis=alt.Axis(labelOverlap=True)),
            color=alt.Color(
                "behind_ns:Q",
                title="against the median rank",
                scale=alt.Scale(domain=[-most, 0, most], range=[theme.BLUE, "#e8e8e8", theme.ORANGE], type="linear"),
                legend=alt.Legend(titleLimit=0, labelExpr=theme.NS_AXIS, gradientLength=220),
            ),
            tooltip=["rank:O", "step:O", "against the median:N", "own time:N"],
        )
        .properties(width=theme.width(rows["step"].n_unique()), height=max(120, min(420, 24 * rows["rank"].n_unique())))
    )
    return chart

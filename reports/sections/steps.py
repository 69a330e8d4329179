"""Steps over time: what the devices did in each, incomplete ones marked."""

import altair as alt
import polars as pl

from tracegap.reports import people, theme
from tracegap.reports.section import Column, Context, Figure, Section
from tracegap.reports.summary import differing_sources

ORDER = 60
MAX_BARS = 1_000
"""More steps than this are drawn several to a bar."""

SQL = """
with by_step as (
    select
        step // $steps_per_bar * $steps_per_bar as step,
        count(*) as device_steps,
        min(wall_ns) as min_wall_ns,
        max(wall_ns) as max_wall_ns,
        cast(round(avg(wall_ns)) as bigint) as wall_ns,
        avg(compute_ns) as compute,
        avg(exposed_comm_ns) as exposed_comm,
        avg(exposed_copy_ns) as exposed_copy,
        avg(idle_ns) as idle,
        bool_and(complete) as complete,
        max(incomplete_reason) as incomplete_reason
    from step_gap
    where run_id = $run_id
    group by step // $steps_per_bar
)
select
    step, device_steps, wall_ns, min_wall_ns, max_wall_ns, complete, incomplete_reason, state,
    cast(round(ns) as bigint) as ns
from by_step
unpivot (ns for state in (compute, exposed_comm, exposed_copy, idle))
order by step, list_position(['compute', 'exposed_comm', 'exposed_copy', 'idle'], state)
"""
_SPAN = "select min(step), max(step), count(distinct step) from step_gap where run_id = $run_id"


def build(ctx: Context) -> Section:
    """Stacked bars of the four states by step, the mean over the devices."""
    title = "Steps over time"
    first, last, steps = ctx.query(_SPAN).rows.row(0)
    if not steps:
        return Section(
            title=title,
            sentence="The traces hold no steps.",
            todo="Call profiler.step() in the loop (torch), or wrap it in jax.profiler.StepTraceAnnotation.",
        )
    per_bar = -(-(last - first + 1) // MAX_BARS)
    query = ctx.query(SQL, steps_per_bar=per_bar)
    rows = query.rows.with_columns(
        pl.col("state").replace_strict({k: v[0] for k, v in theme.STATES.items()}).alias("doing"),
        pl.when("complete").then(pl.lit("complete")).otherwise(pl.lit("incomplete")).alias("counted"),
    )
    bars = rows.filter(state="compute")
    shortest, longest = _range(bars)
    left_out = bars.filter(~pl.col("complete"))
    differing = differing_sources(ctx.con, ctx.run_id)
    if differing:
        sentence = (
            f"The steps of the devices are marked in different ways ({differing}), so a step of one is not a step of"
            " another: the bars mix them and cannot be compared."
        )
    elif steps == 1:
        sentence = f"There is one step, of {people.duration(bars['wall_ns'][0])}."
    else:
        whole = bars.filter("complete")
        sentence = f"{people.plural(steps, 'step')}, numbers {first} to {last}. "
        sentence += "Complete ones take {} to {}.".format(*_range(whole)) if len(whole) else "None is complete."
    if len(left_out):
        reasons = ", ".join(sorted({str(r) for r in left_out["incomplete_reason"].drop_nulls()})) or "no reason known"
        sentence += f" Pale bars are incomplete and left out of averages ({reasons})."
    if per_bar > 1:
        sentence += f" Each bar is the mean of {per_bar} steps."
    sentence += (
        " A step starts at its first kernel on the device: what the host does before that, such as loading data, lies in"
        " the step before."
    )
    return Section(
        title=title,
        sentence=sentence,
        figures=[
            Figure(
                title="Time of each step by what the devices did, mean over devices",
                query=query,
                rows=rows.drop("doing").pivot(on="state", values="ns"),
                chart=_chart(rows),
                alt=f"Bars of {len(bars)} steps, {shortest} to {longest}.",
                columns=(
                    Column("step", "step", people.count),
                    Column("counted", "counted"),
                    Column("incomplete_reason", "why not", lambda v: v or "–"),
                    Column("wall_ns", "step time", people.duration, "mean over the devices"),
                    Column("min_wall_ns", "shortest", people.duration, "over the devices"),
                    Column("max_wall_ns", "longest", people.duration, "over the devices"),
                    *(Column(state, words, people.duration) for state, (words, _) in theme.STATES.items()),
                ),
            )
        ],
    )


def _range(bars: pl.DataFrame) -> tuple[str, str]:
    """Shortest and longest of the bars, in words."""
    walls = bars["wall_ns"].to_list()
    return people.duration(min(walls)), people.duration(max(walls))


def _chart(rows: pl.DataFrame) -> alt.TopLevelMixin:
    shown = rows.select("step", "doing", "counted", "ns", "wall_ns", "incomplete_reason")
    shown = theme.say(theme.say(shown, "ns", people.duration, "time"), "wall_ns", people.duration, "step time")
    order = pl.DataFrame({"doing": [v[0] for v in theme.STATES.values()], "place": range(len(theme.STATES))})
    shown = shown.join(order, on="doing", how="left", maintain_order="left")
    chart: alt.TopLevelMixin = (
        alt.Chart(shown)
        .mark_bar()
        .encode(
            x=alt.X("step:O", title="step", axis=alt.Axis(labelOverlap=True, labelAngle=0)),
            y=alt.Y("sum(ns):Q", title=None, axis=alt.Axis(labelExpr=theme.NS_AXIS, tickCount=5)),
            color=theme.colour(shown, "doing", theme.STATES),
            order="place:Q",
            opacity=alt.condition("datum.counted == 'complete'", alt.value(1), alt.value(0.35)),
            tooltip=["step:O", "counted:N", "doing:N", "time:N", "step time:N", "incomplete_reason:N"],
        )
        .properties(width=theme.width(rows["step"].n_unique()), height=230)
    )
    return chart

"""Operations by the time they lose against what they should cost. The tail is grouped by class, never cut off."""

import altair as alt
import polars as pl

from tracegap.reports import people, theme
from tracegap.reports.section import Column, Context, Figure, Section

ORDER = 40
SHOWN = 200
"""Groups with a row of their own; the rest stands in one row for each class."""
DRAWN = 25
"""Rows with a bar of their own in the chart."""

SQL = """
with steps_counted as (
    select count(*) as n from step_gap where run_id = $run_id
),
groups as (
    select
        name, op_class, dtype,
        count(*) as calls,
        count(distinct shapes) as shape_count,
        mode(framework_op) as framework_op,
        sum(dur_ns) as time_ns,
        sum(share_ns) as share_ns,
        sum(gap_ns) as lost_ns,
        sum(dur_ns) filter (t_min_ns is not null) as modelled_ns,
        sum(t_min_ns) as min_ns,
        mode(bound) as bound,
        mode(unknown_because) as unknown_because
    from op_gap
    where run_id = $run_id
    group by all
),
placed as (
    select *, row_number() over (order by coalesce(lost_ns, share_ns) desc, time_ns desc, name, dtype) as place from groups
)
select
    case when place <= $shown then name else 'other ' || op_class end as operation,
    op_class,
    case when place <= $shown then dtype end as dtype,
    place > $shown as is_tail,
    count(*) as names,
    cast(sum(calls) as bigint) as calls,
    cast(sum(time_ns) as bigint) as time_ns,
    cast(sum(lost_ns) as bigint) as lost_ns,
    cast(sum(lost_ns) / max(n) as bigint) as lost_per_step_ns,
    sum(min_ns) / nullif(sum(modelled_ns), 0) as efficiency_frac,
    coalesce(sum(modelled_ns), 0) / nullif(sum(time_ns), 0) as modelled_frac,
    case when count(*) = 1 then min(bound) end as bound,
    case when count(*) = 1 then min(framework_op) end as framework_op,
    case when count(*) = 1 then min(unknown_because) end as unknown_because,
    min(place) as place
from placed, steps_counted
group by operation, op_class, case when place <= $shown then dtype end, is_tail, case when place <= $shown then place end
order by min(place)
"""


def build(ctx: Context) -> Section:
    """Bars of time by operation, and the table of all of them."""
    title = "Operations by lost time"
    query = ctx.query(SQL, shown=SHOWN)
    rows = query.rows
    if rows.is_empty():
        return Section(
            title=title,
            sentence="There are no device operations in the traces.",
            todo="Profile with device activities on: ProfilerActivity.CUDA, jax.profiler.trace, or nsys --trace=cuda.",
        )
    rows = rows.with_columns(pl.col("op_class").replace_strict(theme.FAMILY_OF_CLASS, default="unclassified").alias("family"))
    total = int(rows["time_ns"].sum())
    known = int((rows["modelled_frac"] * rows["time_ns"]).sum())
    worst = rows.drop_nulls("lost_ns").head(1).to_dicts()
    sentence = (
        f"{people.plural(int(rows['calls'].sum()), 'operation')} under {people.plural(int(rows['names'].sum()), 'name')}"
        f" took {people.duration(total)} of device time in all; what they should cost is known for {people.percent(known / total if total else 0)}"
        " of it. "
    )
    todo = ""
    if worst and worst[0]["lost_ns"] > 0:
        sentence += f"{worst[0]['operation'][:80]} loses the most: {people.duration(worst[0]['lost_per_step_ns'])} a step."
    if known < 0.5 * total:
        todo = (
            "Costs need shapes: record_shapes=True in torch.profiler, or an XSpace trace with its HLO. "
            "The column “why unknown” says it for each operation."
        )
    return Section(
        title=title,
        sentence=sentence,
        todo=todo,
        figures=[
            Figure(
                title=f"Device time of all operations of the run: {people.duration(total)}",
                query=query,
                rows=rows,
                chart=_chart(rows),
                alt="Device time by operation: "
                + "; ".join(f"{r['operation'][:60]} {people.duration(r['time_ns'])}" for r in rows.head(8).to_dicts())
                + ".",
                columns=(
                    Column("operation", "operation"),
                    Column("op_class", "class"),
                    Column("dtype", "dtype", _dash),
                    Column("calls", "calls", people.count),
                    Column("time_ns", "time, all steps", people.duration, "sum of durations over all ranks and steps"),
                    Column("lost_per_step_ns", "lost a step", people.duration, "beyond its roofline bound; a device's step"),
                    Column("efficiency_frac", "of its bound", people.percent, "what it should take over what it takes"),
                    Column("bound", "limit", _dash, "what bounds it: compute, memory or communication"),
                    Column("framework_op", "launched by", _dash),
                    Column("unknown_because", "why unknown", _dash),
                ),
            )
        ],
    )


def _dash(value: str | None) -> str:
    return "–" if value is None else value


def _chart(rows: pl.DataFrame) -> alt.TopLevelMixin:
    """Bars for the first; the rest is drawn as one bar a family, so that the bars add up to all of the time."""
    drawn = rows.head(DRAWN).select(
        pl.concat_str(pl.col("operation").str.slice(0, 60), pl.lit(" "), pl.col("dtype").fill_null("")).alias("operation"),
        "family", "time_ns", "calls", "lost_per_step_ns", "efficiency_frac",
    )  # fmt: skip
    tail = (
        rows.slice(DRAWN)
        .group_by("family", maintain_order=True)
        .agg(pl.col("time_ns").sum(), pl.col("calls").sum(), pl.col("lost_per_step_ns").sum(), pl.col("names").sum())
        .select(
            pl.concat_str(pl.lit("all other: "), pl.col("family")).alias("operation"),
            "family", "time_ns", "calls", "lost_per_step_ns",
            pl.lit(None, dtype=pl.Float64).alias("efficiency_frac"),
        )  # fmt: skip
    )
    shown = pl.concat([drawn, tail]).with_row_index("place")
    for column, show, into in (
        ("time_ns", people.duration, "time"),
        ("lost_per_step_ns", people.duration, "lost a step"),
        ("efficiency_frac", people.percent, "of its bound"),
    ):
        shown = theme.say(shown, column, show, into)
    base = alt.Chart(shown).encode(
        y=alt.Y("place:O", title=None, axis=None),
        tooltip=["operation:N", "family:N", "calls:Q", "time:N", "lost a step:N", "of its bound:N"],
    )
    bars = base.mark_bar(height={"band": 0.42}, yOffset=8, minBandSize=2).encode(
        x=alt.X("time_ns:Q", title=None, axis=alt.Axis(labelExpr=theme.NS_AXIS, tickCount=6)),
        color=theme.colour(shown, "family", theme.FAMILIES),
    )
    names = base.mark_text(align="left", baseline="bottom", dy=3, limit=560).encode(x=alt.value(2), text="label:N")
    names = names.transform_calculate(label="datum.operation + ': ' + datum.time")
    return alt.layer(bars, names).properties(width="container", height=34 * len(shown))

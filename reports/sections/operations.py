"""Operations by the time they lose against what they should cost. The tail is grouped by class, never cut off."""

import re

import altair as alt
import polars as pl

from tracegap.reports import people, theme
from tracegap.reports.section import Column, Context, Figure, Section
from tracegap.reports.summary import RECORD_DEVICES, why_unknown

ORDER = 40
SHOWN = 200
"""Groups with a row of their own; the rest stands in one row for each class."""
DRAWN = 25
"""Rows with a bar of their own in the chart."""
_AROUND = re.compile(r"^void |\(anonymous namespace\)::|\bat::native::|\bc10::|\bat::")

SQL = r"""
with counted as (
    -- Steps that averages are over: the complete ones; all, where none is.
    select trace_id, device_id, step, count(*) over () as device_steps
    from step_gap
    where run_id = $run_id and (complete or not (select bool_or(complete) from step_gap where run_id = $run_id))
),
minimums as (
    select trace_id, op_id, sum(minimum_ns + pipeline_ns) as ns, sum(wait_ns) as wait_ns
    from comm_windows
    group by trace_id, op_id
),
costed as (
    select
        -- Instances of one operation count together: fusion.12 and fusion.7, layer_0/mlp and layer_1/mlp.
        regexp_replace(g.name, '\.[0-9]+$', '') as name,
        regexp_replace(g.framework_op, '([_./\[])[0-9]+', '\1#', 'g') as framework_op,
        g.op_class, g.dtype, g.dur_ns, g.share_ns, g.t_min_ns, g.bound, g.unknown_because, c.device_steps,
        -- What would be gone from the step if the operation met its bound; hidden behind other work it costs nothing.
        case when g.op_class in ('copy', 'memset') then g.share_ns
             when g.op_class <> 'collective' then g.share_ns - g.t_min_ns
             when g.t_min_ns is not null then g.share_ns - coalesce(m.ns, 0)
             -- What no model predicts may be needed, all but its waiting.
             else nullif(m.wait_ns, 0) end as lost_ns,
        case when g.op_class in ('copy', 'memset') or g.t_min_ns is not null then 0
             when g.op_class = 'collective' then g.share_ns - coalesce(m.ns + m.wait_ns, 0)
             else g.share_ns end as unknown_ns
    from op_gap g
    left join minimums m using (trace_id, op_id)
    left join counted c on c.trace_id = g.trace_id and c.device_id = g.device_id and c.step = g.step
    where g.run_id = $run_id
),
groups as (
    select
        name, op_class, dtype, framework_op,
        count(*) as calls,
        sum(dur_ns) as time_ns,
        sum(lost_ns) as lost_ns,
        sum(unknown_ns) as unknown_ns,
        sum(lost_ns / device_steps) as lost_per_step_ns,
        sum(dur_ns) filter (t_min_ns is not null) as modelled_ns,
        sum(t_min_ns) as min_ns,
        mode(bound) as bound,
        mode(unknown_because) as unknown_because
    from costed
    group by name, op_class, dtype, framework_op
),
placed as (
    select
        *,
        row_number() over (
            order by coalesce(lost_ns, 0) + coalesce(unknown_ns, 0) desc, time_ns desc, name, dtype, framework_op
        ) as place
    from groups
)
select
    case when place <= $shown then name else 'other ' || op_class end as operation,
    op_class,
    case when place <= $shown then framework_op end as framework_op,
    case when place <= $shown then dtype end as dtype,
    count(*) as names,
    cast(sum(calls) as bigint) as calls,
    cast(sum(time_ns) as bigint) as time_ns,
    cast(sum(lost_ns) as bigint) as lost_ns,
    cast(coalesce(sum(unknown_ns), 0) as bigint) as unknown_ns,
    cast(sum(lost_per_step_ns) as bigint) as lost_per_step_ns,
    sum(min_ns) / nullif(sum(modelled_ns), 0) as efficiency_frac,
    coalesce(sum(modelled_ns), 0) / nullif(sum(time_ns), 0) as modelled_frac,
    case when count(*) = 1 then min(bound) end as bound,
    case when count(*) = 1 then min(unknown_because) end as unknown_because
from placed
group by case when place <= $shown then name else 'other ' || op_class end, op_class,
         case when place <= $shown then framework_op end, case when place <= $shown then dtype end,
         case when place <= $shown then place end
order by min(place)
"""
_PARTS = {
    "needed": ("needed, or hidden behind other work", theme.BLUE),
    "lost": ("could be saved", theme.ORANGE),
    "unknown": ("not known", theme.GREY),
    "faster": ("faster than its bound", theme.PURPLE),
}


def build(ctx: Context) -> Section:
    """Bars of time by operation, and the table of all of them."""
    title = "Operations by lost time"
    query = ctx.query(SQL, shown=SHOWN)
    rows = query.rows
    if rows.is_empty():
        return Section(
            title=title,
            sentence="There are no device operations in the traces.",
            todo=RECORD_DEVICES,
        )
    total = int(rows["time_ns"].sum())
    known = int((rows["modelled_frac"] * rows["time_ns"]).sum())
    worst = rows.drop_nulls("lost_per_step_ns").sort("lost_per_step_ns", descending=True).head(1).to_dicts()
    calls, names = int(rows["calls"].sum()), int(rows["names"].sum())
    sentence = (
        f"{people.plural(calls, 'operation')} of {people.plural(names, 'kind')} took {people.duration(total)} of device"
        f" time in all; what they should cost is known for {people.percent(known / total if total else 0)} of it. "
    )
    todo = ""
    if worst and (worst[0]["lost_per_step_ns"] or 0) > 0:
        name = short(*(worst[0][k] for k in ("framework_op", "operation", "dtype")))
        sentence += f"The largest loss is {name}: {people.duration(worst[0]['lost_per_step_ns'])} a step."
    if known < 0.5 * total:
        todo = (
            f"Most of the rest is unknown because of this: {why_unknown(ctx.con, ctx.run_id)}. The column “why unknown”"
            " says it for each operation."
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
                    Column(
                        "lost_per_step_ns",
                        "lost a step",
                        people.duration,
                        "beyond its bound, with nothing else running; mean step of a device",
                    ),
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
    """Bars for the first; the rest is drawn as one bar, so that the bars add up to all of the time."""
    drawn_count = len(rows) if len(rows) <= DRAWN + 1 else DRAWN
    drawn = rows.head(drawn_count).with_columns(
        pl.struct("framework_op", "operation", "dtype")
        .map_elements(lambda r: short(r["framework_op"], r["operation"], r["dtype"]), pl.String)
        .alias("label")
    )
    tail = rows.slice(drawn_count)
    if len(tail):
        rest = tail.select(pl.col("names", "calls", "time_ns", "lost_ns", "unknown_ns", "lost_per_step_ns").sum())
        label = f"all {people.count(rest['names'][0])} others"
        drawn = pl.concat(
            [drawn, rest.with_columns(label=pl.lit(label), operation=pl.lit(label))], how="diagonal_relaxed"
        )
    lost, unknown = pl.col("lost_ns").fill_null(0), pl.col("unknown_ns")
    drawn = drawn.with_row_index("place").with_columns(
        needed=pl.col("time_ns") - lost - unknown,
        lost=pl.when(lost > 0).then(lost),
        unknown=unknown,
        faster=pl.when(lost < 0).then(lost),
        label=pl.concat_str(pl.col("time_ns").map_elements(people.duration, pl.String), pl.lit("  "), "label"),
        operation=pl.col("operation").str.slice(0, 200),
    )
    bars = drawn.unpivot(
        on=list(_PARTS),
        index=["place", "operation", "op_class", "dtype", "calls"],
        variable_name="part",
        value_name="ns",
    )
    bars = bars.filter(pl.col("ns") != 0).with_columns(
        pl.col("part").replace_strict({k: words for k, (words, _) in _PARTS.items()}).alias("group")
    )
    y = alt.Y("place:O", title=None, axis=None)
    segments = (
        alt.Chart(theme.say(bars, "ns", people.duration, "time"))
        .mark_bar(height={"band": 0.42}, yOffset=9)
        .encode(
            x=alt.X("ns:Q", title=None, axis=alt.Axis(labelExpr=theme.NS_AXIS, tickCount=6)),
            y=y,
            color=theme.colour(bars, "group", _PARTS),
            tooltip=["operation:N", "op_class:N", "dtype:N", "calls:Q", "group:N", "time:N"],
        )
    )
    names = alt.Chart(drawn.select("place", "label")).mark_text(
        align="left", baseline="bottom", dy=-1, limit=alt.ExprRef("width")
    )
    names = names.encode(x=alt.value(2), y=y, text="label:N")
    return alt.layer(segments, names).properties(width="container", height=34 * len(drawn))


def short(framework_op: str | None, name: str, dtype: str | None) -> str:
    """A name for a label: what launched it, and the kernel without what C++ puts around it."""
    kernel = _AROUND.sub("", name)
    kernel = kernel if len(kernel) <= 56 else kernel[:55] + "…"
    if framework_op is None or framework_op == name:
        said = kernel
    else:
        said = f"{framework_op if len(framework_op) <= 44 else '…' + framework_op[-43:]} · {kernel}"
    return f"{said} ({dtype})" if dtype else said

"""Where the time of the median step goes: all buckets, adding up to its wall time."""

from typing import Any

import altair as alt
import polars as pl

from tracegap.models.units import significant
from tracegap.reports import people, theme
from tracegap.reports.buckets import COLUMNS, Bucket
from tracegap.reports.section import Column, Context, Figure, Section
from tracegap.reports.summary import RECORD_DEVICES, TYPICAL

ORDER = 10

SQL = f"""
with {TYPICAL},
means as (
    select avg(wall_ns) as wall_ns, count(*) as device_steps, {", ".join(f"avg({c}) as {c}" for c in COLUMNS)}
    from typical
),
unpivoted as (
    select bucket, ns, list_position({list(COLUMNS)!r}, bucket) as place
    from (unpivot (select {", ".join(COLUMNS)} from means) on columns(*) into name bucket value ns)
),
-- Means are rounded where they end, so that they add up in whole ns.
buckets as (
    select
        bucket, place,
        cast(round(coalesce(sum(ns) over before, 0)) as bigint) as from_ns,
        cast(round(coalesce(sum(ns) over before, 0) + ns) as bigint) as to_ns
    from unpivoted
    window before as (order by place rows between unbounded preceding and 1 preceding)
),
-- What each operation puts into the buckets; one that the window cuts counts by the part inside.
pieces as (
    select
        g.name, w.state, w.share_ns, g.t_min_ns is not null as is_modelled,
        coalesce(g.t_math_ns, 0) * (w.dur_ns / nullif(g.dur_ns, 0)) as math_ns,
        g.t_min_ns * (w.dur_ns / nullif(g.dur_ns, 0)) as min_ns,
        coalesce(c.wait_ns, 0) as wait_ns, coalesce(c.pipeline_ns, 0) as pipeline_ns,
        coalesce(c.minimum_ns, 0) as minimum_ns
    from op_windows w
    join op_gap g using (trace_id, op_id)
    left join comm_windows c on c.trace_id = w.trace_id and c.op_id = w.op_id and c.step = w.step
    join typical t on t.trace_id = w.trace_id and t.device_id = w.device_id and t.step = w.step
),
parts as (
    select name, 'useful_math_ns' as bucket, math_ns as ns from pieces where state = 'compute' and is_modelled
    union all
    select name, 'memory_bound_ns', min_ns - math_ns from pieces where state = 'compute' and is_modelled
    union all
    select name, 'kernel_inefficiency_ns', share_ns - min_ns from pieces where state = 'compute' and is_modelled
    union all
    select name, 'unmodelled_compute_ns', share_ns from pieces where state = 'compute' and not is_modelled
    union all
    select name, 'comm_minimum_ns', minimum_ns from pieces where state = 'exposed_comm'
    union all
    select name, 'comm_wait_ns', wait_ns from pieces where state = 'exposed_comm'
    union all
    select name, 'idle_pipeline_ns', pipeline_ns from pieces where state = 'exposed_comm'
    union all
    select name, 'comm_inefficiency_ns', share_ns - minimum_ns - wait_ns - pipeline_ns
    from pieces where state = 'exposed_comm'
    union all
    select name, 'exposed_copy_ns', share_ns from pieces where state = 'exposed_copy'
),
by_name as (
    select bucket, name, sum(ns) / any_value(device_steps) as ns, count(*) / any_value(device_steps) as calls
    from parts, means
    group by bucket, name
    having abs(sum(ns)) / any_value(device_steps) >= 1
),
inside as (
    select
        bucket,
        list(
            {{'name': name, 'ns': cast(round(ns) as bigint), 'calls': calls}} order by abs(ns) desc, name
        )[1:5] as operations,
        count(*) as names
    from by_name
    group by bucket
)
select
    b.bucket, b.to_ns - b.from_ns as ns, (b.to_ns - b.from_ns) / nullif(m.wall_ns, 0) as share_frac, b.from_ns, b.to_ns,
    cast(round(m.wall_ns) as bigint) as wall_ns, coalesce(i.names, 0) as names, i.operations
from buckets b
cross join means m
left join inside i using (bucket)
order by b.place
"""

_BEATS = (
    "A negative part means that kernels beat their bound: a peak, a FLOP count or a byte count is wrong, or data came"
    " from cache. It is shown as it is, so that the sum stays true."
)


def build(ctx: Context) -> Section:
    """Waterfall, with the operations of each bucket."""
    title = "Where a step's time goes"
    step = ctx.summary.step
    if step is None:
        return Section(
            title=title,
            sentence="There is no step to account for: the traces hold no device work.",
            todo=RECORD_DEVICES,
        )
    query = ctx.query(SQL)
    buckets = {b.column: b for b in ctx.summary.buckets}
    rows = query.rows.with_columns(
        pl.col("bucket").map_elements(lambda c: buckets[c].title, pl.String).alias("title"),
        pl.col("bucket").map_elements(lambda c: buckets[c].meaning, pl.String).alias("meaning"),
        pl.col("bucket").map_elements(lambda c: ctx.summary.time_of(buckets[c]), pl.String).alias("time"),
        pl.struct("bucket", "ns")
        .map_elements(lambda r: theme.GROUPS["faster" if r["ns"] < 0 else buckets[r["bucket"]].group][0], pl.String)
        .alias("group"),
        pl.struct("operations", "names").map_elements(_inside, pl.String).alias("inside"),
    )
    rows = theme.say(rows, "share_frac", people.percent, "share")
    largest = rows.filter(pl.col("ns") > 0).sort("ns", descending=True).head(3)
    where = _which(step)
    return Section(
        title=title,
        sentence=(
            f"The parts add up to the {people.duration(step['wall_ns'])} of the {_kind(ctx)}. "
            + ("The largest is " if len(largest) == 1 else "The largest are ")
            + ", ".join(f"{r['title']} ({r['time']})" for r in largest.to_dicts())
            + "."
            + _waiting(buckets)
        ),
        figures=[
            Figure(
                title=f"The step piece by piece ({where})",
                query=query,
                rows=rows,
                chart=_chart(rows),
                alt="Waterfall of the step: "
                + "; ".join(f"{r['title']} {r['time']}" for r in rows.to_dicts() if r["ns"])
                + ".",
                columns=(
                    Column("title", "part"),
                    Column("group", "kind"),
                    Column("ns", "time", people.duration),
                    Column("share_frac", "of the step", people.percent),
                    Column("meaning", "what it is"),
                    Column("inside", "operations inside"),
                ),
                note=_BEATS if (rows["ns"] < 0).any() else "",
            )
        ],
    )


def _waiting(buckets: dict[str, Bucket]) -> str:
    """Where waiting is, if nobody can tell how much it is."""
    if buckets["comm_wait_ns"].group != "unknown":
        return ""
    return f" Waiting for other ranks is not 0 but unknown: it is inside “{buckets['comm_inefficiency_ns'].title}”."


def _kind(ctx: Context) -> str:
    return "median complete step" if ctx.summary.steps else "median step (none is complete)"


def _which(step: dict[str, Any]) -> str:
    numbers = " and ".join(str(n) for n in step["steps"])
    over = f", mean over {step['devices']} devices" if step["devices"] > 1 else ""
    return f"step {numbers}{over}" if len(step["steps"]) == 1 else f"mean of steps {numbers}{over}"


def _inside(row: dict[str, object]) -> str:
    operations = row["operations"]
    if not isinstance(operations, list) or not operations:
        return "–"
    said = [f"{o['name'][:60]} {people.duration(o['ns'])} ({significant(o['calls'])} ×)" for o in operations]
    more = int(str(row["names"])) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more > 0 else "")


def _chart(rows: pl.DataFrame) -> alt.TopLevelMixin:
    shown = rows.select("title", "ns", "from_ns", "to_ns", "wall_ns", "group", "time", "share", "meaning", "inside")
    base = alt.Chart(shown).encode(
        y=alt.Y("title:N", sort=None, title=None),
        tooltip=[
            alt.Tooltip("title:N", title="part"),
            alt.Tooltip("time:N", title="time"),
            alt.Tooltip("share:N", title="of the step"),
            alt.Tooltip("meaning:N", title="what it is"),
            alt.Tooltip("inside:N", title="operations inside"),
        ],
    )
    # Labels stand to the right of their bars; the axis is as much longer than the step as one needs.
    scale = alt.Scale(nice=False, domainMax=alt.ExprRef(f"{shown['wall_ns'][0]} * width / max(width - 64, width / 2)"))
    x = alt.X("from_ns:Q", title=None, scale=scale, axis=alt.Axis(labelExpr=theme.NS_AXIS, tickCount=6))
    bars = base.mark_bar(height={"band": 0.72}, minBandSize=2).encode(
        x=x, x2="to_ns:Q", color=theme.colour(rows, "group", theme.GROUPS)
    )
    labels = base.transform_calculate(at="max(datum.from_ns, datum.to_ns)").mark_text(align="left", dx=5)
    labels = labels.encode(x="at:Q", text="time:N")
    total = alt.Chart(shown.head(1)).mark_rule(strokeDash=[4, 3], opacity=0.35).encode(x="wall_ns:Q")
    return alt.layer(bars, labels, total).properties(width="container", height=25 * len(rows))

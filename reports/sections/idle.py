"""Idle time of the median step by cause, and what the host did meanwhile."""

import altair as alt
import polars as pl

from tracegap.reports import people, theme
from tracegap.reports.buckets import BY_COLUMN
from tracegap.reports.section import Column, Context, Figure, Section
from tracegap.reports.summary import RECORD_DEVICES, TYPICAL

ORDER = 35
SHOWN = 60
"""Rows with a name of their own; the others are added up by cause and activity."""
DRAWN = 14

SQL = f"""
with {TYPICAL},
counted as (select count(*) as device_steps from typical),
done as (
    select i.cause, i.activity, i.name, i.caller, i.of_thread, sum(i.idle_ns) as total_ns, sum(i.gaps) as gaps
    from idle_causes i
    join typical t on t.trace_id = i.trace_id and t.device_id = i.device_id and t.step = i.step
    group by all
),
placed as (
    select *, name is not null and row_number() over (order by total_ns desc, cause, activity, name, caller) <= $shown as own
    from done
)
select
    p.cause, p.activity,
    case when own then p.name end as name,
    case when own then p.caller end as caller,
    case when own then p.of_thread end as of_thread,
    cast(round(sum(p.total_ns) / any_value(c.device_steps)) as bigint) as idle_ns,
    sum(p.gaps) / any_value(c.device_steps) as gaps
from placed p cross join counted c
group by 1, 2, 3, 4, 5
order by sum(p.total_ns) desc, 1, 2, 3, 4, 5
"""
_IDLE = f"""
with {TYPICAL} select cast(round(avg(idle_ns)) as bigint) as idle_ns, avg(wall_ns) as wall_ns from typical
"""

ACTIVITIES = {
    "operator": "operators of the framework",
    "python": "Python",
    "annotation": "in a named range, nothing else recorded",
    "garbage_collection": "garbage collection",
    "data_loading": "loading data",
    "allocation": "allocating or freeing memory",
    "compilation": "compiling or loading code",
    "synchronisation": "synchronising",
    "copy": "calls that copy",
    "launch": "launch calls",
    "communication": "communication calls",
    "thread_wait": "waiting for another thread",
    "system_call": "system calls",
    "runtime": "other calls of driver or runtime",
    "profiler": "work of the profiler",
    "device": "launched, the device had not begun",
    "nothing_recorded": "nothing recorded",
}
"""Words for `idle_causes.activity`."""
_UNSEEN = ("nothing_recorded", "annotation")
_MORE = (
    "Most of it falls where the trace records nothing of the host: with_stack=True (torch), python_tracer_level=1 (JAX) or"
    " nsys --trace=cuda,nvtx,osrt --python-backtrace=cuda tell more."
)


def build(ctx: Context) -> Section:
    """Bars of idle time by cause and activity, and the table of what the host did."""
    title = "Idle time by what the host did"
    if ctx.summary.step is None:
        return Section(title=title, sentence="There is no step whose idle time could be told.", todo=RECORD_DEVICES)
    idle_ns, wall_ns = ctx.query(_IDLE).rows.row(0)
    query = ctx.query(SQL, shown=SHOWN)
    if query.rows.is_empty():
        said = (
            "The devices are never idle in the median step."
            if not idle_ns
            else "What the host did in idle time has not been worked out: the run was evaluated by an older version."
        )
        return Section(
            title=title, sentence=said, todo="" if not idle_ns else "Evaluate it again: tracegap report RUN."
        )
    rows = query.rows.with_columns(
        pl.col("cause").map_elements(lambda c: BY_COLUMN[f"{c}_ns"].title, pl.String).alias("why"),
        pl.col("activity").replace_strict(ACTIVITIES, default="the launch is not in the file").alias("doing"),
        (pl.col("idle_ns") / wall_ns).alias("share_frac"),
    )
    rows = rows.with_columns(pl.col("doing").fill_null("the launch is not in the file"))
    sums = rows.group_by("cause", "why", "doing", maintain_order=True).agg(pl.col("idle_ns", "gaps").sum())
    sums = sums.sort("idle_ns", descending=True)
    largest = ", ".join(_words(rows, r) for r in sums.head(3).to_dicts())
    unseen = rows.filter(pl.col("activity").is_in(_UNSEEN))["idle_ns"].sum()
    return Section(
        title=title,
        sentence=(
            f"A device is idle for {people.duration(idle_ns)} of the median step ({people.percent(idle_ns / wall_ns)})."
            f" Most of it: {largest}."
        ),
        todo=_MORE if 2 * unseen > idle_ns else "",
        figures=[
            Figure(
                title="Idle time of the median step by cause and by what the host did, mean over devices",
                query=query,
                rows=rows,
                chart=_chart(sums),
                alt="Bars of idle time: "
                + "; ".join(
                    f"{r['why']}, {r['doing']} {people.duration(r['idle_ns'])}" for r in sums.head(8).to_dicts()
                )
                + ".",
                columns=(
                    Column("why", "cause"),
                    Column("doing", "what the host did"),
                    Column("name", "name", lambda v: v or "–", "host event that tells it; – is none, or the rest"),
                    Column("caller", "called by", lambda v: v or "–"),
                    Column(
                        "of_thread",
                        "thread",
                        lambda v: v or "–",
                        "launching: the thread that launches what comes next; other: another, for which that one waited",
                    ),
                    Column("idle_ns", "idle time", people.duration),
                    Column("share_frac", "of the step", people.percent),
                    Column("gaps", "idle intervals", lambda v: f"{v:,.1f}", "in a step of a device"),
                ),
            )
        ],
    )


def _words(rows: pl.DataFrame, part: dict[str, object]) -> str:
    """A cause and activity, with the name that takes most of it."""
    said = f"{part['why']}, {part['doing']} ({people.duration(part['idle_ns'])}"  # type: ignore[arg-type]
    names = rows.filter(
        (pl.col("cause") == part["cause"]) & (pl.col("doing") == part["doing"]) & pl.col("name").is_not_null()
    )
    if len(names):
        first = names.sort("idle_ns", descending=True).row(0, named=True)
        called = f" in {first['caller']}" if first["caller"] else ""
        said += f", most in {first['name'][:60]}{called[:60]}"
    return said + ")"


def _chart(sums: pl.DataFrame) -> alt.TopLevelMixin:
    group = pl.col("cause").map_elements(lambda c: theme.GROUPS[BY_COLUMN[f"{c}_ns"].group][0], pl.String)
    bars = sums.with_columns(group.alias("group"), label=pl.concat_str("why", pl.lit(": "), "doing"))
    if len(bars) > DRAWN:
        rest = bars.slice(DRAWN - 1)
        label = f"{people.plural(len(rest), 'other pair')}"
        bars = pl.concat(
            [
                bars.head(DRAWN - 1),
                rest.select(pl.col("idle_ns", "gaps").sum()).with_columns(
                    label=pl.lit(label), group=pl.lit(theme.GROUPS["loss"][0])
                ),
            ],
            how="diagonal_relaxed",
        )
    shown = theme.say(bars.select("label", "idle_ns", "group"), "idle_ns", people.duration, "time")
    base = alt.Chart(shown).encode(y=alt.Y("label:N", sort=None, title=None, axis=alt.Axis(labelLimit=320)))
    x = alt.X("idle_ns:Q", title=None, axis=alt.Axis(labelExpr=theme.NS_AXIS, tickCount=5))
    drawn = base.mark_bar(height={"band": 0.7}).encode(
        x=x, color=theme.colour(shown, "group", theme.GROUPS), tooltip=["label:N", "time:N"]
    )
    labels = base.mark_text(align="left", dx=4).encode(x=x, text="time:N")
    return alt.layer(drawn, labels).properties(width="container", height=24 * len(shown))

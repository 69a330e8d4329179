"""Collectives: bandwidth measured against predicted by message size, and which rank the others wait for."""

import altair as alt
import polars as pl

from tracegap.reports import people, theme
from tracegap.reports.section import Column, Context, Figure, Section

ORDER = 50
SHOWN = 2_000
"""Groups with a point of their own; the rest is one point a kind."""

SQL = """
with groups as (
    select
        coalesce(collective, 'unknown kind') as collective, group_size, message_bytes,
        any_value(bandwidth_over) as bandwidth_over,
        count(*) as calls,
        median(busbw_gb_per_s) as busbw_gb_per_s,
        median(busbw_gb_per_s / nullif(efficiency_frac, 0)) as predicted_gb_per_s,
        sum(dur_ns) as time_ns, sum(exposed_ns) as exposed_ns,
        sum(wait_ns) as wait_ns, sum(predicted_ns) as predicted_ns,
        mode(predicted_by) as predicted_by,
        row_number() over (order by sum(dur_ns) desc, collective, message_bytes) as place
    from collective_gap
    where run_id = $run_id
    group by collective, group_size, message_bytes
)
select
    collective,
    case when place <= $shown then group_size end as group_size,
    case when place <= $shown then message_bytes end as message_bytes,
    min(bandwidth_over) as bandwidth_over,
    cast(sum(calls) as bigint) as calls,
    median(busbw_gb_per_s) as busbw_gb_per_s,
    median(predicted_gb_per_s) as predicted_gb_per_s,
    cast(sum(time_ns) as bigint) as time_ns,
    cast(sum(exposed_ns) as bigint) as exposed_ns,
    cast(sum(wait_ns) as bigint) as wait_ns,
    cast(sum(predicted_ns) as bigint) as predicted_ns,
    mode(predicted_by) as predicted_by
from groups
group by collective, case when place <= $shown then group_size end, case when place <= $shown then message_bytes end,
         case when place <= $shown then place end
order by time_ns desc, collective, message_bytes
"""
WAIT_SQL = """
with waits as (
    select
        rank, last_rank, wait_ns,
        -- What was launched outside the trace counts as one step more.
        (select count(distinct coalesce(step, -1)) from collective_gap where run_id = $run_id) as steps,
        (select count(distinct rank) from collective_gap where run_id = $run_id) as ranks
    from collective_gap
    where run_id = $run_id and wait_ns is not null and rank is not null
),
own as (
    select rank, sum(wait_ns / steps) as wait_per_step_ns from waits group by rank
),
caused as (
    select last_rank as rank, sum(wait_ns / steps / nullif(ranks - 1, 0)) as caused_per_step_ns
    from waits
    group by last_rank
)
select
    rank // $ranks_per_bar * $ranks_per_bar as rank,
    cast(max(wait_per_step_ns) as bigint) as wait_per_step_ns,
    cast(coalesce(max(caused_per_step_ns), 0) as bigint) as caused_per_step_ns
from own left join caused using (rank)
group by rank // $ranks_per_bar
order by rank
"""
_RANKS = "select coalesce(max(rank) - min(rank) + 1, 1) as n from collective_gap where run_id = $run_id"
_MAX_BARS = 512
_KINDS = [theme.BLUE, theme.ORANGE, theme.TEAL, theme.PURPLE, theme.GREY]


def build(ctx: Context) -> Section:
    """Points of measured and predicted bus bandwidth; bars of waiting by rank."""
    title = "Collectives, measured against predicted"
    query = ctx.query(SQL, shown=SHOWN)
    rows = query.rows
    if rows.is_empty():
        return Section(title=title, sentence="The traces of this run hold no collective operation.")
    total, exposed = int(rows["time_ns"].sum()), int(rows["exposed_ns"].sum())
    sentence = (
        f"{people.plural(int(rows['calls'].sum()), 'collective')} on all ranks took {people.duration(total)},"
        f" {people.percent(exposed / total if total else 0)} of it exposed (no compute ran meanwhile). "
    )
    unpredicted = rows.filter(pl.col("predicted_ns").is_null())
    if len(unpredicted):
        why = unpredicted["predicted_by"].drop_nulls().mode()
        sentence += f"{people.plural(len(unpredicted), 'kind and size', 'kinds and sizes')} cannot be predicted" + (
            f" ({why[0]})." if len(why) else "."
        )
    drawn = rows.filter(pl.col("message_bytes") > 0, pl.col("busbw_gb_per_s") > 0)
    todo = (
        ""
        if len(drawn)
        else "No message sizes in these traces: use a PyTorch of 2.1 or newer, or an XSpace trace with its HLO."
    )
    figures = [
        Figure(
            title="Bus bandwidth (as nccl-tests counts it) by message size: dots are measured, dashes predicted",
            query=query,
            chart=_chart(drawn) if len(drawn) else None,
            alt="Bus bandwidth by message size: "
            + "; ".join(
                f"{r['collective']} of {people.size(r['message_bytes'])}: "
                f"{people.gb_per_s(r['busbw_gb_per_s'])} measured, {people.gb_per_s(r['predicted_gb_per_s'])} predicted"
                for r in drawn.head(6).to_dicts()
            )
            + ".",
            columns=(
                Column("collective", "collective"),
                Column("group_size", "ranks", people.count),
                Column("message_bytes", "message", people.size),
                Column("calls", "calls", people.count, "over all ranks and steps"),
                Column("busbw_gb_per_s", "bus bandwidth", people.gb_per_s, "median"),
                Column("predicted_gb_per_s", "predicted", people.gb_per_s),
                Column(
                    "bandwidth_over",
                    "taken over",
                    people.text,
                    "transfer: without waiting; duration: waiting is part of it",
                ),
                Column("time_ns", "time, all", people.duration),
                Column("exposed_ns", "exposed", people.duration),
                Column("wait_ns", "waiting", people.duration),
                Column("predicted_by", "predicted by"),
            ),
        )
    ]
    waits = ctx.query(WAIT_SQL, ranks_per_bar=-(-int(ctx.query(_RANKS).rows["n"][0]) // _MAX_BARS))
    if len(waits.rows) > 1:
        last = waits.rows.sort("caused_per_step_ns", descending=True).row(0, named=True)
        if last["caused_per_step_ns"]:
            held = people.duration(last["caused_per_step_ns"])
            sentence += f" Rank {last['rank']} holds the others up the most, by arriving last: {held} a step each."
        figures.append(
            Figure(
                title="Waiting for the last rank to arrive, by rank, hidden waiting included",
                query=waits,
                chart=_wait_chart(waits.rows),
                alt="Waiting in each step: "
                + "; ".join(f"rank {r} {people.duration(w)}" for r, w, _ in waits.rows.head(16).iter_rows())
                + ".",
                columns=(
                    Column("rank", "rank", people.count),
                    Column("wait_per_step_ns", "waits a step", people.duration),
                    Column(
                        "caused_per_step_ns",
                        "holds each other rank up",
                        people.duration,
                        "a step, where it arrives last",
                    ),
                ),
                note="A rank that waits little is the one that the others wait for. Waiting that compute hides is counted here;"
                " the part “waiting for the last rank” of a step, at the top, is only what nothing hides.",
            )
        )
    elif not todo:
        todo = (
            "Waiting for other ranks is not known and is inside these times: it needs the traces of several ranks; ingest"
            " the folder with all their files."
        )
    return Section(title=title, sentence=sentence.strip(), todo=todo, figures=figures)


def _chart(drawn: pl.DataFrame) -> alt.TopLevelMixin:
    shown = drawn.select("collective", "group_size", "message_bytes", "calls", "busbw_gb_per_s", "predicted_gb_per_s")
    for column, show, into in (
        ("message_bytes", people.size, "message"),
        ("busbw_gb_per_s", people.gb_per_s, "measured"),
        ("predicted_gb_per_s", people.gb_per_s, "predicted"),
    ):
        shown = theme.say(shown, column, show, into)
    kinds = shown["collective"].unique().sort().to_list()
    base = alt.Chart(shown).encode(
        x=alt.X(
            "message_bytes:Q",
            title="message",
            scale=alt.Scale(type="log", padding=24),
            axis=alt.Axis(labelExpr=theme.si_axis("B"), tickCount=6),
        ),
        color=alt.Color(
            "collective:N",
            title=None,
            scale=alt.Scale(domain=kinds, range=[_KINDS[i % len(_KINDS)] for i in range(len(kinds))]),
        ),
        tooltip=["collective:N", "group_size:Q", "message:N", "calls:Q", "measured:N", "predicted:N"],
    )
    title = "GB/s"
    y, y_predicted = alt.Y("busbw_gb_per_s:Q", title=title), alt.Y("predicted_gb_per_s:Q", title=title)
    measured = base.mark_point(filled=True, opacity=0.75).encode(
        y=y, size=alt.Size("calls:Q", legend=None, scale=alt.Scale(range=[30, 300]))
    )
    predicted = shown.drop_nulls("predicted_gb_per_s")
    if predicted.is_empty():
        alone: alt.TopLevelMixin = measured.properties(width="container", height=280)
        return alone
    ticks = base.mark_tick(orient="horizontal", size=22, thickness=3).encode(y=y_predicted).properties(data=predicted)
    between = (
        base.mark_rule(opacity=0.4, strokeDash=[2, 2]).encode(y=y, y2="predicted_gb_per_s:Q").properties(data=predicted)
    )
    return alt.layer(between, ticks, measured).properties(width="container", height=280)


def _wait_chart(rows: pl.DataFrame) -> alt.TopLevelMixin:
    shown = theme.say(rows, "wait_per_step_ns", people.duration, "waits a step")
    shown = theme.say(shown, "caused_per_step_ns", people.duration, "holds others up")
    chart: alt.TopLevelMixin = (
        alt.Chart(shown)
        .mark_bar(color=theme.ORANGE)
        .encode(
            x=alt.X("rank:O", title="rank", axis=alt.Axis(labelOverlap=True, labelAngle=0)),
            y=alt.Y("wait_per_step_ns:Q", title="waits in a step", axis=alt.Axis(labelExpr=theme.NS_AXIS, tickCount=5)),
            tooltip=["rank:O", "waits a step:N", "holds others up:N"],
        )
        .properties(width=theme.width(len(rows)), height=180)
    )
    return chart

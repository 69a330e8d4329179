"""What the typical step waits for over all ranks, and what changes would make of it."""

import altair as alt
import polars as pl

from tracegap.reports import people, theme
from tracegap.reports.section import Column, Context, Figure, Section

ORDER = 25

PATH_SQL = """
with typical as (
    -- The path of the typical step; that of the slowest one is stored beside it.
    select coalesce((select any_value(step) from what_if where run_id = $run_id),
                    (select min(step) from critical_path where run_id = $run_id)) as step
)
select kind, any_value(why) as why, cast(sum(dur_ns) as bigint) as dur_ns, sum(dur_ns) / sum(sum(dur_ns)) over () as part_frac,
       cast(sum(pieces) as bigint) as pieces, count(distinct rank) as ranks, mode(rank) as rank
from critical_path join typical using (step)
where run_id = $run_id
group by kind
order by dur_ns desc, kind
"""
CHANGES_SQL = """
select change, what, before_ns, after_ns, saves_ns, note
from what_if
where run_id = $run_id
order by saves_ns desc, change, what
"""
WORDS = {
    "kernel": ("a kernel runs", theme.BLUE),
    "collective": ("a collective runs", theme.ORANGE),
    "copy": ("a copy or fill runs", theme.PURPLE),
    "input": ("the host loads data", theme.TEAL),
    "host": ("the host has not begun the next call", theme.GREY),
    "launch_call": ("the host is in a launch call", theme.GREY),
    "sync_call": ("the host is in a synchronisation", theme.GREY),
    "sync_return": ("a synchronisation returns", theme.GREY),
    "launch_latency": ("a launch reaches the device", theme.GREY),
    "device_gap": ("an operation follows another one", theme.GREY),
    "unknown": ("nothing leads further back", theme.GREY),
}
"""Kinds of pieces: words and colour."""
CHANGES = {
    "kernel_at_bound": "kernels at their bound",
    "collective_at_prediction": "collective as predicted",
    "collective_hidden": "collective hidden behind compute",
    "straggler_gone": "late rank like the median one",
    "launches_free": "launches cost nothing",
    "input_gone": "no waiting for data",
    "syncs_gone": "no synchronisation",
    "bubble_gone": "no pipeline bubble",
}
"""Changes in words."""


def build(ctx: Context) -> Section:
    """The critical path by kind, and the changes that shorten it."""
    title = "What the step waits for, over all ranks"
    path, changes = ctx.query(PATH_SQL), ctx.query(CHANGES_SQL)
    if path.rows.is_empty():
        return Section(
            title=title,
            sentence="There is no step whose operations could be put in the order in which they wait for each other.",
            todo="Record a complete step, with host and device activities.",
        )
    rows = path.rows.with_columns(
        words=pl.col("kind").replace_strict({k: v[0] for k, v in WORDS.items()}, default=pl.col("kind"))
    )
    figures = [_path(path, rows)]
    if len(changes.rows):
        figures.append(_changes(changes))
    return Section(title=title, sentence=_sentence(rows, changes.rows), figures=figures)


def _sentence(rows: pl.DataFrame, changes: pl.DataFrame) -> str:
    first = rows.row(0, named=True)
    share = people.percent(first["part_frac"])
    said = f"Followed back from its end over what each moment waited for, {share} of the step is: {first['words']}."
    better = changes.filter(pl.col("saves_ns") > 0)
    if len(better):
        best = better.row(0, named=True)
        said += (
            f" Of the changes that were replayed, one alone would save most: {CHANGES.get(best['change'], best['change'])}"
            f" ({best['what']}), {people.duration(best['before_ns'])} → {people.duration(best['after_ns'])}."
        )
    return said


def _path(query: object, rows: pl.DataFrame) -> Figure:
    shown = theme.say(rows.select("kind", "words", "dur_ns"), "dur_ns", people.duration, "time")
    colours = {words: (words, colour) for words, colour in WORDS.values()}
    chart = (
        alt.Chart(shown)
        .mark_bar(height={"band": 0.72})
        .encode(
            y=alt.Y("words:N", sort=None, title=None, axis=alt.Axis(labelLimit=260)),
            x=alt.X("dur_ns:Q", title=None, axis=alt.Axis(labelExpr=theme.NS_AXIS, tickCount=6)),
            color=theme.colour(shown, "words", colours).legend(None),
            tooltip=["words:N", "time:N"],
        )
        .properties(width="container", height=24 * len(shown))
    )
    return Figure(
        title="The critical path of the typical step, by what it is made of",
        query=query,  # type: ignore[arg-type]
        rows=rows,
        chart=chart,
        alt="; ".join(f"{r['words']} {people.duration(r['dur_ns'])}" for r in rows.to_dicts()) + ".",
        columns=(
            Column("words", "what"),
            Column("dur_ns", "time", people.duration, "all rows add up to the step"),
            Column("part_frac", "of the step", people.percent),
            Column("pieces", "pieces", people.count),
            Column("ranks", "on ranks", people.count),
            Column("rank", "most often rank", lambda v: "–" if v is None else str(v)),
        ),
        note="The table critical_path has each piece, also of the slowest step.",
    )


def _changes(query: object) -> Figure:
    rows = query.rows.with_columns(  # type: ignore[attr-defined]
        words=pl.col("change").replace_strict(CHANGES, default=pl.col("change")), note=pl.col("note").fill_null("–")
    )
    return Figure(
        title="What one change alone would make of the typical step, replayed",
        query=query,  # type: ignore[arg-type]
        rows=rows,
        columns=(
            Column("words", "change"),
            Column("what", "of"),
            Column("after_ns", "step after it", people.duration),
            Column("saves_ns", "saves", people.signed_duration),
            Column("note", "note"),
        ),
        note="The step runs again with the change, everything else as it was: what one saves, another may not save again. "
        "tracegap what-if answers others.",
    )

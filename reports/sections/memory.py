"""Device memory at its peak: what it was handed out for, beside what the plan of the run needs."""

from typing import Any

import altair as alt
import polars as pl

from tracegap.reports import people, theme
from tracegap.reports.section import Column, Context, Figure, Section

ORDER = 55

TOTALS_SQL = """
select
    coalesce(d.ordinal, t.rank) as rank, m.trace_id, m.device_id,
    max(m.bytes) filter (part = 'peak_allocated') as peak_allocated_bytes,
    max(m.bytes) filter (part = 'peak_reserved') as peak_reserved_bytes,
    max(m.predicted_bytes) filter (part = 'predicted') as predicted_bytes,
    any_value(try_cast(d.properties ->> 'memory_bytes' as bigint)) as capacity_bytes,
    min(m.note) filter (part like 'peak_%' and m.bytes is null) as why_not,
    min(m.note) filter (part = 'predicted') as plan,
    any_value(m.source) filter (m.source not in ('plan', 'hlo')) as source
from memory m
join traces t using (trace_id)
join devices d on d.trace_id = m.trace_id and d.device_id = m.device_id
where t.run_id = $run_id and m.part_of is null and m.step is null
group by all
order by coalesce(peak_allocated_bytes, peak_reserved_bytes) desc nulls last, rank, m.device_id
"""
PARTS_SQL = """
select
    part_of, part, name, operator, detail, bytes, predicted_bytes
from memory
where trace_id = $trace_id and device_id = $device_id and step is null and part_of is not null
order by part_of, detail, coalesce(bytes, predicted_bytes) desc, part, name, operator
"""

WORDS = {
    "before_recording": ("there before recording: weights, optimizer, caches", theme.BLUE),
    "earlier_steps": ("kept from earlier steps", theme.BLUE),
    "input": ("input", theme.TEAL),
    "forward": ("handed out in forward", theme.ORANGE),
    "backward": ("handed out in backward", theme.PURPLE),
    "optimizer": ("handed out in the optimizer", theme.TEAL),
    "communication": ("handed out in communication", theme.GREY),
    "recording": ("handed out while recording", theme.GREY),
    "in_use": ("in use", theme.BLUE),
    "cached": ("kept by the allocator, not in use", theme.GREY),
    "weights": ("weights", theme.BLUE),
    "gradients": ("gradients", theme.PURPLE),
    "activations": ("activations", theme.ORANGE),
    "buffers": ("buffers", theme.GREY),
    "margin": ("margin for fragmentation", theme.GREY),
    "parameters": ("arguments: weights, states, batch", theme.BLUE),
    "outputs": ("results", theme.TEAL),
    "constants": ("constants", theme.GREY),
    "temporaries": ("temporary: activations, gradients", theme.ORANGE),
}
"""Words and colours of parts; the optimizer of a plan is `states`."""
_STATES = ("optimizer states", theme.TEAL)
_BARS = {
    "peak_allocated": "in use",
    "peak_reserved": "held by the allocator",
    "predicted": "planned",
    "program": "compiled program",
}
_RECORD = (
    "Record memory events: profile_memory=True (torch.profiler), nsys --cuda-memory-usage=true; XLA's allocators on GPU and"
    " TPU write them into every profile of the host."
)


def build(ctx: Context) -> Section:
    """Bars of the fullest device, and a table of all."""
    title = "Device memory"
    totals = ctx.query(TOTALS_SQL)
    rows = totals.rows
    known = rows.filter(pl.col("peak_allocated_bytes").is_not_null() | pl.col("peak_reserved_bytes").is_not_null())
    if known.is_empty() and (rows.is_empty() or rows["predicted_bytes"].null_count() == len(rows)):
        return Section(title=title, sentence="The traces hold no memory events.", todo=_RECORD)
    first = rows.row(0, named=True)
    parts = ctx.query(PARTS_SQL, trace_id=first["trace_id"], device_id=first["device_id"])
    devices = Figure(
        title="Peak of each device",
        query=totals,
        rows=rows.with_columns(
            (pl.col("peak_allocated_bytes") / pl.col("capacity_bytes")).alias("used_frac"),
            pl.col("why_not", "source").fill_null("–"),
        ),
        columns=(
            Column("rank", "rank", lambda v: "–" if v is None else people.count(v)),
            Column("device_id", "device"),
            Column("peak_allocated_bytes", "most in use", people.size),
            Column("peak_reserved_bytes", "most held", people.size, "by the allocator, in use or not"),
            Column("capacity_bytes", "memory", people.size, "of the part, as the trace says it"),
            Column("used_frac", "of it in use", people.percent),
            Column("predicted_bytes", "planned", people.size, "on the fullest device"),
            Column("source", "counted by"),
            Column("why_not", "why unknown"),
        ),
        note=f"Plan: {first['plan']}." if first["plan"] else "",
    )
    figures = [devices] if len(known) else []
    if len(parts.rows):
        figures.insert(0, _parts(parts, first))
    return Section(
        title=title,
        sentence=_sentence(first, parts.rows, len(known)),
        todo="" if len(known) else _RECORD,
        figures=figures,
    )


def _sentence(first: dict[str, Any], parts: pl.DataFrame, measured: int) -> str:
    peak = first["peak_allocated_bytes"]
    if not measured:
        return f"The traces hold no memory events; by the plan the fullest device needs {people.size(first['predicted_bytes'])}."
    if peak is None:
        said = f"At most {people.size(first['peak_reserved_bytes'])} were held on the fullest device, as far as the trace tells."
    else:
        said = f"At most {people.size(peak)} were in use on the fullest device"
        capacity = first["capacity_bytes"]
        said += f", {people.percent(peak / capacity)} of its memory." if capacity else "."
        mine = parts.filter((pl.col("part_of") == "peak_allocated") & ~pl.col("detail"))
        if len(mine):
            largest = mine.sort("bytes", descending=True).head(2).to_dicts()
            said += " Most: " + ", ".join(f"{WORDS[r['part']][0]} ({people.size(r['bytes'])})" for r in largest) + "."
    if first["predicted_bytes"] is not None:
        said += f" The plan of the model and mesh needs {people.size(first['predicted_bytes'])}."
    return said


def _words(part_of: str, part: str) -> tuple[str, str]:
    return _STATES if (part_of, part) == ("predicted", "optimizer") else WORDS[part]


def _parts(query: Any, first: dict[str, Any]) -> Figure:
    rows = query.rows.with_columns(
        pl.col("part_of").replace_strict(_BARS).alias("total"),
        pl.struct("part_of", "part").map_elements(lambda r: _words(**r)[0], pl.String).alias("what"),
        pl.coalesce("bytes", "predicted_bytes").alias("size_bytes"),
        pl.col("name", "operator").fill_null("–"),
    )
    whole = rows.filter(~pl.col("detail"))
    return Figure(
        title=f"Parts of the peak of device {first['device_id']}, measured and planned",
        query=query,
        rows=rows,
        chart=_chart(whole),
        alt="Bars of memory: "
        + "; ".join(f"{r['total']}, {r['what']} {people.size(r['size_bytes'])}" for r in whole.to_dicts())
        + ".",
        columns=(
            Column("total", "peak of what is"),
            Column("what", "part"),
            Column("name", "module or operator", str, "what asked for it; – is the part itself, or the rest of it"),
            Column("operator", "in operator"),
            Column("size_bytes", "memory", people.size),
        ),
        note="Rows with a module or operator, and their rest, add up to the part above them.",
    )


def _chart(whole: pl.DataFrame) -> alt.TopLevelMixin:
    shown = theme.say(whole.select("total", "what", "size_bytes"), "size_bytes", people.size, "size")
    words = {r["what"]: (r["what"], _words(r["part_of"], r["part"])[1]) for r in whole.to_dicts()}
    chart: alt.TopLevelMixin = (
        alt.Chart(shown)
        .mark_bar(stroke="white", strokeWidth=1)
        .encode(
            y=alt.Y("total:N", sort=list(_BARS.values()), title=None),
            x=alt.X("size_bytes:Q", title=None, axis=alt.Axis(labelExpr=theme.plain_axis("B"), tickCount=6)),
            color=theme.colour(shown, "what", words),
            order=alt.Order("size_bytes:Q", sort="descending"),
            tooltip=["total:N", "what:N", "size:N"],
        )
        .properties(width="container", height=44 * shown["total"].n_unique())
    )
    return chart

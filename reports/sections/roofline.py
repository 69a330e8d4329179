"""Roofline: how much arithmetic each operation gets out of each byte, and how near to its ceiling it comes."""

import altair as alt
import polars as pl

from tracegap.reports import people, theme
from tracegap.reports.section import Column, Context, Figure, Section

ORDER = 30
SHOWN = 1_500
"""Groups with a bubble of their own; the rest is one bubble a class."""

SQL = """
with costed as (
    select
        name, op_class, dtype, trace_id, device_id, flops, bytes,
        sum(dur_ns) as time_ns, count(*) as calls, sum(t_min_ns) as min_ns
    from op_gap
    where run_id = $run_id and flops > 0 and bytes > 0 and dur_ns > 0
        and op_class not in ('collective', 'copy', 'memset')
    group by all
),
groups as (
    select
        name, op_class, dtype,
        sum(flops::double * calls) as flops, sum(bytes::double * calls) as bytes,
        sum(time_ns) as time_ns, sum(calls) as calls, sum(min_ns) as min_ns,
        row_number() over (order by sum(time_ns) desc, name, dtype) as place
    from costed
    -- One bubble for what has the same intensity.
    group by name, op_class, dtype, flops / bytes
),
operations as (
    select
        'operation' as what,
        case when place <= $shown then name else 'other ' || op_class end as name,
        op_class, dtype,
        cast(sum(calls) as bigint) as calls,
        cast(sum(time_ns) as bigint) as time_ns,
        sum(flops) / sum(bytes) as flops_per_byte,
        sum(flops) * 1e9 / sum(time_ns) as flops_per_s,
        sum(min_ns) / sum(time_ns) as efficiency_frac
    from groups
    group by case when place <= $shown then name else 'other ' || op_class end, op_class, dtype,
             case when place <= $shown then place end
),
used as (
    select distinct trace_id, device_id, dtype,
           case when op_class in ('matmul', 'attention', 'convolution') then 'matrix' else 'vector' end as unit
    from costed
),
ceilings as (
    select distinct
        -- A plane of a TPU states one peak: that of its matrix units, used for all.
        case when p.source = 'trace' then 'peak that the trace states'
             when p.unit = 'matrix' then u.dtype || ' matrix peak'
             else 'vector peak' end as name,
        p.flops_per_s, d.hbm_bytes_per_s
    from used u
    join peaks p on p.trace_id = u.trace_id and p.device_id = u.device_id and p.unit = u.unit
        and (p.dtype = u.dtype or p.unit = 'vector')
    join devices d on d.trace_id = u.trace_id and d.device_id = u.device_id
    where d.hbm_bytes_per_s is not null
),
reach as (
    select
        least((select min(flops_per_byte) from operations), min(flops_per_s / hbm_bytes_per_s)) / 2 as low,
        greatest((select max(flops_per_byte) from operations), max(flops_per_s / hbm_bytes_per_s)) * 4 as high
    from ceilings
),
corners as (
    select 'ceiling' as what, name, unnest([low, flops_per_s / hbm_bytes_per_s, high]) as flops_per_byte,
           unnest([low * hbm_bytes_per_s, flops_per_s, flops_per_s]) as flops_per_s
    from ceilings, reach
)
select * from operations
union all by name
select * from corners
order by what desc, time_ns desc nulls last, name, flops_per_byte
"""
_BYTES = """
select count(*) as n
from op_gap
where run_id = $run_id and bytes > 0 and op_class not in ('collective', 'copy', 'memset')
"""
_WITHOUT = """
select
    coalesce(sum(dur_ns) filter (flops > 0 and bytes > 0), 0) / nullif(sum(dur_ns), 0) as drawn_frac,
    coalesce(sum(dur_ns) filter (flops = 0), 0) / nullif(sum(dur_ns), 0) as no_arithmetic_frac,
    coalesce(sum(dur_ns) filter (flops is null or bytes is null), 0) / nullif(sum(dur_ns), 0) as unknown_frac
from op_gap
where run_id = $run_id and op_class not in ('collective', 'copy', 'memset')
"""


def build(ctx: Context) -> Section:
    """Bubbles under ceilings, both axes logarithmic."""
    title = "Roofline"
    query = ctx.query(SQL, shown=SHOWN)
    operations = query.rows.filter(what="operation")
    ceilings = query.rows.filter(what="ceiling")
    if operations.is_empty():
        return Section(
            title=title,
            sentence="There is no roofline: no operation of this run has both FLOPs and bytes known.",
            todo=(
                "Of some the bytes are known, but FLOPs of generated kernels are not in traces."
                if ctx.query(_BYTES).rows["n"][0]
                else "No shapes in this trace: record with record_shapes=True (torch.profiler) or keep the HLO (XSpace)."
            ),
        )
    parts = ctx.query(_WITHOUT).rows.to_dicts()[0]
    drawn, flopless, unknown = (people.percent(parts[f"{k}_frac"]) for k in ("drawn", "no_arithmetic", "unknown"))
    sentence = (
        f"Each bubble is an operation, its area the time it takes: {drawn} of compute time is here. {flopless} does no"
        f" arithmetic and {unknown} has no known FLOPs or bytes; neither has a place on this chart. A bubble far below the line"
        " above it could be faster; one above the line means that a peak or a count is wrong, or that data came from cache."
    )
    todo = (
        ""
        if len(ceilings)
        else "The part is not in the catalogue, so no ceiling is drawn: name it as hardware in the manifest."
    )
    operations = operations.with_columns(
        pl.col("op_class").replace_strict(theme.FAMILY_OF_CLASS, default="unclassified").alias("family")
    )
    return Section(
        title=title,
        sentence=sentence,
        todo=todo,
        figures=[
            Figure(
                title="Arithmetic a second against arithmetic a byte",
                query=query,
                rows=operations,
                chart=_chart(operations, ceilings),
                alt="Roofline. Ceilings: "
                + (", ".join(f"{n} {people.flops_per_s(p)}" for n, p in _peaks(ceilings)) or "unknown")
                + ". Largest operations: "
                + "; ".join(
                    f"{r['name'][:60]}: {people.intensity(r['flops_per_byte'])}, {people.flops_per_s(r['flops_per_s'])}"
                    for r in operations.head(5).to_dicts()
                )
                + ".",
                columns=(
                    Column("name", "operation"),
                    Column("op_class", "class"),
                    Column("dtype", "dtype"),
                    Column("calls", "calls", people.count),
                    Column("time_ns", "time, all steps", people.duration),
                    Column("flops_per_byte", "arithmetic a byte", people.intensity),
                    Column("flops_per_s", "reached", people.flops_per_s),
                    Column("efficiency_frac", "of its bound", people.percent),
                ),
            )
        ],
    )


def _peaks(ceilings: pl.DataFrame) -> list[tuple[str, float]]:
    """Name and height of each ceiling; those of one height share a name."""
    heights = ceilings.group_by("name", maintain_order=True).agg(pl.col("flops_per_s").max())
    shared = heights.group_by("flops_per_s", maintain_order=True).agg(pl.col("name").sort().str.join(", "))
    return [(str(name), float(peak)) for peak, name in shared.iter_rows()]


def _chart(operations: pl.DataFrame, ceilings: pl.DataFrame) -> alt.TopLevelMixin:
    shown = operations.with_columns(pl.col("name").str.slice(0, 80))
    for column, show, into in (
        ("time_ns", people.duration, "time, all steps"),
        ("flops_per_byte", people.intensity, "arithmetic a byte"),
        ("flops_per_s", people.flops_per_s, "reached"),
        ("efficiency_frac", people.percent, "of its bound"),
    ):
        shown = theme.say(shown, column, show, into)
    log = alt.Scale(type="log", nice=False)
    x = alt.X(
        "flops_per_byte:Q",
        title="FLOPs for each byte of memory traffic",
        scale=log,
        axis=alt.Axis(labelExpr=theme.powers_of_ten("format(datum.value, '~g')"), tickCount=6),
    )
    y = alt.Y(
        "flops_per_s:Q",
        title=None,
        scale=log,
        axis=alt.Axis(labelExpr=theme.si_axis("FLOP/s"), tickCount=6),
    )
    bubbles = (
        alt.Chart(shown)
        .mark_circle(opacity=0.65, stroke="currentColor", strokeWidth=0.5)
        .encode(
            x=x,
            y=y,
            size=alt.Size("time_ns:Q", legend=None, scale=alt.Scale(range=[25, 900])),
            color=theme.colour(shown, "family", theme.FAMILIES),
            tooltip=[
                "name:N",
                "op_class:N",
                "dtype:N",
                "calls:Q",
                "time, all steps:N",
                "arithmetic a byte:N",
                "reached:N",
                "of its bound:N",
            ],
        )
    )
    if ceilings.is_empty():
        alone: alt.TopLevelMixin = bubbles.properties(width="container", height=380)
        return alone
    lines = alt.Chart(ceilings.select("name", "flops_per_byte", "flops_per_s")).mark_line(
        color="currentColor", strokeWidth=1.5
    )
    lines = lines.encode(x=x, y=y, detail="name:N", tooltip=["name:N"])
    ends = pl.DataFrame(
        {
            "flops_per_byte": [ceilings["flops_per_byte"].max()] * len(_peaks(ceilings)),
            "flops_per_s": [peak for _, peak in _peaks(ceilings)],
            "label": [f"{name}: {people.flops_per_s(peak)}" for name, peak in _peaks(ceilings)],
        }
    )
    labels = alt.Chart(ends).mark_text(align="right", baseline="bottom", dy=-3).encode(x=x, y=y, text="label:N")
    return alt.layer(lines, bubbles, labels).properties(width="container", height=380)

"""The typical step beside the plan of its model and mesh, and its utilisation by the conventions in use."""

from collections.abc import Callable
from typing import Any

import polars as pl

from tracegap.reports import people
from tracegap.reports.section import Column, Context, Figure, Section

ORDER = 80

SQL = """
select quantity, axis, unit, measured, predicted, least, ratio_frac, note
from run_theory
where run_id = $run_id
order by list_position(['step', 'compute', 'optimizer', 'bubble', 'exposed_communication', 'communication',
                        'collective_bytes', 'matrix_flops', 'mfu', 'memory'], quantity), axis
"""
CONVENTIONS_SQL = """
select convention, flops, peak_flops_per_s, utilisation_frac, note
from mfu_conventions
where run_id = $run_id and utilisation_frac is not null
order by utilisation_frac desc, convention
"""
WORDS = {
    "step": "step", "compute": "compute", "optimizer": "optimizer", "bubble": "pipeline bubble",
    "exposed_communication": "exposed communication", "communication": "communication", "collective_bytes": "bytes sent",
    "matrix_flops": "matrix FLOPs done", "mfu": "MFU", "memory": "memory",
}  # fmt: skip
"""What people call the quantities of `run_theory`."""
_SHOWN: dict[str, Callable[[Any], str]] = {
    "ns": people.duration, "bytes": people.size, "flops": people.flops, "frac": people.percent,
}  # fmt: skip


def build(ctx: Context) -> Section:
    """Tables of what was predicted and of the conventions."""
    query = ctx.query(SQL)
    conventions = ctx.query(CONVENTIONS_SQL)
    rows = said(query.rows)
    figures = []
    if len(rows):
        figures.append(
            Figure(
                title="Measured and predicted, a device, typical step",
                query=query,
                rows=rows,
                columns=(
                    Column("what", "what"),
                    Column("shown_measured", "measured"),
                    Column("shown_predicted", "predicted"),
                    Column("ratio_frac", "measured over predicted", ratio),
                    Column(
                        "shown_least",
                        "at least",
                        meaning="what the plan says it must take, everything overlapped, at peak",
                    ),
                    Column("note", "what it counts"),
                ),
                note="Predicted by the formulas of `tracegap plan`.",
            )
        )
    if len(conventions.rows):
        figures.append(
            Figure(
                title="Utilisation by convention",
                query=conventions,
                columns=(
                    Column("convention", "convention"),
                    Column("utilisation_frac", "utilisation", people.percent),
                    Column("flops", "FLOPs a device and step", people.flops),
                    Column("peak_flops_per_s", "held against", people.flops_per_s),
                    Column("note", "what counts"),
                ),
            )
        )
    return Section(title="Against the plan of this model and mesh", sentence=sentence(query.rows), figures=figures)


def sentence(rows: pl.DataFrame) -> str:
    """The step against its plan, and the row that differs most."""
    step = rows.filter(pl.col("quantity") == "step").to_dicts()
    if not step:
        return "The traces hold no step to compare with a plan."
    if step[0]["ratio_frac"] is None:
        return f"The step cannot be predicted: {step[0]['note'].removeprefix('not predicted: ')}."
    measured, predicted = people.duration(step[0]["measured"]), people.duration(step[0]["predicted"])
    text = f"The plan expects {predicted} a step, measured are {measured}, {ratio(step[0]['ratio_frac'])}."
    late = (
        rows.filter((pl.col("unit") == "ns") & (pl.col("quantity") != "step"))
        .with_columns(more=pl.col("measured") - pl.col("predicted"))
        .drop_nulls("more").sort("more", descending=True)
    )  # fmt: skip
    if len(late) and late["more"][0] > 0:
        worst = late.row(0, named=True)
        text += f" Most is between the two in {name(worst)}: {people.duration(worst['more'])} more than predicted."
    return text


def said(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with their numbers in words; each has a unit of its own."""

    def words(column: str) -> list[str | None]:
        return [
            None if value is None else _SHOWN[unit](value) for value, unit in rows.select(column, "unit").iter_rows()
        ]

    return rows.with_columns(
        pl.Series("what", [name(row) for row in rows.to_dicts()], dtype=pl.String),
        *(
            pl.Series(f"shown_{column}", words(column), dtype=pl.String)
            for column in ("measured", "predicted", "least")
        ),
    )


def name(row: dict[str, Any]) -> str:
    """What a row is about: "communication, data axis"."""
    return WORDS[row["quantity"]] + (f", {row['axis']} axis" if row["axis"] else "")


def ratio(value: float | None) -> str:
    """Of a quotient: "1.31 ×"."""
    return people.UNKNOWN if value is None else f"{value:.3g} ×"

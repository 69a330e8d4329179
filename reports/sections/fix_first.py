"""What to fix first: the findings, the largest saving first."""

import json

from tracegap.reports import people
from tracegap.reports.section import Column, Context, Figure, Section
from tracegap.reports.summary import FINDINGS

ORDER = 20


def build(ctx: Context) -> Section:
    """Findings by what they would save."""
    title = "Fix first"
    query = ctx.query(FINDINGS)
    if query.rows.is_empty():
        return Section(title=title, sentence="Nothing was found that is worth a person's look.")
    return Section(
        title=title,
        sentence=people.plural(len(query.rows), "finding")
        + (
            ", by what each could give back of a median step, mean over its devices. No time is promised twice; what one change"
            " alone makes of the step is replayed below."
            if ctx.summary.first_fix
            else "; for none of them can the saving be said."
        ),
        figures=[
            Figure(
                title="Findings",
                query=query,
                columns=(
                    Column("saves_ns", "saves up to", _saves),
                    Column("severity", "severity"),
                    Column("what", "what"),
                    Column("config_keys", "configuration", _keys),
                ),
            )
        ],
    )


def _saves(ns: int | None) -> str:
    return "cannot be said" if ns is None else people.duration(ns)


def _keys(config_keys: str | None) -> str:
    keys = json.loads(config_keys or "null")
    return ", ".join(keys) if keys else "–"

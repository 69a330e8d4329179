"""How charts look: colours that tell apart without colour vision, on white, on dark and on paper alike."""

from typing import Any

import altair as alt
import polars as pl

from tracegap.models.ops import OpClass

BLUE, TEAL, ORANGE, PURPLE, GREY = "#3b7dd8", "#1a9988", "#d9661f", "#a35fc0", "#8a8f98"
"""Each at least 3 : 1 against white and against the dark page; their lightness differs where two meet in one chart."""

GROUPS = {
    "minimum": ("physics needs it", BLUE),
    "loss": ("could be saved", ORANGE),
    "unknown": ("not known", GREY),
    "faster": ("faster than its bound", PURPLE),
}
"""Groups of `buckets.Bucket.group` (and what beat its bound): words and colour."""

STATES = {
    "compute": ("computing", BLUE),
    "exposed_comm": ("only communicating", ORANGE),
    "exposed_copy": ("only copying", PURPLE),
    "idle": ("idle", GREY),
}
"""States of a device: words and colour."""

FAMILIES = {
    "matrix": ("matrix, attention, convolution", BLUE),
    "vector": ("other arithmetic and memory", TEAL),
    "communication": ("communication", ORANGE),
    "copies": ("copies and fills", PURPLE),
    "other": ("unclassified", GREY),
}
"""Families of operation classes: words and colour."""

_FAMILY = {
    OpClass.MATMUL: "matrix",
    OpClass.ATTENTION: "matrix",
    OpClass.CONVOLUTION: "matrix",
    OpClass.COLLECTIVE: "communication",
    OpClass.COPY: "copies",
    OpClass.MEMSET: "copies",
    OpClass.GRAPH: "other",
    OpClass.CUSTOM: "other",
    OpClass.OTHER: "other",
}
FAMILY_OF_CLASS = {str(c): FAMILIES[_FAMILY.get(c, "vector")][0] for c in OpClass}
"""Words of the family of an `ops.op_class`."""

NS_AXIS = "datum.value == 0 ? '0' : format(datum.value / 1e9, '~s') + 's'"
"""Axis label of a column in ns: Vega's prefixes on seconds."""


def si_axis(unit: str) -> str:
    """Axis label of a column in whole units."""
    return f"format(datum.value, '~s') + '{unit}'"


def colour(field: str, words: dict[str, tuple[str, str]], title: str | None = None) -> alt.Color:
    """Colour by a column that holds the words of one of the tables above."""
    names, colours = zip(*words.values(), strict=True)
    return alt.Color(
        f"{field}:N", title=title, scale=alt.Scale(domain=list(names), range=list(colours)), legend=alt.Legend(title=title)
    )


def say(rows: pl.DataFrame, column: str, show: Any, into: str) -> pl.DataFrame:
    """Adds a column with the numbers of another as text, for tooltips and labels."""
    return rows.with_columns(pl.Series(into, [show(v) for v in rows[column]], dtype=pl.String))


def finish(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """The Vega-Lite specification as a page carries it.

    Text and lines take the colour of the page's text (`currentColor`), so that light, dark and printed pages need no
    second specification.
    """
    text = {"labelColor": "currentColor", "titleColor": "currentColor"}
    configured = chart.configure(
        background="transparent",
        font="system-ui, sans-serif",
        aria=False,  # the figure around it carries the text; thousands of marks read aloud help nobody
        padding=2,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
    )
    configured = configured.configure_view(stroke=None)
    configured = configured.configure_axis(
        **text,
        titleFontWeight="normal",
        gridColor="currentColor",
        gridOpacity=0.12,
        domainColor="currentColor",
        domainOpacity=0.4,
        tickColor="currentColor",
        tickOpacity=0.4,
        labelFontSize=12,
        titleFontSize=12,
        labelLimit=190,
    )
    configured = configured.configure_legend(
        **text, orient="top", labelFontSize=12, titleFontSize=12, labelLimit=240, symbolStrokeWidth=0, columns=3
    )
    configured = configured.configure_text(color="currentColor", fontSize=12)
    configured = configured.configure_rule(color="currentColor")
    spec: dict[str, Any] = configured.to_dict()
    return spec

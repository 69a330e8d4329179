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


def _spaced(value: str, unit: str) -> str:
    """Vega expression: a number with prefix and unit, a space before them."""
    return f"replace(format({value}, '~s'), regexp('([a-zA-Zµ]?)$'), ' $1') + '{unit}'"


NS_AXIS = "datum.value == 0 ? '0' : " + _spaced("datum.value / 1e9", "s")
"""Label of an axis of a column in ns: prefixes on seconds."""


def plain_axis(unit: str) -> str:
    """Label of a linear axis of a column in whole units."""
    return "datum.value == 0 ? '0' : " + _spaced("datum.value", unit)


def powers_of_ten(label: str) -> str:
    """Label of a logarithmic axis: the expression at powers of ten, nothing between them."""
    exponent = "log(datum.value) / LN10"
    return f"abs({exponent} - round({exponent})) < 1e-6 ? {label} : ''"


def si_axis(unit: str) -> str:
    """Label of a logarithmic axis of a column in whole units."""
    return powers_of_ten(_spaced("datum.value", unit))


def colour(rows: pl.DataFrame, field: str, words: dict[str, tuple[str, str]]) -> alt.Color:
    """Colour by a column that holds words of one of the tables above; the legend has those that occur."""
    occurring = set(rows[field])
    names, colours = zip(*(pair for pair in words.values() if pair[0] in occurring), strict=True)
    return alt.Color(f"{field}:N", title=None, scale=alt.Scale(domain=list(names), range=list(colours)))


def width(bars: int) -> Any:
    """Width of a chart of so many bars: as wide as the page, unless few bars would turn into walls."""
    return "container" if bars > 20 else {"step": 40}


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
        **text,
        orient="top",
        labelFontSize=12,
        titleFontSize=12,
        labelLimit=240,
        symbolStrokeWidth=0,
        symbolOpacity=1,
        columns=alt.ExprRef("max(1, floor(width / 200))"),
    )
    configured = configured.configure_text(color="currentColor", fontSize=12)
    configured = configured.configure_rule(color="currentColor")
    spec: dict[str, Any] = configured.to_dict()
    if spec.get("width") == "container":
        spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec

"""What the page of a comparison shows, from `Comparison.as_dict()`: numbers in words, buckets side by side, a chart."""

from typing import Any

import altair as alt
import polars as pl

from tracegap.reports import people, theme
from tracegap.reports.buckets import BY_COLUMN
from tracegap.reports.comparison_words import devices_differ, doubt, first_fix, headline, shown, split, title

_VERDICTS = {"slower": ("slower", theme.ORANGE), "faster": ("faster", theme.BLUE), "same": ("no change", theme.GREY)}


def describe(c: dict[str, Any]) -> dict[str, Any]:
    """What the template needs."""
    rows = _buckets(c)
    return {
        "c": c,
        "simulated": bool(c["before"]["simulated"] or c["after"]["simulated"]),
        "title": title(c["after"]),
        "headline": headline(c),
        "verdict": _VERDICTS[c["verdict"]][0],
        "doubt": doubt(c),
        "devices_differ": devices_differ(c),
        "split": split,
        "fix": first_fix(c),
        "buckets": rows.to_dicts(),
        "titles": c["titles"],
        "shown": shown,
        "charts": {"chart-buckets": theme.finish(_chart(rows))} if any(c["buckets"].values()) else {},
        "alt": "Change of each part: "
        + "; ".join(f"{r['title']} {r['change']}" for r in rows.to_dicts() if r["delta_ns"])
        + ".",
    }


def _buckets(c: dict[str, Any]) -> pl.DataFrame:
    before, after = c["before"]["buckets"], c["after"]["buckets"]
    rows, at = [], c["before_ns"]
    for column, delta in c["buckets"].items():
        bucket = BY_COLUMN[column]
        rows.append(
            {
                "title": c["titles"][column], "meaning": bucket.meaning,
                "before_ns": before[column], "after_ns": after[column],
                "delta_ns": delta, "from_ns": at, "to_ns": at + delta, "change": people.signed_duration(delta),
                "group": "slower" if delta > 0 else "faster" if delta < 0 else "no change",
                "before": people.duration(before[column]), "after": people.duration(after[column]),
            }
        )  # fmt: skip
        at += delta
    return pl.DataFrame(rows)


def _chart(rows: pl.DataFrame) -> alt.TopLevelMixin:
    """From the step before to the step after: what each part adds or takes."""
    most = int(rows["delta_ns"].abs().max())  # type: ignore[arg-type]
    base = alt.Chart(rows).encode(
        y=alt.Y("title:N", sort=None, title=None),
        tooltip=["title:N", "change:N", "before:N", "after:N", "meaning:N"],
    )
    x = alt.X(
        "delta_ns:Q",
        title="change of a step",
        scale=alt.Scale(domain=[-1.25 * most, 1.25 * most]),
        axis=alt.Axis(labelExpr=theme.NS_AXIS, tickCount=7),
    )
    bars = base.mark_bar(height={"band": 0.72}).encode(x=x, color=theme.colour(rows, "group", _VERDICTS))
    right = base.transform_filter("datum.delta_ns >= 0").mark_text(align="left", dx=5).encode(x=x, text="change:N")
    left = base.transform_filter("datum.delta_ns < 0").mark_text(align="right", dx=-5).encode(x=x, text="change:N")
    zero = alt.Chart(pl.DataFrame({"at": [0]})).mark_rule(opacity=0.6).encode(x="at:Q")
    return alt.layer(bars, right, left, zero).properties(width="container", height=25 * len(rows))

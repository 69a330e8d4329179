"""What the page of a comparison shows, from `Comparison.as_dict()`: numbers in words, buckets side by side, a chart."""

from typing import Any

import altair as alt
import polars as pl

from tracegap.reports import people, theme
from tracegap.reports.buckets import BUCKETS, BY_COLUMN

_VERDICTS = {"slower": ("slower", theme.ORANGE), "faster": ("faster", theme.BLUE), "same": ("no change", theme.GREY)}


def headline(c: dict[str, Any]) -> str:
    """The verdict in words: by how much, how certain, mostly because of what."""
    before, after, delta = c["before_ns"], c["after_ns"], c["delta_ns"]
    steps = f"A step took {people.duration(before)} and takes {people.duration(after)} now"
    certainty = doubt(c)
    if c["verdict"] == "same":
        return f"{steps}: no difference that can be told from noise ({people.signed_duration(delta)}, {certainty})."
    said = f"{steps}: {people.duration(abs(delta))} ({people.percent(abs(delta) / before) if before else people.UNKNOWN})"
    said += f" {c['verdict']}, {certainty}."
    main = main_cause(c)
    if main is not None:
        said += f" {people.signed_duration(main['delta_ns'])} of it: {main['what']}."
    return said


def doubt(c: dict[str, Any]) -> str:
    """How certain the difference is."""
    if c["interval_ns"] is None:
        return "too few steps to say how certain"
    low, high = c["interval_ns"]
    return f"± {people.duration((high - low) / 2)}"


def main_cause(c: dict[str, Any]) -> dict[str, Any] | None:
    """The largest cause in the direction of the difference."""
    same_way = [k for k in c["causes"] if k["bucket"] != "rest" and k["delta_ns"] * c["delta_ns"] > 0]
    return max(same_way, key=lambda k: abs(k["delta_ns"]), default=None)


def first_fix(c: dict[str, Any]) -> tuple[str, int] | None:
    """What to undo first, and what that saves at most in ns; None where nothing got slower that a configuration line explains."""
    changed = {line["key"]: line for line in c["config"]}
    for cause in sorted(c["causes"], key=lambda k: -k["delta_ns"]):
        keys = [k for k in cause["config"] if k in changed]
        if cause["delta_ns"] > 0 and keys and c["verdict"] == "slower":
            back = ", ".join(f"{k} back to {shown(changed[k]['before'])}" for k in keys)
            return back, int(cause["delta_ns"])
    return None


def shown(value: Any) -> str:
    """A configuration value; absent ones are named so."""
    return "(absent)" if value is None else str(value)


def describe(c: dict[str, Any]) -> dict[str, Any]:
    """What the template needs."""
    rows = _buckets(c)
    return {
        "c": c,
        "simulated": bool(c["before"]["simulated"] or c["after"]["simulated"]),
        "headline": headline(c),
        "verdict": _VERDICTS[c["verdict"]][0],
        "doubt": doubt(c),
        "fix": first_fix(c),
        "buckets": rows.to_dicts(),
        "titles": {b.column: b.title for b in BUCKETS} | {"rest": "everything else"},
        "shown": shown,
        "charts": {"chart-buckets": theme.finish(_chart(rows))} if rows["delta_ns"].any() else {},
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
                "title": bucket.title, "meaning": bucket.meaning, "before_ns": before[column], "after_ns": after[column],
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

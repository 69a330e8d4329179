"""What the page of a job's history shows: its step by night with the nights that changed it, its parts, and why."""

from typing import Any

import altair as alt
import duckdb
import polars as pl

from tracegap.reports import people, shifts, theme
from tracegap.reports.buckets import BUCKETS
from tracegap.reports.comparison_words import first_fix
from tracegap.reports.shifts import Shift, Shifts
from tracegap.reports.summary import Summary

_EXPLAINED = 12
"""Changes of the step that are split into causes, the latest ones: each is a comparison."""


def describe(con: duckdb.DuckDBPyConnection, job: str, pages: dict[str, str]) -> dict[str, Any]:
    """What the template needs.

    Args:
        con: the store, with the views of the gap.
        job: the job; it has at least one run.
        pages: path of each run's page relative to that of the history; a run without one is listed without a link.
    """
    found = shifts.shifts(con, job)
    of_step = [s for s in found.shifts if s.metric == shifts.STEP]
    charts = {"chart-step": _steps(found, of_step), "chart-parts": _parts(found)} if found.nights else {}
    return {
        "job": job,
        "simulated": any(n["simulated"] for n in found.nights),
        "headline": headline(job, found),
        "nights": [_night(n, found, pages) for n in reversed(found.nights)],
        "changes": [_change(con, s) for s in reversed(of_step[-_EXPLAINED:])],
        "others": [s for s in reversed(found.shifts) if s.metric != shifts.STEP],
        "charts": {name: theme.finish(chart) for name, chart in charts.items()},
        "alt": f"Step of each of {people.plural(len(found.nights), 'night')}; "
        + ("; ".join(f"from {s.run_id} on {s.words}" for s in of_step) or "no lasting change")
        + ".",
    }


def headline(job: str, found: Shifts) -> str:
    """The state of the job in words."""
    if not found.nights:
        return f"{job} has no run with a complete step."
    last = found.nights[-1]
    said = f"A step of {job} takes {people.duration(last['wall_ns'])} in the latest of {people.plural(len(found.nights), 'night')}."
    of_step = [s for s in found.shifts if s.metric == shifts.STEP]
    if of_step:
        s = of_step[-1]
        verb = "slower" if s.change_frac > 0 else "faster"
        when = f" ({s.started_at} UTC)" if s.started_at else ""
        said += f" Since {s.run_id}{when} it is {people.percent(abs(s.change_frac))} {verb} than before"
        said += f": {people.duration(s.before)} → {people.duration(s.after)}."
        if s.note is not None:
            said += f" {s.note.author} has {s.note.state} that: {s.note.note}"
    elif len(found.nights) >= 6:
        said += " It has not changed lastingly."
    else:
        said += " From six nights on it can be said whether it changed."
    return said


def _night(night: dict[str, Any], found: Shifts, pages: dict[str, str]) -> dict[str, Any]:
    return night | {
        "page": pages.get(night["run_id"]),
        "freak": night["run_id"] in found.freaks,
        "shifts": [s for s in found.shifts if s.run_id == night["run_id"]],
    }


def _change(con: duckdb.DuckDBPyConnection, shift: Shift) -> dict[str, Any]:
    result = shifts.causes(con, shift)
    told = result.as_dict()
    commits = [
        r[0]
        for r in con.execute(
            "select git_commit from runs where run_id in (?, ?) order by run_id <> ?",
            [shift.before_run, shift.run_id, shift.before_run],
        ).fetchall()
    ]
    return {
        "shift": shift,
        "causes": shifts.largest(result),
        "config": told["config"],
        "commits": commits if len(set(commits)) > 1 else [],
        "fix": first_fix(told),
    }


def _steps(found: Shifts, of_step: list[Shift]) -> alt.TopLevelMixin:
    """A point a night, a line a level; freak nights are hollow."""
    rows = pl.DataFrame(
        {
            "night": list(range(1, len(found.nights) + 1)),
            "run": [n["run_id"] for n in found.nights],
            "started": [str(n["started_at"] or "unknown")[:16] for n in found.nights],
            "ns": [float(n["wall_ns"]) for n in found.nights],
            "kind": ["freak night" if n["run_id"] in found.freaks else "night" for n in found.nights],
        }
    )
    rows = theme.say(rows, "ns", people.duration, "step")
    at = {n["run_id"]: i for i, n in enumerate(found.nights, start=1)}
    edges = [1, *(at[s.run_id] for s in of_step), len(found.nights) + 1]
    levels = [s.before for s in of_step] + [of_step[-1].after] if of_step else []
    lines = pl.DataFrame(
        {"from": [e - 0.5 for e in edges[:-1]], "to": [e - 0.5 for e in edges[1:]], "ns": levels}
        if levels
        else {"from": [], "to": [], "ns": []},
        schema={"from": pl.Float64, "to": pl.Float64, "ns": pl.Float64},
    )
    x = alt.X("night:Q", title="night", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False, padding=12))
    y = alt.Y("ns:Q", title="step", axis=alt.Axis(labelExpr=theme.NS_AXIS, tickCount=6), scale=alt.Scale(zero=False))
    points = (
        alt.Chart(rows)
        .mark_point(size=46, strokeWidth=2)
        .encode(
            x=x,
            y=y,
            stroke=alt.value(theme.BLUE),
            fill=alt.condition("datum.kind == 'night'", alt.value(theme.BLUE), alt.value("transparent")),
            tooltip=["run:N", "started:N", "step:N", "kind:N"],
        )
    )
    level = (
        alt.Chart(lines)
        .mark_rule(strokeWidth=2, strokeDash=[5, 3], opacity=0.9)
        .encode(x="from:Q", x2="to:Q", y="ns:Q")
    )
    return alt.layer(level, points).properties(width="container", height=230)


def _parts(found: Shifts) -> alt.TopLevelMixin:
    """The parts of the step by night, stacked, as groups of the waterfall."""
    rows = pl.DataFrame(
        [
            {"night": i, "run": n["run_id"], "part": bucket.title, "ns": float(n[bucket.column]), "place": place}
            for i, n in enumerate(found.nights, start=1)
            for place, bucket in enumerate(BUCKETS)
            if n[bucket.column]
        ],
        schema={"night": pl.Int64, "run": pl.String, "part": pl.String, "ns": pl.Float64, "place": pl.Int64},
    )
    rows = theme.say(rows, "ns", people.duration, "time")
    largest = rows.group_by("part").agg(pl.col("ns").max()).sort("ns", descending=True)["part"].to_list()[:6]
    rows = rows.with_columns(
        shown=pl.when(pl.col("part").is_in(largest)).then("part").otherwise(pl.lit("smaller parts"))
    )
    palette = [theme.BLUE, theme.ORANGE, theme.TEAL, theme.PURPLE, "#b8912a", "#c2477f", theme.GREY]
    names = [*largest, "smaller parts"] if len(set(rows["part"])) > len(largest) else largest
    bars: alt.TopLevelMixin = (
        alt.Chart(rows)
        .mark_bar()
        .encode(
            x=alt.X("night:O", title="night", axis=alt.Axis(labelOverlap=True, labelAngle=0)),
            y=alt.Y("sum(ns):Q", title=None, axis=alt.Axis(labelExpr=theme.NS_AXIS, tickCount=6)),
            color=alt.Color(
                "shown:N",
                title=None,
                sort=names,
                scale=alt.Scale(domain=names, range=[*palette[: len(largest)], palette[-1]][: len(names)]),
            ),
            order="place:Q",
            tooltip=["run:N", "part:N", "time:N"],
        )
        .properties(width=theme.width(len(found.nights)), height=230)
    )
    return bars


def row(job: str, name: str, runs: list[Summary]) -> dict[str, Any]:
    """A job in the index, from the summaries of its runs, newest first."""
    walls = [float(run.step_ns) for run in reversed(runs) if run.steps and run.step_ns]
    return {
        "job": job,
        "page": name,
        "nights": len(walls),
        "step_ns": walls[-1] if walls else None,
        "change_frac": walls[-1] / walls[-2] - 1 if len(walls) > 1 else None,
        "line": " ".join(f"{x},{y}" for x, y in sparkline(walls)),
        "simulated": any(run.simulated for run in runs),
    }


def sparkline(values: list[float], width: int = 120, height: int = 24) -> list[tuple[float, float]]:
    """Points of a small line through a series, in pixels from the upper left; a constant series lies in the middle."""
    if len(values) < 2:
        return []
    low, high = min(values), max(values)
    span = high - low
    step = width / (len(values) - 1)
    return [
        (round(i * step, 1), round(height - 2 - (v - low) / span * (height - 4), 1) if span else height / 2)
        for i, v in enumerate(values)
    ]

"""Questions of the command `what-if`: which change an answer is about."""

from collections.abc import Callable, Mapping
from typing import Any

import duckdb

from tracegap.models.errors import TracegapError
from tracegap.reports import people, run_schedule, what_if
from tracegap.reports.what_if import Answer, Change

HEADINGS = ("change", "what", "step", "becomes", "saves", "note")
_EVERY = "all"


def _named(value: Any) -> str | None:
    return None if value == _EVERY else str(value)


_CHANGES: dict[tuple[str, ...], Callable[[Mapping[str, Any]], Change]] = {
    ("kernel", "to_bound"): lambda a: what_if.at_bound(_named(a["kernel"])),
    ("kernel", "times"): lambda a: what_if.times(
        a["times"], f"kernels {a['kernel']}", lambda run: what_if.chosen(run, _named(a["kernel"]))
    ),
    ("collective", "hidden"): lambda a: what_if.hidden(_named(a["collective"])),
    ("collective", "to_prediction"): lambda a: what_if.predicted(_named(a["collective"])),
    ("collective", "times"): lambda a: what_if.times(
        a["times"], f"collectives {a['collective']}", lambda run: what_if.collectives(run, _named(a["collective"]))
    ),
    ("rank", "like_median"): lambda a: what_if.like_median(a["rank"]),
    ("no_launches",): lambda _: what_if.LAUNCHES,
    ("no_syncs",): lambda _: what_if.SYNCS,
    ("no_input",): lambda _: what_if.INPUT,
    ("no_bubble",): lambda _: what_if.BUBBLE,
}
"""Options that together ask for a change."""


def change_of(asked: Mapping[str, Any]) -> Change | None:
    """The change that options ask for; None where none is given.

    Raises:
        TracegapError: they do not belong together.
    """
    given = {name for name, value in asked.items() if value is not None and value is not False}
    if not given:
        return None
    for options, change in _CHANGES.items():
        if given == set(options):
            return change(asked)
    known = "; ".join(" ".join(f"--{o.replace('_', '-')}" for o in options) for options in _CHANGES)
    raise TracegapError(f"one change at a time, of these: {known}")


def answers(con: duckdb.DuckDBPyConnection, run_id: str, step: int | None, asked: Mapping[str, Any]) -> list[Answer]:
    """What a change makes of a step, or what the usual ones do.

    Raises:
        TracegapError: no such run, step, operation, collective or rank.
    """
    known = [r[0] for r in con.execute("select run_id from runs order by 1").fetchall()]
    if run_id not in known:
        raise TracegapError(f"{run_id}: no such run in the store; runs: {', '.join(known) or 'none'}")
    change = change_of(asked)
    steps = run_schedule.typical_and_slowest(con, run_id)
    if not steps:
        raise TracegapError(f"{run_id}: no step in its traces")
    run = run_schedule.load(con, run_id, steps[0] if step is None else step)
    return [what_if.answer(run, c) for c in ([change] if change else what_if.usual(run))]


def cells(answer: Answer) -> tuple[str, ...]:
    """A row for people."""
    saved = people.signed_duration(-answer.saves_ns)
    return (
        answer.change, answer.what, people.duration(answer.before_ns), people.duration(answer.after_ns), saved, answer.note or "",
    )  # fmt: skip

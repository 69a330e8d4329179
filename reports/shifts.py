"""The nights on which a job became another one: in its step, its MFU and each part of the step, with the reason."""

import getpass
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from tracegap.ingest import store
from tracegap.models.errors import TracegapError
from tracegap.reports import change_points, compare, people
from tracegap.reports.buckets import BY_COLUMN, COLUMNS

STEP, MFU = "wall_ns", "mfu"
METRICS = (STEP, MFU, *COLUMNS)
"""Columns of `run_gap` whose history is kept."""
STATES = ("acknowledged", "explained", "reopened")
_MOST_CAUSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What somebody said of a change."""

    state: str
    note: str
    author: str
    noted_at: str

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A lasting change of a metric of a job."""

    job: str
    metric: str
    """Column of `run_gap`."""
    run_id: str
    """First night of the new level."""
    before_run: str
    """Last ordinary night of the old one."""
    started_at: str | None
    before: float
    """Level before, in the unit of the column."""
    after: float
    change_frac: float
    """Of the level; of a bucket: of the step."""
    note: Note | None
    """The last one."""

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        told = {name: getattr(self, name) for name in self.__slots__}
        return told | {"note": self.note and self.note.as_dict()}

    @property
    def title(self) -> str:
        """The metric for people."""
        return {STEP: "step", MFU: "MFU"}.get(self.metric) or BY_COLUMN[self.metric].title

    @property
    def words(self) -> str:
        """By how much it changed."""
        show = people.percent if self.metric == MFU else people.duration
        return f"{self.title} {show(self.before)} → {show(self.after)} ({people.signed_percent(self.change_frac)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifts:
    """What is remarkable in the history of a job."""

    nights: list[dict[str, Any]]
    """Rows of `run_gap` of the runs with complete steps, oldest first."""
    shifts: list[Shift]
    """By night; of one night the step first, then by size."""
    freaks: list[str]
    """Runs far from all nights around them."""


def shifts(con: duckdb.DuckDBPyConnection, job: str, metrics: Sequence[str] = METRICS) -> Shifts:
    """The change points of a job.

    A bucket counts against the step: the series that is searched is the median step plus what the bucket differs from its
    own median, so that a part of 1 us that doubles in a step of 1 s is no change.
    """
    nights = store.frame_of(
        con, "select * from run_gap where job = ? and complete order by started_at, run_id", [job]
    ).to_dicts()
    said = _notes(con, job)
    found: list[Shift] = []
    freaks: list[str] = []
    for metric in metrics:
        known = [n for n in nights if n[metric] is not None]
        values = [float(n[metric]) for n in known]
        series = values if metric in (STEP, MFU) else _against_the_step(values, [float(n[STEP]) for n in known])
        remarkable = (
            change_points.find(series) if all(v > 0 for v in series) else change_points.Found(changes=[], freaks=[])
        )
        if metric == STEP:
            freaks = [known[i]["run_id"] for i in remarkable.freaks]
        for change in remarkable.changes:
            shift = change.before - series[0] + values[0] if metric not in (STEP, MFU) else change.before
            ordinary = [i for i in range(change.at) if i not in remarkable.freaks]
            first = known[change.at]
            found.append(
                Shift(
                    job=job,
                    metric=metric,
                    run_id=first["run_id"],
                    before_run=known[ordinary[-1]]["run_id"],
                    started_at=first["started_at"] and f"{first['started_at']:%Y-%m-%d %H:%M}",
                    before=shift,
                    after=shift + change.after - change.before,
                    change_frac=change.change_frac,
                    note=said.get((first["run_id"], metric)),
                )
            )
    place = {n["run_id"]: i for i, n in enumerate(nights)}
    found.sort(key=lambda s: (place[s.run_id], s.metric != STEP, -abs(s.change_frac)))
    return Shifts(nights=nights, shifts=found, freaks=freaks)


def _against_the_step(values: list[float], steps: list[float]) -> list[float]:
    """A bucket as a part of a step of constant length."""
    if not values:
        return []
    step, usual = sorted(steps)[len(steps) // 2], sorted(values)[len(values) // 2]
    return [step + v - usual for v in values]


def causes(con: duckdb.DuckDBPyConnection, shift: Shift) -> compare.Comparison:
    """The first night of the new level beside the last of the old: the operations and lines that make the change."""
    return compare.compare(con, shift.before_run, shift.run_id)


def largest(result: compare.Comparison) -> list[str]:
    """Its causes in a few sentences, the largest first."""
    said = [
        f"{people.signed_duration(c.delta_ns)} {result.titles[c.bucket]}: {c.what}"
        for c in result.causes
        if c.bucket != "rest"
    ]
    return said[:_MOST_CAUSES]


def _notes(con: duckdb.DuckDBPyConnection, job: str) -> dict[tuple[str, str], Note]:
    rows = con.execute(
        "select run_id, metric, state, note, author, cast(noted_at as varchar) from notes join runs using (run_id) "
        "where job = ? order by noted_at",
        [job],
    ).fetchall()
    return {(r[0], r[1]): Note(state=r[2], note=r[3], author=r[4], noted_at=r[5][:16]) for r in rows}


def note(
    con: duckdb.DuckDBPyConnection, run_id: str, text: str, *, metric: str = STEP, state: str = "acknowledged",
    author: str | None = None,
) -> None:  # fmt: skip
    """Records what somebody says of a change; the last note counts, none is removed.

    Raises:
        TracegapError: no such run, metric or state.
    """
    if not con.execute("select 1 from runs where run_id = ?", [run_id]).fetchall():
        raise TracegapError(f"{run_id}: no such run in the store")
    if not text.strip():
        raise TracegapError("the note is empty: say what is known of the change")
    if metric not in METRICS:
        raise TracegapError(f"{metric}: no such metric; there are {', '.join(METRICS)}")
    if state not in STATES:
        raise TracegapError(f"{state}: no such state; there are {', '.join(STATES)}")
    row = {
        "run_id": run_id, "metric": metric, "state": state, "note": text, "author": author or _user(),
        "noted_at": store.now(),
    }  # fmt: skip
    store.insert_row(con, "notes", row)


def _user() -> str:
    try:
        return os.environ.get("TRACEGAP_AUTHOR") or getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return "unknown"

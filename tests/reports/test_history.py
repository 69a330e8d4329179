"""History marks the nights that are unlike the ones before, and a freak night changes nothing for the next."""

import datetime
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tracegap.ingest.idle import CAUSES
from tracegap.ingest.store import insert_row, open_store, remove_empty_runs
from tracegap.models.errors import TracegapError
from tracegap.reports import history_page, join, page, shifts
from tracegap.reports.buckets import SUM_SQL
from tracegap.reports.history import HEADINGS, history

DAY = datetime.timedelta(days=1)
START = datetime.datetime(2026, 3, 1)


@pytest.fixture
def con(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Seven nights of one job and one of another, three equal steps each."""
    with open_store(tmp_path / "nights.duckdb") as connection:
        join.install_views(connection)
        for i, step_ms in enumerate((100, 101, 100, 51, 100, 110, 92)):
            put_night(connection, "job", i, step_ms)
        put_night(connection, "other", 0, 400)
        put_night(connection, "empty", 0, None)
        yield connection


def put_night(con: duckdb.DuckDBPyConnection, job: str, i: int, step_ms: float | None) -> None:
    run, trace = f"{job}/{i}", f"{job}{i}"
    insert_row(con, "runs", {"run_id": run, "job": job, "started_at": START + i * DAY, "simulated": False})
    insert_row(con, "traces", {"trace_id": trace, "run_id": run, "path": f"/nights/{i}.json"})
    for step in range(3 if step_ms else 0):
        zero = dict.fromkeys(("exposed_comm_ns", "exposed_copy_ns", "idle_ns", *(f"{c}_ns" for c in CAUSES)), 0)
        wall = dict.fromkeys(("wall_ns", "compute_ns"), round((step_ms or 0) * 10**6))
        known = {"run_id": run, "trace_id": trace, "device_id": "0", "step": step, "start_ns": 0, "complete": True}
        insert_row(con, "steps", known | wall | zero)


def test_nights_are_marked_against_the_usual(con: duckdb.DuckDBPyConnection) -> None:
    nights = history(con, "job")
    assert [n.step_ns for n in nights] == [ms * 10**6 for ms in (100, 101, 100, 51, 100, 110, 92)]
    assert [n.verdict for n in nights] == ["unknown", "ok", "ok", "improvement", "ok", "regression", "improvement"]
    assert nights[4].change_frac == pytest.approx(100 / 51 - 1)


def test_jobs_do_not_mix(con: duckdb.DuckDBPyConnection) -> None:
    every = {n.run_id: n.verdict for n in history(con, None)}
    assert every["other/0"] == every["empty/0"] == "unknown"


def test_a_row_has_a_cell_for_each_heading(con: duckdb.DuckDBPyConnection) -> None:
    assert all(len(n.cells()) == len(HEADINGS) for n in history(con, None))


def test_an_unknown_job_is_named(con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(TracegapError, match=r"nothing.*empty, job, other"):
        history(con, "nothing")


# ------------------------------------------------------------------------------------------ lasting changes

HOSTILE = 'job <script>alert(1)</script> & "x"'


@pytest.fixture
def long(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Thirty nights: 100 ms, from night 18 on 108 ms; night 7 is a freak, night 29 alone is slower."""
    with open_store(tmp_path / "long.duckdb") as connection:
        join.install_views(connection)
        for i in range(30):
            step_ms = (100 if i < 18 else 108) + (i % 3) * 0.3
            put_night(connection, HOSTILE, i, {7: 210, 29: 130}.get(i, step_ms))
        yield connection


def test_a_lasting_change_is_told_of_the_step_and_of_its_part(long: duckdb.DuckDBPyConnection) -> None:
    found = shifts.shifts(long, HOSTILE)
    assert [(s.metric, s.run_id, s.before_run) for s in found.shifts] == [
        ("wall_ns", f"{HOSTILE}/18", f"{HOSTILE}/17"),
        ("unmodelled_compute_ns", f"{HOSTILE}/18", f"{HOSTILE}/17"),
    ]
    step, part = found.shifts
    assert (step.before, step.after) == (pytest.approx(100.3e6), pytest.approx(108.3e6))
    assert step.words == "step 100 ms → 108 ms (+7.98%)"
    assert (part.before, part.after) == (pytest.approx(100.3e6), pytest.approx(108.3e6))
    assert found.freaks == [f"{HOSTILE}/7"]


def test_what_is_said_of_a_change_stays(long: duckdb.DuckDBPyConnection) -> None:
    run = f"{HOSTILE}/18"
    shifts.note(long, run, "looking", author="ann")
    shifts.note(long, run, "new driver", state="explained", author="bob")
    step, part = shifts.shifts(long, HOSTILE).shifts
    assert step.note is not None
    assert (step.note.state, step.note.note, step.note.author) == ("explained", "new driver", "bob")
    assert part.note is None
    remove_empty_runs(long)  # as each delivery does
    assert shifts.shifts(long, HOSTILE).shifts[0].note == step.note
    for wrong, match in (
        ({"run_id": "none"}, "no such run"),
        ({"metric": "speed"}, "no such metric"),
        ({"state": "done"}, "no such state"),
    ):
        told = {"run_id": run, "text": "x"} | wrong
        with pytest.raises(TracegapError, match=match):
            shifts.note(long, told.pop("run_id"), told.pop("text"), **told)


def test_the_waterfall_of_a_run_is_that_of_its_median_step(long: duckdb.DuckDBPyConnection) -> None:
    rows = long.execute(f"select run_id, steps, wall_ns, {SUM_SQL} from run_gap where job = ?", [HOSTILE]).fetchall()
    assert len(rows) == 30
    assert all(steps == 3 and wall == parts for _, steps, wall, parts in rows)


def test_a_short_history_has_no_changes(con: duckdb.DuckDBPyConnection) -> None:
    assert shifts.shifts(con, "other").shifts == []
    assert shifts.shifts(con, "empty").nights == []
    assert "no run with a complete step" in history_page.headline("empty", shifts.shifts(con, "empty"))


def test_the_page_of_a_job_names_the_night_and_runs_nothing(long: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    shifts.note(long, f"{HOSTILE}/18", "<img src=x onerror=alert(1)>", author="ann")
    out = page.render_history(long, HOSTILE, tmp_path / "h.html", {f"{HOSTILE}/18": "p.html"})
    text = out.read_text()
    assert "it is 7.98% slower than before: 100 ms → 108 ms" in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert 'href="p.html"' in text
    index = page.render_index(long, tmp_path, {}, {HOSTILE: "h.html"}).read_text()
    assert 'href="h.html"' in index
    assert "<polyline" in index


def test_a_line_of_a_series_stays_in_its_box() -> None:
    assert history_page.sparkline([1.0]) == []
    assert history_page.sparkline([2.0, 2.0, 2.0]) == [(0.0, 12), (60.0, 12), (120.0, 12)]
    assert history_page.sparkline([1.0, 3.0, 2.0]) == [(0.0, 22.0), (60.0, 2.0), (120.0, 12.0)]

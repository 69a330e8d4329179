"""History marks the nights that are unlike the ones before, and a freak night changes nothing for the next."""

import datetime
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tracegap.ingest.idle import CAUSES
from tracegap.ingest.store import insert_row, open_store
from tracegap.models.errors import TracegapError
from tracegap.reports import join
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


def put_night(con: duckdb.DuckDBPyConnection, job: str, i: int, step_ms: int | None) -> None:
    run, trace = f"{job}/{i}", f"{job}{i}"
    insert_row(con, "runs", {"run_id": run, "job": job, "started_at": START + i * DAY, "simulated": False})
    insert_row(con, "traces", {"trace_id": trace, "run_id": run})
    for step in range(3 if step_ms else 0):
        zero = dict.fromkeys(("exposed_comm_ns", "exposed_copy_ns", "idle_ns", *(f"{c}_ns" for c in CAUSES)), 0)
        wall = dict.fromkeys(("wall_ns", "compute_ns"), (step_ms or 0) * 10**6)
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

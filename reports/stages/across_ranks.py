"""The critical path of the typical and of the slowest step over all ranks, and what changes would make of the typical one."""

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.reports import critical_path, run_schedule, what_if
from tracegap.reports.stage import Run

ORDER = 60
TABLES = ("critical_path", "what_if")


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills critical_path and what_if."""
    for place, step in enumerate(run_schedule.typical_and_slowest(con, run.run_id)):
        typical = place == 0
        found = run_schedule.load(con, run.run_id, step, before=run_schedule.STEPS_BEFORE if typical else 0)
        critical_path.store_path(con, found)
        if typical:
            answers = [what_if.answer(found, change).as_dict() for change in what_if.usual(found)]
            store.insert(con, "what_if", pl.DataFrame(answers, schema=what_if.ANSWERS))

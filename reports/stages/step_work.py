"""Operations of each step window added up with their theory."""

from pathlib import Path

import duckdb

from tracegap.reports.stage import Run

ORDER = 40
TABLES = ("step_work",)
_SQL = Path(__file__).parent.parent / "sql" / "step_work.sql"


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills step_work."""
    con.execute(_SQL.read_text(), [run.run_id]).fetchall()

"""The one place where measurement meets theory: fills the tables that the gap views read, run by run."""

import contextlib
import importlib
import logging
import pkgutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.ingest.relation import quoted
from tracegap.ingest.schema import BY_NAME, RELATIONS
from tracegap.models import hardware
from tracegap.reports import finding
from tracegap.reports import stages as _stages
from tracegap.reports.stage import Run

VIEWS = {
    "op_gap": "ops",
    "collective_gap": "collectives",
    "copy_gap": "ops",
    "step_gap": "steps",
    "run_gap": "runs",
}
"""Views and the table whose rows theirs are, in the order in which they build on each other; one file each in `sql/`."""
_SQL = Path(__file__).parent / "sql"
_MEMORY = "500MB"
"""That DuckDB may take for an evaluation; it goes to disk for more. Its stages hold frames beside it."""
_LOG = logging.getLogger(__name__)


def install_views(con: duckdb.DuckDBPyConnection) -> None:
    """Creates or replaces the macros and the gap views, and comments; a column that a view takes over keeps its own."""
    _install_macros(con)
    anywhere = {c.name: c.doc for table in reversed(RELATIONS) for c in table.columns}
    earlier: dict[str, str] = {}  # what the views before say of their columns
    for name, table in VIEWS.items():
        base = (
            anywhere
            | {c.name: c.doc for c in BY_NAME["steps"].columns}
            | {c.name: c.doc for c in BY_NAME[table].columns}
        )
        text = (_SQL / f"{name}.sql").read_text()
        con.execute(text).fetchall()
        grain, *notes = [line[3:] for line in text.splitlines() if line.startswith("-- ")]
        said = earlier | dict(note.split(": ", 1) for note in notes)
        earlier |= said
        con.execute(f"comment on view {name} is {quoted(grain)}").fetchall()
        columns = con.execute("select column_name from duckdb_columns() where table_name = ?", [name]).fetchall()
        for (column,) in columns:
            meaning = said.get(column) or base.get(column)
            if meaning:
                con.execute(f"comment on column {name}.{column} is {quoted(meaning)}").fetchall()


def _install_macros(con: duckdb.DuckDBPyConnection) -> None:
    text = (_SQL / "macros.sql").read_text()
    con.execute(text).fetchall()
    kinds = {"macro": "macro", "table_macro": "macro table"}
    for line in (line[3:] for line in text.splitlines() if line.startswith("-- ")):
        name = line.partition("(")[0]
        ((kind,),) = con.execute(
            "select distinct function_type from duckdb_functions() where function_name = ?", [name]
        ).fetchall()
        con.execute(f"comment on {kinds[kind]} {name} is {quoted(line)}").fetchall()


def load_hardware(con: duckdb.DuckDBPyConnection) -> None:
    """The table `hardware`: the catalogue as it is in this version."""
    rows = [chip.row() for chip in hardware.catalogue().values()]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    con.execute("drop table if exists hardware").fetchall()
    columns = ", ".join(
        f"{name} {'DOUBLE' if dtype.is_float() else 'BIGINT' if dtype.is_integer() else 'VARCHAR'}"
        for name, dtype in frame.schema.items()
    )
    con.execute(f"create table hardware ({columns})").fetchall()
    con.execute("comment on table hardware is 'a chip of the catalogue; units are in the names'").fetchall()
    store.insert(con, "hardware", frame)


def stages() -> list[ModuleType]:
    """The stages of an evaluation in their order, found by walking `reports.stages`."""
    found = [
        importlib.import_module(f"tracegap.reports.stages.{m.name}") for m in pkgutil.iter_modules(_stages.__path__)
    ]
    return sorted(found, key=lambda stage: (stage.ORDER, stage.__name__))


def evaluate(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Joins one run with theory: every stage in its order, then the findings.

    What an earlier evaluation wrote for the run is replaced.
    """
    run = Run.load(con, run_id)
    prepare(con)
    with store.memory_limit(con, _MEMORY), store.transaction(con):
        of_run = "run_id = $1", "trace_id in (select trace_id from traces where run_id = $1)"
        for stage in stages():
            for table in stage.TABLES:
                con.execute(
                    f"delete from {table} where {of_run['trace_id' in BY_NAME[table].names]}", [run_id]
                ).fetchall()
            with _timed(stage.__name__.rpartition(".")[2]):
                stage.run(con, run)
        with _timed("findings"):
            finding.find(con, run_id)
        con.execute("update runs set evaluated_at = ? where run_id = ?", [store.now(), run_id]).fetchall()


@contextlib.contextmanager
def _timed(what: str) -> Iterator[None]:
    """Tells a debug log how long a part of an evaluation took."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    yield
    _LOG.debug("%-16s %6.2f s, %6.2f s CPU", what, time.perf_counter() - wall_s, time.process_time() - cpu_s)


def prepare(con: duckdb.DuckDBPyConnection) -> None:
    """Views and the catalogue, also in a store without any run."""
    with store.transaction(con):
        install_views(con)
        load_hardware(con)


def evaluate_stale(con: duckdb.DuckDBPyConnection, run_ids: Iterable[str]) -> None:
    """Evaluates those of the runs that changed since they were last evaluated, once each."""
    stale = {r[0] for r in con.execute("select run_id from runs where evaluated_at is null").fetchall()}
    for run_id in dict.fromkeys(run_ids):
        if run_id in stale:
            evaluate(con, run_id)

"""What each table, view and column of the store means: from the code, the same words as the comments in the store."""

from typing import NamedTuple

import duckdb

from tracegap.ingest.schema import BY_NAME, TABLES
from tracegap.models.errors import TracegapError
from tracegap.reports import join


class Relation(NamedTuple):
    """A table or view."""

    name: str
    kind: str
    row: str
    """What one row is."""


class Described(NamedTuple):
    """A column."""

    column: str
    type: str
    meaning: str | None


def relations() -> list[Relation]:
    """All that users may rely on: base tables, views, the catalogue."""
    with _empty_store() as con:
        rows = con.execute(
            """
            select table_name, 'table', comment from duckdb_tables()
            union all select view_name, 'view', comment from duckdb_views() where not internal order by 2, 1
            """
        ).fetchall()
    return [Relation(*row) for row in rows if row[0] not in BY_NAME or BY_NAME[row[0]].public]


def columns(name: str) -> list[Described]:
    """Columns of a table or view.

    Raises:
        TracegapError: there is none of that name.
    """
    with _empty_store() as con:
        rows = con.execute(
            "select column_name, data_type, comment from duckdb_columns() where table_name = ? and not internal "
            "order by column_index",
            [name],
        ).fetchall()
    if not rows:
        raise TracegapError(f"{name}: no such table or view; there are {', '.join(r.name for r in relations())}")
    return [Described(*row) for row in rows]


def _empty_store() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    for table in TABLES:
        con.execute(table.ddl()).fetchall()
    join.prepare(con)
    return con

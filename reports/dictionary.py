"""What each table, view, column and macro of the store means: from the code, the same words as the comments in the store.

`python -m tracegap.reports.dictionary docs/schema.md` writes it down.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import duckdb

from tracegap.ingest import store
from tracegap.ingest.schema import BY_NAME
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


def macros() -> list[str]:
    """The macros, with their arguments and what they give."""
    with _empty_store() as con:
        rows = con.execute(
            "select distinct comment from duckdb_functions() where not internal and comment is not null order by comment"
        ).fetchall()
    return [r[0] for r in rows]


def document() -> Iterator[str]:
    """The lines of docs/schema.md."""
    yield "# The store"
    yield ""
    yield "Made from the code by `make docs`. Names and units may be relied on; `tracegap schema TABLE` prints the same."
    yield "Times are nanoseconds since the origin of the trace, whose Unix time stands in `traces`."
    for relation in relations():
        yield ""
        yield f"## {relation.name}"
        yield ""
        yield f"A {relation.kind}; a row is {relation.row}."
        yield ""
        yield "| column | type | meaning |"
        yield "|---|---|---|"
        for column in columns(relation.name):
            yield f"| `{column.column}` | {column.type} | {(column.meaning or '').replace('|', chr(92) + '|')} |"
    yield ""
    yield "## Macros"
    yield ""
    for macro in macros():
        call, _, gives = macro.partition(": ")
        yield f"- `{call}`: {gives}"


def _empty_store() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    store.make_tables(con)
    join.prepare(con)
    return con


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(document()) + "\n")

"""Laws that hold in every store: what adds up, what lies inside what, what has a reason (`sql/laws.sql`)."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from tracegap.ingest.errors import StoreError

_FILE = Path(__file__).parent / "sql" / "laws.sql"
_STATEMENT = re.compile(r"^-- (?P<name>\w+): (?P<sentence>[^\n]+)\n(?P<sql>.*?);$", re.MULTILINE | re.DOTALL)
_SHOWN = 5
"""Rows that break a law, of those that are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A query for the rows that break it."""

    name: str
    """A stable word."""
    sentence: str
    """What holds, for a person."""
    sql: str


LAWS = tuple(Law(**found.groupdict()) for found in _STATEMENT.finditer(_FILE.read_text()))
"""In the order of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """What breaks a law."""

    law: Law
    rows: int
    """How many do."""
    first: list[dict[str, Any]]
    """The first of them: where, and the numbers that do not fit."""

    def line(self) -> str:
        """For people: the law, how often it is broken, and where first."""
        where = ", ".join(f"{name} {value}" for name, value in self.first[0].items() if value is not None)
        return f"{self.law.name}: {self.law.sentence} Broken {self.rows:,} times; first: {where}"


def check(con: duckdb.DuckDBPyConnection, law: Law) -> Breach | None:
    """What breaks a law in the store; None where it holds.

    Raises:
        StoreError: the store lacks a view, since no run of it was ever evaluated.
    """
    try:
        cursor = con.execute(f"select count(*) over () as broken_rows, * exclude (law) from ({law.sql}) limit {_SHOWN}")
    except duckdb.CatalogException as e:
        raise StoreError(f"the store was never evaluated; `tracegap ingest` evaluates what it reads ({e})") from e
    names = [column[0] for column in cursor.description]
    rows = [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
    if not rows:
        return None
    count = rows[0]["broken_rows"]
    return Breach(law=law, rows=count, first=[_told(con, row) for row in rows])


def _told(con: duckdb.DuckDBPyConnection, row: dict[str, Any]) -> dict[str, Any]:
    """A row with the path of its trace before the rest."""
    found = con.execute("select path from traces where trace_id = ?", [row.get("trace_id")]).fetchall()
    return {"path": found[0][0] if found else None} | {k: v for k, v in row.items() if k != "broken_rows"}

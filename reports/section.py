"""What a section of a page is made of: queries, their rows as charts and tables, and a sentence on what they mean."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt
import duckdb
import polars as pl

from tracegap.ingest.relation import quoted
from tracegap.reports import people
from tracegap.reports.summary import Summary

MAX_CHART_ROWS = 5_000
"""More rows than this make viewers slow: a query groups its tail instead, so that nothing is cut off."""
_PARAMETER = re.compile(r"\$([a-z_]+)")


@dataclass(frozen=True, slots=True)
class Query:
    """A query with the values bound to its `$names`, and what it returned."""

    sql: str
    values: dict[str, Any]
    rows: pl.DataFrame

    @property
    def text(self) -> str:
        """The query with its values written in, ready for `tracegap sql`."""
        return _PARAMETER.sub(lambda m: _literal(self.values[m[1]]), self.sql).strip()


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    return quoted(value) if isinstance(value, str) else str(value)


@dataclass(frozen=True, slots=True)
class Context:
    """What a section may ask of: the store and the run."""

    con: duckdb.DuckDBPyConnection
    summary: Summary

    @property
    def run_id(self) -> str:
        """The run that the page is of."""
        return self.summary.run_id

    def query(self, sql: str, **values: Any) -> Query:
        """Runs a query; `$run_id` is bound where it names it."""
        known = {"run_id": self.run_id, **values}
        bound = {name: known[name] for name in set(_PARAMETER.findall(sql))}
        rows = pl.DataFrame(self.con.sql(sql, params=bound))
        # What is divided by zero is unknown, and no page can carry it as a number.
        floats = [pl.col(name) for name, dtype in rows.schema.items() if dtype.is_float()]
        return Query(sql, bound, rows.with_columns(pl.when(c.is_finite()).then(c) for c in floats))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table for people."""

    field: str
    """Column of the query."""
    title: str
    show: Callable[[Any], str] = people.text
    """Value to text."""
    meaning: str = ""
    """Shown where the pointer rests on the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One query, as a chart, as a table or as both; or, without a query, rows that were worked out, not measured."""

    title: str
    columns: Sequence[Column]
    """The table; what the chart shows stands in it too."""
    query: Query | None = None
    chart: alt.TopLevelMixin | None = None
    alt: str = ""
    """The chart in words, for those who do not see it."""
    rows: pl.DataFrame | None = None
    """Rows of the table, where they are not exactly those of the query."""
    note: str = ""
    """A sentence under the figure."""

    def __post_init__(self) -> None:
        drawn = self.query.rows if self.query is not None else self.table
        if self.chart is not None and len(drawn) > MAX_CHART_ROWS:
            raise ValueError(f"{self.title}: {len(drawn)} rows in a chart; group the tail in SQL")
        if self.chart is not None and not self.alt:
            raise ValueError(f"{self.title}: a chart needs its content in words")

    @property
    def table(self) -> pl.DataFrame:
        """Rows of the table."""
        if self.rows is not None:
            return self.rows
        if self.query is None:
            raise ValueError(f"{self.title}: a figure needs a query or rows")
        return self.query.rows

    @property
    def is_number(self) -> list[bool]:
        """By column: whether it is set flush right and sorted by size."""
        return [self.table[c.field].dtype.is_numeric() for c in self.columns]

    @property
    def cells(self) -> list[list[tuple[str, Any]]]:
        """Rows of the table: text, and the value to sort by."""
        return [[(c.show(r[c.field]), r[c.field]) for c in self.columns] for r in self.table.to_dicts()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page. Where `figures` is empty, the sentence says why and `todo` how to record what is missing."""

    title: str
    sentence: str
    figures: Sequence[Figure] = field(default=())
    todo: str = ""

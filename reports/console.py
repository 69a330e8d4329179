"""Queries of users on the store: shut off from files, settings, extensions and the network, within limits of time and memory."""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import polars as pl

from tracegap.models.errors import TracegapError

TIMEOUT_S = 60.0
MEMORY = "2GB"


class QueryFailed(TracegapError):
    """A query that DuckDB refuses, or that met a limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one call."""

    timeout_s: float = TIMEOUT_S
    """Seconds until a query is stopped."""
    memory: str = MEMORY
    """As DuckDB writes sizes: 2GB, 500MB."""


def shut(con: duckdb.DuckDBPyConnection, limits: Limits) -> None:
    """Takes a connection all ways out, for good: nothing can be read or written but the open store, nothing spilled.

    Raises:
        QueryFailed: the limit of memory is no size.
    """
    try:
        con.execute("set memory_limit = " + _literal(limits.memory)).fetchall()
    except duckdb.Error as e:
        raise QueryFailed(f"{limits.memory}: no size such as 2GB or 500MB") from e
    for setting in (
        "temp_directory = ''",
        "python_enable_replacements = false",  # a query could name variables of this process
        "allow_community_extensions = false",
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        con.execute(f"set {setting}").fetchall()


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def parameters(given: tuple[str, ...]) -> dict[str, Any]:
    """Values of `name=value`; numbers, true, false, null and JSON as such, all else as text.

    Raises:
        QueryFailed: one has no name.
    """
    values = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals or not name.isidentifier():
            raise QueryFailed(f"{item!r}: a parameter is name=value")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


@dataclass(slots=True)
class Result:
    """What one statement returned."""

    names: list[str]
    relation: duckdb.DuckDBPyRelation

    def rows(self, most: int | None = None) -> list[tuple[Any, ...]]:
        """Rows as Python values: all, or the first ones."""
        return self.relation.fetchall() if most is None else self.relation.limit(most).fetchall()

    def frame(self) -> pl.DataFrame:
        """All rows as polars; JSON columns are text."""
        return pl.DataFrame(self.relation)


@contextlib.contextmanager
def results(
    con: duckdb.DuckDBPyConnection, text: str, values: Mapping[str, Any], limits: Limits
) -> Iterator[Iterator[Result]]:
    """The results of the statements of a text, one by one, each to be fetched before the next is asked for.

    Args:
        con: a connection that was `shut`.
        text: one or more statements.
        values: of the parameters `$name`; each statement gets those that it names.
        limits: the time is that of the whole block, in which results are fetched too.

    Raises:
        QueryFailed: it is empty, DuckDB refuses it, or it took too long.
    """
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        con.interrupt()

    clock = threading.Timer(limits.timeout_s, stop)
    clock.daemon = True
    clock.start()
    try:
        yield _each(con, text, values)
    except duckdb.Error as e:
        if stopped.is_set():
            raise QueryFailed(f"the query was stopped after {limits.timeout_s:g} s; --timeout gives it longer") from e
        if isinstance(e, duckdb.OutOfMemoryException):
            raise QueryFailed(f"the query needs more than {limits.memory}; --memory gives it more") from e
        raise QueryFailed(f"the query failed: {e}") from e
    finally:
        clock.cancel()


def _each(con: duckdb.DuckDBPyConnection, text: str, values: Mapping[str, Any]) -> Iterator[Result]:
    statements = con.extract_statements(text)
    if not statements:
        raise QueryFailed("the query is empty")
    unused = values.keys() - {name for s in statements for name in s.named_parameters}
    if unused:
        raise QueryFailed(f"the query has no parameter ${min(unused)}")
    for statement in statements:
        missing = statement.named_parameters - values.keys()
        if missing:
            raise QueryFailed(f"the query needs ${min(missing)}: give it with -p {min(missing)}=VALUE")
        bound = {name: values[name] for name in statement.named_parameters}
        relation = con.sql(statement.query, params=bound or None)
        if relation is not None:
            yield Result(list(relation.columns), relation)

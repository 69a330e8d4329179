"""`sql`: queries on the store, once, from a file, or at a prompt."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracegap.flows.options import Finite
from tracegap.flows.shell import cli, dump, json_option, opened, show, store_option
from tracegap.models.errors import TracegapError

if TYPE_CHECKING:
    from tracegap.reports.console import Result

_MOST_ROWS = 1000
_PROMPT, _MORE = "tracegap> ", "     ...> "


@cli.command()
@click.argument("query", required=False)
@click.option("-f", "--file", "file", type=click.File(), help="Read the queries from a file; - is standard input.")
@click.option("-p", "--param", "given", multiple=True, metavar="NAME=VALUE", help="The value of $NAME in the query.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "parquet", "arrow"]),
    default="table",
    show_default=True,
    help="How to print it; parquet and arrow need --out.",
)
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the last result into a file.")
@click.option(
    "--timeout", "timeout_s", type=Finite(), default=60, show_default=True, help="Stop after so many seconds."
)
@click.option("--memory", default="2GB", show_default=True, help="Stop when a query needs more.")
@store_option
@json_option
def sql(
    query: str | None,
    file: Any,
    given: tuple[str, ...],
    form: str,
    out: Path | None,
    timeout_s: float,
    memory: str,
    store: Path | None,
    as_json: bool,
) -> None:
    """Run queries on the store: read-only, without access to files, settings, extensions or the network.

    `tracegap schema` lists the tables, views and columns, docs/cookbook.md has queries to begin with. Without a query,
    on a terminal, it asks for them.

    Example: tracegap sql "select name, sum(gap_ns) from op_gap group by 1 order by 2 desc limit 10"

    Example: tracegap sql -f slow.sql -p run=llama/mon --format csv
    """
    from tracegap.reports import console

    form = "json" if as_json else form
    _agree(query, file, form, out)
    limits = console.Limits(timeout_s=timeout_s, memory=memory)
    values = console.parameters(given)
    with opened(store, read_only=True) as con:
        console.shut(con, limits)

        def answer(text: str, put: "Callable[[Result], None]") -> None:
            with console.results(con, text, values, limits) as found:
                for result in found:
                    put(result)

        if query is None and file is None:
            for text in _asked():
                try:
                    answer(text, _PUT["table"])
                except TracegapError as e:
                    click.echo(f"tracegap: {e}", err=True)
        else:
            put = _PUT[form] if out is None else lambda result: _WRITE[form](result, out)
            answer(file.read() if query is None else query, put)


def _agree(query: str | None, file: Any, form: str, out: Path | None) -> None:
    """Refuses what does not go together."""
    if query is not None and file is not None:
        raise click.UsageError("give a query or a file of queries, not both")
    if query is None and file is None and not sys.stdin.isatty():
        raise click.UsageError("no query: give one, or -f FILE (- is standard input)")
    if form in _WRITE and form not in _PUT and out is None:
        raise click.UsageError(f"{form} goes into a file: name one with --out")
    if form not in _WRITE and out is not None:
        raise click.UsageError("a table is for the screen: --format csv, json, parquet or arrow for --out")


def _asked() -> Iterator[str]:
    """Statements typed at a prompt; one ends with a semicolon, all end with an empty answer to the prompt or Ctrl-D."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (lines can be edited and come back)
    lines: list[str] = []
    while True:
        try:
            line = input(_MORE if lines else _PROMPT)
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return
        if not lines and line.strip().lower() in ("", "exit", "quit", ".exit", ".quit", "\\q"):
            return
        lines.append(line)
        if line.rstrip().endswith(";"):
            yield "\n".join(lines)
            lines = []


def _table(result: "Result") -> None:
    from tracegap.reports import tables

    rows = result.rows(_MOST_ROWS + 1)
    show(tables.table(result.names, rows[:_MOST_ROWS]))
    if len(rows) > _MOST_ROWS:
        click.echo(f"the first {_MOST_ROWS} rows; --format csv prints all", err=True)


def _csv(result: "Result", stream: Any = None) -> None:
    import csv

    writer = csv.writer(stream or sys.stdout)
    writer.writerow(result.names)
    writer.writerows(result.rows())


def _records(result: "Result") -> list[dict[str, Any]]:
    return [dict(zip(result.names, row, strict=True)) for row in result.rows()]


def _csv_into(result: "Result", out: Path) -> None:
    with out.open("w", newline="") as stream:
        _csv(result, stream)


def _json_into(result: "Result", out: Path) -> None:
    import json

    out.write_text(json.dumps(_records(result), indent=2, default=str, allow_nan=False) + "\n")


_PUT: "dict[str, Callable[[Result], None]]" = {
    "table": _table,
    "csv": _csv,
    "json": lambda result: dump(_records(result)),
}
"""What is printed."""
_WRITE: "dict[str, Callable[[Result, Path], Any]]" = {
    "csv": _csv_into,
    "json": _json_into,
    "parquet": lambda result, out: result.frame().write_parquet(out),
    "arrow": lambda result, out: result.frame().write_ipc(out),
}
"""What goes into a file."""

"""What all commands of the shell share: errors in one line, options, the store, runs that are named or given by path."""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracegap import __version__
from tracegap.models.errors import TracegapError

if TYPE_CHECKING:
    import duckdb

    from tracegap.ingest.pipeline import Ingested
    from tracegap.ingest.sources import Source

DONE, CHECK_FAILED, WRONG_USE, SOME_UNREADABLE = 0, 1, 2, 3
"""Exit status (design, section 5)."""
NO_TRACE = "no trace found: files end in .json, .pb, .sqlite or .nsys-rep, also .gz or .zst"
_PIPE_WIDTH = 160  # columns of tables that are not for a terminal


class Group(click.Group):
    """Prints the errors of a user's mistake in one line; a traceback only with --debug."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command and turns TracegapError into a line and an exit status."""
        try:
            return super().invoke(ctx)
        except TracegapError as e:
            if ctx.params.get("debug"):
                traceback.print_exc()
            from tracegap.ingest.errors import InputError

            click.echo(f"tracegap: {e}", err=True)
            ctx.exit(SOME_UNREADABLE if isinstance(e, InputError) else WRONG_USE)
        except BrokenPipeError:
            # The reader of our output has gone (`| head`): not an error. Python must not complain at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(DONE)
        except OSError as e:
            if ctx.params.get("debug"):
                traceback.print_exc()
            click.echo(f"tracegap: {e.filename or 'file'}: {e.strerror or e}", err=True)
            ctx.exit(WRONG_USE)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="tracegap")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def cli(debug: bool) -> None:
    """Account for every nanosecond between a measured training step and what physics allows."""
    del debug  # read by Group.invoke


def store_option(f: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --store."""
    return click.option(
        "--store",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The store; else the variable TRACEGAP_STORE, else tracegap.duckdb here.",
    )(f)


def json_option(f: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")(f)


def calibration_option(f: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --calibration."""
    return click.option(
        "--calibration",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help="Measured ceilings (TOML, JSON, CSV) to stand beside the peaks: matrix products, memory, bus bandwidth.",
    )(f)


def calibrate(con: "duckdb.DuckDBPyConnection", run_ids: Sequence[str], file: Path | None) -> None:
    """Gives runs the measured ceilings of a file, and joins them with theory again; nothing without a file."""
    if file is None:
        return
    from tracegap.ingest import calibration, store
    from tracegap.reports import join

    store.set_calibration(con, run_ids, calibration.load(file))
    join.prepare(con)
    join.evaluate_stale(con, run_ids)


def dump(value: Any) -> None:
    """Prints JSON, which has no words for infinite numbers and for none.

    Raises:
        TracegapError: the value holds one.
    """
    try:
        text = json.dumps(value, indent=2, default=str, allow_nan=False)
    except ValueError as e:
        raise TracegapError(f"the answer does not go into JSON: {e}") from e
    click.echo(text)


def show(renderable: Any) -> None:
    """Prints something of rich; plain and wide in a pipe."""
    from rich.console import Console

    Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(renderable)


@contextlib.contextmanager
def opened(path: Path | None, *, read_only: bool = False, made: bool = True) -> "Iterator[duckdb.DuckDBPyConnection]":
    """The store; says so where another process makes it wait. `made`: it is made where it is missing."""
    from tracegap.ingest.errors import StoreBusy
    from tracegap.ingest.store import open_store, require_store

    if not made:
        require_store(path)
    with contextlib.ExitStack() as stack:
        try:
            con = stack.enter_context(open_store(path, read_only=read_only, wait_s=0.5))
        except StoreBusy:
            click.echo("tracegap: waiting for another process that holds the store", err=True)
            con = stack.enter_context(open_store(path, read_only=read_only))
        yield con


def any_path(arguments: Sequence[str]) -> bool:
    """Whether an argument may be a path or URL of traces, rather than a run of the store."""
    return any(Path(a).exists() or "://" in a or "*" in a for a in arguments)


@contextlib.contextmanager
def _progress() -> "Iterator[Callable[[Source], None]]":
    """Names the file at work on a terminal; silent in a pipe."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        yield lambda path: status.update(f"reading {path.name}")


def ingest_given(
    con: "duckdb.DuckDBPyConnection",
    paths: Sequence[str | Path],
    run: str | None = None,
    part: str | None = None,
    workers: int | None = None,
) -> "list[Ingested]":
    """Ingests and evaluates what changed."""
    from tracegap.ingest.pipeline import ingest_paths
    from tracegap.reports import join

    with _progress() as progress:
        results = ingest_paths(con, paths, run=run, part=part, workers=workers, progress=progress)
        join.prepare(con)
        join.evaluate_stale(con, [r.run_id for r in results if r.run_id])
    return results


def report_failures(results: "list[Ingested]") -> int:
    """One line for each file that is not whole; the exit status."""
    for r in results:
        if r.error:
            kept = f" (kept: {r.ops} operations, run {r.run_id})" if r.status == "partial" else ""
            click.echo(f"tracegap: {r.error}{kept}", err=True)
    return DONE if all(r.sound for r in results) else SOME_UNREADABLE


def run_ids_of(con: "duckdb.DuckDBPyConnection", arguments: Sequence[str]) -> tuple[list[str], int]:
    """Runs named by their names or by paths of traces, which are ingested on the way; and an exit status."""
    from tracegap.ingest import sources

    known = {r[0] for r in con.execute("select run_id from runs").fetchall()}
    run_ids, status = [], DONE
    for argument in arguments:
        if argument in known:
            run_ids.append(argument)
            continue
        if not sources.is_given(argument):
            names = ", ".join(sorted(known)) or "none"
            part = " (parts are named like @rank=3, @ranks=0-3 or @ranks=0-3,steps=10-20)" if "@" in argument else ""
            raise TracegapError(f"{argument}: neither a run of the store nor a path{part}; runs: {names}")
        results = ingest_given(con, [argument])
        status = max(status, report_failures(results))
        run_ids += [r.run_id for r in results if r.run_id]
    return list(dict.fromkeys(run_ids)), status

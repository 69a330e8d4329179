"""The `tracegap` command: thin, over plain functions. Heavy imports are inside the commands, so that `--help` is quick."""

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
_NO_TRACE = "no trace found: files end in .json, .pb, .sqlite or .nsys-rep, also .gz or .zst"
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


def _store_option(f: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--store",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The store; else the variable TRACEGAP_STORE, else tracegap.duckdb here.",
    )(f)


def _json_option(f: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")(f)


def _dump(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, default=str))


def _show(renderable: Any) -> None:
    from rich.console import Console

    Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(renderable)


@contextlib.contextmanager
def _opened(path: Path | None, *, read_only: bool = False, made: bool = True) -> "Iterator[duckdb.DuckDBPyConnection]":
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


def _any_path(arguments: Sequence[str]) -> bool:
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


def _ingest(
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


def _report_failures(results: "list[Ingested]") -> int:
    """One line for each file that is not whole; the exit status."""
    for r in results:
        if r.error:
            kept = f" (kept: {r.ops} operations, run {r.run_id})" if r.status == "partial" else ""
            click.echo(f"tracegap: {r.error}{kept}", err=True)
    return DONE if all(r.sound for r in results) else SOME_UNREADABLE


def _run_ids(con: "duckdb.DuckDBPyConnection", arguments: Sequence[str]) -> tuple[list[str], int]:
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
            raise TracegapError(f"{argument}: neither a run of the store nor a path; runs: {names}")
        results = _ingest(con, [argument])
        status = max(status, _report_failures(results))
        run_ids += [r.run_id for r in results if r.run_id]
    return list(dict.fromkeys(run_ids)), status


@cli.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("--run", help="Name of the run that all the traces belong to.")
@click.option("--hardware", "part", help="Part that ran, by catalogue id, where the traces do not name it.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Processes that read large files, a file each.  [default: as many as processors]",
)
@_store_option
@_json_option
@click.pass_context
def ingest(
    ctx: click.Context,
    paths: tuple[str, ...],
    run: str | None,
    part: str | None,
    workers: int | None,
    store: Path | None,
    as_json: bool,
) -> None:
    """Read traces into the store: files, folders, patterns, archives, URLs (s3://, gs://, https://, ...).

    Example: tracegap ingest nightly/2026-11-30 s3://traces/llama-8b/ 'old/*/rank*.tar.gz'
    """
    with _opened(store) as con:
        results = _ingest(con, paths, run, part, workers)
    if as_json:
        runs = list(dict.fromkeys(r.run_id for r in results if r.run_id))
        keys = ("path", "status", "format", "rank", "ops", "run_id", "diagnostics", "error")
        _dump(
            {
                "run_id": runs[0] if len(runs) == 1 else None,
                "runs": runs,
                "traces": [{k: getattr(r, k) for k in keys} for r in results],
            }
        )
    else:
        for r in results:
            if r.status != "failed":
                rank = "" if r.rank is None else f" rank {r.rank}"
                told = "already in the store" if r.status == "already" else f"{r.ops:,} operations"
                click.echo(f"{r.path}: {r.format}{rank}, run {r.run_id}: {told}")
        if not results:
            click.echo(
                "no trace found: files end in .json, .pb, .sqlite or .nsys-rep, also .gz or .zst; "
                "archives in .zip, .tar, .tgz, .tar.gz or .tar.zst"
            )
    ctx.exit(_report_failures(results))


@cli.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The page, or for several runs a folder.")
@_store_option
@_json_option
@click.pass_context
def report(ctx: click.Context, runs: tuple[str, ...], out: Path | None, store: Path | None, as_json: bool) -> None:
    """Write the page of a run: a name in the store, or paths of traces.

    Example: tracegap report traces/step-1000 -o page.html
    """
    from tracegap.reports import names, page, terminal

    with _opened(store, made=_any_path(runs)) as con:
        run_ids, status = _run_ids(con, runs)
        pages = {}
        for run_id in run_ids:
            name = names.page_name(run_id)
            target = out / name if out and (len(run_ids) > 1 or out.is_dir()) else out or Path(name)
            pages[run_id] = page.render_run(con, run_id, target)
            if not as_json:
                _show(terminal.run_summary(con, run_id))
                click.echo(f"page: {pages[run_id]}")
    if as_json:
        _dump({"pages": {k: str(v) for k, v in pages.items()}})
    ctx.exit(status)


@cli.command()
@click.argument("before")
@click.argument("after")
@click.option("--fail-over", help="Exit with status 1 when the step got slower by more than this, such as 5%.")
@click.option("--config", "all_config", is_flag=True, help="Show every configuration line that differs.")
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write a page.")
@_store_option
@_json_option
@click.pass_context
def compare(
    ctx: click.Context,
    before: str,
    after: str,
    fail_over: str | None,
    all_config: bool,
    out: Path | None,
    store: Path | None,
    as_json: bool,
) -> None:
    """Say what got slower between two runs, and why. A run is a name in the store or paths of traces.

    Example: tracegap compare nightly/mon nightly/tue --fail-over 5%
    """
    limit = _percent(fail_over) if fail_over is not None else None
    from tracegap.reports import compare as comparing

    with _opened(store, made=_any_path((before, after))) as con:
        sides = []
        status = DONE
        for argument in (before, after):
            run_ids, got = _run_ids(con, [argument])
            status = max(status, got)
            if len(run_ids) != 1:
                raise TracegapError(
                    f"{argument}: {len(run_ids)} runs ({', '.join(run_ids) or 'no trace'}); name one of them"
                )
            sides += run_ids
        result = comparing.compare(con, *sides)
    if as_json:
        _dump(result.as_dict())
    else:
        from tracegap.reports import terminal

        _show(terminal.comparison(result, all_config=all_config))
    if out:
        from tracegap.reports import page

        click.echo(f"page: {page.render_compare(result, out)}", err=as_json)
    if limit is not None and result.change_frac > limit and result.verdict == "slower":
        click.echo(f"tracegap: {100 * result.change_frac:.2f}% slower, over the limit of {100 * limit:g}%", err=True)
        ctx.exit(CHECK_FAILED)
    ctx.exit(status)


def _percent(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / 100
    except ValueError:
        raise click.BadParameter(f"{text!r} is no percentage such as 5%", param_hint="--fail-over") from None


@cli.command()
@click.argument("job", required=False)
@_store_option
@_json_option
def history(job: str | None, store: Path | None, as_json: bool) -> None:
    """Step time and MFU of every run of a job, oldest first.

    Example: tracegap history llama-8b
    """
    from tracegap.reports import history as nights
    from tracegap.reports import tables

    with _opened(store, read_only=True) as con:
        rows = nights.history(con, job)
    if as_json:
        _dump([r.as_dict() for r in rows])
    else:
        _show(tables.table(nights.HEADINGS, [r.cells() for r in rows]))


@cli.command()
@click.argument("query")
@click.option("--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
@_store_option
@_json_option
def sql(query: str, form: str, store: Path | None, as_json: bool) -> None:
    """Run a query on the store, read-only and without access to files or the network.

    `tracegap schema` lists the tables, views and columns.

    Example: tracegap sql "select name, sum(gap_ns) from op_gap group by 1 order by 2 desc limit 10"
    """
    import duckdb

    from tracegap.reports import tables

    with _opened(store, read_only=True) as con:
        con.execute("set enable_external_access = false; set lock_configuration = true").fetchall()
        try:
            cursor = con.execute(query)
            if cursor is None or cursor.description is None:
                raise TracegapError("the query is empty")
            names = [c[0] for c in cursor.description]
            rows = cursor.fetchall()
        except duckdb.Error as e:
            raise TracegapError(f"the query failed: {e}") from e
    if as_json or form == "json":
        _dump([dict(zip(names, row, strict=True)) for row in rows])
    elif form == "csv":
        import csv

        writer = csv.writer(sys.stdout)
        writer.writerow(names)
        writer.writerows(rows)
    else:
        _show(tables.table(names, rows))


@cli.command()
@click.argument("table", required=False)
@_json_option
def schema(table: str | None, as_json: bool) -> None:
    """List tables and views of the store, or the columns of one with their units and meaning.

    Example: tracegap schema step_gap
    """
    from tracegap.reports import dictionary, tables

    rows = dictionary.columns(table) if table else dictionary.relations()
    if as_json:
        _dump([dict(zip(row._fields, row, strict=True)) for row in rows])
    else:
        _show(tables.table(rows[0]._fields, rows))


@cli.command()
@click.argument("chip", required=False)
@_json_option
def hardware(chip: str | None, as_json: bool) -> None:
    """List the catalogue of parts, or show one with its sources.

    Example: tracegap hardware h100_sxm
    """
    from tracegap.models import hardware as parts
    from tracegap.reports import tables

    rows = [c.row() for c in ([parts.get(chip)] if chip else parts.catalogue().values())]
    if as_json:
        _dump(rows)
    elif chip:
        _show(tables.table(["", chip], [(k, v) for k, v in rows[0].items() if v not in (None, "")]))
    else:
        columns = (
            "id",
            "name",
            "bf16_tflops",
            "fp8_tflops",
            "hbm_gb",
            "hbm_gbps",
            "scaleup_gbps_per_dir",
            "scaleup_max_domain",
        )
        _show(tables.table(columns, [tuple(r[c] for c in columns) for r in rows]))


def _number(_: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """A count as people write it: 300B, 15T, 4M, 524288."""
    if text is None:
        return None
    scale = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}.get(text[-1:].lower())
    try:
        value = float(text[:-1]) * scale if scale else float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise click.BadParameter(f"{text!r} is no number such as 15T or 4194304", param=option)
    return value


@cli.command()
@click.argument("model")
@click.option("--hardware", "chip", help="Part, by catalogue id; of several, joined by commas, the slowest counts.")
@click.option(
    "--devices", type=click.IntRange(1), help="Devices to find the best meshes for; else the fewest that fit."
)
@click.option("--mesh", help="One mesh instead, such as fsdp=16,tensor=8; the last axis is the fastest.")
@click.option("--batch-tokens", callback=_number, help="Tokens of a step, such as 4M.")
@click.option("--seq", type=click.IntRange(1), help="Tokens of a sequence.")
@click.option("--tokens", callback=_number, help="Tokens to train on, such as 15T: days, device-hours, money.")
@click.option("--price", type=click.FloatRange(0), help="USD a device-hour.")
@click.option("--mtbf", type=click.FloatRange(0, min_open=True), help="Hours between failures of one device.")
@click.option("--checkpoint", type=click.FloatRange(0, min_open=True), help="Seconds that a checkpoint stops training.")
@click.option("--restart", type=click.FloatRange(0), help="Seconds from a failure to the next new step.")
@click.option("--network", type=click.FloatRange(0, min_open=True), help="A device's share of the network, GB/s.")
@click.option("--recompute", type=click.Choice(["none", "selective", "full"]), default="none", show_default=True)
@click.option("--zero", type=click.IntRange(0, 3), default=0, help="ZeRO stage of data-parallel replicas.")
@click.option("--schedule", default="1f1b", show_default=True, help="Pipeline schedule.")
@click.option("--microbatches", type=click.IntRange(1), help="Of a replica in a step.")
@click.option("--optimizer", default="adamw", show_default=True, help="Or adam8bit, sgd_momentum, adam_fp32.")
@click.option("--math", "math_dtype", help="Dtype of matrix products, such as fp8; else the model's.")
@click.option("--offload", multiple=True, help="To the host: optimizer, activations.")
@click.option("--measured", type=click.FloatRange(0, min_open=True), help="TFLOP/s a device: can that be true?")
@click.option("--scaling", is_flag=True, help="Also the best mesh of more and more devices.")
@click.option("--serve", is_flag=True, help="Serve the model instead of training it.")
@click.option("--prompt", type=click.IntRange(1), default=8192, show_default=True, help="Tokens; with --serve.")
@click.option("--answer", type=click.IntRange(1), default=512, show_default=True, help="Tokens; with --serve.")
@click.option("--weights", "weight_dtype", help="Dtype of served weights: bf16, fp8, int8, int4.")
@click.option("--kv", "kv_dtype", help="Dtype of the cache.")
@click.option("--page", "out", type=click.Path(path_type=Path, dir_okay=False), help="Also write a page with charts.")
@_json_option
def plan(model: str, chip: str | None, mesh: str | None, out: Path | None, as_json: bool, **asked: Any) -> None:
    """Say what training or serving a model must cost, and on which mesh it is best, without any trace.

    MODEL is a preset such as llama-3-70b, a Hugging Face config.json, or a manifest with [model], [mesh] and
    tokens_per_step, as beside traces.

    Example: tracegap plan llama-3-70b --hardware h100_sxm --devices 512 --tokens 15T --price 2.5
    """
    from tracegap.models.mesh import mesh_of
    from tracegap.models.recipe import Recipe
    from tracegap.reports import plan_text, planning

    recipe = Recipe(
        zero=asked["zero"],
        recompute=asked["recompute"],
        schedule=asked["schedule"],
        microbatches=asked["microbatches"],
        optimizer=asked["optimizer"],
        math_dtype=asked["math_dtype"],
        offload=tuple(asked["offload"]),
    )
    result = planning.answer(
        planning.Question(
            model=model,
            hardware=chip,
            devices=asked["devices"],
            mesh=mesh_of(mesh) if mesh else None,
            batch_tokens=None if asked["batch_tokens"] is None else round(asked["batch_tokens"]),
            seq=asked["seq"],
            tokens=asked["tokens"],
            usd_per_device_hour=asked["price"],
            device_mtbf_hours=asked["mtbf"],
            checkpoint_s=asked["checkpoint"],
            restart_s=asked["restart"],
            network_gb_per_s=asked["network"],
            measured_tflops=asked["measured"],
            recipe=recipe,
            serve=asked["serve"],
            prompt=asked["prompt"],
            answer=asked["answer"],
            weight_dtype=asked["weight_dtype"],
            kv_dtype=asked["kv_dtype"],
            scaling=asked["scaling"] or out is not None,
        )
    )
    if as_json:
        _dump(result)
    else:
        for part in plan_text.screen(result):
            _show(part)
    if out:
        from tracegap.reports import page

        click.echo(f"page: {page.render_plan(result, out)}", err=as_json)


@cli.command()
@click.argument("paths", nargs=-1, required=True)
@_json_option
@click.pass_context
def doctor(ctx: click.Context, paths: tuple[str, ...], as_json: bool) -> None:
    """Say what is in trace files and what is wrong with them; stores nothing.

    Example: tracegap doctor rank3.pt.trace.json.gz
    """
    from tracegap.ingest import examine

    reports = list(examine.examine_all(paths))
    if as_json:
        _dump([r.as_dict() for r in reports])
    else:
        for r in reports:
            click.echo("\n".join(r.lines()))
        if not reports:
            click.echo(_NO_TRACE)
    ctx.exit(DONE if all(r.sound for r in reports) else SOME_UNREADABLE)


@cli.command()
@click.argument("run")
@click.option("--step", type=int, required=True, help="The step that was slow.")
@_store_option
@_json_option
def explain(run: str, step: int, store: Path | None, as_json: bool) -> None:
    """Say why one step of a run was slower than its neighbours.

    Example: tracegap explain llama-8b/mon --step 17
    """
    from tracegap.reports import explain as explaining

    with _opened(store, read_only=True) as con:
        result = explaining.explain(con, run, step)
    if as_json:
        _dump(result.as_dict())
    else:
        click.echo("\n".join(result.lines()))


@cli.command()
@click.argument("run")
@click.option("-o", "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("view"), show_default=True)
@_store_option
@_json_option
def view(run: str, out: Path, store: Path | None, as_json: bool) -> None:
    """Lay out a run's own traces for the viewers people know, and say how to open them.

    Example: tracegap view llama-8b/mon
    """
    from tracegap.reports import viewers

    with _opened(store, read_only=True) as con:
        laid = viewers.lay_out(con, run, out)
    if as_json:
        _dump([v.as_dict() for v in laid])
    else:
        for v in laid:
            click.echo(v.line())


@cli.command()
@click.option("--source", required=True, help="Folder of traces, or the URL of one (s3://, gs://, https://, ...).")
@click.option("--publish", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder of the pages.")
@_store_option
@_json_option
@click.pass_context
def nightly(ctx: click.Context, source: str, publish: Path, store: Path | None, as_json: bool) -> None:
    """Find new traces, ingest them, publish a page for each run and an index: a Prefect flow.

    Example: tracegap nightly --source /data/traces --publish /srv/www/tracegap
    """
    from tracegap.flows import nightly as flow
    from tracegap.ingest.store import store_path

    result = flow.run_nightly(source, publish, store_path(store))
    if as_json:
        _dump(result.as_dict())
    else:
        click.echo("\n".join(result.lines()))
    ctx.exit(SOME_UNREADABLE if result.failed else DONE)


@cli.command()
@click.option("-o", "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("demo"), show_default=True)
@click.option(
    "--samples", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Else those of the checkout."
)
@_json_option
@click.pass_context
def demo(ctx: click.Context, out: Path, samples: Path | None, as_json: bool) -> None:
    """Read the sample traces, compare the two simulated jobs, and write all pages.

    Example: tracegap demo
    """
    from tracegap.flows import demo as demonstration

    result = demonstration.run_demo(out, samples, _ingest)
    if as_json:
        _dump(result.as_dict())
    else:
        for renderable in result.screen:
            _show(renderable)
        click.echo(f"page: {result.index}")
    ctx.exit(_report_failures(result.ingested))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    try:
        cli(args=list(argv) if argv is not None else None, prog_name="tracegap")
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else WRONG_USE
    return DONE

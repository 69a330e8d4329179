"""Traces in: `ingest`, `doctor`, `view`."""

from pathlib import Path

import click

from tracegap.flows.shell import (
    CHECK_FAILED,
    DONE,
    NO_TRACE,
    SOME_UNREADABLE,
    calibrate,
    calibration_option,
    cli,
    dump,
    ingest_given,
    json_option,
    opened,
    report_failures,
    store_option,
)


@cli.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("--run", help="Name of the run that all the traces belong to.")
@click.option("--hardware", "part", help="Part that ran, by catalogue id, where the traces do not name it.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Processes that read large files: a file each, or a single one together.  [default: as many as processors]",
)
@calibration_option
@store_option
@json_option
@click.pass_context
def ingest(
    ctx: click.Context,
    paths: tuple[str, ...],
    run: str | None,
    part: str | None,
    workers: int | None,
    calibration: Path | None,
    store: Path | None,
    as_json: bool,
) -> None:
    """Read traces into the store: files, folders, patterns, archives, URLs (s3://, gs://, https://, ...).

    Example: tracegap ingest nightly/2026-11-30 s3://traces/llama-8b/ 'old/*/rank*.tar.gz'
    """
    with opened(store) as con:
        results = ingest_given(con, paths, run, part, workers)
        calibrate(con, list(dict.fromkeys(r.run_id for r in results if r.run_id)), calibration)
    if as_json:
        runs = list(dict.fromkeys(r.run_id for r in results if r.run_id))
        keys = ("path", "status", "format", "rank", "ops", "run_id", "diagnostics", "error")
        dump(
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
    ctx.exit(report_failures(results))


@cli.command()
@click.argument("paths", nargs=-1)
@click.option(
    "--store",
    is_flag=False,
    flag_value="",
    metavar="[FILE]",
    help="Check the laws of a store instead; without FILE that of TRACEGAP_STORE, else tracegap.duckdb here.",
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, paths: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Say what is in trace files and what is wrong with them; stores nothing.

    With --store: whether everything in a store adds up, law by law; exit status 1 where something does not.

    Example: tracegap doctor rank3.pt.trace.json.gz

    Example: tracegap doctor --store tracegap.duckdb
    """
    if bool(paths) == (store is not None):
        raise click.UsageError("give either paths of traces or --store [FILE]")
    ctx.exit(_check_files(paths, as_json) if store is None else _check_store(Path(store) if store else None, as_json))


def _check_files(paths: tuple[str, ...], as_json: bool) -> int:
    """What is in the files; the exit status."""
    from tracegap.ingest import examine

    reports = list(examine.examine_all(paths))
    if as_json:
        dump([r.as_dict() for r in reports])
    else:
        for r in reports:
            click.echo("\n".join(r.lines()))
        if not reports:
            click.echo(NO_TRACE)
    return DONE if all(r.sound for r in reports) else SOME_UNREADABLE


def _check_store(store: Path | None, as_json: bool) -> int:
    """Which laws of the store are broken, and where; the exit status."""
    from tracegap.reports import laws

    with opened(store, read_only=True) as con:
        found = [(law, laws.check(con, law)) for law in laws.LAWS]
    broken = [breach for _, breach in found if breach]
    if as_json:
        dump(
            [
                {
                    "law": law.name,
                    "sentence": law.sentence,
                    "holds": breach is None,
                    "broken_rows": breach.rows if breach else 0,
                    "first": breach.first if breach else [],
                }
                for law, breach in found
            ]
        )
    else:
        for breach in broken:
            click.echo(breach.line())
        if not broken:
            click.echo(f"all {len(found)} laws hold")
    return CHECK_FAILED if broken else DONE


@cli.command()
@click.argument("run")
@click.option("-o", "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("view"), show_default=True)
@store_option
@json_option
def view(run: str, out: Path, store: Path | None, as_json: bool) -> None:
    """Lay out a run's own traces for the viewers people know, and say how to open them.

    Example: tracegap view llama-8b/mon
    """
    from tracegap.reports import viewers

    with opened(store, read_only=True) as con:
        laid = viewers.lay_out(con, run, out)
    if as_json:
        dump([v.as_dict() for v in laid])
    else:
        for v in laid:
            click.echo(v.line())

"""Many traces at once: `nightly`, `demo`."""

from pathlib import Path

import click

from tracegap.flows.shell import (
    DONE,
    SOME_UNREADABLE,
    calibration_option,
    cli,
    dump,
    ingest_given,
    json_option,
    report_failures,
    show,
    store_option,
)


@cli.command()
@click.option("--source", required=True, help="Folder of traces, or the URL of one (s3://, gs://, https://, ...).")
@click.option("--publish", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder of the pages.")
@calibration_option
@store_option
@json_option
@click.pass_context
def nightly(
    ctx: click.Context, source: str, publish: Path, calibration: Path | None, store: Path | None, as_json: bool
) -> None:
    """Find new traces, ingest them, publish a page for each run and an index: a Prefect flow.

    Example: tracegap nightly --source /data/traces --publish /srv/www/tracegap
    """
    from tracegap.flows import nightly as flow
    from tracegap.ingest.store import store_path

    result = flow.run_nightly(source, publish, store_path(store), calibration=calibration)
    if as_json:
        dump(result.as_dict())
    else:
        click.echo("\n".join(result.lines()))
    ctx.exit(SOME_UNREADABLE if result.failed else DONE)


@cli.command()
@click.option("-o", "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("demo"), show_default=True)
@click.option(
    "--samples", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Else those of the checkout."
)
@json_option
@click.pass_context
def demo(ctx: click.Context, out: Path, samples: Path | None, as_json: bool) -> None:
    """Read the sample traces, compare the two simulated jobs, and write all pages.

    Example: tracegap demo
    """
    from tracegap.flows import demo as demonstration

    result = demonstration.run_demo(out, samples, ingest_given)
    if as_json:
        dump(result.as_dict())
    else:
        for renderable in result.screen:
            show(renderable)
        click.echo(f"page: {result.index}")
    ctx.exit(report_failures(result.ingested))

"""Answers out: `report`, `compare`, `history`, `note`, `explain`, `what-if`, `export`, `schema`."""

from pathlib import Path
from typing import Any

import click

from tracegap.flows.options import Finite
from tracegap.flows.shell import (
    CHECK_FAILED,
    DONE,
    any_path,
    calibrate,
    calibration_option,
    cli,
    dump,
    json_option,
    opened,
    run_ids_of,
    show,
    store_option,
)
from tracegap.models.errors import TracegapError


@cli.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="The page, or for several runs a folder.")
@calibration_option
@store_option
@json_option
@click.pass_context
def report(
    ctx: click.Context,
    runs: tuple[str, ...],
    out: Path | None,
    calibration: Path | None,
    store: Path | None,
    as_json: bool,
) -> None:
    """Write the page of a run: a name in the store, or paths of traces.

    Example: tracegap report traces/step-1000 -o page.html
    """
    from tracegap.reports import names, page, terminal

    with opened(store, made=any_path(runs)) as con:
        run_ids, status = run_ids_of(con, runs)
        calibrate(con, run_ids, calibration)
        pages = {}
        for run_id in run_ids:
            name = names.page_name(run_id)
            target = out / name if out and (len(run_ids) > 1 or out.is_dir()) else out or Path(name)
            pages[run_id] = page.render_run(con, run_id, target)
            if not as_json:
                show(terminal.run_summary(con, run_id))
                click.echo(f"page: {pages[run_id]}")
    if as_json:
        dump({"pages": {k: str(v) for k, v in pages.items()}})
    ctx.exit(status)


@cli.command()
@click.argument("before")
@click.argument("after", nargs=-1, required=True)
@click.option("--fail-over", help="Exit with status 1 when a step got slower by more than this, such as 5%.")
@click.option("--config", "all_config", is_flag=True, help="Show every configuration line that differs.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for a pull request.")
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write a page (of two).")
@calibration_option
@store_option
@json_option
@click.pass_context
def compare(
    ctx: click.Context,
    before: str,
    after: tuple[str, ...],
    fail_over: str | None,
    all_config: bool,
    markdown: bool,
    out: Path | None,
    calibration: Path | None,
    store: Path | None,
    as_json: bool,
) -> None:
    """Say what got slower between two runs, and why; or set several beside the first.

    A run is a name in the store or paths of traces; @rank=3, @ranks=0-3 or @steps=10-20 after it takes a part of it.

    Example: tracegap compare nightly/mon nightly/tue --fail-over 5%

    Example: tracegap compare nightly/tue@rank=0 nightly/tue@rank=3
    """
    limit = _percent(fail_over) if fail_over is not None else None
    if out and len(after) > 1:
        raise click.UsageError("a page is of two runs: leave --out away, or compare two")
    from tracegap.reports import compare as comparing
    from tracegap.reports import sides

    given = [sides.parted(argument) for argument in (before, *after)]
    with opened(store, made=any_path([base for base, _ in given])) as con:
        selections, status = [], DONE
        for base, bounds in given:
            run_ids, got = run_ids_of(con, [base])
            status = max(status, got)
            if len(run_ids) != 1:
                raise TracegapError(
                    f"{base}: {len(run_ids)} runs ({', '.join(run_ids) or 'no trace'}); name one of them"
                )
            selections.append(sides.Selection(run_id=run_ids[0], **bounds))
        calibrate(con, [one.run_id for one in selections], calibration)
        results = comparing.compare_all(con, selections)
    if as_json:
        told = [r.as_dict() for r in results]
        dump(told[0] if len(told) == 1 else {"comparisons": told})
    elif markdown:
        from tracegap.reports import comparison_markdown

        click.echo(comparison_markdown.markdown(results))
    else:
        from tracegap.reports import terminal

        show(
            terminal.comparison(results[0], all_config=all_config)
            if len(results) == 1
            else terminal.side_by_side(results)
        )
    if out:
        from tracegap.reports import page

        click.echo(f"page: {page.render_compare(results[0], out)}", err=as_json or markdown)
    over = [r for r in results if limit is not None and r.change_frac > limit and r.verdict == "slower"]
    for r in over:
        click.echo(
            f"tracegap: {r.after.label}: {100 * r.change_frac:.2f}% slower, over the limit of {100 * (limit or 0):g}%",
            err=True,
        )
    ctx.exit(CHECK_FAILED if over else status)


def _percent(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / 100
    except ValueError:
        raise click.BadParameter(f"{text!r} is no percentage such as 5%", param_hint="--fail-over") from None


@cli.command()
@click.argument("job", required=False)
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write the page of the job.")
@store_option
@json_option
def history(job: str | None, out: Path | None, store: Path | None, as_json: bool) -> None:
    """Step time and MFU of every run of a job, oldest first, and the nights from which on they are others.

    Example: tracegap history llama-8b -o history.html
    """
    if out and job is None:
        raise click.UsageError("a page is of one job: name it")
    from tracegap.reports import history as nights
    from tracegap.reports import page, shifts, tables

    with opened(store, read_only=True) as con:
        rows = nights.history(con, job)
        jobs = list(dict.fromkeys(r.job for r in rows))
        found = [shift for name in jobs for shift in shifts.shifts(con, name).shifts]
        if out and job is not None:
            page.render_history(con, job, out, {})
    if as_json:
        dump([r.as_dict() | {"changes": [s.as_dict() for s in found if s.run_id == r.run_id]} for r in rows])
        return
    show(tables.table(nights.HEADINGS, [r.cells() for r in rows]))
    for shift in found:
        said = f"  {shift.note.state}: {shift.note.note}" if shift.note else ""
        click.echo(f"{shift.started_at or shift.run_id}  {shift.job} from {shift.run_id} on: {shift.words}{said}")
    if out:
        click.echo(f"page: {out}")


@cli.command()
@click.argument("run")
@click.argument("text")
@click.option("--explained", "state", flag_value="explained", help="It is understood.")
@click.option("--reopened", "state", flag_value="reopened", help="It is not, after all.")
@click.option("--metric", default="wall_ns", show_default=True, help="What changed: a column of run_gap.")
@click.option("--author", help="Who says so; else the variable TRACEGAP_AUTHOR, else the user.")
@store_option
@json_option
def note(
    run: str, text: str, state: str | None, metric: str, author: str | None, store: Path | None, as_json: bool
) -> None:
    """Record what is known of a change that began with a run; the history shows it.

    Example: tracegap note llama-8b/tue "bucket_cap_mb was 1 by mistake" --explained
    """
    from tracegap.reports import shifts

    with opened(store, made=False) as con:
        shifts.note(con, run, text, metric=metric, state=state or "acknowledged", author=author)
    told = {"run_id": run, "metric": metric, "state": state or "acknowledged", "note": text}
    if as_json:
        dump(told)
    else:
        click.echo("{run_id}, {metric}: {state}, {note}".format(**told))


@cli.command()
@click.argument("run")
@click.option("--step", type=int, required=True, help="The step that was slow.")
@store_option
@json_option
def explain(run: str, step: int, store: Path | None, as_json: bool) -> None:
    """Say why one step of a run was slower than its neighbours.

    Example: tracegap explain llama-8b/mon --step 17
    """
    from tracegap.reports import explain as explaining

    with opened(store, read_only=True) as con:
        result = explaining.explain(con, run, step)
    if as_json:
        dump(result.as_dict())
    else:
        click.echo("\n".join(result.lines()))


@cli.command("what-if")
@click.argument("run")
@click.option("--step", type=int, help="The step.  [default: the median one]")
@click.option("--kernel", help="Operations: a name, a class such as matmul, or a part of a name; all for every one.")
@click.option("--collective", help="Collectives of a kind, such as all_reduce; all for every one.")
@click.option("--rank", type=int, help="A rank.")
@click.option("--to-bound", is_flag=True, help="They take what arithmetic and memory need (with --kernel).")
@click.option("--to-prediction", is_flag=True, help="They take what the model predicts (with --collective).")
@click.option("--hidden", is_flag=True, help="They take no time once the last rank has arrived (with --collective).")
@click.option("--times", type=Finite(0), help="They take so many times their time (with --kernel or --collective).")
@click.option("--like-median", is_flag=True, help="It takes what the median rank takes (with --rank).")
@click.option("--no-launches", is_flag=True, help="The host launches a step in no time, as with a graph.")
@click.option("--no-syncs", is_flag=True, help="The host waits for no device.")
@click.option("--no-input", is_flag=True, help="Data is there at once.")
@click.option("--no-bubble", is_flag=True, help="No pipeline stage waits for another one.")
@store_option
@json_option
def what_if(run: str, step: int | None, store: Path | None, as_json: bool, **asked: Any) -> None:
    """Say how long a step would take with one thing changed, by replaying its dependencies over all ranks.

    Without a change: the usual ones, as the table what_if has them.

    Example: tracegap what-if llama-8b/mon --collective all_reduce --hidden
    """
    from tracegap.reports import asking, tables

    with opened(store, read_only=True) as con:
        answers = asking.answers(con, run, step, asked)
    if as_json:
        dump([a.as_dict() for a in answers])
    else:
        show(tables.table(asking.HEADINGS, [asking.cells(a) for a in answers]))


@cli.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("--parquet", type=click.Path(path_type=Path), help="A new folder: a file for each table and view.")
@click.option(
    "--perfetto", type=click.Path(path_type=Path, dir_okay=False), help="A trace of one run for ui.perfetto.dev."
)
@click.option("--steps", help="Only these steps of the Perfetto trace, such as 17 or 10-12.")
@store_option
@json_option
def export(
    runs: tuple[str, ...],
    parquet: Path | None,
    perfetto: Path | None,
    steps: str | None,
    store: Path | None,
    as_json: bool,
) -> None:
    """Write runs for other tools: Parquet files, or a Perfetto trace with the gap beside the operations.

    Example: tracegap export llama-8b/mon --perfetto mon.pftrace --steps 10-12

    Example: tracegap export llama-8b/mon llama-8b/tue --parquet export
    """
    if parquet is None and perfetto is None:
        raise click.UsageError("say where to: --parquet FOLDER or --perfetto FILE")
    if perfetto and len(runs) > 1:
        raise click.UsageError("a Perfetto trace is of one run")
    from tracegap.reports import parquet as folder
    from tracegap.reports import perfetto as trace
    from tracegap.reports import sides

    told: dict[str, object] = {}
    chosen = sides.parted(f"{runs[0]}@steps={steps}")[1].get("steps") if steps else None
    if steps and chosen is None:
        raise click.BadParameter(f"{steps!r} is no step or range such as 10-12", param_hint="--steps")
    with opened(store, read_only=True) as con:
        if parquet:
            told["parquet"] = {"path": str(parquet), "rows": folder.write(con, runs, parquet)}
        if perfetto:
            told["perfetto"] = {"path": str(perfetto), "operations": trace.write(con, runs[0], perfetto, chosen)}
    if as_json:
        dump(told)
    else:
        for name, path in (("Parquet", parquet), ("Perfetto", perfetto)):
            if path:
                click.echo(f"{name}: {path}" + (" (open it at https://ui.perfetto.dev)" if path is perfetto else ""))


@cli.command()
@click.argument("table", required=False)
@json_option
def schema(table: str | None, as_json: bool) -> None:
    """List tables and views of the store, or the columns of one with their units and meaning.

    Example: tracegap schema step_gap
    """
    from tracegap.reports import dictionary, tables

    rows = dictionary.columns(table) if table else dictionary.relations()
    if as_json:
        dump([dict(zip(row._fields, row, strict=True)) for row in rows])
    else:
        show(tables.table(rows[0]._fields, rows))

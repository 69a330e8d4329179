"""HTML pages of runs, of the index, of comparisons and of plans: one file each, complete without a network."""

import functools
import importlib
import json
import os
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import jinja2
import vl_convert
from markupsafe import Markup

from tracegap.reports import history_page, people, plan_page, sections, theme
from tracegap.reports.comparison_page import describe
from tracegap.reports.section import Context, Section
from tracegap.reports.summary import Summary, snapshot, summarize

VEGA_LITE = "6.4"
"""Version of the bundle; Altair writes specifications of the same major version."""


@functools.cache
def section_modules() -> tuple[ModuleType, ...]:
    """The sections, found by walking `reports.sections`, in the order of their `ORDER`."""
    found = [importlib.import_module(f"{sections.__name__}.{m.name}") for m in pkgutil.iter_modules(sections.__path__)]
    return tuple(sorted(found, key=lambda m: int(m.ORDER)))


def build_sections(con: duckdb.DuckDBPyConnection, summary: Summary) -> dict[str, Section]:
    """All sections of a run by the name of their module. The views of the gap must be installed."""
    context = Context(con, summary)
    return {m.__name__.rsplit(".", 1)[1]: m.build(context) for m in section_modules()}


def render_run(con: duckdb.DuckDBPyConnection, run_id: str, out: Path) -> Path:
    """Writes the page of a run and returns its path.

    Raises:
        StoreError: the store has no such run.
    """
    with snapshot(con, run_id=run_id):
        summary = summarize(con, run_id)
        built = build_sections(con, summary)
    return _write(out, "run.html.j2", _specs(built), summary=summary, sections=built)


def render_index(
    con: duckdb.DuckDBPyConnection, out_dir: Path, pages: Mapping[str, str], histories: Mapping[str, str] | None = None
) -> Path:
    """Writes `index.html`: one row a run, newest first; above them the jobs whose history is kept.

    Args:
        con: the store, with the views of the gap.
        out_dir: folder of the index.
        pages: path of each run's page relative to `out_dir`; a run without one is listed without a link.
        histories: path of each job's history likewise.
    """
    rows = con.execute("select run_id from runs order by started_at desc nulls last, run_id").fetchall()
    with snapshot(con, ["step_gap"]):
        runs = [summarize(con, r[0]) for r in rows]
    jobs = [
        history_page.row(job, name, [run for run in runs if run.job == job]) for job, name in (histories or {}).items()
    ]
    return _write(out_dir / "index.html", "index.html.j2", {}, runs=runs, pages=pages, jobs=jobs)


def render_history(con: duckdb.DuckDBPyConnection, job: str, out: Path, pages: Mapping[str, str]) -> Path:
    """Writes the history of a job; `pages` as for `render_index`."""
    with snapshot(con, ["step_gap"]):
        described = history_page.describe(con, job, dict(pages))
    return _write(out, "history.html.j2", **described)


def render_compare(comparison: Any, out: Path) -> Path:
    """Writes the page of a `reports.compare.Comparison` (or of anything whose `as_dict()` has the same keys)."""
    return _write(out, "compare.html.j2", **describe(comparison.as_dict()))


def render_plan(result: dict[str, Any], out: Path) -> Path:
    """Writes the page of an answer of `reports.planning.answer`."""
    described = plan_page.describe(result)
    return _write(out, "plan.html.j2", _specs(described["sections"]), **described)


def _write(out: Path, template: str, charts: Mapping[str, Any], **values: Any) -> Path:
    """Renders a template; the file appears whole or not at all."""
    text = (
        _environment()
        .get_template(template)
        .render(**values, charts=charts, specs=_script_json(charts), bundle=_bundle() if charts else "")
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(out)
    return out


def _specs(named: Mapping[str, Section]) -> dict[str, Any]:
    """Vega-Lite specification of each chart by the id of its place in the page."""
    return {
        chart_id(name, i): theme.finish(figure.chart)
        for name, section in named.items()
        for i, figure in enumerate(section.figures)
        if figure.chart is not None
    }


def chart_id(section: str, number: int) -> str:
    """HTML id of a section's figure."""
    return f"chart-{section}-{number}"


def _script_json(value: Any) -> Markup:
    """JSON that is inert inside a script element: no name from a trace can end the element or open a comment."""
    return Markup(json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))  # noqa: S704


@functools.cache
def _bundle() -> Markup:
    """Vega, Vega-Lite and vega-embed as one script."""
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE)
    return Markup(script.replace("</script", "<\\/script"))  # noqa: S704


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tracegap.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = people.unbroken
    environment.globals.update(people=people, chart_id=chart_id)
    return environment

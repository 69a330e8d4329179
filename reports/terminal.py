"""A run and a comparison on one screen of a terminal: words before numbers."""

import string
from collections.abc import Iterable, Sequence
from typing import Any

import duckdb
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tracegap.reports import people
from tracegap.reports.buckets import Bucket
from tracegap.reports.comparison_words import devices_differ, first_fix, shown, title, verdict_words
from tracegap.reports.summary import Summary, snapshot, summarize

_BAR = 24  # characters of a bar as long as the step
_MOST_PARTS = 10
_MOST_FINDINGS = 3
_MOST_CAUSES = 6
_MOST_CONFIG = 3
_STYLE = {"minimum": "blue", "loss": "yellow", "unknown": "bright_black"}


class _Trimmed:
    """Lines without blanks at their ends, which tables put there."""

    def __init__(self, *parts: RenderableType) -> None:
        self._all = Group(*parts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self._all, options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
            yield from line
            yield Segment.line()


def run_summary(con: duckdb.DuckDBPyConnection, run_id: str) -> RenderableType:
    """What a run's page says first, in 80 columns and 24 lines.

    Raises:
        StoreError: the store has no such run.
    """
    with snapshot(con, ["step_gap"], run_id):
        summary = summarize(con, run_id)
    planned = _planned(con, run_id)
    parts: list[RenderableType] = [_title(summary.title, summary.simulated), Text(summary.opening, style="bold")]
    if summary.step is not None:
        parts += [
            Text(_utilisation(summary)),
            *([Text(planned)] if planned else []),
            Padding(_waterfall(summary), (1, 0, 1, 2)),
            _fixes(summary),
        ]
        parts += [Text(doubt, style="yellow") for doubt in summary.doubts[:1]]
    return _Trimmed(*parts)


def _title(words: str, simulated: bool) -> Text:
    said = Text(words)
    if simulated:
        said.append("  SIMULATED", style="bold yellow")
    return said


def _utilisation(summary: Summary) -> str:
    known = people.percent(summary.step["modelled_share_frac"] if summary.step else None)
    return f"MFU {summary.mfu_text} ({summary.mfu_note}), HFU {summary.hfu_text}; cost known for {known} of compute"


_PLANNED = """
select quantity, axis, measured, predicted
from run_theory
where run_id = ? and unit = 'ns' and measured is not null and predicted is not null
  and quantity in ('step', 'compute', 'communication', 'bubble')
order by list_position(['step', 'compute', 'communication', 'bubble'], quantity), measured desc
"""


def _planned(con: duckdb.DuckDBPyConnection, run_id: str) -> str | None:
    """The step against the plan of its model and mesh; None where there is none."""
    rows = con.execute(_PLANNED, [run_id]).fetchall()
    if not rows or rows[0][0] != "step":
        return None
    parts = [
        f"{quantity}{f' over {axis}' if axis else ''} {people.duration(predicted)} (measured {people.duration(measured)})"
        for quantity, axis, measured, predicted in rows[1:4]
    ]
    return f"the plan of this model and mesh expects {people.duration(rows[0][3])}: {', '.join(parts)}"


def _grid(*justify: str) -> Table:
    grid = Table.grid(padding=(0, 2))
    for i, side in enumerate(justify):
        grid.add_column(justify=side, no_wrap=side == "right" or i == 0)  # type: ignore[arg-type]
    return grid


def _waterfall(summary: Summary) -> Table:
    """The parts that are not zero; the smallest are put together where there are many, so that they still add up."""
    step, wall = summary.step or {}, summary.step_ns or 0
    present = [b for b in summary.buckets if step[b.column]]
    kept = set(sorted(present, key=lambda b: -abs(step[b.column]))[: _MOST_PARTS - (len(present) > _MOST_PARTS)])
    rows: list[tuple[Bucket | None, int]] = [(b, step[b.column]) for b in present if b in kept]
    if len(kept) < len(present):
        rows.append((None, sum(step[b.column] for b in present if b not in kept)))
    grid = _grid("left", "right", "right", "left")
    for bucket, ns in rows:
        style = _STYLE[bucket.group] if bucket else "bright_black"
        bar = Text("█" * round(_BAR * max(ns, 0) / wall) or "▏", style=style) if wall else Text("")
        title = bucket.title if bucket else f"{len(present) - len(kept)} smaller parts"
        grid.add_row(Text(title), people.duration(ns), people.percent(ns / wall if wall else None), bar)
    return grid


def _fixes(summary: Summary) -> RenderableType:
    if not summary.findings:
        return Text("Nothing was found that is worth a person's look.")
    grid = _grid("left", "right", "left")
    for i, finding in enumerate(summary.findings[:_MOST_FINDINGS]):
        saves = "" if finding["saves_ns"] is None else people.duration(finding["saves_ns"])
        what = Text(finding["what"], overflow="ellipsis", no_wrap=i > 0)
        grid.add_row(Text("fix first" if i == 0 else "then", style="bold" if i == 0 else ""), saves, what)
    more = len(summary.findings) - _MOST_FINDINGS
    return Group(grid, Text(f"and {people.plural(more, 'finding')} more", style="bright_black")) if more > 0 else grid


def comparison(compared: Any, *, all_config: bool = False, page: str | None = None) -> RenderableType:
    """A `reports.compare.Comparison` (or anything whose `as_dict()` has the same keys).

    Args:
        compared: the comparison.
        all_config: whether every differing configuration line is shown, not only those that explain a cause.
        page: where its page is, to be named at the end.
    """
    c = compared.as_dict()
    parts: list[RenderableType] = [_title(title(c["after"]), c["before"]["simulated"] or c["after"]["simulated"])]
    parts.append(Text(verdict_words(c), style="bold"))
    differ = devices_differ(c)
    if differ is not None:
        parts.append(Text(differ, style="yellow"))
    grid = _grid("left", "left")
    grid.add_row("step", Text(f"{people.duration(c['before_ns'])} → {people.duration(c['after_ns'])}"))
    note = f" ({c['after']['mfu_note']})" if c["after"].get("mfu_note") else ""
    grid.add_row("MFU", Text(f"{people.percent(c['before']['mfu'])} → {people.percent(c['after']['mfu'])}{note}"))
    grid.add_row("known", Text(f"the cost of {people.percent(c['after']['modelled_share_frac'])} of compute"))
    parts.append(Padding(grid, (1, 0, 1, 2)))
    parts.append(Padding(_causes(c), (0, 0, 1, 2)))
    parts.extend(Text(line) for line in _config(c, all_config))
    fix = first_fix(c)
    if fix is not None:
        parts.append(Text(f"fix first: {fix[0]} saves up to {people.duration(fix[1])} a step", style="bold"))
    if page is not None:
        parts.append(Text(f"page: {page}"))
    return _Trimmed(*parts)


def side_by_side(compared: Sequence[Any]) -> RenderableType:
    """Several comparisons with the same first side: a column a side, each part with its difference from the first."""
    each = [one.as_dict() for one in compared]
    first, letters = each[0]["before"], string.ascii_uppercase
    simulated = first["simulated"] or any(c["after"]["simulated"] for c in each)
    said: list[RenderableType] = [_title(title(first), simulated), Text(f"A  {first['label']}", style="bold")]
    said += [
        Text(f"{letter}  {c['after']['label']}: {verdict_words(c)}", style="bold")
        for letter, c in zip(letters[1:], each, strict=False)
    ]
    grid = _grid("left", *["right"] * (2 * len(each) + 1))
    grid.add_row(
        "", "A", *(cell for letter, _ in zip(letters[1:], each, strict=False) for cell in (letter, f"{letter} − A"))
    )
    steps = (cell for c in each for cell in (people.duration(c["after_ns"]), people.signed_duration(c["delta_ns"])))
    grid.add_row("step", people.duration(each[0]["before_ns"]), *steps)
    for column, ns in first["buckets"].items():
        after = [c["after"]["buckets"][column] for c in each]
        if ns or any(after):
            name = next(
                (c["titles"][column] for c, other in zip(each, after, strict=True) if other), each[0]["titles"][column]
            )
            cells = (
                cell
                for c, other in zip(each, after, strict=True)
                for cell in (people.duration(other), people.signed_duration(c["buckets"][column]))
            )
            grid.add_row(Text(f"  {name}"), people.duration(ns), *cells)
    grid.add_row(
        "MFU", people.percent(first["mfu"]), *(x for c in each for x in (people.percent(c["after"]["mfu"]), ""))
    )
    return _Trimmed(*said, Padding(grid, (1, 0, 0, 0)))


def _causes(c: dict[str, Any]) -> Table:
    titles = c["titles"]
    named = [k for k in c["causes"] if k["bucket"] != "rest"]
    rest = c["delta_ns"] - sum(k["delta_ns"] for k in named[:_MOST_CAUSES])
    grid = _grid("left", "right", "left")
    for cause in named[:_MOST_CAUSES]:
        rank = "" if cause["rank"] is None else f"rank {cause['rank']}"
        what = cause["what"] if rank in cause["what"] else f"{cause['what']} ({rank})"
        grid.add_row(
            Text(titles.get(cause["bucket"], cause["bucket"])), people.signed_duration(cause["delta_ns"]), Text(what)
        )
    grid.add_row(Text(titles["rest"]), people.signed_duration(rest), Text(""))
    return grid


def _config(c: dict[str, Any], all_config: bool) -> Iterable[str]:
    explaining = {key for cause in c["causes"] for key in cause["config"]}
    lines = c["config"] if all_config else [line for line in c["config"] if line["key"] in explaining][:_MOST_CONFIG]
    for line in lines:
        yield f"config  {line['key']}: {shown(line['before'])} → {shown(line['after'])}"
    others = len(c["config"]) - len(lines)
    if others:
        verb = "differs" if others == 1 else "differ"
        yield f"        {people.plural(others, 'other line')} {verb}: run with --config"

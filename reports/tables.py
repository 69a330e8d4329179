"""Plain tables for the terminal."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.table import Table


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table that reads well on a terminal and in a pipe; numbers to the right, None as a dash."""
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(headings))
    cells = [[_text(v) for v in row] for row in rows]
    raw = [list(row) for row in cells]
    for i, heading in enumerate(headings):
        numeric = all(_numeric(row[i]) for row in raw) and bool(raw)
        out.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        out.add_row(*row)
    return out


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    # Names of traces are text, not markup of ours.
    return str(value).replace("[", r"\[")


def _numeric(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).replace("-", "", 1).replace("e+", "", 1).isdigit()

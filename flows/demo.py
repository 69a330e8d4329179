"""The demo: every sample trace, the two simulated jobs compared, and all pages."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tracegap
from tracegap.ingest.pipeline import Ingested
from tracegap.ingest.store import open_store
from tracegap.models.errors import TracegapError

BEFORE, AFTER = "sim_h100_before", "sim_h100_after"
"""Folders of the two jobs that differ by one line of configuration."""


@dataclass(slots=True, kw_only=True)
class Demonstration:
    """What the demo made."""

    index: Path
    pages: dict[str, str]
    ingested: list[Ingested]
    seconds: float
    screen: list[Any] = field(default_factory=list)
    """What to show on the terminal, in order."""

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {"index": str(self.index), "pages": self.pages, "traces": len(self.ingested), "seconds": self.seconds}


def run_demo(out: Path, samples: Path | None, ingest: Callable[..., list[Ingested]]) -> Demonstration:
    """Reads all samples into a store in `out` and writes the pages there.

    Raises:
        TracegapError: the sample traces are not there (they are part of a checkout, not of an installed package).
    """
    began = time.monotonic()
    from tracegap.reports import compare, names, page, terminal

    folder = samples or Path(tracegap.__file__).resolve().parents[2] / "sample_traces"
    if not folder.is_dir():
        raise TracegapError("no sample traces beside this installation; run from a checkout or pass --samples DIR")
    out.mkdir(parents=True, exist_ok=True)
    with open_store(out / "tracegap.duckdb") as con:
        ingested = ingest(con, sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(("_", "."))))
        pages: dict[str, str] = {}
        for run_id in dict.fromkeys(i.run_id for i in ingested if i.run_id):
            name = names.page_name(run_id)
            page.render_run(con, run_id, out / name)
            pages[run_id] = name
        index = page.render_index(con, out, pages)
        screen: list[Any] = []
        sides = [_run_in(ingested, folder / name) for name in (BEFORE, AFTER)]
        if all(sides):
            result = compare.compare(con, *[s for s in sides if s])
            page.render_compare(result, out / "compare.html")
            screen.append(terminal.comparison(result))
    return Demonstration(
        index=index, pages=pages, ingested=ingested, seconds=round(time.monotonic() - began, 2), screen=screen
    )


def _run_in(ingested: list[Ingested], folder: Path) -> str | None:
    """The run whose traces lie in a folder."""
    return next((i.run_id for i in ingested if i.run_id and Path(i.path).parent == folder), None)

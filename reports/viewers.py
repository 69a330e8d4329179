"""Lays out a run's own traces for the viewers that people know."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from tracegap.models.errors import TracegapError


@dataclass(frozen=True, slots=True)
class Laid:
    """A viewer, what it is to open, and the command."""

    viewer: str
    path: str
    command: str

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {"viewer": self.viewer, "path": self.path, "command": self.command}

    def line(self) -> str:
        """For people."""
        return f"{self.viewer}: {self.command}"


def lay_out(con: duckdb.DuckDBPyConnection, run_id: str, out: Path) -> list[Laid]:
    """Makes a folder of links to the traces of a run, in the layout that each viewer expects.

    xprof and TensorBoard write caches beside what they open, so they get links, never the folder of the traces.

    Raises:
        TracegapError: no such run, or its files are gone.
    """
    traces = con.execute("select path, format from traces where run_id = ? order by path", [run_id]).fetchall()
    if not traces:
        raise TracegapError(f"{run_id}: no such run in the store")
    gone = [p for p, _ in traces if not Path(p).exists()]
    if gone:
        raise TracegapError(f"{run_id}: the traces have been moved or removed since: {', '.join(gone)}")
    laid = []
    profile = out / "xprof" / "plugins" / "profile" / run_id.replace("/", "_")
    for path, form in ((Path(p), f) for p, f in traces):
        if form == "xspace":
            _link(profile / path.name, path)
        elif form == "nsys":
            laid.append(Laid("Nsight Systems", str(path), f"nsys-ui {path}"))
        else:
            target = out / "perfetto" / path.name
            _link(target, path)
            laid.append(Laid("Perfetto", str(target), f"open https://ui.perfetto.dev and drop {target} on it"))
    if profile.is_dir():
        laid.insert(0, Laid("xprof", str(out / "xprof"), f"xprof --logdir={out / 'xprof'} --port=8791"))
    return laid


def _link(at: Path, target: Path) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.unlink(missing_ok=True)
    at.symlink_to(target.resolve())

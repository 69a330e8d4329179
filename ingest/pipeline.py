"""From paths to rows: finds trace files, reads each with the reader that knows it, accounts its time, stores it."""

import importlib
import itertools
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb

from tracegap.ingest import files, load, manifest, readers, store
from tracegap.ingest.errors import TraceError, UnknownFormat
from tracegap.ingest.trace import Trace
from tracegap.models.errors import TracegapError

_SAME_RUN_NS = 3600 * 10**9
_IGNORED = {*manifest.NAMES, "truth.json", "SOURCE.md", "expected.json", "case.json"}
_SUFFIXES = (".json", ".gz", ".zst", ".pb", ".sqlite", ".nsys-rep", ".qdrep")
_REPORTS = (".nsys-rep", ".qdrep")
_STRIP = (".gz", ".zst", ".json", ".trace", ".pt", ".pb", ".xplane", ".sqlite", ".nsys-rep", ".qdrep")


@dataclass(slots=True, kw_only=True)
class Ingested:
    """What became of one file."""

    path: str
    status: str
    """ok, partial (something is lost), already (the same content is stored), failed."""
    format: str | None = None
    run_id: str | None = None
    trace_id: str | None = None
    rank: int | None = None
    ops: int = 0
    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    """One line for a person; None where the file is whole."""

    @property
    def sound(self) -> bool:
        """Whether nothing of the file was lost."""
        return self.status in ("ok", "already")


@cache
def all_readers() -> tuple[ModuleType, ...]:
    """The readers, found by walking `ingest.readers`; names that begin with _ are their helpers."""
    names = sorted(m.name for m in pkgutil.iter_modules(readers.__path__) if not m.name.startswith("_"))
    return tuple(importlib.import_module(f"tracegap.ingest.readers.{name}") for name in names)


def read_trace(path: Path) -> Trace:
    """Reads one file with the reader that knows it.

    Raises:
        TraceError: no reader knows it, or it cannot be read.
    """
    head = files.head_of(path)
    for reader in all_readers():
        if reader.sniff(path.name, head):
            trace: Trace = reader.read(path)
            return trace
    known = ", ".join(str(r.NAME) for r in all_readers())
    raise UnknownFormat(str(path), f"not a trace that any reader knows ({known})", code="foreign")


def find_traces(paths: Sequence[Path]) -> Iterator[Path]:
    """Files given by name, and in folders everything that may be a trace, in order of name.

    In a folder, a report of Nsight Systems whose SQLite export lies beside it is left to that: it holds the same data.

    Raises:
        TracegapError: a path does not exist.
    """
    for path in paths:
        if path.is_dir():
            found = sorted(
                p
                for p in path.rglob("*")
                if p.is_file() and p.name not in _IGNORED and p.name.endswith(_SUFFIXES) and not _hidden(p, path)
            )
            exported = {p.parent / plain_stem(p.name) for p in found if ".sqlite" in p.suffixes}
            yield from (p for p in found if not (p.suffix in _REPORTS and p.parent / plain_stem(p.name) in exported))
        elif path.exists():
            yield path
        else:
            raise TracegapError(f"{path}: no such file or folder")


def plain_stem(name: str) -> str:
    """A file name without the endings that say format and compression."""
    while name.endswith(_STRIP):
        name = next(name.removesuffix(s) for s in _STRIP if name.endswith(s))
    return name


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def ingest_paths(
    con: duckdb.DuckDBPyConnection,
    paths: Sequence[Path],
    *,
    run: str | None = None,
    part: str | None = None,
    progress: Callable[[Path], None] = lambda _: None,
) -> list[Ingested]:
    """Ingests files and folders. A file that fails is named in the result; the others are stored all the same.

    Args:
        con: the open store.
        paths: files and folders.
        run: name of the run that all of them belong to; else by manifest, folder or file.
        part: catalogue id of the hardware, before the manifest's and the name in the trace.
        progress: called with each file before it is read.
    """
    results = []
    for path in find_traces(paths):
        progress(path)
        results.append(_ingest_file(con, path, run, part))
    return results


def _ingest_file(con: duckdb.DuckDBPyConnection, path: Path, run: str | None, part: str | None) -> Ingested:
    try:
        sha256 = store.sha256_of(path)
        trace_id = sha256[:16]
        had = con.execute(
            "select run_id, format, rank, diagnostics from traces where trace_id = ? and parser_version = ?",
            [trace_id, load.PARSER_VERSION],
        ).fetchall()
        if had:
            return Ingested(
                path=str(path), status="already", run_id=had[0][0], format=had[0][1], rank=had[0][2], trace_id=trace_id
            )
        described = _manifest_for(path)
        trace = read_trace(path)
        _rank_from_name(trace, path)
    except TraceError as e:
        lost = {"code": e.code, "count": 1, "where": "", "message": e.what}
        return Ingested(path=str(path), status="failed", error=str(e), diagnostics=[lost])
    run_id = run or _run_id(con, path, trace, described)
    with store.transaction(con):
        store.remove_trace(con, trace_id)
        stored = load.store_trace(
            con, trace, trace_id=trace_id, run_id=run_id, path=str(path.resolve()), sha256=sha256, size_bytes=path.stat().st_size,
            described=described, part=part,
        )  # fmt: skip
    lost_rows = [r for r in trace.issues.rows() if r["severity"] != "info"]
    return Ingested(
        path=str(path),
        status="partial" if lost_rows else "ok",
        format=trace.format,
        run_id=run_id,
        trace_id=trace_id,
        rank=trace.rank,
        ops=stored,
        diagnostics=[{k: r[k] for k in ("code", "count", "where", "message")} for r in trace.issues.rows()],
        error="; ".join(f"{path}: {r['message']}" + (f" ({r['where']})" if r["where"] else "") for r in lost_rows)
        or None,
    )


def _rank_from_name(trace: Trace, path: Path) -> None:
    """Takes the rank from a file name that says `rank` and a number, where the trace itself says none; notes it."""
    said = re.search(r"rank[-_.]?(\d+)", path.name, re.IGNORECASE)
    if trace.rank is None and said:
        trace.rank = int(said.group(1))
        trace.issues.add("rank_from_name", f"the trace does not say its rank; the file name says {trace.rank}")


def _manifest_for(path: Path) -> manifest.Manifest | None:
    found = manifest.find(path.parent)
    return manifest.load(found) if found else None


def _run_id(con: duckdb.DuckDBPyConnection, path: Path, trace: Trace, described: manifest.Manifest | None) -> str:
    """The manifest's job and run; else the folder where the trace is one rank of several; else the file.

    Ranks of one job agree on their folder, format and number of ranks, and began within an hour of each other; others get a name
    of their own, so that nothing is put together that does not belong together.
    """
    if described and described.run:
        return f"{described.job}/{described.run}" if described.job else described.run
    folder = path.resolve().parent
    stem = plain_stem(path.name)
    several = (trace.world_size or 1) > 1
    names = [folder.name] if several else [stem, f"{folder.name}/{stem}"]
    for name in itertools.chain(names, (f"{names[-1]}~{n}" for n in itertools.count(2))):
        others = con.execute(
            "select t.path, t.format, r.world_size, t.origin_unix_ns from traces t join runs r using (run_id) where run_id = ?",
            [name],
        ).fetchall()
        near = trace.origin_unix_ns or 0
        if all(
            Path(other) == path.resolve()
            or (several and Path(other).parent == folder and (form, size) == (trace.format, trace.world_size)
                and abs((origin or 0) - near) < _SAME_RUN_NS)
            for other, form, size, origin in others
        ):  # fmt: skip
            break
    return name

"""From paths to rows: finds trace files, reads each with the reader that knows it, accounts its time, stores it."""

import contextlib
import importlib
import itertools
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from types import ModuleType
from typing import Any

import duckdb

from tracegap.ingest import files, load, manifest, readers, sources, store
from tracegap.ingest.archives import is_archive
from tracegap.ingest.errors import InputError, UnknownFormat
from tracegap.ingest.naming import plain_stem
from tracegap.ingest.sources import File, Source
from tracegap.ingest.trace import Trace
from tracegap.ingest.workers import BIG_BYTES, Ahead, reading_ahead

_SAME_RUN_NS = 3600 * 10**9
_PROFILES = ("plugins", "profile")


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


def all_readers() -> Iterator[ModuleType]:
    """The readers, found by walking `ingest.readers` and loaded when asked for; names that begin with _ are helpers."""
    names = sorted(m.name for m in pkgutil.iter_modules(readers.__path__) if not m.name.startswith("_"))
    return (importlib.import_module(f"tracegap.ingest.readers.{name}") for name in names)


def read_trace(path: Path, processes: int = 1) -> Trace:
    """Reads one file with the reader that knows it, which may use so many processes.

    Raises:
        TraceError: no reader knows it, or it cannot be read.
    """
    head = files.head_of(path)
    for reader in all_readers():
        if reader.sniff(path.name, head):
            trace: Trace = reader.read(path, processes)
            return trace
    known = ", ".join(str(r.NAME) for r in all_readers())
    raise UnknownFormat(str(path), f"not a trace that any reader knows ({known})", code="foreign")


def find_traces(paths: Iterable[Path]) -> Iterator[Path]:
    """Files of this machine; see `sources.find`."""
    return itertools.chain.from_iterable(map(sources.find_here, paths))


def ingest_paths(
    con: duckdb.DuckDBPyConnection,
    given: Iterable[str | Source],
    *,
    run: str | None = None,
    part: str | None = None,
    workers: int | None = None,
    progress: Callable[[Any], None] = lambda _: None,
) -> list[Ingested]:
    """Ingests traces from anywhere. A file that fails is named in the result; the others are stored all the same.

    Args:
        con: the open store.
        given: files, archives, folders, patterns and URLs.
        run: name of the run that all of them belong to; else by manifest, folder or file.
        part: catalogue id of the hardware, before the manifest's and the name in the trace.
        workers: processes that read large files of this machine, a file each or all of them one file; as many as it has
            processors unless told.
        progress: called with each `Source` before it is read.

    Raises:
        TracegapError: a path does not exist, what reads a URL is not installed, or no such part.
    """
    found: list[Source | Ingested] = []
    for item in given:
        try:
            found += sources.find([item])
        except InputError as e:
            found.append(_failed(e.path, e, str(e)))
    results = []
    ahead_of_it = reading_ahead(_large(con, found, run, part), _read_with_rank, workers)
    with ahead_of_it as ahead, store.memory_limit(con, store.LOADING_MEMORY):
        for source in found:
            if isinstance(source, Ingested):
                results.append(source)
                continue
            progress(source)
            with contextlib.closing(sources.files_of(source)) as files_of_it:
                results += [_ingest_file(con, file, run, part, ahead) for file in files_of_it]
    return results


def _large(
    con: duckdb.DuckDBPyConnection, found: Iterable[Source | Ingested], run: str | None, part: str | None
) -> dict[Path, str]:
    """Large files of this machine that are not stored yet, with their trace ids; none where there is only one."""
    big = [path for path in found if isinstance(path, Path) and path.is_file()]
    big = [path for path in big if path.stat().st_size >= BIG_BYTES and not is_archive(path)]
    large: dict[Path, str] = {}
    for path in big if len(big) > 1 else ():
        trace_id = store.sha256_of(path)[:16]
        with contextlib.suppress(InputError):  # of its manifest, which is told when the file's turn comes
            if trace_id not in large.values() and not _stored(con, trace_id, path, run, part):
                large[path] = trace_id
    return large


def _remove_cut(con: duckdb.DuckDBPyConnection, file: File, trace_id: str) -> None:
    """Removes what an earlier delivery of the same path left that was not whole: it is whole now, or less cut."""
    earlier = con.execute(
        "select trace_id from traces where path = ? and status = 'partial' and trace_id <> ?", [file.stored, trace_id]
    ).fetchall()
    for (cut,) in earlier:
        store.remove_trace(con, cut)


def _stored(
    con: duckdb.DuckDBPyConnection, trace_id: str, path: Path, run: str | None, part: str | None
) -> list[tuple[Any, ...]]:
    """Run, format and rank of a trace that is stored as it would be now; none where it is to be read.

    It is read again when the reader is a newer one, when its manifest was added or changed (which names parts, runs and
    configuration), or when the run or part that is named by hand is another.
    """
    described = _manifest_for(path)
    return con.execute(
        """
        select run_id, format, rank from traces t
        where trace_id = $id and parser_version = $version and manifest_sha256 is not distinct from $manifest
          and ($run is null or run_id = $run)
          and ($part is null or not exists (
              select 1 from devices d where d.trace_id = t.trace_id and d.hardware is distinct from $part))
        """,
        {
            "id": trace_id, "version": load.PARSER_VERSION, "manifest": described.sha256 if described else None,
            "run": run, "part": part,
        },
    ).fetchall()  # fmt: skip


def _failed(shown: str, e: InputError, said: str) -> Ingested:
    lost = {"code": e.code, "count": 1, "where": "", "message": e.what}
    return Ingested(path=shown, status="failed", error=said, diagnostics=[lost])


def _ingest_file(
    con: duckdb.DuckDBPyConnection, file: File, run: str | None, part: str | None, ahead: Ahead
) -> Ingested:
    try:
        if file.error:
            raise file.error
        sha256 = store.sha256_of(file.path)
        trace_id = sha256[:16]
        if had := _stored(con, trace_id, file.path, run, part):
            run_id, form, rank = had[0]
            return Ingested(path=file.shown, status="already", run_id=run_id, format=form, rank=rank, trace_id=trace_id)
        described = _manifest_for(file.path)
        apart = ahead.of(file.path)
        trace = apart.trace if apart else _read_with_rank(file.path, ahead.spare)
        run_id = run or _run_id(con, file, trace, described)
        with store.transaction(con):  # the trace may still be read meanwhile, and refused
            store.remove_trace(con, trace_id)
            _remove_cut(con, file, trace_id)
            stored = load.store_trace(
                con, trace, trace_id=trace_id, run_id=run_id, path=file.stored, sha256=sha256,
                size_bytes=files.size_of(file.path), described=described, part=part,
                put=apart.put if apart else None,
            )  # fmt: skip
            store.remove_empty_runs(con)
    except InputError as e:
        return _failed(file.shown, e, file.told(str(e)))
    lost_rows = [r for r in trace.issues.rows() if r["severity"] != "info"]
    return Ingested(
        path=file.shown,
        status="partial" if lost_rows else "ok",
        format=trace.format,
        run_id=run_id,
        trace_id=trace_id,
        rank=trace.rank,
        ops=stored,
        diagnostics=[{k: r[k] for k in ("code", "count", "where", "message")} for r in trace.issues.rows()],
        error="; ".join(f"{file.shown}: {r['message']}" + (f" ({r['where']})" if r["where"] else "") for r in lost_rows)
        or None,
    )


def _read_with_rank(path: Path, processes: int = 1) -> Trace:
    """Reads a file; where it does not say its rank, takes that from a name with `rank` and a number, and notes it."""
    trace = read_trace(path, processes)
    said = re.search(r"rank[-_.]?(\d+)", path.name, re.IGNORECASE)
    if trace.rank is None and said:
        trace.rank = int(said.group(1))
        trace.issues.add("rank_from_name", f"the trace does not say its rank; the file name says {trace.rank}")
    return trace


def _manifest_for(path: Path) -> manifest.Manifest | None:
    found = manifest.find(path.parent)
    return manifest.load(found) if found else None


def _described_run(con: duckdb.DuckDBPyConnection, folder: PurePath, trace: Trace, name: str) -> str:
    """The run that a manifest names; with a number where another folder has brought the same rank of it already.

    Two deliveries that call themselves the same are two runs: put together, they would hide what changed between them.
    """
    for candidate in itertools.chain([name], (f"{name}~{n}" for n in itertools.count(2))):
        others = con.execute("select path, rank, host from traces where run_id = ?", [candidate]).fetchall()
        same = (trace.rank, trace.host)
        if all(PurePosixPath(path).parent == folder or (rank, host) != same for path, rank, host in others):
            break
    return candidate


def _run_id(con: duckdb.DuckDBPyConnection, file: File, trace: Trace, described: manifest.Manifest | None) -> str:
    """The manifest's job and run; else the folder where the trace is one rank of several; else the file.

    Ranks of one job agree on their folder, format and number of ranks, and began within an hour of each other; others get
    a name of their own, so that nothing is put together that does not belong together. Where no number of ranks is known,
    traces with communication and different ranks are taken for those of one job. The files of a profile folder
    (`plugins/profile/<session>/`) are those of the hosts that were profiled together.
    """
    folder = file.place.parent
    if described and described.run:
        return _described_run(
            con, folder, trace, f"{described.job}/{described.run}" if described.job else described.run
        )
    stem = plain_stem(file.place.name)
    guessed = trace.world_size is None and trace.rank is not None and len(trace.collectives) > 0
    hosts = folder.parts[-3:-1] == _PROFILES
    several = hosts or guessed or (trace.world_size or 1) > 1
    names = [file.folder_name] if several else [stem, f"{file.folder_name}/{stem}"]
    for name in itertools.chain(names, (f"{names[-1]}~{n}" for n in itertools.count(2))):
        others = con.execute(
            "select t.path, t.format, r.world_size, t.origin_unix_ns, t.rank from traces t join runs r using (run_id) "
            "where run_id = ?",
            [name],
        ).fetchall()
        near = trace.origin_unix_ns or 0
        if all(
            other == file.stored
            or (several and PurePosixPath(other).parent == folder and (form, size) == (trace.format, trace.world_size)
                and abs((origin or 0) - near) < _SAME_RUN_NS and not (guessed and rank == trace.rank))
            for other, form, size, origin, rank in others
        ):  # fmt: skip
            break
    return name

"""Traces read and accounted in other processes, a process a file, while one process keeps the store.

DuckDB lets one process write. The others leave their rows in files of a temporary folder, and the writer takes them
from there in the order of the files given, so that the store is the same whatever the number of processes.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tracegap.ingest import load
from tracegap.ingest.errors import InputError
from tracegap.ingest.trace import HOST_EVENTS, OPS, Trace

BIG_BYTES = 2 << 20
"""Files below are read where they are asked for: a process takes longer to start."""

Same = dict[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Apart:
    """A trace that another process read: what it says of itself, and where its rows lie."""

    trace: Trace
    """Without operations and host events."""
    frames: list[tuple[str, Path, Same]]
    """Table, file and the columns that are the same in all rows."""
    operations: int

    def put(self, out: load.Sink, run_id: str) -> int:
        """Hands the rows on as those of a run; the number of operations. The files are gone afterwards."""
        for table, file, same in self.frames:
            out.add(table, pl.read_ipc(file), **same | {"run_id": run_id} if "run_id" in same else same)
            file.unlink()
        return self.operations


@dataclass(frozen=True, slots=True)
class _Failure:
    """An `InputError` on its way between processes."""

    path: str
    what: str
    code: str
    todo: str


class Ahead:
    """Files that are being read ahead."""

    def __init__(self, running: Mapping[Path, Future[Apart | _Failure]], spare: int = 1) -> None:
        """Of the files that were submitted."""
        self._running = running
        self.spare = spare
        """Processes that a file which is not read ahead may be read with."""

    def of(self, path: Path) -> Apart | None:
        """A file's rows, waited for; None where it is not read ahead.

        Raises:
            InputError: it cannot be read.
        """
        if path not in self._running:
            return None
        result = self._running[path].result()
        if isinstance(result, _Failure):
            raise InputError(result.path, result.what, code=result.code, todo=result.todo)
        return result


@contextlib.contextmanager
def reading_ahead(
    files: Mapping[Path, str], read: Callable[[Path], Trace], processes: int | None = None
) -> Iterator[Ahead]:
    """Reads files in other processes.

    Args:
        files: the files, each with the id of its trace.
        read: reads one; a function of a module.
        processes: how many at once; as many as there are processors unless told. With one, or for one file, nothing is
            read ahead.
    """
    processes = processes or _processors()
    if min(processes, len(files)) < 2:
        yield Ahead({}, spare=processes)
        return
    with tempfile.TemporaryDirectory(prefix="tracegap-") as folder:
        # A fork would take the locks of the threads of polars and DuckDB with it.
        pool = ProcessPoolExecutor(min(processes, len(files)), mp_context=multiprocessing.get_context("spawn"))
        try:
            yield Ahead(
                {file: pool.submit(_read, read, file, trace_id, Path(folder)) for file, trace_id in files.items()}
            )
        finally:
            pool.shutdown(cancel_futures=True)


def _processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read(read: Callable[[Path], Trace], file: Path, trace_id: str, folder: Path) -> Apart | _Failure:
    """Runs in another process."""
    files = _Files(folder / trace_id)
    try:
        trace = read(file)
        operations = load.put_tables(files, trace, trace_id, run_id="")
    except InputError as e:
        return _Failure(e.path, e.what, e.code, e.todo)
    told = dataclasses.replace(
        trace,
        ops=pl.DataFrame(schema=OPS),
        host_events=pl.DataFrame(schema=HOST_EVENTS),
        further_ops=iter(()),
        further_host_events=iter(()),
    )
    return Apart(told, files.frames, operations)


class _Files:
    """Takes rows into files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.frames: list[tuple[str, Path, Same]] = []
        folder.mkdir()

    def add(self, table: str, frame: pl.DataFrame, **same: str | int | None) -> None:
        """As `Sink` has it."""
        file = self._folder / f"{len(self.frames)}.arrow"
        frame.write_ipc(file)
        self.frames.append((table, file, same))

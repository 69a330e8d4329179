"""Traces read and accounted by several processes, while one of them keeps the store.

DuckDB lets one process write. The others leave their rows in files of a temporary folder, and the writer takes them from
there in the order of the files given, so that the store is the same whatever the number of processes. It reads a file
itself whenever the next one to be stored is not there yet.
"""

import contextlib
import dataclasses
import pickle
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from tracegap.ingest import load
from tracegap.ingest.errors import InputError
from tracegap.ingest.forms import Splitter
from tracegap.ingest.processes import processors, running
from tracegap.ingest.schema import SPLITS
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


@dataclass(slots=True)
class Ahead:
    """Files that are being read ahead."""

    spare: int = 1
    """Processes that a file which is not read ahead may be read with."""
    _left: deque[Path] = field(default_factory=deque)
    _read: Callable[[Path], Apart | _Failure] | None = None
    _done: dict[Path, Apart | _Failure | None] = field(default_factory=dict)
    _taken: set[Path] = field(default_factory=set)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def of(self, path: Path) -> Apart | None:
        """A file's rows, waited for; None where it is not read ahead, or the process that read it died.

        Raises:
            InputError: it cannot be read.
        """
        while True:
            with self._changed:
                while path in self._taken and path not in self._done and not self._left:
                    self._changed.wait()
                if path in self._done:
                    break
                if path not in self._taken:
                    with contextlib.suppress(ValueError):
                        self._left.remove(path)
                    return None
            if (other := self.take()) and self._read:
                self.give(other, self._read(other))
        result = self._done.pop(path)
        if isinstance(result, _Failure):
            raise InputError(result.path, result.what, code=result.code, todo=result.todo)
        return result

    def take(self) -> Path | None:
        """The next file that nobody reads yet; whoever takes it must give its rows."""
        with self._changed:
            if not self._left:
                return None
            path = self._left.popleft()
            self._taken.add(path)
            return path

    def give(self, path: Path, result: Apart | _Failure | None) -> None:
        """What became of a file; None where nobody knows."""
        with self._changed:
            self._done[path] = result
            self._changed.notify_all()


@contextlib.contextmanager
def reading_ahead(
    files: Mapping[Path, str], read: Callable[[Path], Trace], processes: int | None = None
) -> Iterator[Ahead]:
    """Reads files in other processes and, when it would have to wait, in this one.

    Args:
        files: the files, each with the id of its trace.
        read: reads one; a function of a module.
        processes: how many, this one among them; as many as there are processors unless told. With one, or for one file,
            nothing is read ahead.
    """
    processes = processes or processors()
    others = min(processes, len(files)) - 1
    if others < 1:
        yield Ahead(spare=processes)
        return
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with tempfile.TemporaryDirectory(prefix="tracegap-") as name, running([[__name__]] * others, **pipes) as workers:
        folder = Path(name)
        ahead = Ahead(_left=deque(files), _read=lambda file: _read(read, file, files[file], folder))
        threads = [threading.Thread(target=_feed, args=(w, ahead, read, files, folder), daemon=True) for w in workers]
        for thread in threads:
            thread.start()
        try:
            yield ahead
        finally:
            while ahead.take():
                pass
            for worker in workers:
                worker.kill()
            for thread in threads:
                thread.join()


def _feed(
    worker: "subprocess.Popen[bytes]",
    ahead: Ahead,
    read: Callable[[Path], Trace],
    files: Mapping[Path, str],
    folder: Path,
) -> None:
    """Gives files to a process, one after the other."""
    alive = True
    while alive and (path := ahead.take()):
        result = None
        try:
            _send(worker.stdin, (read, path, files[path], folder))
            result = pickle.load(worker.stdout)  # type: ignore[arg-type]  # noqa: S301 (of our own process)
        except (OSError, EOFError, pickle.UnpicklingError):  # it died: the file is read again here, and that tells why
            alive = False
        ahead.give(path, result)


def _send(stream: Any, message: object) -> None:
    pickle.dump(message, stream)
    stream.flush()


def main() -> None:
    """One of the other processes: reads what it is told until there is no more."""
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    with contextlib.suppress(EOFError):
        while True:
            _send(answers, _read(*pickle.load(sys.stdin.buffer)))  # noqa: S301 (of our own process)


def _read(read: Callable[[Path], Trace], file: Path, trace_id: str, folder: Path) -> Apart | _Failure:
    """Reads a file; its rows lie in files of `folder` then."""
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
        self._splitter = Splitter()
        self.frames: list[tuple[str, Path, Same]] = []
        folder.mkdir()

    def add(self, table: str, frame: pl.DataFrame, **same: str | int | None) -> None:
        """As `Sink` has it."""
        if table not in SPLITS:
            self._write(table, frame, same)
        elif len(frame):
            for name, part in self._splitter.parts(table, frame, same):
                self._write(name, part, {})

    def _write(self, table: str, frame: pl.DataFrame, same: Same) -> None:
        file = self._folder / f"{len(self.frames)}.arrow"
        frame.write_ipc(file)
        self.frames.append((table, file, same))


if __name__ == "__main__":
    from tracegap.ingest import workers  # what is sent must be of the module's classes, not of this copy's

    workers.main()

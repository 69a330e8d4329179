"""Host spans of one file on their way: numbers in chunks, on disk when there are many of them."""

import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

IN_MEMORY_BYTES = 1 << 22
"""So much of a spool is kept in memory before it goes to disk."""

CHUNK_ROWS = 122_880
"""Rows of a chunk of many: so many the store compresses together."""

SPAN = np.dtype(
    [
        ("order", np.int64),  # event number
        ("start", np.int64),
        ("dur", np.int64),
        ("corr", np.int64),
        ("ext", np.int64),
        ("seq", np.int64),
        ("covered", np.int64),  # ns that children cover, as far as they are nested
        ("label", np.int32),
        ("thread", np.int32),
        ("inputs", np.int32),
        ("role", np.int8),
        ("has_start", np.bool_),
        ("old", np.bool_),  # nested before: it only waits for its end
    ],
    align=True,
)
"""A span of a host thread."""

DONE = np.dtype(
    [(name, np.int64) for name in ("order", "start", "dur", "own", "parent", "corr")]
    + [("label", np.int32), ("thread", np.int32)]
)
"""A nested span: own time in ns, event number of its parent."""


class Spool:
    """Chunks of rows of one type, kept in the order in which they come."""

    def __init__(self, dtype: np.dtype[Any], path: Path | None = None) -> None:
        """In memory and then in a temporary file, or in the file `path`, from where another process can read it."""
        self.dtype = dtype
        self.rows = 0
        self._path = path
        self._chunks: list[tuple[int, int]] = []  # place in the file and number of rows
        self._open()

    def _open(self) -> None:
        self._file: Any = (
            self._path.open("a+b") if self._path else tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, prefix="tracegap-")  # noqa: SIM115 (see below)
        )
        weakref.finalize(self, self._file.close)

    def __getstate__(self) -> dict[str, Any]:
        """For another process, that finds the rows in the file."""
        self._file.flush()
        return {name: value for name, value in vars(self).items() if name != "_file"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self._chunks)

    def add(self, chunk: NDArray[Any]) -> None:
        """Appends a chunk."""
        self._chunks.append((self._file.seek(0, 2), len(chunk)))
        self._file.write(chunk.tobytes())
        self.rows += len(chunk)

    def read(self, i: int) -> NDArray[Any]:
        """Chunk `i`; it can be changed."""
        place, rows = self._chunks[i]
        self._file.seek(place)
        return np.frombuffer(bytearray(self._file.read(rows * self.dtype.itemsize)), self.dtype)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """All chunks in turn."""
        return (self.read(i) for i in range(len(self)))


class Joined:
    """Spools of host spans one after the other, their chunks translated when they are read."""

    def __init__(self, parts: list[tuple["Spool | Joined", Callable[[NDArray[Any]], None]]]) -> None:
        """Each spool with what changes a chunk of it in place."""
        self._chunks = [(spool, i, change) for spool, change in parts for i in range(len(spool))]
        self._further = Spool(SPAN)

    def add(self, chunk: NDArray[Any]) -> None:
        """Appends a chunk, as it is."""
        self._further.add(chunk)
        self._chunks.append((self._further, len(self._further) - 1, lambda _: None))

    def __len__(self) -> int:
        """Number of chunks."""
        return len(self._chunks)

    def read(self, i: int) -> NDArray[Any]:
        """Chunk `i`; it can be changed."""
        spool, place, change = self._chunks[i]
        chunk = spool.read(place)
        change(chunk)
        return chunk

    def __iter__(self) -> Iterator[NDArray[Any]]:
        """All chunks in turn."""
        return (self.read(i) for i in range(len(self)))


def together(chunks: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Rows in chunks of `CHUNK_ROWS`; the last is smaller."""
    waiting: list[NDArray[Any]] = []
    rows = 0
    for chunk in chunks:
        waiting.append(chunk)
        rows += len(chunk)
        while rows >= CHUNK_ROWS:
            rows -= CHUNK_ROWS
            cut = len(waiting[-1]) - rows
            yield np.concatenate([*waiting[:-1], waiting[-1][:cut]])
            waiting = [waiting[-1][cut:]]
    if rows:
        yield np.concatenate(waiting)

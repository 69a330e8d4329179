"""Host events on their way to the store: in memory while they are few, in Parquet files on disk when they are many.

A trace of gigabytes has tens of millions of host spans. Nothing but the store needs them all at once, so a reader may hand
them over in batches and forget them.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import polars as pl

from tracegap.ingest.trace import HOST_EVENTS

_ROWS_IN_MEMORY = 200_000
WAITS = ("input", "sync")
"""Kinds that the account of idle time needs."""


class Spool:
    """Collects frames of `HOST_EVENTS`; use it in a `with`, which removes its files."""

    def __init__(self) -> None:
        self._held: list[pl.DataFrame] = []
        self._waits: list[pl.DataFrame] = []
        self._files: list[Path] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._held_rows = 0
        self.rows = 0
        """Rows written so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def write(self, events: pl.DataFrame) -> None:
        """Takes a batch; its columns are those of HOST_EVENTS."""
        events = events.select(list(HOST_EVENTS))
        self._held.append(events)
        self._waits.append(events.filter(pl.col("kind").is_in(WAITS)))
        self.rows += len(events)
        self._held_rows += len(events)
        if self._held_rows > _ROWS_IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="tracegap-")
        file = Path(self._folder.name) / f"{len(self._files)}.parquet"
        pl.concat(self._held).write_parquet(file, compression="lz4")
        self._files.append(file)
        self._held, self._held_rows = [], 0

    def frames(self) -> Iterator[pl.DataFrame]:
        """All events, in batches, in the order in which they were written."""
        for file in self._files:
            yield pl.read_parquet(file)
        yield from self._held

    def waits(self) -> pl.DataFrame:
        """The spans in which a host thread waits: kinds input and sync."""
        return pl.concat(self._waits) if self._waits else pl.DataFrame(schema=HOST_EVENTS)

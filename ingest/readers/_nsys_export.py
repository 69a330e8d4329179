"""What the Nsight Systems reader asks of an export, whichever kind of file its tables lie in."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import polars as pl

Schema = Mapping[str, pl.DataType | type[pl.DataType]]
Made = TypeVar("Made")

ROW = "row_id"
"""Column by which `pick` finds a row again."""
BATCH_ROWS = 1 << 16
MARKS = {"StringIds", "EXPORT_META_DATA", "META_DATA_EXPORT"}
"""Tables of which an export has at least one (the oldest have no metadata, cut ones may have no names)."""


class Export(ABC):
    """The tables of an export, open for reading. Empty texts count as missing ones."""

    columns: dict[str, list[str]]
    """Columns of each table."""
    damaged: dict[str, str]
    """Tables that are there and cannot be read, and why."""

    @abstractmethod
    def close(self) -> None:
        """Ends the reading."""

    @abstractmethod
    def count(self, table: str) -> int:
        """Rows of a table; 0 where there is none."""

    @abstractmethod
    def pick(self, table: str, columns: Schema, rows: list[int]) -> pl.DataFrame:
        """ROW and the wanted columns of the rows with these numbers, in order."""

    @abstractmethod
    def _batches(
        self, table: str, columns: Schema, prepare: Callable[[pl.DataFrame], Made], *, numbered: bool
    ) -> Iterator[Made]:
        """As `batches`, of columns that are there."""

    def batches(
        self, table: str, columns: Schema, prepare: Callable[[pl.DataFrame], Made], *, numbered: bool = False
    ) -> Iterator[Made]:
        """What `prepare` makes of the table's rows, some BATCH_ROWS at a time, in order; it may run in several threads.

        Columns that the table lacks are null; without the table there are no batches. `numbered` adds ROW.

        Raises:
            TraceError: truncated, malformed.

        """
        there = {c: t for c, t in columns.items() if c in self.columns.get(table, ())}
        shape = [pl.col(c) if c in there else pl.lit(None, dtype=t).alias(c) for c, t in columns.items()]
        shape += [pl.col(ROW)] if numbered else []
        if there:
            yield from self._batches(table, there, lambda f: prepare(f.select(shape)), numbered=numbered)

    def read(self, table: str, columns: Schema) -> pl.DataFrame:
        """The wanted columns of all rows in the file's order. Missing ones are as for `batches`."""
        frames = list(self.batches(table, columns, lambda f: f))
        return pl.concat(frames) if frames else pl.DataFrame(schema=dict(columns))


def tidy(frame: pl.DataFrame) -> pl.DataFrame:
    """Empty texts become null."""
    texts = [c for c, t in frame.schema.items() if t == pl.String]
    return frame.with_columns(pl.when(pl.col(c) != "").then(c).alias(c) for c in texts)

"""Rows of a SQLite table as columns, decoded from the pages of the file with numpy: three times as fast as by SQLite.

It follows https://www.sqlite.org/fileformat2.html and takes what exports consist of: tables with row numbers, of numbers
and UTF-8 texts, in sound pages. Of anything else it says so, and SQLite itself reads or refuses it.
"""

import threading
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracegap.ingest.readers._nsys_export import ROW, Schema
from tracegap.ingest.readers._nsys_records import Block, Ints, Unfit, column_of, fields_of, number_at, varint_at

_PAGE_BYTES = {1 << n for n in range(9, 17)}
_INTERIOR, _LEAF = 5, 13  # kinds of pages of a table with row numbers
_SPREAD = 1.5  # pages between those of a table are read too, to this many times the table's
_DEEPEST = 20  # levels of a tree: more are no tree
_PART_BYTES = 3 << 20  # with what is made of them they fit the cache: larger parts were slower
_BEYOND = 1024  # bytes behind the last page, where a damaged record may point before that is noticed
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Part:
    """Some leaf pages of a table, in order; their rows have numbers above `low`, up to `high`."""

    pages: Ints
    low: int
    high: int

    @property
    def where(self) -> str:
        """The condition for the same rows in SQL."""
        return f"WHERE rowid > {self.low} AND rowid <= {self.high}"


class Pages:
    """A database file, open for reading; may be used by several threads."""

    def __init__(self, path: Path) -> None:
        """Opens a file that is known to be a database."""
        self._file: RawIOBase = path.open("rb", buffering=0)
        self._one_at_a_time = threading.Lock()
        header = self._file.read(100)
        self._bytes = 65536 if header[16:18] == b"\0\1" else int.from_bytes(header[16:18], "big")
        self._usable = self._bytes - header[20]
        self._is_utf8 = int.from_bytes(header[56:60], "big") == 1
        self._count = path.stat().st_size // max(self._bytes, 1)

    def close(self) -> None:
        """Ends the reading."""
        self._file.close()

    def parts(self, root: int) -> list[Part]:
        """The table whose tree has its root on this page, in parts of some _PART_BYTES.

        Raises:
            Unfit: it is another kind of table, or damaged.

        """
        if not self._is_utf8 or self._bytes not in _PAGE_BYTES:
            raise Unfit
        pages, highest = np.array([root]), np.array([_HIGHEST])
        for _ in range(_DEEPEST):
            if self._read(pages[:1]).of_kind(_LEAF):  # all leaves are on one level
                break
            pages, highest = self._children(self._read(pages), highest)
        else:
            raise Unfit
        step = max(_PART_BYTES // self._bytes, 1)
        highs = [int(h) for h in (*highest[step - 1 : -1 : step], highest[-1])]
        lows = [_LOWEST, *highs[:-1]]
        return [
            Part(pages[step * i : step * (i + 1)], low, high)
            for i, (low, high) in enumerate(zip(lows, highs, strict=True))
        ]

    def _read(self, pages: Ints) -> Block:
        """Some pages, with what lies between them where that is little."""
        first, last = int(pages.min()), int(pages.max())
        if first < 2 or last > self._count:
            raise Unfit
        if last - first < _SPREAD * len(pages):
            runs, at = [(first, last + 1)], (pages - first) * self._bytes
        else:
            runs, at = [(n, n + 1) for n in pages.tolist()], np.arange(len(pages)) * self._bytes
        read = []
        with self._one_at_a_time:
            try:
                for begin, end in runs:
                    self._file.seek((begin - 1) * self._bytes)
                    beyond = _BEYOND if len(runs) == 1 else 0
                    read.append(self._file.read((end - begin) * self._bytes + beyond) or b"")
            except OSError as e:
                raise Unfit from e
        block = read[0] if len(runs) == 1 else b"".join(read)
        least = self._bytes * sum(end - begin for begin, end in runs)
        if len(block) < least:
            raise Unfit
        if len(block) < least + _BEYOND:
            block += bytes(_BEYOND)
        return Block(block, np.frombuffer(block, np.uint8), at)

    def _cells(self, block: Block, header: int) -> tuple[Ints, Ints]:
        """Where the cells of pages are in their block, and how many each page has."""
        count = number_at(block.bytes, block.at + 3, 2)
        if (header + 2 * count > self._usable).any():
            raise Unfit
        of_page = np.repeat(block.at, count)
        within = np.arange(len(of_page)) - np.repeat(np.cumsum(count) - count, count)
        at = number_at(block.bytes, of_page + header + 2 * within, 2)
        if ((at < header) | (at >= self._usable)).any():
            raise Unfit
        return of_page + at, count

    def _children(self, block: Block, highest: Ints) -> tuple[Ints, Ints]:
        """Pages below interior ones, and the highest row number below each."""
        if not block.of_kind(_INTERIOR):
            raise Unfit
        cells, count = self._cells(block, 12)
        keys, _ = varint_at(block.bytes, cells + 4)
        last = np.cumsum(count)
        children = np.insert(number_at(block.bytes, cells, 4), last, number_at(block.bytes, block.at + 8, 4))
        keys = np.insert(keys, last, highest)
        if (np.diff(keys) <= 0).any() or len(children) > self._count:
            raise Unfit
        return children, keys

    def fetch(self, part: Part, columns: Schema, places: dict[str, int]) -> tuple[pl.DataFrame, list[int]]:
        """The columns and ROW of the rows of a part, and the numbers of rows left out: they go over several pages.

        `places` are the columns' numbers in the table, less than 0 (~number) for one that stands for the row's number.
        Empty texts are null.

        Raises:
            Unfit: something does not fit its column's type, or is damaged.

        """
        block = self._read(part.pages)
        if not block.of_kind(_LEAF):
            raise Unfit
        start, _ = self._cells(block, 8)
        payload, at = varint_at(block.bytes, start)
        rows, at = varint_at(block.bytes, at)
        if len(rows) and (rows[0] <= part.low or rows[-1] > part.high or (np.diff(rows) <= 0).any()):
            raise Unfit
        whole = payload <= self._usable - 35
        further = rows[~whole].tolist()
        if further:
            start, rows, at, payload = start[whole], rows[whole], at[whole], payload[whole]
        if (start % self._bytes + (at - start) + payload > self._usable).any():
            raise Unfit
        numbers = {c: n if n >= 0 else ~n for c, n in places.items()}
        fields = fields_of(block.bytes, at, at + payload, max(numbers.values()) + 1)
        made: dict[str, Any] = {}
        for name, dtype in columns.items():
            kind, where = fields[numbers[name]]
            if places[name] < 0 and kind.any():
                raise Unfit
            made[name] = column_of(block, kind, where, dtype) if places[name] >= 0 else rows
        return pl.DataFrame({**made, ROW: rows}), further

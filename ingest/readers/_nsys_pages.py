"""Rows of a SQLite table as columns, decoded from the pages of the file with numpy: three times as fast as by SQLite.

It follows https://www.sqlite.org/fileformat2.html and takes what exports consist of: tables with row numbers, of integers
and UTF-8 texts, in sound pages. Of anything else it says so, and SQLite itself reads or refuses it.
"""

import threading
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.readers._nsys_export import ROW, Schema

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_PAGE_BYTES = {1 << n for n in range(9, 17)}
_INTERIOR, _LEAF = 5, 13  # kinds of pages of a table with row numbers
_SPREAD = 1.5  # pages between those of a table are read too, to this many times the table's
_DEEPEST = 20  # levels of a tree: more are no tree
_PART_BYTES = 3 << 20  # with what is made of them they fit the cache: larger parts were slower
_BEYOND = 1024  # bytes behind the last page, where a damaged record may point before that is noticed
_MOST_COLUMNS = 100  # so that a record's header has a length of one byte
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
_FLOAT = 7  # the serial type of floats
_TEXT = 13  # the first of the serial types of texts, which are odd

_WIDTH = np.zeros(1 << 14, np.int64)
"""Bytes of a value by its serial type."""
_WIDTH[1:8] = [1, 2, 3, 4, 6, 8, 8]
_WIDTH[12:] = (np.arange(12, 1 << 14) - 12) // 2


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


class Unfit(Exception):
    """A table or part of it that only SQLite can read, or refuse."""


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

    def _read(self, pages: Ints) -> "_Block":
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
            for begin, end in runs:
                self._file.seek((begin - 1) * self._bytes)
                read.append(self._file.read((end - begin) * self._bytes + (_BEYOND if len(runs) == 1 else 0)) or b"")
        block = read[0] if len(runs) == 1 else b"".join(read)
        least = self._bytes * sum(end - begin for begin, end in runs)
        if len(block) < least:
            raise Unfit
        if len(block) < least + _BEYOND:
            block += bytes(_BEYOND)
        return _Block(block, np.frombuffer(block, np.uint8), at)

    def _cells(self, block: "_Block", header: int) -> tuple[Ints, Ints]:
        """Where the cells of pages are in their block, and how many each page has."""
        count = _number(block.bytes, block.at + 3, 2)
        if (header + 2 * count > self._usable).any():
            raise Unfit
        of_page = np.repeat(block.at, count)
        within = np.arange(len(of_page)) - np.repeat(np.cumsum(count) - count, count)
        at = _number(block.bytes, of_page + header + 2 * within, 2)
        if ((at < header) | (at >= self._usable)).any():
            raise Unfit
        return of_page + at, count

    def _children(self, block: "_Block", highest: Ints) -> tuple[Ints, Ints]:
        """Pages below interior ones, and the highest row number below each."""
        if not block.of_kind(_INTERIOR):
            raise Unfit
        cells, count = self._cells(block, 12)
        keys, _ = _varint(block.bytes, cells + 4)
        last = np.cumsum(count)
        children = np.insert(_number(block.bytes, cells, 4), last, _number(block.bytes, block.at + 8, 4))
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
        payload, at = _varint(block.bytes, start)
        rows, at = _varint(block.bytes, at)
        if len(rows) and (rows[0] <= part.low or rows[-1] > part.high or (np.diff(rows) <= 0).any()):
            raise Unfit
        whole = payload <= self._usable - 35
        further = rows[~whole].tolist()
        if further:
            start, rows, at, payload = start[whole], rows[whole], at[whole], payload[whole]
        if (start % self._bytes + (at - start) + payload > self._usable).any():
            raise Unfit
        numbers = {c: n if n >= 0 else ~n for c, n in places.items()}
        fields = _fields(block.bytes, at, at + payload, max(numbers.values()) + 1)
        made: dict[str, Any] = {}
        for name, dtype in columns.items():
            kind, where = fields[numbers[name]]
            make = next((m for t, m in _MADE_BY if t == dtype), None)
            if make is None or (places[name] < 0 and kind.any()):
                raise Unfit
            made[name] = make(block, kind, where) if places[name] >= 0 else rows
        return pl.DataFrame({**made, ROW: rows}), further


@dataclass(frozen=True, slots=True)
class _Block:
    """Pages in memory."""

    raw: bytes
    bytes: Bytes
    """The same, as numpy has it."""
    at: Ints
    """Where each page begins."""

    def of_kind(self, kind: int) -> bool:
        """Whether all pages are of a kind."""
        return bool((self.bytes[self.at] == kind).all())


def _number(block: Bytes, at: Ints, width: int) -> Ints:
    """Unsigned big-endian numbers of `width` bytes."""
    value = block[at].astype(np.int64)
    for i in range(1, width):
        value <<= 8
        value |= block[at + i]
    return value


def _varint(block: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Numbers of one to eight bytes, and where they end."""
    byte = block[at].astype(np.int64)
    at = at + 1
    more = byte >= 128
    value = byte & 127
    for _ in range(7):
        if not more.any():
            return value, at
        byte = block[at].astype(np.int64)
        value = np.where(more, value << 7 | byte & 127, value)
        at += more
        more &= byte >= 128
    if more.any():
        raise Unfit
    return value, at


def _fields(block: Bytes, start: Ints, end: Ints, count: int) -> list[tuple[Any, Ints]]:
    """Serial type and place of the first `count` values of the records that lie from `start` to `end`."""
    if count > _MOST_COLUMNS:
        raise Unfit
    length = block[start]
    if (length >= 128).any():
        raise Unfit
    header, at = start + 1, start + length
    header_end = at.copy()
    found = []
    for _ in range(count):
        kind: Any = block[header]
        header += 1
        long = kind >= 128
        if long.any():
            second = block[header]
            if (second[long] >= 128).any():
                raise Unfit
            kind = np.where(long, (kind.astype(np.int64) & 127) << 7 | second, kind)
            header += long
        found.append((kind, at))
        at = at + _WIDTH[kind]
    if (header > header_end).any() or (at > end).any():
        raise Unfit
    return found


def _integers(block: "_Block", kind: Any, at: Ints) -> pl.Series:
    kinds = np.flatnonzero(np.bincount(kind, minlength=10)).tolist()
    if kinds and (kinds[-1] > 9 or _FLOAT in kinds):
        raise Unfit
    value = np.zeros(len(at), np.int64)
    for k in kinds:
        rows = np.flatnonzero(kind == k) if len(kinds) > 1 else slice(None)
        if k in (8, 9):  # the numbers 0 and 1
            value[rows] = k - 8
        elif k:
            value[rows] = _signed(block.bytes, at[rows], int(_WIDTH[k]))
    made = pl.Series(value)
    return made.set(pl.Series(kind == 0), None) if 0 in kinds else made


def _floats(block: "_Block", kind: Any, at: Ints) -> pl.Series:
    """Whole numbers lie as integers in a column of floats."""
    is_float = kind == _FLOAT
    made = _integers(block, np.where(is_float, 0, kind), at).cast(pl.Float64)
    bits = _signed(block.bytes, at[is_float], 8)
    return made.scatter(np.flatnonzero(is_float), bits.view(np.float64))


def _signed(block: Bytes, at: Ints, width: int) -> Ints:
    value = block[at].view(np.int8).astype(np.int64)
    for i in range(1, width):
        value <<= 8
        value |= block[at + i]
    return value


def _texts(block: _Block, kind: Any, at: Ints) -> pl.Series:
    if not (((kind >= _TEXT) & (kind % 2 == 1)) | (kind == 0)).all():
        raise Unfit
    frame = pl.DataFrame(
        {
            "all": pl.Series([block.raw], dtype=pl.Binary).new_from_index(
                0, len(at)
            ),  # texts are views of this one value
            "at": pl.Series(at).set(pl.Series(kind <= _TEXT), None),
            "length": _WIDTH[kind],
        }
    )
    try:
        return frame.select(pl.col("all").bin.slice(pl.col("at"), pl.col("length")).cast(pl.String)).to_series()
    except pl.exceptions.PolarsError as e:  # no UTF-8
        raise Unfit from e


_MADE_BY = ((pl.Int64, _integers), (pl.Float64, _floats), (pl.String, _texts))
"""What makes columns of a type."""

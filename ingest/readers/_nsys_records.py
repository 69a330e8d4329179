"""Records of SQLite's pages as columns: the numbers and texts at given places, for many rows at once.

A record is a header of serial types, which say kind and length, and the values after it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_MOST_COLUMNS = 100  # so that a record's header has a length of one byte
_FLOAT = 7  # the serial type of floats
_TEXT = 13  # the first of the serial types of texts, which are odd

_WIDTH = np.zeros(1 << 14, np.int64)
"""Bytes of a value by its serial type."""
_WIDTH[1:8] = [1, 2, 3, 4, 6, 8, 8]
_WIDTH[12:] = (np.arange(12, 1 << 14) - 12) // 2


class Unfit(Exception):
    """A table or part of it that only SQLite can read, or refuse."""


@dataclass(frozen=True, slots=True)
class Block:
    """Pages in memory."""

    raw: bytes
    bytes: Bytes
    """The same, as numpy has it."""
    at: Ints
    """Where each page begins."""

    def of_kind(self, kind: int) -> bool:
        """Whether all pages are of a kind."""
        return bool((self.bytes[self.at] == kind).all())


def number_at(block: Bytes, at: Ints, width: int) -> Ints:
    """Unsigned big-endian numbers of `width` bytes."""
    value = block[at].astype(np.int64)
    for i in range(1, width):
        value <<= 8
        value |= block[at + i]
    return value


def varint_at(block: Bytes, at: Ints) -> tuple[Ints, Ints]:
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


def fields_of(block: Bytes, start: Ints, end: Ints, count: int) -> list[tuple[Any, Ints]]:
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


def column_of(block: Block, kind: Any, at: Ints, dtype: pl.DataType | type[pl.DataType]) -> pl.Series:
    """The values of serial types `kind` that lie `at`, as a column of 64-bit integers or floats, or of texts.

    Raises:
        Unfit: some are of another type, or no UTF-8.

    """
    if dtype == pl.Int64:
        return _integers(block, kind, at)
    if dtype == pl.Float64:
        return _floats(block, kind, at)
    if dtype == pl.String:
        return _texts(block, kind, at)
    raise Unfit


def _integers(block: Block, kind: Any, at: Ints) -> pl.Series:
    kinds = np.flatnonzero(np.bincount(kind, minlength=10)).tolist()
    if kinds and (kinds[-1] > 9 or _FLOAT in kinds):
        raise Unfit
    value = np.zeros(len(at), np.int64)
    for k in kinds:
        rows = np.flatnonzero(kind == k) if len(kinds) > 1 else slice(None)
        if k in (8, 9):  # the numbers 0 and 1
            value[rows] = k - 8
        elif k:
            value[rows] = _signed(block, at[rows], int(_WIDTH[k]))
    made = pl.Series(value)
    return made.set(pl.Series(kind == 0), None) if 0 in kinds else made


def _floats(block: Block, kind: Any, at: Ints) -> pl.Series:
    """Whole numbers lie as integers in a column of floats."""
    is_float = kind == _FLOAT
    made = _integers(block, np.where(is_float, 0, kind), at).cast(pl.Float64)
    bits = _signed(block, at[is_float], 8)
    return made.scatter(np.flatnonzero(is_float), bits.view(np.float64))


def _signed(block: Block, at: Ints, width: int) -> Ints:
    """Signed big-endian numbers of `width` bytes. Blocks go on for more than a word behind their last page."""
    if width == 1:
        return block.bytes[at].view(np.int8).astype(np.int64)
    words = np.ndarray((len(block.raw) - 7,), "<i8", buffer=block.raw, strides=(1,))
    value = words[at].byteswap(inplace=True)
    if width < 8:
        value >>= 64 - 8 * width
    return value


def _texts(block: Block, kind: Any, at: Ints) -> pl.Series:
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

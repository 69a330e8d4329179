"""Messages of a file that are longer than what is read of it at once: their fields, and the events of a line.

Running out of bytes inside a message whose end is known is damage, not a cut file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tracegap.ingest.readers._xplane_chain import SPARE, TAG, Ints, events_from, follow
from tracegap.ingest.readers._xplane_wire import BYTES, WireError, field_at

Read = Callable[[int, int], bytes]
"""Bytes of the file: from where, and how many."""

_WINDOW = 1 << 20  # bytes: what is made of the events in them stays in the processor's cache
_PEEP = 1 << 14  # bytes, where only some fields are wanted
_HEAD = 20  # bytes of a tag and a length at most


def fields_within(read: Read, at: int, end: int, passed: int) -> Iterator[tuple[int, int, int, int, bytes]]:
    """(number, wire type, start of the content, its end, tag and content) of the fields of a message of the file.

    The content of fields with number `passed` is not read.
    """
    base, data = at, b""
    while at < end:
        if at + _HEAD > base + len(data) < end:
            base, data = at, read(at, min(_PEEP, end - at))
        try:
            number, wire, start, stop = field_at(data, at - base, len(data), base)
        except WireError as error:
            raise WireError("malformed", error.byte, error.what) from None
        start, stop = base + start, base + stop
        if stop > end:
            raise WireError("malformed", end, "the data end within a field")
        if number == passed and wire == BYTES:
            yield number, wire, start, stop, b""
        else:
            inside = stop <= base + len(data)
            yield number, wire, start, stop, data[at - base : stop - base] if inside else read(at, stop - at)
        at = stop


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events of a line in a piece of the file."""

    data: bytes
    """With SPARE bytes more behind it."""
    base: int
    """Where byte 0 of the data is in the file."""
    starts: Ints
    """First byte of the content of each."""
    ends: Ints
    """The byte after it."""


def events_of(read: Read, at: int, end: int, rest: bytearray) -> Iterator[Events]:
    """The events of the line whose content is at [at, end), piece by piece; the bytes of its other fields go to `rest`.

    Raises:
        WireError: it is damaged; the events inside are not looked at.
    """
    size = _WINDOW
    while at < end:
        data = read(at, min(size, end - at)) + bytes(SPARE)
        if len(data) == SPARE:
            raise WireError("truncated", at, "the file ends within a line")
        parts: list[tuple[Ints, Ints]] = []
        read_to = _walk(data, at, end, parts, rest)
        if parts:
            yield Events(data, at, *(np.concatenate(column) for column in zip(*parts, strict=True)))
        size = _WINDOW if read_to else 2 * size  # a field that is longer than the window
        at += read_to


def _walk(data: bytes, base: int, end: int, parts: list[tuple[Ints, Ints]], rest: bytearray) -> int:
    """Reads a window of a line that ends at `end` of the file; how many bytes of it are whole fields."""
    at, stop = 0, len(data) - SPARE
    last = base + stop >= end
    many = True
    while at < stop:
        if data[at] == TAG:
            tags, after = (events_from if many else follow)(data, at, stop)
            if len(tags):
                many = False
                heads = np.where(np.frombuffer(data, dtype=np.uint8)[tags + 1] < 0x80, 2, 3)
                parts.append((tags + heads, np.append(tags[1:], after)))
                at = after
                continue
            if last and at + 1 < stop and data[at + 1] < 0x80:
                raise WireError("malformed", base + at + 2, "an event that runs past the end of its line")
        try:
            number, wire, start, after = field_at(data, at, stop, base)
        except WireError as error:
            if error.code == "truncated" and not last:
                break
            raise WireError("malformed", error.byte, error.what) from None
        if after > stop:
            if last:
                raise WireError("malformed", end, "the data end within a field")
            break
        if number == TAG >> 3 and wire == BYTES:
            parts.append((np.array([start]), np.array([after])))
        else:
            rest += data[at:after]
        at = after
    return at

"""The wire format of XSpace: its messages, and the walk over the fields of one."""

import gzip
import zlib
from collections.abc import Iterator
from typing import Any

from tracegap.ingest.protobuf import DecodeError, messages

Value = int | float | str | bytes
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""

PROTO = messages(
    "tracegap.xplane",
    {
        "XSpace": "planes 1 XPlane*; errors 2 str*; warnings 3 str*; hostnames 4 str*",
        "XPlane": "id 1 i64; name 2 str; lines 3 XLine*; event_metadata 4 XEventMetadata{};"
        "stat_metadata 5 XStatMetadata{}; stats 6 XStat*",
        "XLine": "id 1 i64; name 2 str; timestamp_ns 3 i64; events 4 XEvent*; duration_ps 9 i64; display_name 11 str",
        "XEvent": "metadata_id 1 i64; offset_ps 2 i64?; duration_ps 3 i64; stats 4 XStat*; num_occurrences 5 i64?",
        "XStat": "metadata_id 1 i64; double_value 2 f64?; uint64_value 3 u64?; int64_value 4 i64?; str_value 5 str?;"
        "bytes_value 6 bytes?; ref_value 7 u64?; compressed_str_value 8 bytes?",
        "KindEntry": "key 1 i64; value 2 XEventMetadata",
        "XEventMetadata": "id 1 i64; name 2 str; metadata 3 bytes; display_name 4 str; stats 5 XStat*",
        "XStatMetadata": "id 1 i64; name 2 str",
    },
)
"""Message classes, also for writing."""


class WireError(ValueError):
    """Bytes that are no XSpace; `code` is truncated (they end too early) or malformed."""

    def __init__(self, code: str, byte: int, what: str) -> None:
        self.code, self.byte, self.what = code, byte, what
        super().__init__(f"{what} at byte {byte}")


def varint(data: bytes, at: int, end: int, base: int) -> tuple[int, int]:
    """A number: (value, next byte); `base` is where byte 0 stands in the file. Raises WireError."""
    value = shift = 0
    start = at
    while at < end:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise WireError("malformed", base + start, "a number of more than ten bytes")
    raise WireError("truncated", base + end, "the data end within a number")


def field_at(data: bytes, at: int, end: int, base: int) -> tuple[int, int, int, int]:
    """Number, wire type, start and end of the content of the field at `at`; the end may be behind `end`.

    Raises:
        WireError: that is no field, or its head is not whole.
    """
    tag_at = at
    tag, at = varint(data, at, end, base)
    number, wire = tag >> 3, tag & 7
    start = at
    if wire == VARINT:
        _, at = varint(data, at, end, base)
    elif wire == BYTES:
        size, start = varint(data, at, end, base)
        at = start + size
    elif wire in (FIXED64, FIXED32):
        at += 8 if wire == FIXED64 else 4
    else:
        raise WireError("malformed", base + tag_at, f"wire type {wire}")
    if number == 0:
        raise WireError("malformed", base + tag_at, "field number 0")
    return number, wire, start, at


def fields(data: bytes, at: int, end: int, base: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(number, wire type, byte of the tag, start of the content, end of the content) of the fields of a message."""
    while at < end:
        number, wire, start, stop = field_at(data, at, end, base)
        if stop > end:
            raise WireError("truncated", base + end, "the data end within a field")
        yield number, wire, at, start, stop
        at = stop


def parse(kind: str, data: bytes, base: int) -> Any:
    """A message of PROTO. Raises WireError."""
    try:
        return PROTO[kind].FromString(data)
    except DecodeError as error:
        raise WireError("malformed", base, f"an {kind} that protobuf cannot read ({error})") from None


def stats_of(stats: Any, names: dict[int, str]) -> dict[str, Value]:
    """Statistics by name. References become the text they stand for, compressed text is unpacked."""
    found: dict[str, Value] = {}
    for stat in stats:
        kind = stat.WhichOneof("value")
        if kind is None:
            continue
        value = getattr(stat, kind)
        if kind == "ref_value":
            value = names.get(value, "")
        elif kind == "compressed_str_value":
            value = unpack(value)
        found[names.get(stat.metadata_id, str(stat.metadata_id))] = value
    return found


def unpack(data: bytes) -> bytes:
    """Content of a compressed statistic; empty if it is damaged."""
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return b""

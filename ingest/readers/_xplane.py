"""The wire format of XSpace, from bytes to columns. What the columns mean is for `xspace.py`.

Planes are read one by one, so that a cut file keeps its whole ones. Names and statistics of a plane are few and go
through protobuf; its events are many and are decoded all at once with numpy: a round of the loop reads one field of
every event.
"""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.errors import TraceError
from tracegap.ingest.protobuf import DecodeError, messages

Ints = NDArray[np.int64]
Value = int | float | str | bytes

MISSING = np.iinfo(np.int64).min
"""Marks an absent number in a column."""

_INTS = "run_id group_id step_num program_id correlation_id device_ordinal _pt _p _ct _c device_duration_ps"
_TEXTS = "hlo_op tf_op name annotation step_name memcpy_details memset_details"
WANTED_INTS = frozenset(_INTS.split())
"""Event statistics that are kept as numbers."""
WANTED_TEXTS = frozenset(_TEXTS.split())
"""Event statistics that are kept as text."""

_BLOCK = 1 << 16  # events decoded at once: the temporaries stay in the processor's cache
_PIECE = 1 << 24  # bytes read at once
_PLANES, _ERRORS, _WARNINGS, _HOSTNAMES = 1, 2, 3, 4  # fields of XSpace
_LINES, _EVENTS = 3, 4  # of XPlane and XLine
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types

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


@dataclass(slots=True, kw_only=True)
class EventKind:
    """An entry of a plane's event metadata: what is the same for all events of this id."""

    name: str
    display_name: str
    stats: dict[str, Value]


@dataclass(slots=True, kw_only=True)
class Line:
    """A timeline. Columns have one entry for each event that has a place in time, in file order."""

    id: int
    name: str
    timestamp_ns: int
    kind: Ints
    """Key into `Plane.kinds`."""
    offset_ps: Ints
    duration_ps: Ints
    ints: dict[str, Ints] = field(default_factory=dict)
    """Statistics by name; MISSING where an event has none."""
    texts: dict[str, tuple[NDArray[np.int32], list[str]]] = field(default_factory=dict)
    """Statistics by name: a code for each event (-1 where it has none) into the list."""
    aggregated: int = 0
    """Events with a count in place of a start; they are left out of the columns."""

    def __len__(self) -> int:
        return len(self.kind)

    def where(self, keep: NDArray[np.bool_]) -> "Line":
        """The line with some of its events."""
        return replace(
            self,
            kind=self.kind[keep],
            offset_ps=self.offset_ps[keep],
            duration_ps=self.duration_ps[keep],
            ints={name: column[keep] for name, column in self.ints.items()},
            texts={name: (codes[keep], values) for name, (codes, values) in self.texts.items()},
        )

    def numbers(self, name: str) -> Ints:
        """A statistic as numbers, MISSING where there is none."""
        found = self.ints.get(name)
        return np.full(len(self), MISSING, dtype=np.int64) if found is None else found

    def codes(self, name: str) -> tuple[NDArray[np.int32], list[str]]:
        """A statistic as text: codes into a list, -1 where there is none."""
        return self.texts.get(name) or (np.full(len(self), -1, dtype=np.int32), [])


@dataclass(slots=True, kw_only=True)
class Plane:
    """A plane with its lines."""

    id: int
    name: str
    stats: dict[str, Value]
    kinds: dict[int, EventKind]
    lines: list[Line]


@dataclass(slots=True)
class Space:
    """What could be read of a file."""

    planes: list[Plane] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hostnames: list[str] = field(default_factory=list)
    damage: WireError | None = None
    """Where reading stopped; everything before is whole."""


def read_space(stream: BinaryIO) -> Space:
    """All whole planes of a decompressed XSpace. Damage ends the reading and is kept."""
    space = Space()
    texts = {_ERRORS: space.errors, _WARNINGS: space.warnings, _HOSTNAMES: space.hostnames}
    try:
        for number, start, body in _top_level(stream):
            if number == _PLANES:
                space.planes.append(read_plane(body, start))
            elif number in texts:
                texts[number].append(body.decode(errors="replace"))
    except WireError as error:
        space.damage = error
    return space


def _top_level(stream: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """(field number, byte of its content, content) of the outermost message. All its fields are length-delimited."""
    at = 0
    while tag := _take(stream, 1, at):
        if tag[0] & 7 != _BYTES or not 1 <= tag[0] >> 3 <= 15 or tag[0] > 0x7F:
            raise WireError("malformed", at, "no field of an XSpace")
        size, digits = 0, 0
        while True:
            byte = _take(stream, 1, at)
            if not byte:
                raise WireError("truncated", at, "the file ends within a length")
            size |= (byte[0] & 0x7F) << 7 * digits
            digits += 1
            if byte[0] < 0x80:
                break
            if digits == 10:
                raise WireError("malformed", at, "a length of more than ten bytes")
        start = at + 1 + digits
        body = _take(stream, size, start)
        if len(body) < size:
            rest = _first_damage(body, start) if tag[0] >> 3 == _PLANES else None
            raise rest or WireError("truncated", start + len(body), "the file ends within a plane")
        yield tag[0] >> 3, start, body
        at = start + size


def _take(stream: BinaryIO, size: int, at: int) -> bytes:
    """The next `size` bytes, fewer at the end of the file. In pieces, since a damaged file may ask for any size."""
    parts = []
    try:
        while size and (part := stream.read(min(size, _PIECE))):
            parts.append(part)
            size -= len(part)
    except TraceError as error:  # damaged compression
        raise WireError(error.code, at + sum(map(len, parts)), error.what) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _first_damage(body: bytes, base: int) -> WireError | None:
    """Damage inside the beginning of a plane, if any is before its end: then its length cannot be trusted either."""
    try:
        for _ in _fields(body, 0, len(body), base):
            pass
    except WireError as error:
        return error if error.code == "malformed" else None
    return None


def _varint(data: bytes, at: int, end: int, base: int) -> tuple[int, int]:
    """(value, next byte)."""
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


def _fields(data: bytes, at: int, end: int, base: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(number, wire type, byte of the tag, start of the content, end of the content) of the fields of a message."""
    while at < end:
        tag_at = at
        tag, at = _varint(data, at, end, base)
        number, wire = tag >> 3, tag & 7
        start = at
        if wire == _VARINT:
            _, at = _varint(data, at, end, base)
        elif wire == _BYTES:
            size, start = _varint(data, at, end, base)
            at = start + size
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise WireError("malformed", base + tag_at, f"wire type {wire}")
        if number == 0:
            raise WireError("malformed", base + tag_at, "field number 0")
        if at > end:
            raise WireError("truncated", base + end, "the data end within a field")
        yield number, wire, tag_at, start, at


def read_plane(data: bytes, base: int = 0) -> Plane:
    """A plane from its bytes; `base` is where they stand in the file. Raises WireError."""
    lines, rest = [], bytearray()
    for number, wire, tag_at, start, end in _within(data, 0, len(data), base):
        if number == _LINES and wire == _BYTES:
            lines.append((start, end))
        else:
            rest += data[tag_at:end]
    message = _parse("XPlane", bytes(rest), base)
    names = {key: entry.name for key, entry in message.stat_metadata.items()}
    padded = np.frombuffer(data + bytes(16), dtype=np.uint8)
    return Plane(
        id=message.id,
        name=message.name,
        stats=_stats(message.stats, names),
        kinds={
            key: EventKind(name=kind.name, display_name=kind.display_name, stats=_stats(kind.stats, names))
            for key, kind in message.event_metadata.items()
        },
        lines=[_read_line(data, padded, span, names, base) for span in lines],
    )


def _within(data: bytes, start: int, end: int, base: int) -> Iterator[tuple[int, int, int, int, int]]:
    """As `_fields`; running out of bytes inside a message whose end is known is damage, not a cut file."""
    try:
        yield from _fields(data, start, end, base)
    except WireError as error:
        raise WireError("malformed", error.byte, error.what) from None


def _parse(kind: str, data: bytes, base: int) -> Any:
    try:
        return PROTO[kind].FromString(data)
    except DecodeError as error:
        raise WireError("malformed", base, f"an {kind} that protobuf cannot read ({error})") from None


def _stats(stats: Any, names: dict[int, str]) -> dict[str, Value]:
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


def _read_line(data: bytes, padded: NDArray[np.uint8], span: tuple[int, int], names: dict[int, str], base: int) -> Line:
    starts, ends, rest = _event_spans(data, *span, base)
    message = _parse("XLine", bytes(rest), base + span[0])
    columns = _Columns(names, data)
    for first in range(0, len(starts), _BLOCK):
        columns.add(padded, starts[first : first + _BLOCK], ends[first : first + _BLOCK], base)
    return columns.line(message)


def _event_spans(data: bytes, at: int, end: int, base: int) -> tuple[Ints, Ints, bytearray]:
    """Where the events of a line begin and end, and the bytes of its other fields.

    The one loop in Python over all events, so it knows the common case (an event shorter than 128 bytes) by heart.
    """
    starts: list[int] = []
    ends: list[int] = []
    rest = bytearray()
    tag = _EVENTS << 3 | _BYTES
    while at < end:
        if data[at] == tag and at + 1 < end and data[at + 1] < 0x80:
            start = at + 2
            at = start + data[at + 1]
            if at > end:
                raise WireError("malformed", base + start, "an event that runs past the end of its line")
        else:
            number, wire, tag_at, start, stop = next(_within(data, at, end, base))
            at = stop
            if number != _EVENTS or wire != _BYTES:
                rest += data[tag_at:stop]
                continue
        starts.append(start)
        ends.append(at)
    return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64), rest


@dataclass(slots=True)
class _Round:
    """One field of each of many messages."""

    rows: Ints
    """Which messages."""
    number: NDArray[np.uint8]
    """Field number."""
    wire: NDArray[np.uint8]
    value: NDArray[np.uint64]
    """The number, the length of the content, or the bits of a fixed-width number."""
    at: Ints
    """First byte of the content."""


def _rounds(data: NDArray[np.uint8], starts: Ints, ends: Ints, base: int) -> Iterator[_Round]:
    """The fields of many messages side by side: the first field of all, then the second, ..."""
    rows = np.flatnonzero(starts < ends)
    at, end = starts[rows], ends[rows]
    while len(rows):
        tags = data[at]
        number, wire = (tags >> 3).astype(np.uint8), (tags & 7).astype(np.uint8)
        content = at + 1
        value, after = _varints(data, content)
        delimited = wire == _BYTES
        fixed = wire == _FIXED64
        content = np.where(delimited, after, content)
        if fixed.any():
            spots = content[fixed]
            bits = data[spots[:, None] + np.arange(8)].view("<u8").ravel()
            value[fixed] = bits
            after[fixed] = spots + 8
        sound = (wire <= _BYTES) & (tags < 0x80) & (number > 0) & (value < 1 << 62) | (wire == _VARINT) | fixed
        after = np.where(delimited, content + np.where(sound, value, 0).astype(np.int64), after)
        sound &= after <= end
        if not sound.all():
            raise WireError("malformed", base + int(at[~sound][0]), "a damaged event")
        yield _Round(rows, number, wire, value, content)
        more = after < end
        rows, at, end = rows[more], after[more], end[more]


def _varints(data: NDArray[np.uint8], at: Ints) -> tuple[NDArray[np.uint64], Ints]:
    """Numbers that begin at these bytes, and the bytes after them; far beyond the data where a number does not end."""
    byte = data[at]
    value = (byte & 0x7F).astype(np.uint64)
    after = at + 1
    open_ = np.flatnonzero(byte >= 0x80)
    shift = 7
    while len(open_):
        if shift > 63:
            after[open_] = np.iinfo(np.int64).max >> 1
            return value, after
        byte = data[np.minimum(after[open_], len(data) - 1)]
        value[open_] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[open_] += 1
        open_ = open_[byte >= 0x80]
        shift += 7
    return value, after


class _Columns:
    """Collects the events of a line, block by block."""

    def __init__(self, names: dict[int, str], data: bytes) -> None:
        self.names, self.data = names, data
        self.ints = {key: name for key, name in names.items() if name in WANTED_INTS}
        self.texts = {key: name for key, name in names.items() if name in WANTED_TEXTS}
        self.wanted = np.array(sorted({*self.ints, *self.texts}), dtype=np.int64)
        self.codes: dict[str, dict[str, int]] = {}
        self.blocks: list[dict[str, NDArray[Any]]] = []

    def add(self, padded: NDArray[np.uint8], starts: Ints, ends: Ints, base: int) -> None:
        """Decodes a block of events."""
        n = len(starts)
        own = {number: np.zeros(n, dtype=np.int64) for number in (1, 2, 3)}  # metadata_id, offset_ps, duration_ps
        aggregated = np.zeros(n, dtype=bool)
        stats: list[tuple[Ints, Ints, Ints]] = []
        for now in _rounds(padded, starts, ends, base):
            for number, column in own.items():
                hit = (now.number == number) & (now.wire == _VARINT)
                column[now.rows[hit]] = now.value[hit].view(np.int64)
            aggregated[now.rows[(now.number == 5) & (now.wire == _VARINT)]] = True
            hit = (now.number == 4) & (now.wire == _BYTES)
            if hit.any():
                stats.append((now.rows[hit], now.at[hit], now.at[hit] + now.value[hit].astype(np.int64)))
        block: dict[str, NDArray[Any]] = {"kind": own[1], "offset_ps": own[2], "duration_ps": own[3]}
        if stats and len(self.wanted):
            rows, first, last = (np.concatenate(column) for column in zip(*stats, strict=True))
            self._add_stats(block, rows, _rounds(padded, first, last, base))
        self.blocks.append({name: column[~aggregated] for name, column in block.items()})
        self.blocks[-1]["#aggregated"] = aggregated[aggregated]

    def _add_stats(self, block: dict[str, NDArray[Any]], events: Ints, rounds: Iterator[_Round]) -> None:
        """Adds the statistics of a block to it; `events` says to which of its events each belongs."""
        n = len(block["kind"])
        key = np.zeros(len(events), dtype=np.int64)
        member = np.zeros(len(events), dtype=np.uint8)  # which member of XStat's oneof
        value = np.zeros(len(events), dtype=np.uint64)
        place = np.zeros(len(events), dtype=np.int64)
        for now in rounds:
            hit = now.number == 1
            key[now.rows[hit]] = now.value[hit].view(np.int64)
            rows, other = now.rows[~hit], ~hit
            member[rows], value[rows], place[rows] = now.number[other], now.value[other], now.at[other]
        for wanted in np.intersect1d(self.wanted, key).tolist():
            hit = key == wanted
            rows = events[hit]
            if wanted in self.ints:
                column = block.setdefault(self.ints[wanted], np.full(n, MISSING, dtype=np.int64))
                column[rows] = self._numbers(member[hit], value[hit])
            else:
                name = self.texts[wanted]
                column = block.setdefault("'" + name, np.full(n, -1, dtype=np.int32))
                column[rows] = self._codes(name, member[hit], value[hit], place[hit])

    @staticmethod
    def _numbers(member: NDArray[np.uint8], value: NDArray[np.uint64]) -> Ints:
        """Numbers by value, whatever their wire type; unsigned ids wrap to signed ones, so that both kinds compare."""
        numbers = value.view(np.int64).copy()
        double = member == 2
        numbers[double] = value[double].view(np.float64).astype(np.int64)
        numbers[~np.isin(member, (2, 3, 4))] = MISSING
        return numbers

    def _codes(self, name: str, member: NDArray[np.uint8], value: NDArray[np.uint64], place: Ints) -> NDArray[np.int32]:
        """Texts as codes; a reference stands for the name of a stat_metadata entry."""
        codes = self.codes.setdefault(name, {})
        found = np.full(len(member), -1, dtype=np.int32)
        ref = member == 7
        for target in np.unique(value[ref]).tolist():
            found[ref & (value == target)] = codes.setdefault(self.names.get(target, ""), len(codes))
        for i in np.flatnonzero(np.isin(member, (5, 8))).tolist():
            raw = self.data[place[i] : place[i] + int(value[i])]
            text = (unpack(raw) if member[i] == 8 else raw).decode(errors="replace")
            found[i] = codes.setdefault(text, len(codes))
        return found

    def line(self, message: Any) -> Line:
        """The line with all blocks joined."""
        columns: dict[str, NDArray[Any]] = {}
        for name in {name for block in self.blocks for name in block}:
            absent = -1 if name.startswith("'") else MISSING
            kind = np.int32 if name.startswith("'") else np.int64
            columns[name] = np.concatenate(
                [b[name] if name in b else np.full(len(b["kind"]), absent, dtype=kind) for b in self.blocks]
            )
        empty = np.zeros(0, dtype=np.int64)
        fixed = {name: columns.pop(name, empty) for name in ("kind", "offset_ps", "duration_ps")}
        return Line(
            id=message.id,
            name=message.name or message.display_name,
            timestamp_ns=message.timestamp_ns,
            aggregated=len(columns.pop("#aggregated", empty)),
            ints={name: column for name, column in columns.items() if not name.startswith("'")},
            texts={
                name[1:]: (column, list(self.codes[name[1:]]))
                for name, column in columns.items()
                if name.startswith("'")
            },
            **fixed,
        )

"""The wire format of XSpace, from bytes to columns. What the columns mean is for `xspace.py`.

Planes are read one by one, so that a cut file keeps its whole ones: first without their lines, and with them when asked,
so that a large file need not be in memory whole. Names and statistics of a plane are few and go through protobuf; its
events are many and are decoded all at once with numpy: a round of the loop reads one field of every event.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.errors import TraceError
from tracegap.ingest.files import open_plain
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

_BLOCK = 1 << 15  # events decoded at once: the temporaries stay in the processor's cache
_PIECE = 1 << 24  # bytes decompressed at once
_SHARED = 1 << 14  # bytes of an event kind that is kept to be found in other planes: HLO modules are larger, and once
_PLANES, _ERRORS, _WARNINGS, _HOSTNAMES = 1, 2, 3, 4  # fields of XSpace
_LINES, _KINDS, _EVENTS = 3, 4, 4  # of XPlane, XPlane and XLine
_NAME, _DISPLAY_NAME = 2, 11  # of XLine
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


@dataclass(slots=True, kw_only=True, eq=False)
class EventKind:
    """An entry of a plane's event metadata: what is the same for all events of this id. Planes share equal ones."""

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


Wanted = Callable[[str], bool]
"""Whether a line of this name is wanted."""


@dataclass(slots=True, kw_only=True)
class Plane:
    """A plane."""

    id: int
    name: str
    stats: dict[str, Value]
    kinds: dict[int, EventKind]
    lines: list[Line] = field(default_factory=list)
    """Empty until they are asked for, if the plane stands in a file."""
    load: Callable[[Wanted], list[Line]] | None = None
    """Reads the lines from the file."""
    unread: list[str] = field(default_factory=list)
    """Names of the lines that are not in memory."""
    size: int = 0
    """Bytes in the file."""

    def line_names(self) -> list[str]:
        """Names of all its lines, read or not."""
        return self.unread + [line.name for line in self.lines]

    def whole(self, wanted: Wanted = lambda _: True) -> "Plane":
        """The plane with its wanted lines in memory. Raises WireError where they are damaged."""
        lines = [line for line in self.lines if wanted(line.name)] if self.load is None else self.load(wanted)
        return replace(self, lines=lines, load=None, unread=[])


@dataclass(slots=True)
class Space:
    """What could be read of a file."""

    planes: list[Plane] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hostnames: list[str] = field(default_factory=list)
    damage: WireError | None = None
    """Where reading stopped; everything before is whole."""


@dataclass(frozen=True, slots=True)
class Source:
    """Decompressed bytes that can be read more than once: of a plain file from there, of a compressed one from memory."""

    size: int
    path: Path | None = None
    data: bytes = b""
    damage: TraceError | None = None
    """Why the data end early."""

    @classmethod
    def of(cls, path: Path) -> "Source":
        """From a file. Raises TraceError as `open_plain` does."""
        parts: list[bytes] = []
        damage = None
        with open_plain(path) as stream:
            if stream.seekable():
                return cls(size=path.stat().st_size, path=path)
            try:
                while part := stream.read(_PIECE):
                    parts.append(part)
            except TraceError as error:
                damage = error
        data = b"".join(parts)
        return cls(size=len(data), data=data, damage=damage)

    @classmethod
    def within(cls, data: bytes) -> "Source":
        """From memory."""
        return cls(size=len(data), data=data)

    def read(self, at: int, size: int) -> bytes:
        """The `size` bytes from byte `at` on, fewer at the end."""
        if self.path is None:
            return self.data[at : at + size]
        with self.path.open("rb") as file:
            file.seek(at)
            return file.read(min(size, self.size - at))


def read_space(source: Source) -> Space:
    """All whole planes, their lines still to be asked for. Damage ends the reading and is kept."""
    space = Space()
    texts = {_ERRORS: space.errors, _WARNINGS: space.warnings, _HOSTNAMES: space.hostnames}
    shared: dict[Any, dict[bytes, tuple[int, EventKind]]] = {}
    try:
        for number, start, size in _top_level(source):
            if number == _PLANES:
                space.planes.append(_open_plane(source, start, size, shared))
            elif number in texts:
                texts[number].append(source.read(start, size).decode(errors="replace"))
    except WireError as error:
        cut = source.damage if error.code == "truncated" else None
        space.damage = error if cut is None else WireError(cut.code, source.size, cut.what)
    return space


def _top_level(source: Source) -> Iterator[tuple[int, int, int]]:
    """(field number, byte of its content, size) of the outermost message. All its fields are length-delimited."""
    at = 0
    while head := source.read(at, 11):
        if head[0] & 7 != _BYTES or not 1 <= head[0] >> 3 <= 15 or head[0] > 0x7F:
            raise WireError("malformed", at, "no field of an XSpace")
        size, digits = _varint(head, 1, len(head), at)
        start = at + digits
        if start + size > source.size:
            rest = _first_damage(source.read(start, size), start) if head[0] >> 3 == _PLANES else None
            raise rest or WireError("truncated", source.size, "the file ends within a plane")
        yield head[0] >> 3, start, size
        at = start + size
    if source.damage is not None:
        raise WireError(source.damage.code, at, source.damage.what)


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


def read_plane(data: bytes) -> Plane:
    """A plane from its bytes. Raises WireError."""
    return _open_plane(Source.within(data), 0, len(data), {}).whole()


def _open_plane(source: Source, base: int, size: int, shared: dict[Any, dict[bytes, tuple[int, EventKind]]]) -> Plane:
    """A plane without its lines. `shared` has the event kinds of other planes by their bytes, for each set of names."""
    data = source.read(base, size)
    spans, entries, rest = [], [], bytearray()
    for number, wire, tag_at, start, end in _within(data, 0, len(data), base):
        if number == _LINES and wire == _BYTES:
            spans.append((start, end))
        elif number == _KINDS and wire == _BYTES:
            entries.append(data[start:end])
        else:
            rest += data[tag_at:end]
    message = _parse("XPlane", bytes(rest), base)
    names = {key: entry.name for key, entry in message.stat_metadata.items()}
    known = shared.setdefault(tuple(sorted(names.items())), {})
    kinds = {}
    for entry in entries:
        found = known.get(entry) or _kind(entry, names, base)
        if len(entry) < _SHARED:
            known[entry] = found
        kinds[found[0]] = found[1]

    titles = [_line_name(data, span, base) for span in spans]

    def load(wanted: Wanted) -> list[Line]:
        data = source.read(base, size)
        return [_read_line(data, span, names, base) for span, title in zip(spans, titles, strict=True) if wanted(title)]

    return Plane(
        id=message.id,
        name=message.name,
        stats=_stats(message.stats, names),
        kinds=kinds,
        load=load,
        unread=titles,
        size=size,
    )


def _kind(entry: bytes, names: dict[int, str], base: int) -> tuple[int, EventKind]:
    message = _parse("KindEntry", entry, base)
    kind = message.value
    return message.key, EventKind(name=kind.name, display_name=kind.display_name, stats=_stats(kind.stats, names))


def _line_name(data: bytes, span: tuple[int, int], base: int) -> str:
    """Name of a line, which nearly always stands before its events."""
    shown = b""
    for number, _, _, start, end in _within(data, *span, base):
        if number == _NAME:
            return data[start:end].decode(errors="replace")
        if number == _DISPLAY_NAME:
            shown = data[start:end]
    return shown.decode(errors="replace")


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


def _read_line(data: bytes, span: tuple[int, int], names: dict[int, str], base: int) -> Line:
    rest = bytearray()
    columns = _Columns(names)
    for first, ends in _event_spans(data, *span, base, rest):
        columns.add(data, first, ends, base)
    return columns.line(_parse("XLine", bytes(rest), base + span[0]))


def _event_spans(data: bytes, at: int, end: int, base: int, rest: bytearray) -> Iterator[tuple[Ints, Ints]]:
    """Where the events of a line begin and end, block by block; the bytes of its other fields go to `rest`.

    The one loop in Python over all events, so it knows the common case (an event shorter than 128 bytes) by heart.
    """
    starts: list[int] = []
    long: dict[int, int] = {}  # ends of events whose length takes more than a byte
    tag = _EVENTS << 3 | _BYTES
    data_end, end = end, end - 1
    while at < data_end:
        room = _BLOCK - len(starts)
        while at < end and room and data[at] == tag and (size := data[at + 1]) < 0x80:
            at += 2
            starts.append(at)
            at += size
            room -= 1
        if at > data_end:
            raise WireError("malformed", base + starts[-1], "an event that runs past the end of its line")
        if room and at < data_end:
            number, wire, tag_at, start, stop = next(_within(data, at, data_end, base))
            at = stop
            if number == _EVENTS and wire == _BYTES:
                long[len(starts)] = stop
                starts.append(start)
            else:
                rest += data[tag_at:stop]
        if starts and (len(starts) == _BLOCK or at >= data_end):
            yield _spans_of(data, starts, long)
            starts, long = [], {}


def _spans_of(data: bytes, starts: list[int], long: dict[int, int]) -> tuple[Ints, Ints]:
    first = np.array(starts, dtype=np.int64)
    ends = first + np.frombuffer(data, dtype=np.uint8)[np.maximum(first - 1, 0)]
    ends[list(long)] = list(long.values())
    return first, ends


@dataclass(slots=True)
class _Round:
    """One field of each of many messages."""

    rows: Ints
    """Which messages."""
    tag: NDArray[np.uint64] | int
    """Field number and wire type; one number where all have the same."""
    value: NDArray[np.uint64]
    """The number, the length of the content, or the bits of a fixed-width number."""
    at: Ints
    """First byte of the content."""

    def where(self, *tags: int) -> slice | Ints | None:
        """Which of them have one of some tags; None where none has."""
        if isinstance(self.tag, int):
            return slice(None) if self.tag in tags else None
        hit = self.tag == tags[0]
        for tag in tags[1:]:
            hit |= self.tag == tag
        found = np.flatnonzero(hit)
        return found if len(found) else None


_LOW7 = np.uint64(0x7F7F7F7F7F7F7F7F)
_HIGH = np.uint64(0x8080808080808080)
_GROUPS = tuple(
    (np.uint64(low), np.uint64(low << width), np.uint64(shift))
    for low, width, shift in ((0x007F007F007F007F, 8, 1), (0x00003FFF00003FFF, 16, 2), (0x0FFFFFFF, 32, 4))
)


def _rounds(words: NDArray[np.uint64], starts: Ints, ends: Ints, base: int) -> Iterator[_Round]:
    """The fields of many messages side by side: the first field of all, then the second, ...

    Args:
        words: the eight bytes from each byte on, as a number.
        starts: first byte of each message.
        ends: the byte after it.
        base: where byte 0 is in the file.
    """
    rows = np.flatnonzero(starts < ends)
    at, end = starts[rows], ends[rows]
    while len(rows):
        word = words[at]
        tags = word & np.uint64(0xFF)
        value, size = _varints(words, at + 1)
        content = at + 1
        first = int(tags[0])
        alike = bool((tags == tags[0]).all())
        if alike and first & 7 == _VARINT and 0 < first < 0x80:
            after = content + size
            sound = after <= end
        else:
            wire = tags & np.uint64(7)
            delimited, fixed = wire == _BYTES, wire == _FIXED64
            content = np.where(delimited, content + size, content)
            length = np.where(delimited, np.minimum(value, np.uint64(1 << 62)).astype(np.int64), 0)
            after = np.where(fixed, content + 8, np.where(delimited, content + length, content + size))
            if fixed.any():
                value = np.where(fixed, words[np.minimum(content, len(words) - 1)], value)
            sound = (delimited | fixed | (wire == _VARINT)) & (tags < 0x80) & (tags >= 8) & (after <= end)
        if not sound.all():
            raise WireError("malformed", base + int(at[~sound][0]), "a damaged event")
        yield _Round(rows, first if alike else tags, value, content)
        more = after < end
        if more.all():
            at = after
        else:
            rows, at, end = rows[more], after[more], end[more]


def _varints(words: NDArray[np.uint64], at: Ints) -> tuple[NDArray[np.uint64], Ints]:
    """Numbers that begin at these bytes, and how many bytes each takes; far too many where a number does not end.

    The lowest high bit that is not set marks a number's last byte; then groups of 7 bits are moved together in pairs.
    """
    word = words[np.minimum(at, len(words) - 1)]
    stop = ~word & _HIGH
    below = (stop & -stop) - np.uint64(1)
    size = (np.bitwise_count(below).astype(np.int64) + 1) >> 3
    value = word & below & _LOW7
    for low, high, shift in _GROUPS:
        value = (value & low) | ((value & high) >> shift)
    for i in np.flatnonzero(stop == 0).tolist():  # more than 8 bytes: negative numbers
        value[i], size[i] = _long_varint(words, int(at[i]))
    return value, size


def _long_varint(words: NDArray[np.uint64], at: int) -> tuple[int, int]:
    value = 0
    for k in range(10):
        byte = int(words[min(at + k, len(words) - 1)]) & 0xFF
        value |= (byte & 0x7F) << 7 * k
        if byte < 0x80:
            return value & (1 << 64) - 1, k + 1
    return 0, 1 << 62


class _Columns:
    """Collects the events of a line, block by block."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self.ints = {key: name for key, name in names.items() if name in WANTED_INTS}
        self.texts = {key: name for key, name in names.items() if name in WANTED_TEXTS}
        self.codes: dict[str, dict[str, int]] = {}
        self.blocks: list[dict[str, NDArray[Any]]] = []
        self.aggregated = 0

    def add(self, data: bytes, starts: Ints, ends: Ints, base: int) -> None:
        """Decodes a block of events."""
        n, first = len(starts), int(starts[0])
        piece = data[first : int(ends[-1])] + bytes(16)  # what is decoded together stays in the processor's cache
        words = np.ndarray((len(piece) - 8,), dtype="<u8", buffer=piece, strides=(1,))
        block = {name: np.zeros(n, dtype=np.int64) for name in ("kind", "offset_ps", "duration_ps")}
        fields = dict(zip((_tag(1), _tag(2), _tag(3)), block.values(), strict=True))
        aggregated = np.zeros(n, dtype=bool)
        for now in _rounds(words, starts - first, ends - first, base + first):
            for tag, column in fields.items():
                if (hit := now.where(tag)) is not None:
                    column[now.rows[hit]] = now.value[hit].view(np.int64)
            if (hit := now.where(_tag(5))) is not None:
                aggregated[now.rows[hit]] = True
            if (hit := now.where(_tag(4, _BYTES))) is not None:
                stats = _rounds(words, now.at[hit], now.at[hit] + now.value[hit].view(np.int64), base + first)
                self._add_stats(block, now.rows[hit], stats, piece)
        if aggregated.any():
            self.aggregated += int(aggregated.sum())
            block = {name: column[~aggregated] for name, column in block.items()}
        self.blocks.append(block)

    def _add_stats(self, block: dict[str, NDArray[Any]], events: Ints, rounds: Iterator[_Round], piece: bytes) -> None:
        """Adds a statistic of each of some events to a block; which statistic may differ from event to event."""
        n, size = len(block["kind"]), len(events)
        key, place = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        tag, value = np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.uint64)
        for now in rounds:
            is_key = now.where(_tag(1))
            if is_key is not None:
                key[now.rows[is_key]] = now.value[is_key].view(np.int64)
                if isinstance(now.tag, int):
                    if not self._wanted(key):
                        return
                    continue
            rows = slice(None) if isinstance(now.tag, int) else np.flatnonzero(now.tag != _tag(1))
            own = now.rows[rows]
            tag[own] = now.tag if isinstance(now.tag, int) else now.tag[rows]
            value[own], place[own] = now.value[rows], now.at[rows]
        wanted = self._wanted(key)
        for stat in wanted:
            hit = slice(None) if len(wanted) == 1 and (key == stat).all() else np.flatnonzero(key == stat)
            if stat in self.ints:
                column = block.setdefault(self.ints[stat], np.full(n, MISSING, dtype=np.int64))
                column[events[hit]] = _numbers(tag[hit], value[hit])
            else:
                name = self.texts[stat]
                column = block.setdefault("'" + name, np.full(n, -1, dtype=np.int32))
                column[events[hit]] = self._codes(name, tag[hit], value[hit], place[hit], piece)

    def _wanted(self, keys: Ints) -> list[int]:
        """Those of some statistics that are kept."""
        found = {int(keys[0])} if (keys == keys[0]).all() else set(keys.tolist())
        return [key for key in found if key in self.ints or key in self.texts]

    def _codes(
        self, name: str, tag: NDArray[np.uint64], value: NDArray[np.uint64], place: Ints, piece: bytes
    ) -> NDArray[np.int32]:
        """Texts as codes; a reference stands for the name of a stat_metadata entry."""
        codes = self.codes.setdefault(name, {})
        found = np.full(len(tag), -1, dtype=np.int32)
        ref = np.flatnonzero(tag == _tag(7))
        names = self.names
        found[ref] = [codes.setdefault(names.get(target, ""), len(codes)) for target in value[ref].tolist()]
        for i in np.flatnonzero((tag == _tag(5, _BYTES)) | (tag == _tag(8, _BYTES))).tolist():
            raw = piece[place[i] : place[i] + int(value[i])]
            text = (unpack(raw) if tag[i] == _tag(8, _BYTES) else raw).decode(errors="replace")
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
            aggregated=self.aggregated,
            ints={name: column for name, column in columns.items() if not name.startswith("'")},
            texts={
                name[1:]: (column, list(self.codes[name[1:]]))
                for name, column in columns.items()
                if name.startswith("'")
            },
            **fixed,
        )


def _tag(number: int, wire: int = _VARINT) -> int:
    """How a field begins."""
    return number << 3 | wire


def _numbers(tag: NDArray[np.uint64], value: NDArray[np.uint64]) -> Ints:
    """Numbers by value, whatever their wire type; unsigned ids wrap to signed ones, so that both kinds compare."""
    numbers = value.view(np.int64).copy()
    double = tag == _tag(2, _FIXED64)
    if double.any():
        with np.errstate(invalid="ignore"):  # no number has no whole part
            numbers[double] = value[double].view(np.float64).astype(np.int64)
    numbers[~(double | (tag == _tag(3)) | (tag == _tag(4)))] = MISSING
    return numbers

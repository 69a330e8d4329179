"""The events of a line of an XSpace, from bytes to columns.

Events are many and are decoded a block at once with numpy: a round of the loop reads one field of every event.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.forms import keyed
from tracegap.ingest.readers._xplane_windows import Events, Read, events_of
from tracegap.ingest.readers._xplane_wire import BYTES, FIXED64, VARINT, WireError, parse, unpack

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MISSING = np.iinfo(np.int64).min
"""Marks an absent number in a column."""

_INTS = "run_id group_id step_num program_id correlation_id device_ordinal _pt _p _ct _c device_duration_ps"
_MEMORY = "bytes_allocated allocation_bytes peak_bytes_in_use addr index_on_host"
_TEXTS = "allocator_name hlo_op tf_op name annotation step_name memcpy_details memset_details"
WANTED_INTS = frozenset((*_INTS.split(), *_MEMORY.split()))
"""Event statistics that are kept as numbers."""
WANTED_TEXTS = frozenset(_TEXTS.split())
"""Event statistics that are kept as text."""
COUNTERS_LINE = "_counters_"
"""Line whose events are samples of counters: each has one number as its statistic."""


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
    values: Floats | None = None
    """Samples, where the line holds counters; not a number where an event has none."""
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
            values=self.values[keep] if self.values is not None else None,
        )

    def numbers(self, name: str) -> Ints:
        """A statistic as numbers, MISSING where there is none."""
        found = self.ints.get(name)
        return np.full(len(self), MISSING, dtype=np.int64) if found is None else found

    def codes(self, name: str) -> tuple[NDArray[np.int32], list[str]]:
        """A statistic as text: codes into a list, -1 where there is none."""
        return self.texts.get(name) or (np.full(len(self), -1, dtype=np.int32), [])


def read_line(read: Read, start: int, end: int, names: dict[int, str]) -> Line:
    """A line of a file. Raises WireError.

    Args:
        read: reads the file.
        start: where the line's content stands in it.
        end: where it ends.
        names: the plane's names of statistics.
    """
    rest = bytearray()
    columns = _Columns(names)
    for events in events_of(read, start, end, rest):
        columns.add(events)
    line = columns.line(parse("XLine", bytes(rest), start))
    if line.name == COUNTERS_LINE:
        line.values = _samples(parse("XLine", read(start, end - start), start).events)
    return line


def _samples(events: Any) -> Floats:
    """The first number of each event that has a place in time."""
    kinds = ("double_value", "uint64_value", "int64_value")
    placed = (event for event in events if event.WhichOneof("value") != "num_occurrences")
    numbers = ([getattr(s, k) for s in event.stats if (k := s.WhichOneof("value")) in kinds] for event in placed)
    return np.array([float(found[0]) if found else np.nan for found in numbers])


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
        value, size = _varints_behind(word, words, at)
        content = at + 1
        first = int(tags[0])
        alike = bool((tags == tags[0]).all())
        if alike and first & 7 == VARINT and 0 < first < 0x80:
            after = content + size
            sound = after <= end
        else:
            wire = tags & np.uint64(7)
            delimited, fixed = wire == BYTES, wire == FIXED64
            content = np.where(delimited, content + size, content)
            length = np.where(delimited, np.minimum(value, np.uint64(1 << 62)).astype(np.int64), 0)
            after = np.where(fixed, content + 8, np.where(delimited, content + length, content + size))
            if fixed.any():
                value = np.where(fixed, words[np.minimum(content, len(words) - 1)], value)
            sound = (delimited | fixed | (wire == VARINT)) & (tags < 0x80) & (tags >= 8) & (after <= end)
        if not sound.all():
            raise WireError("malformed", base + int(at[~sound][0]), "a damaged event")
        yield _Round(rows, first if alike else tags, value, content)
        more = after < end
        if more.all():
            at = after
        else:
            rows, at, end = rows[more], after[more], end[more]


def _varints_behind(word: NDArray[np.uint64], words: NDArray[np.uint64], at: Ints) -> tuple[NDArray[np.uint64], Ints]:
    """As `_varints` of `at + 1`; `word` has the bytes from `at` on, which nearly always are enough."""
    behind = word >> np.uint64(8)
    if not (behind & np.uint64(0x80)).any():
        return behind & np.uint64(0x7F), np.ones(len(at), dtype=np.int64)
    stop = ~behind & (_HIGH >> np.uint64(8))
    return _unpacked(behind, stop) if stop.all() else _varints(words, at + 1)


def _varints(words: NDArray[np.uint64], at: Ints) -> tuple[NDArray[np.uint64], Ints]:
    """Numbers that begin at these bytes, and how many bytes each takes; far too many where a number does not end."""
    word = words[np.minimum(at, len(words) - 1)]
    stop = ~word & _HIGH
    value, size = _unpacked(word, stop)
    for i in np.flatnonzero(stop == 0).tolist():  # more than 8 bytes: negative numbers
        value[i], size[i] = _long_varint(words, int(at[i]))
    return value, size


def _unpacked(word: NDArray[np.uint64], stop: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], Ints]:
    """Numbers at the beginning of words whose high bits that are not set are `stop`, and their bytes.

    The lowest such bit marks a number's last byte; then groups of 7 bits are moved together in pairs.
    """
    below = (stop & -stop) - np.uint64(1)
    size = (np.bitwise_count(below).astype(np.int64) + 1) >> 3
    value = word & below & _LOW7
    for low, high, shift in _GROUPS[: 2 if size.max() <= 4 else 3]:
        value = (value & low) | ((value & high) >> shift)
    return value, size


def _long_varint(words: NDArray[np.uint64], at: int) -> tuple[int, int]:
    value = 0
    for k in range(10):
        byte = int(words[min(at + k, len(words) - 1)]) & 0xFF
        value |= (byte & 0x7F) << 7 * k
        if byte < 0x80:
            return value & (1 << 64) - 1, k + 1
    return 0, 1 << 62


_NUMBERS = (3 << 3, 4 << 3)  # how the numbers of XStat begin, but for floating ones


class _Columns:
    """Collects the events of a line, block by block."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names
        self.ints = {key: name for key, name in names.items() if name in WANTED_INTS}
        self.texts = {key: name for key, name in names.items() if name in WANTED_TEXTS}
        self.codes: dict[str, dict[str, int]] = {}
        self.blocks: list[dict[str, NDArray[Any]]] = []
        self.aggregated = 0

    def add(self, events: Events) -> None:
        """Decodes a block of events."""
        n, piece = len(events.starts), events.data
        words = np.ndarray((len(piece) - 8,), dtype="<u8", buffer=piece, strides=(1,))
        block = {name: np.zeros(n, dtype=np.int64) for name in ("kind", "offset_ps", "duration_ps")}
        fields = dict(zip((_tag(1), _tag(2), _tag(3)), block.values(), strict=True))
        aggregated = np.zeros(n, dtype=bool)
        for now in _rounds(words, events.starts, events.ends, events.base):
            for tag, column in fields.items():
                if (hit := now.where(tag)) is not None:
                    column[now.rows[hit]] = now.value[hit].view(np.int64)
            if (hit := now.where(_tag(5))) is not None:
                aggregated[now.rows[hit]] = True
            if (hit := now.where(_tag(4, BYTES))) is not None and not self._add_alike(block, now, hit, words):
                stats = _rounds(words, now.at[hit], now.at[hit] + now.value[hit].view(np.int64), events.base)
                self._add_stats(block, now.rows[hit], stats, piece)
        if aggregated.any():
            self.aggregated += int(aggregated.sum())
            block = {name: column[~aggregated] for name, column in block.items()}
        self.blocks.append(block)

    def _add_alike(
        self, block: dict[str, NDArray[Any]], now: _Round, hit: slice | Ints, words: NDArray[np.uint64]
    ) -> bool:
        """Adds a statistic of each of some events where all are of one name and kind and hold a number; else nothing.

        They nearly always are: then their first bytes are the same, and the number is the only one to be read.
        """
        at, length = now.at[hit], now.value[hit].view(np.int64)
        head = words[at]
        first = int(head[0]) & 0xFFFFFF
        is_id, key, tag = first & 0xFF, first >> 8 & 0xFF, first >> 16
        if is_id != _tag(1) or key >= 0x80 or tag not in _NUMBERS or (head & np.uint64(0xFFFFFF) != first).any():
            return False
        if (length < 4).any():
            return False
        if key not in self.ints:
            return key not in self.texts
        value, size = _varints(words, at + 3)
        if (size + 3 != length).any():
            return False
        column = block.setdefault(self.ints[key], np.full(len(block["kind"]), MISSING, dtype=np.int64))
        column[now.rows[hit]] = value.view(np.int64)
        return True

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
        if len(ref):
            targets, which = keyed(value[ref].view(np.int64))
            told = [codes.setdefault(self.names.get(target, ""), len(codes)) for target in targets.tolist()]
            found[ref] = np.array(told, dtype=np.int32)[which]
        for kind, read in ((_tag(5, BYTES), bytes), (_tag(8, BYTES), unpack)):
            rows = np.flatnonzero(tag == kind)
            spans = zip(place[rows].tolist(), (place[rows] + value[rows].view(np.int64)).tolist(), strict=True)
            raw = [piece[begin:end] for begin, end in spans]
            told_of = {text: read(text).decode(errors="replace") for text in dict.fromkeys(raw)}
            code_of = {text: codes.setdefault(own, len(codes)) for text, own in told_of.items()}
            found[rows] = [code_of[text] for text in raw]
        return found

    def line(self, message: Any) -> Line:
        """The line with all blocks joined."""
        columns: dict[str, NDArray[Any]] = {}
        sizes = [len(block["kind"]) for block in self.blocks]
        for name in {name for block in self.blocks for name in block}:
            absent = -1 if name.startswith("'") else MISSING
            kind = np.int32 if name.startswith("'") else np.int64
            columns[name] = np.concatenate(  # a column is not needed twice
                [
                    block.pop(name) if name in block else np.full(size, absent, dtype=kind)
                    for block, size in zip(self.blocks, sizes, strict=True)
                ]
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


def _tag(number: int, wire: int = VARINT) -> int:
    """How a field begins."""
    return number << 3 | wire


def _numbers(tag: NDArray[np.uint64], value: NDArray[np.uint64]) -> Ints:
    """Numbers by value, whatever their wire type; unsigned ids wrap to signed ones, so that both kinds compare."""
    numbers = value.view(np.int64).copy()
    double = tag == _tag(2, FIXED64)
    if double.any():
        with np.errstate(invalid="ignore"):  # no number has no whole part
            numbers[double] = value[double].view(np.float64).astype(np.int64)
    numbers[~(double | (tag == _tag(3)) | (tag == _tag(4)))] = MISSING
    return numbers

"""An XSpace file: its planes, lines and events. What the columns mean is for `xspace.py`.

Planes are read one by one, so that a cut file keeps its whole ones: first without their lines, and with them when asked,
so that a large file need not be in memory whole. Names and statistics of a plane are few and go through protobuf; its
events are many, see `_xplane_lines.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tracegap.ingest.errors import TraceError
from tracegap.ingest.files import open_plain
from tracegap.ingest.readers._xplane_lines import MISSING, WANTED_INTS, WANTED_TEXTS, Ints, Line, read_line
from tracegap.ingest.readers._xplane_windows import fields_within
from tracegap.ingest.readers._xplane_wire import BYTES, PROTO, Value, WireError, fields, parse, stats_of, varint

__all__ = [
    "MISSING",
    "PROTO",
    "WANTED_INTS",
    "WANTED_TEXTS",
    "EventKind",
    "Ints",
    "Line",
    "Plane",
    "Source",
    "Space",
    "Value",
    "WireError",
    "read_plane",
    "read_space",
]

_PIECE = 1 << 24  # bytes decompressed at once
_SMALL = 1 << 22  # bytes of a plane that is held in memory while it is read
_SHARED = 1 << 14  # bytes of an event kind that is kept to be found in other planes: HLO modules are larger, and once
_PLANES, _ERRORS, _WARNINGS, _HOSTNAMES = 1, 2, 3, 4  # fields of XSpace
_LINES, _KINDS = 3, 4  # of XPlane
_NAME, _EVENTS, _DISPLAY_NAME = 2, 4, 11  # of XLine


@dataclass(slots=True, kw_only=True, eq=False)
class EventKind:
    """An entry of a plane's event metadata: what is the same for all events of this id. Planes share equal ones."""

    name: str
    display_name: str
    stats: dict[str, Value]


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

    def sound_lines(self, wanted: Wanted = lambda _: True) -> list[Line]:
        """Its wanted lines; none where the plane is damaged."""
        try:
            return self.whole(wanted).lines
        except WireError:
            return []


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
    begin: int = 0
    """Where the data in memory begin in the file."""
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

    def part(self, at: int, size: int) -> "Source":
        """A part of it in memory; it is read at the same places."""
        return Source(size=self.size, data=self.read(at, size), begin=at) if self.path is not None else self

    def read(self, at: int, size: int) -> bytes:
        """The `size` bytes from byte `at` on, fewer at the end."""
        if self.path is None:
            return self.data[at - self.begin : at - self.begin + size]
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
        if head[0] & 7 != BYTES or not 1 <= head[0] >> 3 <= 15 or head[0] > 0x7F:
            raise WireError("malformed", at, "no field of an XSpace")
        size, digits = varint(head, 1, len(head), at)
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
        for _ in fields(body, 0, len(body), base):
            pass
    except WireError as error:
        return error if error.code == "malformed" else None
    return None


def read_plane(data: bytes) -> Plane:
    """A plane from its bytes. Raises WireError."""
    return _open_plane(Source.within(data), 0, len(data), {}).whole()


def _open_plane(source: Source, base: int, size: int, shared: dict[Any, dict[bytes, tuple[int, EventKind]]]) -> Plane:
    """A plane without its lines. `shared` has the event kinds of other planes by their bytes, for each set of names."""
    end = base + size
    held = source.part(base, size) if size <= _SMALL else source
    spans, entries, rest = [], [], bytearray()
    for number, wire, start, stop, whole in fields_within(held.read, base, end, passed=_LINES):
        if number == _LINES and wire == BYTES:
            spans.append((start, stop))
        elif number == _KINDS and wire == BYTES:
            entries.append(whole[len(whole) - (stop - start) :])
        else:
            rest += whole
    message = parse("XPlane", bytes(rest), base)
    names = {key: entry.name for key, entry in message.stat_metadata.items()}
    known = shared.setdefault(tuple(sorted(names.items())), {})
    kinds = {}
    for entry in entries:
        found = known.get(entry) or _kind(entry, names, base)
        if len(entry) < _SHARED:
            known[entry] = found
        kinds[found[0]] = found[1]

    titles = [_line_name(held, span) for span in spans]

    def load(wanted: Wanted) -> list[Line]:
        held = source.part(base, size) if size <= _SMALL else source
        return [read_line(held.read, *span, names) for span, title in zip(spans, titles, strict=True) if wanted(title)]

    return Plane(
        id=message.id,
        name=message.name,
        stats=stats_of(message.stats, names),
        kinds=kinds,
        load=load,
        unread=titles,
        size=size,
    )


def _kind(entry: bytes, names: dict[int, str], base: int) -> tuple[int, EventKind]:
    message = parse("KindEntry", entry, base)
    kind = message.value
    return message.key, EventKind(name=kind.name, display_name=kind.display_name, stats=stats_of(kind.stats, names))


def _line_name(source: Source, span: tuple[int, int]) -> str:
    """Name of a line, which nearly always stands before its events."""
    shown = b""
    for number, _, start, stop, whole in fields_within(source.read, *span, passed=_EVENTS):
        if number == _NAME:
            return whole[len(whole) - (stop - start) :].decode(errors="replace")
        if number == _DISPLAY_NAME:
            shown = whole[len(whole) - (stop - start) :]
    return shown.decode(errors="replace")

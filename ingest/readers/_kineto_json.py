"""Text of a Kineto trace to blocks of typed events: fast while the text is sound, event by event where it is not.

The event list is cut at event boundaries into blocks that fit the processor's cache and decoded without a Python object
per field. Nothing of an event's meaning is known here but its two times.
"""

import bisect
import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.errors import TraceError
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers._kineto_schema import Event, UsualEvent
from tracegap.ingest.readers._kineto_text import BOUNDARY, Text
from tracegap.ingest.readers._kineto_times import Spans, double_times, exact_times

BLOCK_BYTES = 1 << 19  # measured: 256 to 512 KiB is fastest, 8 MiB takes twice as long
HEAD_LIMIT_BYTES = 1 << 26  # metadata before the events; beyond that it is another kind of file
_INNER_BOUNDARIES = 64  # how many objects in lists inside one event are told from the start of the next
_OVERLAP_BYTES = 64  # a boundary with its white space may lie across two reads
_BETWEEN = b" \t\r\n,"


_USUAL_EVENTS = msgspec.json.Decoder(list[UsualEvent])
_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])

_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENT_END = re.compile(rb"\}\s*,")
_LIST_END = re.compile(rb"\}\s*(?=\])")
_SECOND_DOCUMENT = re.compile(rb'"(?:traceEvents|schemaVersion|deviceProperties)"\s*:')
_ONCE = (b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')
"""Keys that stand once before the events, unless a second process wrote its own between them."""
_BYTE = re.compile(r"\(byte (\d+)\)")
_STRING_OR_NONFINITE = re.compile(
    rb'"(?:[^"\\]|\\.)*"|(?<=[\s:\[,])-?(?:inf(?:inity)?|nan(?:\([^)"]*\))?)(?=[\s,}\]])', re.IGNORECASE | re.DOTALL
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')


@dataclass(slots=True)
class Block:
    """Events in the file's order. Raw fields point into `text`, which the next block overwrites."""

    events: list[Event]
    text: bytes | memoryview
    first: int
    """Number of the first event."""

    def times(self, events: list[Event], rows: NDArray[np.int64]) -> Spans:
        """Start and duration of some of the events, which are `rows`; both ends are rounded, never the length.

        Where doubles would lose digits or the times are strings, they are taken from the text as decimals.
        """
        return double_times(events) or exact_times(self.text, rows)


class UnusualText(Exception):
    """Text that must be read as a whole: by one process, block after block."""


@dataclass
class Share:
    """One process's part of a file's blocks, which `of` processes decode in turn.

    Number 0 decodes the first ones and what stands behind the last whole one too.

    The first event of block n has the number n << BLOCK_SHIFT, until it is known how many come before it.
    """

    number: int
    of: int
    counts: dict[int, int] = field(default_factory=dict)
    """Events of each block that was decoded."""
    block: int = 0

    def mine(self) -> bool:
        """Whether the block that comes now is one of them; if not, it is passed."""
        if max(0, self.block - _HEAD_START) % self.of == self.number:
            return True
        self.block += 1
        return False

    def first(self, events: int) -> int:
        """Number of the first event of a block that has so many."""
        self.counts[self.block] = events
        self.block += 1
        return (self.block - 1) << BLOCK_SHIFT


BLOCK_SHIFT = 32
_HEAD_START = 64
"""Blocks that the first process decodes while the others start."""


@dataclass
class KinetoText:
    """Reads one file's text; `blocks` yields the events, and what is beside them stands in the fields afterwards."""

    stream: BinaryIO
    path: str
    issues: Issues
    share: "Share | None" = None
    """Which blocks to decode; all if None."""
    block_bytes: int = field(default_factory=lambda: BLOCK_BYTES)
    metadata: dict[str, Any] = field(default_factory=dict)
    """The keys of the object beside `traceEvents`; empty for a bare array."""
    bare_array: bool = False
    events: int = 0
    """Events yielded so far."""
    null_fields: int = 0
    """Numbers that were none (inf, nan) and are read as null."""
    damaged_events: int = 0

    def blocks(self) -> Iterator[Block]:
        """All whole events. Raises `TraceError` (foreign, empty, truncated, interleaved) if there can be none."""
        head, first = self._find_events()
        text = Text(first, self.block_bytes)
        offset, searched, closed = len(head), 0, False
        while not closed:
            cut = text.last_boundary(searched)
            if cut is not None:
                end, following = cut
                mine = self.share is None or self.share.mine()
                block = self._usual(text, end) if mine else None
                if block or not mine:
                    if block:
                        yield block
                    offset += following
                    text.drop(following)
                    searched = 0
                    continue
                if self.share:
                    raise UnusualText
                blocks, left, closed = self._decode(text.text(0, end), offset, last=False)
                yield from blocks
                offset += following - len(left)
                text.put(left + text.text(end) if left or closed else text.text(following))
                searched = 0
                if closed or not left:
                    continue
            searched = max(0, len(text) - _OVERLAP_BYTES)
            if text.more(self._read_into, max(self.block_bytes, len(text))):  # doubling keeps a huge event linear
                continue
            if self.share and self.share.number:
                return
            blocks, left, closed = self._decode(text.text(), offset, last=True)
            yield from blocks
            offset += len(text) - len(left)
            text.put(left)
            break
        self._finish(head, text.text() if closed else None, offset)

    def _usual(self, text: Text, end: int) -> Block | None:
        """The events in the first `end` bytes, if they are what the profiler usually writes."""
        separator = text.text(end, end + 1)
        array = text.array(end)
        try:
            events = _typed(array)
        except msgspec.DecodeError:
            array[-1:] = separator
            return None
        return self._block(events, array)

    def _block(self, events: list[Event], array: bytes | memoryview) -> Block:
        first = self.share.first(len(events)) if self.share else self.events
        self.events += len(events)
        return Block(events, array, first)

    # -- the stream ------------------------------------------------------------------------------------------------

    def _read_into(self, place: memoryview) -> int:
        """Fills `place` with the next bytes; a break in the compressed data is counted and ends the text."""
        if self._broken is not None:
            return 0
        try:
            return self.stream.readinto(place)  # type: ignore[attr-defined, no-any-return]  # of typing.BinaryIO
        except TraceError as error:
            self.issues.add(error.code, f"{error.what}; what stands before is read", severity="data_loss")
            self._broken = error
            return 0

    def _read(self, size: int) -> bytes:
        """The next bytes."""
        text = bytearray(size)
        return bytes(text[: self._read_into(memoryview(text))])

    _broken: TraceError | None = None

    def _find_events(self) -> tuple[bytes, bytes]:
        """The text up to and with the `[` of the event list, and what was read behind it."""
        text = b""
        while True:
            chunk = self._read(self.block_bytes)
            text += chunk
            start = text.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
            if start == b"[":
                self.bare_array = True
                at = text.index(b"[") + 1
                return text[:at], text[at:]
            if found := _START.search(text):
                if any(text.count(key, 0, found.end()) > 1 for key in _ONCE):
                    raise self.interleaved("in its head")
                return text[: found.end()], text[found.end() :]
            if not chunk or (start and start != b"{") or len(text) > HEAD_LIMIT_BYTES:
                raise self._no_events(text)

    def _no_events(self, text: bytes) -> TraceError:
        if not text.strip():
            return self._broken or TraceError(self.path, "holds no text", code="empty", todo="profile again")
        if self._broken is not None:
            return self._broken
        try:
            keys = sorted(json.loads(text, strict=False))[:8]
        except ValueError as error:
            if text.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" and len(text) <= HEAD_LIMIT_BYTES:
                return TraceError(
                    self.path, f"ends before its traceEvents ({error})", code="truncated", todo="profile again"
                )
            keys = []
        has = f" (its keys: {', '.join(map(str, keys))})" if keys else ""
        kind = "a PyTorch execution trace" if "nodes" in keys else "not a profiler trace"
        return TraceError(
            self.path,
            f"has no traceEvents{has}: it is {kind}",
            code="foreign",
            todo="give the file that torch.profiler's export_chrome_trace wrote",
        )

    def _finish(self, head: bytes, tail: bytes | None, offset: int) -> None:
        """Metadata, and whether the document is whole. `tail` stands behind the list's `]`, None if it has none."""
        if tail is None:
            if not self.bare_array and "truncated" not in self.issues.by_code:
                self._truncated(offset)
            tail = b"}"
        else:
            while chunk := self._read(self.block_bytes):
                tail += chunk
            self._refuse_second_document(tail, offset)
        if self.bare_array:
            self._refuse_second_list(tail, offset)
            return
        for text, whole in ((head + b"]" + tail, True), (head + b"]}", False)):
            try:
                metadata = json.loads(_repair(text)[0].decode("utf-8", "replace"), strict=False)
            except ValueError:
                continue
            if not whole:
                self.issues.add(
                    "truncated" if not tail.rstrip().endswith(b"}") else "malformed",
                    "the metadata behind the events cannot be read; the events are whole",
                    where=f"byte {offset}",
                    severity="data_loss",
                )
            self.metadata = {k: v for k, v in metadata.items() if k != "traceEvents"}
            return

    def _refuse_second_document(self, text: bytes, offset: int) -> None:
        """Two processes that wrote into one file leave totals that belong to neither."""
        second = _SECOND_DOCUMENT.search(text) if self.bare_array or b"traceEvents" in text else None
        if second:
            raise self.interleaved(f"from byte {offset + second.start()}")

    def _refuse_second_list(self, tail: bytes, offset: int) -> None:
        """Nothing stands behind a bare list of events but perhaps another one."""
        behind = tail.strip(b"} \t\r\n\0")
        if behind.startswith((b"[", b"{")):
            raise self.interleaved(f"from byte {offset}")
        self.issues.add(
            "malformed", "text behind the end of the event list was left out", where=f"byte {offset}",
            count=bool(behind), severity="data_loss",
        )  # fmt: skip

    def interleaved(self, where: str) -> TraceError:
        """The error of a file that two processes wrote."""
        return TraceError(
            self.path,
            f"holds a second trace {where}: two processes wrote into one file",
            code="interleaved",
            todo="give each rank its own file name",
        )

    # -- events ----------------------------------------------------------------------------------------------------

    def _decode(self, text: bytes, offset: int, *, last: bool) -> tuple[list[Block], bytes, bool]:
        """Events of `text`, which begins at one: (blocks, text left over, whether the list was closed before that).

        Text that is not the last and ends inside an event is left over for the next call.
        """
        blocks: list[Block] = []
        while text.strip(_BETWEEN):
            outcome, end = self._whole(text, blocks)
            if outcome is _Outcome.BAD and not blocks:
                fixed, *counts = _repair(text)
                outcome, end = self._whole(fixed, blocks) if any(counts) else (outcome, end)
                if outcome in (_Outcome.GOOD, _Outcome.CLOSED):
                    self._count_repairs(*counts)
                    text = fixed
            if outcome is _Outcome.CLOSED:
                return blocks, text[end:], True
            if outcome is _Outcome.GOOD:
                return blocks, b"", False
            good = self._good_prefix(text, blocks, last=last)
            resume = good or self._resume(text, last=last)
            if resume is None or (not good and not last and self._ends_early(text)):
                if last:
                    self._truncated(offset)
                return blocks, b"" if last else text, False
            if not good:
                self._repair_event(text[:resume], offset, blocks)
            text, offset = text[resume:], offset + resume
        return blocks, b"", False

    def _ends_early(self, text: bytes) -> bool:
        """Whether `text` is sound as far as it goes."""
        return self._whole(text, [])[0] is _Outcome.ENDS_EARLY

    def _count_repairs(self, nulls: int, strings: int) -> None:
        self.null_fields += nulls
        self.issues.add("not_a_number", "inf or nan in place of a number, read as null", count=nulls)
        self.issues.add("raw_text", "raw control characters or bytes in a string, kept repaired", count=strings)

    def _repair_event(self, text: bytes, offset: int, blocks: list[Block]) -> None:
        """Keeps one event that does not decode, if it can be repaired; else counts it as damaged."""
        fixed, *counts = _repair(text)
        if _decodes(fixed):
            self._keep(fixed.rstrip(_BETWEEN), blocks)
            self._count_repairs(*counts)
            return
        self._refuse_second_document(text, offset)
        self.damaged_events += 1
        self.issues.add(
            "malformed",
            "an event is not valid JSON and was left out; the others are read",
            where=f"byte {offset}, event {self.events}",
            severity="data_loss",
        )

    def _whole(self, text: bytes, blocks: list[Block]) -> tuple["_Outcome", int]:
        """Decodes all of `text`, or up to the `]` that closes the list: then also the place behind that."""
        try:
            self._keep(text.rstrip(_BETWEEN), blocks)
        except msgspec.DecodeError as error:
            message = str(error)
            at = int(place[1]) if (place := _BYTE.search(message)) else 0  # counted from one, in "[" + text + "]"
            if "trailing characters" in message:
                end = text.rfind(b"]", 0, at - 2)
            elif "trailing comma in array" in message:
                end = at - 1
            else:
                return (_Outcome.ENDS_EARLY if "truncated" in message else _Outcome.BAD), 0
            inner = text[:end].rstrip(_BETWEEN)
            if text[end : end + 1] != b"]" or not _decodes(inner):
                return _Outcome.BAD, 0
            if inner:
                self._keep(inner, blocks)
            return _Outcome.CLOSED, end + 1
        return _Outcome.GOOD, 0

    def _good_prefix(self, text: bytes, blocks: list[Block], *, last: bool) -> int:
        """Decodes what stands before the first damaged or unfinished event; where that begins."""
        bounds = [0, *(m.end() for m in BOUNDARY.finditer(text))]
        at = bisect.bisect_left(range(len(bounds)), True, key=lambda i: not _decodes(text[: bounds[i]])) - 1
        start = bounds[at]
        if not start:  # objects in lists inside the first event look like boundaries too
            inside = bounds[2 : 2 + _INNER_BOUNDARIES]
            start = next((end for end in inside if _decodes(text[:end])), 0)
        if not start and last:  # cut before the next event begins
            ends = [m.end() for m in _EVENT_END.finditer(text)][-_INNER_BOUNDARIES:]
            start = next((end for end in reversed(ends) if _decodes(text[:end])), 0)
        if start:
            self._keep(text[:start].rstrip(_BETWEEN), blocks)
        return start

    def _resume(self, text: bytes, *, last: bool) -> int | None:
        """Where a damaged event that `text` begins with is over."""
        if boundary := BOUNDARY.search(text):
            return boundary.end()
        for end in _LIST_END.finditer(text) if last else ():
            tail = text[end.end() + 1 :]
            if not tail.strip() if self.bare_array else _is_json(b'{"traceEvents":[]' + tail):
                return end.end()
        return None

    def _keep(self, text: bytes, blocks: list[Block]) -> None:
        """Decodes whole events into a block."""
        array = b"[" + text + b"]"
        blocks.append(self._block(_entries(array), array))

    def _truncated(self, offset: int) -> None:
        self.issues.add(
            "truncated",
            "the file ends inside its event list; the whole events before are read",
            where=f"byte {offset}, event {self.events}",
            severity="data_loss",
        )


class _Outcome(Enum):
    """What became of decoding a text."""

    GOOD = 1
    CLOSED = 2
    ENDS_EARLY = 3
    BAD = 4


def _typed(array: bytes | memoryview) -> list[Event]:
    """Events of a JSON array. Raises what msgspec raises."""
    with contextlib.suppress(msgspec.ValidationError):
        return _USUAL_EVENTS.decode(array)  # type: ignore[return-value]  # they are events
    return _EVENTS.decode(array)


def _entries(array: bytes) -> list[Event]:
    """Events of a JSON array; one whose fields are of strange types is decoded on its own."""
    try:
        return _typed(array)
    except msgspec.ValidationError:
        return [_lenient(bytes(raw)) for raw in _RAWS.decode(array)]


def _decodes(text: bytes) -> bool:
    """Whether `text` is whole entries of a list, none among them."""
    try:
        _entries(b"[" + text.rstrip(_BETWEEN) + b"]")
    except msgspec.DecodeError:
        return False
    return True


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text, strict=False)
    except ValueError:
        return False
    return True


def _repair(text: bytes) -> tuple[bytes, int, int]:
    """`text` with numbers that are none as null and strings made valid: (text, numbers, strings)."""
    nulls = strings = 0

    def fix(match: re.Match[bytes]) -> bytes:
        nonlocal nulls, strings
        token = match[0]
        if not token.startswith(b'"'):
            nulls += 1
            return b"null"
        fixed = _CONTROL.sub(lambda m: b"\\u%04x" % m[0][0], token)
        fixed = _BAD_ESCAPE.sub(rb"\\\\", fixed)
        strings += fixed != token
        return fixed

    text = _STRING_OR_NONFINITE.sub(fix, text)
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode("utf-8", "replace").encode()
        strings += 1
    return text, nulls, strings


def _lenient(text: bytes) -> Event:
    """One event whose `args` is no object, or an entry that is no event at all."""
    try:
        return _EVENT.decode(text)
    except msgspec.ValidationError:
        entry = msgspec.json.decode(text)
    if not isinstance(entry, dict):
        return Event()
    known: dict[str, Any] = {k: entry.get(k) for k in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}
    return Event(**known)

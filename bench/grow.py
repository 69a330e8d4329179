"""Makes a large trace of a sample trace: all its steps again and again, later and with ids of their own.

A reader finds in it what the sample has, copy after copy: launches meet their kernels, collectives their operators, steps
go on counting. Nothing is random, and memory does not grow with the size.

Usage: python bench/grow.py SAMPLE OUT [--size-mb 300] [--layout field-a-line|classic|compact] [--a-step 10] [--planes 4]
"""

import argparse
import gzip
import json
import math
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np

from tracegap.ingest.readers._xplane_wire import PROTO

MB = 10**6
LAYOUTS = ("field-a-line", "classic", "compact")
"""How PyTorch lays a Kineto file out: 2.13 a field a line, 2.0 to 2.9 four lines an event; what was saved again, one."""
_MS_NS = 10**6

_KINETO_IDS = {
    "External id": "external", "Ev Idx": "index", "Record function id": "record", "correlation": "correlation",
    "Sequence number": "sequence", "Seq": "collective", "Python id": "frame", "Python parent id": "frame",
}  # fmt: skip
"""Arguments that number something, and what."""
_STEP = re.compile(r"(?<=^ProfilerStep#)\d+$")
_FIRST = ("cpu_op", "user_annotation", "python_function", "cpu_instant_event")
"""What PyTorch writes first, all of it before the first launch and kernel."""
_OWN_LINE = {
    "queued", "stream", "registers per thread", "shared memory", "blocks per SM", "warps per SM", "grid", "block",
    "est. achieved occupancy %",
}  # fmt: skip
"""Arguments of a kernel that begin a line; other events have theirs in one."""

_XSPACE_IDS = {
    "step_num": "step", "step_name": "step", "group_id": "group", "run_id": "run", "flow": "flow", "id": "id",
    "_c": "context", "_p": "context", "correlation_id": "correlation",
}  # fmt: skip

_NSYS_IDS = ("correlationId", "gridId", "rangeId")
_NSYS_TEXT = re.compile(r"(?:(?<=seq = )|(?<=op_id = )|(?<=^step ))\d+")
"""Numbers in the text of an NVTX range: PyTorch's sequence number and operator, and the step."""


class _Ids:
    """Numbers of several kinds; each copy goes on where the one before ended."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[int, int]] = {}

    def see(self, kind: str, number: int) -> None:
        low, high = self._spans.get(kind, (number, number))
        self._spans[kind] = (min(low, number), max(high, number))

    def stride(self, kind: str) -> int:
        low, high = self._spans[kind]
        return high - low + 1


class _Template:
    """Text of one copy with places for the numbers that each copy adds to."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._numbers: list[int] = []
        self._strides: list[int] = []

    def text(self, text: str) -> None:
        self._parts.append(text.replace("%", "%%"))

    def number(self, number: int, stride: int) -> None:
        self._parts.append("%d")
        self._numbers.append(number)
        self._strides.append(stride)

    def writer(self) -> Callable[[int], bytes]:
        """Gives copy k as bytes."""
        text, numbers, strides = "".join(self._parts), np.array(self._numbers), np.array(self._strides)
        return lambda k: (text % tuple((numbers + k * strides).tolist())).encode()


def _ns(us: float) -> int:
    return int(us) * 1000 + round((us - int(us)) * 1000)


def _extent_ns(events: Iterable[dict[str, Any]]) -> int:
    spans = [(_ns(e["ts"]), _ns(e["ts"]) + _ns(e.get("dur", 0))) for e in events]
    return max(end for _, end in spans) - min(start for start, _ in spans)


def _period_ns(extent_ns: int) -> int:
    """A copy begins so long after the one before: whole milliseconds, so that the ranks of a job stay together."""
    return math.ceil(extent_ns / _MS_NS) * _MS_NS


class _Kineto:
    """Lays out events of a file."""

    def __init__(self, events: list[dict[str, Any]], layout: str) -> None:
        self.layout = layout
        self.ids = _Ids()
        self.period_us = _period_ns(_extent_ns(events)) // 1000
        for event in events:
            for key, number in event.get("args", {}).items():
                if key in _KINETO_IDS and number:
                    self.ids.see(_KINETO_IDS[key], number)
            if "id" in event:
                self.ids.see(self._flow(event), event["id"])
            if found := _STEP.search(event["name"]):
                self.ids.see("step", int(found[0]))

    def long_steps(self, marks: list[dict[str, Any]], copies: int) -> list[dict[str, Any]]:
        """Of the marks of steps those of the first one, lasting so many copies."""
        first = min((e["name"] for e in marks), default="")
        return [e | {"dur": copies * self.period_us - 1} for e in marks if e["name"] == first]

    def template(self, events: Iterable[dict[str, Any]]) -> _Template:
        """Of some events, each with a comma after it."""
        out = _Template()
        for event in events:
            self._event(out, event)
        return out

    def _flow(self, event: dict[str, Any]) -> str:
        return "correlation" if event.get("cat") == "ac2g" else f"flow {event.get('cat')}"

    def _event(self, out: _Template, event: dict[str, Any]) -> None:
        line, field = {
            "field-a-line": ("\n    ", ",\n    "), "classic": ("\n    ", ", "), "compact": ("", ", "),
        }[self.layout]  # fmt: skip
        spread = self.layout != "compact"
        out.text(("\n  {" if spread else "{") + line)
        for i, key in enumerate(k for k in event if k != "args"):
            times = spread and key == "ts" and event["ph"] != "M"
            out.text(("" if i == 0 else ",\n    " if times else field) + f'"{key}": ')
            self._value(out, event, key)
        if "args" in event:
            end = line if self.layout == "field-a-line" and event["ph"] in "Xi" else ""
            deep = "\n      " if spread else ""
            out.text(f'{end},{line or " "}"args": {{{deep}')
            for i, key in enumerate(event["args"]):
                out.text("" if i == 0 else f",{deep}" if spread and key in _OWN_LINE else ", ")
                self._arg(out, key, event["args"][key])
            out.text(line + "}")
        out.text("\n  }," if spread else "}, ")

    def _value(self, out: _Template, event: dict[str, Any], key: str) -> None:
        value = event[key]
        moving = event["ph"] != "M"
        if key == "ts" and moving:
            whole, rest = divmod(_ns(value), 1000)
            out.number(whole, self.period_us)
            out.text(f".{rest:03d}")
        elif key in ("ts", "dur"):
            out.text(f"{_ns(value) // 1000}.{_ns(value) % 1000:03d}")
        elif key == "id" and moving:
            out.number(value, self.ids.stride(self._flow(event)))
        elif key == "name" and (step := _STEP.search(value)):
            out.text('"' + value[: step.start()])
            out.number(int(step[0]), self.ids.stride("step"))
            out.text('"')
        else:
            out.text(json.dumps(value))

    def _arg(self, out: _Template, key: str, value: Any) -> None:
        out.text(json.dumps(key) + ": ")
        if key in _KINETO_IDS and (value or key == "Ev Idx"):  # else 0 stands for none
            out.number(value, self.ids.stride(_KINETO_IDS[key]))
        else:
            out.text(json.dumps(value))


def _members(document: dict[str, Any], keys: Iterable[str], layout: str) -> str:
    return "".join(
        f"{json.dumps(k)}: {json.dumps(document[k])}," + (" " if layout == "compact" else "\n  ") for k in keys
    )


def grow_kineto(sample: Path, out: Path, *, layout: str, size_mb: float = 0, copies: int = 0, a_step: int = 0) -> int:
    """Writes a Kineto file of so many copies, or of that much text, packed where its name ends in .gz; the copies.

    With `a_step`, so many copies together are one step.
    """
    document = json.loads(_plain(sample))
    keys = list(document)
    at = keys.index("traceEvents")
    once = [e for e in document["traceEvents"] if e["ph"] == "M" or "ts" not in e]
    events = [e for e in document["traceEvents"] if e["ph"] != "M" and "ts" in e]
    kineto = _Kineto(events, layout)
    marks = [e for e in events if _STEP.search(e["name"])] if a_step else []
    steps = kineto.long_steps(marks, a_step)
    events = [e for e in events if e not in marks]
    parts = []
    for is_first in (True, False):
        of_part, steps_of_part = (
            kineto.template(e for e in some if (e.get("cat") in _FIRST) == is_first).writer()
            for some in (events, steps)
        )
        parts.append((of_part, steps_of_part))
    copies = copies or math.ceil(size_mb * MB / sum(len(of_part(0)) for of_part, _ in parts))
    newline = "" if layout == "compact" else "\n  "
    with out.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, 0) if out.suffix == ".gz" else nullcontext(raw) as f:
        f.write(f'{{{newline}{_members(document, keys[:at], layout)}"traceEvents": ['.encode())
        f.write(kineto.template(once).writer()(0))
        for is_last, (of_part, steps_of_part) in enumerate(parts):
            for k in range(copies):
                f.write(steps_of_part(k) if a_step and k % a_step == 0 else b"")
                text = of_part(k)
                f.write(text.rstrip(b", \n") if is_last and k == copies - 1 else text)
        end = _members(document, keys[at + 1 :], layout).rstrip(", \n")
        f.write(f"{newline}]{',' + newline if end else ''}{end}{newline[:1]}}}".encode())
    return copies


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def grow_xspace(sample: Path, out: Path, *, planes: int = 0, size_mb: float = 0, copies: int = 0) -> int:
    """Writes an XSpace file of so many copies, or that size, with the first device planes (all unless told); the copies."""
    space = PROTO["XSpace"].FromString(_plain(sample))
    devices = [plane for plane in space.planes if plane.name.startswith("/device:")]
    kept = [p for p in space.planes if p not in devices[planes or len(devices) :]]
    lines = [line for plane in kept for line in plane.lines]
    size = sum(line.ByteSize() for line in lines)
    copies = copies or math.ceil((size_mb * MB - sum(p.ByteSize() for p in kept) + size) / size)
    starts = [line.timestamp_ns * 1000 + e.offset_ps for line in lines for e in line.events]
    ends = [line.timestamp_ns * 1000 + e.offset_ps + e.duration_ps for line in lines for e in line.events]
    period_ps = _period_ns((max(ends) - min(starts)) // 1000) * 1000
    ids = _Ids()
    for plane in kept:
        _number_xspace(plane, ids)
    with out.open("wb") as f:
        for plane in kept:
            with tempfile.TemporaryFile(dir=out.parent) as body:
                _write_plane(body, plane, ids, copies, period_ps)
                f.write(b"\x0a" + _varint(body.tell()))
                body.seek(0)
                shutil.copyfileobj(body, f)
        del space.planes[:]
        f.write(space.SerializeToString())
    return copies


def _number_xspace(plane: Any, ids: _Ids) -> None:
    names = {i: m.name for i, m in plane.stat_metadata.items()}
    for line in plane.lines:
        for event in line.events:
            for stat in event.stats:
                name = names[stat.metadata_id]
                if name in _XSPACE_IDS:
                    ids.see(_XSPACE_IDS[name], int(getattr(stat, stat.WhichOneof("value"))))


def _write_plane(f: IO[bytes], plane: Any, ids: _Ids, copies: int, period_ps: int) -> None:
    """Writes a plane: its lines first, each repeated, then its names with those of the new steps."""
    names = {i: m.name for i, m in plane.stat_metadata.items()}
    for line in plane.lines:
        with tempfile.TemporaryFile() as body:
            events = PROTO["XLine"](events=line.events)
            head = PROTO["XLine"].FromString(line.SerializeToString())
            del head.events[:]
            body.write(head.SerializeToString())
            moves = _moves(events, names, ids, period_ps)
            kinds = {e.metadata_id for e in events.events} if line.name == "Steps" else set()
            body.write(events.SerializeToString())
            for _ in range(1, copies):
                for message, name, stride in moves:
                    value = getattr(message, name)
                    setattr(message, name, value + stride if isinstance(value, int) else str(int(value) + stride))
                if kinds:
                    _new_steps(plane, events, ids.stride("step"))
                body.write(events.SerializeToString())
            f.write(b"\x1a" + _varint(body.tell()))
            body.seek(0)
            shutil.copyfileobj(body, f)
    del plane.lines[:]
    for stat in plane.stats:
        if names[stat.metadata_id] == "profile_stop_time":
            member = stat.WhichOneof("value")
            setattr(stat, member, getattr(stat, member) + (copies - 1) * period_ps // 1000)
    f.write(plane.SerializeToString())


def _moves(line: Any, names: dict[int, str], ids: _Ids, period_ps: int) -> list[tuple[Any, str, int]]:
    """Fields of a line's events that each copy adds to: message, field, how much."""
    moves = []
    for event in line.events:
        moves.append((event, "offset_ps", period_ps))
        for stat in event.stats:
            name = names[stat.metadata_id]
            if name == "device_offset_ps":
                moves.append((stat, stat.WhichOneof("value"), period_ps))
            elif name in _XSPACE_IDS:
                moves.append((stat, stat.WhichOneof("value"), ids.stride(_XSPACE_IDS[name])))
    return moves


def _new_steps(plane: Any, line: Any, stride: int) -> None:
    """Names the steps of the next copy: on the line `Steps` an event's name is the step's number."""
    after = max(plane.event_metadata) + 1
    for new, event in enumerate(line.events, after):
        had = plane.event_metadata[event.metadata_id]
        plane.event_metadata[new].CopyFrom(had)
        plane.event_metadata[new].id = new
        plane.event_metadata[new].name = str(int(had.name) + stride)
        event.metadata_id = new


def grow_nsys(sample: Path, out: Path, *, size_mb: float = 0, copies: int = 0) -> int:
    """Writes an SQLite export of so many copies, or of that size; the copies."""
    with tempfile.TemporaryDirectory() as folder:
        once = Path(folder) / "once.sqlite"
        once.write_bytes(_plain(sample))
        shutil.copyfile(once, out)
        with closing(sqlite3.connect(out, isolation_level=None)) as con:
            con.execute("pragma journal_mode = off")
            con.execute("attach ? as sample", [str(once)])
            return _repeat_tables(con, size_mb * MB, copies)


def _repeat_tables(con: sqlite3.Connection, size: float, copies: int) -> int:
    tables = {
        name: [column for _, column, *_ in con.execute(f"pragma table_info({name})")]
        for (name,) in con.execute(
            "select name from sample.sqlite_master where type = 'table' order by name"
        ).fetchall()
    }
    timed = {name: columns for name, columns in tables.items() if {"start", "end"} <= set(columns)}
    spans = [con.execute(f'select min(start), max(max(start, coalesce("end", 0))) from {t}').fetchone() for t in timed]
    spans = [span for span in spans if span[0] is not None]
    period = _period_ns(max(end for _, end in spans) - min(start for start, _ in spans))
    ids = {
        (table, column): con.execute(f"select coalesce(max({column}), 0) from {table}").fetchone()[0]
        for table, columns in timed.items()
        for column in columns
        if column in _NSYS_IDS
    }
    texts = [t for (t,) in con.execute("select text from NVTX_EVENTS where text is not null")]
    numbered = max((int(n) for text in texts for n in _NSYS_TEXT.findall(text) if "op_id" in text), default=0)
    steps = [int(n) for text in texts if text.startswith("step ") for n in _NSYS_TEXT.findall(text)]
    turns = max(steps) - min(steps) + 1 if steps else 0

    def renumbered(text: str | None, k: int) -> str | None:
        stride = turns if text and text.startswith("step ") else numbered
        return text and _NSYS_TEXT.sub(lambda found: str(int(found[0]) + k * stride), text)

    con.create_function("renumbered", 2, renumbered, deterministic=True)
    stride = max(ids.values())
    moved = {"start": f"start + :k * {period}", "end": f'"end" + :k * {period}', "text": "renumbered(text, :k)"}
    moved |= {column: f"{column} + (:k * {stride}) * ({column} <> 0)" for column in _NSYS_IDS}
    k = 1
    con.execute("begin")
    while k < copies or (not copies and _size(con) < size):
        for table, columns in timed.items():
            values = ", ".join(moved.get(column, f'"{column}"') for column in columns)
            con.execute(f"insert into main.{table} select {values} from sample.{table} order by rowid", {"k": k})
        k += 1
    con.execute("commit")
    return k


def _size(con: sqlite3.Connection) -> int:
    (pages,), (size,) = con.execute("pragma main.page_count").fetchone(), con.execute("pragma page_size").fetchone()
    return int(pages * size)


def _plain(sample: Path) -> bytes:
    data = sample.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def grow(
    sample: Path,
    out: Path,
    *,
    size_mb: float = 0,
    copies: int = 0,
    layout: str = LAYOUTS[0],
    a_step: int = 0,
    planes: int = 0,
) -> int:
    """Writes a trace like the sample, of so many copies of it or of that size (unpacked); the number of copies."""
    if ".json" in sample.suffixes:
        return grow_kineto(sample, out, layout=layout, size_mb=size_mb, copies=copies, a_step=a_step)
    if ".sqlite" in sample.suffixes:
        return grow_nsys(sample, out, size_mb=size_mb, copies=copies)
    return grow_xspace(sample, out, planes=planes, size_mb=size_mb, copies=copies)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sample", type=Path)
    parser.add_argument("out", type=Path, help="packed where a Kineto file's name ends in .gz")
    parser.add_argument("--size-mb", type=float, default=300)
    parser.add_argument("--layout", choices=LAYOUTS, default=LAYOUTS[0], help="of Kineto files")
    parser.add_argument("--a-step", type=int, default=0, help="copies that are one step, in Kineto files; else none is")
    parser.add_argument("--planes", type=int, default=0, help="device planes of XSpace files; all unless told")
    given = parser.parse_args()
    copies = grow(
        given.sample, given.out, size_mb=given.size_mb, layout=given.layout, a_step=given.a_step, planes=given.planes
    )
    print(f"{given.out}: {copies} copies of {given.sample.name}")


if __name__ == "__main__":
    main()

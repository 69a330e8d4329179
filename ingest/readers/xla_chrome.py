"""The Chrome trace that XLA's profiler writes beside an XSpace (`*.trace.json.gz`). It is not Kineto's.

It holds less than the XSpace: no peaks, no HLO modules, no FLOPs but the model's, and bytes without their memories.
What it holds means the same, so it is turned into planes and lines and read as an XSpace.
"""

import re
from bisect import bisect_right
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tracegap.ingest.errors import TraceError
from tracegap.ingest.files import open_plain
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers._xplane import (
    MISSING,
    WANTED_INTS,
    WANTED_TEXTS,
    EventKind,
    Line,
    Plane,
    Space,
    Value,
)
from tracegap.ingest.readers.xspace import trace_of
from tracegap.ingest.trace import Trace, complete

NAME = "xla_chrome"

_KIND_INTS = ("model_flops", "flops", "bytes_accessed", "program_id")
_KIND_TEXTS = ("hlo_category", "tf_op")
_PROGRAM = re.compile(r"\((-?\d+)\)$")
_EVENT_END = re.compile(rb"\}\s*,\s*\{\s*\"")


class _Event(msgspec.Struct):
    """An element of the event list; the empty object at its end has no phase."""

    ph: str = ""
    pid: int = 0
    tid: int = 0
    name: str = ""
    ts: float = 0.0
    dur: float | None = None
    args: dict[str, Any] = {}


class _Document(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 - the format's own name


def sniff(name: str, head: bytes) -> bool:  # noqa: ARG001 - the name tells nothing: Kineto's files end alike
    """XLA writes `"highres-ticks"` into the metadata that precede the events."""
    return head.lstrip()[:1] == b"{" and b'"highres-ticks"' in head and b'"traceEvents"' in head


def read(path: Path, processes: int = 1) -> Trace:  # noqa: ARG001 (one does)
    """Reads a file. Raises TraceError where no event is whole."""
    issues = Issues()
    events = _events(path, issues)
    space = _space(events)
    if not space.planes:
        raise TraceError(str(path), "has no process", code="foreign", todo="is this a trace of XLA's profiler?")
    trace = complete(trace_of(space, issues))
    trace.format = NAME
    devices = trace.facts["devices"]
    trace.facts = _facts(events, space) | {"devices": devices}
    return trace


def _events(path: Path, issues: Issues) -> list[_Event]:
    """The event list; of a damaged file the whole events before the damage."""
    data = bytearray()
    damage: TraceError | None = None
    with open_plain(path) as stream:
        try:
            while piece := stream.read(1 << 20):
                data += piece
        except TraceError as error:
            damage = error
    try:
        return msgspec.json.decode(bytes(data), type=_Document).traceEvents
    except msgspec.ValidationError as error:
        raise TraceError(str(path), f"is no Chrome trace ({error})", code="foreign") from None
    except msgspec.DecodeError as error:
        code, what = (damage.code, damage.what) if damage is not None else _described(error)
        saved = _salvage(bytes(data), error)
        if not saved:
            raise TraceError(str(path), what, code=code, todo="record again or copy the file again") from None
        issues.add(
            code,
            f"{what}; the {len(saved)} whole events before the damage are read",
            where=f"byte {_byte(error, len(data))}",
            severity="data_loss",
        )
        return saved


def _described(error: msgspec.DecodeError) -> tuple[str, str]:
    code = "truncated" if "truncated" in str(error).lower() else "malformed"
    return code, "the JSON ends early" if code == "truncated" else f"the JSON is damaged ({error})"


def _byte(error: msgspec.DecodeError, size: int) -> int:
    found = re.search(r"byte (\d+)", str(error))
    return int(found[1]) if found is not None else size


def _salvage(data: bytes, error: msgspec.DecodeError) -> list[_Event]:
    """Whole events before the damage: the text is closed after the last event from which on it decodes."""
    ends = [match.start() + 1 for match in _EVENT_END.finditer(data, 0, _byte(error, len(data)))]
    for end in reversed(ends[-20:]):
        try:
            return msgspec.json.decode(data[:end] + b"]}", type=_Document).traceEvents
        except msgspec.DecodeError:
            continue
    return []


def _space(events: list[_Event]) -> Space:
    """Planes by process, lines by thread, with the statistics that the arguments carry."""
    processes = {e.pid: str(e.args.get("name", e.pid)) for e in events if e.ph == "M" and e.name == "process_name"}
    threads = {
        (e.pid, e.tid): str(e.args.get("name", e.tid)) for e in events if e.ph == "M" and e.name == "thread_name"
    }
    by_thread: dict[tuple[int, int], list[_Event]] = {key: [] for key in threads}
    for event in events:
        if event.ph == "X":
            by_thread.setdefault((event.pid, event.tid), []).append(event)
    for (pid, tid), mine in by_thread.items():
        modules = [
            e for (p, t), other in by_thread.items() if (p, threads.get((p, t))) == (pid, "XLA Modules") for e in other
        ]
        if threads.get((pid, tid)) == "XLA Ops" and modules:
            _name_programs(mine, modules)
    planes = {pid: Plane(id=pid, name=name, stats={}, kinds={}, lines=[]) for pid, name in processes.items()}
    for (pid, tid), mine in by_thread.items():
        plane = planes.setdefault(pid, Plane(id=pid, name=str(pid), stats={}, kinds={}, lines=[]))
        plane.lines.append(_line(plane, tid, threads.get((pid, tid), str(tid)), mine))
    return Space(planes=list(planes.values()))


def _name_programs(events: list[_Event], modules: list[_Event]) -> None:
    """Gives operations the program id that the writer left out: that of the module execution in which they start."""
    modules = sorted(modules, key=lambda e: e.ts)
    starts = [e.ts for e in modules]
    for event in events:
        i = bisect_right(starts, event.ts) - 1
        program = _PROGRAM.search(modules[i].name) if i >= 0 else None
        if program is not None and "program_id" not in event.args:
            event.args["program_id"] = program[1]


def _line(plane: Plane, tid: int, name: str, events: list[_Event]) -> Line:
    ids: dict[tuple[str, ...], int] = {}
    kinds = []
    ints: dict[str, list[int]] = {key: [] for key in WANTED_INTS}
    texts: dict[str, list[str | None]] = {key: [] for key in WANTED_TEXTS}
    for event in events:
        args = event.args
        key = (
            event.name,
            str(args.get("long_name", "")),
            *(str(args.get(k, "")) for k in (*_KIND_INTS, *_KIND_TEXTS)),
        )
        if key not in ids:
            ids[key] = len(plane.kinds)
            plane.kinds[ids[key]] = EventKind(
                name=str(args.get("long_name", event.name)),
                display_name=event.name if "long_name" in args else "",
                stats=_kind_stats(args),
            )
        kinds.append(ids[key])
        for stat, numbers in ints.items():
            numbers.append(_whole(args.get(stat)))
        for stat, values in texts.items():
            value = args.get(stat)
            values.append(None if value is None else str(value))
    ts, dur = (np.array([x or 0.0 for x in column]) for column in ([e.ts for e in events], [e.dur for e in events]))
    start = np.rint(ts * 1e6).astype(np.int64)  # doubles of microseconds are exact to the ps for the first hour
    line = Line(
        id=tid,
        name=name,
        timestamp_ns=0,
        kind=np.array(kinds, dtype=np.int64),
        offset_ps=start,
        duration_ps=np.rint(dur * 1e6).astype(np.int64),
    )
    line.ints = {
        stat: column
        for stat, numbers in ints.items()
        if ((column := np.array(numbers, dtype=np.int64)) != MISSING).any()
    }
    for stat, values in texts.items():
        distinct = {value: i for i, value in enumerate(dict.fromkeys(v for v in values if v is not None))}
        if distinct:
            codes = np.array([-1 if value is None else distinct[value] for value in values], dtype=np.int32)
            line.texts[stat] = (codes, list(distinct))
    return line


def _whole(value: object) -> int:
    """A number, which XLA writes as text; ids beyond 63 bits wrap as in an XSpace."""
    try:
        number = int(str(value)) if value is not None else MISSING
    except ValueError:
        return int(MISSING)
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _kind_stats(args: dict[str, Any]) -> dict[str, Value]:
    stats: dict[str, Value] = {
        key: _whole(args[key]) for key in _KIND_INTS if key in args and _whole(args[key]) != MISSING
    }
    return stats | {key: str(args[key]) for key in _KIND_TEXTS if key in args}


def _facts(events: list[_Event], space: Space) -> dict[str, Any]:
    """Counts and sums of the raw file."""
    lines: dict[str, list[float]] = {}
    categories: dict[str, list[float]] = {}
    for plane in space.planes:
        for line in plane.lines if plane.name.startswith("/device:") else ():
            if not len(line):
                continue
            entry = lines.setdefault(f"{plane.name} {line.name}", [0, 0.0])
            entry[0] += len(line)
            entry[1] += int(line.duration_ps.sum()) / 1e6
            if line.name != "XLA Ops":
                continue
            for key, ps in zip(line.kind.tolist(), line.duration_ps.tolist(), strict=True):
                stats = plane.kinds[key].stats
                sums = categories.setdefault(str(stats.get("hlo_category", "")), [0, 0.0, 0, 0])
                moved, flops = stats.get("bytes_accessed", 0), stats.get("model_flops", 0)
                for i, value in enumerate((1, ps / 1e6, moved, flops)):
                    sums[i] += value if isinstance(value, int | float) else 0
    return {
        "events": len(events),
        "processes": [plane.name for plane in space.planes],
        "complete_events": sum(1 for event in events if event.ph == "X"),
        "device_lines": {name: [n, round(us, 3)] for name, (n, us) in lines.items()},
        "xla_ops_by_hlo_category[n,us,bytes_accessed,model_flops]": {
            name: [n, round(us, 3), moved, flops] for name, (n, us, moved, flops) in categories.items()
        },
    }

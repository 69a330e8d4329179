"""The host side of an XSpace: spans of threads, step marks, and which call launched what."""

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.classify.host import INPUT_FRAME, host_kind
from tracegap.ingest.hosttree import nest
from tracegap.ingest.readers._xplane import MISSING, Ints, Line, Plane
from tracegap.ingest.trace import HOST_EVENTS

_ABSOLUTE_NS = 10**17  # a line that starts later than this is in Unix time (it is 1973), not relative to the profile
_EXECUTE = re.compile(r"execute|enqueue|launch|pjit|pjrt", re.IGNORECASE)
_AFTERWARDS = re.compile(r"wait|callback|done", re.IGNORECASE)
_REGION_MARKS = ("ThreadpoolListener::StartRegion", "ThreadpoolListener::StopRegion")
_KINDS = (
    ("memory", re.compile(r"^Memory(A|Dea)llocation$")),
    ("launch", re.compile(r"LoadedExecutable::Execute(Helper\w*)?\b|EnqueueProgram\b")),
    ("sync", re.compile(r"Buffer::(Await|BlockHost|ToLiteralSync)|^np\.asarray\(jax\.Array\)$|block_until_ready")),
)
"""What the runtimes under JAX call their launches and waits."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Turns a line's times into time since the trace's origin."""

    origin_unix_ns: int | None

    @classmethod
    def of(cls, planes: list[Plane]) -> "Clock":
        """The start of the profile as the file states it, else the first line in Unix time."""
        for plane in planes:
            start = plane.stats.get("profile_start_time")
            if isinstance(start, int) and start > 0:
                return cls(start)
        lines = (line for plane in planes for line in plane.sound_lines() if len(line))
        return cls(min((line.timestamp_ns for line in lines if line.timestamp_ns > _ABSOLUTE_NS), default=None))

    def shifted_ns(self, line: Line) -> int:
        """Start of a line since the origin."""
        shift = self.origin_unix_ns if self.origin_unix_ns and line.timestamp_ns > _ABSOLUTE_NS else 0
        return line.timestamp_ns - shift

    def starts_ps(self, line: Line) -> Ints:
        """Start of each event since the origin, ps."""
        return self.shifted_ns(line) * 1000 + line.offset_ps if len(line) else line.offset_ps


def to_ns(ps: Ints) -> Ints:
    """Nearest nanosecond."""
    return (ps + 500) // 1000


def nullable(name: str, column: Ints) -> pl.Series:
    """A column with nulls for MISSING."""
    return pl.select(
        pl.when(pl.lit(pl.Series(name, column)) != MISSING).then(pl.lit(pl.Series(name, column)))
    ).to_series()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The call that launched something."""

    start_ns: int
    thread: str


@dataclass(slots=True)
class Host:
    """All spans of host threads, with the ids by which device work refers to them."""

    events: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=HOST_EVENTS))
    """As HOST_EVENTS, in file order; texts as categories."""
    steps: list[tuple[int, int | None, int]] = field(default_factory=list)
    """Step annotations: step number, group id, row of the event."""
    producers: dict[tuple[int, int], int] = field(default_factory=dict)
    """Rows by the context that they hand over (`_pt`, `_p`)."""
    consumers: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Context that a row took over (`_ct`, `_c`)."""
    runs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Rows of calls that execute a run, each with its device or MISSING."""
    correlated: dict[int, int] = field(default_factory=dict)
    """Rows of runtime calls by correlation id."""
    regions: dict[str, tuple[list[int], list[tuple[int, int] | None]]] = field(default_factory=dict)
    """By thread: when a pool thread took over a piece of work, with its context, and when it gave it back (None)."""
    _start: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _parent: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _thread: pl.Series = field(default_factory=pl.Series)

    def by_correlation(self, correlation: int) -> Launch | None:
        """The runtime call with a correlation id."""
        return self._at(self.correlated.get(correlation))

    def by_context(self, kind: int, key: int) -> Launch | None:
        """The call at the beginning of the chain that led to a consumer of this context.

        Work wanders from thread to thread: each hand-over is a producer on one side and a consumer with the same
        context on the other. The launch is where the user's own thread began it.
        """
        return self._at(self._root(self.producers.get((kind, key))))

    def by_run(self, run: int, device: int) -> Launch | None:
        """The earliest call that executes a run, on this device where the calls tell theirs."""
        mine = [row for row, ordinal in self.runs.get(run, []) if ordinal in (MISSING, device)]
        return self._at(self._root(min(mine, key=self._start.__getitem__, default=None)))

    def by_region(self, thread: str, at_ns: int) -> Launch | None:
        """The call that handed over the work in which a pool thread is at this time."""
        row: int | None = None
        while thread in self.regions:
            times, contexts = self.regions[thread]
            i = bisect_right(times, at_ns) - 1
            context = contexts[i] if i >= 0 else None
            producer = self.producers.get(context) if context is not None else None
            if producer is None or self._start[producer] > at_ns or producer == row:
                break
            row = producer
            thread, at_ns = str(self._thread[row]), int(self._start[row])
        return self._at(self._call(row))

    def _call(self, row: int | None) -> int | None:
        """The innermost executing call around a row."""
        at = -1 if row is None else row
        while at >= 0 and not _executes(self.events["name"][at]):
            at = int(self._parent[at])
        return at if at >= 0 else row

    def _root(self, row: int | None) -> int | None:
        while row is not None:
            at = row
            while at >= 0 and at not in self.consumers:
                at = int(self._parent[at])
            producer = self.producers.get(self.consumers[at]) if at >= 0 else None
            if producer is None or self._start[producer] >= self._start[row]:
                return row
            row = producer
        return None

    def _at(self, row: int | None) -> Launch | None:
        return None if row is None else Launch(start_ns=int(self._start[row]), thread=str(self._thread[row]))


def read_host(planes: list[Plane], clock: Clock, device_work: Mapping[int, NDArray[np.bool_]]) -> Host:
    """Spans of host planes, without `device_work`: what a CPU backend ran as a device, by `id` of the line."""
    parts = []
    host = Host()
    first = 0
    for plane in planes:
        for line in plane.lines:
            keep = ~device_work[id(line)] if id(line) in device_work else np.ones(len(line), dtype=bool)
            if not keep.any():
                continue
            parts.append(_spans(plane, line, keep, clock))
            _link(host, line, keep, first, parts[-1]["name"])
            first += len(parts[-1])
    if not parts:
        return host
    events = pl.concat(parts)
    rows = np.arange(len(events), dtype=np.int64)
    tree = nest(events["thread"].rank("dense").to_numpy(), events["start_ns"].to_numpy(), events["dur_ns"].to_numpy())
    host.events = events.with_columns(
        pl.Series("event_id", rows),
        pl.Series("self_ns", tree.self_ns),
        nullable("parent_id", np.where(tree.parent < 0, MISSING, tree.parent)),
    ).select(*HOST_EVENTS)
    host._start, host._thread, host._parent = events["start_ns"].to_numpy(), events["thread"], tree.parent
    _note_regions(host)
    return host


def _spans(plane: Plane, line: Line, keep: NDArray[np.bool_], clock: Clock) -> pl.DataFrame:
    start_ps = clock.starts_ps(line)[keep]
    start, end = to_ns(start_ps), to_ns(start_ps + line.duration_ps[keep])
    distinct, codes = np.unique(line.kind[keep], return_inverse=True)
    names = [plane.kinds[k].name if k in plane.kinds else f"#{k}" for k in distinct.tolist()]
    is_step = line.numbers("step_num")[keep] != MISSING
    frame = pl.DataFrame(
        {
            "kind": pl.Series([_kind(name) for name in names], dtype=pl.Categorical).gather(codes),
            "name": pl.Series(names, dtype=pl.Categorical).gather(codes),
            "start_ns": start,
            "dur_ns": end - start,
            "correlation_id": nullable("correlation_id", line.numbers("correlation_id")[keep]),
        }
    )
    return frame.with_columns(
        pl.lit(thread_name(line, plane.stats.get("process_id")), dtype=pl.Categorical).alias("thread"),
        pl.when(pl.Series(is_step)).then(pl.lit("step", dtype=pl.Categorical)).otherwise("kind").alias("kind"),
    )


def _kind(name: str) -> str:
    if name.startswith("$"):  # the Python tracer writes `$file.py:12 function`
        return "input" if INPUT_FRAME.search(name) else "python"
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), None) or host_kind(name, "")


def _link(host: Host, line: Line, keep: NDArray[np.bool_], first: int, names: pl.Series) -> None:
    """Notes the ids by which a line's events are referred to; `first` is the row of its first event."""

    def rows_with(*keys: str) -> list[tuple[int, ...]]:
        columns = [line.numbers(key)[keep] for key in keys]
        hit = np.all([column != MISSING for column in columns], axis=0)
        return list(zip(np.flatnonzero(hit).tolist(), *(column[hit].tolist() for column in columns), strict=True))

    for row, kind, key in rows_with("_pt", "_p"):
        host.producers.setdefault((kind, key), first + row)
    for row, kind, key in rows_with("_ct", "_c"):
        host.consumers[first + row] = (kind, key)
    for row, correlation in rows_with("correlation_id"):
        host.correlated.setdefault(correlation, first + row)
    devices = line.numbers("device_ordinal")[keep]
    for row, run in rows_with("run_id"):
        if _executes(names[row]):
            host.runs.setdefault(run, []).append((first + row, int(devices[row])))
    groups = line.numbers("group_id")[keep]
    for row, step in rows_with("step_num"):
        host.steps.append((step, int(groups[row]) if groups[row] != MISSING else None, first + row))


def _executes(name: str) -> bool:
    return bool(_EXECUTE.search(name)) and not _AFTERWARDS.search(name)


def _note_regions(host: Host) -> None:
    """Pool threads mark where they begin and end a piece of work with events without length."""
    marks = host.events.filter(pl.col("name").is_in(_REGION_MARKS)).sort("start_ns", "event_id")
    for row, thread, name, start in marks.select("event_id", "thread", "name", "start_ns").iter_rows():
        times, contexts = host.regions.setdefault(thread, ([], []))
        times.append(start)
        contexts.append(host.consumers.get(row) if name == _REGION_MARKS[0] else None)


def thread_name(line: Line, pid: object = None) -> str:
    """`pid/thread`: the line's name, with its id unless the name ends in it."""
    name = line.name if line.name.endswith(str(line.id)) else f"{line.name}/{line.id}"
    return name if pid is None else f"{pid}/{name}"

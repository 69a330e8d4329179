"""The core: hosts that launch, streams that run, collectives that start when asked and end for all ranks together.

All times are whole nanoseconds since the start of the recording. They are even numbers, so that an instant that two
operations share halves without a fraction.
"""

import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Program = Generator["Arrival", int, None]
"""A rank's program: yields each collective as it is issued, is sent the time at which that collective ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an operation must do, whatever the device."""

    flops: int
    bytes: int
    """Device memory traffic that cannot be avoided."""
    matrix: bool
    """Limited by the matrix peak; else by the vector peak."""


@dataclass(slots=True, kw_only=True)
class HostSpan:
    """Something a host thread did."""

    span_id: int
    thread: str
    kind: str
    """step, op, annotation, input, sync, launch."""
    name: str
    start_ns: int
    end_ns: int = 0
    args: dict[str, Any] = field(default_factory=dict)
    correlation: int | None = None
    parent: int | None = None
    """span_id of the innermost enclosing `op` span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One call of a collective, the same on all of its ranks."""

    kind: str
    seq: int
    message_bytes: int
    """S of nccl-tests."""
    dtype: str
    name: str = ""
    """Of the operation that issues it, where the program has a name for it."""


@dataclass(slots=True, kw_only=True)
class DeviceOp:
    """A leaf operation on a device."""

    stream: str
    name: str
    op_class: str
    start_ns: int
    end_ns: int
    step: int
    launch: HostSpan
    cost: Cost | None = None
    """None: a compute operation whose cost nobody knows, a copy or a collective."""
    collective: Collective | None = None
    copy_bytes: int = 0
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A rank asks for a collective that it can start at `start_ns`."""

    collective: Collective
    start_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is different in a run, really: the truth of what is predicted from the run without it."""

    at_bound: frozenset[str] = frozenset()
    """Framework operations (of the XLA job: classes of operations) that reach their bound."""
    transfer_permille: int = 1000
    """Time that collectives take from the arrival of the last rank on."""
    free_launches: bool = False
    """Between its first and its last launch of a step the host works in no time."""
    free_syncs: bool = False
    """The host waits for no device."""
    free_input: bool = False
    """Data is there at once."""


NO_CHANGE = Changes()


def seeded(seed: int) -> tuple[int, ...]:
    """What to add to the key of chance; nothing for seed 0."""
    return (seed,) if seed else ()


def jitter_ns(spread_ns: int, *key: object) -> int:
    """A fixed even number in [0, spread_ns), by the key alone."""
    return zlib.crc32(repr(key).encode()) % max(spread_ns, 1) // 2 * 2


def even(ns: int) -> int:
    """The next even number."""
    return ns + ns % 2


class Rank:
    """A host with its threads, and the streams of its one device."""

    launch_latency_ns = 4200
    stream_gap_ns = 620
    sync_return_ns = 6400

    def __init__(self, rank: int, main_thread: str, changes: Changes = NO_CHANGE, seed: int = 0) -> None:
        self.rank = rank
        self.changes = changes
        self.seed = seed
        self.now_ns = 0
        self.thread = self.main_thread = main_thread
        self.step = -1
        self.spans: list[HostSpan] = []
        self.ops: list[DeviceOp] = []
        self.free_ns: dict[str, int] = {}
        self._open_ops: list[HostSpan] = []
        self._correlation = 0
        self._drawn: dict[tuple[int, int, str], int] = {}
        self._captured = False

    def draw_ns(self, spread_ns: int, what: str) -> int:
        """Chance, but the same for the n-th `what` of a step in every run of the job, whatever else the runs do."""
        key = (self.rank, self.step, what)
        nth = self._drawn[key] = self._drawn.get(key, 0) + 1
        return jitter_ns(spread_ns, *key, nth, *seeded(self.seed))

    @contextmanager
    def captured(self) -> Iterator[None]:
        """What is launched inside costs the host nothing, if that is the change: as in a CUDA graph."""
        self._captured = self.changes.free_launches
        yield
        self._captured = False

    def work(self, ns: int, what: str = "work") -> None:
        """The host computes for about `ns`."""
        took = even(ns) + self.draw_ns(ns // 12, what)
        self.now_ns += 0 if self._captured else took

    @contextmanager
    def span(self, kind: str, name: str, **args: Any) -> Iterator[HostSpan]:
        """What happens inside happens during this span."""
        parent = self._open_ops[-1].span_id if self._open_ops else None
        span = HostSpan(
            span_id=len(self.spans),
            thread=self.thread,
            kind=kind,
            name=name,
            start_ns=self.now_ns,
            args=args,
            parent=parent,
        )
        self.spans.append(span)
        if kind == "op":
            self._open_ops.append(span)
        yield span
        if kind == "op":
            self._open_ops.pop()
        span.end_ns = self.now_ns

    @contextmanager
    def on_thread(self, thread: str) -> Iterator[None]:
        """The main thread waits while `thread` works."""
        before, self.thread = self.thread, thread
        yield
        self.thread = before

    def _call(self, api: str, ns: int) -> HostSpan:
        self._correlation += 1
        with self.span("launch", api) as span:
            span.correlation = self._correlation
            self.work(ns, api)
        return span

    def _ready_ns(self, launch: HostSpan, stream: str, after_ns: int) -> int:
        reached = launch.start_ns + self.launch_latency_ns + self.draw_ns(900, f"latency {stream}")
        freed = self.free_ns.get(stream, 0) + self.stream_gap_ns + self.draw_ns(300, f"gap {stream}")
        return max(reached, freed, after_ns)

    def launch(
        self, name: str, op_class: str, dur_ns: int, *, stream: str, api: str = "cudaLaunchKernel", **rest: Any
    ) -> DeviceOp:
        """Launch an operation that runs as soon as its stream is free; `after_ns` holds it back further.

        It takes what is said, and a little chance unless `exactly`.
        """
        span = self._call(api, 3100)
        start = self._ready_ns(span, stream, rest.pop("after_ns", 0))
        spread = 0 if rest.pop("exactly", False) else dur_ns // 40
        dur = even(dur_ns) + self.draw_ns(spread, name)
        op = DeviceOp(
            stream=stream,
            name=name,
            op_class=op_class,
            start_ns=start,
            end_ns=start + dur,
            step=self.step,
            launch=span,
            **rest,
        )
        self.free_ns[stream] = op.end_ns
        self.ops.append(op)
        return op

    def collective(self, call: Collective, name: str, *, stream: str, after: str, **args: Any) -> Program:
        """Launch a collective after what stream `after` holds now; it ends when the driver says so."""
        span = self._call("cudaLaunchKernelExC", 5200)
        start = self._ready_ns(span, stream, self.free_ns.get(after, 0) + 1500)
        end = yield Arrival(call, start)
        self.free_ns[stream] = end
        self.ops.append(
            DeviceOp(
                stream=stream,
                name=name,
                op_class="collective",
                start_ns=start,
                end_ns=end,
                step=self.step,
                launch=span,
                collective=call,
                args=args,
            )
        )

    def wait_for(self, stream: str, other: str) -> None:
        """Make `stream` wait for what `other` holds now."""
        self.free_ns[stream] = max(self.free_ns.get(stream, 0), self.free_ns.get(other, 0))

    def synchronize(self, api: str, stream: str) -> None:
        """The host waits until `stream` is done."""
        if self.changes.free_syncs:
            return
        self._correlation += 1
        with self.span("sync", api) as span:
            span.correlation = self._correlation
            self.now_ns = max(self.now_ns, self.free_ns.get(stream, 0)) + self.sync_return_ns


def run(programs: Sequence[Program], transfer_ns: Callable[[Collective], int]) -> None:
    """Run all ranks. Each collective ends on all of them `transfer_ns` after the last one started it."""
    calls = [next(program, None) for program in programs]
    while any(calls):
        arrivals = [call for call in calls if call]
        collective = arrivals[0].collective
        if len(arrivals) != len(programs) or any(a.collective != collective for a in arrivals):
            raise ValueError(f"ranks disagree on the next collective: {arrivals}")
        end = max(a.start_ns for a in arrivals) + even(transfer_ns(collective))
        calls = [_resume(program, end) for program in programs]


def _resume(program: Program, end_ns: int) -> Arrival | None:
    try:
        return program.send(end_ns)
    except StopIteration:
        return None

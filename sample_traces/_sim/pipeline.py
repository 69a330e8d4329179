"""The pipeline job: one stage a rank, GPipe or 1F1B, sends and receives on streams of their own, as PyTorch runs it.

A message passes when both of its ends are there. The host of a rank launches a step's passes without waiting; a
receive is posted when the passes before it are done, as NCCL's stream waits for the stream that will use its result.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from _sim.h100 import KERNELS, bound_ns, duration_ns, gemm_cost
from _sim.schedule import NO_CHANGE, Changes, Collective, DeviceOp, HostSpan, Rank, even, jitter_ns, seeded

COMPUTE, AHEAD, BACK, SEND_AHEAD, SEND_BACK = "7", "20", "24", "28", "32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Sizes of the job, and what varies between its runs."""

    ranks: int = 4
    """Stages."""
    microbatches: int = 6
    schedule: str = "1f1b"
    layers: int = 3
    """Of a stage."""
    hidden: int = 2048
    tokens: int = 4096
    """Of a microbatch."""
    first_step: int = 3
    steps: int = 4
    slow_rank: int = -1
    slow_permille: int = 1000
    """Time that the kernels of `slow_rank` take."""
    changes: Changes = NO_CHANGE
    seed: int = 0
    """Chance falls otherwise with another one."""

    def order(self, stage: int) -> Iterator[tuple[str, int]]:
        """Passes of a stage: ("forward", microbatch) or ("backward", microbatch)."""
        m = self.microbatches
        ahead = m if self.schedule == "gpipe" else min(self.ranks - 1 - stage, m)
        yield from (("forward", k) for k in range(ahead))
        for k in range(ahead, m):
            yield "forward", k
            yield "backward", k - ahead
        yield from (("backward", k) for k in range(m - ahead, m))


@dataclass(frozen=True, slots=True)
class Message:
    """What one stage sends another in a pass of a microbatch."""

    step: int
    source: int
    target: int
    microbatch: int


@dataclass(frozen=True, slots=True)
class Sent:
    """The send can start; the program goes on."""

    message: Message
    op: DeviceOp


@dataclass(frozen=True, slots=True)
class Awaited:
    """The program goes on when this has ended: a receive, or a send that is behind in the stream."""

    message: Message
    op: DeviceOp


Program = Generator[Sent | Awaited, None, None]


class Stage(Rank):
    """One rank's process."""

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(rank, "main", job.changes, job.seed)
        self.job = job
        self.now_ns = jitter_ns(9000, "begin", rank, *seeded(job.seed))
        self._sending: dict[str, tuple[Message, DeviceOp]] = {}

    def program(self) -> Program:
        """All steps."""
        job = self.job
        for self.step in range(job.first_step, job.first_step + job.steps):
            with self.span("step", f"ProfilerStep#{self.step}", number=self.step):
                self.work(9000)
                with self.captured():
                    for direction, microbatch in job.order(self.rank):
                        yield from self._pass(direction, microbatch)
                    yield from self._finish()
                self.work(30_000)
            self.work(1500)

    def _pass(self, direction: str, microbatch: int) -> Program:
        ahead = direction == "forward"
        source, target = (self.rank - 1, self.rank + 1) if ahead else (self.rank + 1, self.rank - 1)
        arrived = 0
        if 0 <= source < self.job.ranks:
            message = Message(self.step, source, self.rank, microbatch)
            op = self._message(message, "recv", AHEAD if ahead else BACK)
            yield Awaited(message, op)
            arrived = self.free_ns[op.stream] = op.end_ns
        for _ in range(self.job.layers * (1 if ahead else 2)):
            self._gemm(arrived)
        if 0 <= target < self.job.ranks:
            stream = SEND_AHEAD if ahead else SEND_BACK
            yield from self._sent(stream)
            message = Message(self.step, self.rank, target, microbatch)
            op = self._message(message, "send", stream)
            self._sending[stream] = (message, op)
            yield Sent(message, op)

    def _sent(self, stream: str) -> Program:
        """What the stream sent last is through."""
        before = self._sending.pop(stream, None)
        if before:
            yield Awaited(*before)
            self.free_ns[stream] = before[1].end_ns

    def _gemm(self, after_ns: int) -> None:
        job, kernel = self.job, KERNELS["addmm"]
        cost = gemm_cost(job.tokens, job.hidden, job.hidden)
        best = "aten::mm" in self.changes.at_bound
        dur = duration_ns(cost, kernel) * (job.slow_permille if self.rank == job.slow_rank else 1000) // 1000
        with self.span("op", "aten::mm", inputs=_inputs(job)):
            self.work(1300)
            args = {"framework_op": "aten::mm", "grid": kernel.grid, "block": kernel.block}
            self.launch(
                kernel.name, kernel.op_class, bound_ns(cost) if best else dur, stream=COMPUTE, after_ns=after_ns and after_ns + 900,
                cost=cost, args=args, exactly=best,
            )  # fmt: skip

    def _message(self, message: Message, what: str, stream: str) -> DeviceOp:
        """Launch one end of a message after what the rank computes now; it ends when the driver says so."""
        job = self.job
        nbytes = 2 * job.tokens * job.hidden
        call = Collective(kind=what, seq=message.microbatch, message_bytes=nbytes, dtype="bf16")
        args = {
            "Collective name": what, "In msg nelems": nbytes // 2, "Out msg nelems": nbytes // 2, "Group size": job.ranks,
            "dtype": "BFloat16", "Process Group Name": "pp", "Process Group Ranks": str(list(range(job.ranks))),
            **({"Dst Rank": message.target} if what == "send" else {"Src Rank": message.source}),
        }  # fmt: skip
        with self.span("op", f"nccl:{what}"):
            launch: HostSpan = self._call("cudaLaunchKernelExC", 5200)
        start = self._ready_ns(launch, stream, self.free_ns.get(COMPUTE, 0) + 1500)
        op = DeviceOp(
            stream=stream, name="ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", op_class="collective",
            start_ns=start, end_ns=start, step=self.step, launch=launch, collective=call, args=args,
        )  # fmt: skip
        self.ops.append(op)
        return op

    def _finish(self) -> Program:
        for stream in (SEND_AHEAD, SEND_BACK):
            yield from self._sent(stream)
            self.wait_for(COMPUTE, stream)
        with self.span("op", "aten::item"):
            name, api = "Memcpy DtoH (Device -> Pinned)", "cudaMemcpyAsync"
            self.launch(name, "copy", 1500, stream=COMPUTE, api=api, copy_bytes=4)
            self.synchronize("cudaStreamSynchronize", COMPUTE)


def _inputs(job: Job) -> tuple[object, ...]:
    from _sim.ddp import tensor  # noqa: PLC0415 - which names what the profiler records

    return tensor(job.tokens, job.hidden), tensor(job.hidden, job.hidden)


def transfer_ns(job: Job) -> int:
    """How long a message passes: 300 GB/s, 12 us to start."""
    took = 12_000 + 2 * job.tokens * job.hidden * 10**9 // (300 * 10**9)
    return max(even(took * job.changes.transfer_permille // 1000), 2)


def simulate(job: Job) -> list[Stage]:
    """Run the job."""
    stages = [Stage(job, rank) for rank in range(job.ranks)]
    run([stage.program() for stage in stages], transfer_ns(job))
    return stages


def run(programs: Sequence[Program], takes_ns: int) -> None:
    """Run all ranks until none can go on: each message ends on both sides when both have begun and it has passed."""
    there: dict[Message, list[DeviceOp]] = {}
    waiting: list[Awaited | None] = [None] * len(programs)
    running = set(range(len(programs)))
    while running:
        moved = False
        for rank in sorted(running):
            held = waiting[rank]
            if held and len(there[held.message]) < 2:
                continue
            moved = True
            waiting[rank] = _go_on(programs[rank], there, takes_ns)
            if waiting[rank] is None:
                running.discard(rank)
        if not moved:
            raise ValueError(f"every rank waits for another one: {waiting}")


def _go_on(program: Program, there: dict[Message, list[DeviceOp]], takes_ns: int) -> Awaited | None:
    """Until it waits for something that is not there yet; None: it is done."""
    for event in program:
        ops = there.setdefault(event.message, [])
        if not any(op is event.op for op in ops):
            ops.append(event.op)
        if len(ops) == 2:
            for op in ops:
                op.end_ns = max(o.start_ns for o in ops) + takes_ns
        elif isinstance(event, Awaited):
            return event
    return None

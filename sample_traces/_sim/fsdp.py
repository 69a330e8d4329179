"""The TPU job: fully sharded training of a small decoder on the chips of one host, as XLA runs it.

One program a step and chip: weights are gathered a layer ahead by asynchronous all-gathers, gradients leave by
asynchronous reduce-scatters, the norm of the gradients is summed by an all-reduce that everybody waits for. The host
waits for data, enqueues the program on each chip and waits for its end.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

from _sim.schedule import (
    NO_CHANGE,
    Arrival,
    Changes,
    Collective,
    Cost,
    DeviceOp,
    HostSpan,
    Program,
    even,
    jitter_ns,
    run,
    seeded,
)
from _sim.truth import Chip, half_even_ns

# As the planes of the trace state them: 459 TFLOP/s, 2765 GB/s (a chip; its two cores run as one).
PEAK_TFLOPS, HBM_GB_PER_S = 459.0, 2765.0
V5P = Chip(matrix_flops_per_s=459 * 10**12, vector_flops_per_s=459 * 10**12, hbm_bytes_per_s=2765 * 10**9)
LINK_BYTES_PER_S = 100 * 10**9
"""One link, one direction, nominal (1200 GB/s over 6 links, both ways)."""
HOP_NS = 1000
CORE, ASYNC = "XLA Ops", "Async XLA Ops"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Sizes of the job."""

    axes: tuple[int, ...] = (2, 2)
    """Chips along each axis of the torus, whose axes do not wrap around."""
    layers: int = 3
    hidden: int = 2048
    heads: int = 16
    seq: int = 4096
    """Also the tokens of a chip: one sequence each."""
    vocab: int = 32000
    first_step: int = 20
    steps: int = 6
    slow_steps: tuple[int, ...] = (22, 24)
    """Steps whose batch comes late."""
    changes: Changes = NO_CHANGE
    seed: int = 0
    """Chance falls otherwise with another one."""

    @property
    def chips(self) -> int:
        return prod(self.axes)

    def ring(self) -> list[tuple[int, int]]:
        """Pairs of a permutation of the chips: each sends to the next one on a line that winds through the axes."""
        line = [0]
        for n in self.axes:
            line = [n * chip + (i if k % 2 == 0 else n - 1 - i) for k, chip in enumerate(line) for i in range(n)]
        return list(zip(line, [*line[1:], line[0]], strict=True))

    @property
    def ffn(self) -> int:
        return 4 * self.hidden

    @property
    def layer_weights(self) -> int:
        return 4 * self.hidden**2 + 2 * self.hidden * self.ffn


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """An HLO instruction as the profiler shows it."""

    name: str
    text: str
    category: str
    op_class: str
    cost: Cost | None = None
    """flops and HBM bytes."""
    vmem_bytes: int = 0
    tf_op: str = ""
    dur_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreEvent:
    """An event of the line `XLA Ops`: an operation, or the start or done half of an asynchronous one."""

    instruction: Instruction
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Begun:
    """An asynchronous collective that has started."""

    start: Instruction
    done: Instruction
    call: Collective
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class ChipRun:
    """What a chip did."""

    chip: int
    ops: list[DeviceOp] = field(default_factory=list)
    core: list[CoreEvent] = field(default_factory=list)
    modules: list[tuple[int, int, int]] = field(default_factory=list)
    """(step, start, end) of each program."""


def predicted_ns(call: Collective, axes: tuple[int, ...]) -> int:
    """What the collective should take on chips without wraparound.

    All-gather and reduce-scatter: the larger of A (n - 1) / n over one link of each of both axes (theory T2, T4) and
    one hop for each further chip of each axis (T3); all-reduce twice both; a shift to the neighbour is S over one link,
    one hop (T8).
    """
    links, hops = len(axes), sum(n - 1 for n in axes)
    if call.kind == "permute":
        return max(half_even_ns(call.message_bytes, LINK_BYTES_PER_S), HOP_NS)
    rounds = 2 if call.kind == "all_reduce" else 1
    n = prod(axes)
    bandwidth = half_even_ns(rounds * call.message_bytes * (n - 1), LINK_BYTES_PER_S * links * n)
    return max(bandwidth, rounds * hops * HOP_NS)


def transfer_ns(call: Collective, axes: tuple[int, ...]) -> int:
    """How long the simulated one takes: 79 % of the links, and some overhead."""
    return 2600 + predicted_ns(call, axes) * 100 // 79


def bf16(*shape: int) -> str:
    dims, order = ",".join(map(str, shape)), ",".join(str(i) for i in reversed(range(len(shape))))
    tile = "T(1024)(128)(2,1)" if len(shape) == 1 else "T(8,128)(2,1)"
    return f"bf16[{dims}]{{{order}:{tile}}}"


class Compiler:
    """Names the instructions of the program in the order in which it is written, the same on every chip."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._count: dict[str, int] = {}
        self._channel = 0

    def all_chips(self) -> str:
        """The one replica group."""
        return "{{" + ",".join(map(str, range(self.job.chips))) + "}}"

    def name(self, opcode: str) -> str:
        n = self._count[opcode] = self._count.get(opcode, 0) + 1
        return f"{opcode}.{n}"

    def fusion(
        self, category: str, op_class: str, shapes: tuple[str, ...], cost: Cost, *, permille: int, tf_op: str
    ) -> Instruction:
        """A fusion that reaches `permille` of its bound; the last shape is its output."""
        name = self.name("fusion")
        kind = {"convolution fusion": "kOutput", "input fusion": "kInput"}.get(category, "kLoop")
        operands = ", ".join(f"{s} %param.{i}" for i, s in enumerate(shapes[:-1]))
        text = f"%{name} = {shapes[-1]} fusion({operands}), kind={kind}, calls=%fused_computation.{name[7:]}"
        bound = max(half_even_ns(cost.flops, 459 * 10**12), half_even_ns(cost.bytes, V5P.hbm_bytes_per_s))
        vmem = cost.bytes // 4 if category == "convolution fusion" else 0
        dur = bound if op_class in self.job.changes.at_bound else 700 + bound * 1000 // permille
        tf_op = f"jit(train_step)/{tf_op}"
        return Instruction(
            name=name,
            text=text,
            category=category,
            op_class=op_class,
            cost=cost,
            vmem_bytes=vmem,
            tf_op=tf_op,
            dur_ns=dur,
        )

    def matmul(self, m: int, k: int, n: int, permille: int, tf_op: str) -> Instruction:
        cost = Cost(flops=2 * m * k * n, bytes=2 * (m * k + k * n + m * n), matrix=True)
        shapes = (bf16(m, k), bf16(k, n), bf16(m, n))
        return self.fusion(
            "convolution fusion", "matmul", shapes, cost, permille=permille, tf_op=tf_op + "/dot_general:"
        )

    def loop(self, tf_op: str, arrays: int, rows: int, cols: int, *, flops_each: int, permille: int) -> Instruction:
        """An elementwise fusion over `arrays` arrays, the output among them."""
        n = rows * cols
        cost = Cost(flops=flops_each * n, bytes=2 * n * arrays, matrix=False)
        return self.fusion(
            "loop fusion", "elementwise", (bf16(rows, cols),) * arrays, cost, permille=permille, tf_op=tf_op
        )

    def attention(self, phase: str, dur_ns: int) -> Instruction:
        """A hand-written kernel: its cost is not in the trace."""
        name = self.name("custom-call")
        shape = bf16(self.job.heads, self.job.seq, self.job.hidden // self.job.heads)
        operands = ", ".join(f"{shape} %bitcast.{i}" for i in range(3))
        text = f'%{name} = {shape} custom-call({operands}), custom_call_target="tpu_custom_call"'
        tf_op = f"jit(train_step)/{phase}/pallas_call:"
        return Instruction(name=name, text=text, category="custom-call", op_class="custom", tf_op=tf_op, dur_ns=dur_ns)

    def collective(self, opcode: str, n: int, *, phase: str) -> tuple[Instruction, Instruction, dict[str, Any]]:
        """The two halves of an asynchronous collective over `n` elements, and what is said of the call."""
        self._channel += 1
        name = self.name(f"{opcode}-start")
        done = name.replace("-start", "-done")
        whole, part = bf16(n), bf16(n // self.job.chips)
        groups = f"replica_groups={self.all_chips()}, dimensions={{0}}, use_global_device_ids=true"
        shapes = {"all-gather": (part, whole), "reduce-scatter": (whole, part), "collective-permute": (whole, whole)}
        if opcode == "collective-permute":
            groups = "source_target_pairs={" + ",".join(f"{{{a},{b}}}" for a, b in self.job.ring()) + "}"
        elif opcode == "reduce-scatter":
            groups += ", to_apply=%add.clone"
        taken, given = shapes[opcode]
        text = f"%{name} = ({taken}, {given}) {opcode}-start({taken} %param.0), channel_id={self._channel}, {groups}"
        done_text = f"%{done} = {given} {opcode}-done(({taken}, {given}) %{name})"
        tf_op = f"jit(train_step)/{phase}/{opcode.replace('-', '_')}:"

        def half(half_name: str, half_text: str) -> Instruction:
            kind = half_name.rsplit(".", 1)[0]
            return Instruction(name=half_name, text=half_text, category=kind, op_class="collective", tf_op=tf_op)

        kinds = {"all-gather": "all_gather", "reduce-scatter": "reduce_scatter", "collective-permute": "permute"}
        return half(name, text), half(done, done_text), {"kind": kinds[opcode], "message_bytes": 2 * n, "dtype": "bf16"}


class ChipProgram:
    """One execution of the program on one chip."""

    def __init__(self, job: Job, run_: ChipRun, step: int, launch: HostSpan, seq: int) -> None:
        self.job, self.chip, self.step, self.launch, self.seq = job, run_, step, launch, seq
        self.compiler = Compiler(job)
        self.now_ns = launch.start_ns + 17_000 + jitter_ns(6000, "first", run_.chip, step, *seeded(job.seed))
        self.begun_ns = self.now_ns
        self._nth = 0

    def _gap(self) -> None:
        self._nth += 1
        self.now_ns += 40 + jitter_ns(90, "gap", self.chip.chip, self.step, self._nth, *seeded(self.job.seed))

    def _core(self, instruction: Instruction, end_ns: int) -> CoreEvent:
        event = CoreEvent(instruction=instruction, start_ns=self.now_ns, end_ns=end_ns)
        self.chip.core.append(event)
        self.now_ns = end_ns
        return event

    def _asynchronous(self, start: Instruction, done: Instruction, start_ns: int, end_ns: int, **rest: Any) -> None:
        self._device_op(start, start_ns, end_ns, stream=ASYNC, **rest)
        self.chip.ops[-1].args["done"] = done.name

    def _device_op(
        self, instruction: Instruction, start_ns: int, end_ns: int, *, stream: str = CORE, **rest: Any
    ) -> None:
        op = DeviceOp(
            stream=stream,
            name=instruction.text,
            op_class=instruction.op_class,
            start_ns=start_ns,
            end_ns=end_ns,
            step=self.step,
            launch=self.launch,
            cost=instruction.cost,
            args={"framework_op": instruction.tf_op, "instruction": instruction},
            **rest,
        )
        self.chip.ops.append(op)

    def do(self, instruction: Instruction) -> None:
        """Run an operation on the core."""
        self._gap()
        spread = 0 if instruction.op_class in self.job.changes.at_bound else instruction.dur_ns // 50
        slack = jitter_ns(spread, "dur", self.chip.chip, self.step, self._nth, *seeded(self.job.seed))
        event = self._core(instruction, self.now_ns + even(instruction.dur_ns) + slack)
        self._device_op(instruction, event.start_ns, event.end_ns)

    def begin(self, opcode: str, n: int, phase: str) -> Generator[Arrival, int, Begun]:
        """Start a collective: a program that returns what `finish` wants."""
        start, done, what = self.compiler.collective(opcode, n, phase=phase)
        self._gap()
        self.seq += 1
        call = Collective(seq=self.seq, name=start.name, **what)
        event = self._core(start, self.now_ns + 60)
        end = yield Arrival(call, event.start_ns)
        return Begun(start, done, call, event.start_ns, end)

    def finish(self, begun: Begun) -> None:
        """Wait for a collective that was begun; it lasts until the chip has waited."""
        self._gap()
        event = self._core(begun.done, max(self.now_ns + 30, begun.end_ns))
        self._asynchronous(begun.start, begun.done, begun.start_ns, event.end_ns, collective=begun.call)

    def all_reduce_norm(self) -> Program:
        """The synchronous all-reduce of one number."""
        name = self.compiler.name("all-reduce")
        text = (
            f"%{name} = f32[]{{:T(128)}} all-reduce(f32[]{{:T(128)}} %fusion.99), channel_id=90, "
            f"replica_groups={self.compiler.all_chips()}, use_global_device_ids=true, to_apply=%add.f32"
        )
        tf_op = "jit(train_step)/clip/reduce_sum:"
        instruction = Instruction(name=name, text=text, category="all-reduce", op_class="collective", tf_op=tf_op)
        self._gap()
        self.seq += 1
        call = Collective(kind="all_reduce", seq=self.seq, message_bytes=4, dtype="fp32", name=name)
        start = self.now_ns
        end = yield Arrival(call, start)
        self._core(instruction, end)
        self._device_op(instruction, start, end, collective=call)

    @contextmanager
    def prefetch(self, nbytes: int, dur_ns: int) -> Iterator[None]:
        """An asynchronous copy from host memory that runs beside what is done inside."""
        name = self.compiler.name("copy-start")
        done_name = name.replace("-start", "-done")
        shape = f"f32[{nbytes // 4}]{{0:T(1024)"
        text = f"%{name} = ({shape}}}, {shape}S(5)}}, u32[]{{:S(2)}}) copy-start({shape}S(5)}} %param.7)"
        done_text = f"%{done_name} = {shape}}} copy-done(({shape}}}, {shape}S(5)}}, u32[]{{:S(2)}}) %{name})"
        start = Instruction(name=name, text=text, category="copy-start", op_class="copy")
        done = Instruction(name=done_name, text=done_text, category="copy-done", op_class="copy")
        self._gap()
        event = self._core(start, self.now_ns + 6)
        yield
        self._gap()
        last = self._core(done, max(self.now_ns + 30, event.start_ns + dur_ns))
        self._asynchronous(start, done, event.start_ns, last.end_ns, copy_bytes=nbytes)

    # The program

    def program(self) -> Program:
        yield from self._body()
        self.chip.modules.append((self.step, self.begun_ns, self.now_ns))

    def _body(self) -> Program:
        j, c = self.job, self.compiler
        t, h, f, v = j.seq, j.hidden, j.ffn, j.vocab
        gathered = yield from self.begin("all-gather", j.layer_weights, "layer_0")
        ids = Cost(flops=0, bytes=4 * t * h + 4 * t, matrix=False)
        shapes = (bf16(v, h), f"s32[{t}]{{0:T(1024)}}", bf16(t, h))
        self.do(c.fusion("loop fusion", "elementwise", shapes, ids, permille=520, tf_op="embed/gather:"))
        halo = yield from self.begin("collective-permute", 128 * h, "halo")
        self.finish(halo)
        for i in range(j.layers):
            self.finish(gathered)
            after = f"layer_{i + 1}" if i + 1 < j.layers else "head"
            gathered = yield from self.begin("all-gather", j.layer_weights if i + 1 < j.layers else v * h, after)
            self._layer(i)
        self.finish(gathered)
        self.do(c.matmul(t, h, v, 830, "head"))
        loss = Cost(flops=5 * t * v, bytes=2 * 2 * t * v, matrix=False)
        logits = (bf16(t, v), bf16(t, v))
        self.do(c.fusion("input fusion", "reduction", logits, loss, permille=640, tf_op="loss/reduce_sum:"))
        gathered = yield from self.begin("all-gather", j.layer_weights, f"transpose/layer_{j.layers - 1}")
        self.do(c.matmul(t, v, h, 800, "transpose/head"))
        self.do(c.matmul(h, t, v, 810, "transpose/head"))
        scattering = yield from self.begin("reduce-scatter", v * h, "transpose/head")
        for i in reversed(range(j.layers)):
            self.finish(gathered)
            if i > 0:
                gathered = yield from self.begin("all-gather", j.layer_weights, f"transpose/layer_{i - 1}")
            self._layer_backward(i)
            self.finish(scattering)
            scattering = yield from self.begin("reduce-scatter", j.layer_weights, f"transpose/layer_{i}")
        self.finish(scattering)
        self.now_ns += 9000  # the sequencer loads the next overlay: a gap inside the module
        yield from self.all_reduce_norm()
        shard = (j.layers * j.layer_weights + v * h) // j.chips
        with self.prefetch(16 * 2**20, 640_000):
            self.do(c.loop("adamw/add:", 7, shard // f, f, flops_each=16, permille=880))

    def _layer(self, i: int) -> None:
        j, c = self.job, self.compiler
        t, h, f, at = j.seq, j.hidden, j.ffn, f"layer_{i}"
        self.do(c.loop(f"{at}/norm/mul:", 2, t, h, flops_each=5, permille=700))
        self.do(c.matmul(t, h, 3 * h, 860, f"{at}/qkv"))
        self.do(c.attention(at, 296_000))
        self.do(c.matmul(t, h, h, 820, f"{at}/proj"))
        self.do(c.loop(f"{at}/residual/add:", 3, t, h, flops_each=6, permille=720))
        self.do(c.matmul(t, h, f, 870, f"{at}/mlp/up"))
        self.do(c.matmul(t, f, h, 850, f"{at}/mlp/down"))

    def _layer_backward(self, i: int) -> None:
        j, c = self.job, self.compiler
        t, h, f, at = j.seq, j.hidden, j.ffn, f"transpose/layer_{i}"
        for k, n, what in ((f, h, "mlp/down"), (h, f, "mlp/up")):
            self.do(c.matmul(t, n, k, 830, f"{at}/{what}"))
            self.do(c.matmul(k, t, n, 840, f"{at}/{what}"))
        self.do(c.loop(f"{at}/norm/mul:", 4, t, h, flops_each=10, permille=690))
        self.do(c.matmul(t, h, h, 800, f"{at}/proj"))
        self.do(c.matmul(h, t, h, 790, f"{at}/proj"))
        self.do(c.attention(at, 702_000))
        self.do(c.matmul(t, 3 * h, h, 840, f"{at}/qkv"))
        self.do(c.matmul(h, t, 3 * h, 850, f"{at}/qkv"))
        self.do(c.loop(f"{at}/norm/mul:", 4, t, h, flops_each=10, permille=690))


class Host:
    """The process that drives the chips."""

    thread = "python"

    def __init__(self, job: Job) -> None:
        self.job = job
        self.now_ns = 120_000
        self.spans: list[HostSpan] = []
        self.chips = [ChipRun(i) for i in range(job.chips)]

    @contextmanager
    def span(self, kind: str, name: str, **args: Any) -> Iterator[HostSpan]:
        number, now = len(self.spans), self.now_ns
        span = HostSpan(span_id=number, thread=self.thread, kind=kind, name=name, start_ns=now, args=args)
        self.spans.append(span)
        yield span
        span.end_ns = self.now_ns

    def work(self, ns: int, *key: object) -> None:
        self.now_ns += even(ns) + jitter_ns(ns // 10, "host", *key, *seeded(self.job.seed))

    def run(self) -> None:
        """All steps."""
        seq = 0
        for step in range(self.job.first_step, self.job.first_step + self.job.steps):
            with self.span("step", "train", step_num=step):
                seq = self._step(step, seq)
            self.work(3000, step)

    def _step(self, step: int, seq: int) -> int:
        with self.span("input", "load_batch"):
            if not self.job.changes.free_input:
                self.work(1_900_000 if step in self.job.slow_steps else 88_000, step, "load")
        launches = []
        with self.span("op", "PjitFunction(train_step)"):
            self.work(52_000, step, "dispatch")
            with self.span("op", "TfrtTpuLoadedExecutable::Execute"):
                for chip in self.chips:
                    self.work(6_000, step, chip.chip)
                    with self.span("launch", "DoEnqueueProgram", run_id=step + 1, device_ordinal=chip.chip) as span:
                        self.work(14_000, step, chip.chip, "enqueue")
                    launches.append(span)
            self.work(9_000, step, "dispatched")
        pairs = zip(self.chips, launches, strict=True)
        programs = [ChipProgram(self.job, chip, step, launch, seq) for chip, launch in pairs]
        slowed, axes = self.job.changes.transfer_permille, self.job.axes
        run([p.program() for p in programs], lambda call: max(even(transfer_ns(call, axes) * slowed // 1000), 2))
        with self.span("sync", "block_until_ready"):
            self.now_ns = max(self.now_ns, *(p.now_ns for p in programs)) + 21_000
        self.work(46_000, step, "log")
        return programs[0].seq


def simulate(job: Job) -> Host:
    """Run the job."""
    host = Host(job)
    host.run()
    return host


def model_flops(job: Job) -> int:
    """Model FLOPs of a step on one chip, as `ddp.model_flops` counts them."""
    weights = job.layers * job.layer_weights + job.hidden * job.vocab
    return 6 * weights * job.seq + 12 * job.layers * job.seq**2 * job.hidden // 2

"""The GPU job: data-parallel training of a small decoder in bf16, as PyTorch runs it.

One program a rank: forward, backward on the autograd thread with bucketed all-reduces on a stream of their own, a fused
optimizer, `loss.item()`. Everything that can idle a device happens: a data loader that stalls, a synchronisation, a
host that is late, the latency of a launch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any

from _sim.h100 import KERNELS, UNMODELLED, bound_ns, duration_ns, gemm_cost, transfer_ns, vector_cost
from _sim.schedule import NO_CHANGE, Changes, Collective, Cost, DeviceOp, Program, Rank, even, jitter_ns, run, seeded

COMPUTE, SIDE, COMM = "7", "21", "20"
AUTOGRAD = "autograd"
BF16, LONG = "c10::BFloat16", "long int"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Sizes of the job, and what varies between its runs."""

    ranks: int
    layers: int
    hidden: int
    heads: int
    vocab: int
    sequences: int
    seq: int
    first_step: int
    steps: int
    bucket_cap_mb: int
    slow_rank: int
    """Its data loader stalls, except in `spared_step`."""
    spared_step: int
    stall_ns: int
    slow_permille: int = 1000
    """Time that the kernels of `slow_rank` take."""
    changes: Changes = NO_CHANGE
    seed: int = 0
    """Chance falls otherwise with another one."""

    @property
    def ffn(self) -> int:
        return 4 * self.hidden

    @property
    def tokens(self) -> int:
        return self.sequences * self.seq

    def parameters(self) -> list[tuple[str, tuple[int, ...]]]:
        """Trainable parameters in the order of the model; the token embedding is frozen."""
        h, f = self.hidden, self.ffn
        block = [
            *(("ln1.weight", (h,)), ("ln1.bias", (h,)), ("qkv.weight", (3 * h, h)), ("qkv.bias", (3 * h,))),
            *(("proj.weight", (h, h)), ("proj.bias", (h,)), ("ln2.weight", (h,)), ("ln2.bias", (h,))),
            *(("fc1.weight", (f, h)), ("fc1.bias", (f,)), ("fc2.weight", (h, f)), ("fc2.bias", (h,))),
        ]
        return [
            ("pos.weight", (self.seq, h)),
            *((f"blocks.{i}.{name}", shape) for i in range(self.layers) for name, shape in block),
            *(("ln_f.weight", (h,)), ("ln_f.bias", (h,)), ("head.weight", (self.vocab, h))),
        ]

    def buckets(self) -> list[tuple[str, int]]:
        """Gradient buckets in the order of the backward pass: the parameter that fills each, and its bytes."""
        filled, size = [], 0
        for name, shape in reversed(self.parameters()):
            size += 2 * prod(shape)
            if size >= self.bucket_cap_mb * 2**20 or name == "pos.weight":
                filled.append((name, size))
                size = 0
        return filled


@dataclass(frozen=True, slots=True)
class Arg:
    """An argument of a framework operation, as a profiler records it."""

    dims: Any
    dtype: str
    strides: Any
    concrete: str = ""


def tensor(*shape: int, dtype: str = BF16, strides: list[int] | None = None) -> Arg:
    """A dense tensor, unless strides say otherwise."""
    dense = [prod(shape[i + 1 :]) for i in range(len(shape))]
    return Arg(list(shape), dtype, strides or dense)


def tensors(shapes: list[tuple[int, ...]]) -> Arg:
    """A list of dense tensors."""
    dense = [[prod(s[i + 1 :]) for i in range(len(s))] for s in shapes]
    return Arg([list(s) for s in shapes], "TensorList", dense)


def scalar(value: str) -> Arg:
    """A number or a boolean."""
    return Arg([], "Scalar", [], value)


def numbers(value: str) -> Arg:
    """A list of numbers."""
    return Arg([], "ScalarList", [], value)


NOTHING = Arg([], "", [])


class Worker(Rank):
    """One rank's process."""

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(rank, "main", job.changes, job.seed)
        self.job = job
        self.seq = 0
        self._pending = job.buckets()
        self.now_ns = jitter_ns(9000, "begin", rank, *seeded(job.seed))

    @contextmanager
    def op(self, name: str, *args: Arg, what: str = "work", **extra: Any) -> Iterator[None]:
        with self.span("op", name, inputs=args, **extra):
            self.work(1300, what)
            yield
            self.work(700, what)

    def compute(self, name: str, args: list[Arg], kernel: str, cost: Cost) -> DeviceOp:
        """A framework operation that launches one kernel of known cost."""
        k = KERNELS[kernel]
        with self.op(name, *args):
            args_ = {"framework_op": name, "grid": k.grid, "block": k.block}
            best = name in self.changes.at_bound
            dur = bound_ns(cost) if best else self._own_ns(duration_ns(cost, k))
            return self.launch(k.name, k.op_class, dur, stream=COMPUTE, cost=cost, args=args_, exactly=best)

    def _own_ns(self, dur_ns: int) -> int:
        """What a kernel takes on this rank."""
        return dur_ns * (self.job.slow_permille if self.rank == self.job.slow_rank else 1000) // 1000

    def unmodelled(self, name: str, *args: Arg, stream: str = COMPUTE, after_ns: int = 0) -> None:
        """An operation whose cost nobody knows."""
        kernel, dur = UNMODELLED[name]
        with self.op(name, *args):
            args_ = {"framework_op": name, "grid": (264, 1, 1), "block": (256, 1, 1)}
            self.launch(kernel, "custom", self._own_ns(dur), stream=stream, after_ns=after_ns, args=args_)

    # The program

    def program(self) -> Program:
        job = self.job
        for self.step in range(job.first_step, job.first_step + job.steps):
            with self.span("step", f"ProfilerStep#{self.step}", number=self.step):
                self.work(9000)
                self._load()
                with self.captured():
                    self._copy_batch()
                    self._forward()
                    yield from self._backward()
                    self._optimize()
                    self._copy_loss()
                self.work(34_000)
            self.work(1500)

    def _load(self) -> None:
        job = self.job
        stalls = self.rank == job.slow_rank and self.step != job.spared_step
        with self.span("input", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            if not self.changes.free_input:
                self.work(job.stall_ns if stalls else 64_000, "load")

    def _copy_batch(self) -> None:
        job = self.job
        batch = tensor(job.sequences, job.seq, dtype=LONG)
        nbytes = 8 * job.tokens
        with (
            self.op("aten::to", batch, NOTHING, scalar("False")),
            self.op("aten::_to_copy", batch),
            self.op("aten::copy_", batch, batch, scalar("True")),
        ):
            name, api = "Memcpy HtoD (Pinned -> Device)", "cudaMemcpyAsync"
            self.launch(name, "copy", 1700, stream=COMPUTE, api=api, copy_bytes=nbytes)
        with self.op("aten::zero_", tensor(64, dtype="float")):
            name, api = "Memset (Device)", "cudaMemsetAsync"
            self.launch(name, "memset", 1000, stream=COMPUTE, api=api, copy_bytes=256)

    def _forward(self) -> None:
        j = self.job
        b, s, t, h = j.sequences, j.seq, j.tokens, j.hidden
        x, n = tensor(b, s, h), t * h
        ids = tensor(b, s, dtype=LONG)
        args = [tensor(j.vocab, h), ids, scalar("-1"), scalar("False"), scalar("False")]
        self.compute("aten::embedding", args, "embedding", vector_cost(0, 2 * 2 * n + 8 * t))
        self._add(x, tensor(s, h), nbytes=2 * (2 * n + s * h))
        for _ in range(j.layers):
            self._layer_norm()
            self._linear(h, 3 * h)
            self._attention()
            self._linear(h, h)
            self._add(x, x, nbytes=6 * n)
            self._layer_norm()
            self._linear(h, j.ffn)
            args = [tensor(b, s, j.ffn), Arg([], "", [], "none")]
            self.compute("aten::gelu", args, "gelu", vector_cost(t * j.ffn, 4 * t * j.ffn))
            self._linear(j.ffn, h)
            self._add(x, x, nbytes=6 * n)
        self._layer_norm()
        weight = tensor(h, j.vocab, strides=[1, h])
        with self.op("aten::linear", x, tensor(j.vocab, h), NOTHING), self.op("aten::matmul", x, weight):
            self.compute("aten::mm", [tensor(t, h), weight], "mm_tn", gemm_cost(t, h, j.vocab))
        self.unmodelled("acme::head_loss_forward", tensor(t, j.vocab), tensor(t, dtype=LONG))

    def _add(self, x: Arg, y: Arg, *, nbytes: int) -> None:
        n = prod(x.dims)
        self.compute("aten::add", [x, y, scalar("1")], "add", vector_cost(n, nbytes))

    def _layer_norm(self) -> None:
        j = self.job
        n, h = j.tokens * j.hidden, j.hidden
        x, w = tensor(j.sequences, j.seq, h), tensor(h)
        shape, eps = numbers(f"[{h}]"), scalar("1.0000000000000001e-05")
        cost = vector_cost(5 * n, 2 * (2 * n + 2 * h) + 2 * 4 * j.tokens)
        with self.op("aten::layer_norm", x, shape, w, w, eps, scalar("True")):
            self.compute("aten::native_layer_norm", [x, shape, w, w, eps], "layer_norm", cost)

    def _linear(self, k: int, n: int) -> None:
        j = self.job
        x, w, bias = tensor(j.sequences, j.seq, k), tensor(n, k), tensor(n)
        args = [bias, tensor(j.tokens, k), tensor(k, n, strides=[1, k]), scalar("1"), scalar("1")]
        with self.op("aten::linear", x, w, bias):
            self.compute("aten::addmm", args, "addmm", gemm_cost(j.tokens, k, n, bias=n))

    def _attention(self) -> None:
        j = self.job
        d = j.hidden // j.heads
        q = tensor(j.sequences, j.heads, j.seq, d, strides=[3 * j.seq * j.hidden, d, 3 * j.hidden, 1])
        rows = tensor(j.sequences, j.seq, j.heads, d, strides=[3 * j.seq * j.hidden, 3 * j.hidden, d, 1])
        none, causal, zero = NOTHING, scalar("True"), scalar("0.")
        flops = 4 * j.sequences * j.heads * j.seq**2 * d // 2
        cost = Cost(flops=flops, bytes=2 * 4 * j.tokens * j.hidden, matrix=True)
        length, scale = scalar(str(j.seq)), scalar(str(1 / isqrt(d)))
        args = [*[rows] * 3, none, none, length, length, zero, causal, scalar("False"), scale, *[none] * 4]
        with (
            self.op("aten::scaled_dot_product_attention", q, q, q, none, zero, causal, none, scalar("False")),
            self.op("aten::_scaled_dot_product_flash_attention", q, q, q, zero, causal, scalar("False"), scale),
        ):
            self.compute("aten::_flash_attention_forward", args, "flash_forward", cost)

    def _backward(self) -> Program:
        j = self.job
        t, h = j.tokens, j.hidden
        with self.on_thread(AUTOGRAD):
            self.work(14_000)
            with self._node("HeadLossBackward"):
                self.unmodelled("acme::head_loss_backward", tensor(t, j.vocab), tensor(t, dtype=LONG))
            with self._node("MmBackward0"):
                self._grad_gemms(h, j.vocab)
            yield from self._ready("head.weight")
            self._layer_norm_backward()
            yield from self._ready("ln_f.weight")
            for i in reversed(range(j.layers)):
                block = f"blocks.{i}."
                yield from self._linear_backward(block + "fc2", j.ffn, h, with_stats=i % 2 == 1)
                with self._node("GeluBackward0"):
                    g = tensor(j.sequences, j.seq, j.ffn)
                    n = t * j.ffn
                    args = [g, g, Arg([], "", [], "none")]
                    self.compute("aten::gelu_backward", args, "gelu_backward", vector_cost(10 * n, 6 * n))
                yield from self._linear_backward(block + "fc1", h, j.ffn)
                self._layer_norm_backward()
                self._accumulate()
                yield from self._ready(block + "ln2.weight")
                yield from self._linear_backward(block + "proj", h, h)
                self._attention_backward()
                yield from self._linear_backward(block + "qkv", h, 3 * h)
                self._layer_norm_backward()
                self._accumulate()
                yield from self._ready(block + "ln1.weight")
            with self._node("AddBackward0"):
                self._sum(tensor(j.sequences, j.seq, h), "[0]", kept=j.seq * h)
            yield from self._ready("pos.weight")

    @contextmanager
    def _node(self, name: str) -> Iterator[None]:
        with self.op(f"autograd::engine::evaluate_function: {name}"), self.op(name):
            yield

    def _grad_gemms(self, k: int, n: int) -> DeviceOp:
        """Gradients of the input and of the weight of a linear layer [.., k] -> [.., n]; the second one's kernel."""
        t = self.job.tokens
        self.compute("aten::mm", [tensor(t, n), tensor(n, k)], "mm_nn", gemm_cost(t, n, k))
        grad = tensor(n, t, strides=[1, n])
        return self.compute("aten::mm", [grad, tensor(t, k)], "mm_nt", gemm_cost(n, t, k))

    def _linear_backward(self, layer: str, k: int, n: int, *, with_stats: bool = False) -> Program:
        with self._node("AddmmBackward0"):
            gemm = self._grad_gemms(k, n)
            if with_stats:
                self.unmodelled("acme::grad_stats", tensor(n, k), stream=SIDE, after_ns=gemm.start_ns + 1400)
            self._sum(tensor(self.job.tokens, n), "[0]", kept=n)
        yield from self._ready(layer + ".bias")
        yield from self._ready(layer + ".weight")

    def _sum(self, x: Arg, dims: str, *, kept: int) -> None:
        n = prod(x.dims)
        args = [x, numbers(dims), scalar("True"), NOTHING]
        self.compute("aten::sum", args, "sum", vector_cost(n - kept, 2 * (n + kept)))

    def _accumulate(self) -> None:
        x = tensor(self.job.sequences, self.job.seq, self.job.hidden)
        self._add(x, x, nbytes=6 * prod(x.dims))

    def _layer_norm_backward(self) -> None:
        j = self.job
        n, h = j.tokens * j.hidden, j.hidden
        x, w, stat = tensor(j.sequences, j.seq, h), tensor(h), tensor(j.sequences, j.seq, 1, dtype="float")
        args = [x, x, numbers(f"[{h}]"), stat, stat, w, w, Arg([], "", [], "[True, True, True]")]
        cost = vector_cost(10 * n, 2 * (3 * n + 3 * h) + 2 * 4 * j.tokens)
        with self._node("NativeLayerNormBackward0"):
            self.compute("aten::native_layer_norm_backward", args, "layer_norm_backward", cost)

    def _attention_backward(self) -> None:
        j = self.job
        d = j.hidden // j.heads
        q, none = tensor(j.sequences, j.seq, j.heads, d), NOTHING
        lse = tensor(j.sequences, j.heads, j.seq, dtype="float")
        length, seed = scalar(str(j.seq)), tensor(2, dtype=LONG)
        flops = 10 * j.sequences * j.heads * j.seq**2 * d // 2
        nbytes = 2 * 8 * j.tokens * j.hidden + 4 * j.sequences * j.heads * j.seq
        rest = [lse, none, none, length, length, scalar("0."), scalar("True"), seed, seed]
        with self._node("ScaledDotProductFlashAttentionBackward0"):
            rows = tensor(j.sequences, j.heads, j.seq, d)
            with self.op("aten::_scaled_dot_product_flash_attention_backward", *[rows] * 5, *rest):
                cost = Cost(flops=flops, bytes=nbytes, matrix=True)
                args = [*[q] * 5, *rest, none, none, none]
                self.compute("aten::_flash_attention_backward", args, "flash_backward", cost)

    def _ready(self, parameter: str) -> Program:
        """A gradient is complete: if it fills the bucket, the bucket is reduced."""
        if self._pending[0][0] == parameter:
            nbytes = self._pending.pop(0)[1]
            yield from self._all_reduce(nbytes // 2)
            self._pending = self._pending or self.job.buckets()

    def _all_reduce(self, nelems: int) -> Program:
        self.seq += 1
        job = self.job
        number = (job.first_step * len(job.buckets())) + self.seq
        call = Collective(kind="all_reduce", seq=number, message_bytes=2 * nelems, dtype="bf16")
        ranks = list(range(job.ranks))
        args = {
            "Collective name": "allreduce",
            "In msg nelems": nelems,
            "Out msg nelems": nelems,
            "Group size": job.ranks,
            "dtype": "BFloat16",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(ranks),
            "Seq": number,
        }
        with (
            self.op("record_param_comms", what="all-reduce", recorded=args),
            self.span("annotation", "nccl:all_reduce", nelems=nelems),
        ):
            self.work(6_000, "all-reduce")
            name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            yield from self.collective(call, name, stream=COMM, after=COMPUTE, **args)
            self.work(4_000, "all-reduce")

    def _optimize(self) -> None:
        self.work(26_000)
        self.wait_for(COMPUTE, COMM)
        self.wait_for(COMPUTE, SIDE)
        shapes = [shape for _, shape in self.job.parameters()]
        n = sum(prod(s) for s in shapes)
        states = Arg([[]] * len(shapes), "TensorList", [[]] * len(shapes))
        settings = [scalar(v) for v in ("0.00029999999999999997", "0.9", "0.95", "0.1", "1e-08", "False", "False")]
        args = [*[tensors(shapes)] * 4, Arg([], "TensorList", []), states, *settings, NOTHING, NOTHING]
        with self.span("annotation", "Optimizer.step#AdamW.step"):
            self.work(18_000)
            self.compute("aten::_fused_adamw_", args, "adamw", vector_cost(16 * n, 14 * n))

    def _copy_loss(self) -> None:
        loss = tensor(dtype="float")
        with self.op("aten::item", loss), self.op("aten::_local_scalar_dense", loss):
            name, api = "Memcpy DtoH (Device -> Pinned)", "cudaMemcpyAsync"
            self.launch(name, "copy", 1500, stream=COMPUTE, api=api, copy_bytes=4)
            self.synchronize("cudaStreamSynchronize", COMPUTE)


def simulate(job: Job) -> list[Worker]:
    """Run the job."""
    workers = [Worker(job, rank) for rank in range(job.ranks)]
    slowed = job.changes.transfer_permille
    run(
        [worker.program() for worker in workers],
        lambda call: max(even(transfer_ns(call, job.ranks) * slowed // 1000), 2),
    )
    return workers


def model_flops(job: Job) -> int:
    """Model FLOPs of a step on one rank: 6 a matmul weight and token; attention 12 L S^2 h a sequence, half masked."""
    weights = job.layers * (4 * job.hidden**2 + 2 * job.hidden * job.ffn) + job.hidden * job.vocab
    attention = 12 * job.layers * job.sequences * job.seq**2 * job.hidden // 2
    return 6 * weights * job.tokens + attention

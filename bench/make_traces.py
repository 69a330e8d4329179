#!/usr/bin/env python3
"""Deterministic generator of realistic profiler traces with known answers.

    make_traces.py --kind kineto --size-mb 50  --ranks 1 --out DIR --gzip
    make_traces.py --kind xspace --size-mb 300 --ranks 4 --out DIR
    make_traces.py --kind nsys   --size-mb 300 --ranks 2 --out DIR

kineto, nsys: one file a rank, each of about --size-mb.  xspace: one host's file of about --size-mb
with --ranks device planes.  Beside them truth.json: what an analysis must find for each rank and
step (busy, idle, compute, exposed communication, counts, ...), taken from the simulated schedule and
not from the written bytes.  Needs numpy and the standard library; same arguments, same bytes.

The GPU kinds simulate fully sharded training of a transformer: a host thread that launches (backward
runs on a thread of its own), one compute stream, one communication stream.  A collective starts on
each rank when that rank is ready and ends on all together, so a late rank makes the others wait
inside the kernel; the last rank computes slower by --straggler.  Every seventh step waits for data.
Every step ends in a stream synchronisation, so a step's kernels lie inside its annotation.
"""

import argparse
import gzip
import json
import os
import shutil
import sys
from typing import NamedTuple

import numpy as np

from trace_writers import BASE_NS, BF, COMPUTE, LAYOUTS, T0, K, Kineto, Nsys, Plane, blob, varint

STEP0 = 3  # number of the first profiled step, as after wait and warm-up
H, SEQ, VOCAB = 1024, 2048, 50304


# ---------------------------------------------------------------- what a step runs
class Op(NamedTuple):
    """A host op. dims: an entry an input, a shape or the text of a scalar or list."""

    name: str
    dims: tuple = ()
    kids: tuple = ()
    kern: K | None = None
    frames: tuple = ()  # python frames around it (--stack)


def gemm(n, us):
    return K(
        f"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{n}x128x64_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas",
        us,
        (132, 1, 1),
        (384, 1, 1),
        168,
        231424,
    )


def elementwise(functor, us, blocks=2048):
    t = f"at::native::{functor}<c10::BFloat16>"
    return K(
        f"void at::native::vectorized_elementwise_kernel<8, {t}, std::array<char*, 3ul> >(int, {t}, std::array<char*, 3ul>)",
        us,
        (blocks, 1, 1),
        (128, 1, 1),
        32,
        0,
    )


LN = K(
    f"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<{BF}, float, false>(int, float, {BF} const*, {BF} const*, "
    f"{BF} const*, float*, float*, {BF}*)",
    9.5,
    (SEQ, 1, 1),
    (32, 4, 1),
    32,
    24,
)
LN_B = K(
    f"void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<{BF}, float, false>({BF} const*, {BF} const*, "
    f"float const*, float const*, {BF} const*, {BF}*, int)",
    16.0,
    (SEQ, 1, 1),
    (128, 1, 1),
    40,
    16,
)
FLASH = K(
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<64, "
    "128, 128, 4, cutlass::bfloat16_t> >, false, true, false, false, true, true, false, false>(flash::Flash_fwd_params)",
    61.0,
    (16, 1, 16),
    (128, 1, 1),
    254,
    49152,
)
FLASH_B = K(
    "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128, 8, 4, 4, 4, false, false, "
    "cutlass::bfloat16_t> >(flash::Flash_bwd_params)",
    148.0,
    (16, 1, 16),
    (256, 1, 1),
    255,
    147456,
)
ADAM = K(
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorList"
    "Metadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, float const*, "
    "double, double, double, double, double, bool, float*, float*, (at::native::ADAM_MODE)1>(at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>)",
    88.0,
    (320, 1, 1),
    (512, 1, 1),
    64,
    0,
)
CALL = (
    "torch/nn/modules/module.py(1777): _wrapped_call_impl",
    "torch/nn/modules/module.py(1788): _call_impl",
    "model/block.py(61): forward",
    "torch/_compile.py(50): inner",
    "torch/nn/modules/module.py(1788): _call_impl",
)
X, QKV = (1, SEQ, H), (1, 16, SEQ, 64)
EMPTY = Op("aten::empty")
VIEW = Op("aten::view", (X, f"[{SEQ}, {H}]"))
T = Op(
    "aten::t",
    ((H, H),),
    (Op("aten::transpose", ((H, H), "0", "1"), (Op("aten::as_strided", ((H, H), f"[{H}, {H}]", f"[1, {H}]", "0")),)),),
)
ADAMW = Op("aten::_fused_adamw_", ("1",) * 6, (), ADAM)


def linear(i, o, us):
    mm = Op("aten::addmm", ((o,), (SEQ, i), (i, o), "1", "1"), (), gemm(256, us))
    return Op(
        "aten::linear",
        ((1, SEQ, i), (o, i), (o,)),
        (T, Op("aten::view", ((1, SEQ, i), f"[{SEQ}, {i}]")), mm, Op("aten::view", ((SEQ, o), f"[1, {SEQ}, {o}]"))),
        frames=("torch/nn/modules/linear.py(134): forward", "<built-in function linear>"),
    )


def norm():
    return Op(
        "aten::layer_norm",
        (X, f"[{H}]", (H,), (H,), "1e-05", "True"),
        (Op("aten::native_layer_norm", (X, f"[{H}]", (H,), (H,), "1e-05"), (EMPTY, EMPTY, EMPTY), LN),),
        frames=(
            "torch/nn/modules/normalization.py(229): forward",
            "torch/nn/functional.py(2940): layer_norm",
            "<built-in method layer_norm of type object>",
        ),
    )


ADD = Op("aten::add", (X, X, "1"), (), elementwise("CUDAFunctor_add", 6.4))
ATTENTION = Op(
    "aten::scaled_dot_product_attention",
    (QKV,) * 3,
    (
        Op(
            "aten::_scaled_dot_product_flash_attention",
            (QKV,) * 3,
            (
                Op("aten::transpose", (QKV, "1", "2"), (Op("aten::as_strided", (QKV, "[]", "[]", "0")),)),
                Op("aten::_flash_attention_forward", ((1, SEQ, 16, 64),) * 3, (EMPTY, EMPTY, EMPTY), FLASH),
            ),
        ),
    ),
    frames=("model/attention.py(88): forward", "<built-in function scaled_dot_product_attention>"),
)
GELU = Op(
    "aten::gelu",
    ((1, SEQ, 4 * H), "1"),
    (),
    elementwise("GeluCUDAKernelImpl", 17.0, 8192),
    frames=("torch/nn/modules/activation.py(734): forward", "<built-in function gelu>"),
)
SPLIT = Op("aten::split", ((1, SEQ, 3 * H), "1", "1"), (Op("aten::narrow", ((1, SEQ, 3 * H),)),))
FORWARD = (
    norm(),
    linear(H, 3 * H, 34.0),
    SPLIT,
    VIEW,
    ATTENTION,
    linear(H, H, 13.0),
    ADD,
    norm(),
    linear(H, 4 * H, 44.0),
    GELU,
    linear(4 * H, H, 43.0),
    ADD,
)
LOSS = (
    Op(
        "aten::linear",
        (X, (VOCAB, H), (VOCAB,)),
        (T, Op("aten::addmm", ((VOCAB,), (SEQ, H), (H, VOCAB), "1", "1"), (), gemm(256, 530.0))),
    ),
    Op(
        "aten::cross_entropy_loss",
        ((SEQ, VOCAB), (SEQ,), "1", "1", "1"),
        (
            Op("aten::log_softmax", ((SEQ, VOCAB), "1", "1"), (), elementwise("softmax_warp_forward", 210.0, SEQ)),
            Op("aten::nll_loss_nd", ((SEQ, VOCAB), (SEQ,)), (), elementwise("nll_loss_forward_reduce", 4.0, 1)),
        ),
    ),
)


def backward_of(op):
    """The autograd node of a forward op, with the ops it calls."""
    ev = "autograd::engine::evaluate_function: "
    if op.name == "aten::linear":
        k = op.kids[2].kern
        mm = Op("aten::mm", ((SEQ, H), (H, H)), (), k._replace(us=k.us * 1.05))
        return Op(
            ev + "AddmmBackward0",
            (),
            (
                Op("AddmmBackward0", (X,), (T, mm, T, mm)),
                Op("aten::sum", ((SEQ, H), "1", "1", "1"), (), elementwise("reduce_kernel_sum", 8.1, 512)),
            ),
        )
    table = {
        "aten::layer_norm": ("NativeLayerNormBackward0", "aten::native_layer_norm_backward", LN_B),
        "aten::scaled_dot_product_attention": (
            "ScaledDotProductFlashAttentionBackward0",
            "aten::_flash_attention_backward",
            FLASH_B,
        ),
        "aten::gelu": ("GeluBackward0", "aten::gelu_backward", elementwise("GeluBackwardCUDAKernelImpl", 25.0, 8192)),
        "aten::add": ("AddBackward0", "aten::add_", elementwise("CUDAFunctor_add", 6.2)),
    }
    if op.name not in table:
        return Op(ev + "ViewBackward0", (), (Op("ViewBackward0", (X,), (Op("aten::reshape", (X, "1"), (VIEW,)),)),))
    node, inner, kern = table[op.name]
    return Op(ev + node, (), (Op(node, (X,), (Op(inner, (X, X, (H,)), (EMPTY, EMPTY), kern),)),))


BACKWARD = tuple(backward_of(o) for o in reversed(FORWARD))
LAYER_PARAMS = 12 * H * H
COLLECTIVES = {  # kernel, microseconds on the wire
    "_allgather_base": ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 92.0),
    "_reduce_scatter_base": ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 128.0),
    "allreduce": ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 24.0),
}


# ---------------------------------------------------------------- ground truth
def union(spans):
    """Merged, sorted copy of a list of (start, end)."""
    out = []
    for s, e in sorted(spans):
        if out and s <= out[-1][1]:
            out[-1][1] = max(out[-1][1], e)
        else:
            out.append([s, e])
    return out


def length(spans):
    return sum(e - s for s, e in spans)


class Truth:
    """What one rank did, step by step; times in ns."""

    def __init__(self):
        self.steps, self.total, self.counts = [], {"compute": [], "comm": [], "mem": []}, {}

    def begin(self, number, start):
        self.step, self.wait = {"step": number, "start_ns": start}, 0
        self.spans = {"compute": [], "comm": [], "mem": []}
        self.n = dict.fromkeys(("cpu_ops", "runtime_calls", "kernels", "collectives", "memcpys"), 0)

    def end(self, end):
        c, m, x = (union(v) for v in self.spans.values())
        busy, dur = length(union(c + m + x)), end - self.step["start_ns"]
        self.step.update(
            dur_ns=dur,
            compute_ns=length(c),
            comm_ns=length(m),
            memcpy_ns=length(x),
            exposed_comm_ns=length(union(c + m)) - length(c),
            busy_ns=busy,
            idle_ns=dur - busy,
            comm_wait_ns=self.wait,
            **self.n,
        )
        self.steps.append(self.step)
        for k, v in zip(self.total, (c, m, x)):
            self.total[k] += v
        for k, v in self.n.items():
            self.counts[k] = self.counts.get(k, 0) + v

    def result(self):
        c, m, x = self.total.values()
        every = union(c + m + x)
        span, busy, compute = every[-1][1] - every[0][0], length(every), length(union(c))
        return {
            "gpu_span_ns": span,
            "busy_ns": busy,
            "idle_ns": span - busy,
            "compute_ns": compute,
            "exposed_comm_ns": length(union(c + m)) - compute,
            "first_gpu_ns": every[0][0],
            **self.counts,
            "steps": self.steps,
        }


# ---------------------------------------------------------------- the simulated ranks
class Rank:
    def __init__(self, rank, world, writer, seed, slow):
        self.rank, self.world, self.w, self.slow, self.truth = rank, world, writer, slow, Truth()
        self.jit, self.j = np.random.default_rng([seed, rank]).lognormal(0.0, 0.12, 8192).tolist(), 0
        self.cpu, self.comp, self.comm = T0 + 1000 * rank, T0, T0  # clocks: host, compute stream, communication stream
        self.ext, self.corr, self.seq, self.fwd = 2048, 60000, 1000, []
        self.main, self.bwd = writer.pid, writer.pid + 614
        self.tid = self.main

    def r(self, us):
        """us microseconds with jitter, as whole ns."""
        self.j = (self.j + 1) & 8191
        return int(us * 1000 * self.jit[self.j])

    def call(self, name, cbid, us, ext, flow=True):
        """A runtime call that launches something; returns when it began."""
        self.corr += 1
        t, d = self.cpu, self.r(us)
        self.cpu += d
        self.w.runtime(name, cbid, t, d, self.corr, ext, self.tid, flow)
        self.truth.n["runtime_calls"] += 1
        return t

    def device(self, kind, start, end):
        self.truth.spans[kind].append((start, end))
        self.truth.n["memcpys" if kind == "mem" else "kernels"] += 1

    def launch(self, kern, ext):
        t = self.call("cudaLaunchKernel", 211, 4.2, ext)
        start = max(t + self.r(2.5), self.comp + 900)
        self.comp = start + int(self.r(kern.us) * self.slow)
        self.w.kernel(kern, start, self.comp - start, COMPUTE, self.corr, ext)
        self.device("compute", start, self.comp)

    def op(self, op, seq=0, fwd_tid=0):
        """Runs an op with its children on the host; returns its start."""
        w, outer, frames = self.w, self.cpu, ()
        if w.stack and seq and not fwd_tid:
            frames = CALL + op.frames
            first = w.push_frames(frames)
            self.cpu += 150 * (len(frames) + 2)
        start = self.cpu
        self.ext += 1
        ext, slot = self.ext, w.reserve()
        self.cpu += self.r(1.1)
        for kid in op.kids:
            self.op(kid, seq if kid.name.endswith("Backward0") else 0, fwd_tid)
        if op.kern:
            self.cpu += self.r(3.0)
            self.launch(op.kern, ext)
        elif op is EMPTY and w.stack:
            w.memory(self.cpu, self.tid, ext)
        self.cpu += self.r(0.9)
        w.cpu_op(slot, op, self.tid, start, self.cpu - start, ext, seq, fwd_tid)
        self.truth.n["cpu_ops"] += 1
        if frames:
            self.cpu += 150 * (len(frames) + 2)
            w.pop_frames(first, frames, self.tid, outer, self.cpu - outer)
        return start

    def forward(self, ops):
        for op in ops:
            self.seq += 1
            self.fwd.append((self.op(op, self.seq), self.seq))

    def backward(self, ops):
        self.tid = self.bwd
        for op in ops:
            t, seq = self.fwd.pop()
            self.w.fwdbwd(seq, self.main, t, self.bwd, self.op(op, seq, 1))
        self.tid = self.main

    def begin_collective(self, name, elems, after):
        """Host part: the c10d op and the launch. Returns when this rank's kernel starts."""
        start = self.cpu
        self.ext += 1
        self.cpu += self.r(14.0)
        t = self.call("cudaLaunchKernelExC", 430, 7.0, self.ext)
        self.cpu += self.r(9.0)
        out = (
            elems * self.world
            if name == "_allgather_base"
            else elems // self.world
            if name == "_reduce_scatter_base"
            else elems
        )
        self.coll = (name, elems, out, self.corr, self.ext, "Float" if name == "allreduce" else "BFloat16")
        self.w.comm_op(start, self.cpu - start, self.tid, self.coll, self.world)
        self.truth.n["cpu_ops"] += 1
        return max(t + self.r(4.0), self.comm + 1200, after)

    def end_collective(self, start, arrival, wire):
        self.comm = arrival + wire + self.r(0.4)
        self.w.collective(COLLECTIVES[self.coll[0]][0], start, self.comm - start, self.coll, self.world)
        self.device("comm", start, self.comm)
        self.truth.n["collectives"] += 1
        self.truth.wait += arrival - start
        return self.comm

    def memcpy(self, kind, nbytes, us):
        self.ext += 1
        t = self.call("cudaMemcpyAsync", 41, 6.0, self.ext)
        start = max(t + 2000, self.comp + 900)
        self.comp = start + self.r(us)
        self.w.memcpy(kind, nbytes, start, self.comp - start, COMPUTE, self.corr, self.ext)
        self.device("mem", start, self.comp)

    def synchronise(self):
        self.corr += 1
        t = self.cpu
        self.cpu = max(t + 2000, self.comp, self.comm) + self.r(5.0)
        self.w.runtime("cudaStreamSynchronize", 131, t, self.cpu - t, self.corr, self.ext, self.tid, False)
        self.w.sync(t + 500, self.cpu - t - 900, self.corr)
        self.truth.n["runtime_calls"] += 1


def collective(ranks, name, elems, dep):
    """One collective on all ranks; dep: each rank's earliest start. Returns the ends."""
    starts = [r.begin_collective(name, elems, d) for r, d in zip(ranks, dep)]
    wire = ranks[0].r(COLLECTIVES[name][1])
    return [r.end_collective(s, max(starts), wire) for r, s in zip(ranks, starts)]


def simulate(ranks, steps, layers):
    shard, never = LAYER_PARAMS // len(ranks), [0] * len(ranks)
    for n in range(steps):
        for r in ranks:
            r.start = t = r.cpu
            r.truth.begin(STEP0 + n, t)
            r.slot = r.w.reserve()
            r.cpu += r.r(9000.0 if n % 7 == 5 else 180.0)
            r.w.annotation(
                r.w.reserve(), "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", r.main, t, r.cpu - t
            )
            r.memcpy("HtoD", SEQ * 8, 5.0)
        nxt = collective(ranks, "_allgather_base", shard, never)
        for layer in range(layers):
            ready = nxt
            if layer + 1 < layers:  # prefetch the next layer's weights
                nxt = collective(ranks, "_allgather_base", shard, never)
            for r, t in zip(ranks, ready):
                r.comp = max(r.comp, t)
                r.forward(FORWARD)
                r.w.flush()
        for r in ranks:
            for op in LOSS:
                r.op(op)
        for layer in range(layers):
            for r in ranks:
                r.backward(BACKWARD)
                r.w.flush()
            collective(ranks, "_reduce_scatter_base", LAYER_PARAMS, [r.comp for r in ranks])
        collective(ranks, "allreduce", 1, [max(r.comp, r.comm) for r in ranks])
        for r in ranks:
            r.comp = max(r.comp, r.comm)
            slot, t = r.w.reserve(), r.cpu
            for _ in range(max(1, layers // 2)):
                r.op(ADAMW)
            r.w.annotation(slot, "Optimizer.step#AdamW.step", r.main, t, r.cpu - t)
            r.memcpy("DtoH", 4, 1.4)
            r.synchronise()
            r.cpu += r.r(20.0)
            first = min(s for v in r.truth.spans.values() for s, _ in v)
            r.w.step(r.slot, STEP0 + n, r.main, r.start, r.cpu - r.start, first, max(r.comp, r.comm))
            r.truth.end(r.cpu)
            r.cpu += r.r(3.0)
            r.w.flush()


# ---------------------------------------------------------------- a TPU host
def hlo_ops(layers):
    """(HLO text, name, category, source op, ps, flops, bytes, is collective, shape) of the ops of one training step."""
    act, wide = f"bf16[16,{SEQ},{H}]{{2,1,0:T(8,128)(2,1)}}", f"bf16[16,{SEQ},{4 * H}]{{2,1,0:T(8,128)(2,1)}}"
    flat, weight = f"bf16[{12 * H * H}]{{0:T(1024)}}", f"bf16[{H},{4 * H}]{{1,0:T(8,128)(2,1)}}"
    matmul = (wide, f"fusion({act} %fusion.@, {weight} %get-tuple-element.@), kind=kOutput, calls=%fused_computation.@")
    groups, mm = "channel_id=@, replica_groups=[1,4]<=[4]", 2 * 16 * SEQ * H * H
    kinds = {  # name, category, shape, right-hand side, source op, us, flops, bytes, collective
        "ag": (
            "all-gather-start",
            "all-gather",
            f"({act}, {act})",
            f"all-gather-start({act} %param.@), {groups}, dimensions={{0}}, use_global_device_ids=true",
            "all_gather",
            1.2,
            0,
            0,
            False,
        ),
        "ln": (
            "fusion",
            "loop fusion",
            act,
            f"fusion({act} %copy.@, bf16[{H}]{{0:T(1024)}} %param.@), kind=kLoop, calls=%fused_computation.@",
            "ln/mul",
            31,
            9e7,
            1.4e8,
            False,
        ),
        "qkv": ("convolution_fusion", "convolution fusion", *matmul, "qkv/dot_general", 340, mm * 3, 3.4e8, False),
        "attn": (
            "custom-call",
            "custom-call",
            act,
            f'custom-call({act} %bitcast.@, {act} %bitcast.@), custom_call_target="tpu_custom_call"',
            "attention/flash",
            410,
            4.2e11,
            2.1e8,
            False,
        ),
        "agd": (
            "all-gather-done",
            "all-gather",
            act,
            f"all-gather-done(({act}, {act}) %all-gather-start.@)",
            "all_gather",
            22,
            0,
            6.7e7,
            True,
        ),
        "mlp": ("convolution_fusion", "convolution fusion", *matmul, "mlp/dot_general", 450, mm * 4, 4.1e8, False),
        "gelu": (
            "fusion",
            "loop fusion",
            wide,
            f"fusion({wide} %convolution_fusion.@), kind=kLoop, calls=%fused_computation.@",
            "mlp/gelu",
            55,
            1.3e9,
            5.4e8,
            False,
        ),
        "copy": ("copy", "data formatting", act, f"copy({act} %bitcast.@)", "transpose", 18, 0, 1.3e8, False),
        "psum": (
            "all-reduce",
            "all-reduce",
            flat,
            f"all-reduce({flat} %fusion.@), {groups}, to_apply=%add",
            "psum",
            190,
            1.2e7,
            5e7,
            True,
        ),
        "adam": (
            "fusion",
            "loop fusion",
            f"({act}, {act})",
            f"fusion({act} %param.@), kind=kLoop, calls=%fused_computation.@",
            "adamw/add",
            900,
            4e8,
            2.9e9,
            False,
        ),
    }
    layer, out = "ag ln qkv attn agd mlp gelu copy".split(), []
    todo = [(k, f"jvp(layer_{i})/", 1.0) for i in range(layers) for k in layer]
    todo += [(k, f"transpose(jvp(layer_{i}))/", 2.0) for i in range(layers) for k in layer + ["psum"]] + [
        ("adam", "", 1.0)
    ]
    for n, (k, where, scale) in enumerate(todo, 1):
        base, category, shape, text, source, micro, flops, nbytes, coll = kinds[k]
        scale = 1.0 if coll or k == "ag" else scale
        out.append(
            (
                f"%{base}.{n} = {shape} {text.replace('@', str(n))}",
                f"{base}.{n}",
                category,
                f"jit(train_step)/{where}{source}",
                int(micro * 1e6 * scale),
                int(flops * scale),
                int(nbytes * scale),
                coll,
                shape,
            )
        )
    return out


def make_xspace(path, world, steps, layers, seed):
    """Writes one host's xplane.pb (without a path only measures) and returns (truth, size)."""
    ops, truth, host, line0 = hlo_ops(layers), {}, [], 1_000_000
    planes = [Plane(i + 1, f"/device:TPU:{i}") for i in range(world)]
    events = [([], [], []) for _ in planes]  # of the lines Steps, XLA Modules, XLA Ops
    kinds = [
        [
            p.event_type(
                o[0],
                o[1],
                [
                    ("program_id", ("u", 7)),
                    ("symbol_id", ("u", i + 1)),
                    ("hlo_category", ("r", o[2])),
                    ("tf_op", o[3] + ":"),
                    ("flops", o[5]),
                    ("model_flops", o[5]),
                    ("bytes_accessed", o[6]),
                    ("raw_bytes_accessed", o[6]),
                    ("shape_with_layout", o[8]),
                    ("deduplicated_name", o[1].split(".")[0]),
                    ("source", f"model/layers.py:{100 + i % 400}"),
                ],
            )
            for i, o in enumerate(ops)
        ]
        for p in planes
    ]
    result = [[] for _ in planes]
    rng, base, is_coll = (
        np.random.default_rng(seed),
        np.array([o[4] for o in ops], dtype=np.int64),
        np.array([o[7] for o in ops]),
    )
    begin = 0
    for n in range(steps):
        number, step_begin = STEP0 + n, begin
        begin += int((3e9 if n % 7 == 5 else 2e8) * (1 + 0.1 * rng.random()))  # ps the host takes before the step
        dur = (base * rng.lognormal(0, 0.05, (world, len(ops)))).astype(np.int64)
        if world > 1:
            dur[-1] = np.where(is_coll, dur[-1], dur[-1] * 104 // 100)  # the last core is slower
        gap = rng.integers(0, 900, (world, len(ops))) * 1000
        now, at = np.full(world, begin, dtype=np.int64), np.empty((world, len(ops)), dtype=np.int64)
        for i in range(len(ops)):
            now += gap[:, i]
            at[:, i] = now
            now = np.full(world, (now + dur[:, i]).max()) if is_coll[i] else now + dur[:, i]
            dur[:, i] = now - at[:, i]
        for p, (ev_steps, ev_modules, ev_ops), kind, res, a, d, e in zip(
            planes, events, kinds, result, at, dur, now.tolist()
        ):
            off, dev = (
                b"\x08" + varint(p.stat_id("device_offset_ps")),
                b"\x08" + varint(p.stat_id("device_duration_ps")),
            )
            group = blob(4, p.stat("group_id", number))
            for k, t, x in zip(kind, a.tolist(), d.tolist()):
                o, x = varint(t), varint(x)  # offset and duration come twice: trace and device clock
                body = (
                    b"\x08"
                    + varint(k)
                    + b"\x10"
                    + o
                    + b"\x18"
                    + x
                    + b'"'
                    + bytes([len(off) + len(o) + 1])
                    + off
                    + b"\x20"
                    + o
                    + b'"'
                    + bytes([len(dev) + len(x) + 1])
                    + dev
                    + b"\x20"
                    + x
                    + group
                )
                ev_ops.append(b'"' + varint(len(body)) + body)
            clock = [("device_offset_ps", begin), ("device_duration_ps", e - begin)]
            ev_steps.append(
                p.event(str(number), begin, e - begin, clock + [("group_id", number), ("step_num", number)])
            )
            ev_modules.append(
                p.event(
                    "jit_train_step(1234567890123)",
                    begin,
                    e - begin,
                    clock + [("run_id", ("u", 100 + n)), ("program_id", ("u", 7)), ("group_id", number)],
                )
            )
            busy, coll = int(d.sum()), int(d[is_coll].sum())
            res.append(
                {
                    "step": number,
                    "start_ps": begin,
                    "dur_ps": e - begin,
                    "busy_ps": busy,
                    "idle_ps": e - begin - busy,
                    "collective_ps": coll,
                    "compute_ps": busy - coll,
                    "ops": len(ops),
                    "flops": sum(o[5] for o in ops),
                    "bytes_accessed": sum(o[6] for o in ops),
                }
            )
        begin = int(now.max())
        host.append((number, step_begin, begin))
    done = []
    for r, (p, ev, s) in enumerate(zip(planes, events, result)):
        for i, name in enumerate(("Steps", "XLA Modules", "XLA Ops")):
            p.line(i + 1, name, line0, ev[i])
        done.append(
            p.encode(
                [
                    ("device_type_string", "TPU v5 Lite"),
                    ("peak_teraflops_per_second", 202.7),
                    ("peak_hbm_bw_gigabytes_per_second", 819.2),
                    ("peak_sram_rd_bw_gigabytes_per_second", 9000.0),
                    ("peak_sram_wr_bw_gigabytes_per_second", 9000.0),
                    ("peak_vmem_rd_bw_gigabytes_per_second", 11000.0),
                    ("peak_vmem_wr_bw_gigabytes_per_second", 11000.0),
                    ("has_megacore", 0),
                    ("has_merged_vmem", 0),
                    ("core_type", 1),
                    ("global_chip_id", r),
                    ("chip_ordinal", r),
                ]
            )
        )
        truth[str(r)] = {
            "first_ps": s[0]["start_ps"],
            "ops": sum(x["ops"] for x in s),
            "busy_ps": sum(x["busy_ps"] for x in s),
            "steps": s,
        }
    p, main, pool = Plane(100, "/host:CPU"), [], []
    for number, b, e in host:  # python thread and runtime pool
        main += [
            p.event("$train.py:41 train_step", b, e - b),
            p.event("PjitFunction(train_step)", b + 10**6, 2 * 10**8),
            p.event("train", b, e - b, [("step_num", number), ("_r", 1), ("group_id", number)]),
        ]
        pool += [
            p.event(
                ("ThreadpoolListener::Region", "TpuLoadedExecutable::Execute", "TransferToDevice")[i % 3],
                b + i * 10**7,
                8 * 10**6,
                [("run_id", ("u", number))],
            )
            for i in range(40)
        ]
    p.line(1, "python", line0, main)
    p.line(2, "tfrt-dynamic-queue/3124142", line0, pool)
    env = Plane(101, "Task Environment").encode(
        [("profile_start_time", ("u", BASE_NS)), ("profile_stop_time", ("u", BASE_NS + begin // 1000 + line0))]
    )
    space = b"".join(blob(1, x) for x in done + [p.encode(), env]) + blob(4, "tpu-host-0")
    if path:
        with open(path, "wb") as f:
            f.write(space)
    return truth, len(space)


# ---------------------------------------------------------------- command line
def gpu_run(a, paths, steps, layers):
    """Simulates and writes; without paths only measures. Returns (ranks, bytes of rank 0)."""
    make = (
        (lambda p, i: Kineto(p, i, a.ranks, a.style, a.stack))
        if a.kind == "kineto"
        else (lambda p, i: Nsys(p, i, a.ranks))
    )
    ranks = [
        Rank(i, a.ranks, make(p, i), a.seed, 1 + (a.straggler if i and i == a.ranks - 1 else 0))
        for i, p in enumerate(paths)
    ]
    simulate(ranks, steps, layers)
    return ranks, ranks[0].w.size()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--kind", choices=("kineto", "xspace", "nsys"), required=True)
    ap.add_argument("--out", required=True, help="folder to write into")
    ap.add_argument("--size-mb", type=float, default=50, help="size of a file, uncompressed (10^6 bytes)")
    ap.add_argument("--ranks", type=int, default=1)
    ap.add_argument("--steps", type=int, default=0, help="0: as many as fill the file")
    ap.add_argument(
        "--layers", type=int, default=0, help="layers a step; 0: the kind's default, or as many as fill --steps"
    )
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--straggler", type=float, default=0.06, help="how much slower the last rank computes")
    ap.add_argument(
        "--stack",
        action="store_true",
        help="kineto: python_function and [memory] events, as with_stack and profile_memory",
    )
    ap.add_argument("--style", choices=tuple(LAYOUTS), default="2.13", help="kineto: layout of the text")
    ap.add_argument("--gzip", action="store_true", help="kineto: write .json.gz beside the .json")
    ap.add_argument("--gzip-level", type=int, default=9, help="as PyTorch does: 9")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    want, sized = (
        a.size_mb * 1e6,
        {"xspace": lambda n, m: make_xspace(None, a.ranks, n, m, a.seed)[1]}.get(
            a.kind, lambda n, m: gpu_run(a, [None] * a.ranks, n, m)[1]
        ),
    )
    layers, steps = a.layers or (160 if a.kind == "xspace" else 48), a.steps
    if not steps:  # as many steps of that many layers as fill the file
        s1, s2 = sized(1, layers), sized(3, layers)
        steps = max(1, round((want - s1) / ((s2 - s1) / 2)) + 1)
    elif not a.layers:  # as many layers as fill that many steps
        s1, s2 = sized(2, 10), sized(2, 30)
        layers = max(1, round((want * 2 / steps - s1) / ((s2 - s1) / 20)) + 10)
    if a.kind == "xspace":
        files = ["host0.xplane.pb"]
        truth, size = make_xspace(os.path.join(a.out, files[0]), a.ranks, steps, layers, a.seed)
    else:
        files = [f"rank{i}.{'pt.trace.json' if a.kind == 'kineto' else 'sqlite'}" for i in range(a.ranks)]
        paths, truth = [os.path.join(a.out, f) for f in files], {}
        for p in filter(os.path.exists, paths):
            os.remove(p)
        ranks, size = gpu_run(a, paths, steps, layers)
        for r, p in zip(ranks, paths):
            r.w.close(T0, r.cpu)
            truth[str(r.rank)] = r.truth.result()
            if a.kind == "kineto" and a.gzip:
                with (
                    open(p, "rb") as src,
                    open(p + ".gz", "wb") as raw,
                    gzip.GzipFile("", "wb", a.gzip_level, raw, mtime=0) as dst,
                ):
                    shutil.copyfileobj(src, dst, 1 << 20)
    with open(os.path.join(a.out, "truth.json"), "w") as f:
        args = {k: v for k, v in vars(a).items() if k != "out"}
        json.dump(
            {"kind": a.kind, "arguments": args, "layers": layers, "steps": steps, "files": files, "ranks": truth},
            f,
            indent=1,
        )
    print(
        f"{a.kind}: {len(files)} file(s) of about {size / 1e6:.1f} MB, {steps} steps of {layers} layers",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()

"""The sets of traces: which job each shows, in which format, and what is said beside it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from _sim import ddp, folder, fsdp, h100, kineto, nsys, xspace
from _sim.schedule import DeviceOp
from _sim.truth import Device, Truth

DDP_BEFORE = ddp.Job(
    ranks=8,
    layers=6,
    hidden=768,
    heads=12,
    vocab=32000,
    sequences=2,
    seq=1024,
    first_step=10,
    steps=9,
    bucket_cap_mb=25,
    slow_rank=3,
    spared_step=12,
    stall_ns=2_400_000,
)
DDP_AFTER = replace(DDP_BEFORE, bucket_cap_mb=1)
DDP_NSYS = replace(
    DDP_BEFORE, ranks=2, layers=2, hidden=1024, heads=16, first_step=100, steps=5, slow_rank=1, spared_step=103
)
FSDP = fsdp.Job()

NOTES = {
    "origin_unix_ns": "Unix time of 0 on the clock of every start_ns and arrival_ns here",
    "steps": "a row is a device's step; its window starts at its first kernel (copies and fills open none) and ends "
    "where the next one starts, the last with its last device operation; compute + exposed_comm + exposed_copy + idle "
    "= wall = sum of the 15 buckets",
    "useful_math_ns": "FLOPs done at peak (the sum of t_math) with recompute_math 0, as if model FLOPs were unknown; "
    "with model_flops they split otherwise and keep their sum",
    "idle": "an idle stretch belongs to the device operation that ends it: from the begin of its launch call on it is "
    "idle_gap; before that idle_input or idle_sync where the launching or the step-marking host thread was in such a "
    "call, else idle_host",
    "shares_ns": "in a step's row: nanoseconds of compute by operation (those that run at once share equally); their "
    "sum is compute_ns",
    "comm": "exposed time before a collective's arrival is comm_wait; of the rest, up to predicted_ns is comm_minimum",
    "collectives": "lists have one value for each device, in their order; wait = arrival - start, transfer = end - "
    "arrival; exposed_ns is its share of exposed_comm over all windows",
    "ops": "on the first device, over all steps: calls, and cost and bounds of one call; null: unmodelled",
    "median_step": "of each device the lower median of its steps by wall time, the last recorded step left out (no "
    "step follows it), then the mean over devices",
    "exact": "buckets (or sums of them) that any right account must match to the nanosecond; given says on what the "
    "others rest",
}
IDLE = ["idle_host", "idle_sync", "idle_input", "idle_pipeline", "idle_gap", "idle_unknown"]
COMM = ["comm_minimum", "comm_wait", "comm_inefficiency"]
ALL_COMPUTE = "useful_math + recompute_math + memory_bound + kernel_inefficiency + unmodelled_compute"
MODEL_FLOPS = "how model FLOPs are counted; the sum of the two is exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """One folder of traces."""

    job: ddp.Job | fsdp.Job
    about: str
    manifest: Mapping[str, Any]
    exact: list[str]
    given: Mapping[str, str]
    origin_unix_ns: int
    write_traces: Callable[[Any, Path], None]
    before: str | None = None
    """The set that this one is compared with."""


def gpu_devices(workers: list[ddp.Worker]) -> list[Device]:
    return [Device(label={"rank": w.rank}, ops=w.ops, spans=w.spans, mark_thread=w.main_thread) for w in workers]


def tpu_devices(host: fsdp.Host) -> list[Device]:
    thread, spans = host.thread, host.spans
    return [Device(label={"device": f"TPU:{c.chip}"}, ops=c.ops, spans=spans, mark_thread=thread) for c in host.chips]


def op_label(op: DeviceOp) -> str:
    """What the framework calls it; what nothing in the framework stands for goes by its own name."""
    return str(op.args.get("framework_op") or op.name.split(" = ")[0])


def write_kineto(workers: list[ddp.Worker], into: Path) -> None:
    for worker in workers:
        kineto.write(worker.job, worker, into / f"rank{worker.rank}.pt.trace.json.gz")


def write_nsys(workers: list[ddp.Worker], into: Path) -> None:
    for worker in workers:
        nsys.write(worker.job, worker, into / f"rank{worker.rank}.sqlite.gz")


def write_xspace(host: fsdp.Host, into: Path) -> None:
    xspace.write(host, into / "tpu-host-0.xplane.pb.gz")


def model(job: ddp.Job | fsdp.Job) -> dict[str, Any]:
    return {
        "layers": job.layers,
        "hidden": job.hidden,
        "heads": job.heads,
        "kv_heads": job.heads,
        "head_dim": job.hidden // job.heads,
        "ffn": job.ffn,
        "mlp": "gelu",
        "vocab": job.vocab,
        "seq": job.seq,
        "causal": True,
        "tied_embeddings": False,
        "dtype": "bf16",
    }


def ddp_manifest(job: ddp.Job, *, name: str, run: str, started_at: str, seed: int) -> dict[str, Any]:
    return {
        "job": name,
        "run": run,
        "simulated": True,
        "started_at": started_at,
        "git_commit": "5a0c17b2d9e84f0091c3b7a64e25d8f0a1b2c3d4",
        "world_size": job.ranks,
        "tokens_per_step": job.ranks * job.tokens,
        "model": model(job),
        "mesh": {"data": job.ranks},
        "config": {
            "ddp.bucket_cap_mb": job.bucket_cap_mb,
            "ddp.gradient_as_bucket_view": True,
            "ddp.static_graph": False,
            "optim.name": "adamw",
            "optim.fused": True,
            "optim.lr": 0.0003,
            "data.num_workers": 0,
            "data.batch_per_rank": job.sequences,
            "model.freeze_token_embedding": True,
            "precision": "bf16",
            "run.seed": seed,
            "run.label": run,
        },
    }


FSDP_MANIFEST = {
    "job": "sim-fsdp-v5p",
    "run": "sim-fsdp-v5p-tue",
    "simulated": True,
    "started_at": "2026-09-01T00:00:00Z",
    "git_commit": "7be1440d2a6c90f3185de7a2c4b8f96013ad5e77",
    "world_size": FSDP.chips,
    "tokens_per_step": FSDP.chips * FSDP.seq,
    "model": model(FSDP),
    "mesh": {"fsdp": FSDP.chips},
    "topology": {"torus": [2, 2, 1], "wrap": [False, False, False]},
    "config": {"fsdp.prefetch_layers": 1, "attention.kernel": "pallas", "optim.name": "adamw", "run.seed": 7},
}

GPU_JOB = (
    "{n} H100 SXM GPUs on one node train a small decoder in bf16 with PyTorch DDP. Gradient buckets of {cap} MB are "
    "all-reduced on a stream of their own during the backward pass; the last ones are exposed. The host of rank "
    "{slow} stalls in its data loader in all steps but {spared}, so the others wait for it. `loss.item()` ends every "
    "step. A loss kernel and a statistics kernel of an in-house library have no known cost; the latter shares the "
    "device with a matrix product."
)
H100_GIVEN = {
    "useful_math, recompute_math": MODEL_FLOPS,
    "useful_math + recompute_math, memory_bound, kernel_inefficiency": "the counts in `ops`: layer norm 5 and 10 FLOPs "
    "an element, weights and statistics in its bytes; GELU 1 and 10; causal attention half of the full one, the "
    "log-sum-exp in the bytes of its backward pass alone; AdamW 16 FLOPs and 14 bytes a parameter",
    "unmodelled_compute": "AdamW counts as modelled here, though lists of tensors carry no dtype in such a trace and "
    "only its kernel's name says bf16; for whom it is not, its shares_ns is unmodelled and its bounds leave the other "
    "buckets",
}


def about_ddp(job: ddp.Job) -> str:
    return GPU_JOB.format(n=job.ranks, cap=job.bucket_cap_mb, slow=job.slow_rank, spared=job.spared_step)


SETS = {
    "sim_h100_before": Set(
        job=DDP_BEFORE,
        about=about_ddp(DDP_BEFORE),
        manifest=ddp_manifest(
            DDP_BEFORE, name="sim-ddp-h100", run="sim-ddp-h100-mon", started_at="2026-08-31T00:00:00Z", seed=1234
        ),
        exact=[ALL_COMPUTE, *COMM, "exposed_copy", *IDLE],
        given=H100_GIVEN,
        origin_unix_ns=kineto.BASE_NS + kineto.SHIFT_NS,
        write_traces=write_kineto,
    ),
    "sim_h100_after": Set(
        job=DDP_AFTER,
        about=about_ddp(DDP_AFTER)
        + "\n\nThe job of sim_h100_before after `ddp.bucket_cap_mb` went from 25 to 1: many more and "
        "smaller all-reduces. Nothing else is different; even chance falls the same way.",
        manifest=ddp_manifest(
            DDP_AFTER, name="sim-ddp-h100", run="sim-ddp-h100-tue", started_at="2026-09-01T00:00:00Z", seed=1235
        ),
        exact=[ALL_COMPUTE, *COMM, "exposed_copy", *IDLE],
        given=H100_GIVEN,
        origin_unix_ns=kineto.BASE_NS + kineto.SHIFT_NS,
        write_traces=write_kineto,
        before="sim_h100_before",
    ),
    "sim_nsys_h100": Set(
        job=DDP_NSYS,
        about=about_ddp(DDP_NSYS)
        + "\n\nOne export of Nsight Systems for each rank, with sessions that began at different times. "
        "Steps, loading and framework operations are NVTX ranges; NCCL kernels carry no sizes, the range "
        "`nccl:all_reduce` does.",
        manifest=ddp_manifest(
            DDP_NSYS,
            name="sim-ddp-h100-nsys",
            run="sim-ddp-h100-nsys-mon",
            started_at="2026-08-31T00:00:00Z",
            seed=1234,
        ),
        exact=[ALL_COMPUTE, "comm_wait", "comm_minimum + comm_inefficiency", "exposed_copy", *IDLE],
        given={
            "comm_minimum, comm_inefficiency": "message sizes, which only the NVTX ranges of nccl:all_reduce have "
            "(bf16)",
            "useful_math, recompute_math, memory_bound, kernel_inefficiency, unmodelled_compute": "costs from the "
            "sizes in NVTX ranges, which say neither dtypes (kernel names do) nor masks",
        },
        origin_unix_ns=nsys.START_UNIX_NS + nsys.EVENTS_AFTER_NS,
        write_traces=write_nsys,
    ),
    "sim_tpu_v5p": Set(
        job=FSDP,
        about="The four TPU v5p chips of one host (2x2x1, no wraparound) train a small decoder in bf16 with JAX, "
        "fully sharded. Weights are gathered a layer ahead and gradients scattered by asynchronous collectives; the "
        "norm of the gradients is all-reduced while all wait. The host enqueues the program on one chip after the "
        "other, so they start at different times. Attention is a custom call of unknown cost, optimizer state comes "
        "from host memory by an asynchronous copy, data comes late in two steps.",
        manifest=FSDP_MANIFEST,
        exact=["unmodelled_compute", "comm_wait", "comm_minimum + comm_inefficiency", "exposed_copy", *IDLE],
        given={
            "useful_math, recompute_math": MODEL_FLOPS,
            "useful_math + recompute_math, memory_bound, kernel_inefficiency": "exact with model_flops and HBM bytes "
            "(memory_access_breakdown) at the peaks that the plane states",
            "comm_minimum, comm_inefficiency": "the model of predicted_ns: links of 100 GB/s each way, both axes of 2 "
            "used at once, no wraparound, hops of 1 us (theory T2, T3, T4, T8)",
        },
        origin_unix_ns=xspace.START_UNIX_NS,
        write_traces=write_xspace,
    ),
}


@cache
def simulated(job: ddp.Job | fsdp.Job) -> tuple[Any, Truth]:
    """The run of a job, and its truth."""
    if isinstance(job, fsdp.Job):
        host = fsdp.simulate(job)
        return host, Truth(tpu_devices(host), fsdp.V5P, lambda call: fsdp.predicted_ns(call, job.axes))
    workers = ddp.simulate(job)
    return workers, Truth(gpu_devices(workers), h100.H100, lambda call: h100.predicted_ns(call, job.ranks))


def truth_of(this: Set) -> dict[str, Any]:
    """What truth.json holds."""
    job = this.job
    _, truth = simulated(job)
    flops = fsdp.model_flops(job) if isinstance(job, fsdp.Job) else ddp.model_flops(job)
    out: dict[str, Any] = {
        "simulated": True,
        "notes": NOTES,
        "origin_unix_ns": this.origin_unix_ns,
        "peaks": {
            "matrix_flops_per_s": truth.chip.matrix_flops_per_s,
            "vector_flops_per_s": truth.chip.vector_flops_per_s,
            "hbm_bytes_per_s": truth.chip.hbm_bytes_per_s,
        },
        "model_flops_per_device_step": flops,
        "exact": this.exact,
        "given": this.given,
        "median_step": truth.median_step(),
    }
    if this.before:
        out["compared_with"] = compare(this.before, this)
    return out | {
        "steps": truth.step_rows(op_label),
        "collectives": truth.collective_rows(),
        "ops": truth.op_rows(op_label),
    }


def compare(before: str, this: Set) -> dict[str, Any]:
    """By how much the median step of a set is longer than that of `before`, in all and in each bucket."""
    jobs = SETS[before].job, this.job
    old, new = (simulated(job)[1].median_step() for job in jobs)
    buckets = {key: new["buckets"][key] - old["buckets"][key] for key in old["buckets"]}
    counts = [len(simulated(job)[1].arrival_ns) // job.steps for job in jobs]
    return {
        "before": before,
        "median_step_wall_delta_ns": new["wall_ns"] - old["wall_ns"],
        "median_step_bucket_delta_ns": buckets,
        "exposed_comm_delta_ns": sum(buckets[f"{name}_ns"] for name in COMM),
        "all_reduces_a_step": counts,
        "cause": "ddp.bucket_cap_mb: 25 -> 1",
    }


def write(name: str, out: Path) -> Path:
    """Write a set into a folder of its name."""
    into = out / name
    write_set(SETS[name], into)
    return into


def write_set(this: Set, into: Path) -> None:
    """Write a set into a folder."""
    into.mkdir(parents=True, exist_ok=True)
    this.write_traces(simulated(this.job)[0], into)
    folder.write(into, this.manifest, truth_of(this), this.about)

"""Writes a rank's schedule as PyTorch's profiler does: Chrome trace JSON in the style of PyTorch 2.4 and later."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _sim.ddp import COMM, Job, Worker
from _sim.schedule import DeviceOp, HostSpan

BASE_NS = 225 * 7_889_238 * 10**9
"""`baseTimeNanoseconds`: it lies on a grid of a quarter of a year."""
SHIFT_NS = 3_187_452_905_118_000
"""Recording begins so long after it."""
CATEGORIES = {
    "step": "user_annotation",
    "annotation": "user_annotation",
    "input": "user_annotation",
    "op": "cpu_op",
    "launch": "cuda_runtime",
    "sync": "cuda_runtime",
}
CBID = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaStreamSynchronize": 131,
}
DEVICE_CATEGORIES = {"copy": "gpu_memcpy", "memset": "gpu_memset"}


def microseconds(ns: int) -> str:
    """Text of a time: microseconds with the nanoseconds as decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def write(job: Job, worker: Worker, path: Path) -> None:
    """Write one rank's file."""
    head = {
        "schemaVersion": 1,
        "deviceProperties": [_properties(i) for i in range(job.ranks)],
        "cupti_version": 22,
        "cuda_runtime_version": 12040,
        "cuda_driver_version": 12040,
        "distributedInfo": _distributed(job, worker.rank),
        "record_shapes": 1,
        "trace_id": f"{0x5A0C17B2D9E84F00 + worker.rank:032X}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }
    lines = [line for _, line in sorted(_events(worker), key=lambda e: e[0])]
    text = json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(_metadata(worker) + lines)
    text += f'\n], "traceName": "rank{worker.rank}.pt.trace.json"}}\n'
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def _properties(index: int) -> dict[str, Any]:
    return {
        "id": index,
        "name": "NVIDIA H100 80GB HBM3",
        "totalGlobalMem": 85_018_279_936,
        "computeMajor": 9,
        "computeMinor": 0,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerBlock": 65536,
        "warpSize": 32,
        "sharedMemPerBlock": 49152,
        "numSms": 132,
        "regsPerMultiprocessor": 65536,
        "sharedMemPerBlockOptin": 232448,
        "sharedMemPerMultiprocessor": 233472,
    }


def _distributed(job: Job, rank: int) -> dict[str, Any]:
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": job.ranks}
    return {
        "backend": "nccl",
        "rank": rank,
        "world_size": job.ranks,
        "pg_count": 1,
        "pg_config": [group | {"ranks": list(range(job.ranks))}],
        "nccl_version": "2.20.5",
    }


def _pid(worker: Worker) -> int:
    return 41_200 + worker.rank


def _tid(worker: Worker, thread: str) -> int:
    return _pid(worker) + (0 if thread == worker.main_thread else 640)


def _metadata(worker: Worker) -> list[str]:
    def event(what: str, pid: int, tid: int, **args: Any) -> str:
        return json.dumps({"name": what, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args})

    pid = _pid(worker)
    streams = sorted({op.stream for op in worker.ops})
    return [
        event("process_name", pid, 0, name="python3"),
        event("process_labels", pid, 0, labels="CPU"),
        event("process_name", worker.rank, 0, name="python3"),
        event("process_labels", worker.rank, 0, labels=f"GPU {worker.rank}"),
        event("thread_name", pid, pid, name=f"thread {pid} (python3)"),
        event("thread_name", pid, _tid(worker, "autograd"), name="thread (pt_autograd_0)"),
        *(event("thread_name", worker.rank, int(s), name=f"stream {s} ") for s in streams),
    ]


def _events(worker: Worker) -> Iterator[tuple[int, str]]:
    for span in worker.spans:
        yield span.start_ns, _host_event(worker, span)
    for op in worker.ops:
        yield op.start_ns, _device_event(worker, op)
    for span in worker.spans:
        if span.kind == "step":
            yield from _step_on_device(worker, span)


def _complete(category: str, name: str, track: tuple[int, int], span: tuple[int, int], args: dict[str, Any]) -> str:
    """A complete event on track (pid, tid)."""
    head = json.dumps({"ph": "X", "cat": category, "name": name, "pid": track[0], "tid": track[1]})[:-1]
    times = f'"ts": {microseconds(SHIFT_NS + span[0])}, "dur": {microseconds(span[1] - span[0])}'
    return f'{head}, {times}, "args": {json.dumps(args)}}}'


def _external_id(span: HostSpan) -> int:
    return span.span_id + 1


def _host_event(worker: Worker, span: HostSpan) -> str:
    if span.kind in ("launch", "sync"):
        args: dict[str, Any] = {"cbid": CBID[span.name], "correlation": span.correlation}
        if span.parent is not None:
            args = {"External id": span.parent + 1} | args
    else:
        args = {"External id": _external_id(span), "Record function id": 0}
        args |= span.args.get("recorded", {})
        inputs = span.args.get("inputs", ())
        if inputs:
            args |= {
                "Concrete Inputs": [a.concrete for a in inputs],
                "Input type": [a.dtype for a in inputs],
                "Input Strides": [a.strides for a in inputs],
                "Input Dims": [a.dims for a in inputs],
            }
        args["Ev Idx"] = span.span_id
    track = (_pid(worker), _tid(worker, span.thread))
    return _complete(CATEGORIES[span.kind], span.name, track, (span.start_ns, span.end_ns), args)


def _device_event(worker: Worker, op: DeviceOp) -> str:
    stream = int(op.stream)
    args: dict[str, Any] = {"External id": (op.launch.parent or 0) + 1}
    place = {"device": worker.rank, "context": 1, "stream": stream, "correlation": op.launch.correlation}
    if op.op_class in DEVICE_CATEGORIES:
        rate = op.copy_bytes / (op.end_ns - op.start_ns)
        args |= place | {"bytes": op.copy_bytes, "memory bandwidth (GB/s)": rate}
    else:
        collective = op.collective is not None
        grid, block = ((24, 1, 1), (544, 1, 1)) if collective else (op.args["grid"], op.args["block"])
        args |= {"queued": 0} | place
        args |= {"registers per thread": 96 if collective else 128, "shared memory": 0}
        args |= {"grid": grid, "block": block, "est. achieved occupancy %": 0 if stream == int(COMM) else 25}
        if collective:
            args |= op.args
    category = DEVICE_CATEGORIES.get(op.op_class, "kernel")
    return _complete(category, op.name, (worker.rank, stream), (op.start_ns, op.end_ns), args)


def _step_on_device(worker: Worker, span: HostSpan) -> Iterator[tuple[int, str]]:
    """The step's mark as the profiler projects it on each stream: one nanosecond more than the work at either side."""
    ops = [op for op in worker.ops if op.step == span.args["number"]]
    for stream in sorted({op.stream for op in ops}):
        on_stream = [op for op in ops if op.stream == stream]
        times = (on_stream[0].start_ns - 1, max(op.end_ns for op in on_stream) + 1)
        args = {"External id": _external_id(span)}
        yield times[0], _complete("gpu_user_annotation", span.name, (worker.rank, int(stream)), times, args)

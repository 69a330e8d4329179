"""Rows of hand-made exports of Nsight Systems, for the tests of its reader."""

import sqlite3
from pathlib import Path

from tracegap.ingest.readers import nsys
from tracegap.ingest.trace import Trace

PID, TID = 100, 101
P = (1 << 48) + (PID << 24)  # globalPid of process 100
T = P + TID  # globalTid of its thread 101

KERNEL = "start end deviceId contextId streamId correlationId globalPid demangledName shortName graphNodeId"
MEMCPY = "start end deviceId contextId streamId correlationId globalPid bytes copyKind"
MEMSET = "start end deviceId contextId streamId correlationId globalPid value bytes"
RUNTIME = "start end eventClass globalTid correlationId nameId returnValue"
NVTX = "start end eventType text globalTid textId domainId"

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
NAMES = [GEMM, "gemm_short", ADD, "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020"]
GEMM_ID, SHORT_ID, ADD_ID, LAUNCH_ID, COPY_ID, SYNC_ID = range(1, 7)


def write(path: Path, tables: dict[str, tuple[str, list[tuple]]], names: list[str] = NAMES) -> Path:
    """A SQLite file with these tables (columns as words, rows) and StringIds."""
    to_sqlite(path, tables)
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(names, 1)))
    db.close()
    return path


def to_sqlite(path: Path, tables: dict[str, tuple[str, list[tuple]]]) -> Path:
    """A SQLite file with just these tables (columns as words, rows)."""
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as db:
        for table, (columns, rows) in tables.items():
            quoted = ", ".join(f'"{c}"' for c in columns.split())
            db.execute(f"CREATE TABLE {table} ({quoted})")
            db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns.split()))})", rows)
    db.close()
    return path


def read(path: Path, names: list[str] = NAMES, **tables: tuple[str, list[tuple]]) -> Trace:
    long_names = {
        "kernel": "CUPTI_ACTIVITY_KIND_KERNEL", "memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY", "nvtx": "NVTX_EVENTS",
        "memset": "CUPTI_ACTIVITY_KIND_MEMSET", "runtime": "CUPTI_ACTIVITY_KIND_RUNTIME",
        "graph": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "sync": "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    }  # fmt: skip
    return nsys.read(write(path / "t.sqlite", {long_names.get(t, t): v for t, v in tables.items()}, names))


def kernel(
    start: int | None, end: int | None, corr: int, name: int = GEMM_ID, *, device=0, stream=7, process=P
) -> tuple:
    return (start, end, device, 1, stream, corr, process, name, SHORT_ID, None)


def launch(start: int, end: int | None, corr: int, name: int = LAUNCH_ID, thread: int = T) -> tuple:
    return (start, end, 0, thread, corr, name, 0)


def pushed(start: int, end: int | None, text: str, thread: int = T, domain: int = 0) -> tuple:
    return (start, end, 59, text, thread, None, domain)


def codes(trace: Trace) -> dict[str, int]:
    return {i.code: i.count for i in trace.issues.by_code.values()}

"""Time of `tracegap ingest` against json.load of the same generated Kineto trace, in one run: the ratio is what to quote.

Usage: python bench/ingest.py [SIZE_MB]
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracegap.ingest.pipeline import ingest_paths
from tracegap.ingest.store import open_store

MB = 10**6


def events() -> Iterator[dict[str, Any]]:
    """A host operator, its launch and its kernel, over and over, in steps of 1,000."""
    for i in range(10**9):
        ts = 10.0 * i
        host = {"ph": "X", "pid": 1, "tid": 1}
        if i % 1000 == 0:
            yield host | {"cat": "user_annotation", "name": f"ProfilerStep#{i // 1000}", "ts": ts, "dur": 9_999.0}
        shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["c10::BFloat16"] * 2, "External id": i + 1}
        yield host | {"cat": "cpu_op", "name": "aten::mm", "ts": ts + 0.5, "dur": 5.0, "args": shapes}
        launch = {"correlation": i + 1, "External id": i + 1}
        yield host | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts + 1.0, "dur": 2.0, "args": launch}
        on = launch | {"device": 0, "stream": 7}
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": f"gemm_{i % 50}",
            "pid": 0,
            "tid": 7,
            "ts": ts + 4.0,
            "dur": 7.0,
            "args": on,
        }


def write_trace(path: Path, size_bytes: int) -> None:
    """Writes a trace of about that size."""
    with path.open("w") as f:
        f.write(
            '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], "traceEvents": [\n'
        )
        separator = ""
        for event in events():
            f.write(separator + json.dumps(event))
            separator = ",\n"
            if f.tell() >= size_bytes:
                break
        f.write("\n]}\n")


def main(size_mb: float) -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write_trace(path, int(size_mb * MB))
        size = path.stat().st_size / MB
        began = time.perf_counter()
        with path.open() as f:
            json.load(f)
        load_s = time.perf_counter() - began
        began = time.perf_counter()
        with open_store(Path(folder) / "s.duckdb") as con:
            (result,) = ingest_paths(con, [path])
        ingest_s = time.perf_counter() - began
    print(f"trace        {size:8.1f} MB, {result.ops:,} device operations, {result.status}")
    print(f"json.load    {load_s:8.2f} s  {size / load_s:7.1f} MB/s")
    print(f"ingest       {ingest_s:8.2f} s  {size / ingest_s:7.1f} MB/s  (read, account, store)")
    print(f"ratio        {ingest_s / load_s:8.2f}    ingest over json.load")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 50)

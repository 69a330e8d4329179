"""Stores made by hand: two ranks, three steps of 1 ms of which the last is cut, every bucket worked out on paper."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from tracegap.ingest import store

US = 1_000
HOSTILE = "</script><img src=x onerror=document.title='owned'><!--<script>\"'&"
VIEWS = ("op_gap", "collective_gap", "step_gap")
SQL = Path(store.__file__).resolve().parent.parent / "reports" / "sql"

# name, class, share and duration in us, dtype, flops, bytes. At 1e15 FLOP/s (matrix), 1e14 (vector), 2e12 B/s:
KERNELS = (
    ("gemm_bf16_128x128", "matmul", 300, "bf16", 200_000_000_000, 100_000_000),  # t_math 200 us, t_mem 50 us
    ("layer_norm_kernel", "normalization", 100, "fp32", 1_000_000_000, 120_000_000),  # 10 us, 60 us
    ("cached_add", "elementwise", 10, "fp32", 10_000_000, 40_000_000),  # 0.1 us, 20 us: beats its bound by 10 us
    (HOSTILE, "custom", 40, None, None, None),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING", "collective", 200, "bf16", None, None),
    ("Memcpy HtoD (Pinned -> Device)", "copy", 50, None, 0, 1_000_000),
)
BUCKETS_US = {
    "useful_math_ns": 210.1,
    "memory_bound_ns": 69.9,
    "kernel_inefficiency_ns": 100 + 40 - 10,
    "unmodelled_compute_ns": 40,
    "comm_minimum_ns": 100,
    "comm_inefficiency_ns": 60,
    "exposed_copy_ns": 50,
    "idle_host_ns": 100,
    "idle_sync_ns": 50,
    "idle_input_ns": 100,
    "idle_gap_ns": 40,
    "idle_unknown_ns": 10,
}
"""Of every step; comm_wait is 40 us more. Together 1,000 us."""
IDLE = (
    ("idle_host", "operator", "aten::empty", 60),
    ("idle_host", "python", HOSTILE, 30),
    ("idle_host", "nothing_recorded", None, 10),
    ("idle_sync", "synchronisation", "cudaStreamSynchronize", 50),
    ("idle_input", "data_loading", "load_batch", 100),
    ("idle_gap", "device", None, 40),
    ("idle_unknown", None, None, 10),
)
"""Idle time of every step: cause, activity, name, us."""


MEMORY: tuple[dict[str, Any], ...] = (
    {"part": "peak_allocated", "bytes": 50_000_000_000, "source": "torch_allocator", "note": "by when"},
    {"part": "before_recording", "part_of": "peak_allocated", "bytes": 30_000_000_000, "source": "torch_allocator"},
    {"part": "forward", "part_of": "peak_allocated", "bytes": 20_000_000_000, "source": "torch_allocator"},
    {"part": "forward", "part_of": "peak_allocated", "bytes": 15_000_000_000, "name": HOSTILE, "detail": True},
    {"part": "forward", "part_of": "peak_allocated", "bytes": 5_000_000_000, "detail": True},
    {"part": "predicted", "predicted_bytes": 60_000_000_000, "source": "plan", "note": "ZeRO stage 0"},
    {"part": "weights", "part_of": "predicted", "predicted_bytes": 40_000_000_000, "source": "plan"},
    {"part": "optimizer", "part_of": "predicted", "predicted_bytes": 20_000_000_000, "source": "plan"},
)
"""Memory of every device."""


@contextlib.contextmanager
def empty_store(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty store with the views of the gap."""
    with store.open_store(folder / "t.duckdb") as connection:
        for view in VIEWS:
            connection.execute((SQL / f"{view}.sql").read_text()).fetchall()
        yield connection


@pytest.fixture
def con(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty store of one test."""
    with empty_store(tmp_path) as connection:
        yield connection


@pytest.fixture(scope="module")
def module_con(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """A store that all tests of a module share and leave as it is: runs measured, simulated, oddly named and empty."""
    with empty_store(tmp_path_factory.mktemp("store")) as connection:
        put_run(connection)
        put_finding(connection, what=f"Gradients go in 214 buckets {HOSTILE}")
        put_run(connection, "job/sim", simulated=True)
        put_finding(connection, "job/sim")
        put_run(connection, HOSTILE, ranks=1)
        store.insert_row(connection, "runs", {"run_id": "empty", "job": "job"})
        yield connection


def put_run(
    con: duckdb.DuckDBPyConnection, run_id: str = "job/mon", *, simulated: bool = False, ranks: int = 2, **run: Any
) -> None:
    """Stores the run that this module describes."""
    values = {"job": "job", "framework": "pytorch", "world_size": ranks, "config": {"ddp.bucket_cap_mb": 1}}
    store.insert_row(con, "runs", {"run_id": run_id, "simulated": simulated, **values, **run})
    for rank in range(ranks):
        _put_rank(con, run_id, f"{run_id}-{rank}", rank)
    _put_plan(con, run_id)
    add_up(con, run_id)


def _put_plan(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """A plan of 0.8 ms a step, 0.3 ms of it compute (450 us measured), 50 us on the data axis (160 us measured)."""
    for quantity, axis, measured_us, predicted_us in (
        ("step", None, 1000, 800),
        ("compute", None, 450, 300),
        ("communication", "data", 160, 50),
    ):
        row = {
            "quantity": quantity,
            "axis": axis,
            "unit": "ns",
            "measured": measured_us * US,
            "predicted": predicted_us * US,
        }
        ratio = measured_us / predicted_us
        store.insert_row(con, "run_theory", {"run_id": run_id, **row, "ratio_frac": ratio, "note": f"note {HOSTILE}"})
    path = (("kernel", 0, 700), ("collective", 700, 200), ("host", 900, 100))
    for place, (kind, at_us, dur_us) in enumerate(path):
        piece = {"place": place, "kind": kind, "rank": 0, "at_ns": at_us * 1000, "dur_ns": dur_us * 1000, "pieces": 1}
        store.insert_row(con, "critical_path", {"run_id": run_id, "step": 1, "why": f"why {HOSTILE}", **piece})
    change = {
        "change": "input_gone",
        "what": f"data {HOSTILE}",
        "before_ns": 1_000_000,
        "after_ns": 900_000,
        "saves_ns": 100_000,
    }
    store.insert_row(con, "what_if", {"run_id": run_id, "step": 1, **change})
    memory = {"quantity": "memory", "unit": "bytes", "predicted": 4e9, "note": "not measured"}
    store.insert_row(con, "run_theory", {"run_id": run_id, **memory})
    convention = {
        "convention": "hfu",
        "flops": 2e11,
        "peak_flops_per_s": 1e15,
        "step_ns": 1000 * US,
        "utilisation_frac": 0.2,
    }
    store.insert_row(con, "mfu_conventions", {"run_id": run_id, **convention, "note": "done"})


def add_up(con: duckdb.DuckDBPyConnection, run_id: str = "job/mon") -> None:
    """Adds the operations up anew, after something of them was changed by hand."""
    con.execute(
        "delete from step_work where trace_id in (select trace_id from traces where run_id = ?)", [run_id]
    ).fetchall()
    con.execute((SQL / "step_work.sql").read_text(), [run_id]).fetchall()


def _put_rank(con: duckdb.DuckDBPyConnection, run_id: str, trace_id: str, rank: int) -> None:
    trace = {
        "rank": rank,
        "host": "h",
        "path": f"/t/{trace_id}.json",
        "format": "kineto",
        "status": "ok",
        "size_bytes": 1000,
    }
    issue = {
        "code": "no_launch",
        "severity": "info",
        "count": 3,
        "where": f"event {HOSTILE}",
        "message": "launches are missing",
    }
    store.insert_row(con, "traces", {"trace_id": trace_id, "run_id": run_id, **trace, "diagnostics": [issue]})
    device = {"kind": "gpu", "name": "NVIDIA H100 80GB HBM3", "hardware": "h100_sxm", "matched_by": "name"}
    store.insert_row(con, "devices", {"trace_id": trace_id, "device_id": "0", **device, "hbm_bytes_per_s": 2e12})
    for unit, dtype, peak in (("matrix", "bf16", 1e15), ("vector", "any", 1e14)):
        row = {
            "trace_id": trace_id,
            "device_id": "0",
            "unit": unit,
            "dtype": dtype,
            "flops_per_s": peak,
            "source": "catalogue",
        }
        store.insert_row(con, "peaks", row)
    ops, windows, steps, collectives, matches, comm, theory, idle = [], [], [], [], [], [], [], []
    for step in range(3):
        at = step * 1000 * US
        wait = 40 * US
        steps.append(
            {
                "run_id": run_id, "trace_id": trace_id, "rank": rank, "device_id": "0", "step": step, "start_ns": at,
                "wall_ns": 1000 * US, "source": "profiler_step", "complete": step < 2,
                "incomplete_reason": None if step < 2 else "the trace ends in it", "kernels": 5,
                "compute_ns": 450 * US, "exposed_comm_ns": 200 * US, "exposed_copy_ns": 50 * US, "idle_ns": 300 * US,
                "idle_host_ns": 100 * US, "idle_sync_ns": 50 * US, "idle_input_ns": 100 * US, "idle_gap_ns": 40 * US,
                "idle_unknown_ns": 10 * US,
            }
        )  # fmt: skip
        for cause, activity, name, us in IDLE:
            idle.append(
                {
                    "trace_id": trace_id, "device_id": "0", "step": step, "cause": cause, "activity": activity,
                    "name": name, "of_thread": "launching" if activity else None, "idle_ns": us * US, "gaps": 2,
                }
            )  # fmt: skip
        theory.append(
            {"trace_id": trace_id, "device_id": "0", "step": step, "peak_flops_per_s": 1e15, "mfu_dtype": "bf16",
             "mfu_note": "no model description in the manifest"}
        )  # fmt: skip
        for name, op_class, us, dtype, flops, size in KERNELS:
            op_id = len(ops)
            ns = us * US
            state = {"collective": "exposed_comm", "copy": "exposed_copy"}.get(op_class, "compute")
            ops.append(
                {
                    "trace_id": trace_id, "op_id": op_id, "device_id": "0", "stream": "7", "step": step, "name": name,
                    "op_class": op_class, "start_ns": at, "dur_ns": ns, "share_ns": ns, "dtype": dtype, "flops": flops,
                    "bytes": size, "cost_source": "shapes" if flops else "none",
                    "cost_note": None if flops else "no formula for this kernel",
                }
            )  # fmt: skip
            windows.append(
                {
                    "trace_id": trace_id,
                    "op_id": op_id,
                    "device_id": "0",
                    "step": step,
                    "state": state,
                    "dur_ns": ns,
                    "share_ns": ns,
                }
            )
            at += ns
            if op_class == "collective":
                key = {"trace_id": trace_id, "op_id": op_id}
                collectives.append(
                    {
                        **key, "device_id": "0", "rank": rank, "collective": "all_reduce", "group_id": "0,1",
                        "group_size": 2, "seq": step, "message_bytes": 1_000_000 * (step + 1), "dtype": "bf16",
                        "exposed_ns": ns, "hidden_ns": 0,
                    }
                )  # fmt: skip
                matches.append(
                    {**key, "instance_id": step, "matched_by": "seq", "arrival_ns": at - ns + wait, "last_rank": 1,
                     "predicted_ns": 100 * US, "predicted_by": "ring on NVLink"}
                )  # fmt: skip
                comm.append(
                    {**key, "device_id": "0", "step": step, "wait_ns": wait, "pipeline_ns": 0, "minimum_ns": 100 * US}
                )
    for part in MEMORY:
        store.insert_row(con, "memory", {"trace_id": trace_id, "device_id": "0", "detail": False, **part})
    for table, rows in (
        ("ops", ops), ("op_parts", windows), ("steps", steps), ("collectives", collectives),
        ("collective_matches", matches), ("comm_windows", comm), ("step_theory", theory), ("idle_causes", idle),
    ):  # fmt: skip
        store.insert(con, table, pl.DataFrame(rows, infer_schema_length=None))


def change_ops(con: duckdb.DuckDBPyConnection, changes: str) -> None:
    """Stores all operations anew with other values: `expression as column, ...`."""
    rows = store.frame_of(con, f"select * replace ({changes}) from ops")
    for table in ("op_rows", "op_forms"):
        con.execute(f"delete from {table}").fetchall()
    store.insert(con, "ops", rows)


def put_finding(con: duckdb.DuckDBPyConnection, run_id: str = "job/mon", **values: Any) -> None:
    """Stores a finding of the run."""
    row = {
        "severity": "high",
        "kind": "small_buckets",
        "what": "Gradients go in 214 buckets of 1.2 MB",
        "saves_ns": 60 * US,
    }
    store.insert_row(con, "findings", {"run_id": run_id, **row, "config_keys": ["ddp.bucket_cap_mb"], **values})


@pytest.fixture
def make_run(con: duckdb.DuckDBPyConnection) -> Callable[..., None]:
    """`put_run` into the store of this test."""
    return lambda *a, **k: put_run(con, *a, **k)


@pytest.fixture
def other_ops(con: duckdb.DuckDBPyConnection) -> Callable[[str], None]:
    """`change_ops` in the store of this test."""
    return lambda changes: change_ops(con, changes)


@pytest.fixture
def make_finding(con: duckdb.DuckDBPyConnection) -> Callable[..., None]:
    """`put_finding` into the store of this test."""
    return lambda *a, **k: put_finding(con, *a, **k)


@pytest.fixture
def anew(con: duckdb.DuckDBPyConnection) -> Callable[[], None]:
    """`add_up` on the store of the test."""
    return lambda: add_up(con)

"""Writes tests/data/cases: small inputs whose right answers are worked out by hand, here beside them.

Run it after a change of a case: `python tests/data/make_cases.py`. It gives the same bytes every time.
"""

import gzip
import json
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "sample_traces"))
from _sim.xspace import Plane, block, number  # noqa: E402

CASES = HERE / "cases"
GPU = {
    "id": 0,
    "name": "NVIDIA H100 80GB HBM3",
    "totalGlobalMem": 85029158912,
    "computeMajor": 9,
    "computeMinor": 0,
    "numSms": 132,
}
HOUR_US = 3_600_000_000


def case(name: str, theme: str, what: str, expect: dict[str, Any], **files: bytes | str | dict[str, Any]) -> None:
    """Writes a case; the names of files have __ for a dot."""
    folder = CASES / name
    folder.mkdir(parents=True)
    about = {"id": name, "theme": theme, "what": what, "expect": expect}
    (folder / "case.json").write_text(json.dumps(about, indent=1) + "\n")
    for file, content in files.items():
        data = content if isinstance(content, bytes | str) else json.dumps(content, indent=1) + "\n"
        (folder / file.replace("__", ".")).write_bytes(data if isinstance(data, bytes) else data.encode())


# ---------------------------------------------------------------------------------------------- Kineto


def kineto(*events: dict[str, Any], **beside: Any) -> str:
    """A trace with an event a line."""
    head = json.dumps({"schemaVersion": 1, "deviceProperties": [GPU], **beside})
    return head[:-1] + ', "traceEvents": [\n' + ",\n".join(map(json.dumps, events)) + "\n]}\n"


def host(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    """A span on the one host thread, us."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def step(n: int, ts: float, dur: float) -> dict[str, Any]:
    return host("user_annotation", f"ProfilerStep#{n}", ts, dur)


def launch(correlation: int, ts: float, dur: float, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    return host("cuda_runtime", name, ts, dur, correlation=correlation)


def kernel(name: str, ts: float, dur: float, correlation: int, stream: int = 7, **args: Any) -> dict[str, Any]:
    """Work of GPU 0, us."""
    cat = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    args = {"device": 0, "stream": stream, "correlation": correlation} | args
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}


def call(collective: str, sent: int, received: int, ranks: list[int], **args: Any) -> dict[str, Any]:
    """Metadata of a collective kernel; counts of elements."""
    return {
        "Collective name": collective,
        "In msg nelems": sent,
        "Out msg nelems": received,
        "Group size": len(ranks),
        "dtype": "BFloat16",
        "Process Group Name": "0",
        "Process Group Ranks": str(ranks),
    } | args


ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def kineto_cases() -> None:
    events = (
        step(3, 1000, 100),
        step(4, 1100, 100),
        launch(1, 1010, 5),
        launch(2, 1020, 5),
        launch(3, 1030, 4, "cudaMemcpyAsync"),
        launch(4, 1110, 6),
        launch(9, 1150, 5),
        kernel("gemm_a", 1020, 40, 1),
        kernel(ALL_REDUCE, 1050, 30, 2, 20, **call("allreduce", 1_500_000, 1_500_000, [0, 1, 2, 3])),
        kernel("Memcpy HtoD (Pinned -> Device)", 1075, 15, 3, 21, bytes=3_000_000),
        kernel("gemm_b", 1180, 30, 4),
    )
    times = {
        "busy_ns": 100_000,
        "compute_ns": 70_000,
        "exposed_comm_ns": 20_000,
        "copy_only_ns": 10_000,
        "idle_ns": 90_000,
        "span_ns": 190_000,
        "kernel_sum_ns": 100_000,
    }
    case(
        "kineto-three-streams",
        "what counts as busy",
        "Two products, an all-reduce that the first one hides for 10 us, a copy that runs alone for 10 us, and a call "
        "that launches nothing. The second product is launched in step 4 and runs beyond its host window.",
        {
            "error": None,
            "events": 11,
            "usable": True,
            "kernels": 3,
            "kernel_names": ["gemm_a", ALL_REDUCE, "gemm_b"],
            "comm_kernels": 1,
            "compute_kernels": 2,
            **times,
            "comm_ns": 30_000,
            "comm_in_flight_ns": 30_000,
            "overlapped_comm_ns": 10_000,
            "hidden_comm_ns": 10_000,
            "kernel_ns": 90_000,
            "durations_ns": [40_000, 30_000, 30_000],
            "first_start_ns": 1_020_000,
            "overlapping_pairs": 0,
            "copy_bytes": 3_000_000,
            "copy_gbps": [200.0],
            "stream_busy_ns": {"0/7": 70_000, "0/20": 30_000, "0/21": 15_000},
            "devices": {"0": times},
            "steps": 2,
            "marked_steps": 2,
            "kernel_ns_by_step": {"3": 70_000, "4": 30_000},
            "kernels_inside_own_step_window": 2,
            "max_launch_to_start_ns": 70_000,
            "kernels_without_launch": 0,
            "unattributed_kernel_ns": 0,
            "launch_calls": 3,
            "launch_api_ns": 16_000,
            "kernels_by_launch": {"1": 1, "2": 1, "4": 1},
            "linked_kernels": 3,
            "ambiguous_kernels": 0,
            "launches_without_kernel": 1,
            "kernels_after_join": 3,
            "kernel_sum_ns_after_join": 100_000,
            "busy_ns_after_join": 100_000,
            "kinds_by_start": ["all_reduce"],
            "bytes": [3_000_000],
            "algbw_gbps": [100.0],
            "busbw_gbps": [150.0],
        },
        trace__json=kineto(*events),
    )
    late = 3 * HOUR_US
    case(
        "kineto-doubtful-records",
        "records that cannot be true",
        "Of six kernel records one has lost its time (0), one is of negative length, one would run far beyond the end "
        "of the recording and is cut where the next on its stream starts, and one is truly of length 0.",
        {
            "error": None,
            "kernel_records": 6,
            "kernels_valid": 4,
            "lost_timestamps": 1,
            "negative_durations": 1,
            "zero_durations": 1,
            "impossible_durations": 1,
            "flagged": 1,
            "busy_ns": 35_000,
        },
        trace__json=kineto(
            *(launch(i, late + i, 0.5) for i in range(1, 7)),
            kernel("good", late + 10, 10, 1),
            kernel("empty", late + 30, 0, 2),
            kernel("negative", late + 40, -5, 3),
            kernel("lost", 0, 5, 4),
            kernel("endless", late + 50, 18_446_744_073_709, 5),
            kernel("last", late + 70, 5, 6),
        ),
    )
    whole = kineto(kernel("a", 10, 5, 1), kernel("b", 20, 5, 2))
    spread = json.dumps(json.loads(whole), indent=1).splitlines(keepends=True)
    events_alone = json.dumps(json.loads(whole)["traceEvents"]) + "\n"
    mixed = {"error": "interleaved", "usable": False}
    case(
        "kineto-two-documents",
        "two processes wrote into one file",
        "The second process began to write before the first had finished, line by line beside it, or after it: no totals "
        "of the file are those of a rank.",
        {"per_file": dict.fromkeys(("inside.json", "by-line.json", "after.json", "arrays.json"), mixed)},
        inside__json=whole[: whole.index('{"ph"', whole.index('"name": "a"'))] + whole,
        **{"by-line__json": "".join(line * 2 for line in spread)},
        after__json=whole + whole,
        arrays__json=events_alone * 2,
    )
    slices = [("train", "B", 0), ("load", "B", 10), ("", "E", 30), ("fwd", "B", 30), ("", "E", 70)]
    case(
        "kineto-open-slices",
        "slices that never end",
        "Begin and end events of a program that was stopped: the outermost slice has no end.",
        {
            "error": None,
            "slices": 2,
            "whole_slices": 2,
            "open": ["train"],
            "unmatched_begin": 1,
            "unmatched_end": 0,
            "duration_ns": {"load": 20_000, "fwd": 40_000},
            "self_ns": {"load": 20_000, "fwd": 40_000},
            "parent": {"load": None, "fwd": None},
        },
        trace__json=kineto(
            *({"ph": ph, "name": name, "pid": 1, "tid": 1, "ts": ts} if name else {"ph": ph, "pid": 1, "tid": 1, "ts": ts}
              for name, ph, ts in slices)
        ),
    )  # fmt: skip


def rank_file(rank: int, arrival: float) -> str:
    """A rank whose all-reduce ends at 200 us."""
    group = {"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}
    info = {"backend": "nccl", "rank": rank, "world_size": 2, "pg_count": 1, "pg_config": [group]}
    return kineto(
        step(0, 0, 300),
        launch(1, 5, 5),
        launch(2, 15, 5),
        kernel("gemm", 10, arrival - 10, 1),
        kernel(ALL_REDUCE, arrival, 200 - arrival, 2, 20, **call("allreduce", 1000, 1000, [0, 1], Seq=4)),
        kernel("tail", 210, 10, 2),
        distributedInfo=info,
        baseTimeNanoseconds=1_700_000_000_000_000_000,
    )


def job_cases() -> None:
    case(
        "job-late-rank",
        "waiting for the last rank",
        "Two ranks; rank 1 comes 60 us later to the all-reduce, and both leave it together.",
        {
            "error": None,
            "files": 2,
            "world_size": 2,
            "ranks": [0, 1],
            "duplicate_ranks": [],
            "missing_ranks": [],
            "files_without_rank": [],
            "collective_start_skew_ns": 60_000,
            "late_rank": 1,
            "wait_ns": {"0": 60_000, "1": 0},
            "transfer_ns": {"0": 40_000, "1": 40_000},
            "exposed_comm_ns": {"rank0.json": 100_000, "rank1.json": 40_000},
        },
        rank0__json=rank_file(0, 100),
        rank1__json=rank_file(1, 160),
    )
    case(
        "job-missing-rank",
        "ranks: missing and unnamed",
        "One file of a job of two, and one that does not say its rank.",
        {"files": 2, "ranks": [0], "duplicate_ranks": [], "missing_ranks": [1], "files_without_rank": ["stray.json"]},
        first__json=rank_file(0, 100),
        stray__json=kineto(launch(1, 5, 5), kernel("gemm", 10, 5, 1)),
    )
    sound = rank_file(0, 100)
    case(
        "job-second-try",
        "a try that died",
        "A night whose first export was cut off before the first event: nothing of it stays in the store.",
        {"nights": 1, "kernels_after_failed_try": 0, "kernels": 3},
        first__json=sound[:120],
        second__json=sound,
    )
    names = {
        "before": ("triton_poi_fused_add_0", "triton_red_fused_sum_1c9a02f4_1", "gemm_128x64"),
        "after": ("triton_poi_fused_add_3", "triton_red_fused_sum_77e0b3aa_2", "softmax_warp_2"),
    }
    case(
        "job-renamed-kernels",
        "the same kernels under new numbers",
        "A compiled kernel got another running number and takes 20 us longer; another got a new number and hash and "
        "takes as long as before; one kernel went, one came.",
        {
            "added": ["softmax_warp"],
            "removed": ["gemm_128x64"],
            "changed_groups": ["triton_poi_fused_add"],
            "groups": 4,
            "worst": "triton_poi_fused_add",
        },
        **{
            f"{side}__json": kineto(
                *(launch(i, 5 + i, 0.5) for i in (1, 2, 3)),
                kernel(fused, 10, 30 if side == "before" else 50, 1),
                kernel(reduced, 65, 5, 2),
                kernel(other, 70, 10, 3),
            )
            for side, (fused, reduced, other) in names.items()
        },
    )
    uneven = call(
        "all_to_allv", 1000, 700, [0, 1, 2], **{"In split size": "[500, 300, 200]", "Out split size": "[100, 300, 300]"}
    )
    even = call("all_to_all", 900, 900, [0, 1, 2], **{"In split size": "[]", "Out split size": "[]"})
    case(
        "job-uneven-exchange",
        "all-to-alls with splits",
        "Rank 1 of 3 exchanges 1,000 elements of 2 bytes for 700 by uneven splits, then 900 for 900 by even ones. "
        "Its own chunk (300 both ways, then 300) stays.",
        {
            "error": None,
            "send_bytes": [1400, 1200],
            "recv_bytes": [800, 1200],
            "uniform": [False, True],
            "ranks": [1],
        },
        rank1__json=kineto(
            launch(1, 5, 5),
            launch(2, 15, 5),
            kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 20, 10, 1, 20, **uneven),
            kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 40, 10, 2, 20, **even),
            distributedInfo={"backend": "nccl", "rank": 1, "world_size": 3},
        ),
    )


def damaged_cases() -> None:
    text = kineto(*(launch(i, 10 * i, 2) for i in (1, 2, 3)), *(kernel("k", 10 * i + 3, 5, i) for i in (1, 2, 3)))
    lines = text.splitlines(keepends=True)
    packed = gzip.compress(text.encode(), mtime=0)
    case(
        "damaged-kineto",
        "files that end early or are damaged inside",
        "The same trace of three calls and three kernels: cut in its fifth event; cut inside the gzip data; nothing in "
        "it; a raw quote in a name; a bare nan; and whole, in a bare array.",
        {
            "per_file": {
                "cut.json": {"error": "truncated", "recovered_events": 4, "kernels": 1, "busy_ns": 5_000},
                "empty.json": {"error": "empty", "recovered_events": 0, "kernels": 0},
                "quote.json": {"error": "malformed", "damaged_events": 1, "events_min": 5, "events_max": 6},
                "nan.json": {"error": None, "events": 6, "null_fields": 1, "kernels": 3},
                "array.json": {"error": None, "events": 6, "kernels": 3, "kernel_names": 1, "busy_ns": 15_000},
                "packed.json.gz": {"error": "truncated"},
            }
        },
        cut__json="".join(lines[:6])[:-20],
        empty__json="",
        quote__json=text.replace('"name": "k"', '"name": "k "quoted" k"', 1),
        nan__json=text.replace('"stream": 7', '"stream": 7, "occupancy": nan', 1),
        array__json="[" + text.split("[\n", 1)[1].rsplit("]", 1)[0].rstrip() + "]",
        packed__json__gz=packed[: len(packed) * 3 // 4],
    )


# ---------------------------------------------------------------------------------------------- Nsight Systems

PID = 0x1000000 * 77
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


def nsys(tables: dict[str, tuple[str, list[tuple[Any, ...]]]]) -> bytes:
    """An export with the tables: columns, rows."""
    path = HERE / "report.tmp"
    con = sqlite3.connect(path)
    about = [("EXPORT_SCHEMA_VERSION", "3.24.14"), ("EXPORT_PRODUCT_VERSION", "2026.1.1")]
    for name, (columns, rows) in ({"META_DATA_EXPORT": ("name, value", about)} | tables).items():
        con.execute(f"create table {name} ({columns})")
        marks = ", ".join("?" * len(columns.split(",")))
        con.executemany(f"insert into {name} values ({marks})", rows)
    con.commit()
    con.close()
    data = path.read_bytes()
    path.unlink()
    return data


STRINGS = {1: "gemm(float*)", 2: "gemm", 3: "cudaGraphLaunch_v10000", 4: "cudaLaunchKernel_v7000"}
KERNEL_COLUMNS = "start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName, graphNodeId"
CALL_COLUMNS = "start, end, globalTid, correlationId, nameId"


def nsys_cases() -> None:
    strings = ("id, value", list(STRINGS.items()))
    case(
        "nsys-whole-graphs",
        "CUDA graphs recorded as one",
        "Two replays of a graph of which only the graph as a whole was recorded, and one plain kernel. How many kernels "
        "the graphs hold is unknown.",
        {
            "error": None,
            "graph_replays": 2,
            "kernels_known": 1,
            "kernels_in_graphs": None,
            "graph_nodes_attributed": 0,
            "busy_ns": 105_000,
            "marked_steps": 0,
        },
        report__sqlite=nsys({
            "StringIds": strings,
            KERNEL: (KERNEL_COLUMNS, [(210_000, 215_000, 0, 7, 502, PID, 1, 2, None)]),
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
                "start, end, deviceId, streamId, correlationId, globalPid, graphId, graphExecId",
                [(30_000, 80_000, 0, 7, 500, PID, 1, 2), (130_000, 180_000, 0, 7, 501, PID, 1, 2)],
            ),
            "CUPTI_ACTIVITY_KIND_RUNTIME": (
                CALL_COLUMNS,
                [(1_000, 9_000, PID + 1, 500, 3), (100_000, 109_000, PID + 1, 501, 3), (200_000, 205_000, PID + 1, 502, 4)],
            ),
        }),
    )  # fmt: skip
    warning = "CUDA event collection was stopped before the application ended."
    case(
        "nsys-open-step",
        "a file that ends inside a step",
        "Two step ranges of which the second was never closed, with a kernel each; the name of one is not in the file. "
        "Nodes of a replayed graph stand beside them. The profiler left a warning.",
        {
            "error": None,
            "nvtx_ranges": 2,
            "steps_whole": 1,
            "steps_open": 1,
            "range_ns": {"step 0": 90_000},
            "open_step_kernel_ns": 27_000,
            "unnamed_kernels": 1,
            "kernel_records": 4,
            "kernels_valid": 4,
            "kernels_known": 4,
            "graph_nodes_attributed": 2,
            "kernels_by_launch": {"1": 1, "2": 1, "3": 2},
            "warnings": [warning],
        },
        report__sqlite=nsys({
            "StringIds": strings,
            KERNEL: (KERNEL_COLUMNS, [
                (20_000, 30_000, 0, 7, 1, PID, 1, 2, None),
                (120_000, 132_000, 0, 7, 2, PID, 98, 99, None),
                (140_000, 145_000, 0, 7, 3, PID, 1, 2, 11),
                (150_000, 160_000, 0, 7, 3, PID, 1, 2, 12),
            ]),
            "CUPTI_ACTIVITY_KIND_RUNTIME": (CALL_COLUMNS, [
                (11_000, 15_000, PID + 1, 1, 4), (105_000, 109_000, PID + 1, 2, 4), (112_000, 119_000, PID + 1, 3, 3),
            ]),
            "NVTX_EVENTS": ("start, end, eventType, text, globalTid, textId, domainId", [
                (10_000, 100_000, 59, "step 0", PID + 1, None, 0), (101_000, None, 59, "step 1", PID + 1, None, 0),
            ]),
            "DIAGNOSTIC_EVENT": ("timestamp, severity, text", [(5, 2, warning)]),
        }),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- XSpace


def xspace(*planes: Plane, after: bytes = b"") -> bytes:
    return b"".join(block(1, plane.encode()) for plane in planes) + after


def tpu() -> Plane:
    plane = Plane(2, "/device:TPU:0")
    plane.set(device_type_string="TPU v5p", peak_teraflops_per_second=459.0, peak_hbm_bw_gigabytes_per_second=2765.0)
    return plane


def op(plane: Plane, name: str, start: int, end: int, category: str, **cost: int) -> bytes:
    return plane.event(name, start, end, {"display_name": name, "hlo_category": category} | cost)


def xspace_cases() -> None:
    plane = tpu()
    plane.line(1, "Steps", [plane.event("0", 1_000, 301_000, step_name="0")])
    core = [
        op(plane, "fusion.1", 1_000, 101_000, "convolution fusion", flops=9_180_000_000, bytes_accessed=13_825_000),
        op(plane, "all-reduce-start.2", 101_000, 102_000, "all-reduce-start"),
        op(plane, "fusion.3", 102_000, 152_000, "loop fusion", flops=459_000_000, bytes_accessed=69_125_000),
        op(plane, "all-reduce-done.2", 152_000, 202_000, "all-reduce-done"),
        op(plane, "custom-call.4", 202_000, 301_000, "custom-call", flops=0, bytes_accessed=0),
    ]
    plane.line(3, "XLA Ops", core)
    flight = plane.event(
        "all-reduce-start.2", 101_000, 202_000, {"display_name": "async-all-reduce"}, hlo_op="all-reduce-done.2"
    )
    plane.line(4, "Async XLA Ops", [flight])
    plane.line(9, "Thermal Hints", [plane.event("hint", 5_000, 6_000)])
    case(
        "xspace-transfer-in-flight",
        "asynchronous communication",
        "An all-reduce is under way from its start to its done, half of it under a fusion. A hand-written kernel states "
        "no cost. One line of the device is of no known name.",
        {
            "error": None,
            "steps": 1,
            "whole_planes": 1,
            "comm_in_flight_ns": 101_000,
            "hidden_comm_ns": 50_000,
            "exposed_comm_ns": 51_000,
            "busy_ns": 300_000,
            "devices": {"TPU:0": {"busy_ps": 300_000_000, "exposed_comm_ps": 51_000_000}},
            "unknown_lines": ["Thermal Hints"],
            "unmodelled_ns": 99_000,
            "unmodelled_ops": ["custom-call.4"],
        },
        run__xplane__pb=xspace(plane),
    )
    plane = tpu()
    plane.line(
        3, "XLA Ops", [op(plane, "fusion.1", 1_000, 5_000, "loop fusion", flops=918_000, bytes_accessed=5_530_000)]
    )
    first = plane.event("fusion.1", 0, 0, {"display_name": "fusion.1"})
    counted = first[: first.index(b"\x10")] + number(5, 7) + number(3, 9_000_000)
    plane.line(5, "XLA Modules", [counted])
    other = Plane(3, "/device:TPU:1")
    other.line(3, "XLA Ops", [other.event("fusion.1", 1_000, 5_000)])
    text = xspace(plane, other)
    case(
        "xspace-cut",
        "a file that ends inside a plane",
        "Two planes, of which the second is cut; a record that has a number of occurrences in place of a start; "
        "a warning of the profiler in the whole file.",
        {
            "per_file": {
                "cut.xplane.pb": {
                    "error": "truncated",
                    "whole_planes": 1,
                    "kernels": 1,
                    "predicted_ns": {"fusion.1": 2000},
                },
                "whole.xplane.pb": {
                    "error": None,
                    "whole_planes": 2,
                    "kernels": 2,
                    "aggregated_records": 1,
                    "warnings": ["buffer was full"],
                },
            }
        },
        cut__xplane__pb=text[:-30],
        whole__xplane__pb=text + block(3, "buffer was full"),
    )


# ---------------------------------------------------------------------------------------------- documents


def document_cases() -> None:
    model = {"layers": 1, "hidden": 8, "heads": 2, "ffn": 16, "mlp": "gelu", "vocab": 10, "causal": False}
    case(
        "flops-full-attention",
        "model flops and MFU",
        "A layer of width 8 with two heads of 4, over 2 sequences of 4 tokens. Weights: 4 x 8 x 8 of the projections, "
        "2 x 8 x 16 of the MLP, 8 x 10 of the head. Attention without a mask: 2 products x 2 x 4 x 4 x 8 a sequence.",
        {
            "linear_flops_forward": 2 * 8 * (256 + 256 + 80),
            "attention_flops_forward": 2 * 2 * 2 * 4 * 4 * 8,
            "flops_forward": 10496,
            "flops_step": 31488,
            "peak_flops": 312_000_000_000_000,
            "mfu": 31488 / (1e-6 * 312e12),
        },
        model__json=model,
        run__json={"batch": 2, "seq": 4, "dtype": "bf16", "gpus": 1, "recompute": False, "step_ns": 1000},
        datasheet__json={"gpu": "A100", "bf16_tensor_tflops": 624, "footnote": "with sparsity"},
    )
    usual = [50.0, 50.5, 49.5, 50.0]
    case(
        "nights-of-a-job",
        "nightly comparison",
        "The median of the nights is the baseline; within 3 percent nothing changed.",
        {
            "faster": {
                "verdict": "improvement",
                "baseline_ms": 50.0,
                "tonight_ms": 45.0,
                "change": -0.1,
                "suspect_nights": [],
            },
            "freak": {"verdict": "ok", "baseline_ms": 50.0, "tonight_ms": 51.0, "change": 0.02, "suspect_nights": [4]},
        },
        history__json={
            "faster": {"nights_ms": usual, "tonight_steps_ms": [45.0]},
            "freak": {"nights_ms": [*usual, 70.0], "tonight_steps_ms": [51.0, 51.0, 500.0]},
        },
    )


if __name__ == "__main__":
    shutil.rmtree(CASES, ignore_errors=True)
    for write in (kineto_cases, job_cases, damaged_cases, nsys_cases, xspace_cases, document_cases):
        write()

"""The Kineto reader, on small traces written here: launches, costs, modules, collectives, a CPU alone."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.ingest.readers import kineto
from tracegap.ingest.readers._kineto_ops import split_exactly
from tracegap.ingest.trace import COLLECTIVES, Trace

MM = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
MM_FLOPS, MM_BYTES = 2 * 64 * 32 * 16, 2 * (64 * 32 + 32 * 16 + 64 * 16)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def work(ts: float, dur: float, corr: int, name: str = "gemm", cat: str = "kernel", **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
        "args": {"device": 0, "stream": 7, "correlation": corr, **args},
    }  # fmt: skip


def span(cat: str, name: str, ts: float, dur: float, tid: int = 1, *, pid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def op(name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return span("cpu_op", name, ts, dur, tid, **args)


def launch(
    ts: float, corr: int, tid: int = 1, name: str = "cudaLaunchKernel", pid: int = 1, **args: Any
) -> dict[str, Any]:
    return span("cuda_runtime", name, ts, 2, tid, pid=pid, correlation=corr, **args)


def read(folder: Path, events: list[Any], **metadata: Any) -> Trace:
    path = folder / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, **metadata, "traceEvents": events}))
    return kineto.read(path)


# --- launches -----------------------------------------------------------------------------------------------------


def test_work_without_a_launch_is_attributed_to_nothing(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 100, **MM), launch(10, 5), work(50, 10, 5), work(5, 10, 4), work(90, 10, 0)]
    trace = read(tmp_path, events)
    assert trace.ops.select("framework_op", "launch_ns", "launch_thread", "cost_source").rows() == [
        ("aten::mm", 10_000, "1/1", "shapes"),
        (None, None, None, "none"),
        (None, None, None, "none"),
    ]
    assert trace.issues.by_code["no_launch"].count == 2
    assert trace.facts["gpu_time_without_launch_ns"] == 20_000


def test_an_id_that_repeats_goes_to_the_last_call_before_the_work(tmp_path: Path) -> None:
    trace = read(tmp_path, [launch(10, 5), work(20, 5, 5), launch(100, 5), work(120, 5, 5)])
    assert trace.ops["launch_ns"].to_list() == [10_000, 100_000]


def test_an_id_used_again_long_after_is_not_its_launch(tmp_path: Path) -> None:
    trace = read(tmp_path, [work(20, 5, 5), launch(500_000, 5)])
    assert trace.ops["launch_ns"].to_list() == [None]


def test_clocks_that_disagree_a_little_keep_the_launch_and_say_so(tmp_path: Path) -> None:
    trace = read(tmp_path, [launch(20, 5), work(18, 5, 5)])
    assert trace.ops["launch_ns"].to_list() == [20_000]
    assert trace.issues.by_code["start_before_launch"].count == 1


def test_the_same_id_of_two_processes_is_not_guessed(tmp_path: Path) -> None:
    calls = [launch(10, 5, pid=1, **{"External id": 71}), launch(11, 5, pid=2, **{"External id": 72})]
    trace = read(tmp_path, [*calls, work(20, 5, 5), work(30, 5, 5, **{"External id": 72})])
    assert trace.ops["launch_thread"].to_list() == [None, "2/1"]
    assert trace.issues.by_code["ambiguous_launch"].count == 1


def test_of_nested_calls_with_one_id_the_outer_one_is_the_launch(tmp_path: Path) -> None:
    driver = {**launch(11, 5, name="cuLaunchKernel"), "cat": "cuda_driver"}
    driver["dur"] = 0.5
    trace = read(tmp_path, [launch(10, 5), driver, work(20, 5, 5)])
    assert trace.ops["launch_ns"].to_list() == [10_000]


def test_hundreds_of_kernels_of_one_graph_launch(tmp_path: Path) -> None:
    events = [launch(10, 5, name="cudaGraphLaunch"), *(work(20 + 2 * i, 1, 5) for i in range(300))]
    trace = read(tmp_path, events)
    assert trace.ops.height == 300
    assert trace.ops["launch_ns"].unique().to_list() == [10_000]
    assert trace.ops["cost_note"].unique().to_list() == ["replayed by a graph: shapes are recorded at its capture only"]


# --- framework op and cost ----------------------------------------------------------------------------------------


def test_the_innermost_op_with_a_formula_is_charged_once(tmp_path: Path) -> None:
    linear = {"Input Dims": [[64, 32], [16, 32], []], "Input type": ["c10::BFloat16", "c10::BFloat16", ""]}
    events = [
        op("aten::linear", 0, 100, **linear),
        op("aten::matmul", 5, 90, **MM),
        op("aten::mm", 10, 80, **MM),
        op("aten::empty", 12, 3),
        launch(20, 5),
        launch(30, 6),
        work(50, 30, 5, "sm90_xmma_gemm_bf16"),
        work(80, 10, 6, "splitKreduce_kernel"),
    ]
    ops = read(tmp_path, events).ops
    assert ops["framework_op"].to_list() == ["aten::mm", "aten::mm"]
    assert ops["op_class"].to_list() == ["matmul", "matmul"]
    assert ops["dtype"].to_list() == ["bf16", "bf16"]
    assert ops["flops"].to_list() == [MM_FLOPS, 0]
    assert (ops["flops"].sum(), ops["bytes"].sum()) == (MM_FLOPS, MM_BYTES)
    assert ops["shapes"].to_list() == ["[[64,32],[32,16]]"] * 2
    assert ops["cost_source"].unique().to_list() == ["shapes"]


def test_autograd_nodes_are_wrappers(tmp_path: Path) -> None:
    events = [
        op("autograd::engine::evaluate_function: MmBackward0", 0, 100, tid=2),
        op("MmBackward0", 1, 98, tid=2),
        op("aten::mm", 10, 50, tid=2, **MM),
        launch(20, 5, tid=2),
        work(50, 10, 5),
    ]
    ops = read(tmp_path, events).ops
    assert ops.select("framework_op", "flops", "launch_thread").rows() == [("aten::mm", MM_FLOPS, "1/2")]


def test_without_shapes_the_class_is_known_and_the_cost_is_not(tmp_path: Path) -> None:
    ops = read(tmp_path, [op("aten::mm", 0, 100), launch(20, 5), work(50, 10, 5, "unheard_of")]).ops
    assert ops.select("op_class", "flops", "bytes", "cost_source").rows() == [("matmul", None, None, "none")]
    assert "record_shapes" in ops["cost_note"][0]


def test_without_an_op_the_name_of_the_kernel_tells_the_class(tmp_path: Path) -> None:
    ops = read(tmp_path, [launch(20, 5), work(50, 10, 5, "ampere_sgemm_128x64_nn")]).ops
    assert ops.select("op_class", "dtype", "framework_op", "flops").rows() == [("matmul", "fp32", None, None)]
    assert ops["cost_note"][0] == "no framework op around its launch"


def test_an_op_without_a_formula_is_named_in_the_note(tmp_path: Path) -> None:
    ops = read(tmp_path, [op("mylib::magic", 0, 100), launch(20, 5), work(50, 10, 5)]).ops
    assert ops.select("framework_op", "cost_source", "cost_note").rows() == [
        ("mylib::magic", "none", "no formula for mylib::magic")
    ]


def test_tf32_shows_in_the_kernels_name_only(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["float", "float"]}
    kernel = work(50, 10, 5, "cutlass_tensorop_s1688gemm_tf32_256x128")
    ops = read(tmp_path, [op("aten::mm", 0, 100, **shapes), launch(20, 5), kernel]).ops
    assert ops["dtype"].to_list() == ["tf32"]


def test_an_op_on_a_thread_of_another_name_is_found_by_external_id(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 100, tid=1, **MM, **{"External id": 31}), launch(20, 5, tid=2, **{"External id": 31})]
    ops = read(tmp_path, [*events, work(50, 10, 5, **{"External id": 31})]).ops
    assert ops["framework_op"].to_list() == ["aten::mm"]


def test_an_external_id_that_is_only_the_correlation_id_links_nothing(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 100, tid=1, **MM, **{"External id": 5}), launch(20, 5, tid=2, **{"External id": 5})]
    ops = read(tmp_path, [*events, work(50, 10, 5, **{"External id": 5})]).ops
    assert ops["framework_op"].to_list() == [None]


def test_copies_and_fills_have_the_bytes_that_the_trace_says(tmp_path: Path) -> None:
    events = [
        op("aten::copy_", 0, 100, **{"Input Dims": [[8], [8], []], "Input type": ["float", "float", "Scalar"]}),
        launch(10, 5, name="cudaMemcpyAsync"),
        launch(15, 6, name="hipMemcpyWithStream", size="2560"),
        work(50, 10, 5, "Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", bytes=4096),
        work(60, 10, 6, "Memcpy HtoD (Host -> Device)", "gpu_memcpy"),
        work(70, 10, 7, "Memset (Device)", "gpu_memset", bytes=64),
        work(80, 10, 8, "Memset (Device)", "gpu_memset"),
    ]
    ops = read(tmp_path, events).ops
    assert ops.select("op_class", "flops", "bytes", "cost_source").rows() == [
        ("copy", 0, 4096, "trace"),
        ("copy", 0, 2560, "trace"),
        ("memset", 0, 64, "trace"),
        ("memset", 0, None, "none"),
    ]


@given(total=st.integers(0, 10**18), weights=st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_a_split_cost_adds_up_and_follows_the_weights(total: int, weights: list[int]) -> None:
    parts = split_exactly(total, weights)
    assert sum(parts) == total
    whole = sum(weights) or len(weights)
    for part, weight in zip(parts, weights if any(weights) else [1] * len(weights), strict=True):
        assert abs(part - total * weight / whole) <= 1 + total * 1e-15


# --- modules ------------------------------------------------------------------------------------------------------


def test_module_path_of_forward_and_backward(tmp_path: Path) -> None:
    events = [
        span("python_function", "train.py(1): step", 0, 100),
        span("python_function", "nn.Module: Net_0", 1, 90),
        span("python_function", "net.py(9): forward", 2, 80),
        span("python_function", "nn.Module: Linear_3", 3, 70),
        op("aten::mm", 5, 20, **MM, **{"Sequence number": 12, "Fwd thread id": 0}),
        launch(10, 5),
        op("MmBackward0", 200, 50, tid=2, **{"Sequence number": 12, "Fwd thread id": 1}),
        op("aten::mm", 205, 20, tid=2, **MM),
        launch(210, 6, tid=2),
        launch(300, 7),
        work(50, 10, 5),
        work(250, 10, 6),
        work(350, 10, 7),
    ]  # fmt: skip
    assert read(tmp_path, events).ops["module"].to_list() == ["Net_0/Linear_3", "Net_0/Linear_3", None]


def test_annotations_stand_in_where_no_modules_were_recorded(tmp_path: Path) -> None:
    events = [
        span("user_annotation", "ProfilerStep#1", 0, 100),
        span("user_annotation", "forward", 1, 90),
        span("user_annotation", "attention", 2, 80),
        launch(10, 5),
        work(50, 10, 5),
    ]
    assert read(tmp_path, events).ops["module"].to_list() == ["forward/attention"]


# --- collectives --------------------------------------------------------------------------------------------------


def comm(name: str, sent: int, received: int, **more: Any) -> dict[str, Any]:
    return {
        "Collective name": name, "In msg nelems": sent, "Out msg nelems": received, "Group size": 4,
        "dtype": "BFloat16", "Process Group Name": "tp", "Process Group Ranks": "[0, 2, 4, 6]", **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("args", "kind", "message_bytes"),
    [
        (comm("allreduce", 1000, 1000), "all_reduce", 2000),
        (comm("_allgather_base", 1000, 4000), "all_gather", 8000),  # the whole output
        (comm("allgather", 1000, 0), "all_gather", 8000),
        (comm("_reduce_scatter_base", 4000, 1000), "reduce_scatter", 8000),  # the whole input
        (comm("all_to_all", 4000, 4000), "all_to_all", 8000),
        (comm("broadcast", 1000, 1000), "broadcast", 2000),
        (comm("allreduce", 1000, 1000, dtype="Float"), "all_reduce", 4000),
        (comm("allreduce", 1000, 1000, dtype="Mystery"), "all_reduce", None),
        (comm("barrier", 0, 0), "barrier", None),
    ],
)
def test_size_and_group_from_metadata(
    tmp_path: Path, args: dict[str, Any], kind: str, message_bytes: int | None
) -> None:
    trace = read(tmp_path, [work(10, 10, 5, "ncclDevKernel_Generic(x)", **args)])
    assert trace.ops.select("op_class", "flops", "cost_source").rows() == [("collective", None, "none")]
    row = trace.collectives.row(0, named=True)
    assert (row["op_id"], row["collective"], row["message_bytes"]) == (0, kind, message_bytes)
    assert (row["group_id"], row["group_ranks"], row["group_size"]) == ("tp [0,2,4,6]", "[0,2,4,6]", 4)


def test_send_and_receive_know_their_peer(tmp_path: Path) -> None:
    events = [
        work(
            10, 10, 5, "ncclDevKernel_SendRecv(x)", **comm("send", 100, 100, **{"Dst Rank": 6, "Src Rank": 0, "Seq": 9})
        ),
        work(30, 10, 6, "ncclDevKernel_SendRecv(x)", **comm("recv", 100, 100, **{"Dst Rank": 0, "Src Rank": 2})),
    ]
    rows = read(tmp_path, events).collectives.select("collective", "peer", "seq").rows()
    assert rows == [("send", 6, 9), ("recv", 2, None)]


def test_without_metadata_the_name_tells_the_kind_and_nothing_else(tmp_path: Path) -> None:
    events = [
        work(10, 10, 5, "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"),
        work(20, 10, 6, "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)"),
        work(30, 10, 7, "triton_poi_fused_all_gather_into_tensor_copy_0"),
    ]
    trace = read(tmp_path, events)
    rest = len(COLLECTIVES) - 2
    assert trace.collectives.rows() == [(0, "all_reduce", *[None] * rest), (1, None, *[None] * rest)]
    assert trace.ops["op_class"].to_list()[2] != "collective"


def test_metadata_of_the_host_call_serves_a_kernel_without(tmp_path: Path) -> None:
    call = op("record_param_comms", 0, 50, **comm("allreduce", 1000, 1000))
    trace = read(tmp_path, [call, launch(10, 5), work(60, 10, 5, ALL_REDUCE)])
    assert trace.collectives.select("collective", "message_bytes", "group_id").rows() == [
        ("all_reduce", 2000, "tp [0,2,4,6]")
    ]
    assert trace.ops["framework_op"].to_list() == ["record_param_comms"]


def test_a_kernel_that_prepares_a_communication_is_compute(tmp_path: Path) -> None:
    call = op("c10d::allgather_", 0, 50)
    trace = read(tmp_path, [call, launch(10, 5), work(60, 10, 5, "CatArrayBatchedCopy<float>")])
    assert trace.ops["op_class"].to_list() == ["data_movement"]
    assert trace.collectives.height == 0


@pytest.mark.parametrize(
    "args",
    [
        {"Process Group Ranks": "[0, 2, ...", "Global rank start": 0, "Global rank stride": 2},
        {"Process Group Ranks": "[0, 2, ..."},  # then from distributedInfo, by name
    ],
)
def test_a_cut_list_of_ranks_is_completed(tmp_path: Path, args: dict[str, Any]) -> None:
    groups = [
        {"pg_name": "tp", "pg_size": 4, "ranks": "[0, 2, 4, 6]"},
        {"pg_name": "dp", "pg_size": 2, "ranks": [0, 1]},
    ]
    info = {"rank": 0, "world_size": 8, "pg_count": 2, "pg_config": groups}
    trace = read(tmp_path, [work(1, 1, 5, ALL_REDUCE, **{**comm("allreduce", 8, 8), **args})], distributedInfo=info)
    assert trace.collectives["group_ranks"].to_list() == ["[0,2,4,6]"]


# --- a CPU alone --------------------------------------------------------------------------------------------------


def test_on_a_cpu_the_working_ops_are_the_work(tmp_path: Path) -> None:
    events = [
        op("aten::linear", 0, 100, **MM),  # wrapper
        op("aten::t", 2, 5),  # view
        op("aten::addmm", 10, 80, **{
            "Input Dims": [[16], [64, 32], [32, 16], [], []],
            "Input type": ["float", "float", "float", "Scalar", "Scalar"],
        }),
        op("aten::copy_", 15, 20),  # part of addmm
        op("mylib::outer", 200, 50),
        op("mylib::inner", 210, 10),
        op("aten::empty", 300, 5),
        op("autograd::engine::evaluate_function: AddmmBackward0", 400, 50, tid=2),
        op("AddmmBackward0", 401, 48, tid=2),
        op("aten::mm", 410, 20, tid=2, **MM),
    ]  # fmt: skip
    trace = read(tmp_path, events)
    columns = ("name", "op_class", "device_id", "stream", "start_ns", "dur_ns", "launch_ns", "launch_thread")
    assert trace.ops.select(columns).rows() == [
        ("aten::addmm", "matmul", "cpu", "1/1", 10_000, 80_000, 10_000, "1/1"),
        ("mylib::inner", "other", "cpu", "1/1", 210_000, 10_000, 210_000, "1/1"),
        ("aten::mm", "matmul", "cpu", "1/2", 410_000, 20_000, 410_000, "1/2"),
    ]
    assert trace.ops["flops"].to_list()[2] == MM_FLOPS
    assert trace.ops["cost_source"].to_list() == ["shapes", "none", "shapes"]
    assert [(d.device_id, d.kind) for d in trace.devices] == [("cpu", "cpu")]


def test_gloo_spans_are_collectives_on_their_thread(tmp_path: Path) -> None:
    shape = {"Input Dims": [[100, 3]], "Input type": ["float"]}
    events = [
        op("c10d::allreduce_", 0, 10),
        op("record_param_comms", 2, 5),
        span("user_annotation", "gloo:all_reduce", 20, 50, 9, **shape),
        span("user_annotation", "gloo:all_gather", 80, 50, 9, **shape),
    ]
    info = {
        "backend": "gloo",
        "rank": 0,
        "world_size": 2,
        "pg_count": 1,
        "pg_config": [{"pg_name": "0", "ranks": [0, 1]}],
    }
    trace = read(tmp_path, events, distributedInfo=info)
    assert trace.ops.select("name", "op_class", "stream").rows() == [
        ("gloo:all_reduce", "collective", "1/9"),
        ("gloo:all_gather", "collective", "1/9"),
    ]
    assert trace.collectives.select("collective", "group_id", "group_size", "message_bytes", "dtype").rows() == [
        ("all_reduce", "0 [0,1]", 2, 1200, "fp32"),
        ("all_gather", "0 [0,1]", 2, 2400, "fp32"),
    ]


@pytest.mark.parametrize(
    ("args", "rank", "expected"),
    [
        ({}, None, (3000 * 2, 3000 * 2, True)),  # 4000 elements, a quarter stays
        ({"In split size": "[1000, 1000, 1000, 1000]"}, 2, (3000 * 2, 3000 * 2, True)),
        (
            {"In split size": "[100, 900, 2000, 1000]", "Out split size": "[1, 9, 90, 3900]"},
            2,
            (3100 * 2, 3991 * 2, False),
        ),
        ({"In split size": "[100, 900, 2000, 1000]"}, None, (None, 3000 * 2, False)),
    ],
)
def test_what_leaves_and_enters_a_rank_in_an_all_to_all(
    tmp_path: Path, args: Any, rank: int | None, expected: Any
) -> None:
    kernel = work(1, 1, 5, "ncclDevKernel_SendRecv(x)", **{**comm("all_to_allv", 4000, 4000), **args})
    trace = read(tmp_path, [kernel], distributedInfo={} if rank is None else {"rank": rank})
    (call,) = trace.facts["all_to_all"]
    assert (call["send_bytes"], call["recv_bytes"], call["uniform"]) == expected
    assert trace.collectives["message_bytes"].to_list() == [8000]


# --- collectives without metadata ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "kernel", "inputs", "message"),
    [
        ("nccl:all_reduce", ALL_REDUCE, {"Input Dims": [[8, 4]], "Input type": ["c10::BFloat16"]}, (64, "bf16")),
        (
            "nccl:_all_gather_base",
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            {"Input Dims": [[8, 4]], "Input type": ["float"]},
            (8 * 4 * 4 * 2, "fp32"),
        ),
        (
            "c10d::_reduce_scatter_base_",
            "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            {"Input Dims": [[4], [8], []], "Input type": ["float", "float", "Scalar"]},
            (8 * 4, "fp32"),
        ),
        # the types of lists are not recorded: the kernel's name has it
        (
            "c10d::allreduce_",
            ALL_REDUCE,
            {"Input Dims": [[[8], [2]], []], "Input type": ["TensorList", ""]},
            (20, "bf16"),
        ),
        ("nccl:all_reduce", ALL_REDUCE, {}, (None, None)),
    ],
)
def test_a_collective_without_metadata_has_the_size_of_the_call_around_it(
    tmp_path: Path, call: str, kernel: str, inputs: dict[str, Any], message: tuple[int | None, str | None]
) -> None:
    around = span("user_annotation", call, 0, 50, **inputs) if call.startswith("nccl") else op(call, 0, 50, **inputs)
    groups = {"rank": 0, "pg_count": 1, "pg_config": [{"pg_name": "0", "ranks": [0, 1], "pg_size": 2}]}
    trace = read(tmp_path, [around, launch(10, 5), work(20, 10, 5, kernel)], distributedInfo=groups)
    assert trace.collectives.select("message_bytes", "dtype").rows() == [message]


def test_odd_arguments_cost_one_operator_its_numbers(tmp_path: Path) -> None:
    odd: list[dict[str, Any]] = [
        {"Input Dims": {"a": 1}, "Input type": 5},
        {"Input Dims": [[-1, 0], "x"], "Input type": [[], {}]},
        {"Input Dims": [[[[2]]], None], "Input type": ["float"], "Concrete Inputs": [None, 7]},
    ]
    names = ["aten::mm", "aten::convolution", "aten::_scaled_dot_product_flash_attention", "aten::add", "aten::sum"]
    events: list[dict[str, Any]] = []
    for i, (name, inputs) in enumerate((name, inputs) for name in names for inputs in odd):
        events += [op(name, 10 * i, 8, **inputs), launch(10 * i + 1, i + 1), work(10 * i + 5, 2, i + 1)]
    trace = read(tmp_path, [*events, op("aten::mm", 900, 9, **MM), launch(901, 99), work(905, 2, 99)])
    assert trace.ops["flops"].to_list()[-1] == MM_FLOPS
    assert trace.ops["framework_op"].to_list() == [name for name in names for _ in odd] + ["aten::mm"]


# --- operators without a formula, and kernels of one operator -----------------------------------------------------


def test_an_unknown_operator_counts_what_an_elementwise_kernel_reads(tmp_path: Path) -> None:
    args = {"Input Dims": [[7, 11], [11], []], "Input type": ["c10::Half", "float", "Scalar"]}
    events = [op("mylib::fancy_silu", 0, 100, **args), launch(10, 5), work(50, 10, 5, "fancy_silu_kernel")]
    [row] = read(tmp_path, events).ops.select("op_class", "flops", "bytes", "cost_source", "cost_note").rows()
    assert row[:4] == ("elementwise", None, 2 * 77 + 4 * 11, "shapes")
    assert "results and arithmetic are not known" in row[4]


@pytest.mark.parametrize("kernel", ["paged_gather_kernel", "fancy_gemm_kernel", "silu_proj_kernel", "head_loss_kernel"])
def test_an_unknown_operator_may_read_a_part_of_what_it_is_given(tmp_path: Path, kernel: str) -> None:
    args = {"Input Dims": [[7, 11], [11], []], "Input type": ["c10::Half", "float", "Scalar"]}
    [row] = (
        read(tmp_path, [op("mylib::fancy", 0, 100, **args), launch(10, 5), work(50, 10, 5, kernel)])
        .ops.select("bytes", "cost_source", "cost_note")
        .rows()
    )
    assert row == (None, "none", "no formula for mylib::fancy")


def test_a_convolution_by_winograd_says_that_it_multiplies_less(tmp_path: Path) -> None:
    args = {
        "Input Dims": [[2, 8, 6, 6], [4, 8, 3, 3], [], [], [], []],
        "Input type": ["float", "float", "", "", "", ""],
        "Concrete Inputs": ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"],
    }
    events = [
        op("aten::cudnn_convolution", 0, 100, **args), launch(10, 5), launch(20, 6),
        work(50, 30, 5, "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(Params)"),
        work(80, 10, 6, "volta_sgemm_128x64_nn"),
    ]  # fmt: skip
    ops = read(tmp_path, events).ops
    # 2 x 2 images x 4 channels x 36 positions x 8 x 9 taps, all by the product
    assert ops["flops"].to_list() == [0, 41_472]
    assert all("fewer multiplications" in note for note in ops["cost_note"])

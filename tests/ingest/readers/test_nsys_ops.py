"""What ranges tell the Nsight Systems reader of operators and collectives, in hand-made exports."""

import json
import struct
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ingest.readers.nsys_rows import (
    ADD_ID,
    KERNEL,
    NAMES,
    NVTX,
    RUNTIME,
    T,
    kernel,
    launch,
    pushed,
    read,
)

from tracegap.ingest.trace import Trace


# ---------------------------------------------------------------- framework operators and modules
def test_cost_of_an_operator_from_its_range(tmp_path):
    mm = "aten::mm, seq = 45, op_id = 990, sizes = [[2, 3], [3, 4]]"
    trace = read(
        tmp_path,
        nvtx=(NVTX, [pushed(0, 90, "step 1"), pushed(1, 80, "encoder"), pushed(2, 50, "layer_0"), pushed(10, 40, mm)]),
        runtime=(RUNTIME, [launch(20, 30, 1), launch(60, 70, 2)]),
        kernel=(KERNEL, [kernel(100, 110, 1), kernel(110, 120, 2)]),
    )
    inside, outside = trace.ops.iter_rows(named=True)
    assert (inside["framework_op"], inside["module"], inside["op_class"]) == ("aten::mm", "encoder/layer_0", "matmul")
    assert inside["flops"] == 2 * 2 * 3 * 4
    assert inside["bytes"] == 2 * (2 * 3 + 3 * 4 + 2 * 4)  # the kernel's name says bf16
    assert (inside["cost_source"], inside["shapes"]) == ("nvtx", "[[2,3],[3,4]]")
    assert "kernel's name" in inside["cost_note"]
    assert (outside["framework_op"], outside["module"]) == (None, "encoder")
    assert (outside["flops"], outside["bytes"], outside["cost_source"]) == (None, None, "none")
    assert outside["cost_note"]
    assert trace.framework == "pytorch"


def test_bytes_are_unknown_where_nothing_tells_the_element_type(tmp_path):
    names = [*NAMES, "some_kernel(float*)"]
    trace = read(
        tmp_path,
        nvtx=(NVTX, [pushed(0, 50, "aten::mm, op_id = 1, sizes = [[2, 3], [3, 4]]")]),
        runtime=(RUNTIME, [launch(20, 30, 1)]),
        kernel=(KERNEL, [kernel(100, 110, 1, 7)]),
        names=[*names[:-1], "opaque_kernel"],
    )
    row = trace.ops.row(0, named=True)
    assert (row["op_class"], row["flops"], row["bytes"]) == ("matmul", 48, None)
    assert row["cost_note"]


def test_without_shapes_the_class_is_known_and_the_cost_is_not(tmp_path):
    trace = read(
        tmp_path,
        nvtx=(NVTX, [pushed(0, 50, "aten::native_layer_norm, seq = 3, op_id = 1")]),
        runtime=(RUNTIME, [launch(20, 30, 1)]),
        kernel=(KERNEL, [kernel(100, 110, 1, ADD_ID)]),
    )
    row = trace.ops.row(0, named=True)
    assert (row["op_class"], row["flops"], row["bytes"], row["cost_source"]) == ("normalization", None, None, "none")
    assert "record_shapes" in row["cost_note"]


def test_the_operator_with_a_formula_counts_and_wrappers_around_or_inside_do_not(tmp_path):
    ranges = [
        pushed(0, 90, "AddmmBackward0, seq = 9"),
        pushed(1, 80, "aten::mm, op_id = 2, sizes = [[2, 3], [3, 4]]"),
        pushed(2, 70, "aten::empty, op_id = 3, sizes = [[]]"),
    ]
    trace = read(
        tmp_path, nvtx=(NVTX, ranges), runtime=(RUNTIME, [launch(20, 30, 1)]), kernel=(KERNEL, [kernel(100, 110, 1)])
    )
    assert trace.ops.select("framework_op", "flops", "op_class").rows() == [("aten::mm", 48, "matmul")]


def test_instructions_that_xla_runs(tmp_path):
    ranges = [
        (0, None, 75, "TSL", T, None, 3),
        pushed(1, 90, "XlaModule:#hlo_module=jit_step,program_id=5#", domain=3),
        pushed(2, 80, "Thunk:#name=wrapped,hlo_op=fusion.3,program_id=5#", domain=3),
    ]
    trace = read(
        tmp_path, nvtx=(NVTX, ranges), runtime=(RUNTIME, [launch(20, 30, 1)]), kernel=(KERNEL, [kernel(100, 110, 1)])
    )
    assert trace.framework == "jax"
    assert trace.ops.select("framework_op", "module", "op_class", "flops").rows() == [
        ("fusion.3", None, "matmul", None)
    ]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(durations=st.lists(st.integers(0, 10**9), min_size=1, max_size=6), sizes=st.tuples(*[st.integers(1, 2**20)] * 3))
def test_parts_of_an_operators_cost_add_up_to_it(tmp_path_factory, durations, sizes):
    m, k, n = sizes
    trace = read(
        tmp_path_factory.mktemp("parts"),
        nvtx=(NVTX, [pushed(0, 50, f"aten::mm, op_id = 1, sizes = [[{m}, {k}], [{k}, {n}]]")]),
        runtime=(RUNTIME, [launch(i + 1, i + 2, i + 1) for i in range(len(durations))]),
        kernel=(KERNEL, [kernel(100, 100 + d, i + 1) for i, d in enumerate(durations)]),
    )
    assert sum(trace.ops["flops"].to_list()) == 2 * m * k * n
    assert sum(trace.ops["bytes"].to_list()) == 2 * (m * k + k * n + m * n)
    assert trace.ops["dur_ns"].sum() == sum(durations)


FLASH = (
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)64, (int)128, (bool)0, cutlass::bfloat16_t, "
    "Flash_kernel_traits<(int)64, cutlass::bfloat16_t>>, (bool)0, (bool){}, (bool)0>(flash::Flash_fwd_params)"
)


@pytest.mark.parametrize(("causal", "share"), [(0, 1), (1, 0.5)])
def test_the_name_of_a_flash_kernel_tells_its_mask(tmp_path, causal, share):
    q = "[2, 128, 4, 64]"  # batch, tokens, heads, head dimension
    text = f"aten::_flash_attention_forward, op_id = 1, sizes = [{q}, {q}, {q}{', []' * 10}]"
    trace = read(
        tmp_path,
        nvtx=(NVTX, [pushed(0, 50, text)]),
        runtime=(RUNTIME, [launch(20, 30, 1)]),
        kernel=(KERNEL, [kernel(100, 110, 1, 7)]),
        names=[*NAMES, FLASH.format(causal)],
    )
    row = trace.ops.row(0, named=True)
    assert row["op_class"] == "attention"
    assert row["flops"] == pytest.approx(share * 4 * 2 * 4 * 128 * 128 * 64, rel=0.01)
    assert row["bytes"] == 4 * (2 * 128 * 4 * 64) * 2  # queries, keys, values and output in bf16


# ---------------------------------------------------------------- collectives
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
NCCL_NAMES = [*NAMES, ALL_REDUCE, ALL_GATHER, SEND_RECV]
NCCL_NVTX = NVTX + " jsonText binaryData"
SCHEMAS = (
    "domainId schemaId idx flags type name description arrayOrUnionDetail offset",
    [
        (1, 77, 0, None, 18, "NCCL communicator ID", None, None, None),
        (1, 77, 1, None, 22, "Message size [bytes]", None, None, 8),
        (1, 77, 2, None, 5, "Peer rank", None, None, 16),
        (1, 88, 0, None, 18, "NCCL communicator ID", None, None, None),
        (1, 88, 1, None, 5, "No. of ranks", None, None, 8),
    ],
)


def nccl(start: int, end: int, name: str, json_text: str | None = None, binary: bytes | None = None) -> tuple:
    return (start, end, 59, name, T, None, 1, json_text, binary)


def blob(schema: int, payload: bytes) -> bytes:
    return struct.pack("<IIIIQQ", 1, 0, schema, 0, len(payload), len(payload) + 32) + payload


def collective(tmp_path: Path, ranges: list[tuple], kernels: list[tuple], calls: list[tuple]) -> Trace:
    domain = (0, None, 75, "NCCL", T, None, 1, None, None)
    return read(
        tmp_path,
        nvtx=(NCCL_NVTX, [domain, *ranges]),
        runtime=(RUNTIME, calls),
        kernel=(KERNEL, kernels),
        NVTX_PAYLOAD_SCHEMA_ENTRIES=SCHEMAS,
        names=NCCL_NAMES,
    )


def test_collective_without_payload_has_its_kind_and_no_size(tmp_path):
    trace = collective(tmp_path, [nccl(0, 50, "ncclAllReduce")], [kernel(90, 99, 1, 7, stream=17)], [launch(10, 20, 1)])
    row = trace.collectives.row(0, named=True)
    assert (row["op_id"], row["collective"], row["dtype"]) == (0, "all_reduce", "bf16")
    assert [row[c] for c in ("message_bytes", "group_id", "group_size", "seq")] == [None] * 4
    assert trace.ops["op_class"].to_list() == ["collective"]
    assert trace.host_events.filter(pl.col("name") == "ncclAllReduce")["kind"].to_list() == ["collective"]
    assert trace.facts["nccl_kernels"] == [1, 9]


def test_size_and_group_from_a_decoded_payload(tmp_path):
    text = json.dumps({"NCCL communicator ID": 255, "Message size [bytes]": 4096})
    made = json.dumps({"NCCL communicator ID": 255, "No. of ranks": 8})
    ranges = [
        nccl(0, 5, "ncclCommInitRank", made),
        nccl(10, 50, "ncclAllReduce", text),
        nccl(60, 90, "ncclAllGather", text),
    ]
    trace = collective(
        tmp_path, ranges, [kernel(100, 110, 1, 7), kernel(120, 130, 2, 8)], [launch(20, 21, 1), launch(70, 71, 2)]
    )
    got = trace.collectives.select("collective", "group_id", "group_size", "message_bytes").rows()
    # NCCL states one rank's part of an all-gather: S is that times the ranks
    assert got == [("all_reduce", "0xff", 8, 4096), ("all_gather", "0xff", 8, 8 * 4096)]


def test_size_from_a_binary_payload(tmp_path):
    ranges = [
        nccl(0, 5, "ncclCommInitRank", binary=blob(88, struct.pack("<Qi4x", 255, 4))),
        nccl(10, 50, "ncclAllReduce", binary=blob(77, struct.pack("<QQ", 255, 1 << 20))),
    ]
    trace = collective(tmp_path, ranges, [kernel(100, 110, 1, 7)], [launch(20, 21, 1)])
    assert trace.collectives.select("group_size", "message_bytes").rows() == [(4, 1 << 20)]


def test_a_payload_that_does_not_fit_its_schema_is_left_alone(tmp_path):
    ranges = [nccl(10, 50, "ncclAllReduce", binary=blob(99, b"\1" * 16)[:-3])]
    trace = collective(tmp_path, ranges, [kernel(100, 110, 1, 7)], [launch(20, 21, 1)])
    assert trace.collectives["message_bytes"].to_list() == [None]


def test_sends_and_receives_of_a_group_are_one_transfer(tmp_path):
    def call(start: int, name: str, size: int, peer: int) -> tuple:
        return nccl(start, start + 2, name, binary=blob(77, struct.pack("<QQi4x", 9, size, peer)))

    ranges = [
        nccl(0, 1, "ncclGroupStart"),
        call(2, "ncclSend", 100, 3),
        call(5, "ncclRecv", 70, 3),
        nccl(10, 50, "ncclGroupEnd"),
        nccl(60, 61, "ncclGroupStart"),
        call(62, "ncclRecv", 40, 2),
        nccl(70, 90, "ncclGroupEnd"),
    ]
    trace = collective(
        tmp_path, ranges, [kernel(100, 110, 1, 9), kernel(120, 130, 2, 9)], [launch(20, 21, 1), launch(80, 81, 2)]
    )
    got = trace.collectives.select("collective", "message_bytes", "peer", "group_id").rows()
    assert got == [("send_recv", 100, 3, "0x9"), ("recv", 40, 2, "0x9")]


def test_size_from_the_inputs_of_pytorchs_range(tmp_path):
    ranges = [pushed(0, 50, "nccl:all_reduce, op_id = 7, sizes = [[1000]]")]
    trace = read(
        tmp_path, nvtx=(NVTX, ranges), runtime=(RUNTIME, [launch(10, 20, 1)]), kernel=(KERNEL, [kernel(90, 99, 1, 7)]),
        names=NCCL_NAMES,
    )  # fmt: skip
    assert trace.collectives.select("collective", "message_bytes").rows() == [("all_reduce", 2000)]
    assert trace.ops["flops"].to_list() == [None]

"""Costs of whole operations worked out on paper: a trace of a few KB in, what each operation does and its bound out.

Numbers are written out as they were worked out, with the working beside them. Peaks are those of NVIDIA's data sheet of the
H100 SXM (dense bf16 989.4 TFLOP/s; 3.352 TB/s, which it rounds to 3.35), and those that the TPU plane states.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tracegap.ingest.classify.hlo_module import PROTO as HLO
from tracegap.ingest.pipeline import ingest_paths
from tracegap.ingest.readers._xplane import PROTO
from tracegap.ingest.store import open_store
from tracegap.reports.join import evaluate

H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_017_493_504, "numSms": 132}
BF16_PER_S, HBM_PER_S = 989.4e12, 3.352e12


@contextmanager
def evaluated(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with open_store(path.parent / "store.duckdb") as con:
        [result] = ingest_paths(con, [str(path)], run="hand")
        assert result.status == "ok"
        evaluate(con, "hand")
        yield con


def kineto(folder: Path, *calls: tuple[str, dict[str, Any], list[tuple[str, float]]]) -> Path:
    """A trace of calls one after the other: operator, its arguments, its kernels with their lengths in us."""
    events: list[dict[str, Any]] = []
    at, corr = 10.0, 1
    for name, args, kernels in calls:
        length = 10.0 * len(kernels) + 10
        events.append(
            {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": length, "args": args}
        )
        start = at + 1
        for i, (kernel, dur) in enumerate(kernels):
            launch = {
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "pid": 1,
                "tid": 1,
                "ts": at + 1 + 8 * i,
                "dur": 2,
            }
            work = {"cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": start + 5, "dur": dur}
            events.append({"ph": "X", **launch, "args": {"correlation": corr}})
            events.append({"ph": "X", **work, "args": {"device": 0, "stream": 7, "correlation": corr}})
            start += dur + 5
            corr += 1
        at = max(at + length, start) + 10
    path = folder / "hand.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [H100], "traceEvents": events}))
    return path


def test_causal_attention_of_grouped_queries(tmp_path: Path) -> None:
    """Batch 2, 32 heads of queries over 8 of keys, 4096 tokens, width 128, bf16.

    A pair of query and key is 2 x 128 FLOPs for the score and 2 x 128 for the value; half of 4096 x 4096 pairs are visible
    (the convention of FlashAttention's benchmark), in 2 x 32 heads: 512 x 64 x 8 388 608 = 274 877 906 944.
    q and the result have 2 x 32 x 4096 x 128 = 33 554 432 elements, k and v 8 388 608: 83 886 080 in all, 2 bytes each:
    167 772 160 bytes.
    """
    q, kv = [2, 32, 4096, 128], [2, 8, 4096, 128]
    args = {
        "Input Dims": [q, kv, kv, [], [], [], []],
        "Input type": ["c10::BFloat16"] * 3 + ["Scalar"] * 4,
        "Concrete Inputs": ["", "", "", "0.", "True", "False", ""],
    }
    kernel = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4> >(Params)"
    path = kineto(tmp_path, ("aten::_scaled_dot_product_flash_attention", args, [(kernel, 500.0)]))
    with evaluated(path) as con:
        [row] = con.execute(
            "select op_class, flops, bytes, cost_source, bound, t_math_ns, t_mem_ns, t_min_ns from op_gap"
        ).fetchall()
    math_ns, mem_ns = round(274_877_906_944 / BF16_PER_S * 1e9), round(167_772_160 / HBM_PER_S * 1e9)
    assert (math_ns, mem_ns) == (277_823, 50_051)
    assert row == ("attention", 274_877_906_944, 167_772_160, "shapes", "compute", 277_823, 50_051, 277_823)


def test_a_fused_optimizer_over_200_tensors(tmp_path: Path) -> None:
    """AdamW on 100 matrices of 256 x 512 and 100 vectors of 512, all fp32, in 3 kernels of 40, 40 and 20 us.

    100 x 131 072 + 100 x 512 = 13 158 400 elements. Parameters and both moments are read and written, gradients read: 7
    times 4 bytes = 28 an element, 368 435 200 in all; 16 FLOPs an element, 210 534 400.
    """
    shapes = [[256, 512]] * 100 + [[512]] * 100
    args = {
        "Input Dims": [shapes, shapes, shapes, shapes, [], [], [], [], [], [], [], [], [], [], []],
        "Input type": ["TensorList"] * 4 + [""] * 11,
    }
    kernel = (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
        "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
        "(at::native::ADAM_MODE)1, false>, float const*, double>(FusedOptimizerTensorListMetadata<4>)"
    )
    path = kineto(tmp_path, ("aten::_fused_adamw_", args, [(kernel, 40.0), (kernel, 40.0), (kernel, 20.0)]))
    with evaluated(path) as con:
        found = con.execute("select op_class, flops, bytes, bound from op_gap order by start_ns").fetchall()
    assert [row[0] for row in found] == ["optimizer"] * 3
    assert [row[1] for row in found] == [84_213_760, 84_213_760, 42_106_880]
    assert [row[2] for row in found] == [147_374_080, 147_374_080, 73_687_040]
    assert [row[3] for row in found] == ["memory"] * 3


def test_a_split_product_and_the_sum_of_its_parts(tmp_path: Path) -> None:
    """[64, 32768] x [32768, 128] in bf16 over several blocks of the inner dimension, then a kernel that adds them up.

    2 x 64 x 32768 x 128 = 536 870 912 FLOPs, all by the first kernel. 2 x (2 097 152 + 4 194 304 + 8192) = 12 599 296 bytes
    by the operation, by time: three quarters, 9 449 472, for 30 us and 3 149 824 for 10 us.
    """
    args = {"Input Dims": [[64, 32768], [32768, 128]], "Input type": ["c10::BFloat16"] * 2}
    product = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x128x64_warpgroupsize1x1x1_execute_split_k_kernel__5x_cublas"
    total = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, true, false>(Params)"
    path = kineto(tmp_path, ("aten::mm", args, [(product, 30.0), (total, 10.0)]))
    with evaluated(path) as con:
        found = con.execute("select op_class, flops, bytes, t_min_ns, bound from op_gap order by start_ns").fetchall()
    # 536 870 912 / 989.4e12 = 543 ns against 9 449 472 / 3.352e12 = 2819 ns; and 940 ns
    assert found == [("matmul", 536_870_912, 9_449_472, 2819, "memory"), ("matmul", 0, 3_149_824, 940, "memory")]


# A loop of 24 layers, each recomputed in the backward pass: one product x W of [512, 256] by [256, 256] in bf16

LAYERS, ROWS, WIDTH = 24, 512, 256
PRODUCT_FLOPS = 67_108_864  # 2 x 512 x 256 x 256
PRODUCT_BYTES = 655_360  # 2 x (512 x 256 + 256 x 256 + 512 x 256)


class _Plane:
    def __init__(self, name: str, **stats: Any) -> None:
        self.proto = PROTO["XPlane"](name=name)
        self.names: dict[str, int] = {}
        self.put(self.proto.stats, stats)

    def put(self, where: Any, stats: dict[str, Any]) -> None:
        for name, value in stats.items():
            key = self.names.setdefault(name, len(self.names) + 1)
            self.proto.stat_metadata[key].name = name
            kind = {str: "str_value", bytes: "bytes_value", float: "double_value"}.get(type(value), "int64_value")
            where.add(metadata_id=key, **{kind: value})

    def kind(self, name: str, display: str, **stats: Any) -> int:
        key = len(self.proto.event_metadata) + 1
        entry = self.proto.event_metadata[key]
        entry.id, entry.name, entry.display_name = key, name, display
        self.put(entry.stats, stats)
        return key


def _tpu() -> _Plane:
    return _Plane(
        "/device:TPU:0",
        device_type_string="TPU v5",
        peak_teraflops_per_second=459.0,
        peak_hbm_bw_gigabytes_per_second=2765.0,
    )


def _product(plane: _Plane, name: str, path: str) -> int:
    text = f"%{name} = bf16[512,256]{{1,0}} fusion(bf16[512,256]{{1,0}} %x, bf16[256,256]{{1,0}} %w), kind=kOutput, calls=%c"
    return plane.kind(
        text, name, hlo_category="convolution fusion", tf_op=path,
        flops=PRODUCT_FLOPS, model_flops=PRODUCT_FLOPS, bytes_accessed=PRODUCT_BYTES,
    )  # fmt: skip


def test_a_loop_of_24_layers_with_recomputation(tmp_path: Path) -> None:
    """Forward: 24 products. Backward: 24 times the same again, and two more for the gradients of input and weights.

    96 products of 67 108 864 FLOPs are 6 442 450 944, of which a quarter, 1 610 612 736, is recomputed; both loops state
    the FLOPs of one iteration, which do not count beside what is inside them. 96 x 655 360 = 62 914 560 bytes.
    """
    plane = _tpu()
    forward = _product(plane, "fusion.1", "jit(step)/jit(main)/while/body/layer/dot_general")
    again = _product(
        plane, "fusion.2", "jit(step)/jit(main)/transpose(jvp(main))/while/body/rematted_computation/layer/dot_general"
    )
    gradients = [
        _product(plane, f"fusion.{i}", "jit(step)/jit(main)/transpose(jvp(main))/while/body/layer/dot_general")
        for i in (3, 4)
    ]
    loops = [
        plane.kind(f"%while.{i} = (s32[]) while((s32[]) %t), condition=%c, body=%b", f"while.{i}", hlo_category="while",
                   flops=PRODUCT_FLOPS, bytes_accessed=PRODUCT_BYTES) for i in (1, 2)
    ]  # fmt: skip
    line = plane.proto.lines.add(name="XLA Ops", id=1)
    at = 0
    for loop, body in ((loops[0], [forward]), (loops[1], [again, *gradients])):
        each = 1_000_000
        line.events.add(metadata_id=loop, offset_ps=at, duration_ps=LAYERS * len(body) * each)
        for _ in range(LAYERS):
            for kind in body:
                line.events.add(metadata_id=kind, offset_ps=at, duration_ps=each)
                at += each
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(PROTO["XSpace"](planes=[plane.proto]).SerializeToString())
    with evaluated(path) as con:
        totals = con.execute("select count(*), sum(flops), sum(bytes) from ops").fetchall()
        recomputed = con.execute("select sum(flops) from ops where module like '%[recomputed]%'").fetchall()
        bounds = con.execute("select distinct t_math_ns, t_mem_ns, bound from op_gap").fetchall()
    assert totals == [(96, 6_442_450_944, 62_914_560)]
    assert recomputed == [(1_610_612_736,)]
    # 67 108 864 / 459e12 = 146 ns against 655 360 / 2765e9 = 237 ns
    assert bounds == [(146, 237, "memory")]


def _hlo_loop(*, trips: int | None) -> bytes:
    proto = HLO["HloProto"]()
    proto.hlo_module.name = "jit_step"
    body = proto.hlo_module.computations.add(name="body", id=1)
    main = proto.hlo_module.computations.add(name="main", id=2)
    proto.hlo_module.entry_computation_id = 2

    def add(where: Any, ident: int, opcode: str, dims: list[int], operands: tuple[int, ...] = (), **more: Any) -> Any:
        made = where.instructions.add(id=ident, name=f"{opcode}.{ident}", opcode=opcode, operand_ids=operands, **more)
        made.shape.element_type = 16  # bf16
        made.shape.dimensions.extend(dims)
        where.root_id = ident
        return made

    add(body, 11, "parameter", [ROWS, WIDTH])
    add(body, 12, "parameter", [WIDTH, WIDTH])
    product = add(body, 13, "dot", [ROWS, WIDTH], (11, 12))
    product.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    product.dot_dimension_numbers.rhs_contracting_dimensions.append(0)
    add(main, 21, "parameter", [ROWS, WIDTH])
    loop = add(main, 22, "while", [ROWS, WIDTH], (21,), called_computation_ids=[1])
    loop.name = "while.1"
    if trips is not None:
        loop.backend_config = json.dumps({"known_trip_count": {"n": str(trips)}}).encode()
    return bytes(proto.SerializeToString())


@pytest.mark.parametrize(("trips", "flops", "moved"), [(24, 1_610_612_736, 15_728_640), (None, None, None)])
def test_a_loop_alone_counts_as_often_as_it_runs(
    tmp_path: Path, trips: int | None, flops: int | None, moved: int | None
) -> None:
    """Only the loop is recorded, with the FLOPs of one iteration: 24 x 67 108 864 FLOPs, 24 x 655 360 bytes, or unknown."""
    plane, metadata = _tpu(), _Plane("/host:metadata")
    metadata.kind("jit_step(7)", "", **{"Hlo Proto": _hlo_loop(trips=trips)})
    loop = plane.kind(
        "%while.1 = bf16[512,256] while(bf16[512,256] %p), condition=%c, body=%b", "while.1", hlo_category="while",
        program_id=7, flops=PRODUCT_FLOPS, model_flops=PRODUCT_FLOPS, bytes_accessed=PRODUCT_BYTES,
    )  # fmt: skip
    plane.proto.lines.add(name="XLA Ops", id=1).events.add(metadata_id=loop, offset_ps=0, duration_ps=50_000_000)
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(PROTO["XSpace"](planes=[plane.proto, metadata.proto]).SerializeToString())
    with evaluated(path) as con:
        [(found_flops, found_bytes, source, note)] = con.execute(
            "select flops, bytes, cost_source, cost_note from ops"
        ).fetchall()
    assert (found_flops, found_bytes) == (flops, moved)
    assert source == ("hlo" if trips else "none")
    assert ("24 times" if trips else "how often") in note

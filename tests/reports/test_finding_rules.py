"""Each rule of findings on a small run in which it says something, its saving worked out by hand, and on one in which it
must be silent.

The part is an H100 SXM: 989.4 TFLOP/s in bf16, 494.7 in TF32, 67 in fp32, 3352 GB/s. So 989,400 FLOPs in bf16 take a
nanosecond, and so do 3352 bytes. Times are microseconds here and nanoseconds in the store.
"""

import polars as pl
import pytest

from tracegap.ingest import store
from tracegap.ingest.load import store_trace
from tracegap.ingest.store import open_store
from tracegap.ingest.trace import COLLECTIVES, COUNTERS, HOST_EVENTS, OPS, STEP_MARKS, Device, Trace
from tracegap.models import collectives, hardware
from tracegap.models.ops import CollectiveKind
from tracegap.reports import finding, join

US = 1000
BF16, FP32, HBM = 989_400, 67_000, 3352
"""FLOPs and bytes of a nanosecond."""


@pytest.fixture
def con(tmp_path):
    with open_store(tmp_path / "s.duckdb") as connection:
        yield connection


def frame(rows, schema):
    return pl.DataFrame([{c: row.get(c) for c in schema} for row in rows], schema=schema)


def op(start, dur, op_class="matmul", **more):
    """An operation, in microseconds; launched 10 ns before it starts."""
    at = round(start * US)
    known = more.get("flops") is not None or more.get("bytes") is not None
    return {
        "device_id": "0", "stream": "7", "name": "k", "op_class": op_class, "start_ns": at, "dur_ns": round(dur * US),
        "cost_source": "shapes" if known else "none", "cost_note": None if known else "not known", "launch_ns": at - 10,
        "launch_thread": "1/1", **more,
    }  # fmt: skip


def event(start, dur, kind, name):
    return {
        "thread": "1/1",
        "kind": kind,
        "name": name,
        "start_ns": round(start * US),
        "dur_ns": round(dur * US),
    }


def trace(*ops, rank=0, world_size=1, steps=(), comm=(), host=(), counters=(), device="NVIDIA H100 80GB HBM3", **facts):
    """One rank; `steps` are numbers, starts and lengths of host marks, `comm` what is known of each collective in turn."""
    numbered = [{**o, "op_id": i} for i, o in enumerate(ops)]
    calls = [o["op_id"] for o in numbered if o["op_class"] == "collective"]
    known = [
        {"op_id": i, "collective": "all_reduce", "group_id": "g", "group_ranks": "[0,1]", "group_size": 2, "dtype": "bf16", **c}
        for i, c in zip(calls, comm, strict=True)
    ]  # fmt: skip
    return Trace(
        format="kineto", framework="pytorch", origin_unix_ns=0, rank=rank, world_size=world_size,
        devices=[Device(device_id="0", kind="gpu", name=device, **facts)],
        ops=frame(numbered, OPS), collectives=frame(known, COLLECTIVES), counters=frame(counters, COUNTERS),
        host_events=frame([{**h, "event_id": i} for i, h in enumerate(host)], HOST_EVENTS),
        step_marks=frame(
            [{"step": n, "start_ns": s * US, "dur_ns": d * US, "source": "profiler_step", "thread": "1/1"} for n, s, d in steps],
            STEP_MARKS,
        ),
    )  # fmt: skip


def stored(con, *traces, run="run"):
    for i, t in enumerate(traces):
        store_trace(con, t, trace_id=f"{run}{i}", run_id=run, path=f"{run}{i}.json", sha256=f"{run}{i}")
    join.evaluate(con, run)


def found(con, kind, run="run"):
    """Saving, sentence and evidence of the findings of one kind, without the claims of others."""
    finding.find(con, run, {kind: finding.rules()[kind]})
    return con.execute("select saves_ns, what, evidence from findings where run_id = ?", [run]).fetchall()


def saves(con, kind, *traces, run="run"):
    stored(con, *traces, run=run)
    return [row[0] for row in found(con, kind, run)]


def idle(con, cause, activity, ns, *, gaps=1, name="f"):
    """Says what the host did in idle time of step 0 of the only trace, in place of what the evaluation found."""
    con.execute("delete from idle_causes").fetchall()
    row = {"trace_id": "run0", "device_id": "0", "step": 0, "cause": cause, "activity": activity, "name": name}
    store.insert_row(con, "idle_causes", row | {"idle_ns": ns, "gaps": gaps})


MATMUL = {"dtype": "bf16", "flops": 100 * US * BF16, "bytes": 0}
"""100 µs at peak."""


# --- operations -------------------------------------------------------------------------------------------------------


def test_wrong_dtype(con):
    # 100 µs at the fp32 peak, run in 200. TF32 needs 67 / 494.7 of the bound: 86,456 ns of it go, and at the same efficiency
    # as much of the other 100 µs. Only those 100 µs are gap, so no more is promised.
    product = op(0, 200, dtype="fp32", flops=100 * US * FP32, bytes=0)
    stored(con, trace(product))
    ((saved, what, evidence),) = found(con, "wrong_dtype")
    assert saved == 100 * US
    assert '"alone_ns":172912' in evidence.replace(" ", "")
    assert '"drawn_ns":{"kernel_inefficiency":86456,"useful_math":13544}' in evidence.replace(" ", "")
    assert "in tf32 this part multiplies 7.4 times faster" in what
    assert saves(con, "wrong_dtype", trace(op(0, 200, **MATMUL)), run="bf16") == []
    assert saves(con, "wrong_dtype", trace(product, device="Tesla K80"), run="unknown part") == []


def test_wrong_dtype_without_shapes(con):
    # The kernel's name says fp32, nothing says its FLOPs: 1 - 67 / 494.7 of its time, of unknown cost.
    assert saves(con, "wrong_dtype", trace(op(0, 200, dtype="fp32"))) == [round(200 * US * (1 - 67 / 494.7))]


def test_tensor_cores_unused(con):
    slow = op(0, 250, name="cutlass_80_simt_hgemm_128x128_8x5_nn_align1", **MATMUL)
    assert saves(con, "tensor_cores_unused", trace(slow)) == [150 * US]
    fast = op(0, 250, name="cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x5_nn_align8", **MATMUL)
    assert saves(con, "tensor_cores_unused", trace(fast), run="fast") == []


def test_tiny_kernels(con):
    # 25 kernels of 5 µs that need 1 µs each.
    tiny = [op(10 * i, 5, "elementwise", flops=0, bytes=US * HBM) for i in range(25)]
    assert saves(con, "tiny_kernels", trace(*tiny)) == [25 * 4 * US]
    assert saves(con, "tiny_kernels", trace(*tiny[:19]), run="few") == []
    larger = [op(10 * i, 5, "elementwise", flops=0, bytes=3 * US * HBM) for i in range(25)]
    assert saves(con, "tiny_kernels", trace(*larger), run="larger") == []


def adam(parameters, start=100):
    """Eight kernels a parameter that move 2, 2, 3, 4, 2, 2, 2 and 4 tensors of 1 µs, each in twice its time."""
    names = (
        ("mul_", 2),
        ("mul_", 2),
        ("add_", 3),
        ("addcmul_", 4),
        ("sqrt", 2),
        ("div_", 2),
        ("add_", 2),
        ("addcdiv_", 4),
    )
    at, ops = start, []
    for _ in range(parameters):
        for name, tensors in names:
            ops.append(
                op(at, 2 * tensors, "elementwise", framework_op=f"aten::{name}", flops=0, bytes=tensors * US * HBM)
            )
            at += 2 * tensors
    return ops


def test_unfused_optimizer(con):
    # Five parameters: 40 kernels, 105 µs of traffic in 210. A fused Adam moves 7 of 21 tensors: two thirds go, 70 µs of
    # traffic and 70 of inefficiency. The gap is 105 µs, which is the most that is promised.
    span = event(99, 500, "annotation", "Optimizer.step#Adam.step")
    stored(con, trace(*adam(5), host=[span]))
    ((saved, what, evidence),) = found(con, "unfused_optimizer")
    assert saved == 105 * US
    assert '"drawn_ns":{"kernel_inefficiency":70000,"memory_bound":35000}' in evidence.replace(" ", "")
    assert "40 kernels a step" in what
    assert "33% of the bytes" in what
    assert saves(con, "unfused_optimizer", trace(*adam(3), host=[span]), run="few kernels") == []
    assert saves(con, "unfused_optimizer", trace(*adam(5)), run="no optimizer") == []


def test_fusion(con):
    # Three kernels on 1,676,000 elements of 2 bytes, 1 µs a pass: mul reads one and writes one (2 µs bound, takes 4), gelu
    # the same, add reads two and writes one (3 µs bound, takes 6). mul's output is written and read again, and gelu's. Of mul
    # half goes, of gelu all, of add a third: 1 + 2 + 1 µs of traffic, and as much inefficiency.
    shape = "[[1676000]]"
    one = {"flops": 0, "bytes": 2 * US * HBM, "shapes": shape}
    two = {"flops": 0, "bytes": 3 * US * HBM, "shapes": "[[1676000],[1676000]]"}
    mul = op(0, 4, "elementwise", framework_op="aten::mul", **one)
    gelu = op(4, 4, "elementwise", framework_op="aten::gelu", **one)
    add = op(8, 6, "elementwise", framework_op="aten::add", **two)
    stored(con, trace(mul, gelu, add))
    ((saved, what, evidence),) = found(con, "fusion")
    # Rest of the gap after 4 µs of inefficiency: 3 of 7 µs, of which the traffic takes 3.
    assert saved == 7 * US
    assert '"alone_ns":8000' in evidence.replace(" ", "")
    assert "3 memory-bound kernels in a row (aten::mul → aten::gelu → aten::add) hand 6.70 MB" in what
    apart = {**gelu, "stream": "8"}
    other = {**gelu, "shapes": "[[1000]]"}
    between = op(4, 0.5, **MATMUL)
    assert saves(con, "fusion", trace(mul, apart), run="streams") == []
    assert saves(con, "fusion", trace(mul, other), run="sizes") == []
    assert saves(con, "fusion", trace(mul, between, {**gelu, "start_ns": 5 * US}), run="between") == []


def test_unfused_attention(con):
    # Scores [2,8,512,512]: a softmax of 10 µs bound in 30, a mask added in 10 of 10 µs; a product is not counted.
    scores = "[[2,8,512,512]]"
    ops = [
        op(0, 10, "elementwise", flops=0, bytes=10 * US * HBM, shapes=scores),
        op(10, 30, "softmax", flops=0, bytes=10 * US * HBM, shapes=scores),
        op(40, 150, **MATMUL),
    ]
    # 20 µs of inefficiency, and 20 of traffic, all within a gap of 70.
    assert saves(con, "unfused_attention", trace(*ops)) == [40 * US]
    small = [{**o, "shapes": "[[2,8,64,64]]"} if o.get("shapes") else o for o in ops]
    assert saves(con, "unfused_attention", trace(*small), run="small") == []
    wide = [{**o, "shapes": "[[4096,32000]]"} if o.get("shapes") else o for o in ops]
    assert saves(con, "unfused_attention", trace(*wide), run="softmax of a vocabulary") == []


def product(start, dur, m, k, n, *, name="k"):
    flops = 2 * m * k * n
    return op(
        start,
        dur,
        name=name,
        dtype="bf16",
        flops=flops,
        bytes=0,
        framework_op="aten::mm",
        shapes=f"[[{m},{k}],[{k},{n}]]",
    )


def test_matmul_alignment(con):
    # Aligned: 2 · 4096 · 1024 · 8000 FLOPs are 67,828 ns at peak, run in twice that. With 8001 columns 67,836 ns, run in
    # 200 µs: at the 50% of the aligned product it would take 135,672.
    aligned = product(0, 135.656, 4096, 1024, 8000)
    odd = product(200, 200, 4096, 1024, 8001)
    least = 67_836
    stored(con, trace(aligned, odd))
    ((saved, what, _),) = found(con, "matmul_alignment")
    assert saved == pytest.approx(200 * US - 2 * least, abs=2)
    assert "N = 8001 is no multiple of 16 bytes in bf16" in what
    assert what.endswith("pad it to 8064")
    assert saves(con, "matmul_alignment", trace(aligned, product(200, 200, 4096, 1024, 8008)), run="aligned") == []
    assert saves(con, "matmul_alignment", trace(aligned, product(200, 130, 4096, 1024, 8001)), run="as fast") == []


def test_tile_quantisation(con):
    # 1408 x 1664 with tiles of 128 x 128: 11 · 13 = 143 tiles on 132 SMs, so a second wave for 11 tiles: 143 of 264 slots,
    # 54% of the peak. k = 16384 makes 77,592 ns at peak, 143,248 with the waves.
    tiled = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
    peak = round(2 * 1408 * 16384 * 1664 / 989.4e3)
    slow = product(0, 160, 1408, 16384, 1664, name=tiled)
    stored(con, trace(slow))
    ((saved, what, _),) = found(con, "tile_quantisation")
    assert saved == pytest.approx(peak * 264 / 143 - peak, abs=1)
    assert "143 tiles of 128 x 128 on 132 SMs" in what
    full = product(0, 160, 1408, 16384, 1536, name=tiled)  # 11 · 12 = 132 tiles: one full wave
    assert saves(con, "tile_quantisation", trace(full), run="full") == []
    unnamed = product(0, 160, 1408, 16384, 1664, name="nvjet")
    assert saves(con, "tile_quantisation", trace(unnamed), run="tile not known") == []
    faster = product(0, 120, 1408, 16384, 1664, name=tiled)
    assert saves(con, "tile_quantisation", trace(faster), run="faster than its waves") == []


def test_layout_copies(con):
    # 60 of 260 µs only move data: 40 µs of traffic with a bound, 20 of unknown cost.
    moved = op(200, 50, "data_movement", flops=0, bytes=40 * US * HBM)
    cast = op(250, 10, "elementwise", framework_op="aten::copy_")
    # The gap: 100 of the product, 10 of the move, 10 unknown: all 10 + 40 + 10.
    assert saves(con, "layout_copies", trace(op(0, 200, **MATMUL), moved, cast)) == [60 * US]
    few = op(200, 5, "data_movement", flops=0, bytes=US * HBM)
    assert saves(con, "layout_copies", trace(op(0, 200, **MATMUL), few), run="few") == []


def test_small_batch(con):
    # Products of 10 µs arithmetic and 50 µs of weights: 40 µs each are memory's. They take 60; the gap is 10 each.
    starved = [op(60 * i, 60, dtype="bf16", flops=10 * US * BF16, bytes=50 * US * HBM) for i in range(3)]
    stored(con, trace(*starved))
    ((saved, what, evidence),) = found(con, "small_batch")
    assert saved == 3 * 10 * US
    assert '"alone_ns":120000' in evidence.replace(" ", "")
    assert "59 FLOP a byte where the part needs 295" in what
    fed = [{**o, "flops": 50 * US * BF16} for o in starved]
    assert saves(con, "small_batch", trace(*fed), run="balanced") == []


def test_contention(con):
    # A product takes 100 µs alone and 130 beside communication, three times each.
    alone = [op(200 * i, 100, **MATMUL) for i in range(3)]
    beside = [op(1000 + 200 * i, 130, **MATMUL) for i in range(3)]
    comm = op(999, 600, "collective", stream="8")
    stored(con, trace(*alone, *beside, comm, comm=[{"message_bytes": 10**6}]))
    ((saved, what, _),) = found(con, "contention")
    assert saved == 3 * 30 * US
    assert "the same kernels take 30% longer" in what
    same = [op(1000 + 200 * i, 100, **MATMUL) for i in range(3)]
    assert saves(con, "contention", trace(*alone, *same, comm, comm=[{"message_bytes": 10**6}]), run="same") == []


def test_slow_device(con):
    # Three ranks take 150, 150 and 180 µs for the same: the third 30 µs more, which is 10 in the mean over devices.
    ranks = [trace(op(0, dur, **MATMUL), rank=r, world_size=3) for r, dur in enumerate((150, 150, 180))]
    stored(con, *ranks)
    ((saved, what, _),) = found(con, "slow_device")
    assert saved == 10 * US
    assert what.startswith("rank 2 takes 20.0% longer")
    alike = [trace(op(0, dur, **MATMUL), rank=r, world_size=3) for r, dur in enumerate((150, 150, 152))]
    assert saves(con, "slow_device", *alike, run="alike") == []


def marked(durations):
    ops = [op(1000 * i, dur, **MATMUL) for i, dur in enumerate([*durations, 100])]
    return trace(*ops, steps=[(i, 1000 * i - 1, 1000) for i in range(len(durations) + 1)])


def test_falling_clocks(con):
    # Six whole steps of 1 ms: 120, 120, 140, 140, 160, 160. The typical ones are the two in the middle, 140: 20 slower than
    # at first.
    stored(con, marked([120, 120, 140, 140, 160, 160]))
    ((saved, what, _),) = found(con, "falling_clocks")
    assert saved == 20 * US
    assert "33.3% longer in the last third" in what
    assert saves(con, "falling_clocks", marked([120, 160, 120, 160, 120, 160]), run="no trend") == []
    assert saves(con, "falling_clocks", marked([120, 120, 160, 160]), run="few steps") == []


# --- whole buckets, of the run that conftest describes: 1 ms a step; what beats its bound takes 10 of 140 µs ----------


@pytest.mark.parametrize(
    ("kind", "us"),
    [("input", [100]), ("synchronisation", [50]), ("host", [100]), ("launch_gaps", [40]), ("copies", [50]), ("waiting", [40]),
     ("slow_communication", [60]), ("slow_operations", [100, 30])],
)  # fmt: skip
def test_buckets(con, make_run, kind, us):
    join.prepare(con)
    make_run()
    assert [row[0] for row in found(con, kind, "job/mon")] == [n * US for n in us]
    con.execute(
        "update steps set idle_input_ns = 0, idle_sync_ns = 0, idle_host_ns = 0, idle_gap_ns = 0, idle_unknown_ns = idle_ns, "
        "exposed_copy_ns = 0"
    ).fetchall()
    con.execute("delete from comm_windows").fetchall()
    con.execute("delete from op_parts").fetchall()
    assert found(con, kind, "job/mon") == []


def test_pipeline(con, make_run, anew):
    join.prepare(con)
    make_run()
    assert found(con, "pipeline", "job/mon") == []
    con.execute("update comm_windows set pipeline_ns = wait_ns, wait_ns = 0").fetchall()
    anew()
    assert [row[0] for row in found(con, "pipeline", "job/mon")] == [40 * US]


def test_recomputation(con, make_run):
    # The model needs half of the 200 GFLOP that its products do in 200 µs at peak.
    join.prepare(con)
    make_run()
    assert found(con, "recomputation", "job/mon") == []
    con.execute("update step_theory set model_flops = 100e9").fetchall()
    assert [row[0] for row in found(con, "recomputation", "job/mon")] == [100 * US]


# --- communication ----------------------------------------------------------------------------------------------------

SWITCH = collectives.Fabric.switch(hardware.get("h100_sxm"))


def predicted_ns(message_bytes, ranks=2, kind=CollectiveKind.ALL_REDUCE):
    return collectives.predict(kind, message_bytes, ranks, SWITCH).total_ns


def test_small_messages(con):
    # 20 all-reduces of 1 MB over 2 ranks, each alone for 50 µs: all they take beyond their minimum, and of that what one of
    # 20 MB does not need.
    small = 10**6
    assert small < collectives.latency_bound_below_bytes(CollectiveKind.ALL_REDUCE, 2, SWITCH)
    each, once = predicted_ns(small), predicted_ns(20 * small)
    ops = [op(100 * i, 50, "collective") for i in range(20)]
    stored(con, trace(*ops, op(2000, 500, "custom"), comm=[{"message_bytes": small, "seq": i} for i in range(20)]))
    ((saved, what, _),) = found(con, "small_messages")
    assert saved == pytest.approx(20 * (50 * US - each) + 20 * each - once, abs=1)
    assert "20 all_reduce a step over 2 ranks are of 1.00 MB on average" in what
    few = trace(*ops[:3], op(2000, 500, "custom"), comm=[{"message_bytes": small, "seq": i} for i in range(3)])
    assert saves(con, "small_messages", few, run="few") == []
    large = trace(*ops, op(2000, 500, "custom"), comm=[{"message_bytes": 10**7, "seq": i} for i in range(20)])
    assert saves(con, "small_messages", large, run="large") == []


def test_not_overlapped(con):
    # 45 MB alone for 200 µs, then 500 µs of compute without communication: its minimum could be hidden.
    message = [{"message_bytes": 45_000_000}]
    one = trace(op(0, 200, "collective"), op(200, 500, "custom"), comm=message)
    assert saves(con, "not_overlapped", one) == [predicted_ns(45_000_000)]
    hidden = trace(op(0, 200, "collective", stream="8"), op(10, 500, "custom"), comm=message)
    assert saves(con, "not_overlapped", hidden, run="hidden") == []
    # Only 50 µs of compute: no more can be hidden.
    short = trace(op(0, 200, "collective"), op(200, 50, "custom"), comm=message)
    assert saves(con, "not_overlapped", short, run="short") == [50 * US]


def test_slow_algorithm(con):
    # 450 MB need about 1 ms; the two calls take 3 and 3.3.
    least = predicted_ns(450_000_000)
    messages = [{"message_bytes": 450_000_000, "seq": i} for i in range(2)]
    slow = trace(op(0, 3000, "collective"), op(4000, 3300, "collective"), comm=messages)
    assert saves(con, "slow_algorithm", slow) == [6300 * US - 2 * least]
    once = trace(op(0, 3000, "collective"), op(4000, 1300, "collective"), comm=messages)
    assert saves(con, "slow_algorithm", once, run="one of them is fast") == []


def late(second_us, kind="all_reduce", sizes=(10**6, 10**6)):
    """Two ranks, of which the second comes later; both end together."""
    return [
        trace(
            op(0, 10, "custom"), op(100 + start, 300 - start, "collective"), rank=r, world_size=2,
            comm=[{"collective": kind, "message_bytes": size, "seq": 0}],
        )
        for r, (start, size) in enumerate(zip((0, second_us), sizes, strict=True))
    ]  # fmt: skip


def test_waiting_and_the_late_rank(con):
    # Rank 0 waits 60 µs: 30 in the mean over two devices. That the late rank is named leaves nothing to the general finding.
    stored(con, *late(60))
    assert [row[0] for row in found(con, "waiting")] == [30 * US]
    assert [row[0] for row in found(con, "late_rank")] == [30 * US]
    finding.find(con, "run")
    kinds = con.execute("select kind, saves_ns from findings where saves_ns is not null").fetchall()
    assert ("late_rank", 30 * US) in kinds
    assert "waiting" not in dict(kinds)
    assert saves(con, "late_rank", *late(0), run="together") == []


def test_expert_imbalance(con):
    # Rank 1 sends 30 MB where rank 0 sends 10: 1.5 times the mean, and comes 60 µs later.
    stored(con, *late(60, "all_to_all", (10**7, 3 * 10**7)))
    ((saved, what, _),) = found(con, "expert_imbalance")
    assert saved == 30 * US
    assert "rank 1 sends 1.5 times the mean" in what
    assert saves(con, "expert_imbalance", *late(60, "all_to_all"), run="even") == []


def test_slow_communication_leaves_to_specific_findings_what_they_explain(con):
    least = predicted_ns(450_000_000)
    stored(con, trace(op(0, 3000, "collective"), comm=[{"message_bytes": 450_000_000}]))
    assert [row[0] for row in found(con, "slow_communication")] == [3000 * US - least]
    finding.find(con, "run")
    kinds = dict(con.execute("select kind, saves_ns from findings where saves_ns is not null").fetchall())
    assert kinds["slow_algorithm"] == 3000 * US - least
    assert "slow_communication" not in kinds


def test_unpredicted_communication(con):
    stored(con, trace(op(0, 100, "collective"), op(100, 100, "custom"), comm=[{"message_bytes": None}]))
    ((saved, what, _),) = found(con, "unpredicted_communication")
    assert saved is None
    assert (
        what
        == "what 100 µs a step (50%) of exposed communication should take is not known, most of it because: unknown size"
    )
    known = trace(op(0, 100, "collective"), op(100, 100, "custom"), comm=[{"message_bytes": 10**6}])
    assert saves(con, "unpredicted_communication", known, run="known") == []


def test_uncertain_clocks(con):
    stored(con, *late(60))
    con.execute("update traces set clock_residual_ns = 40000").fetchall()
    assert "disagree by up to 40.0 µs" in found(con, "uncertain_clocks")[0][1]
    con.execute("update traces set clock_residual_ns = 1000").fetchall()
    assert found(con, "uncertain_clocks") == []


# --- idle -------------------------------------------------------------------------------------------------------------


def gapped(kernels, gap_us=10, dur_us=5, **launch):
    """Kernels with a pause after each, in which the host has not launched the next."""
    return [op((gap_us + dur_us) * i, dur_us, "custom", **launch) for i in range(kernels)]


def test_launch_bound(con):
    # 30 pauses of 10 µs, of which the last 10 ns are after the launch began.
    stored(con, trace(*gapped(31)))
    ((saved, what, evidence),) = found(con, "launch_bound")
    assert saved == 30 * 10 * US
    assert '"drawn_ns":{"idle_host":299700,"idle_gap":300}' in evidence.replace(" ", "")
    assert what.startswith("30 times a step the device waits less than 50 µs (10.0 µs on average)")
    assert saves(con, "launch_bound", trace(*gapped(11)), run="few") == []
    assert saves(con, "launch_bound", trace(*gapped(31, gap_us=60)), run="long") == []
    queued = [{**o, "launch_ns": o["start_ns"] - 200 * US} for o in gapped(31)]
    assert saves(con, "launch_bound", trace(*queued), run="launched long before") == []


def test_launch_bound_leaves_what_the_host_did_otherwise(con):
    stored(con, trace(*gapped(31)))
    idle(con, "idle_host", "garbage_collection", 299_000, gaps=29)
    # What is not told may be launching: 700 ns of idle_host, and the 300 after the launch; less than 3% of the step.
    assert found(con, "launch_bound") == []


@pytest.mark.parametrize(
    ("kind", "activity"),
    [
        ("garbage_collection", "garbage_collection"),
        ("allocation", "allocation"),
        ("compilation", "compilation"),
        ("blocking_copies", "copy"),
    ],
)
def test_activities_of_the_host(con, kind, activity):
    # 99,990 ns of idle_host; 60 µs of it are told, the rest is left to the general finding.
    stored(con, trace(op(0, 10, "custom"), op(110, 10, "custom")))
    idle(con, "idle_host", activity, 60 * US)
    assert [row[0] for row in found(con, kind)] == [60 * US]
    finding.find(con, "run")
    kinds = con.execute("select kind, saves_ns, what from findings where saves_ns is not null").fetchall()
    general = next(row for row in kinds if row[0] == "host")
    assert general[1] == 99_990 - 60 * US
    assert "idles 100 µs a step" in general[2]
    assert general[2].endswith("; 40.0 µs of it are in no other finding")
    idle(con, "idle_host", "operator", 60 * US)
    assert found(con, kind) == []


def test_device_reads(con):
    # The host sits 50 µs in .item(), of which the device idles 39,990 ns before the next launch begins.
    read = [event(60, 50, "op", "aten::_local_scalar_dense"), event(60, 50, "sync", "cudaStreamSynchronize")]
    stored(con, trace(op(0, 70, "custom"), op(110, 100, "custom"), host=read))
    ((saved, what, _),) = found(con, "device_reads")
    assert saved == 39_990
    assert what.startswith(".item(), 1 times a step")
    elsewhere = [read[1], event(60, 50, "op", "aten::add")]
    assert (
        saves(con, "device_reads", trace(op(0, 70, "custom"), op(110, 100, "custom"), host=elsewhere), run="sync") == []
    )


def test_pageable_copies(con):
    copies = [
        op(0, 60, "copy", name="Memcpy HtoD (Pageable -> Device)"),
        op(60, 40, "copy", name="Memcpy HtoD (Pinned -> Device)"),
    ]
    assert saves(
        con, "pageable_copies", trace(op(0, 1, "custom"), *[{**c, "start_ns": c["start_ns"] + US} for c in copies])
    ) == [60 * US]
    assert saves(con, "pageable_copies", trace(op(0, 1, "custom"), copies[1]), run="pinned") == []


def test_unknown_idle(con):
    stored(con, trace(op(0, 100, "custom", launch_ns=None), op(200, 100, "custom", launch_ns=None)))
    assert "the device idles 100 µs a step (33%)" in found(con, "unknown_idle")[0][1]
    assert saves(con, "unknown_idle", trace(op(0, 100, "custom"), op(200, 100, "custom")), run="told") == []


# --- trust ------------------------------------------------------------------------------------------------------------


def test_opaque_graphs(con):
    stored(con, trace(op(0, 50, "graph"), op(50, 50, "custom")))
    assert found(con, "opaque_graphs")[0][1].startswith("50% of compute is 1 graph launches a step")
    assert saves(con, "opaque_graphs", trace(op(0, 1, "graph"), op(1, 50, "custom")), run="little") == []


def test_profiler_overhead(con):
    spans = [
        event(10, 20, "overhead", "CUPTI: Buffer flush"),
        event(40, 30, "overhead", "Runtime Triggered Module Loading"),
    ]
    stored(con, trace(op(0, 100, "custom"), host=spans))
    assert "20.0 µs of host time a step (20%, most in CUPTI: Buffer flush)" in found(con, "profiler_overhead")[0][1]
    after = trace(op(0, 100, "custom"), host=[event(200, 20, "overhead", "CUPTI: Buffer flush")])
    assert saves(con, "profiler_overhead", after, run="after") == []


def test_loading_code_is_not_compiling(con):
    stored(con, trace(op(0, 10, "custom"), op(110, 10, "custom")))
    idle(con, "idle_host", "compilation", 60 * US, name="Runtime Triggered Module Loading")
    assert [row[0] for row in found(con, "module_loading")] == [60 * US]
    assert found(con, "compilation") == []
    idle(con, "idle_host", "compilation", 60 * US, name="backend_compile")
    assert found(con, "module_loading") == []


def test_the_host_says_what_it_did_instead(con):
    stored(con, trace(op(0, 10, "custom"), op(110, 10, "custom")))
    idle(con, "idle_host", "operator", 80 * US, name="aten::add")
    ((saved, what, _),) = found(con, "host")
    assert saved == 99_990
    assert what == (
        "the device idles 100 µs a step (83.3%) because the host has not begun to launch; "
        "most of it (80%) in operators (longest in aten::add)"
    )
    con.execute("delete from idle_causes").fetchall()
    assert found(con, "host")[0][1].endswith("has not begun to launch")
    assert saves(con, "host", trace(op(0, 10, "custom"), op(10, 10, "custom")), run="busy") == []


def test_python_recorded(con):
    calls = [event(i / 20, 0.01, "python", "f.py(1): f") for i in range(1500)]
    stored(con, trace(op(0, 10, "custom"), op(110, 10, "custom"), host=calls))
    assert found(con, "python_recorded")[0][1].startswith("the trace records 1500 Python calls a step")
    assert saves(con, "python_recorded", trace(op(0, 10, "custom"), op(11, 10, "custom"), host=calls), run="busy") == []


def test_uneven_steps(con):
    # Windows of 1000, 1000, 2000 and 1000 µs.
    starts = (0, 1000, 2000, 4000, 5000)
    ops = [op(s, 100, "custom") for s in starts]
    marks = [(i, s - 1, 900) for i, s in enumerate(starts)]
    stored(con, trace(*ops, steps=marks))
    ((_, what, _),) = found(con, "uneven_steps")
    assert what.startswith("1 of 4 steps take more than 1.2 times the typical 1.00 ms, the slowest 2.00 ms (step 2)")
    assert saves(con, "uneven_steps", marked([100] * 5), run="even") == []


def test_recompilation(con):
    ops = [op(1000 * i, 100, "custom") for i in range(5)]
    stored(con, trace(*ops, steps=[(i, 1000 * i - 1, 1000) for i in range(5)]))
    con.execute("delete from idle_causes").fetchall()

    def compiles(step):
        row = {
            "trace_id": "run0",
            "device_id": "0",
            "cause": "idle_host",
            "activity": "compilation",
            "name": "inductor",
        }
        store.insert_row(con, "idle_causes", row | {"step": step, "idle_ns": 50 * US, "gaps": 1})

    compiles(0)
    compiles(2)
    assert found(con, "recompilation") == []  # the first step may
    compiles(3)
    ((_, what, _),) = found(con, "recompilation")
    assert what.startswith("the device waits for the host to compile in 2 of 5 steps, 100 µs in all (most in inductor)")


def test_memory_nearly_full(con):
    def with_peak(gb):
        samples = [{"device_id": "0", "name": "reserved_bytes", "ts_ns": 1, "value": gb * 1e9}]
        return trace(op(0, 100, "custom"), counters=samples, properties={"memory_bytes": 80e9})

    stored(con, with_peak(79))
    assert "reserves 79.0 GB of 80.0 GB" in found(con, "memory_nearly_full")[0][1]
    assert saves(con, "memory_nearly_full", with_peak(60), run="room") == []

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models import hardware, limits, roofline, silicon
from tracegap.models.errors import NoFormula
from tracegap.models.limits import PRECISIONS

V5E, V5P, H100, A100 = (hardware.get(chip_id) for chip_id in ("tpu_v5e", "tpu_v5p", "h100_sxm", "a100_sxm_80"))


def test_ridges_of_every_memory() -> None:
    # v5e: 197 TFLOP/s over 819 GB/s, over 22 times that, over 16 GB/s of the host
    assert [each.name for each in limits.levels(V5E)] == ["VMEM", "HBM", "ICI", "host"]
    assert limits.ridge(V5E) == pytest.approx(240.5, rel=1e-3)
    assert limits.ridge(V5E, memory="VMEM") == pytest.approx(240.5 / 22, rel=1e-3)  # the book: about 11
    assert limits.ridge(V5E, memory="host") == pytest.approx(12_312, rel=1e-3)
    assert limits.ridge(H100, "fp8") == pytest.approx(2 * limits.ridge(H100), rel=1e-3)
    with pytest.raises(NoFormula, match="known are HBM, ICI, host"):
        limits.ridge(V5P, memory="VMEM")
    with pytest.raises(NoFormula, match="no peak in fp4"):
        limits.ridge(V5P, "fp4")


def test_critical_batches_of_mixed_precisions() -> None:
    # Scaling Book, chapters 1 and 7: 240 tokens on v5e in bf16, half of it with int8 weights, the same again in int8
    batches = {name: limits.critical_batch(V5E, PRECISIONS[name]) for name in ("bf16", "w8a16", "w8a8", "w4a16")}
    assert batches["bf16"] == pytest.approx(240.5, rel=1e-3)
    assert batches["w8a16"] == pytest.approx(batches["bf16"] / 2)
    assert batches["w8a8"] == pytest.approx(batches["bf16"])
    assert batches["w4a16"] == pytest.approx(batches["bf16"] / 4)
    assert limits.critical_batch(V5E, experts=256, active=8) == pytest.approx(32 * batches["bf16"])


def test_each_memory_is_a_limit_of_its_own() -> None:
    # 197 GFLOP, 819 MB of HBM, 160 MB from the host, 18 GB in VMEM: each of them alone takes 1, 1, 10 and 1 ms
    found = limits.bounds(V5E, 197e9, {"HBM": 819e6, "host": 160e6, "VMEM": 18.018e9})
    assert dict(found.terms) == {"math": 10**6, "HBM": 10**6, "host": 10**7, "VMEM": 10**6}
    assert (found.lower_ns, found.upper_ns, found.bound) == (10**7, 13 * 10**6, "host")
    assert limits.bounds(V5E, 0, {}, comm_ns=5).bound == "comm"
    with pytest.raises(NoFormula, match="no bandwidth of L3"):
        limits.bounds(V5E, 1, {"L3": 1})


@given(st.floats(0, 1e18), st.dictionaries(st.sampled_from(["HBM", "host", "VMEM", "ICI"]), st.floats(0, 1e15)))
def test_one_more_memory_is_never_faster(flops: float, moved: dict[str, float]) -> None:
    whole = limits.bounds(V5E, flops, moved)
    assert whole.lower_ns <= whole.upper_ns <= len(whole.terms) * whole.lower_ns
    for name in moved:
        less = limits.bounds(V5E, flops, {key: value for key, value in moved.items() if key != name})
        assert less.lower_ns <= whole.lower_ns
    if set(moved) <= {"HBM"}:
        simple = roofline.predict(flops, moved.get("HBM", 0), 1.97e14, 8.19e11)
        assert simple is not None
        assert (simple.lower_ns, simple.upper_ns) == (whole.lower_ns, whole.upper_ns)


def test_a_product_by_cause() -> None:
    # 109 tiles of 128 x 128 on 108 SMs of 312 TFLOP/s: half of the slots of two waves are busy, nothing is padded
    tiles = limits.matmul_time(A100, 109 * 128, 4096, 128)
    math_s = 2 * 109 * 128 * 4096 * 128 / 312e12
    assert tiles.t_math_ns == pytest.approx(math_s * 1e9, abs=1)
    assert tiles.padding_ns == 0
    assert tiles.waves_ns == pytest.approx(math_s * 1e9 * (216 / 109 - 1), abs=2)
    # a head of 64 fills half of the systolic array's columns
    head = limits.matmul_time(V5P, 4096, 4096, 64)
    assert (head.padding_ns, head.waves_ns) == (pytest.approx(head.t_math_ns, abs=1), 0)
    # a token: the weights' bytes count, and their dtype
    one = [limits.matmul_time(H100, 1, 8192, 8192, precision=PRECISIONS[name]) for name in ("bf16", "w4a16")]
    assert one[0].bound == one[1].bound == "memory"
    assert one[0].t_mem_ns / one[1].t_mem_ns == pytest.approx(4, rel=2e-3)
    tiny = limits.matmul_time(H100, 64, 64, 64)
    assert (tiny.bound, tiny.reachable_ns) == ("launch", 2000)


@given(
    chip=st.sampled_from(sorted(hardware.catalogue())),
    sizes=st.tuples(*[st.integers(1, 20_000)] * 3),
    batch=st.integers(1, 64),
)
def test_a_product_lies_between_its_bounds(chip: str, sizes: tuple[int, int, int], batch: int) -> None:
    part = hardware.get(chip)
    dtype = next(d for d in ("bf16", "fp16", "fp32") if part.device_flops_per_s(d))
    precision = limits.Precision(weights=dtype, activations=dtype, out=dtype, math=dtype)
    time = limits.matmul_time(part, *sizes, batch=batch, precision=precision)
    assert time.lower_ns <= time.reachable_ns <= time.upper_ns
    lost = silicon.matmul_quantisation(part, *sizes, batch=batch, dtype=dtype)
    assert 0 < lost.efficiency <= min(lost.padding, lost.waves) <= 1
    # time x peak is never less than the FLOPs
    peak = precision.peak(part)
    assert (time.reachable_ns + 1) / 1e9 * peak >= 2 * batch * sizes[0] * sizes[1] * sizes[2] * (1 - 1e-9)


@given(st.sampled_from(sorted(hardware.catalogue())))
def test_memories_are_ordered_and_positive(chip: str) -> None:
    rates = [each.bytes_per_s for each in limits.levels(hardware.get(chip))]
    assert rates == sorted(rates, reverse=True)
    assert min(rates) > 0

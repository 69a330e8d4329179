import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models import hardware, roofline, silicon
from tracegap.models.errors import NoFormula
from tracegap.models.roofline import PRECISIONS

amounts = st.integers(0, 10**15)
rates = st.floats(1e9, 1e16)


@given(amounts, amounts, rates, rates, st.none() | st.integers(0, 10**9))
def test_bounds(flops: int, moved: int, peak: float, bandwidth: float, comm_ns: int | None) -> None:
    prediction = roofline.predict(flops, moved, peak, bandwidth, comm_ns)
    assert prediction is not None
    terms = [t for t in (prediction.t_math_ns, prediction.t_mem_ns, prediction.t_comm_ns) if t is not None]
    assert max(terms) == prediction.lower_ns <= prediction.upper_ns == sum(terms)
    assert prediction.upper_ns <= len(terms) * prediction.lower_ns


@given(amounts, amounts, rates, rates, st.floats(1, 100))
def test_more_of_a_rate_is_never_slower(flops: int, moved: int, peak: float, bandwidth: float, more: float) -> None:
    slow = roofline.predict(flops, moved, peak, bandwidth)
    assert slow is not None
    for faster in (
        roofline.predict(flops, moved, peak * more, bandwidth),
        roofline.predict(flops, moved, peak, bandwidth * more),
    ):
        assert faster is not None
        assert faster.lower_ns <= slow.lower_ns


def test_the_larger_term_is_named() -> None:
    # 2e12 FLOPs at 1e15 in 2 ms, 9e9 bytes at 3e12 in 3 ms
    prediction = roofline.predict(2e12, 9e9, 1e15, 3e12)
    assert prediction == roofline.Prediction(
        t_math_ns=2_000_000, t_mem_ns=3_000_000, t_comm_ns=None, lower_ns=3_000_000, upper_ns=5_000_000, bound="memory"
    )
    slow_link = roofline.predict(2e12, 9e9, 1e15, 3e12, comm_ns=4_000_000)
    assert slow_link is not None
    assert (slow_link.bound, slow_link.lower_ns) == ("comm", 4_000_000)


def test_unknown_is_not_zero() -> None:
    assert roofline.predict(None, None, 1e15, 3e12) is None
    assert roofline.predict(1e12, None, None, 3e12) is None
    only_bytes = roofline.predict(None, 3e9, None, 3e12)
    assert only_bytes is not None
    assert (only_bytes.t_math_ns, only_bytes.lower_ns, only_bytes.bound) == (None, 1_000_000, "memory")
    # No arithmetic takes no time, whether or not the peak is known.
    copy = roofline.predict(0, 3e9, None, 3e12)
    assert copy is not None
    assert copy.t_math_ns == 0


@given(st.integers(1, 4096), st.integers(1, 4096), st.sampled_from([0.5, 1, 2, 4]), rates, rates)
def test_at_the_critical_batch_arithmetic_and_traffic_take_equally_long(
    width: int, ffn: int, element: float, peak: float, bandwidth: float
) -> None:
    batch = roofline.critical_batch_exact_tokens(
        D=width, F=ffn, act_bytes=element, weight_bytes=element, out_bytes=element,
        peak_flops_per_s=peak, hbm_bytes_per_s=bandwidth,
    )  # fmt: skip
    if batch == float("inf"):
        # Not even an endless batch reaches the ridge.
        assert roofline.matmul_intensity(B=1e12, D=width, F=ffn, bytes_per_elem=element) <= peak / bandwidth
    else:
        intensity = roofline.matmul_intensity(B=batch, D=width, F=ffn, bytes_per_elem=element)
        assert abs(intensity * bandwidth / peak - 1) < 1e-6


V5E, V5P, H100, A100 = (hardware.get(chip_id) for chip_id in ("tpu_v5e", "tpu_v5p", "h100_sxm", "a100_sxm_80"))


def test_ridges_of_every_memory() -> None:
    # v5e: 197 TFLOP/s over 819 GB/s, over 22 times that, over 16 GB/s of the host
    assert [each.name for each in roofline.levels(V5E)] == ["VMEM", "HBM", "ICI", "host"]
    assert roofline.ridge(V5E) == pytest.approx(240.5, rel=1e-3)
    assert roofline.ridge(V5E, memory="VMEM") == pytest.approx(240.5 / 22, rel=1e-3)  # the book: about 11
    assert roofline.ridge(V5E, memory="host") == pytest.approx(12_312, rel=1e-3)
    assert roofline.ridge(H100, "fp8") == pytest.approx(2 * roofline.ridge(H100), rel=1e-3)
    with pytest.raises(NoFormula, match="known are HBM, ICI, host"):
        roofline.ridge(V5P, memory="VMEM")
    with pytest.raises(NoFormula, match="no peak in fp4"):
        roofline.ridge(V5P, "fp4")


def test_critical_batches_of_mixed_precisions() -> None:
    # Scaling Book, chapters 1 and 7: 240 tokens on v5e in bf16, half of it with int8 weights, the same again in int8
    batches = {name: roofline.critical_batch(V5E, PRECISIONS[name]) for name in ("bf16", "w8a16", "w8a8", "w4a16")}
    assert batches["bf16"] == pytest.approx(240.5, rel=1e-3)
    assert batches["w8a16"] == pytest.approx(batches["bf16"] / 2)
    assert batches["w8a8"] == pytest.approx(batches["bf16"])
    assert batches["w4a16"] == pytest.approx(batches["bf16"] / 4)
    assert roofline.critical_batch(V5E, experts=256, active=8) == pytest.approx(32 * batches["bf16"])


def test_a_product_by_cause() -> None:
    # 109 tiles of 128 x 128 on 108 SMs of 312 TFLOP/s: half of the slots of two waves are busy, nothing is padded
    tiles = roofline.matmul_time(A100, 109 * 128, 4096, 128)
    math_s = 2 * 109 * 128 * 4096 * 128 / 312e12
    assert tiles.t_math_ns == pytest.approx(math_s * 1e9, abs=1)
    assert tiles.padding_ns == 0
    assert tiles.waves_ns == pytest.approx(math_s * 1e9 * (216 / 109 - 1), abs=2)
    # a head of 64 fills half of the systolic array's columns
    head = roofline.matmul_time(V5P, 4096, 4096, 64)
    assert (head.padding_ns, head.waves_ns) == (pytest.approx(head.t_math_ns, abs=1), 0)
    # a token: the weights' bytes count, and their dtype
    one = [roofline.matmul_time(H100, 1, 8192, 8192, precision=PRECISIONS[name]) for name in ("bf16", "w4a16")]
    assert one[0].bound == one[1].bound == "memory"
    assert one[0].t_mem_ns / one[1].t_mem_ns == pytest.approx(4, rel=2e-3)
    tiny = roofline.matmul_time(H100, 64, 64, 64)
    assert (tiny.bound, tiny.reachable_ns) == ("launch", 2000)


@given(
    chip=st.sampled_from(sorted(hardware.catalogue())),
    sizes=st.tuples(*[st.integers(1, 20_000)] * 3),
    batch=st.integers(1, 64),
)
def test_a_product_lies_between_its_bounds(chip: str, sizes: tuple[int, int, int], batch: int) -> None:
    part = hardware.get(chip)
    dtype = next(d for d in ("bf16", "fp16", "fp32") if part.device_flops_per_s(d))
    precision = roofline.Precision(weights=dtype, activations=dtype, out=dtype, math=dtype)
    time = roofline.matmul_time(part, *sizes, batch=batch, precision=precision)
    assert time.lower_ns <= time.reachable_ns <= time.upper_ns
    lost = silicon.matmul_quantisation(part, *sizes, batch=batch, dtype=dtype)
    assert 0 < lost.efficiency <= min(lost.padding, lost.waves) <= 1
    # time x peak is never less than the FLOPs
    peak = precision.peak(part)
    assert (time.reachable_ns + 1) / 1e9 * peak >= 2 * batch * sizes[0] * sizes[1] * sizes[2] * (1 - 1e-9)


@given(st.sampled_from(sorted(hardware.catalogue())))
def test_memories_are_ordered_and_positive(chip: str) -> None:
    rates = [each.bytes_per_s for each in roofline.levels(hardware.get(chip))]
    assert rates == sorted(rates, reverse=True)
    assert min(rates) > 0

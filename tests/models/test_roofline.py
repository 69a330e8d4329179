from hypothesis import given
from hypothesis import strategies as st

from tracegap.models import roofline

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

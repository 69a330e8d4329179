import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models.cost import NOTHING, Cost
from tracegap.models.errors import BadShape

counts = st.none() | st.integers(0, 10**18)
costs = st.builds(
    Cost, flops=counts, bytes=counts, dtype=st.none() | st.just("bf16"), note=st.sampled_from([None, "a", "b"])
)


@given(costs, costs, costs)
def test_costs_add_in_any_order(a: Cost, b: Cost, c: Cost) -> None:
    left, right = (a + b) + c, a + (b + c)
    assert (left.flops, left.bytes, left.dtype) == (right.flops, right.bytes, right.dtype)
    swapped = b + a
    assert (swapped.flops, swapped.bytes, swapped.dtype) == ((a + b).flops, (a + b).bytes, (a + b).dtype)


@given(costs)
def test_nothing_is_neutral(a: Cost) -> None:
    assert a + NOTHING == a


def test_what_a_summand_does_not_know_the_sum_does_not_know() -> None:
    known = Cost(flops=3, bytes=5, dtype="fp32")
    total = known + Cost(flops=None, bytes=7, dtype="fp32", note="why")
    assert total == Cost(flops=None, bytes=12, dtype="fp32", note="why")


def test_the_dtype_is_that_of_the_arithmetic() -> None:
    copied = Cost(flops=0, bytes=8, dtype="int64")
    assert (copied + Cost(flops=2, bytes=1, dtype="bf16")).dtype == "bf16"


def test_two_peaks_do_not_add() -> None:
    with pytest.raises(BadShape, match="bf16 and fp32"):
        Cost(flops=1, bytes=1, dtype="bf16") + Cost(flops=1, bytes=1, dtype="fp32")

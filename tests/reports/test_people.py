import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.reports import people


@pytest.mark.parametrize(
    ("ns", "said"),
    [
        (0, "0 ns"),
        (3, "3 ns"),
        (999, "999 ns"),
        (1200, "1.20 µs"),
        (12_000_000, "12.0 ms"),
        (99_960, "100 µs"),
        (412_300_000, "412 ms"),
        (999_600_000, "1.00 s"),
        (4_123_000_000_000, "4120 s"),
        (-27_400_000, "−27.4 ms"),
        (0.25, "0.250 ns"),
        (None, "unknown"),
    ],
)
def test_duration(ns: float | None, said: str) -> None:
    assert people.duration(ns) == said


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (people.signed_duration(27_400_000), "+27.4 ms"),
        (people.signed_duration(-5), "−5 ns"),
        (people.signed_duration(0), "0 ns"),
        (people.percent(0.381), "38.1%"),
        (people.percent(1), "100%"),
        (people.percent(0), "0%"),
        (people.percent(0.00123), "0.123%"),
        (people.percent(None), "unknown"),
        (people.signed_percent(0.102), "+10.2%"),
        (people.count(6000), "6,000"),
        (people.size(21_000_000), "21.0 MB"),
        (people.size(512), "512 B"),
        (people.flops(3.35e12), "3.35 TFLOP"),
        (people.flops_per_s(989.4e12), "989 TFLOP/s"),
        (people.bytes_per_s(3.35e12), "3.35 TB/s"),
        (people.gb_per_s(355.2), "355 GB/s"),
        (people.gb_per_s(None), "unknown"),
        (people.intensity(128.04), "128 FLOP/B"),
        (people.plural(1, "step"), "1 step"),
        (people.plural(2000, "match", "matches"), "2,000 matches"),
    ],
)
def test_quantities(said: str, expected: str) -> None:
    assert said == expected


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    said = people.unbroken("A step takes 7.33 ms, 8 ranks, 355 GB/s, 12 shapes; 3 ns.")
    assert said == "A step takes 7.33\u00a0ms, 8 ranks, 355\u00a0GB/s, 12 shapes; 3\u00a0ns."


_UNIT_NS = {"s": 1e9, "ms": 1e6, "µs": 1e3, "ns": 1.0}


@given(st.integers(-(10**15), 10**15))
def test_a_duration_reads_back_to_three_digits(ns: int) -> None:
    number, unit = people.duration(ns).replace("−", "-").split(" ")
    assert math.isclose(float(number) * _UNIT_NS[unit], ns, rel_tol=0.00501)


@given(st.floats(1e-9, 1e15))
def test_significant_keeps_three_digits(value: float) -> None:
    assert math.isclose(float(people.significant(value)), value, rel_tol=0.00501)

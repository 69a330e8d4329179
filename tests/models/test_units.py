import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.352e12, "3.35 TB/s"),
        (999.9e9, "1.00 TB/s"),
        (99.96e9, "100 GB/s"),
        (450e9, "450 GB/s"),
        (1e9, "1.00 GB/s"),
        (12.0, "12 B/s"),
        (0.25, "0.250 B/s"),
        (-2.5e6, "\N{MINUS SIGN}2.50 MB/s"),
    ],
)
def test_human(value: float, text: str) -> None:
    assert units.human(value, "B/s") == text


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [(412e6, "412 ms"), (1200, "1.20 µs"), (3, "3 ns"), (38.14e6, "38.1 ms"), (2.5e9, "2.50 s")],
)
def test_human_ns(duration_ns: float, text: str) -> None:
    assert units.human_ns(duration_ns) == text


@given(st.integers(0, 10**15))
def test_ns_undoes_seconds(whole: int) -> None:
    assert abs(units.ns(whole / 10**9) - whole) <= whole * 2**-52

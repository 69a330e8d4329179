"""One night against many: freak nights and slow first steps change nothing, slower steps do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.reports.nightly_verdict import SAME_WITHIN, judge

USUAL = [100.0, 101.0, 99.0, 100.5, 99.5]
times = st.floats(min_value=1.0, max_value=1e4)


def test_a_freak_night_is_suspect_and_moves_nothing() -> None:
    found = judge([*USUAL, 50.0], [100.2])
    assert (found.verdict, found.suspect_nights) == ("ok", (5,))
    assert found.baseline_ms == pytest.approx(99.75)  # between the third and fourth of six


def test_slower_and_faster() -> None:
    assert judge(USUAL, [108.0]).verdict == "regression"
    assert judge(USUAL, [108.0]).change == pytest.approx(0.08)
    assert judge(USUAL, [92.0]).verdict == "improvement"
    assert judge(USUAL, [102.9]).verdict == "ok"


def test_a_first_step_with_compilation_is_one_of_many() -> None:
    found = judge(USUAL, [900.0, 100.0, 100.2, 99.8])
    assert found.tonight_ms == pytest.approx(100.1)
    assert found.verdict == "ok"


def test_nothing_to_compare_is_unknown() -> None:
    assert judge([], [100.0]).verdict == "unknown"
    none_tonight = judge(USUAL, [])
    assert (none_tonight.verdict, none_tonight.change, none_tonight.baseline_ms) == ("unknown", None, 100.0)


@given(st.lists(times, min_size=1, max_size=20), st.lists(times, min_size=1, max_size=20), st.floats(0.1, 10))
def test_the_unit_does_not_matter(nights: list[float], steps: list[float], scale: float) -> None:
    one, other = judge(nights, steps), judge([n * scale for n in nights], [s * scale for s in steps])
    assert one.change == pytest.approx(other.change, rel=1e-9, abs=1e-9)
    if abs(abs(one.change or 0.0) - SAME_WITHIN) > 1e-9:
        assert one.verdict == other.verdict


@given(st.lists(times, min_size=3, max_size=20), times)
def test_order_of_nights_does_not_matter(nights: list[float], tonight: float) -> None:
    one, other = judge(nights, [tonight]), judge(nights[::-1], [tonight])
    assert (one.verdict, one.baseline_ms) == (other.verdict, other.baseline_ms)
    assert len(one.suspect_nights) == len(other.suspect_nights)

"""Change points of planted series; freak nights and noise are none."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracegap.reports.change_points import LEAST_NIGHTS, find


def nights(levels, noise, seed, freaks=()):
    random = np.random.default_rng(seed)
    clean = np.concatenate([np.full(n, level, dtype=float) for n, level in levels])
    series = clean * (1 + noise * random.standard_normal(len(clean)))
    for i, factor in freaks:
        series[i] *= factor
    return series


def test_a_step_is_found_to_the_night_with_both_levels():
    found = find(nights([(20, 100), (15, 108)], 0.005, 1))
    (change,) = found.changes
    assert change.at == 20
    assert change.before == pytest.approx(100, rel=0.005)
    assert change.after == pytest.approx(108, rel=0.005)
    assert change.change_frac == pytest.approx(0.08, abs=0.006)


def test_there_and_back_are_two_changes():
    found = find(nights([(15, 100), (6, 106), (15, 100)], 0.005, 2))
    assert [c.at for c in found.changes] == [15, 21]


@pytest.mark.parametrize("factor", [0.5, 1.25, 2.0])
def test_a_freak_night_is_named_and_makes_no_change(factor):
    found = find(nights([(40, 100)], 0.005, 3, freaks=[(17, factor)]))
    assert (found.changes, found.freaks) == ([], [17])


def test_a_freak_night_hides_no_change():
    found = find(nights([(20, 100), (20, 107)], 0.005, 4, freaks=[(18, 2.0), (25, 0.5)]))
    assert [c.at for c in found.changes] == [20]
    assert found.freaks == [18, 25]


def test_the_last_night_is_no_freak_yet():
    found = find(nights([(20, 100)], 0.005, 5, freaks=[(19, 1.3)]))
    assert (found.changes, found.freaks) == ([], [])


def test_nights_without_a_change_have_none():
    false = sum(len(find(nights([(n, 100)], 0.01, seed)).changes) for n in (10, 30, 90) for seed in range(100))
    assert false <= 3  # of 300 series


def test_planted_changes_are_found():
    hits = misses = wrong = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        at, noise = int(random.integers(5, 50)), float(random.choice([0.004, 0.01]))
        after = 100 * (1 + max(5 * noise, float(random.uniform(0.03, 0.2))))
        found = [c.at for c in find(nights([(at, 100), (60 - at, after)], noise, seed)).changes]
        hits += any(abs(i - at) <= 1 for i in found)
        misses += not any(abs(i - at) <= 1 for i in found)
        wrong += sum(abs(i - at) > 1 for i in found)
    assert (hits, misses, wrong) == (60, 0, 0)


def test_too_few_nights_have_no_change():
    assert find([100.0, 100.0, 200.0, 200.0]).changes == []
    assert find([]).changes == []


def test_values_are_positive():
    with pytest.raises(ValueError, match="positive"):
        find([1.0, 0.0])


@given(st.lists(st.floats(1.0, 1e6), max_size=40))
@settings(max_examples=100, deadline=None)
def test_levels_are_long_enough_and_places_inside(values):
    found = find(values)
    edges = [0, *(c.at for c in found.changes), len(values)]
    assert all(b - a >= LEAST_NIGHTS for a, b in itertools.pairwise(edges) if found.changes)
    assert all(0 <= i < len(values) for i in found.freaks)


@given(st.lists(st.floats(1.0, 1e6), min_size=6, max_size=40), st.floats(0.001, 1000.0))
@settings(max_examples=50, deadline=None)
def test_the_unit_does_not_matter(values, scale):
    places = [c.at for c in find(values).changes]
    assert places == [c.at for c in find([v * scale for v in values]).changes]

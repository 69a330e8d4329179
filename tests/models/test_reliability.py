import random
from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models import reliability

intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)
Spans = list[tuple[int, int]]


def seconds(spans: Spans) -> set[int]:
    return {second for start, end in spans for second in range(start, end)}


@given(intervals, intervals)
def test_exposed_communication_is_what_counting_seconds_finds(compute: Spans, comm: Spans) -> None:
    exposed = reliability.exposed_comm_s(compute_intervals=compute, comm_intervals=comm)
    assert exposed == len(seconds(comm) - seconds(compute))


@given(intervals)
def test_union_is_disjoint_idempotent_and_blind_to_order(spans: Spans) -> None:
    merged = reliability.union(spans)
    assert seconds([(int(start), int(end)) for start, end in merged]) == seconds(spans)
    assert all(before[1] < after[0] for before, after in pairwise(merged))
    assert reliability.union(merged) == merged == reliability.union(reversed(spans))


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 1))
def test_a_step_is_between_full_and_no_overlap(compute_s: float, comm_s: float, overlap: float) -> None:
    step_s = reliability.step_time_s(compute_s=compute_s, comm_s=comm_s, overlap_fraction=overlap)
    assert max(compute_s, comm_s) <= step_s <= compute_s + comm_s


@pytest.mark.parametrize(("n", "expected"), [(1, 0.0), (10, 1.538753), (100, 2.507594), (1000, 3.241436)])
def test_expected_maximum_agrees_with_tables_of_order_statistics(n: int, expected: float) -> None:
    assert reliability.expected_maximum_of_normals(n) == pytest.approx(expected, abs=2e-6)


def test_expected_maximum_agrees_with_drawing() -> None:
    draw = random.Random(7)
    drawn = fmean(max(draw.gauss() for _ in range(30)) for _ in range(4000))
    assert reliability.expected_maximum_of_normals(30) == pytest.approx(drawn, abs=0.03)


@given(st.floats(1, 1e4), st.floats(1e3, 1e7))
def test_the_best_checkpoint_interval_is_best(checkpoint_s: float, mtbf_s: float) -> None:
    def useful(interval_s: float) -> float:
        return reliability.goodput_first_order(
            checkpoint_s=checkpoint_s, interval_s=interval_s, restart_s=0, mtbf_s=mtbf_s
        )

    best_s = reliability.young_interval_s(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    assert useful(best_s) >= max(useful(best_s * 1.1), useful(best_s / 1.1))


@given(st.floats(1, 1e5), st.floats(1, 1e7))
def test_daly_never_exceeds_the_time_between_failures_by_much(checkpoint_s: float, mtbf_s: float) -> None:
    interval_s = reliability.daly_interval_s(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    assert 0 < interval_s <= mtbf_s * 1.0001

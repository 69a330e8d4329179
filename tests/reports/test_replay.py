"""Graphs of instants: run again without changes they give what was measured; with changes, what is worked out by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracegap.reports.replay import NEVER, Edges, Graph

FIXED, OTHER = 0, 1


def graph(times, edges):
    """From measured times and (from, to, least lag)."""
    src, dst, lag = (
        (np.array(column, dtype=np.int64) for column in zip(*edges, strict=True))
        if edges
        else [np.empty(0, np.int64)] * 3
    )
    made = Edges(src=src, dst=dst, lag_ns=lag, why=np.full(len(src), OTHER), of=np.arange(len(src)))
    return Graph.of(np.array(times, dtype=np.int64), np.zeros(len(times), dtype=np.int64), made, fixed=FIXED)


@st.composite
def schedules(draw):
    times = [0, *draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=30))]
    number = st.integers(0, len(times) - 1)
    return times, draw(st.lists(st.tuples(number, number, st.integers(-100, 10**6)), max_size=80))


@given(schedules())
def test_nothing_changed_gives_the_measured_schedule(given_):
    made = graph(*given_)
    assert (made.replay() == made.time_ns).all()
    assert sorted(made.time_ns.tolist()) == sorted(given_[0])


@given(schedules(), st.integers(0, 10**5))
def test_the_path_to_an_instant_is_as_long_as_the_time_to_it(given_, since):
    made = graph(*given_)
    binding = made.binding(np.arange(2))
    last = len(made.time_ns) - 1
    path = made.path(last, since, binding)
    lengths = made.time_ns[made.edges.dst[path]] - made.time_ns[made.edges.src[path]]
    begin = int(made.time_ns[made.edges.src[path[-1]]]) if len(path) else int(made.time_ns[last])
    assert lengths.sum() == made.time_ns[last] - begin
    assert begin <= max(since, 0) or begin == made.time_ns[last]


@given(schedules(), st.data())
def test_replay_is_the_longest_path_however_it_is_worked_out(given_, data):
    made = graph(*given_)
    count = len(made.edges.src)
    more = data.draw(st.lists(st.integers(-(10**5), 10**5), min_size=count, max_size=count))
    lags = made.edges.lag_ns + np.array(more, dtype=np.int64)
    at = {0: 0}
    for node in range(1, len(made.time_ns)):  # the definition, instant by instant
        ways = [
            at[int(s)] + int(lag) for s, d, lag in zip(made.edges.src, made.edges.dst, lags, strict=True) if d == node
        ]
        at[node] = max(0, *ways)
    assert made.replay(lags).tolist() == [at[i] for i in range(len(made.time_ns))]


def test_what_is_unexplained_stays_when_another_reason_binds():
    # 3 comes at 100: 10 after 1 (at 50), 20 after 2 (at 70): 10 are unexplained.
    made = graph([0, 50, 70, 100], [(1, 3, 10), (2, 3, 20)])
    assert made.unexplained_ns.tolist() == [0, 0, 0, 10]
    lags = made.edges.lag_ns.copy()
    from_2 = (made.edges.src == 2) & (made.edges.dst == 3)
    lags[from_2] = NEVER
    assert made.replay(lags).tolist() == [0, 50, 70, 70]  # 50 + 10 + the unexplained 10
    lags[made.edges.dst == 1] += 1000
    assert made.replay(lags).tolist() == [0, 1050, 70, 1070]


def test_an_edge_against_time_is_left_out_and_a_lag_is_no_longer_than_measured():
    made = graph([0, 50, 40], [(1, 2, 5), (2, 1, 100)])  # instant 2 comes before 1
    assert made.time_ns.tolist() == [0, 40, 50]
    assert made.place.tolist() == [0, 2, 1]
    assert made.edges.src.tolist() == [0, 1]
    assert made.edges.lag_ns.tolist() == [40, 10]
    assert made.edges.why.tolist() == [FIXED, OTHER]

"""The account against a nanosecond-by-nanosecond walk, and its laws."""

import itertools
from fractions import Fraction

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tracegap.ingest import account, idle
from tracegap.ingest.intervals import Cover, apportion, cut, gaps, union

SPAN = st.tuples(st.integers(0, 40), st.integers(0, 15))
SPANS = st.lists(SPAN, max_size=12)
OPS = st.lists(st.tuples(SPAN, st.integers(0, 2)), min_size=1, max_size=12)


def arrays(spans):
    starts = np.array([s for s, _ in spans], dtype=np.int64)
    return starts, starts + np.array([d for _, d in spans], dtype=np.int64)


def instants(spans):
    return {t for s, d in spans for t in range(s, s + d)}


@given(SPANS)
def test_union_has_the_same_instants(spans):
    starts, ends = union(*arrays(spans))
    assert {t for s, e in zip(starts, ends, strict=True) for t in range(s, e)} == instants(spans)
    assert all(e < s for e, s in zip(ends[:-1], starts[1:], strict=True))
    again = union(starts, ends)
    assert np.array_equal(again[0], starts)
    assert np.array_equal(again[1], ends)


@given(SPANS, st.lists(SPAN, min_size=1, max_size=5))
def test_cover_counts_instants(spans, questions):
    starts, ends = arrays(questions)
    want = [len(instants(spans) & set(range(s, e))) for s, e in zip(starts, ends, strict=True)]
    assert Cover.of(*arrays(spans)).within(starts, ends).tolist() == want


@given(SPANS, st.integers(0, 30), st.integers(0, 30))
def test_gaps_are_the_rest(spans, lo, length):
    a, b = gaps(*arrays(spans), lo, lo + length)
    assert {t for s, e in zip(a, b, strict=True) for t in range(s, e)} == set(range(lo, lo + length)) - instants(spans)


@given(SPANS, st.sets(st.integers(1, 54), max_size=5))
def test_cut_keeps_every_instant_once(spans, inner):
    edges = np.array(sorted({0, 60} | inner), dtype=np.int64)
    starts, ends = arrays(spans)
    pieces = cut(starts, ends, edges)
    assert set(pieces.of.tolist()) == set(range(len(spans)))
    total = np.zeros(len(spans), dtype=np.int64)
    np.add.at(total, pieces.of, pieces.end - pieces.begin)
    assert np.array_equal(total, ends - starts)
    assert (pieces.begin >= edges[pieces.tile]).all()
    assert (pieces.end <= edges[pieces.tile + 1]).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.fractions(0, 100)), min_size=1, max_size=20))
def test_apportion_adds_up_and_rounds_to_a_neighbour(parts):
    groups = np.array([g for g, _ in parts], dtype=np.int64)
    exact = [f for _, f in parts]
    sums = [sum((f for g, f in parts if g == i), Fraction(0)) for i in range(4)]
    totals = np.array([round(s) for s in sums], dtype=np.int64)
    got = apportion(np.array([float(f) for f in exact]), groups, totals)
    for i in range(4):
        if (groups == i).any():
            assert got[groups == i].sum() == totals[i]
    assert all(abs(g - f) <= 1.01 for g, f in zip(got.tolist(), exact, strict=True))


@given(OPS, st.lists(st.integers(0, 54), min_size=2, max_size=5, unique=True))
def test_states_and_shares_against_a_walk(ops, edges):
    edges = sorted(edges)
    windows = account.Windows(np.array(edges[:-1], dtype=np.int64), np.array(edges[1:], dtype=np.int64))
    starts, ends = arrays([span for span, _ in ops])
    states = np.array([s for _, s in ops], dtype=np.int64)
    got = account.shares(starts, ends, states, windows)
    times = got.times
    assert times.sum(axis=0).tolist() == np.diff(edges).tolist()

    for w, (lo, hi) in enumerate(itertools.pairwise(edges)):
        state_time = [0, 0, 0, 0]
        share = {i: Fraction(0) for i in range(len(ops))}
        for t in range(lo, hi):
            running = [i for i in range(len(ops)) if starts[i] <= t < ends[i]]
            first = min((states[i] for i in running), default=3)
            state_time[first] += 1
            winners = [i for i in running if states[i] == first]
            for i in winners:
                share[i] += Fraction(1, len(winners))
        assert times[:, w].tolist() == state_time
        mine = got.window == w
        for s in range(3):
            assert got.share_ns[mine & (states[got.op] == s)].sum() == state_time[s]
        for i in range(len(ops)):
            assert abs(int(got.share_ns[mine & (got.op == i)].sum()) - share[i]) < 1


@given(OPS, st.lists(SPAN, max_size=4), st.lists(SPAN, max_size=4), st.data())
def test_idle_causes_against_a_walk(ops, inputs, syncs, data):
    launches = [
        data.draw(st.one_of(st.none(), st.integers(0, span[0])), label=f"launch {i}") for i, (span, _) in enumerate(ops)
    ]
    frame = pl.DataFrame(
        {
            "op_id": range(len(ops)),
            "start_ns": [s for (s, _), _ in ops],
            "dur_ns": [d for (_, d), _ in ops],
            "launch_ns": pl.Series(launches, dtype=pl.Int64),
            "launch_thread": ["1/1"] * len(ops),
        }
    )
    host = pl.DataFrame(
        {
            "thread": ["1/1"] * (len(inputs) + len(syncs)),
            "kind": ["input"] * len(inputs) + ["sync"] * len(syncs),
            "start_ns": pl.Series([s for s, _ in inputs + syncs], dtype=pl.Int64),
            "dur_ns": pl.Series([d for _, d in inputs + syncs], dtype=pl.Int64),
        }
    )
    windows = account.Windows(np.array([0, 20], dtype=np.int64), np.array([20, 70], dtype=np.int64))
    got = idle.idle_by_cause(frame, windows, host, None)
    want = {cause: [0, 0] for cause in [f"{c}_ns" for c in idle.CAUSES]}
    busy = instants([span for span, _ in ops])
    order = sorted(range(len(ops)), key=lambda i: (ops[i][0][0], i))
    for t in range(70):
        if t in busy:
            continue
        window = 0 if t < 20 else 1
        hi = (20, 70)[window]
        b = next((u for u in range(t, hi) if u in busy), hi)
        following = next((i for i in order if ops[i][0][0] >= b), None)
        h = launches[following] if following is not None else None
        if h is None:
            cause = "idle_unknown_ns"
        elif t >= h:
            cause = "idle_gap_ns"
        elif t in instants(inputs):
            cause = "idle_input_ns"
        elif t in instants(syncs):
            cause = "idle_sync_ns"
        else:
            cause = "idle_host_ns"
        want[cause][window] += 1
    assert {k: v.tolist() for k, v in got.items()} == want

"""The innermost span at an instant against a walk over all of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracegap.ingest.innermost import NONE, Innermost

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.booleans()), max_size=12)


def nested(spans):
    start = np.array([s for s, *_ in spans], dtype=np.int64)
    return Innermost.of(start, start + np.array([d for _, d, _ in spans], dtype=np.int64))


@given(SPANS)
def test_of_the_open_spans_the_one_that_began_last(spans):
    tree = nested(spans)
    for t, row in enumerate(tree.at(np.arange(45)).tolist()):
        open_spans = [i for i in range(len(spans)) if tree.start[i] <= t < tree.end[i]]
        assert row == (open_spans[-1] if open_spans else NONE)


@given(SPANS)
def test_the_nearest_flagged_span_outwards(spans):
    tree = nested(spans)
    flags = np.array([f for *_, f in spans], dtype=np.bool_)[tree.order]
    for row, found in enumerate(tree.nearest(flags).tolist()):
        at = row
        while at != NONE and not flags[at]:
            at = int(tree.parent[at])
        assert found == at


@given(SPANS)
def test_the_outermost_of_a_chain(spans):
    tree = nested(spans)
    flags = np.array([f for *_, f in spans], dtype=np.bool_)[tree.order]
    for row, found in enumerate(tree.outermost_of_chain(flags).tolist()):
        at = row
        while tree.parent[at] != NONE and flags[tree.parent[at]]:
            at = int(tree.parent[at])
        assert found == at

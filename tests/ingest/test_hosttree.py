import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracegap.ingest.hosttree import nest, pair


def tree(spans: list[tuple[int, int, int]]):
    """Nests (thread, start, end)."""
    thread, start, end = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    return nest(thread, start, end - start)


def test_children_and_own_time() -> None:
    found = tree([(0, 0, 100), (0, 10, 40), (0, 20, 30), (0, 50, 90), (1, 15, 35)])
    assert found.parent.tolist() == [-1, 0, 1, 0, -1]
    assert found.self_ns.tolist() == [30, 20, 10, 40, 20]


def test_of_two_equal_spans_the_first_holds_the_other() -> None:
    found = tree([(0, 100, 140), (0, 100, 140), (0, 140, 200), (0, 140, 175)])
    assert found.parent.tolist() == [-1, 0, -1, 2]
    assert found.self_ns.tolist() == [0, 40, 25, 35]


def test_a_span_that_ends_where_the_next_starts_does_not_hold_it() -> None:
    assert tree([(0, 0, 10), (0, 10, 20), (0, 10, 10)]).parent.tolist() == [-1, -1, 1]


def test_overlapping_spans_are_siblings_and_cover_their_parent_once() -> None:
    found = tree([(0, 0, 100), (0, 10, 50), (0, 40, 80)])
    assert found.parent.tolist() == [-1, 0, 0]
    assert found.self_ns.tolist() == [30, 40, 40]


def test_no_spans() -> None:
    none = np.zeros(0, np.int64)
    assert nest(none, none, none).parent.tolist() == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=40))
def test_self_time_is_what_no_child_covers(raw: list[tuple[int, int, int]]) -> None:
    spans = [(thread, start, start + length) for thread, start, length in raw]
    found = tree(spans)
    for i, (thread, start, end) in enumerate(spans):
        children = [spans[j] for j in range(len(spans)) if found.parent[j] == i]
        assert all(t == thread and start <= s and e <= end for t, s, e in children)
        free = [x for x in range(start, end) if not any(s <= x < e for _, s, e in children)]
        assert found.self_ns[i] == len(free)
    assert sorted(found.order.tolist()) == list(range(len(spans)))
    place = {row: at for at, row in enumerate(found.order.tolist())}
    assert all(p < 0 or place[p] < place[i] for i, p in enumerate(found.parent.tolist()))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=12))
def test_the_parent_is_the_last_before_that_holds_the_span(raw: list[tuple[int, int, int]]) -> None:
    found = tree([(thread, start, start + length) for thread, start, length in raw])
    order = sorted(range(len(raw)), key=lambda i: (raw[i][0], raw[i][1], -raw[i][2]))
    assert found.order.tolist() == order
    for at, i in enumerate(order):
        thread, start, length = raw[i]
        holders = [
            j
            for j in order[:at]
            if raw[j][0] == thread and raw[j][1] + raw[j][2] >= start + length and raw[j][1] + raw[j][2] > start
        ]
        assert found.parent[i] == (holders[-1] if holders else -1)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=12),
    st.integers(0, 20),
)
def test_nested_in_two_parts_a_thread_is_the_same(raw: list[tuple[int, int]], cut: int) -> None:
    """What is open at the cut stands in both parts, and is counted by its parent in the first."""
    starts, lengths = np.array(raw, np.int64).T
    threads = np.zeros(len(raw), np.int64)
    whole = nest(threads, starts, lengths)
    first = np.flatnonzero(starts < cut)
    early = nest(threads[first], starts[first], lengths[first])
    still_open = first[(starts + lengths)[first] > cut]
    second = np.union1d(still_open, np.flatnonzero(starts >= cut))
    late = nest(threads[second], starts[second], lengths[second], np.isin(second, still_open))
    parent, covered = np.full(len(raw), -1), np.zeros(len(raw), np.int64)
    for rows, part in ((first, early), (second, late)):
        parent[rows] = np.where(part.parent >= 0, rows[part.parent], -1)
        covered[rows] += lengths[rows] - part.self_ns
    assert parent.tolist() == whole.parent.tolist()
    assert (lengths - covered).tolist() == whole.self_ns.tolist()


def pairs(events: list[tuple[int, str, str | None]]):
    """Pairs (time, B or E, name) of one thread."""
    found = pair([0] * len(events), [e[0] for e in events], [e[1] == "E" for e in events], [e[2] for e in events])
    return list(zip(found.begins, found.ends, strict=True)), found.unmatched_begins, found.unmatched_ends


def test_ends_without_a_name_close_the_innermost() -> None:
    assert pairs([(0, "B", "a"), (1, "B", "b"), (2, "E", None), (3, "E", None)]) == ([(1, 2), (0, 3)], [], [])


def test_an_end_at_the_start_of_the_next_closes_the_earlier_one_in_any_order_of_writing() -> None:
    assert pairs([(0, "B", "a"), (5, "E", None), (5, "B", "b"), (9, "E", None)])[0] == [(0, 1), (2, 3)]
    assert pairs([(0, "B", "a"), (5, "B", "b"), (5, "E", None), (9, "E", None)])[0] == [(0, 2), (1, 3)]


def test_a_slice_of_no_length() -> None:
    assert pairs([(5, "B", "a"), (5, "E", "a")]) == ([(0, 1)], [], [])


def test_a_named_end_leaves_open_what_is_inside() -> None:
    assert pairs([(0, "B", "a"), (1, "B", "b"), (2, "E", "a"), (3, "E", "c")]) == ([(0, 2)], [1], [3])


def test_threads_do_not_close_each_other() -> None:
    found = pair([0, 1, 1], [0, 1, 2], [False, True, False], ["a", None, "b"])
    assert (found.begins, found.unmatched_begins, found.unmatched_ends) == ([], [0, 2], [1])

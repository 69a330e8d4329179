"""Rows that are kept in two parts come back as they were, whatever they are and however they come."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracegap.ingest import load, schema, store
from tracegap.ingest.forms import distinct, keyed
from tracegap.ingest.issues import Issues
from tracegap.ingest.trace import HOST_EVENTS, OPS, Device, Trace

WORDS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "ü" * 30]))
NUMBERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
ROWS = st.lists(st.tuples(WORDS, NUMBERS, WORDS, st.one_of(st.none(), st.integers(0, 3))), min_size=1, max_size=30)


@given(ROWS, st.booleans())
def test_combinations_are_told_apart_and_no_more(rows, as_categories):
    text = pl.Categorical if as_categories else pl.String
    frame = pl.DataFrame(rows, schema={"a": text, "n": pl.Int64, "b": text, "m": pl.Int64}, orient="row")
    first, which = distinct(frame.get_columns(), len(frame))
    assert [rows[first[i]] for i in which] == rows
    assert len({rows[i] for i in first}) == len(first)
    assert [rows.index(rows[i]) for i in first] == first.tolist()


@given(st.lists(st.integers(-(2**62), 2**62), max_size=20), st.integers(1, 2**40))
def test_keyed_is_what_numpy_says(values, scale):
    for column in (np.array(values, np.int64), np.array(values, np.int64) // scale):
        got, want = keyed(column), np.unique(column, return_inverse=True)
        assert np.array_equal(got[0], want[0])
        assert np.array_equal(got[1], want[1])


@pytest.fixture(scope="module")
def con(tmp_path_factory):
    with store.open_store(tmp_path_factory.mktemp("forms") / "s.duckdb") as connection:
        yield connection


HOST = st.lists(
    st.tuples(
        st.sampled_from(["1/1", "1/2"]), st.sampled_from(["op", "launch"]), st.sampled_from(["mm", "add", "é"]),
        st.integers(0, 99), st.one_of(st.none(), st.integers(0, 99)),
    ),
    max_size=8,
)  # fmt: skip


@settings(max_examples=30)
@given(batches=st.lists(HOST, min_size=1, max_size=4))
def test_host_events_come_back_from_batches(con, batches):
    """Two traces, so that the second one's forms are numbered behind those of the first."""
    names = ["thread", "kind", "name", "start_ns", "dur_ns"]
    want = []
    with store.transaction(con):
        for trace_id in ("x", "y"):
            store.remove_trace(con, trace_id)
            with store.Appender(con) as out:
                at = 0
                for batch in batches:
                    rows = [{"event_id": at + i, **dict(zip(names, row, strict=True))} for i, row in enumerate(batch)]
                    at += len(batch)
                    out.add("host_events", pl.DataFrame(rows, schema=HOST_EVENTS), trace_id=trace_id)
                    want += [(trace_id, *row) for row in batch]
    got = con.execute(f"select trace_id, {', '.join(names)} from host_events order by trace_id, event_id").fetchall()
    assert got == want
    forms = con.execute("select count(*), count(distinct form_id) from host_forms").fetchall()
    assert forms == [(len({(row[0], *row[1:4]) for row in want}),) * 2]


def test_forms_without_number_in_common_are_stored_all(con):
    """More of them than are looked up one by one, and twice the same."""
    n = 30_000
    frame = pl.DataFrame({"event_id": range(n), "name": [f"{i}" for i in range(n)]})
    with store.transaction(con), store.Appender(con) as out:
        store.remove_trace(con, "many")
        for _ in range(2):
            out.add("host_events", frame, trace_id="many")
    found = con.execute(
        "select count(*), count(distinct name), bool_and(name = event_id::text) from host_events where trace_id = 'many'"
    ).fetchall()
    assert found == [(2 * n, n, True)]


SPANS = st.lists(
    st.tuples(
        st.integers(0, 60), st.integers(0, 30), st.one_of(st.none(), st.integers(0, 2)),
        st.sampled_from(["matmul", "collective", "copy"]),
    ),
    min_size=1,
    max_size=10,
)  # fmt: skip


@settings(max_examples=40)
@given(spans=SPANS)
def test_parts_in_windows_are_what_a_cut_by_hand_gives(con, spans):
    """Whole operations are not stored again, and the view has them nevertheless."""
    ops = [
        {
            "op_id": i,
            "device_id": "0",
            "stream": "7",
            "name": c,
            "op_class": c,
            "start_ns": s,
            "dur_ns": d,
            "step": step,
        }
        for i, (s, d, step, c) in enumerate(spans)
    ]
    trace = Trace(
        format="t", framework="pytorch", origin_unix_ns=0, devices=[Device(device_id="0", kind="gpu")],
        ops=pl.DataFrame(ops, schema=OPS), issues=Issues(),
    )  # fmt: skip
    with store.transaction(con):
        store.remove_trace(con, "w")
        with store.Appender(con) as out:
            load.put_tables(out, trace, "w", "run")
    windows = con.execute("select step, start_ns, start_ns + wall_ns from steps where trace_id = 'w'").fetchall()
    want = sorted(
        (i, step, min(end, s + d) - max(start, s))
        for i, (s, d, _, _) in enumerate(spans)
        for step, start, end in windows
        if min(end, s + d) > max(start, s)
    )
    got = con.execute(
        "select op_id, step, dur_ns from op_windows where trace_id = 'w' and dur_ns > 0 order by all"
    ).fetchall()
    assert got == want
    stored = con.execute("select op_id, step from op_windows where trace_id = 'w'").fetchall()
    assert len(stored) == len(set(stored))
    shares = con.execute(
        """select count(*) from (
               select o.share_ns, o.dur_ns, sum(w.share_ns) as inside, sum(w.dur_ns) as lies
               from ops o join op_windows w using (trace_id, op_id) where trace_id = 'w' group by o.op_id, o.share_ns, o.dur_ns)
           where lies = dur_ns and inside <> share_ns"""
    ).fetchall()
    assert shares == [(0,)]
    again = con.execute(
        """select count(*) from op_parts p join op_rows r using (op_id)
           join op_forms f on f.form_id = r.form_id and f.trace_id = p.trace_id where f.whole and f.trace_id = 'w'"""
    ).fetchall()
    assert again == [(0,)]


def test_public_names_are_views_with_the_types_they_are_told_to_have(con):
    for name in schema.SPLITS:
        told = [(c.name, c.type) for c in schema.BY_NAME[name].columns]
        assert con.execute(f"select column_name, column_type from (describe {name})").fetchall() == told

"""Queries of users: what they may do, what they may not, and where they are stopped."""

import itertools
from pathlib import Path

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracegap
from tracegap.ingest.errors import StoreError
from tracegap.ingest.store import open_store
from tracegap.reports import console, dictionary, join

LIMITS = console.Limits()


@pytest.fixture
def shut(samples):
    with open_store(samples, read_only=True) as con:
        console.shut(con, LIMITS)
        yield con


def answers(con, text, limits=LIMITS, **values):
    with console.results(con, text, values, limits) as found:
        return [result.rows() for result in found]


def test_statements_answer_one_by_one_with_their_parameters(shut):
    text = "select $a + 1; create temp table t as select $b as x; from t; pivot (from t) on x using count(*)"
    assert answers(shut, text, a=2, b="z") == [[(3,)], [(1,)], [("z",)], [(1,)]]


@pytest.mark.parametrize(
    "text",
    [
        "select * from read_csv('{file}')",
        "select content from read_text('{file}')",
        "select * from '{file}'",
        "select * from glob('/*')",
        "select * from sniff_csv('{file}')",
        "copy (select 1) to '{new}'",
        "export database '{new}'",
        "attach '{new}'",
        "attach ':memory:' as other",
        "install httpfs",
        "load httpfs",
        "select * from 'https://example.org/x.csv'",
        "select getenv('HOME')",
        "set threads = 1",
        "reset memory_limit",
        "set enable_external_access = true",
        "pragma enable_profiling",
        "create secret (type s3)",
        "select * from secret_of_this_process",
        "delete from ops",
        "insert into runs (run_id) values ('x')",
        "drop view step_gap",
        "create table stays (x int)",
        "update runs set job = 'x'",
    ],
)
def test_what_leads_out_of_the_store_or_changes_it_is_refused(shut, tmp_path, text):
    secret_of_this_process = [{"token": 1}]
    file, new = tmp_path / "x.csv", tmp_path / "new"
    file.write_text("a\n1\n")
    with pytest.raises(console.QueryFailed):
        answers(shut, text.format(file=file, new=new))
    assert not new.exists()
    assert secret_of_this_process


def test_a_query_that_takes_too_long_is_stopped_and_the_next_one_runs(shut):
    with pytest.raises(console.QueryFailed, match=r"stopped after 0.3 s"):
        answers(shut, "select count(*) from range(1000000) a, range(1000000) b", console.Limits(timeout_s=0.3))
    assert answers(shut, "select 1") == [[(1,)]]


def test_a_query_that_needs_too_much_memory_is_stopped_and_spills_nothing(samples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    limits = console.Limits(memory="20MB")
    with open_store(samples, read_only=True) as con:
        console.shut(con, limits)
        with pytest.raises(console.QueryFailed, match="needs more than 20MB"):
            answers(con, "select count(*) from (select distinct range, random() from range(20000000))", limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "values", "said"),
    [
        ("", {}, "empty"),
        ("select from where", {}, "syntax error"),
        ("select $a", {}, r"needs \$a: give it with -p a=VALUE"),
        ("select 1", {"b": 1}, r"no parameter \$b"),
    ],
)
def test_mistakes_are_told(shut, text, values, said):
    with pytest.raises(console.QueryFailed, match=said):
        answers(shut, text, **values)


def test_a_limit_of_memory_is_a_size(samples):
    with open_store(samples, read_only=True) as con, pytest.raises(console.QueryFailed, match="no size such as 2GB"):
        console.shut(con, console.Limits(memory="'; drop table ops; --"))


def test_parameters_are_numbers_where_they_look_so():
    given = console.parameters(("a=1", "b=1.5", "c=null", "d=[1,2]", "e=mon", "f=x=y", "g="))
    assert given == {"a": 1, "b": 1.5, "c": None, "d": [1, 2], "e": "mon", "f": "x=y", "g": ""}
    with pytest.raises(console.QueryFailed, match="name=value"):
        console.parameters(("mon",))


# --------------------------------------------------------------------------------------------------- macros

intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


def covered(some):
    return len({t for start, dur in some for t in range(start, start + dur)})


@given(intervals)
@settings(max_examples=100, deadline=None)
def test_union_is_what_counting_instants_gives(some):
    with duckdb.connect() as con:
        con.execute((Path(join.__file__).parent / "sql" / "macros.sql").read_text().partition("-- busy")[0]).fetchall()
        starts, durations = [s for s, _ in some], [d for _, d in some]
        got = con.execute("select union_ns(?::bigint[], ?::bigint[])", [starts, durations]).fetchall()
    assert got == [(covered(some),)]


def test_busy_intervals_cover_what_the_operations_cover(shut):
    devices = shut.execute("select distinct trace_id, device_id from ops order by all limit 6").fetchall()
    for trace_id, device_id in devices:
        here = {"t": trace_id, "d": device_id}
        rows = answers(shut, "select start_ns, end_ns, operations from busy_intervals($t, $d)", **here)[0]
        union = (
            "select union_ns(list(start_ns), list(dur_ns)), count(*) from ops where trace_id = $t and device_id = $d"
        )
        assert [(sum(e - s for s, e, _ in rows), sum(n for *_, n in rows))] == answers(shut, union, **here)[0]
        assert all(a[1] < b[0] for a, b in itertools.pairwise(rows))


# ------------------------------------------------------------------------------------------------- notebook


def test_the_store_in_a_notebook_gives_frames(samples):
    with tracegap.open_store(samples) as store:
        runs = store.runs
        assert isinstance(runs, pl.DataFrame)
        steps = store.steps(runs["run_id"][0])
        assert len(steps) == store.sql("select * from steps where run_id = $r", r=runs["run_id"][0]).height
    with pytest.raises(StoreError, match="closed"):
        store.sql("select 1")


def test_a_store_that_is_missing_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"none\.duckdb"):
        tracegap.open_store(tmp_path / "none.duckdb")


def test_the_documented_schema_is_that_of_the_code():
    shown = (Path(__file__).parents[2] / "docs" / "schema.md").read_text()
    assert shown == "\n".join(dictionary.document()) + "\n"
    assert "NULL" in shown

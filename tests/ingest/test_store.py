"""The store: opening, refusing, waiting, and all-or-nothing."""

import subprocess
import sys

import duckdb
import polars as pl
import pytest

from tracegap.ingest import schema, store
from tracegap.ingest.errors import StoreBusy, StoreError


def test_a_new_store_has_every_table_with_its_meaning(tmp_path):
    with store.open_store(tmp_path / "s.duckdb") as con:
        made = dict(
            con.execute(
                """select table_name, comment from duckdb_tables()
                   union all select view_name, comment from duckdb_views() where not internal"""
            ).fetchall()
        )
        assert {p.name: p.grain for p in schema.PARTS}.items() <= made.items()
        columns = con.execute(
            """select table_name, column_name, data_type, comment from duckdb_columns()
               where not internal and table_name <> 'store_version' order by table_name, column_index"""
        ).fetchall()
    told = [(p.name, c.name, c.type, c.doc) for p in schema.PARTS for c in p.columns]
    assert columns == sorted(told, key=lambda row: row[0])


def test_public_tables_have_the_columns_of_the_contract():
    contract = {
        "runs": "run_id job started_at framework world_size config git_commit tags",
        "traces": "trace_id run_id rank host path format sha256 size_bytes status diagnostics parser_version",
        "devices": "trace_id device_id name hardware matched_by",
        "steps": "run_id trace_id rank device_id step start_ns wall_ns source complete",
        "ops": "trace_id op_id device_id stream step name op_class framework_op module start_ns dur_ns share_ns dtype shapes "
        "flops bytes cost_source correlation_id",
        "host_events": "trace_id thread kind name start_ns dur_ns correlation_id",
        "collectives": "op_id collective group_id group_size seq message_bytes dtype",
        "counters": "trace_id device_id name ts_ns value",
        "findings": "run_id severity kind what evidence saves_ns",
    }
    for table, columns in contract.items():
        assert set(columns.split()) <= set(schema.BY_NAME[table].names), table
        assert schema.BY_NAME[table].public


def test_a_missing_store_is_not_made_by_reading(tmp_path):
    with pytest.raises(StoreError, match="no such store"), store.open_store(tmp_path / "none.duckdb", read_only=True):
        pass
    assert not (tmp_path / "none.duckdb").exists()


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not a database " * 100)
    with pytest.raises(StoreError, match="cannot be opened"), store.open_store(text):
        pass
    assert text.read_text() == "not a database " * 100
    foreign = tmp_path / "foreign.duckdb"
    with duckdb.connect(str(foreign)) as con:
        con.execute("create table t (a int)").fetchall()
    with pytest.raises(StoreError, match="not a store of tracegap"), store.open_store(foreign):
        pass


def test_a_store_of_another_version_says_what_to_do(tmp_path):
    path = tmp_path / "s.duckdb"
    with store.open_store(path) as con:
        con.execute("update store_version set version = 999").fetchall()
    with pytest.raises(StoreError, match="version 999"), store.open_store(path):
        pass


def test_a_held_store_is_waited_for_and_then_named(tmp_path):
    path = tmp_path / "s.duckdb"
    with store.open_store(path):
        pass
    hold = "\n".join(
        (
            "import sys, time; from tracegap.ingest.store import open_store",
            "with open_store(sys.argv[1]): print('held', flush=True); time.sleep(float(sys.argv[2]))",
        )
    )
    with subprocess.Popen([sys.executable, "-c", hold, str(path), "60"], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreBusy, match="another process holds"), store.open_store(path, wait_s=0.2):
            pass
        holder.kill()
    with store.open_store(path, wait_s=10) as con:
        assert con.execute("select count(*) from runs").fetchall() == [(0,)]


def test_a_transaction_that_fails_leaves_nothing(tmp_path):
    with store.open_store(tmp_path / "s.duckdb") as con:

        def half() -> None:
            with store.transaction(con):
                store.insert_row(con, "runs", {"run_id": "a", "job": "a"})
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            half()
        assert con.execute("select count(*) from runs").fetchall() == [(0,)]


def test_frames_go_in_by_name_and_rows_take_json(tmp_path):
    with store.open_store(tmp_path / "s.duckdb") as con:
        store.insert(con, "counters", pl.DataFrame({"value": [1.5], "name": ["x"], "trace_id": ["t"]}))
        store.insert_row(con, "runs", {"run_id": "a", "config": {"k": [1, "ü'"]}})
        assert con.execute("select trace_id, name, value, ts_ns from counters").fetchall() == [("t", "x", 1.5, None)]
        assert store.frame_of(con, "select config ->> '$.k[1]' as v from runs where run_id = ?", ["a"])[
            "v"
        ].to_list() == ["ü'"]


def test_removing_a_trace_leaves_the_others(tmp_path):
    with store.open_store(tmp_path / "s.duckdb") as con:
        for t in ("a", "b"):
            store.insert_row(con, "traces", {"trace_id": t})
            store.insert(con, "ops", pl.DataFrame({"trace_id": [t] * 2, "op_id": [0, 1], "name": ["x", "y"]}))
        assert con.execute("select count(*) from ops").fetchall() == [(4,)]
        store.remove_trace(con, "a")
        assert con.execute("select distinct trace_id from op_forms").fetchall() == [("b",)]
        assert con.execute("select count(*) from op_rows").fetchall() == [(2,)]
        assert con.execute("select trace_id from ops union all select trace_id from traces").fetchall() == [
            ("b",),
            ("b",),
            ("b",),
        ]


def test_appender_stores_every_row_of_many_frames_once(tmp_path):
    sizes = (3, 130_000, 0, 122_880, 7)
    with store.open_store(tmp_path / "s.duckdb") as con:
        with store.transaction(con), store.Appender(con) as out:
            for i, n in enumerate(sizes):
                out.add("ops", pl.DataFrame({"op_id": pl.int_range(n, eager=True)}), trace_id=f"t{i}")
                out.add("counters", pl.DataFrame({"value": [float(i)]}), trace_id="c")
        found = con.execute(
            "select trace_id, count(*), count(distinct op_id) from ops group by 1 order by 1"
        ).fetchall()
        assert found == [(f"t{i}", n, n) for i, n in enumerate(sizes) if n]
        assert con.execute("select sum(value) from counters").fetchall() == [(10.0,)]


def test_appender_passes_on_what_goes_wrong_on_its_thread(tmp_path):
    with store.open_store(tmp_path / "s.duckdb") as con:
        with pytest.raises(duckdb.Error), store.transaction(con), store.Appender(con) as out:
            out.add("ops", pl.DataFrame({"no_such_column": [1]}))
        assert con.execute("select count(*) from ops").fetchall() == [(0,)]  # the connection is free again

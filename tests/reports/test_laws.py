"""Each law of `reports/sql/laws.sql` holds in a sound store, and is named, with nothing else, when something breaks it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from tests.suites import simulated

from tracegap.ingest import schema
from tracegap.ingest.errors import StoreError
from tracegap.ingest.pipeline import ingest_paths
from tracegap.ingest.store import open_store
from tracegap.models.ops import CollectiveKind, OpClass
from tracegap.reports import buckets, join, laws

LAWS = {law.name: law for law in laws.LAWS}


@dataclass(frozen=True)
class Break:
    """What breaks a law."""

    sql: str
    """Statements; {step}, {first}, {matmul}, {fill}, {comm} are a marked step, the first one of a device, operations."""
    also: frozenset[str] = frozenset()
    """Laws that cannot hold without it: sums are parts of other sums."""


ROWS = {
    "step": "(trace_id, device_id, step) in (select trace_id, device_id, step from steps order by trace_id, start_ns "
    "limit 1 offset 1)",
    "first": "(trace_id, device_id, step) in (select trace_id, device_id, step from steps order by trace_id, start_ns limit 1)",
    "matmul": "(trace_id, op_id) in (select trace_id, op_id from ops where op_class = 'matmul' order by all limit 1)",
    "readback": "(trace_id, op_id) in (select trace_id, op_id from ops where name like '%DtoH%' order by all limit 1)",
    "prefetched": "(trace_id, op_id) in (select trace_id, op_id from ops anti join op_windows using (trace_id, op_id) "
    "order by all limit 1)",
    "comm": "(trace_id, op_id) in (select trace_id, op_id from comm_windows where wait_ns > 1000 order by all limit 1)",
    "last_comer": "(trace_id, op_id) in (select trace_id, op_id from collective_gap where wait_ns = 0 and exposed_ns > 1000 "
    "order by trace_id, op_id limit 1)",
}
BUCKETS = frozenset({"buckets_add_up"})

BREAKS = {
    "windows_tile": Break(
        "update steps set wall_ns = wall_ns - 1, idle_ns = idle_ns - 1, idle_gap_ns = idle_gap_ns - 1 where {step}",
        also=frozenset({"critical_paths_are_whole"}),
    ),
    "windows_start_at_a_kernel": Break(
        "update steps set start_ns = start_ns - 1, wall_ns = wall_ns + 1, idle_ns = idle_ns + 1, "
        "idle_gap_ns = idle_gap_ns + 1 where {first}"
    ),
    "kernels_counted": Break("update steps set kernels = kernels + 1 where {step}"),
    "states_add_up": Break(
        "update steps set idle_ns = idle_ns + 1, idle_gap_ns = idle_gap_ns + 1 where {step}",
        also=BUCKETS,
    ),
    "states_are_unions": Break(
        # A nanosecond of idle time is called compute everywhere: in the operation's share, the state and the buckets.
        """
        create temp table piece as select trace_id, op_id, device_id, step from op_windows
            where state = 'compute' and share_ns < dur_ns order by all limit 1;
        update op_windows set share_ns = share_ns + 1 where (trace_id, op_id, step) in (select trace_id, op_id, step from piece);
        update ops set share_ns = share_ns + 1 where (trace_id, op_id) in (select trace_id, op_id from piece);
        update steps set compute_ns = compute_ns + 1, idle_ns = idle_ns - 1, idle_gap_ns = idle_gap_ns - 1
            where (trace_id, device_id, step) in (select trace_id, device_id, step from piece);
        update step_work set unmodelled_compute_ns = unmodelled_compute_ns + 1
            where (trace_id, device_id, step) in (select trace_id, device_id, step from piece)
        """
    ),
    "buckets_add_up": Break(
        "create temp table told as select * replace (idle_unknown_ns + 1 as idle_unknown_ns) from step_gap;"
        "create or replace temp view step_gap as from told"
    ),
    "buckets_are_times": Break(
        "update step_work set comm_minimum_ns = -1 where {step}", also=frozenset({"savings_draw_on_buckets"})
    ),
    "states_are_times": Break(
        "update steps set idle_host_ns = idle_host_ns + idle_gap_ns + 1, idle_gap_ns = -1 where {step}",
        also=frozenset({"savings_draw_on_buckets"}),
    ),
    "idle_has_causes": Break("update steps set idle_gap_ns = idle_gap_ns + 1 where {step}", also=BUCKETS),
    "idle_activities_add_up": Break(
        "insert into idle_causes by name select trace_id, device_id, step, 'idle_gap' as cause, 'launch' as activity, "
        "idle_gap_ns as idle_ns, 1 as gaps from steps where {step}"
    ),
    "pieces_are_overlaps": Break(
        "update op_windows set dur_ns = dur_ns + 1 where {readback}",
        also=frozenset({"no_busy_time_left_out", "states_are_unions"}),
    ),
    "no_busy_time_left_out": Break(
        # As if a fill before the first window had lain in it, and nobody had counted it.
        "update ops set start_ns = (select start_ns from steps where {first}) + 1, launch_ns = null where {prefetched}"
    ),
    "shares_add_up": Break("update op_windows set share_ns = share_ns - 1 where {matmul}"),
    "shares_are_parts": Break("update ops set share_ns = dur_ns + 1 where {matmul}"),
    "windows_have_no_more": Break("update ops set share_ns = share_ns - 1 where {matmul}"),
    "classes_have_states": Break(
        "update steps set kernels = kernels + 1 "
        "where (trace_id, step) in (select trace_id, step from ops where {readback});"
        "update ops set op_class = 'other', flops = 0, bytes = 0, cost_source = 'trace' where {readback}"
    ),
    "times_are_sane": Break(
        "update ops set start_ns = -4_000_000_000_000_000_000, launch_ns = null where {prefetched}"
    ),
    "launches_come_first": Break("update ops set launch_ns = start_ns + 1 where {matmul}"),
    "host_time_is_its_own": Break(
        "update host_events set self_ns = dur_ns + 1 where event_id = (select min(event_id) from host_events where dur_ns > 0)"
    ),
    "communication_is_hidden_or_exposed": Break("update collectives set hidden_ns = hidden_ns + 1 where {comm}"),
    "shares_of_communication_are_exposed": Break(
        "update collectives set hidden_ns = hidden_ns + exposed_ns, exposed_ns = 0 where {comm}"
    ),
    "exposed_communication_is_split": Break(
        "update collective_matches set predicted_ns = 1_000_000_000 where {comm};"
        "update comm_windows set minimum_ns = 1_000_000_000 where {comm}"
    ),
    "waiting_has_an_arrival": Break(
        "update collective_matches set arrival_ns = (select start_ns from ops where {comm}) where {comm}"
    ),
    "minimum_is_predicted": Break("update collective_matches set predicted_ns = 1 where {last_comer}"),
    "nobody_arrives_after_the_last": Break(
        "update collective_matches set arrival_ns = arrival_ns - 1_000_000 where {last_comer}"
    ),
    "ranks_agree_on_a_collective": Break("update collective_matches set last_rank = 1 - last_rank where {comm}"),
    "collectives_are_operations": Break(
        "insert into collectives by name select trace_id, op_id, device_id, 0 as hidden_ns, dur_ns as exposed_ns "
        "from ops where {matmul}"
    ),
    "groups_have_their_size": Break("update collectives set group_size = 3 where {comm}"),
    "costs_have_a_source": Break("update ops set cost_source = 'none' where {matmul}"),
    "work_adds_up": Break("update step_work set math_ns = math_ns + 1 where {step}", also=BUCKETS),
    "evaluated_steps_have_theory": Break("delete from step_theory where {step}"),
    "peaks_are_positive": Break("update peaks set flops_per_s = 0 where dtype = 'fp8'"),
    "unknown_costs_have_a_reason": Break(
        "update ops set flops = null, bytes = null, cost_source = 'none', cost_note = '' where {matmul}"
    ),
    "unknown_parts_have_a_reason": Break("update step_theory set model_flops = null, mfu_note = null where {step}"),
    "words_are_known": Break(
        "update host_events set kind = 'noise' where event_id = (select min(event_id) from host_events where dur_ns > 0)"
    ),
    "savings_are_within_the_gap": Break(
        "update findings set saves_ns = 1_000_000_000 where saves_ns is not null", also=frozenset({"savings_are_drawn"})
    ),
    "savings_draw_on_buckets": Break(
        "insert into findings (run_id, kind, evidence) "
        "select run_id, 'x', '{{\"drawn_ns\": {{\"idle_host\": 1000000000}}}}' from runs"
    ),
    "savings_are_drawn": Break("update findings set saves_ns = saves_ns - 1 where saves_ns > 1"),
    "memory_adds_up": Break(
        "insert into memory (trace_id, device_id, part, part_of, bytes, detail) "
        "select trace_id, '0', p.part, p.part_of, 7, false from traces, (values ('peak_allocated', null), "
        "('forward', 'peak_allocated'), ('backward', 'peak_allocated')) p(part, part_of)"
    ),
    "critical_paths_are_whole": Break(
        "update critical_path set dur_ns = dur_ns + 1 where place = (select min(place) + 1 from critical_path)"
    ),
    "lateness_adds_up": Break("update late_arrivals set late_ns = late_ns + 5 where rank is not null"),
    "what_if_saves_the_difference": Break("update what_if set saves_ns = saves_ns + 1"),
    "rows_have_a_home": Break("delete from devices where device_id = '0'"),
    "keys_are_unique": Break(
        "insert into host_events from host_events where event_id = (select min(event_id) from host_events where dur_ns > 0)"
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """Two simulated ranks, evaluated; without idle_causes, which a test fills itself."""
    folder = tmp_path_factory.mktemp("laws")
    simulated.write("kineto", 2, 1, folder / "traces")
    with open_store(folder / "t.duckdb") as con:
        join.prepare(con)
        join.evaluate_stale(con, [r.run_id for r in ingest_paths(con, [folder / "traces"]) if r.run_id])
        con.execute("delete from idle_causes").fetchall()
        for view in ("ops", "op_windows", "host_events"):  # rows that can be changed one by one
            con.execute(
                f"create table told as from {view}; drop view {view}; alter table told rename to {view}"
            ).fetchall()
        yield con


def broken(con: duckdb.DuckDBPyConnection) -> set[str]:
    return {name for name, law in LAWS.items() if laws.check(con, law)}


def test_all_hold_in_a_sound_store(sound: duckdb.DuckDBPyConnection) -> None:
    assert broken(sound) == set()


def test_every_law_is_broken_once() -> None:
    assert BREAKS.keys() == LAWS.keys()
    assert len(LAWS) == len(laws.LAWS)


@pytest.mark.parametrize("name", BREAKS)
def test_what_breaks_a_law_is_named(sound: duckdb.DuckDBPyConnection, name: str) -> None:
    sound.execute("begin").fetchall()
    try:
        sound.execute(BREAKS[name].sql.format(**ROWS)).fetchall()
        assert broken(sound) == {name} | BREAKS[name].also
    finally:
        sound.execute("rollback").fetchall()


def test_a_breach_says_where(sound: duckdb.DuckDBPyConnection) -> None:
    sound.execute("begin").fetchall()
    try:
        sound.execute("update steps set kernels = kernels + 1 where rank = 1").fetchall()
        breach = laws.check(sound, LAWS["kernels_counted"])
        assert breach is not None
        assert breach.rows == 4  # its steps
        assert breach.first[0]["path"].endswith("rank1.pt.trace.json.gz")
        assert breach.first[0]["kernels"] == breach.first[0]["launched"] + 1
        assert breach.line().startswith("kernels_counted: A marked step has as many kernels")
        assert "Broken 4 times; first: path " in breach.line()
    finally:
        sound.execute("rollback").fetchall()


def test_the_file_is_plain_sql(sound: duckdb.DuckDBPyConnection) -> None:
    text = (Path(laws.__file__).parent / "sql" / "laws.sql").read_text()
    assert len(sound.extract_statements(text)) == len(LAWS)
    for law in laws.LAWS:
        assert f"select '{law.name}' as law" in law.sql


def test_a_store_that_was_never_evaluated_is_named(tmp_path: Path) -> None:
    with open_store(tmp_path / "t.duckdb") as con, pytest.raises(StoreError, match="never evaluated"):
        laws.check(con, LAWS["buckets_add_up"])


def test_the_laws_know_all_buckets_keys_and_words() -> None:
    assert all(column in LAWS["buckets_add_up"].sql for column in buckets.COLUMNS)
    assert all(
        f"from {t.name} group by" in LAWS["keys_are_unique"].sql.replace("\n", " ") for t in schema.RELATIONS if t.key
    )
    for word in (*OpClass, *CollectiveKind):
        assert f"'{word.value}'" in LAWS["words_are_known"].sql

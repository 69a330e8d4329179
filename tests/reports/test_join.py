"""Theory joined to measurement: the views against `models`, and findings on small runs with known answers."""

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracegap.ingest.load import store_trace
from tracegap.ingest.store import frame_of, open_store
from tracegap.ingest.trace import COLLECTIVES, HOST_EVENTS, OPS, STEP_MARKS, Device, Trace
from tracegap.models import hardware, roofline
from tracegap.models.collectives import Fabric, predict
from tracegap.models.errors import TracegapError
from tracegap.models.nccl import bus_factor
from tracegap.models.ops import CollectiveKind, OpClass
from tracegap.reports import join
from tracegap.reports.buckets import COLUMNS, SUM_SQL

H100 = "NVIDIA H100 80GB HBM3"


def frame(rows, schema):
    whole = [{c: row.get(c) for c in schema} for row in rows]
    return pl.DataFrame(whole, schema=schema)


def op(i, start, dur, op_class="matmul", **more):
    return {
        "op_id": i, "device_id": "0", "stream": "7", "name": f"k{i}", "op_class": op_class, "start_ns": start, "dur_ns": dur,
        "cost_source": "shapes", "launch_ns": start - 10, "launch_thread": "1/1", **more,
    }  # fmt: skip


def trace(ops, *, rank=0, world_size=1, marks=(), collectives=(), device=H100, origin=0):
    return Trace(
        format="test", framework="pytorch", origin_unix_ns=origin, rank=rank, world_size=world_size,
        devices=[Device(device_id="0", kind="gpu", name=device)],
        ops=frame(ops, OPS), host_events=frame([], HOST_EVENTS), collectives=frame(collectives, COLLECTIVES),
        step_marks=frame(
            [{"step": n, "start_ns": s, "dur_ns": d, "source": "profiler_step", "thread": "1/1"} for n, s, d in marks], STEP_MARKS
        ),
    )  # fmt: skip


def put(con, *traces, run="run", described=None):
    for i, t in enumerate(traces):
        store_trace(
            con, t, trace_id=f"{run}{i}", run_id=run, path=f"{run}{i}.json", sha256=f"{run}{i}", described=described
        )
    join.evaluate(con, run)


@pytest.fixture
def con(tmp_path):
    with open_store(tmp_path / "s.duckdb") as connection:
        yield connection


COSTS = st.tuples(
    st.sampled_from([c for c in OpClass if c not in (OpClass.COLLECTIVE, OpClass.COPY)]),
    st.one_of(st.none(), st.just(0), st.integers(1, 10**16)),
    st.one_of(st.none(), st.just(0), st.integers(1, 10**13)),
    st.sampled_from(["bf16", "fp8", "fp32", "tf32", "int32", None]),
)


BY_MEMORY = {
    OpClass.ELEMENTWISE, OpClass.REDUCTION, OpClass.NORMALIZATION, OpClass.SOFTMAX, OpClass.DATA_MOVEMENT,
    OpClass.EMBEDDING, OpClass.SORT,
}  # fmt: skip


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(COSTS, min_size=1, max_size=20))
def test_the_view_op_gap_is_the_roofline_of_models(tmp_path_factory, costs):
    chip = hardware.get("h100_sxm")
    ops = [op(i, 100 * i, 50, c.value, flops=f, bytes=b, dtype=d) for i, (c, f, b, d) in enumerate(costs)]
    with open_store(tmp_path_factory.mktemp("s") / "s.duckdb") as con:
        put(con, trace(ops))
        rows = frame_of(
            con, "select op_id, t_math_ns, t_mem_ns, t_min_ns, bound, gap_ns, share_ns from op_gap order by op_id"
        )
    assert len(rows) == len(costs)
    for row, (op_class, flops, size, dtype) in zip(rows.to_dicts(), costs, strict=True):
        matrix = op_class in (OpClass.MATMUL, OpClass.ATTENTION, OpClass.CONVOLUTION)
        peak = (chip.device_flops_per_s(dtype) if dtype else None) if matrix else chip.device_vector_flops_per_s
        want = roofline.predict(flops, size, peak, chip.device_hbm_bytes_per_s)
        math_ns, mem_ns = (want.t_math_ns, want.t_mem_ns) if want else (None, None)
        assert (row["t_math_ns"], row["t_mem_ns"]) == (math_ns, mem_ns)
        if flops is None and op_class in BY_MEMORY and mem_ns is not None:
            assert (row["t_min_ns"], row["bound"], row["gap_ns"]) == (mem_ns, "memory", 50 - mem_ns)
        elif math_ns is None or mem_ns is None:
            assert row["t_min_ns"] is None
            assert row["bound"] is None
        else:
            assert row["t_min_ns"] == want.lower_ns
            assert row["bound"] == {"math": "compute", "memory": "memory"}[want.bound]
            assert row["gap_ns"] == 50 - want.lower_ns


def test_each_compute_bucket_by_hand(con):
    # One step, 989.4 TFLOP/s and 3352 GB/s: 1000 ns of math in 1500, 2000 ns of memory in 2100, 700 unknown, 200 idle.
    ops = [
        op(0, 100, 1500, flops=989_400_000, bytes=3352, dtype="bf16"),
        op(1, 1600, 2100, "elementwise", flops=67_000, bytes=6_704_000, dtype="bf16"),
        op(2, 3900, 700, "custom"),
    ]
    put(con, trace(ops, marks=[(4, 0, 5000)]))
    row = frame_of(
        con, f"select wall_ns, {', '.join(COLUMNS)}, modelled_share_frac, hfu, mfu from step_gap"
    ).to_dicts()[0]
    assert {k: v for k, v in row.items() if v} == {
        "wall_ns": 4500, "useful_math_ns": 1001, "memory_bound_ns": 1999, "kernel_inefficiency_ns": 600,
        "unmodelled_compute_ns": 700, "idle_gap_ns": 10, "idle_host_ns": 190, "modelled_share_frac": pytest.approx(3600 / 4300),
        "hfu": pytest.approx(1000 / 4500),
    }  # fmt: skip


def test_a_compiled_kernel_is_bound_by_its_bytes_and_pretends_no_flops(con):
    # 3352 GB/s: 2000 ns of memory in 2100; the FLOPs of a generated kernel are unknown, its buffers are not. A matrix
    # product of unknown FLOPs stays unknown, whatever its bytes.
    ops = [
        op(0, 100, 1500, flops=989_400_000, bytes=3352, dtype="bf16"),
        op(1, 1600, 2100, "elementwise", name="triton_poi_fused_add_0", bytes=6_704_000, cost_note="buffers"),
        op(2, 3700, 700, "matmul", name="triton_tem_fused_mm_1", bytes=6_704_000, dtype="bf16"),
        op(3, 4400, 300, "reduction", name="triton_red_fused_sum_2"),
    ]
    put(con, trace(ops, marks=[(4, 0, 5000)]))
    rows = con.execute(
        "select flops, t_math_ns, t_min_ns, bound, gap_ns, cost_note from op_gap order by op_id"
    ).fetchall()
    alone = "buffers; the bound is that of memory alone: FLOPs are unknown and count nothing"
    assert rows[1] == (None, None, 2000, "memory", 100, alone)
    assert [row[2] for row in rows[2:]] == [None, None]
    columns = f"wall_ns - ({SUM_SQL}), useful_math_ns, memory_bound_ns, kernel_inefficiency_ns, unmodelled_compute_ns, flops_done"
    assert con.execute(f"select {columns} from step_gap").fetchall() == [(0, 1000, 2000, 600, 1000, 989_400_000)]


def test_an_operation_that_a_window_cuts_counts_on_both_sides(con):
    # 2000 ns of compute over two windows; its bound is 1000 ns: 3/4 of both lie in the first window.
    ops = [
        op(0, 100, 2000, flops=989_400_000, bytes=0, dtype="bf16", launch_ns=10),
        op(1, 1600, 100, "custom", launch_ns=1500),
    ]
    put(con, trace(ops, marks=[(1, 0, 1000), (2, 1000, 1000)]))
    rows = frame_of(
        con, "select step, wall_ns, useful_math_ns, kernel_inefficiency_ns, unmodelled_compute_ns from step_gap"
    )
    assert rows.sort("step").rows() == [(1, 1500, 750, 750, 0), (2, 100, 50, 0, 50)]


def test_an_operation_beating_its_bound_is_negative_and_found(con):
    put(con, trace([op(0, 100, 500, flops=989_400_000, bytes=0, dtype="bf16")]))
    assert con.execute("select kernel_inefficiency_ns from step_gap").fetchall() == [(-500,)]
    found = con.execute("select what from findings where kind = 'beats_its_bound'").fetchall()
    assert len(found) == 1
    assert "takes 50% of its bound" in found[0][0]


def collective(i, **more):
    return {
        "op_id": i, "collective": "all_reduce", "group_id": "g", "group_ranks": "[0,1]", "group_size": 2, "seq": i,
        "message_bytes": 45_000_000, "dtype": "bf16", **more,
    }  # fmt: skip


def test_wait_minimum_and_inefficiency_of_exposed_communication(con):
    # Rank 1 comes 30 us later; both end at 400 us. From 350 us on rank 0 computes beside it.
    marks = [(1, 0, 10**6)]
    late = 30_000
    ranks = [
        trace(
            [op(0, 100_000 + start, 300_000 - start, "collective"), op(1, 350_000, 50_000, "custom")],
            rank=rank, world_size=2, marks=marks, collectives=[collective(0)],
        )
        for rank, start in ((0, 0), (1, late))
    ]  # fmt: skip
    put(con, *ranks)
    predicted = predict(CollectiveKind.ALL_REDUCE, 45_000_000, 2, Fabric.switch(hardware.get("h100_sxm"))).total_ns
    assert 100_000 < predicted < 120_000
    rows = frame_of(
        con,
        "select rank, comm_wait_ns, comm_minimum_ns, comm_inefficiency_ns, exposed_comm_ns from step_gap order by 1",
    )
    assert rows.rows() == [
        (0, 30_000, predicted, 220_000 - predicted, 250_000),
        (1, 0, predicted, 220_000 - predicted, 220_000),
    ]
    gap = frame_of(
        con, "select rank, wait_ns, transfer_ns, exposed_ns, hidden_ns, busbw_gb_per_s, last_rank from collective_gap"
    )
    assert gap.sort("rank").rows() == [
        (0, 30_000, 270_000, 250_000, 50_000, pytest.approx(45_000_000 / 270_000), 1),
        (1, 0, 270_000, 220_000, 50_000, pytest.approx(45_000_000 / 270_000), 1),
    ]


def test_an_unknown_part_gets_no_percentage_but_a_finding_that_says_how_to_add_it(con):
    put(con, trace([op(0, 100, 500, flops=10**9, bytes=10**6, dtype="bf16")], device="NVIDIA H100"))
    assert con.execute("select t_min_ns, efficiency_frac, unknown_because from op_gap").fetchall() == [
        (None, None, "unknown part: no peaks")
    ]
    assert con.execute("select mfu, hfu, unmodelled_compute_ns from step_gap").fetchall() == [(None, None, 500)]
    what = con.execute("select what from findings where kind = 'unknown_part'").fetchall()[0][0]
    assert "'NVIDIA H100'" in what
    assert "models/chips" in what


def test_findings_of_a_trace_without_sizes_have_no_zeros_in_their_words(con):
    rows = [op(0, 100, 5000, "collective"), op(1, 6000, 100, "custom")]
    put(con, trace(rows, collectives=[collective(0, group_size=None, group_ranks=None, message_bytes=None)]))
    what = con.execute("select what from findings where kind = 'slow_communication'").fetchall()[0][0]
    assert what == ("all_reduce: 1 a step; 5.00 µs a step exposed, waiting for ranks that are not matched included")


def test_duplicate_and_missing_ranks_are_found_and_none_is_overwritten(con):
    put(con, *[trace([op(0, 100, 500)], rank=r, world_size=4) for r in (0, 1, 1)])
    kinds = dict(con.execute("select kind, what from findings where severity <> 'info'").fetchall())
    assert "rank 1 is there 2 times" in kinds["duplicate_rank"]
    assert "2 of 4 ranks" in kinds["missing_ranks"]
    assert con.execute("select count(*) from steps").fetchall() == [(3,)]


def test_evaluating_twice_gives_the_same(con):
    put(con, trace([op(0, 100, 500), op(1, 700, 100, "collective")], collectives=[collective(1)]))
    tables = ("collective_matches", "comm_windows", "step_theory", "findings")
    before = {t: sorted(map(str, con.execute(f"select * from {t}").fetchall())) for t in tables}
    join.evaluate(con, "run")
    assert {t: sorted(map(str, con.execute(f"select * from {t}").fetchall())) for t in tables} == before


def test_an_unknown_run_is_an_error_that_says_how_to_list_them(con):
    with pytest.raises(TracegapError, match="no such run"):
        join.evaluate(con, "nothing")


def test_every_column_of_the_store_has_a_meaning(con):
    put(con, trace([op(0, 100, 500)]))
    bare = con.execute("""
        select table_name, column_name from duckdb_columns()
        where comment is null and not internal and table_name not in ('store_version', 'hardware')
          and table_name in (select table_name from duckdb_tables())""").fetchall()  # fmt: skip
    assert bare == []


def test_the_sum_of_the_buckets_is_what_sql_users_are_told(con):
    put(con, trace([op(0, 100, 500), op(1, 700, 100, "copy")]))
    assert con.execute(f"select wall_ns - ({SUM_SQL}) from step_gap").fetchall() == [(0,)]
    assert len(COLUMNS) == 15


@pytest.mark.parametrize("kind", list(CollectiveKind))
def test_busbw_is_that_of_nccl_tests(con, kind):
    ranks = 8
    message = collective(0, collective=kind.value, group_size=ranks, group_ranks=None, message_bytes=10**6)
    put(con, trace([op(0, 100, 5000, "collective")], collectives=[message]))
    algbw, busbw = con.execute("select algbw_gb_per_s, busbw_gb_per_s from collective_gap").fetchall()[0]
    assert algbw == pytest.approx(200.0)
    if kind is CollectiveKind.BARRIER:
        assert busbw is None
    else:
        assert busbw == pytest.approx(200.0 * bus_factor(kind, ranks))


def test_without_marks_what_was_launched_belongs_to_the_one_step(con):
    put(con, trace([op(0, 100, 50), op(1, 200, 50, launch_ns=None), op(2, 300, 10, "copy")]))
    assert con.execute("select step from ops order by op_id").fetchall() == [(0,), (None,), (0,)]
    put(con, trace([op(i, 100 * i, 50, launch_ns=None) for i in range(3)]), run="nothing-launched")
    assert con.execute("select distinct step from ops where trace_id like 'nothing%'").fetchall() == [(0,)]

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import altair as alt
import duckdb
import polars as pl
import pytest

from tracegap.ingest import store
from tracegap.reports import page, section, sections, theme
from tracegap.reports.buckets import BUCKETS, COLUMNS
from tracegap.reports.sections import (
    across_ranks,
    idle,
    memory,
    operations,
    ranks,
    roofline,
    run_theory,
    steps,
    waterfall,
)
from tracegap.reports.summary import snapshot, summarize

US = 1_000
Con = duckdb.DuckDBPyConnection
Make = Callable[..., None]
MODULES = page.section_modules()


def built(con: Con, module: ModuleType, run_id: str = "job/mon") -> section.Section:
    result: section.Section = module.build(section.Context(con, summarize(con, run_id)))
    return result


def chart_rows(chart: object) -> list[dict[str, object]]:
    """All rows that a chart carries."""
    return [row for rows in theme.finish(chart)["datasets"].values() for row in rows]  # type: ignore[arg-type]


def test_every_file_of_the_folder_is_a_section_in_order() -> None:
    files = {p.stem for p in Path(sections.__path__[0]).glob("*.py")} - {"__init__"}
    assert {m.__name__.rsplit(".", 1)[1] for m in MODULES} == files
    orders = [m.ORDER for m in MODULES]
    assert orders == sorted(set(orders))


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.rsplit(".", 1)[1])
class TestEverySection:
    def test_shows_a_run(self, module: ModuleType, module_con: Con) -> None:
        found = built(module_con, module)
        assert found.title
        assert found.sentence.endswith(".")
        assert found.figures
        for figure in found.figures:
            assert figure.cells, figure.title
            if figure.chart is not None:
                assert len(figure.alt) > 20
                json.dumps(theme.finish(figure.chart), allow_nan=False)

    def test_its_query_as_shown_gives_its_rows(self, module: ModuleType, module_con: Con) -> None:
        """Without the snapshot, from the text alone."""
        with snapshot(module_con, run_id="job/mon"):
            found = built(module_con, module)
        for figure in found.figures:
            assert not re.search(r"\$[a-z]", figure.query.text)
            assert pl.DataFrame(module_con.sql(figure.query.text)).to_dicts() == figure.query.rows.to_dicts(), (
                figure.title
            )

    def test_says_why_where_there_is_nothing(self, module: ModuleType, con: Con) -> None:
        store.insert_row(con, "runs", {"run_id": "job/mon", "job": "job"})
        found = built(con, module)
        assert found.sentence.endswith(".")
        assert all(figure.chart is None for figure in found.figures)

    def test_shows_a_part_that_nobody_knows(self, module: ModuleType, con: Con, make_run: Make) -> None:
        make_run()
        for sql in (
            "delete from peaks",
            "update devices set hardware = null, hbm_bytes_per_s = null",
            "delete from step_theory",
        ):
            con.execute(sql).fetchall()
        found = built(con, module)
        assert found.sentence
        for figure in found.figures:
            if figure.chart is not None:
                theme.finish(figure.chart)


def test_the_waterfall_is_the_account_of_the_step(con: Con, make_run: Make) -> None:
    make_run()
    rows = {r["bucket"]: r for r in built(con, waterfall).figures[0].query.rows.to_dicts()}
    assert list(rows) == list(COLUMNS)
    worked_out = {
        "useful_math_ns": 210_100, "memory_bound_ns": 69_900, "kernel_inefficiency_ns": 130_000,
        "unmodelled_compute_ns": 40_000, "comm_minimum_ns": 100_000, "comm_wait_ns": 40_000,
        "comm_inefficiency_ns": 60_000, "exposed_copy_ns": 50_000, "idle_host_ns": 100_000, "idle_sync_ns": 50_000,
        "idle_input_ns": 100_000, "idle_gap_ns": 40_000, "idle_unknown_ns": 10_000,
    }  # fmt: skip
    assert {b: r["ns"] for b, r in rows.items() if r["ns"]} == worked_out
    assert sum(r["ns"] for r in rows.values()) == 1_000_000 == summarize(con, "job/mon").step_ns
    ends = [0, *(r["to_ns"] for r in rows.values())]
    assert [r["from_ns"] for r in rows.values()] == ends[:-1]


def test_operations_inside_a_bucket_add_up_to_it(con: Con, make_run: Make) -> None:
    make_run()
    for row in built(con, waterfall).figures[0].query.rows.to_dicts():
        if row["operations"]:
            assert sum(o["ns"] for o in row["operations"]) == row["ns"], row["bucket"]


def test_the_mean_over_devices_still_adds_up_in_whole_ns(con: Con, make_run: Make) -> None:
    make_run(ranks=3)
    con.execute(
        "update steps set idle_host_ns = idle_host_ns + 1, idle_ns = idle_ns + 1, wall_ns = wall_ns + 1 where rank = 0"
    )
    rows = built(con, waterfall).figures[0].query.rows
    summary = summarize(con, "job/mon")
    assert summary.step is not None
    assert rows["ns"].sum() == summary.step_ns == 1_000_000  # the mean is 1,000,000 and a third
    assert dict(rows.select("bucket", "ns").iter_rows()) == {c: summary.step[c] for c in COLUMNS}


def test_a_bucket_below_zero_is_drawn_and_explained(con: Con, make_run: Make, anew: Make) -> None:
    make_run()
    con.execute("update peaks set flops_per_s = flops_per_s / 4").fetchall()
    anew()
    figure = built(con, waterfall).figures[0]
    row = next(r for r in figure.table.to_dicts() if r["bucket"] == "kernel_inefficiency_ns")
    assert row["ns"] < 0
    assert row["group"] == "faster than its bound"
    assert "beat their bound" in figure.note
    assert figure.query.rows["ns"].sum() == 1_000_000


def test_many_kernels_are_grouped_not_cut(con: Con, make_run: Make) -> None:
    """More names than rows: what is shown still adds up to all of the time."""
    make_run()
    many = pl.DataFrame(
        {
            "trace_id": ["job/mon-0"] * 9_000,
            "op_id": range(1_000, 10_000),
            "device_id": ["0"] * 9_000,
            "stream": ["7"] * 9_000,
            "name": [f"kernel_{i}" for i in range(9_000)],
            "op_class": ["elementwise"] * 9_000,
            "start_ns": range(0, 90_000_000, 10_000),
            "dur_ns": [5_000] * 9_000,
            "share_ns": [5_000] * 9_000,
            "flops": [10_000_000 + i for i in range(9_000)],
            "bytes": [10_000 + i for i in range(9_000)],
        }
    )
    store.insert(con, "ops", many)
    whole = con.execute("select sum(dur_ns) from ops").fetchall()[0][0]
    figure = built(con, operations).figures[0]
    assert figure.query.rows["time_ns"].sum() == whole
    assert len(figure.query.rows) < 300
    assert figure.chart is not None
    bars = [r for r in chart_rows(figure.chart) if "ns" in r]
    assert len(bars) <= section.MAX_CHART_ROWS
    assert sum(r["ns"] for r in bars) == whole  # type: ignore[misc]
    drawn = built(con, roofline).figures[0]
    with_cost = con.execute("select sum(dur_ns) from ops where flops > 0 and bytes > 0").fetchall()[0][0]
    assert drawn.query.rows["time_ns"].sum() == with_cost
    assert len(drawn.query.rows) <= section.MAX_CHART_ROWS


def test_lost_time_is_what_the_step_would_gain(con: Con, make_run: Make) -> None:
    make_run()
    lost = {r["operation"]: r["lost_per_step_ns"] for r in built(con, operations).figures[0].query.rows.to_dicts()}
    assert lost["gemm_bf16_128x128"] == 100 * US
    assert lost["layer_norm_kernel"] == 40 * US
    assert lost["cached_add"] == -10 * US
    assert lost["ncclDevKernel_AllReduce_Sum_bf16_RING"] == 100 * US  # 200 less the minimum of 100
    assert lost["Memcpy HtoD (Pinned -> Device)"] == 50 * US
    assert [v for v in lost.values() if v is None] == [None]  # the kernel of unknown cost


def test_instances_of_an_operation_count_together(con: Con, make_run: Make, other_ops: Make) -> None:
    """XLA numbers its fusions, and a model its layers; tile sizes in kernel names tell kernels apart."""
    make_run()
    other_ops(
        "if(dtype = 'fp32', 'fusion.' || op_id, name) as name, "
        "if(dtype = 'fp32', 'jit(f)/layer_' || step || '/add', framework_op) as framework_op"
    )
    rows = built(con, operations).figures[0].query.rows
    fused = rows.filter(operation="fusion").to_dicts()
    assert {r["op_class"] for r in fused} == {"normalization", "elementwise"}
    assert [r["calls"] for r in fused] == [2 * 3, 2 * 3]
    assert {r["framework_op"] for r in fused} == {"jit(f)/layer_#/add"}
    assert "gemm_bf16_128x128" in rows["operation"]


def test_roofline_points_and_ceilings(con: Con, make_run: Make) -> None:
    make_run()
    rows = built(con, roofline).figures[0].query.rows
    gemm = rows.filter(name="gemm_bf16_128x128").to_dicts()[0]
    assert gemm["flops_per_byte"] == pytest.approx(2_000)
    assert gemm["flops_per_s"] == pytest.approx(2e11 / 300e-6)
    assert gemm["efficiency_frac"] == pytest.approx(2 / 3)
    peaks = {n: max(f) for n, f in rows.filter(what="ceiling").group_by("name").agg("flops_per_s").iter_rows()}
    assert peaks == {"bf16 matrix peak": 1e15, "vector peak": 1e14}
    slanted = rows.filter(what="ceiling").sort("flops_per_byte").head(1).to_dicts()[0]
    assert slanted["flops_per_s"] == pytest.approx(slanted["flops_per_byte"] * 2e12)


def test_collectives_measured_against_predicted(con: Con, make_run: Make) -> None:
    make_run()
    figures = built(con, importlib.import_module("tracegap.reports.sections.collectives")).figures
    megabyte = figures[0].query.rows.filter(message_bytes=1_000_000).to_dicts()[0]
    # 1 MB in 160 us of transfer; all-reduce over 2 ranks moves 2 (n - 1) / n = 1 times the message.
    assert megabyte["busbw_gb_per_s"] == pytest.approx(1e6 / 160e3)
    assert megabyte["predicted_gb_per_s"] == pytest.approx(1e6 / 100e3)
    waits = figures[1].query.rows
    assert waits["wait_per_step_ns"].to_list() == [40 * US, 40 * US]
    assert waits["caused_per_step_ns"].to_list() == [0, 80 * US]  # rank 1 is last; both ranks wait 40 in this store


def test_collectives_of_no_step_and_of_no_predicted_time(con: Con, make_run: Make) -> None:
    make_run()
    con.execute("update op_rows set step = null").fetchall()
    con.execute("update collective_matches set predicted_ns = 0").fetchall()
    figures = built(con, importlib.import_module("tracegap.reports.sections.collectives")).figures
    assert figures[0].query.rows["predicted_gb_per_s"].to_list() == [None] * 3
    assert figures[1].query.rows["wait_per_step_ns"].to_list() == [3 * 40 * US] * 2


def test_many_steps_share_bars_and_cells(con: Con, make_run: Make) -> None:
    make_run()
    many = pl.DataFrame(
        {
            "run_id": ["job/mon"] * 12_000,
            "trace_id": ["job/mon-0"] * 6_000 + ["job/mon-1"] * 6_000,
            "rank": [0] * 6_000 + [1] * 6_000,
            "device_id": ["0"] * 12_000,
            "step": [*range(10, 6_010)] * 2,
            "start_ns": [i * 10 * US for i in range(12_000)],
            "wall_ns": [10 * US] * 12_000,
            "complete": [True] * 12_000,
            "compute_ns": [6 * US] * 12_000,
            "idle_ns": [4 * US] * 12_000,
        }
    )
    none = ("exposed_comm", "exposed_copy", "idle_sync", "idle_input", "idle_gap", "idle_unknown")
    many = many.with_columns(pl.lit(0).alias(f"{name}_ns") for name in none)
    many = many.with_columns(idle_host_ns=pl.col("idle_ns"))
    store.insert(con, "steps", many)
    strip = built(con, steps)
    assert strip.figures[0].query.rows["step"].n_unique() <= steps.MAX_BARS
    assert "Each bar is the mean of 7 steps." in strip.sentence
    assert len(built(con, ranks).figures[0].query.rows) <= 2 * (ranks.MAX_SIDE + 1)


def test_ranks_name_the_slow_one(con: Con, make_run: Make) -> None:
    make_run(ranks=4)
    con.execute("update steps set exposed_comm_ns = exposed_comm_ns - 90000 where rank = 2").fetchall()
    said = built(con, ranks).sentence
    assert "Rank 2 has the most work, copies and idle time of its own: 90.0 µs more than the median rank" in said
    assert "another question than which rank arrives last" in said


def test_devices_whose_steps_are_marked_differently_are_not_compared(con: Con, make_run: Make) -> None:
    make_run()
    con.execute("update steps set source = 'whole_trace' where rank = 1").fetchall()
    how = "marked in different ways (1 device by profiler_step, 1 device by whole_trace)"
    assert not built(con, ranks).figures
    assert how in built(con, ranks).sentence
    assert how in built(con, steps).sentence
    assert "take" not in built(con, steps).sentence.partition("step before")[0].partition("A step starts")[0]


def test_communication_that_no_model_predicts_is_not_said_to_be_saved(con: Con, make_run: Make, anew: Make) -> None:
    make_run()
    con.execute("update collective_matches set predicted_ns = null").fetchall()
    con.execute("update comm_windows set minimum_ns = 0").fetchall()
    anew()
    summary = summarize(con, "job/mon")
    rows = {r["bucket"]: r for r in built(con, waterfall).figures[0].table.to_dicts()}
    assert rows["comm_inefficiency_ns"]["ns"] == 160 * US  # 200 less 40 of waiting
    assert {rows[b]["group"] for b in ("comm_inefficiency_ns", "comm_minimum_ns")} == {"not known"}
    assert rows["comm_minimum_ns"]["time"] == "unknown"
    assert rows["comm_wait_ns"]["group"] == "could be saved"
    assert summary.unknown_frac == pytest.approx((160 + 40 + 10) / 1000)
    assert "Its mathematics and memory traffic need at least 280 µs, not counting the 21.0%" in summary.opening
    assert summary.largest_loss == ("slow kernels", 130 * US)
    collective = next(r for r in built(con, operations).figures[0].table.to_dicts() if r["op_class"] == "collective")
    assert (collective["lost_ns"], collective["unknown_ns"]) == (6 * 40 * US, 6 * 160 * US)


def test_savings_of_unpredicted_communication_are_not_promised(con: Con, make_run: Make, make_finding: Make) -> None:
    make_run()
    make_finding(kind="slow_communication", what="guess", evidence={"known": "waiting"}, saves_ns=500 * US)
    make_finding(kind="slow_communication", what="sure", evidence={"known": "the minimum"}, saves_ns=50 * US)
    saves = {f["what"]: f["saves_ns"] for f in summarize(con, "job/mon").findings}
    assert saves == {"guess": None, "sure": 50 * US}


def test_waiting_that_nobody_could_match_is_not_zero(con: Con, make_run: Make, anew: Make) -> None:
    make_run()
    con.execute("update collective_matches set instance_id = null, arrival_ns = null").fetchall()
    con.execute("update comm_windows set wait_ns = 0").fetchall()
    anew()
    found = built(con, waterfall)
    rows = {r["bucket"]: r for r in found.figures[0].table.to_dicts()}
    assert (rows["comm_wait_ns"]["ns"], rows["comm_wait_ns"]["time"]) == (0, "unknown")
    assert rows["comm_inefficiency_ns"]["title"] == "slow communication or waiting"
    assert "it is inside “slow communication or waiting”" in found.sentence


def test_parts_without_any_known_cost_are_unknown_not_zero(con: Con, make_run: Make, anew: Make) -> None:
    make_run()
    con.execute("delete from peaks").fetchall()
    con.execute(
        "update devices set hbm_bytes_per_s = null, hardware = null, matched_by = 'no chip is called X'"
    ).fetchall()
    anew()
    rows = {r["bucket"]: r["time"] for r in built(con, waterfall).figures[0].table.to_dicts()}
    assert {rows[f"{b}_ns"] for b in ("useful_math", "recompute_math", "memory_bound", "kernel_inefficiency")} == {
        "unknown"
    }
    assert "no chip is called X" in built(con, operations).todo
    assert "record_shapes" not in built(con, operations).todo


def test_the_largest_parts_are_not_empty_ones(con: Con, make_run: Make, anew: Make) -> None:
    make_run(ranks=1)
    con.execute("delete from op_parts where state <> 'compute' or op_id not in (3, 9, 15)").fetchall()
    zero = ("exposed_comm", "exposed_copy", "idle_host", "idle_sync", "idle_input", "idle_gap", "idle_unknown", "idle")
    con.execute(
        f"update steps set wall_ns = 40000, compute_ns = 40000, {', '.join(f'{n}_ns = 0' for n in zero)}"
    ).fetchall()
    anew()
    assert built(con, waterfall).sentence.endswith("The largest is unknown cost (40.0 µs).")


def test_what_is_missing_beside_the_part_is_said_too(con: Con, make_run: Make) -> None:
    """Naming the part would not help alone."""
    make_run(ranks=1)
    con.execute(
        "update devices set hbm_bytes_per_s = null, hardware = null, matched_by = 'no chip is called X'"
    ).fetchall()
    con.execute("delete from peaks").fetchall()
    con.execute(
        "update op_forms set flops = null, bytes = null, cost_note = 'no shapes' where op_class <> 'collective'"
    ).fetchall()
    assert "no shapes; and no chip is called X; name it as “hardware”" in built(con, operations).todo


def test_the_peak_that_a_trace_states_is_called_so(con: Con, make_run: Make) -> None:
    make_run()
    con.execute("update peaks set source = 'trace', flops_per_s = 4.59e14").fetchall()
    ceilings = built(con, roofline).figures[0].query.rows.filter(what="ceiling")
    assert set(ceilings["name"]) == {"peak that the trace states"}


def test_one_rank_cannot_be_compared(con: Con, make_run: Make) -> None:
    make_run(ranks=1)
    found = built(con, ranks)
    assert not found.figures
    assert "several ranks" in found.todo


def test_incomplete_steps_are_shown_and_said_to_be_left_out(con: Con, make_run: Make) -> None:
    make_run()
    found = built(con, steps)
    assert "3 steps, numbers 0 to 2" in found.sentence
    assert "what the host does before that, such as loading data, lies in the step before" in found.sentence
    assert "left out of averages (the trace ends in it)" in found.sentence
    pale = found.figures[0].query.rows.filter(~pl.col("complete"))
    assert pale["step"].unique().to_list() == [2]


def test_a_chart_with_too_many_rows_is_refused() -> None:
    query = section.Query("select 1", {}, pl.DataFrame({"x": range(section.MAX_CHART_ROWS + 1)}))
    with pytest.raises(ValueError, match="group the tail"):
        section.Figure(title="t", query=query, columns=(), chart=alt.Chart().mark_point(), alt="much")


@pytest.mark.parametrize(
    ("value", "said"),
    [("it's", "'it''s'"), (5, "5"), (None, "null"), ("x'; drop table ops --", "'x''; drop table ops --'")],
)
def test_values_are_written_into_the_shown_query_as_literals(value: object, said: str) -> None:
    assert section.Query("select $v", {"v": value}, pl.DataFrame()).text == f"select {said}"


def test_every_bucket_has_a_colour_and_every_class_a_family() -> None:
    assert {b.group for b in BUCKETS} <= theme.GROUPS.keys()
    assert set(theme.FAMILY_OF_CLASS.values()) == {words for words, _ in theme.FAMILIES.values()}


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("background", ["#ffffff", "#14161a"])
@pytest.mark.parametrize("colour", [theme.BLUE, theme.TEAL, theme.ORANGE, theme.PURPLE, theme.GREY])
def test_colours_stand_out_on_light_and_dark_pages(colour: str, background: str) -> None:
    """3 : 1, what WCAG asks of graphics."""
    light, dark = sorted((_luminance(colour), _luminance(background)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


class TestRunTheory:
    """0.8 ms planned, 1 ms measured; compute is 150 us over its plan, the data axis 110 us."""

    def test_says_where_most_is_between_the_two(self, module_con: Con) -> None:
        section = built(module_con, run_theory)
        assert section.sentence == (
            "The plan expects 800 µs a step, measured are 1.00 ms, 1.25 ×."
            " Most is between the two in compute: 150 µs more than predicted."
        )
        rows = section.figures[0].cells
        assert [cell[0] for cell in rows[2]][:4] == ["communication, data axis", "160 µs", "50.0 µs", "3.2 ×"]
        assert [cell[0] for cell in rows[3]][:4] == ["memory", "unknown", "4.00 GB", "unknown"]
        assert section.figures[1].cells[0][1][0] == "20.0%"

    def test_a_run_without_a_step_has_no_plan(self, module_con: Con) -> None:
        assert "no step" in built(module_con, run_theory, "empty").sentence


def test_the_path_of_the_step_and_the_best_change(con: Con, make_run: Make) -> None:
    make_run()
    found = built(con, across_ranks)
    assert "70.0% of the step is: a kernel runs." in found.sentence
    assert "no waiting for data (data " in found.sentence
    assert found.sentence.endswith("1.00 ms → 900 µs.")
    path, changes = found.figures
    assert path.query.rows["dur_ns"].to_list() == [700_000, 200_000, 100_000]
    assert [text for text, _ in changes.cells[0]][2:4] == ["900 µs", "+100 µs"]


def test_idle_time_is_that_of_the_step(con: Con, make_run: Make) -> None:
    make_run()
    found = built(con, idle)
    rows = found.figures[0].table
    assert rows["idle_ns"].sum() == 300_000
    assert rows.row(0, named=True) | {"gaps": 2.0} == {
        "cause": "idle_input", "activity": "data_loading", "name": "load_batch", "caller": None, "of_thread": "launching",
        "idle_ns": 100_000, "gaps": 2.0, "why": "waiting for data", "doing": "loading data", "share_frac": pytest.approx(0.1),
    }  # fmt: skip
    assert "idle for 300 µs of the median step (30.0%)" in found.sentence
    assert "waiting for data, loading data (100 µs, most in load_batch)" in found.sentence
    assert not found.todo


def test_idle_time_of_which_nothing_is_recorded_says_how_to_record_it(con: Con, make_run: Make) -> None:
    make_run()
    con.execute(
        "update idle_causes set activity = 'nothing_recorded', name = null where cause = 'idle_input'"
    ).fetchall()
    con.execute("update idle_causes set activity = 'annotation' where cause = 'idle_sync'").fetchall()
    assert "with_stack=True" in built(con, idle).todo  # 10 + 100 + 50 of 300 us


def test_memory_at_its_peak_beside_the_plan(con: Con, make_run: Make) -> None:
    make_run()
    con.execute("update devices set properties = '{\"memory_bytes\": 80000000000}'").fetchall()
    found = built(con, memory)
    assert found.sentence == (
        "At most 50.0 GB were in use on the fullest device, 62.5% of its memory. Most: there before recording: weights,"
        " optimizer, caches (30.0 GB), handed out in forward (20.0 GB). The plan of the model and mesh needs 60.0 GB."
    )
    parts, devices = found.figures
    whole = parts.table.filter(~pl.col("detail"))
    assert dict(whole.group_by("total").agg(pl.col("size_bytes").sum()).rows()) == {
        "in use": 50_000_000_000,
        "planned": 60_000_000_000,
    }
    assert "optimizer states" in set(whole["what"])
    assert devices.table["used_frac"].to_list() == [0.625, 0.625]


def test_memory_that_was_not_recorded_is_only_planned(con: Con, make_run: Make) -> None:
    make_run()
    con.execute("update memory set bytes = null, note = 'not measured' where part = 'peak_allocated'").fetchall()
    con.execute("delete from memory where part_of = 'peak_allocated'").fetchall()
    found = built(con, memory)
    assert "no memory events; by the plan the fullest device needs 60.0 GB" in found.sentence
    assert "profile_memory=True" in found.todo
    con.execute("update memory set predicted_bytes = null").fetchall()
    assert not built(con, memory).figures

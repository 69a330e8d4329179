"""What-if against the simulator with the change really made, and the critical path against the step's wall time."""

from dataclasses import replace

import polars as pl
import pytest
from _sim import ddp, fsdp, pipeline
from _sim.schedule import Changes
from tests.reports import simulated

from tracegap.ingest.store import open_store
from tracegap.models.errors import TracegapError
from tracegap.reports import asking, critical_path, run_schedule, what_if
from tracegap.reports.join import evaluate

DDP = ddp.Job(
    ranks=4, layers=3, hidden=768, heads=12, vocab=8000, sequences=2, seq=1024, first_step=10, steps=6, bucket_cap_mb=25,
    slow_rank=2, spared_step=12, stall_ns=2_400_000,
)  # fmt: skip
ALL_KERNELS = frozenset(
    f"aten::{name}" for name in (
        "mm", "addmm", "add", "embedding", "native_layer_norm", "native_layer_norm_backward", "sum", "gelu", "gelu_backward",
        "_flash_attention_forward", "_flash_attention_backward", "_fused_adamw_",
    )
)  # fmt: skip
"""Framework operations of the simulated job whose cost is known."""
JOBS = {
    "stall": replace(DDP, seed=1),
    "slow kernels": replace(DDP, seed=2, stall_ns=64_000, slow_permille=1300),
    "small buckets": replace(DDP, seed=3, bucket_cap_mb=2),
    "fsdp": fsdp.Job(seed=4),
    "fsdp again": fsdp.Job(seed=5, slow_steps=(23,)),
    "1f1b": pipeline.Job(seed=6),
    "gpipe": pipeline.Job(seed=7, schedule="gpipe", microbatches=8),
    "slow stage": pipeline.Job(seed=8, slow_rank=2, slow_permille=1400),
}
HALF = what_if.times(0.5, "collectives", lambda run: what_if.collectives(run, None))
ANY = {
    "collectives hidden": (what_if.hidden(None), {"changes": Changes(transfer_permille=0)}),
    "collectives in half the time": (HALF, {"changes": Changes(transfer_permille=500)}),
    "no input": (what_if.INPUT, {"changes": Changes(free_input=True)}),
}
OF_DDP = {
    "matrix products at their bound": (
        what_if.at_bound("aten::mm"),
        {"changes": Changes(at_bound=frozenset(["aten::mm"]))},
    ),
    "kernels at their bound": (what_if.at_bound(None), {"changes": Changes(at_bound=ALL_KERNELS)}),
    "no synchronisation": (what_if.SYNCS, {"changes": Changes(free_syncs=True)}),
    "no launches": (what_if.LAUNCHES, {"changes": Changes(free_launches=True)}),
    "no straggler": (what_if.like_median(2), {"slow_rank": -1, "slow_permille": 1000}),
}
OF_FSDP = {
    "matrix products at their bound": (what_if.at_bound("matmul"), {"changes": Changes(at_bound=frozenset(["matmul"]))}),
    "kernels at their bound": (
        what_if.at_bound(None), {"changes": Changes(at_bound=frozenset(["matmul", "elementwise", "reduction"]))},
    ),
}  # fmt: skip
OF_PIPELINE = {
    name: OF_DDP[name]
    for name in ("matrix products at their bound", "no synchronisation", "no launches", "no straggler")
}
OF = {
    ddp.Job: ANY | OF_DDP,
    fsdp.Job: ANY | OF_FSDP,
    pipeline.Job: OF_PIPELINE | {n: c for n, c in ANY.items() if n != "no input"},
}
CASES = [(job, change) for job, made in JOBS.items() for change in OF[type(made)]]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """By name of a job: its typical step as a graph."""
    found = {}
    for number, (name, job) in enumerate(JOBS.items()):
        root = tmp_path_factory.mktemp(f"job{number}")
        simulated.write(job, root / "traces")
        con, run_id = simulated.stored(root / "traces", root / "store.duckdb")
        found[name] = run_schedule.load(con, run_id, run_schedule.typical_and_slowest(con, run_id)[0])
    return found


@pytest.mark.parametrize("name", JOBS)
def test_without_a_change_the_step_is_the_measured_and_the_simulated_one(loaded, name):
    run = loaded[name]
    assert (run.schedule.graph.replay() == run.schedule.graph.time_ns).all()
    assert run.walls_ns(run.schedule.graph.time_ns).mean() == pytest.approx(
        simulated.walls_ns(JOBS[name])[run.step], abs=1
    )


@pytest.mark.parametrize(("name", "change"), CASES)
def test_the_predicted_step_is_the_simulated_one_within_2_percent(loaded, name, change):
    job, run = JOBS[name], loaded[name]
    asked, really = OF[type(job)][change]
    predicted = what_if.answer(run, asked).after_ns
    assert predicted == pytest.approx(simulated.walls_ns(replace(job, **really))[run.step], rel=0.02)


def test_the_changes_of_the_simulator_matter(loaded):
    # A prediction of "no change" would not pass the test above: these change the step by more than 2%.
    run = loaded["stall"]
    before = simulated.walls_ns(JOBS["stall"])[run.step]
    for name in ("kernels at their bound", "no synchronisation", "no straggler"):
        assert abs(simulated.walls_ns(replace(JOBS["stall"], **OF_DDP[name][1]))[run.step] / before - 1) > 0.05


@pytest.mark.parametrize("name", JOBS)
def test_the_pieces_of_the_path_follow_each_other_and_add_up_to_the_step(loaded, name):
    run = loaded[name]
    pieces = critical_path.pieces(run)
    ends = (pieces["at_ns"] + pieces["dur_ns"]).to_list()
    assert pieces["at_ns"].to_list() == [0, *ends[:-1]]
    walls = run.walls_ns(run.schedule.graph.time_ns)
    assert ends[-1] in walls.tolist()
    assert critical_path.rows(run)["dur_ns"].sum() == ends[-1]


def test_the_path_of_a_stalled_job_goes_through_the_data_loader_of_the_late_rank(loaded):
    run = loaded["stall"]
    rows = critical_path.rows(run)
    loading = rows.filter(rows["kind"] == "input")
    assert set(loading["rank"]) == {2}
    assert loading["dur_ns"].sum() > 2_400_000


def test_a_long_path_is_told_in_runs_that_add_up_alike(loaded, monkeypatch):
    run = loaded["small buckets"]
    whole = critical_path.rows(run)
    monkeypatch.setattr(critical_path, "MOST_PIECES", 10)
    short = critical_path.rows(run)
    assert len(short) < len(whole) / 3
    assert short["dur_ns"].sum() == whole["dur_ns"].sum()
    assert short["pieces"].sum() == whole["pieces"].sum()
    assert by_kind(short) == by_kind(whole)


def by_kind(rows):
    return dict(rows.group_by("kind").agg(pl.col("dur_ns").sum()).rows())


def test_what_is_asked_must_exist(loaded):
    run = loaded["stall"]
    with pytest.raises(TracegapError, match="no operation 'aten::nothing'"):
        what_if.answer(run, what_if.at_bound("aten::nothing"))
    with pytest.raises(TracegapError, match="it has all_reduce"):
        what_if.answer(run, what_if.hidden("all_to_all"))
    with pytest.raises(TracegapError, match="no rank 9"):
        what_if.answer(run, what_if.like_median(9))
    with pytest.raises(TracegapError, match="one change at a time"):
        asking.change_of({"kernel": "mm", "hidden": True, "rank": None})


LAWS = """
with path as (select run_id, step, sum(dur_ns) as ns from critical_path group by all)
select run_id, step, ns, (select list(wall_ns) from steps s where s.run_id = path.run_id and s.step = path.step) as walls
from path
"""


def test_over_all_samples_the_path_adds_up_to_the_step(samples):
    with open_store(samples, read_only=True) as con:
        rows = con.execute(LAWS).fetchall()
        runs = con.execute("select count(distinct run_id) from steps").fetchall()[0][0]
        assert len({row[0] for row in rows}) == runs
        for run_id, step, ns, walls in rows:
            assert ns in walls, (run_id, step)
        gone = con.execute("select count(*) from what_if where saves_ns <> before_ns - after_ns").fetchall()[0][0]
        assert gone == 0


def test_an_evaluation_replaces_what_an_earlier_one_wrote(tmp_path):
    simulated.write(replace(DDP, ranks=2, layers=1, slow_rank=1, steps=3), tmp_path / "traces")
    con, run_id = simulated.stored(tmp_path / "traces", tmp_path / "store.duckdb")
    con.close()
    with open_store(tmp_path / "store.duckdb") as again:
        counts = "select (select count(*) from critical_path), (select count(*) from what_if)"
        before = again.execute(counts).fetchall()
        evaluate(again, run_id)
        assert again.execute(counts).fetchall() == before
        assert before[0][0] > 0
        assert before[0][1] > 0

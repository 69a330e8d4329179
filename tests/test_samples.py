"""The sample traces end to end: the laws of the account, the simulated jobs against their ground truth, the comparison."""

import json
import shutil
from pathlib import Path

import pytest

from tracegap.ingest.pipeline import ingest_paths
from tracegap.ingest.store import open_store
from tracegap.reports import compare, join, laws
from tracegap.reports.buckets import COLUMNS

SAMPLES = Path(__file__).parents[1] / "sample_traces"
SIMULATED = sorted(p.parent.name for p in SAMPLES.glob("*/truth.json"))


@pytest.fixture(scope="module")
def con(samples):
    with open_store(samples, read_only=True) as connection:
        yield connection


def one(con, sql, *params):
    return con.execute(sql, list(params)).fetchall()[0]


def run_of(con, folder):
    return one(con, "select distinct run_id from traces where path like ?", f"%/{folder}/%")[0]


def test_there_are_real_and_simulated_runs(con):
    assert one(con, "select count(*) filter (simulated), count(*) filter (not simulated) from runs") == (4, 3)
    assert len(SIMULATED) == 4


@pytest.mark.parametrize("law", laws.LAWS, ids=lambda law: law.name)
def test_law(con, law):
    assert laws.check(con, law) is None


def test_wait_and_transfer_make_the_duration_of_a_matched_collective(con):
    matched, wrong, negative = one(con, """
        select count(*), count(*) filter (wait_ns + transfer_ns <> dur_ns), count(*) filter (least(wait_ns, transfer_ns) < 0)
        from collective_gap where instance_id is not null""")  # fmt: skip
    assert matched > 1000
    assert (wrong, negative) == (0, 0)


@pytest.mark.parametrize("folder", SIMULATED)
def test_each_exact_bucket_of_each_step_is_the_truth(con, folder):
    truth = json.loads((SAMPLES / folder / "truth.json").read_text())
    names = ("wall_ns", "compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns", *COLUMNS)
    rows = con.execute(
        f"select coalesce(cast(rank as varchar), ''), device_id, step, {', '.join(names)} from step_gap where run_id = ?",
        [run_of(con, folder)],
    ).fetchall()
    measured = {
        (r[0] if "rank" in truth["steps"][0] else r[1], r[2]): dict(zip(names, r[3:], strict=True)) for r in rows
    }
    assert len(measured) == len(truth["steps"])
    compute = ["useful_math + recompute_math", "memory_bound", "kernel_inefficiency", "unmodelled_compute"]
    # NVTX ranges carry no dtypes of elementwise operations: their cost is unknown, and only the sum is sure.
    sums = [*truth["exact"], *([" + ".join(compute)] if "nsys" in folder else compute)]
    checked = 0
    for step in truth["steps"]:
        got = measured[str(step.get("rank", step.get("device"))), step["step"]]
        assert {k: got[k] for k in names[:5]} == {k: step[k] for k in names[:5]}
        for terms in sums:
            parts = [f"{t}_ns" for t in terms.split(" + ")]
            assert sum(got[p] for p in parts) == sum(step["buckets"][p] for p in parts), (
                terms,
                step.get("rank"),
                step["step"],
            )
            checked += 1
    assert checked >= 11 * len(truth["steps"])


@pytest.mark.parametrize("folder", SIMULATED)
def test_collectives_wait_and_transfer_as_the_truth_says(con, folder):
    truth = json.loads((SAMPLES / folder / "truth.json").read_text())
    rows = con.execute(
        """
        select step, collective, message_bytes, predicted_ns, list(wait_ns order by rank), list(transfer_ns order by rank)
        from collective_gap where run_id = ? and instance_id is not null group by step, instance_id, collective, message_bytes,
        predicted_ns order by step, min(start_ns)
        """,
        [run_of(con, folder)],
    ).fetchall()
    got = sorted((r[0], r[1], r[4], r[5]) for r in rows)
    want = sorted((c["step"], c["collective"], c["wait_ns"], c["transfer_ns"]) for c in truth["collectives"])
    assert got == want
    sized = {(r[0], r[2]): r[3] for r in rows if r[2] is not None}
    known = {(c["step"], c["message_bytes"]): c["predicted_ns"] for c in truth["collectives"]}
    assert {k: known[k] for k in sized} == sized


def test_compare_names_exposed_all_reduce_and_the_configuration_line(con):
    before, after = (run_of(con, f"sim_h100_{side}") for side in ("before", "after"))
    result = compare.compare(con, before, after)
    said = result.as_dict()
    assert said["verdict"] == "slower"
    assert sum(said["buckets"].values()) == said["delta_ns"] == said["after_ns"] - said["before_ns"]
    assert sum(c["delta_ns"] for c in said["causes"]) == said["delta_ns"]
    first = said["causes"][0]
    assert first["bucket"] == "comm_inefficiency_ns"
    assert "exposed all_reduce" in first["what"]
    assert first["config"] == ["ddp.bucket_cap_mb"]
    assert {"key": "ddp.bucket_cap_mb", "before": 25, "after": 1} in said["config"]
    truths = [
        json.loads((SAMPLES / f"sim_h100_{side}" / "truth.json").read_text())["steps"] for side in ("before", "after")
    ]
    typical = [mean_of_the_median_step(steps) for steps in truths]
    for bucket in ("comm_inefficiency_ns", "comm_minimum_ns", "comm_wait_ns", "idle_input_ns", "wall_ns"):
        delta = said["delta_ns"] if bucket == "wall_ns" else said["buckets"][bucket]
        assert delta == pytest.approx(typical[1][bucket] - typical[0][bucket], abs=1.5), bucket


def mean_of_the_median_step(steps):
    """By plain means: steps averaged over ranks, the last one left out, the middle ones by wall time."""
    rows = []
    for number in sorted({s["step"] for s in steps})[:-1]:
        flat = [{"wall_ns": s["wall_ns"]} | s["buckets"] for s in steps if s["step"] == number]
        rows.append({k: sum(f[k] for f in flat) / len(flat) for k in flat[0]})
    rows.sort(key=lambda r: r["wall_ns"])
    n = len(rows)
    middle = rows[(n - 1) // 2 : n // 2 + 1]
    return {k: sum(r[k] for r in middle) / len(middle) for k in rows[0]}


def test_a_run_against_itself_is_the_same(con):
    run = run_of(con, "sim_h100_before")
    said = compare.compare(con, run, run).as_dict()
    assert said["verdict"] == "same"
    assert said["delta_ns"] == 0
    assert set(said["buckets"].values()) == {0}
    assert said["config"] == []


def test_op_gap_shares_add_up_to_the_compute_buckets(con):
    assert one(con, """
        with ops as (
            select w.trace_id, w.device_id, w.step, sum(w.share_ns) filter (g.t_min_ns is null) as unmodelled
            from op_windows w join op_gap g using (trace_id, op_id) where w.state = 'compute' group by all)
        select count(*) from step_gap join ops using (trace_id, device_id, step)
        where unmodelled_compute_ns <> coalesce(unmodelled, 0)""") == (0,)  # fmt: skip


def test_simulated_is_said_of_simulated_runs_only(con):
    assert {r[0] for r in con.execute("select job from runs where simulated").fetchall()} == {
        "sim-ddp-h100",
        "sim-ddp-h100-nsys",
        "sim-fsdp-v5p",
    }


def test_ingesting_the_same_again_changes_nothing(samples, tmp_path):
    store = tmp_path / "copy.duckdb"
    shutil.copy(samples, store)
    tables = (
        "runs",
        "traces",
        "devices",
        "steps",
        "ops",
        "op_windows",
        "host_events",
        "collectives",
        "findings",
        "peaks",
    )

    def content(con):
        return {t: con.execute(f"select count(*), bit_xor(hash(t)) from {t} t").fetchall() for t in tables}

    with open_store(store) as con:
        before = content(con)
        again = ingest_paths(con, [SAMPLES])
        assert {r.status for r in again if r.format} == {"already"}
        assert content(con) == before
        for run_id in {r.run_id for r in again if r.run_id}:
            join.evaluate(con, run_id)
        after = content(con)
        assert {t: after[t] for t in tables if t not in ("runs", "findings")} == {
            t: before[t] for t in tables if t not in ("runs", "findings")
        }
        assert one(con, "select count(*) from findings") == (before["findings"][0][0],)

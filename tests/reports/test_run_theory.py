"""The typical step of the simulated jobs beside the plan: numbers worked out from the sizes of the jobs."""

from pathlib import Path

import pytest

from tracegap.ingest.store import open_store
from tracegap.models.recipe import Recipe
from tracegap.reports import planning
from tracegap.reports.summary import summarize

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RUN = "sim-ddp-h100/sim-ddp-h100-mon"


@pytest.fixture(scope="module")
def con(samples):
    with open_store(samples, read_only=True) as connection:
        yield connection


def row(con, quantity, axis=None, run=RUN):
    return con.execute(
        "select measured, predicted, ratio_frac, note from run_theory "
        "where run_id = ? and quantity = ? and axis is not distinct from ?",
        [run, quantity, axis],
    ).fetchall()[0]


def test_flops_are_those_of_the_sizes(con):
    """6 layers of 12 h^2 and a head of 32,000 h at h = 768, 2,048 tokens a rank; attention 6 x 2 x 6 x 2 x 1024^2 x 768 / 2."""
    weights = 6 * 12 * 768**2 + 32000 * 768
    attention = 12 * 6 * 2 * 1024**2 * 768 // 2
    needed = 6 * weights * 2048 + attention
    measured, predicted, ratio, _ = row(con, "matrix_flops")
    assert (measured, predicted, ratio) == (needed, needed, 1)


def test_gradients_of_the_data_axis(con):
    """The job leaves its token embedding frozen, which no description says; it has biases, norms and positions besides."""
    trained = 6 * (12 * 768**2 + 13 * 768) + 2 * 768 + 1024 * 768 + 32000 * 768
    stored = 6 * 12 * 768**2 + 2 * 32000 * 768
    assert row(con, "collective_bytes", "data")[:2] == (2 * trained, 2 * stored)
    measured, predicted, ratio, note = row(con, "communication", "data")
    assert "the plan sends all_reduce; the traces have all_reduce, waiting left out" in note
    assert ratio == pytest.approx(measured / predicted)


def test_what_is_unknown_has_a_reason(con):
    measured, predicted, ratio, note = row(con, "memory")
    assert (measured, ratio) == (None, None)
    assert predicted > 0
    assert "no memory events" in note
    assert "unknown part" in row(con, "step", run="jax-cpu/jax-cpu")[3]


@pytest.mark.parametrize(
    ("folder", "run", "recipe", "kept"),
    [
        ("sim_h100_before", RUN, Recipe(), ("zero", "recompute")),
        ("sim_tpu_v5p", "sim-fsdp-v5p/sim-fsdp-v5p-tue", Recipe(), ("recompute",)),
    ],
)
def test_the_command_plan_says_the_same(con, folder, run, recipe, kept):
    part = {"sim_h100_before": "h100_sxm", "sim_tpu_v5p": "tpu_v5p"}[folder]
    answer = planning.answer(
        planning.Question(model=str(SAMPLES / folder / "manifest.toml"), hardware=part, recipe=recipe, kept=kept)
    )
    assert row(con, "step", run=run)[1] == answer["predicted_ns"]
    assert row(con, "memory", run=run)[1] == answer["memory_total"]
    assert row(con, "mfu", run=run)[1] == pytest.approx(answer["mfu"])
    for axis in {item["axis"] for item in answer["traffic"]}:
        planned = [item for item in answer["traffic"] if item["axis"] == axis]
        assert row(con, "communication", axis, run)[1] == sum(item["total_ns"] for item in planned)


def test_the_first_convention_is_the_mfu_of_the_run(con):
    (utilisation,), (flops,) = (
        con.execute(
            f"select {column} from mfu_conventions where run_id = ? and convention = ?", [RUN, name]
        ).fetchall()[0]
        for column, name in (("utilisation_frac", "model_flops"), ("flops", "6nd"))
    )
    assert utilisation == pytest.approx(summarize(con, RUN).step["mfu"], rel=1e-12)
    assert flops == 6 * (6 * 12 * 768**2 + 2 * 32000 * 768) * 2048


def test_a_recipe_of_the_manifest_holds_for_both(tmp_path):
    text = (
        (SAMPLES / "sim_h100_before" / "manifest.toml")
        .read_text()
        .replace("[mesh]", '[recipe]\nrecompute = "full"\n\n[mesh]')
    )
    (tmp_path / "manifest.toml").write_text(text)
    question = planning.Question(model=str(tmp_path / "manifest.toml"), hardware="h100_sxm")
    assert planning.answer(question)["recipe"]["recompute"] == "full"
    (tmp_path / "manifest.toml").write_text(text.replace("recompute =", "recomputes ="))
    with pytest.raises(planning.TracegapError, match="'recomputes'"):
        planning.answer(question)

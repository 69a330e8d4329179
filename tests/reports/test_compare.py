"""Comparisons: when there is a difference, how operations are matched, and that every part adds up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracegap.ingest.store import open_store
from tracegap.models.errors import TracegapError
from tracegap.reports import compare, comparison_markdown, operation_changes, sides
from tracegap.reports.buckets import COLUMNS
from tracegap.reports.operation_changes import PARTS, Group


def group(operation, *, shapes="[[8,8]]", dtype="bf16", op_class="matmul", calls=4.0, share_ns=400.0, **parts):
    told = dict.fromkeys(PARTS, 0.0) | (parts or {"kernel_inefficiency_ns": share_ns})
    return Group(
        operation=operation, op_class=op_class, shapes=shapes, dtype=dtype, calls=calls, share_ns=share_ns, parts=told
    )


def matched(before, after):
    return {c.change: (c.before and c.before.operation, c.after and c.after.operation) for c in pairs(before, after)}


def pairs(before, after):
    return list(operation_changes._matched(before, after))


# ------------------------------------------------------------------------------------------------ matching


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        (group("mm"), group("mm"), ""),
        (group("mm"), group("mm", share_ns=800.0), "slower calls"),
        (group("mm"), group("mm", share_ns=200.0), "faster calls"),
        (group("mm"), group("mm", calls=8.0, share_ns=800.0), "more calls"),
        (group("mm"), group("mm", calls=2.0, share_ns=200.0), "fewer calls"),
        (group("mm"), group("mm", shapes="[[16,8]]"), "other shapes"),
        (group("mm"), group("mm", dtype="fp32"), "other dtype"),
        (group("gemm_v1"), group("gemm_v2"), "renamed"),
    ],
)
def test_a_group_on_both_sides_says_how_it_changed(before, after, word):
    (change,) = pairs([before], [after])
    assert change.change == word
    assert change.delta_ns() == after.share_ns - before.share_ns


def test_a_kernel_that_is_called_as_often_at_other_shapes_is_no_renamed_one():
    changes = pairs([group("old", shapes="[[1]]")], [group("new", shapes="[[2]]")])
    assert sorted(c.change for c in changes) == ["gone", "new"]


def test_calls_and_time_a_call_make_the_change():
    # 4 calls of 100 ns became 6 of 150: two more at the old time are 200 ns, 50 ns more for each of six are 300.
    (change,) = pairs([group("mm")], [group("mm", calls=6.0, share_ns=900.0)])
    assert change.by_calls_ns == 200.0
    assert change.as_dict()["by_time_a_call_ns"] == 300
    assert change.change == "slower calls"


names = st.sampled_from(["a", "b", "c", "d"])
some_groups = st.lists(
    st.builds(
        group,
        operation=names,
        shapes=st.sampled_from(["[[1]]", "[[2]]", "[[3]]"]),
        dtype=st.sampled_from(["bf16", "fp32"]),
        op_class=st.sampled_from(["matmul", "elementwise"]),
        calls=st.integers(1, 5).map(float),
        share_ns=st.integers(0, 1000).map(float),
    ),
    max_size=12,
    unique_by=lambda g: (g.operation, g.shapes, g.dtype, g.op_class),
)


@given(some_groups, some_groups)
@settings(max_examples=200, deadline=None)
def test_every_group_is_in_one_change_and_changes_add_up(before, after):
    total = sum(g.share_ns for g in after) - sum(g.share_ns for g in before)
    changes = pairs(before, after)
    assert sum(c.delta_ns() for c in changes) == pytest.approx(total)
    for name in PARTS:
        parts = sum(g.parts[name] for g in after) - sum(g.parts[name] for g in before)
        assert sum(c.delta_ns(name) for c in changes) == pytest.approx(parts)
    assert sum(c.before.calls for c in changes if c.before) == sum(g.calls for g in before)


# ------------------------------------------------------------------------------------------------- verdict


def test_a_difference_far_beyond_the_noise_is_told_though_an_outlier_is_on_either_side():
    before = [5.93, 5.93, 5.94, 5.91, 5.95, 5.92, 5.93, 3.5]
    after = [7.37, 7.38, 7.36, 7.39, 7.37, 7.35, 7.38, 4.9]
    as_ns = [[round(x * 1e6) for x in side] for side in (before, after)]
    assert compare.verdict(*as_ns) == "slower"
    assert compare.verdict(*reversed(as_ns)) == "faster"


def test_equal_nights_are_called_the_same():
    random = np.random.default_rng(20)
    wrong = 0
    for steps in (6, 8, 20, 50):
        for _ in range(100):
            a, b = (400e6 * (1 + 0.01 * random.standard_normal(steps)) for _ in range(2))
            wrong += compare.verdict(a, b) != "same"
    assert wrong <= 4  # of 400; intervals of 95% alone would err about twenty times


def test_a_certain_difference_of_no_size_is_none():
    assert compare.verdict([1_000_000] * 20, [1_004_000] * 20) == "same"
    assert compare.verdict([1_000_000] * 20, [1_006_000] * 20) == "slower"


def test_few_steps_need_a_large_difference():
    assert compare.verdict([1_000_000] * 2, [1_020_000] * 2) == "same"
    assert compare.verdict([1_000_000] * 2, [1_040_000] * 2) == "slower"
    assert compare.interval([1.0] * 2, [2.0] * 9) is None


def test_standard_error_of_medians_is_that_of_resampling_normal_steps():
    # Of 10,000 pairs of 25 and 36 normal steps the medians differ with this standard deviation.
    random = np.random.default_rng(3)
    a, b = random.standard_normal((10_000, 25)), random.standard_normal((10_000, 36))
    spread = float(np.std(np.median(a, axis=1) - np.median(b, axis=1)))
    errors = [compare.standard_error(x, y) for x, y in zip(a[:500], b[:500], strict=True)]
    assert float(np.median(errors)) == pytest.approx(spread, rel=0.08)


# ------------------------------------------------------------------------------------- ranks, steps, three runs


@pytest.mark.parametrize(
    ("text", "base", "bounds"),
    [
        ("job/mon", "job/mon", {}),
        ("job/mon@rank=3", "job/mon", {"ranks": (3, 3)}),
        ("job/mon@ranks=0-3,steps=10-20", "job/mon", {"ranks": (0, 3), "steps": (10, 20)}),
        ("a@b/mon", "a@b/mon", {}),
        ("s3://user@host/x@step=7", "s3://user@host/x", {"steps": (7, 7)}),
    ],
)
def test_a_part_of_a_run_follows_its_name(text, base, bounds):
    assert sides.parted(text) == (base, bounds)


@pytest.mark.parametrize("text", ["r@rank=5-3", "r@steps=-"])
def test_a_range_that_is_none_is_refused(text):
    with pytest.raises(TracegapError, match="no number or range"):
        sides.parted(text)


@pytest.fixture(scope="module")
def two(samples):
    with open_store(samples, read_only=True) as con:
        runs = [
            con.execute("select distinct run_id from traces where path like ?", [f"%/{folder}/%"]).fetchall()[0][0]
            for folder in ("sim_h100_before", "sim_h100_after")
        ]
        yield con, *runs


def test_ranks_and_steps_of_a_run_are_those_of_the_views(two):
    con, before, _ = two
    chosen = sides.Selection(run_id=before, ranks=(2, 3), steps=(12, 14))
    (side,) = sides.load(con, [chosen])
    rows = con.execute(
        "select step, avg(wall_ns) from step_gap where run_id = ? and rank in (2, 3) and step in (12, 13, 14) group by 1",
        [before],
    ).fetchall()
    assert sorted(side.walls_ns) == pytest.approx(sorted(r[1] for r in rows))
    assert side.wall_ns == round(sorted(r[1] for r in rows)[1])
    assert side.label == f"{before}@ranks=2-3,steps=12-14"
    assert side.devices == "2 × H100 SXM"
    assert side.title.endswith("3 steps")


def test_steps_that_are_not_there_are_named(two):
    con, before, _ = two
    with pytest.raises(TracegapError, match=r"the run has ranks 0 to 7 and steps 10 to 17"):
        sides.load(con, [sides.Selection(run_id=before, ranks=(8, 9))])
    with pytest.raises(TracegapError, match="no such run"):
        sides.load(con, [sides.Selection(run_id="nothing")])


def test_groups_of_the_typical_step_add_up_to_its_buckets(two):
    con, before, after = two
    for number, side in enumerate(sides.load(con, [sides.Selection(run_id=r) for r in (before, after)])):
        found = operation_changes.groups(con, number)
        sums = {name: sum(g.parts[name] for g in found) for name in PARTS}
        math = side.buckets["useful_math_ns"] + side.buckets["recompute_math_ns"]
        assert sums["math_ns"] == pytest.approx(math, abs=1.5)
        for name in PARTS[1:]:
            assert sums[name] == pytest.approx(side.buckets[name], abs=1.5), name


def test_causes_add_up_to_the_difference_of_any_two_sides(two):
    con, before, after = two
    chosen = [
        sides.Selection(run_id=before),
        sides.Selection(run_id=after),
        sides.Selection(run_id=before, ranks=(3, 3)),
        sides.Selection(run_id=after, steps=(11, 13)),
    ]
    for result in compare.compare_all(con, chosen):
        told = result.as_dict()
        assert sum(c["delta_ns"] for c in told["causes"]) == told["delta_ns"]
        assert sum(told["buckets"].values()) == told["delta_ns"]
        assert set(told["titles"]) == {*COLUMNS, "rest"}
        assert told["after"]["label"] == result.after.label


def test_a_rank_that_waits_for_data_is_told_apart_from_one_that_waits_for_it(two):
    con, before, _ = two
    parts = [sides.Selection(run_id=before, ranks=(r, r)) for r in (0, 3)]
    causes = compare.compare_all(con, parts)[0].causes
    assert (causes[0].bucket, causes[1].bucket) == ("idle_input_ns", "comm_wait_ns")
    assert causes[0].delta_ns > 2_000_000  # its loader stalls 2.4 ms
    assert causes[1].delta_ns < -1_000_000


def test_markdown_of_a_comparison_reads_as_a_table_and_runs_nothing(two):
    con, before, after = two
    text = comparison_markdown.markdown([compare.compare(con, before, after)])
    assert "| **step** | 5.93 ms | 7.37 ms | +1.45 ms |" in text
    assert r"- +1.33 ms slow communication: exposed all\_reduce over 8 ranks: 5 → 26 a step" in text
    assert r"| ddp.bucket\_cap\_mb | 25 | 1 |" in text
    assert r"**Fix first:** ddp.bucket\_cap\_mb back to 25 saves up to 1.33 ms a step." in text
    assert comparison_markdown._text("<b>a|b</b>") == r"\<b\>a\|b\</b\>"

"""Clocks of ranks that meet only in overlapping groups, against jobs in which offset, drift and stragglers are known."""

import numpy as np
import polars as pl
import pytest
from tests.reports.comm_worlds import clock_errors_ns, world

from tracegap.reports.matching import CALL_SCHEMA, match


def of(w):
    return match(w.calls.drop("true_start_ns", "instance", "straggler"))


def by_instance(w, matched):
    """What matching made of each true all-reduce: how many instances, unmatched parts, straggler and who is called last."""
    both = w.calls.join(matched.rows, on=["trace_id", "op_id"]).filter(pl.col("collective") == "all_reduce")
    return both.group_by("instance").agg(
        pl.col("instance_id").n_unique().alias("made"),
        pl.col("instance_id").null_count().alias("alone"),
        pl.col("straggler", "last_rank", "late_ns").first(),
    )


def test_offsets_of_50_ms_and_drifts_of_100_ppm_are_recovered_and_the_straggler_is_blamed(any_seed):
    # 4 x 4 ranks in rows and columns, 60 rounds in 1.5 s; completions are seen up to some microseconds late.
    w = world(any_seed)
    matched = of(w)
    assert clock_errors_ns(w, matched.clocks).max() < 2_000
    seen = by_instance(w, matched)
    assert seen.filter((pl.col("made") != 1) | (pl.col("alone") > 0)).height == 0
    held = seen.filter(pl.col("straggler") >= 0)
    assert held.height > 50
    assert held["last_rank"].to_list() == held["straggler"].to_list()
    # It was held back 400 us or more behind the last of the others; that is known to what the clocks leave.
    assert held["late_ns"].min() > 400_000 - 3 * max(c.residual_ns for c in matched.clocks.values())
    assert {c.reference for c in matched.clocks.values()} == {"t000"}


def test_clocks_that_agree_stay_untouched(any_seed):
    matched = of(world(any_seed, (2, 4), rounds=30, offset_ns=0, drift=0))
    assert {(c.offset_ns, c.drift) for c in matched.clocks.values()} == {(0, 0.0)}


@pytest.mark.parametrize("shape", [(8, 8), (16, 32)])
def test_many_ranks(shape):
    w = world(7, shape, rounds=40, noise=False)
    matched = of(w)
    assert clock_errors_ns(w, matched.clocks).max() < 2_000
    seen = by_instance(w, matched).filter(pl.col("straggler") >= 0)
    assert seen["last_rank"].to_list() == seen["straggler"].to_list()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rounds", [3, 6, 12])
def test_the_error_of_few_completions_is_stated(seed, rounds):
    # Two clocks without drift and an offset: what is left is no more than some of the standard errors that are stated.
    w = world(seed, (1, 2), rounds=rounds, drift=0, noise=False, straggle=0, jitter_ns=5_000)
    matched = of(w)
    stated = max(c.error_ns for c in matched.clocks.values()) + max(c.residual_ns for c in matched.clocks.values())
    assert clock_errors_ns(w, matched.clocks).max() <= 4 * stated + 5_000


def test_one_completion_tells_an_offset_and_not_how_good_it_is():
    w = world(0, (1, 2), rounds=1, drift=0, noise=False)
    matched = of(w)
    assert clock_errors_ns(w, matched.clocks).max() < 50_000
    assert matched.clocks["t001"].error_ns is None


def test_exact_completions_give_exact_clocks():
    # Without jitter only the rounding to nanoseconds is left.
    w = world(3, (3, 5), rounds=40, jitter_ns=0)
    matched = of(w)
    assert clock_errors_ns(w, matched.clocks).max() <= 3
    assert max(c.residual_ns for c in matched.clocks.values()) <= 2


def test_parts_that_share_no_collective_keep_their_own_time():
    # Rows alone: four rows of four ranks never meet. Each row is on the clock of its first rank, and says so.
    w = world(1, noise=False)
    rows = w.calls.filter(pl.col("group_id").str.starts_with("row"))
    matched = match(rows.drop("true_start_ns", "instance", "straggler"))
    assert {name: c.reference for name, c in matched.clocks.items()} == {
        f"t{rank:03}": f"t{rank // 4 * 4:03}" for rank in range(16)
    }
    for first in range(0, 16, 4):
        assert matched.clocks[f"t{first:03}"].offset_ns == 0
        assert matched.clocks[f"t{first:03}"].drift == 0
    seen = by_instance(w, matched).drop_nulls("last_rank").filter(pl.col("straggler") >= 0)
    assert seen["last_rank"].to_list() == seen["straggler"].to_list()


def test_wrong_matches_move_no_clock():
    # A tenth of the calls of some ranks carry the number of the call before: what they are matched with is another call.
    w = world(11, noise=False)
    rng = np.random.default_rng(0)
    wrong = pl.Series(rng.random(len(w.calls)) < 0.1) & w.calls["rank"].is_in([3, 6, 9]) & (w.calls["seq"] > 0)
    calls = w.calls.with_columns(seq=pl.when(wrong).then(pl.col("seq") - 1).otherwise("seq"))
    matched = match(calls.drop("true_start_ns", "instance", "straggler"))
    assert clock_errors_ns(w, matched.clocks).max() < 2_500
    both = w.calls.join(matched.rows, on=["trace_id", "op_id"]).drop_nulls("instance_id")
    assert (both.group_by("instance_id").agg(pl.col("instance").n_unique())["instance"] == 1).all()


def test_one_rank_with_another_clock_moves_alone():
    # Seven clocks agree to the nanosecond, the eighth is 20 ms ahead and 80 ppm fast.
    w = world(2, (2, 4), rounds=50, offset_ns=0, drift=0, jitter_ns=0, noise=False)
    fast = pl.col("rank") == 5
    epoch = 1_796_000_000_000_000_000
    start = pl.when(fast).then(
        pl.col("start_ns") + 20_000_000 + ((pl.col("start_ns") - epoch) * 80e-6).round().cast(pl.Int64)
    )
    dur = pl.when(fast).then((pl.col("dur_ns") * (1 + 80e-6)).round().cast(pl.Int64)).otherwise("dur_ns")
    calls = w.calls.with_columns(start_ns=start.otherwise("start_ns"), dur_ns=dur)
    clocks = match(calls.drop("true_start_ns", "instance", "straggler")).clocks
    assert clocks["t005"].drift == pytest.approx(-80e-6, rel=1e-3)
    assert clocks["t005"].at(epoch + 20_000_000) == pytest.approx(-20_000_000, abs=3)
    for name, clock in clocks.items():
        if name != "t005":
            assert abs(clock.offset_ns) <= 2
            assert abs(clock.drift) < 1e-8


def stages(offset_ns, *, ways=("forward", "backward"), seed=0):
    """Two stages of two ranks that reduce among themselves; the last of one and the first of the other exchange messages."""
    rng = np.random.default_rng(seed)
    rows = []

    def call(rank, kind, group, start, end, **more):
        ahead = offset_ns if rank > 1 else 0
        rows.append(
            {"trace_id": f"t{rank}", "op_id": len(rows), "device_id": "0", "rank": rank, "step": 1, "collective": kind,
             "group_id": group, "message_bytes": 8, "start_ns": round(start) + ahead, "dur_ns": round(end) - round(start), **more}
        )  # fmt: skip

    for k in range(20):
        t = 1e6 * k
        for first in (0, 2):
            for rank in (first, first + 1):
                call(rank, "all_reduce", f"stage {first}", t + rng.uniform(0, 1e4), t + 50_000, seq=k)
        for way, (a, b) in {"forward": (1, 2), "backward": (2, 1)}.items():
            if way in ways:
                start = t + 100_000 + (300_000 if way == "backward" else 0)
                took = rng.uniform(20_000, 60_000)
                call(a, "send", "pp", start, start + took, peer=b)
                call(b, "recv", "pp", start - rng.uniform(0, 30_000), start + took, peer=a)
    return match(pl.DataFrame(rows, schema=CALL_SCHEMA))


@pytest.mark.parametrize("offset_ns", [30_000_000, -7_000_000])
def test_stages_of_a_pipeline_are_joined_by_messages_both_ways_as_far_as_these_tell(offset_ns):
    # Messages take 20 us or more: the least of each way leave an error of 20 us and some.
    clocks = stages(offset_ns).clocks
    assert {c.reference for c in clocks.values()} == {"t0"}
    stated = clocks["t2"].between_ns
    assert 20_000 <= stated < 30_000
    assert abs(clocks["t2"].offset_ns + offset_ns) <= stated
    assert clocks["t2"].offset_ns == clocks["t3"].offset_ns
    assert (clocks["t1"].offset_ns, clocks["t1"].between_ns) == (0, 0)


def test_stages_whose_clocks_may_agree_stay_untouched():
    clocks = stages(0).clocks
    assert {(c.offset_ns, c.reference) for c in clocks.values()} == {(0, "t0")}
    assert clocks["t3"].between_ns >= 20_000


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_messages_one_way_only_tell_no_distance(way):
    clocks = stages(30_000_000, ways=(way,)).clocks
    assert {name: c.reference for name, c in clocks.items()} == {"t0": "t0", "t1": "t0", "t2": "t2", "t3": "t2"}

"""Collectives matched over ranks and clocks aligned, on schedules with known answers."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.reports.matching import CALL_SCHEMA, match


def calls(rows):
    """From (trace, rank, step, kind, group, seq, bytes, start, end)."""
    return pl.DataFrame(
        [
            {
                "trace_id": t, "op_id": i, "device_id": "0", "rank": r, "step": step, "collective": kind, "group_id": group,
                "group_size": None, "seq": seq, "message_bytes": size, "start_ns": start, "dur_ns": end - start,
            }
            for i, (t, r, step, kind, group, seq, size, start, end) in enumerate(rows)
        ],
        schema=CALL_SCHEMA,
    )  # fmt: skip


def job(starts_by_rank, ends, *, shift=None, drift=None, seq=True, kind="all_reduce"):
    """Ranks that start collectives at given true times and end together; each clock is shifted and stretched."""
    rows = []
    for rank, starts in enumerate(starts_by_rank):
        o, d = (shift or [0] * 9)[rank], (drift or [0.0] * 9)[rank]
        for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
            local = [round(t + o + d * t) for t in (start, end)]
            rows.append((f"t{rank}", rank, 1, kind, "g", i if seq else None, 100 + i, *local))
    return calls(rows)


def waits(frame, matched):
    both = frame.join(matched.rows, on=["trace_id", "op_id"])
    return both.select(pl.col("arrival_ns") - pl.col("start_ns")).to_series().to_list()


def test_arrival_is_the_latest_start_and_wait_is_arrival_less_own_start():
    frame = job([[1000, 5000], [1400, 5100], [1250, 5300]], [2000, 6000])
    matched = match(frame)
    assert waits(frame, matched) == [400, 300, 0, 200, 150, 0]
    assert matched.rows["last_rank"].to_list() == [1, 2, 1, 2, 1, 2]
    assert matched.rows["matched_by"].unique().to_list() == ["seq"]


@given(st.lists(st.integers(-(10**12), 10**12), min_size=3, max_size=3))
def test_constant_clock_offsets_change_nothing(shift):
    starts = [[1000, 5000, 9000], [1400, 5100, 9050], [1250, 5300, 9300]]
    ends = [2000, 6000, 9900]
    matched = match(job(starts, ends, shift=shift))
    frame = job(starts, ends, shift=shift)
    assert waits(frame, matched) == waits(job(starts, ends), match(job(starts, ends)))
    assert {c.residual_ns for c in matched.clocks.values()} == {0}
    assert matched.clocks["t1"].offset_ns == shift[0] - shift[1]


def test_a_drifting_clock_is_followed():
    starts = [[k * 1_000_000 for k in range(1, 30)], [k * 1_000_000 + 300_000 for k in range(1, 30)]]
    ends = [k * 1_000_000 + 500_000 for k in range(1, 30)]
    frame = job(starts, ends, shift=[0, 12_345], drift=[0.0, 2e-5])
    matched = match(frame)
    own = waits(frame, matched)
    assert own[:29] == pytest.approx([300_000] * 29, abs=20)
    assert own[29:] == pytest.approx([0] * 29, abs=20)
    assert matched.clocks["t1"].drift == pytest.approx(-2e-5, rel=0.02)


def test_without_sequence_numbers_the_order_in_the_step_decides_and_a_missing_call_is_skipped():
    starts = [[1000, 5000, 9000], [1400, 5100, 9050]]
    frame = job(starts, [2000, 6000, 9900], seq=False).filter(
        ~((pl.col("rank") == 1) & (pl.col("message_bytes") == 101))
    )
    matched = match(frame)
    assert matched.rows["matched_by"].to_list() == [
        "order", "no partner in the traces of this run", "order", "order", "order",
    ]  # fmt: skip
    assert matched.rows["arrival_ns"].to_list() == [1400, None, 9050, 1400, 9050]


def test_calls_that_do_not_overlap_are_no_match():
    # Nineteen all-reduces tell the clocks. One of another number does not fit: rank 0 is done before rank 1 starts.
    both = [
        (t, r, 1, "all_reduce", "g", k, 8, 1000 * k, 1000 * k + 100) for k in range(19) for t, r in (("a", 0), ("b", 1))
    ]
    rows = [
        *both,
        ("a", 0, 1, "all_reduce", "g", 19, 8, 19_000, 19_100),
        ("b", 1, 1, "all_reduce", "g", 19, 8, 99_000, 99_100),
    ]
    matched = match(calls(rows)).rows
    assert matched["instance_id"].null_count() == 2
    assert matched["instance_id"].to_list()[-2:] == [None, None]
    assert "do not overlap" in matched["matched_by"][-1]


def test_a_broadcast_whose_root_is_done_before_another_rank_begins_is_one_that_waits_for_nobody():
    # The root sends from 0 to 100 and goes on; rank 1 begins at 500: it is late, but the root never waits for it.
    frame = calls([("a", 0, 1, "broadcast", "g", 0, 8, 0, 100), ("b", 1, 1, "broadcast", "g", 0, 8, 500, 600)])
    matched = match(frame)
    assert matched.rows["instance_id"].to_list() == [0, 0]
    assert waits(frame, matched) == [0, -500]
    assert matched.clocks == {}


def test_different_groups_and_steps_are_kept_apart():
    frame = calls(
        [
            ("a", 0, 1, "all_reduce", "x", 0, 8, 0, 100), ("b", 1, 1, "all_reduce", "y", 0, 8, 0, 100),
            ("a", 0, 1, "all_gather", None, None, 8, 200, 300), ("b", 1, 2, "all_gather", None, None, 8, 200, 300),
        ]
    )  # fmt: skip
    assert match(frame).rows["instance_id"].null_count() == 4


def test_a_lone_rank_says_why_nothing_is_matched():
    frame = job([[1000, 5000]], [2000, 6000])
    assert match(frame).rows["matched_by"].unique().to_list() == ["no partner in the traces of this run"]
    assert match(calls([])).rows.height == 0


def test_nobody_is_late_by_less_than_the_clocks_agree_and_jitter_is_no_offset():
    # Rank 1's completions jitter by 100 ns around rank 0's: that says nothing of the clocks, nor of a start 20 ns later.
    rows = []
    for k in range(20):
        start, end = 1000 + 1000 * k, 1900 + 1000 * k
        rows.append(("a", 0, 1, "all_reduce", "g", k, 8, start, end))
        rows.append(("b", 1, 1, "all_reduce", "g", k, 8, start + 20, end + (100 if k % 2 else -96)))
    frame = calls(rows)
    matched = match(frame)
    assert {c.offset_ns for c in matched.clocks.values()} == {0}
    assert max(c.residual_ns for c in matched.clocks.values()) >= 48
    assert waits(frame, matched) == [20, 0] * 20
    assert matched.rows["last_rank"].null_count() == 40


@pytest.mark.parametrize("epoch", [0, 1_796_000_000_000_000_001])
def test_times_of_today_are_as_exact_as_small_ones(epoch):
    # Completions jitter by some ns around a true offset of 12,345 ns: a double of 1.8e18 has a grid of 256 ns.
    rows = []
    for k in range(40):
        start, end = epoch + 100_000 * k, epoch + 100_000 * k + 50_000
        rows.append(("a", 0, 1, "all_reduce", "g", k, 8, start, end))
        rows.append(("b", 1, 1, "all_reduce", "g", k, 8, start + 12_345 + 1000, end + 12_345 + k % 3 - 1))
    matched = match(calls(rows))
    assert matched.clocks["b"].offset_ns == -12_345
    assert max(c.residual_ns for c in matched.clocks.values()) == 1
    assert waits(calls(rows), matched) == [1000, 0] * 40


def schedule(ranks, count, *, seed=0, first=0, dropped=(), restart=None):
    """Ranks that all-reduce at uneven distances by true time: rank r sees `first[r]` onwards and numbers from its own 0."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.uniform(1e6, 5e6, count))
    rows, truth = [], []
    for r in range(ranks):
        begins = first[r] if first else 0
        for k in range(begins, count):
            if (r, k) in dropped:
                continue
            seq = k - begins if restart is None else k % restart
            start = ends[k] - rng.uniform(1e5, 5e5)
            rows.append((f"t{r}", r, 0, "all_reduce", "g", seq, 64, round(start + 7e6 * r), round(ends[k] + 7e6 * r)))
            truth.append(k)
    return calls(rows), truth


def agrees(matched, truth, count):
    """Every instance has the parts of one true call, and all of them."""
    both = matched.rows.with_columns(truth=pl.Series(truth))
    assert both["instance_id"].null_count() == 0
    assert both.group_by("instance_id").agg(pl.col("truth").n_unique())["truth"].unique().to_list() == [1]
    assert both["instance_id"].n_unique() == count


def test_numbers_that_each_capture_counts_from_its_own_start():
    frame, truth = schedule(3, 40, first=[0, 3, 7])
    both = match(frame).rows.with_columns(truth=pl.Series(truth))
    # Nobody else saw the first three calls of rank 0.
    assert sorted(both.filter(pl.col("instance_id").is_null())["truth"].to_list()) == [0, 1, 2]
    together = both.drop_nulls("instance_id").group_by("instance_id").agg(pl.col("truth").n_unique(), pl.len())
    assert together["truth"].unique().to_list() == [1]
    assert len(together) == 37
    assert set(both.drop_nulls("instance_id")["matched_by"]) == {"seq, counted from different numbers"}


def test_numbers_that_begin_again():
    frame, truth = schedule(3, 40, restart=16)
    agrees(match(frame), truth, 40)


def test_a_rank_that_joined_late_counts_from_the_last_beginning():
    # Numbers restart at the 20th call; rank 1 sees the calls from the 25th on. Those before are rank 0's and 2's alone.
    frame, truth = schedule(3, 40, restart=20)
    frame = frame.with_columns(truth=pl.Series(truth)).filter((pl.col("rank") != 1) | (pl.col("truth") >= 25))
    agrees(match(frame.drop("truth")), frame["truth"].to_list(), 40)


@pytest.mark.parametrize("numbered", [True, False])
def test_a_dropped_event_shifts_nothing(numbered):
    # All calls are alike: without numbers only their times, on clocks 7 ms apart, tell which one is missing.
    frame, truth = schedule(2, 40, dropped={(1, 5), (1, 17), (0, 30)})
    steps = pl.Series([k // 10 for k in truth])
    frame = frame.with_columns(step=steps, **({} if numbered else {"seq": pl.lit(None, dtype=pl.Int64)}))
    both = match(frame).rows.with_columns(truth=pl.Series(truth))
    together = both.drop_nulls("instance_id").group_by("instance_id").agg(pl.col("truth").n_unique(), pl.len())
    assert together["truth"].unique().to_list() == [1]
    assert together["len"].unique().to_list() == [2]
    assert len(together) == 37
    assert sorted(both.filter(pl.col("instance_id").is_null())["truth"].to_list()) == [5, 17, 30]


def test_a_missing_rank_takes_no_partner_from_the_others():
    frame, truth = schedule(4, 12)
    kept = frame.with_columns(truth=pl.Series(truth)).filter(pl.col("rank") != 2)
    agrees(match(kept.drop("truth")), kept["truth"].to_list(), 12)


def test_two_communicators_of_the_same_ranks_count_apart():
    rows = []
    for r in range(2):
        rows += [
            (f"t{r}", r, 1, "all_reduce", "dp [0,1]", 5, 8, 100, 200),
            (f"t{r}", r, 1, "all_reduce", "tp [0,1]", 5, 8, 300, 400),
        ]
    matched = match(calls(rows)).rows
    assert matched["instance_id"].to_list() == [0, 1, 0, 1]


def test_kernels_of_one_call_share_its_number():
    # A coalesced call of two tensors runs two kernels under one number.
    rows = []
    for r in range(2):
        rows += [(f"t{r}", r, 1, "all_gather", "g", 3, size, at, at + 90) for size, at in ((8, 100), (16, 200))]
    matched = match(calls(rows)).rows
    assert matched["instance_id"].to_list() == [0, 1, 0, 1]


@pytest.mark.parametrize("seq", [True, False])
def test_an_uneven_all_to_all_is_one_whatever_each_rank_sends(seq):
    sizes = [[10, 300, 7], [900, 1, 55], [44, 44, 44]]
    rows = [
        (f"t{r}", r, 1, "all_to_all", "g", k if seq else None, sizes[r][k], 1000 * k + 10 * r, 1000 * k + 500)
        for r in range(3)
        for k in range(3)
    ]
    assert match(calls(rows)).rows["instance_id"].to_list() == [0, 1, 2] * 3


def test_sends_meet_receives_by_peer_and_order_and_numbers_of_messages_are_no_numbers_of_collectives():
    # Rank 0 sends twice to rank 1 and once to rank 2; the all-reduce between has number 0 as the first message has.
    def call(r, kind, seq, peer, start, end):  # noqa: PLR0917 - a row of a table
        return {"trace_id": f"t{r}", "device_id": "0", "rank": r, "step": 1, "collective": kind, "group_id": "pp", "seq": seq,
                "message_bytes": 8, "peer": peer, "start_ns": start, "dur_ns": end - start,
                "group_ranks": "[0,1,2]"}  # fmt: skip

    rows = [
        call(0, "send", 0, 1, 0, 100), call(0, "send", 1, 2, 100, 200), call(0, "all_reduce", 0, None, 200, 400),
        call(0, "send", 2, 1, 400, 500),
        call(1, "recv", 0, 0, 0, 110), call(1, "all_reduce", 0, None, 150, 400), call(1, "recv", 1, 0, 300, 510),
        call(2, "recv", 0, 0, 50, 210), call(2, "all_reduce", 0, None, 300, 400),
    ]  # fmt: skip
    frame = pl.DataFrame([{"op_id": i, **row} for i, row in enumerate(rows)], schema=CALL_SCHEMA)
    found = match(frame).rows
    groups = found.group_by("instance_id").agg(pl.col("op_id").sort()).sort("op_id")["op_id"].to_list()
    assert sorted(groups) == [[0, 4], [1, 7], [2, 5, 8], [3, 6]]
    assert found["matched_by"].to_list() == ["pair", "pair", "seq", "pair", "pair", "seq", "pair", "pair", "seq"]
    # The second receive waits 100 ns for its send.
    assert waits(frame, match(frame))[6] == 100


def test_peers_that_are_numbered_within_their_group():
    # Stage group [2, 6]: rank 2 sends to "1", which is rank 6; rank 6 receives from "0", which is rank 2.
    rows = [
        {"trace_id": "a", "op_id": 0, "device_id": "0", "rank": 2, "step": 1, "collective": "send", "group_id": "pp", "peer": 1,
         "group_ranks": "[2,6]", "message_bytes": 8, "start_ns": 0, "dur_ns": 10},
        {"trace_id": "b", "op_id": 0, "device_id": "0", "rank": 6, "step": 1, "collective": "recv", "group_id": "pp", "peer": 0,
         "group_ranks": "[2,6]", "message_bytes": 8, "start_ns": 0, "dur_ns": 12},
    ]  # fmt: skip
    assert match(pl.DataFrame(rows, schema=CALL_SCHEMA)).rows["instance_id"].to_list() == [0, 0]

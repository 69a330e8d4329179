"""Collectives matched over ranks and clocks aligned, on schedules with known answers."""

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
    frame = calls([("a", 0, 1, "broadcast", "g", 0, 8, 0, 100), ("b", 1, 1, "broadcast", "g", 0, 8, 500, 600)])
    assert match(frame).rows["instance_id"].to_list() == [None, None]
    assert "do not overlap" in match(frame).rows["matched_by"][0]


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

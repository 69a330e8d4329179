"""Windows and step numbers on small timelines with known answers."""

import polars as pl

from tracegap.ingest import steps
from tracegap.ingest.issues import Issues
from tracegap.ingest.trace import OPS, STEP_MARKS, Device, Trace


def ops(rows):
    """From (start, dur, class, launch) or with a name."""
    known = [
        {
            "op_id": i, "device_id": "0", "stream": "7", "name": r[4] if len(r) > 4 else "k", "op_class": r[2],
            "start_ns": r[0], "dur_ns": r[1], "launch_ns": r[3], "launch_thread": "1/1",
        }
        for i, r in enumerate(rows)
    ]  # fmt: skip
    return pl.DataFrame([{c: row.get(c) for c in OPS} for row in known], schema=OPS)


def marks(*rows, source="profiler_step", device=None):
    return pl.DataFrame(
        [
            {"step": n, "device_id": device, "start_ns": s, "dur_ns": d, "source": source, "thread": "1/1"}
            for n, s, d in rows
        ],
        schema=STEP_MARKS,
    )


def trace(frame, step_marks):
    return Trace(
        format="x",
        framework="x",
        origin_unix_ns=0,
        devices=[Device(device_id="0", kind="gpu")],
        ops=frame,
        step_marks=step_marks,
    )


def windows(frame, step_marks, issues=None):
    t = trace(frame, step_marks)
    t.ops = steps.assign(t.ops, steps.marks_of(step_marks, "0"), t.issues)
    found = steps.windows_of(t.ops, step_marks, issues or Issues())
    spans = list(zip(found.windows.starts.tolist(), found.windows.ends.tolist(), strict=True))
    return t.ops["step"].to_list(), spans, found


def test_an_operation_belongs_to_the_step_that_launched_it_not_to_the_one_it_runs_in():
    frame = ops([(120, 50, "matmul", 10), (210, 90, "matmul", 95), (310, 50, "matmul", 110)])
    got, spans, found = windows(frame, marks((5, 0, 100), (6, 100, 100)))
    assert got == [5, 5, 6]
    assert spans == [(120, 310), (310, 360)]
    assert found.source == "profiler_step"


def test_work_without_a_launch_has_no_step_but_lies_in_a_window():
    got, spans, _ = windows(
        ops([(10, 5, "matmul", None), (120, 50, "matmul", 10), (200, 5, "matmul", None)]), marks((5, 0, 100))
    )
    assert got == [None, 5, None]
    assert spans == [(120, 170)]


def test_copies_open_no_window_unless_there_is_no_kernel():
    frame = ops([(100, 20, "copy", 50), (150, 50, "matmul", 60)])
    assert windows(frame, marks((1, 0, 100)))[1] == [(150, 200)]
    assert windows(frame.filter(pl.col("op_class") == "copy"), marks((1, 0, 100)))[1] == [(100, 120)]


def test_the_mark_on_the_device_goes_before_the_host():
    frame = ops([(100, 10, "matmul", 5), (130, 10, "matmul", 6)])
    on_device = marks((7, 90, 30), (8, 120, 30), source="xplane_steps", device="0")
    got, spans, found = windows(frame, pl.concat([marks((1, 0, 100)), on_device]))
    assert got == [7, 8]
    assert spans == [(100, 130), (130, 140)]
    assert found.steps == [7, 8]


def test_without_any_launch_in_the_file_marks_hold_by_time_and_that_is_said():
    t = trace(ops([(10, 5, "matmul", None), (110, 5, "matmul", None)]), marks((1, 0, 100), (2, 100, 100)))
    assert steps.assign(t.ops, t.step_marks, t.issues)["step"].to_list() == [1, 2]
    assert t.issues.by_code["steps_by_time"].count == 2


def test_without_marks_the_whole_trace_is_one_step():
    got, spans, found = windows(ops([(50, 5, "copy", 1), (100, 20, "matmul", 5), (300, 10, "memset", 6)]), marks())
    assert got == [None, None, None]
    assert (spans, found.source, found.steps) == ([(100, 310)], "whole_trace", [0])


def pattern(repeats, names, *, pause=50, launch=True):
    rows, t = [], 0
    for _ in range(repeats):
        for name in names:
            rows.append((t, 8, "matmul", t - 5 if launch else None, name))
            t += 10
        t += pause
    return ops(rows)


def test_a_repeating_pattern_stands_for_steps_and_is_marked_so():
    frame = pattern(4, ["a", "b", "b", "b", "c"])
    _, spans, found = windows(frame, marks())
    assert found.source == "inferred"
    assert [s for s, _ in spans] == [0, 100, 200, 300]
    assert found.kernels == [5, 5, 5, 5]


def test_two_repeats_or_an_inner_loop_alone_are_no_pattern():
    assert windows(pattern(2, ["a", "b", "c", "d", "e"]), marks())[2].source == "whole_trace"
    assert windows(pattern(9, ["a", "b"]), marks())[2].source == "whole_trace"


def test_a_pattern_inside_one_launch_is_no_step():
    frame = pattern(4, ["a", "b", "c", "d"]).with_columns(launch_ns=pl.lit(-5, dtype=pl.Int64))
    assert windows(frame, marks())[2].source == "whole_trace"


def test_the_last_step_and_a_cut_first_one_are_left_out_of_averages():
    rows = [(100 + 10 * i, 5, "matmul", t) for i, t in enumerate([5, 11, 12, 13, 21, 22, 23, 31, 32, 33])]
    found = windows(ops(rows), marks((0, 0, 10), (1, 10, 10), (2, 20, 10), (3, 30, 10)))[2]
    assert found.incomplete[1:3] == [None, None]
    assert found.incomplete[0] == "cut by the recording: 1 kernels, a median step has 3"
    assert "no next one" in found.incomplete[3]


def test_a_damaged_trace_has_an_incomplete_last_step():
    issues = Issues()
    issues.add("truncated", "the file ends early", severity="data_loss")
    assert "damaged" in windows(ops([(100, 5, "matmul", 5)]), marks((0, 0, 10)), issues)[2].incomplete[0]


def test_operations_that_start_before_their_launch_are_counted():
    issues = Issues()
    steps.note_early_starts(
        ops([(10, 5, "matmul", 9), (20, 5, "matmul", 27), (30, 5, "copy", None), (40, 5, "copy", 43)]), issues
    )
    steps.note_early_starts(ops([(10, 5, "matmul", 10), (20, 5, "matmul", None)]), issues)
    (row,) = issues.rows()
    assert (row["code"], row["count"], row["severity"]) == ("starts_before_launch", 2, "info")
    assert row["where"] == "device 0, by up to 7 ns"

"""Which step launched an operation, and where the step windows of a device lie (design, section 3)."""

import itertools
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracegap.ingest.account import Windows
from tracegap.ingest.issues import Issues
from tracegap.models.ops import OpClass

NO_KERNEL = [OpClass.COPY.value, OpClass.MEMSET.value]
"""Classes that open no window: inputs are prefetched a step ahead."""
NEEDED = ("op_id", "name", "op_class", "start_ns", "dur_ns", "step", "launch_ns")
"""Columns of operations that `windows_of` looks at."""
WHOLE_TRACE = "whole_trace"
INFERRED = "inferred"
_CANDIDATES = 8  # names that are tried as the mark of a period
_MIN_REPEATS = 3  # a pattern seen twice is no pattern
_MIN_PERIOD = 3  # operations: shorter patterns are loops inside a step
_REPEATS_ALIKE = 0.9  # part of the operations that have the same name one period later
_PATTERN_COVERS = 0.7  # part of the operations that lie in whole periods
_CUT_BELOW = 0.9  # a first or last step with fewer kernels than this part of the median was cut by the recording


def marks_of(marks: pl.DataFrame, device_id: str) -> pl.DataFrame:
    """The marks that hold for a device: its own and those of the host."""
    return marks.filter(pl.col("device_id").is_null() | (pl.col("device_id") == device_id))


def assign(ops: pl.DataFrame, marks: pl.DataFrame, issues: Issues) -> pl.DataFrame:
    """The operations of one device with `step` filled in: the step whose host mark holds the start of the launch call.

    Marks on the device hold for what starts inside them. A step that the trace itself states stays. Where no launch of
    the device is in the file, host marks hold for what starts inside them, which is said in the issues.

    Args:
        ops: operations of one device.
        marks: step marks of that device and of the host.
        issues: of the trace.
    """
    if not len(marks):
        return ops
    marks = marks.sort("start_ns")
    on_device = marks.filter(pl.col("device_id").is_not_null())
    use, at = (on_device, "start_ns") if len(on_device) else (marks, "launch_ns")
    if not len(on_device) and not ops["launch_ns"].is_not_null().any():
        at = "start_ns"
        issues.add(
            "steps_by_time",
            "no launch of these operations is in the file: they belong to the step in whose host window they start",
            count=len(ops),
        )
    if at == "start_ns" or use["thread"].null_count():
        return ops.with_columns(step=pl.coalesce("step", _step_at(ops[at], use)))
    return ops.with_columns(step=pl.coalesce("step", _step_of_process(ops, use)))


def note_early_starts(ops: pl.DataFrame, issues: Issues) -> None:
    """Says in the issues how many operations of a device start before their launch call, and by how much at most."""
    early = (ops["launch_ns"] - ops["start_ns"]).filter(ops["launch_ns"] > ops["start_ns"])
    if len(early):
        issues.add(
            "starts_before_launch",
            "operations start before their launch call: the clocks of host and device differ, and so does idle time by cause",
            count=len(early),
            where=f"device {ops['device_id'][0]}, by up to {early.sort()[-1]} ns",
        )


def _step_of_process(ops: pl.DataFrame, marks: pl.DataFrame) -> pl.Series:
    """Step of each launch by the marks of its own process: others mark steps of theirs at the same time."""
    processes = marks["thread"].str.split("/").list.first()
    if processes.n_unique() == 1:
        return _step_at(ops["launch_ns"], marks)
    launched_by = ops["launch_thread"].str.split("/").list.first()
    step = pl.Series("step", [None] * len(ops), dtype=pl.Int64)
    for process in processes.unique(maintain_order=True):
        of_process = _step_at(ops["launch_ns"], marks.filter(processes == process))
        step = pl.select(pl.when(launched_by == process).then(of_process).otherwise(step)).to_series()
    return step


def _step_at(instants: pl.Series, marks: pl.DataFrame) -> pl.Series:
    """Step whose mark [start, start + dur) holds each instant, else null; the mark that starts last wins."""
    if not len(marks):
        return pl.Series("step", [None] * len(instants), dtype=pl.Int64)
    starts = marks["start_ns"].to_numpy()
    ends = starts + marks["dur_ns"].to_numpy()
    t = instants.fill_null(np.iinfo(np.int64).min).to_numpy()
    i = np.searchsorted(starts, t, side="right") - 1
    hit = (i >= 0) & (t < ends[np.maximum(i, 0)])
    return pl.select(pl.when(pl.Series(hit)).then(marks["step"].gather(pl.Series(np.maximum(i, 0))))).to_series()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindows:
    """The windows of one device."""

    windows: Windows
    """Disjoint, increasing."""
    steps: list[int]
    """Step number of each."""
    source: str
    """What marked them."""
    kernels: list[int]
    """Kernels that each step launched."""
    incomplete: list[str | None]
    """Why a step does not count in averages; None where it does."""


def windows_of(ops: pl.DataFrame, marks: pl.DataFrame, issues: Issues) -> StepWindows | None:
    """Step windows of one device, from its operations with their steps; None where it has no operation.

    A step starts at its first kernel and ends where the next one starts; the last ends with its last operation. Copies
    and fills open a window only on a device without any kernel. Without marks the whole trace is one step.
    """
    if not len(ops):
        return None
    is_kernel = ~ops["op_class"].is_in(NO_KERNEL)
    kernels = int(is_kernel.sum())
    opens = is_kernel if kernels else pl.repeat(value=True, n=len(ops), eager=True)
    marked = ops.select("step", "start_ns").filter(opens & ops["step"].is_not_null())
    if not len(marked):
        openers = ops.filter(opens)
        ordered = openers.sort("start_ns", "op_id")
        begins = _pattern(ordered)
        if begins is not None:
            return _inferred(ordered, ops, begins, issues)
        lo, hi = _span(openers)[0], _span(ops)[1]
        return StepWindows(
            windows=Windows(np.array([lo], dtype=np.int64), np.array([max(lo, hi)], dtype=np.int64)),
            steps=[0],
            source=WHOLE_TRACE,
            kernels=[kernels],
            incomplete=["the trace is cut" if issues.lost_data else None],
        )
    firsts = marked.group_by("step").agg(pl.col("start_ns").min(), pl.len().alias("n")).sort("start_ns", "step")
    starts = firsts["start_ns"].to_numpy()
    steps = firsts["step"].to_list()
    last_end = _span(ops.filter(pl.col("step") == steps[-1]))[1]
    ends = np.append(starts[1:], max(last_end, int(starts[-1])))
    counts = firsts["n"].to_list()
    return StepWindows(
        windows=Windows(starts, ends),
        steps=steps,
        source=_source(marks),
        kernels=counts,
        incomplete=_with_the_next(steps, marks, _incomplete(counts, issues)),
    )


def _with_the_next(steps: list[int], marks: pl.DataFrame, reasons: list[str | None]) -> list[str | None]:
    """A window that holds the time of a marked step without a kernel is no single step."""
    marked = sorted(set(marks["step"].drop_nulls().to_list()))
    out = list(reasons)
    for i, (step, following) in enumerate(itertools.pairwise(steps)):
        inside = [m for m in marked if step < m < following]
        if inside and out[i] is None:
            out[i] = f"step {inside[0]} runs no kernel here: its time is in this window"
    return out


def _pattern(ops: pl.DataFrame) -> np.ndarray | None:
    """Where the periods of a repeating sequence of operations begin, as indices; None where nothing repeats clearly.

    The candidate is the rarest name that occurs often enough, at even distances: an inner loop repeats more often than the
    step that holds it. A period begins after its longest usual pause, and never inside one launch (of a graph).

    Args:
        ops: operations of one device in order of start.
    """
    n = len(ops)
    if n < _MIN_REPEATS * _MIN_PERIOD:
        return None
    names, starts = ops["name"], ops["start_ns"].to_numpy()
    reach = np.maximum.accumulate(starts + ops["dur_ns"].to_numpy())
    pause = np.concatenate(([0], starts[1:] - reach[:-1]))
    same_launch = (ops["launch_ns"] == ops["launch_ns"].shift(1)).fill_null(value=False).to_numpy()
    ids = names.rank("dense").to_numpy()
    counts = names.value_counts().filter(pl.col("count") >= _MIN_REPEATS).sort("count", "name")
    for anchor in counts["name"].to_list()[:_CANDIDATES]:
        at = np.flatnonzero((names == anchor).to_numpy())
        period = round(float(np.median(np.diff(at))))
        if period < _MIN_PERIOD or period * len(at) < _PATTERN_COVERS * n:
            continue
        if np.mean(ids[period:] == ids[:-period]) < _REPEATS_ALIKE:
            continue
        after = np.array([pause[i + 1 : i + 1 + period] for i in at if i + 1 + period <= n])
        begins = at + 1 + (int(np.argmax(np.median(after, axis=0))) if len(after) else 0)
        begins = np.unique(np.append(begins[0] - period, begins))
        begins = begins[(begins >= 0) & (begins < n)]
        inside = same_launch[begins]
        return None if inside.mean() > 1 - _REPEATS_ALIKE else begins[~inside]
    return None


def _inferred(ordered: pl.DataFrame, ops: pl.DataFrame, begins: np.ndarray, issues: Issues) -> StepWindows:
    """Windows between the beginnings of a pattern; what lies before the first is in no step."""
    edges = ordered["start_ns"].to_numpy()[begins]
    counts = np.diff(np.append(begins, len(ordered))).tolist()
    return StepWindows(
        windows=Windows(edges, np.append(edges[1:], max(_span(ops)[1], int(edges[-1])))),
        steps=list(range(len(begins))),
        source=INFERRED,
        kernels=counts,
        incomplete=_incomplete(counts, issues),
    )


def _span(ops: pl.DataFrame) -> tuple[int, int]:
    """First start and last end."""
    ends = ops["start_ns"] + ops["dur_ns"]
    return int(ops["start_ns"].min()), int(ends.max())  # type: ignore[arg-type]


def _source(marks: pl.DataFrame) -> str:
    """Source of the marks: readers give one kind of mark a file."""
    return str(marks["source"].mode().sort()[0]) if len(marks) else "group_id"


def _incomplete(counts: list[int], issues: Issues) -> list[str | None]:
    """Reasons, by step: why it does not count in averages.

    Nothing marks the end of the last step, so the pause before a next one (input, logging) is missing in it: with others
    to speak for the run it is left out. A recording may cut its first step, and damage a file's last one.
    """
    reasons: list[str | None] = [None] * len(counts)
    if len(counts) >= 3:
        median = float(np.median(counts))
        if counts[0] < _CUT_BELOW * median:
            reasons[0] = f"cut by the recording: {counts[0]} kernels, a median step has {median:g}"
        reasons[-1] = "the last recorded step: no next one marks its end"
        if counts[-1] < _CUT_BELOW * median:
            reasons[-1] = f"cut by the recording: {counts[-1]} kernels, a median step has {median:g}"
    if issues.lost_data:
        reasons[-1] = "the trace is damaged: this step may be cut"
    return reasons

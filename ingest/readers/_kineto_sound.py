"""Which records of a Kineto trace have times that can be believed; the others are counted and left out, or cut."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.issues import Issues
from tracegap.ingest.readers._kineto_host import Lost
from tracegap.ingest.readers._kineto_roles import Role

Table = dict[str, NDArray[Any]]

_HOUR_NS = 3_600 * 10**9
_EARLY_START_NS = 100_000  # a kernel may start so much before the one ahead of it on its stream has ended


def zero_is_no_time(device: Table, first_host_ns: int) -> bool:
    """Whether a time of 0 is none in this file: Kineto writes a time before its base so, and all others are much later.

    `first_host_ns` is the earliest start above 0 of a host span, or later than all times.
    """
    starts = device["start"][device["has_start"] & (device["start"] > 0)]
    first = int(starts.min(initial=first_host_ns))
    return _HOUR_NS < first < 2**62


def sound_calls(calls: Table, zero_is_none: bool) -> Table:
    """Launch calls with a time."""
    sound = calls["has_start"] & ~(zero_is_none & (calls["start"] == 0))
    return {name: column[sound] for name, column in calls.items()}


def sound_records(device: Table, issues: Issues, facts: dict[str, Any], *, zero_is_none: bool) -> Table:
    """Device work with times that can be believed. Facts about kernel records are counted on the way."""
    kernels = device["role"] == Role.KERNEL
    lost = ~device["has_start"]
    if zero_is_none:
        lost |= device["start"] == 0
    negative, missing = ~lost & (device["dur"] < 0), ~lost & ~device["has_dur"]
    sound = ~(lost | negative | missing)
    facts |= {
        "kernel_records": int(kernels.sum()),
        "kernels_valid": int((kernels & sound).sum()),
        "lost_timestamps": int((kernels & lost).sum()),
        "negative_durations": int((kernels & negative).sum()),
        "zero_durations": int((kernels & sound & (device["dur"] == 0)).sum()),
    }
    left_out = "left out: when it ran is not known"
    for code, what, mask in (
        ("lost_timestamp", f"device work without a start, {left_out}", lost),
        ("missing_duration", f"device work without a length, {left_out}", missing),
        ("negative_duration", f"device work of negative length, {left_out}", negative),
    ):
        issues.add(code, what, where=_first(device, mask), count=int(mask.sum()), severity="data_loss")
    if not sound.all():
        device = {name: column[sound] for name, column in device.items()}
    facts["impossible_durations"] = _cut_impossible(device, issues)
    return device


def count_lost_spans(lost: Lost, issues: Issues) -> None:
    """Says which host spans were left out or changed."""
    issues.add(
        "lost_host_timestamp", "host spans without a start, left out", where=_event(lost.first_start), count=lost.starts,
        severity="data_loss",
    )  # fmt: skip
    issues.add(
        "negative_host_duration", "host spans of negative length, kept with length 0", where=_event(lost.first_negative),
        count=lost.negative,
    )  # fmt: skip


def _event(order: int) -> str:
    return f"event {order}" if order >= 0 else ""


def _first(table: Table, mask: NDArray[np.bool_]) -> str:
    """Place of the first marked record."""
    return f"event {int(table['order'][mask][0])}" if mask.any() else ""


def _cut_impossible(device: Table, issues: Issues) -> int:
    """Cuts work that covers the next on its own stream whole, at that one's start.

    Work of a stream runs one after the other. What truly overlaps stays: kernels of one launch (a graph has branches), and
    a little (programmatic launches start early).
    """
    start, end, call = device["start"], device["start"] + device["dur"], device["corr"]
    order = np.lexsort((start, device["stream"], device["device"]))
    lane = device["stream"][order].astype(np.int64) << 32 | device["device"][order]
    one, following = order[:-1], order[1:]
    suspects = (
        (lane[1:] == lane[:-1])
        & (start[following] > start[one])
        & (end[one] - start[following] > _EARLY_START_NS)
        & ((call[one] != call[following]) | (call[one] < 0))
    )
    impossible = np.zeros(len(start), np.bool_)
    for i in reversed(np.flatnonzero(suspects).tolist()):  # from the end: a wrong one may cover a wrong one
        if end[one[i]] >= end[following[i]]:
            end[one[i]] = start[following[i]]
            impossible[one[i]] = True
    device["dur"] = end - start
    issues.add(
        "impossible_duration",
        "device work that would cover the next on its own stream whole; cut where that one starts",
        where=_first(device, impossible),
        count=int(impossible.sum()),
        severity="data_loss",
    )
    return int(impossible.sum())

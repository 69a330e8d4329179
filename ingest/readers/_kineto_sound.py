"""Which records of a Kineto trace have times that can be believed; the others are counted and left out, or cut."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.issues import Issues
from tracegap.ingest.readers._kineto_events import Role

Table = dict[str, NDArray[Any]]

_HOUR_NS = 3_600 * 10**9
_EARLY_START_NS = 100_000  # a kernel may start so much before the one ahead of it on its stream has ended


def sound_records(device: Table, host: Table, issues: Issues, facts: dict[str, Any]) -> tuple[Table, Table]:
    """Device work and host spans with times that can be believed.

    Kineto writes a time before its base as 0: in a file whose other times are more than an hour later, 0 is no time.
    Facts about kernel records are counted on the way.
    """
    kernels = device["role"] == Role.KERNEL
    lost, lost_spans = ~device["has_start"], ~host["has_start"]
    starts = np.concatenate([device["start"][~lost], host["start"][~lost_spans]])
    later = starts[starts > 0]
    if len(later) and later.min() > _HOUR_NS:
        lost, lost_spans = lost | (device["start"] == 0), lost_spans | (host["start"] == 0)
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
    below = ~lost_spans & (host["dur"] < 0)
    issues.add(
        "lost_host_timestamp", "host spans without a start, left out", where=_first(host, lost_spans),
        count=int(lost_spans.sum()), severity="data_loss",
    )  # fmt: skip
    issues.add(
        "negative_host_duration", "host spans of negative length, kept with length 0", where=_first(host, below),
        count=int(below.sum()),
    )  # fmt: skip
    device = {name: column[sound] for name, column in device.items()}
    host = {name: column[~lost_spans] for name, column in host.items()}
    host["dur"] = np.maximum(host["dur"], 0)
    facts["impossible_durations"] = _cut_impossible(device, issues)
    return device, host


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

"""Times of Kineto events: microseconds with decimals to whole nanoseconds, by doubles as far as those are exact."""

from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.readers._kineto_schema import Event, Times

EXACT_DOUBLE_US = float(2**43)  # above, a double does not tell nanoseconds apart
SUBNANOSECOND_US = float(2**32)  # below, a double also holds a thousandth of a nanosecond

_TIMES = msgspec.json.Decoder(list[Times])
_TIME = msgspec.json.Decoder(Times)
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])


class Spans(NamedTuple):
    """Times of some events in whole nanoseconds of the file's own clock, and which have them."""

    start_ns: NDArray[np.int64]
    dur_ns: NDArray[np.int64]
    has_start: NDArray[np.bool_]
    has_dur: NDArray[np.bool_]


def _text_ns(text: bytes) -> Decimal | None:
    """Nanoseconds of a JSON number or string of microseconds, exactly; None where it is no finite number."""
    try:
        value = Decimal(text.strip(b'" \t\r\n').decode("ascii", "replace")).scaleb(3)
    except ArithmeticError:
        return None
    return value if value.is_finite() and abs(value) < 2**62 else None


def exact_times(text: bytes | memoryview, rows: NDArray[np.int64]) -> Spans:
    """Times of some events of a JSON array, taken from its text as decimals."""
    try:
        raws = _TIMES.decode(text)
    except msgspec.ValidationError:  # an entry that is no object has no times either
        raws = [_one_time(bytes(raw)) for raw in _RAWS.decode(text)]
    n = len(rows)
    found = Spans(np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.bool_), np.zeros(n, np.bool_))
    for i, row in enumerate(rows.tolist()):
        start, dur = _text_ns(bytes(raws[row].ts)), _text_ns(bytes(raws[row].dur))
        if start is not None:
            found.start_ns[i], found.has_start[i] = round(start), True
        if dur is not None:
            found.dur_ns[i], found.has_dur[i] = round((start or 0) + dur) - found.start_ns[i], True
    return found


def _one_time(entry: bytes) -> Times:
    try:
        return _TIME.decode(entry)
    except msgspec.ValidationError:
        return Times()


def _doubles(values: list[Any]) -> NDArray[np.float64] | None:
    """Numbers as doubles, NaN for None; None where one is no number."""
    try:
        return np.fromiter(values, np.float64, len(values))
    except (TypeError, ValueError, OverflowError):
        return np.array(values, np.float64) if {*map(type, values)} <= {int, float, type(None)} else None


def double_times(events: list[Event]) -> Spans | None:
    """Times of events as far as doubles tell them exactly, else None."""
    ts, dur = [e.ts for e in events], [e.dur for e in events]
    if (start_us := _doubles(ts)) is None or (dur_us := _doubles(dur)) is None:
        return None
    has_start, has_dur = np.isfinite(start_us), np.isfinite(dur_us)
    if not has_start.all():
        start_us = np.where(has_start, start_us, 0.0)
    if not has_dur.all():
        dur_us = np.where(has_dur, dur_us, 0.0)
    largest = max(np.abs(start_us).max(initial=0.0), np.abs(dur_us).max(initial=0.0))
    if largest >= EXACT_DOUBLE_US and (largest >= 2.0**52 or {*map(type, ts), *map(type, dur)} - {int, type(None)}):
        return None
    whole = np.floor(start_us)
    fraction_ns = (start_us - whole) * 1000.0
    start_ns = np.rint(fraction_ns)
    # What lies below a nanosecond in the start moves the end as well, where a double can still hold it.
    rest = np.where(np.abs(start_us) < SUBNANOSECOND_US, fraction_ns - start_ns, 0.0)
    whole_dur = np.floor(dur_us)
    dur_ns = np.rint((dur_us - whole_dur) * 1000.0 + rest)
    return Spans(
        whole.astype(np.int64) * 1000 + start_ns.astype(np.int64),
        whole_dur.astype(np.int64) * 1000 + dur_ns.astype(np.int64),
        has_start,
        has_dur,
    )

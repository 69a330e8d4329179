"""Numbers as people read them: decimal SI prefixes, three significant digits, always a unit; unknown is said so."""

import re

from tracegap.models.units import human, human_ns, significant

UNKNOWN = "unknown"
"""Stands wherever a number is NULL; the reason stands beside it."""
_NUMBER_AND_UNIT = re.compile(r"(\d) ((?:[munµkMGTP]?(?:s|B|B/s|FLOP|FLOP/s))\b)")


def duration(ns: float | None) -> str:
    """Of nanoseconds: "412 ms", "1.20 µs", "3 ns"."""
    return UNKNOWN if ns is None else human_ns(ns)


def signed_duration(ns: float | None) -> str:
    """Of a difference in nanoseconds: "+27.4 ms", "−27.4 ms", "0 ns"."""
    return f"+{duration(ns)}" if ns is not None and ns > 0 else duration(ns)


def percent(frac: float | None) -> str:
    """Of a fraction from 0 to 1: "38.1%"."""
    if frac is None:
        return UNKNOWN
    return "100%" if frac == 1 else f"{significant(frac * 100)}%"


def signed_percent(frac: float | None) -> str:
    """Of a relative difference: "+10.2%"."""
    return f"+{percent(frac)}" if frac is not None and frac > 0 else percent(frac)


def count(value: float | None) -> str:
    """Of things, exactly: "6,000"."""
    return UNKNOWN if value is None else f"{int(value):,}"


def size(value: float | None) -> str:
    """Of bytes: "21.0 MB", decimal."""
    return _quantity(value, "B")


def flops(value: float | None) -> str:
    """Of FLOPs: "3.35 TFLOP"."""
    return _quantity(value, "FLOP")


def flops_per_s(value: float | None) -> str:
    """Of FLOP a second: "989 TFLOP/s"."""
    return _quantity(value, "FLOP/s")


def bytes_per_s(value: float | None) -> str:
    """Of bytes a second: "3.35 TB/s"."""
    return _quantity(value, "B/s")


def gb_per_s(value: float | None) -> str:
    """Of 10^9 bytes a second, as people quote bandwidth of collectives: "355 GB/s"."""
    return UNKNOWN if value is None else f"{significant(value)} GB/s"


def intensity(value: float | None) -> str:
    """Of FLOPs a byte: "128 FLOP/B"."""
    return UNKNOWN if value is None else f"{significant(value)} FLOP/B"


def text(value: object) -> str:
    """Of words: as they are."""
    return UNKNOWN if value is None else str(value)


def _quantity(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else human(value, unit)


def unbroken(said: str) -> str:
    """Text in which no line ends between a number and its unit."""
    return _NUMBER_AND_UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", said)


def plural(n: int, one: str, many: str | None = None) -> str:
    """A count with its noun: "1 step", "20 steps"."""
    return f"{count(n)} {one if n == 1 else many or one + 's'}"

"""Numbers as people read them: decimal SI prefixes, three significant digits, always a unit; unknown is said so."""

import math
import re

UNKNOWN = "unknown"
"""Stands wherever a number is NULL; the reason stands beside it."""
MINUS = "\N{MINUS SIGN}"

_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_NUMBER_AND_UNIT = re.compile(r"(\d) ((?:[munµkMGTP]?(?:s|B|B/s|FLOP|FLOP/s))\b)")
_TIME = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def significant(value: float, digits: int = 3) -> str:
    """Fixed-point text with so many significant digits: 0.0382, 3.82, 382, 38200."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])  # of the rounded value: 99.96 has three digits as 100
    decimals = max(0, digits - 1 - exponent)
    text = f"{round(value, digits - 1 - exponent):.{decimals}f}"
    return text.replace("-", MINUS)


def _scaled(value: float, scales: tuple[tuple[float, str], ...]) -> str:
    rounded = float(f"{value:.2e}")
    for scale, unit in scales:
        if abs(rounded) >= scale:
            return f"{significant(rounded / scale)} {unit}".rstrip()
    return f"{significant(rounded / scales[-1][0])} {scales[-1][1]}".rstrip()


def duration(ns: float | None) -> str:
    """Of nanoseconds: "412 ms", "1.20 µs", "3 ns"."""
    if ns is None:
        return UNKNOWN
    if abs(ns) < 999.5 and float(ns).is_integer():
        return f"{int(ns)} ns".replace("-", MINUS)
    return _scaled(ns, _TIME)


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
    if value is None:
        return UNKNOWN
    if abs(value) < 999.5:
        whole = float(value).is_integer()
        return f"{int(value) if whole else significant(value)} {unit}".replace("-", MINUS)
    return f"{_scaled(value, _SI)}{unit}"


def unbroken(said: str) -> str:
    """Text in which no line ends between a number and its unit."""
    return _NUMBER_AND_UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", said)


def plural(n: int, one: str, many: str | None = None) -> str:
    """A count with its noun: "1 step", "20 steps"."""
    return f"{count(n)} {one if n == 1 else many or one + 's'}"

"""Constants, conversions, and numbers as people write them. All other modules count bytes, FLOPs, seconds and ns."""

import math

NS_PER_S = 10**9
NS_PER_US = 10**3
US_PER_S = 10**6
S_PER_HOUR = 3600
S_PER_DAY = 86400

MB = 10**6
GB = 10**9
TERA = 10**12
GIB = 2**30


def ns(seconds: float) -> int:
    """Seconds as whole nanoseconds, rounded to the nearest."""
    return round(seconds * NS_PER_S)


MINUS = "\N{MINUS SIGN}"
_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_TIME = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def significant(value: float, digits: int = 3) -> str:
    """Fixed-point text with so many significant digits: 0.0382, 3.82, 382, 38200."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])  # of the rounded value: 99.96 has three digits as 100
    decimals = max(0, digits - 1 - exponent)
    text = f"{round(value, digits - 1 - exponent):.{decimals}f}"
    return text.replace("-", MINUS)


def human(value: float, unit: str = "") -> str:
    """A number with a decimal prefix: `human(3.35e12, "B/s")` is "3.35 TB/s". Integers below 1000 stay whole."""
    if abs(value) < 999.5:
        whole = float(value).is_integer()
        return f"{int(value) if whole else significant(value)} {unit}".rstrip().replace("-", MINUS)
    return f"{_scaled(value, _SI)}{unit}"


def human_ns(duration_ns: float) -> str:
    """A duration: "412 ms", "1.20 µs", "3 ns"."""
    if abs(duration_ns) < 999.5 and float(duration_ns).is_integer():
        return f"{int(duration_ns)} ns".replace("-", MINUS)
    return _scaled(duration_ns, _TIME).rstrip()


def _scaled(value: float, scales: tuple[tuple[float, str], ...]) -> str:
    rounded = float(f"{value:.2e}")
    for scale, unit in scales:
        if abs(rounded) >= scale:
            return f"{significant(rounded / scale)} {unit}"
    return f"{significant(rounded / scales[-1][0])} {scales[-1][1]}"

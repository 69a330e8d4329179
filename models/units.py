"""Constants, conversions, and numbers as people write them. All other modules count bytes, FLOPs, seconds and ns."""

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


def human(value: float, unit: str = "", *, digits: int = 3) -> str:
    """A number with a decimal prefix: `human(3.35e12, "B/s")` is "3.35 TB/s". Integers below 1000 stay whole."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale * (1 - 0.5 * 10**-digits):
            return f"{_significant(value / scale, digits)} {prefix}{unit}"
    return f"{_significant(value, digits)} {unit}".rstrip()


def human_ns(duration_ns: float, *, digits: int = 3) -> str:
    """A duration: "412 ms", "1.20 µs", "3 ns"."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(duration_ns) >= scale * (1 - 0.5 * 10**-digits):
            return f"{_significant(duration_ns / scale, digits)} {unit}"
    return f"{_significant(duration_ns, digits)} ns"


def _significant(value: float, digits: int) -> str:
    """Fixed-point text with so many significant digits; whole numbers below 10^digits without decimals."""
    if value == int(value) and abs(value) < 10**digits:
        return str(int(value))
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, digits - whole)}f}"

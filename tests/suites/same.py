"""When a measured value is the expected one."""

import math
from typing import Any

REL_TOL = 1e-6


def difference(measured: Any, expected: Any, rel_tol: float = REL_TOL, where: str = "") -> str | None:
    """The first place where two values differ, in words; None where they are the same.

    Whole numbers and words exactly, fractions to `rel_tol`, null only null, objects and lists whole.
    """
    if isinstance(expected, dict) and isinstance(measured, dict):
        if keys := measured.keys() ^ expected.keys():
            return f"{where}: only on one side: {', '.join(map(repr, sorted(map(str, keys))[:8]))}"
        parts = ((f"{where}/{key}", measured[key], value) for key, value in expected.items())
    elif isinstance(expected, list) and isinstance(measured, list) and len(measured) == len(expected):
        parts = ((f"{where}/{i}", *pair) for i, pair in enumerate(zip(measured, expected, strict=True)))
    else:
        return None if _same(measured, expected, rel_tol) else f"{where}: {measured!r}, expected {expected!r}"
    return next((found for at, m, e in parts if (found := difference(m, e, rel_tol, at)) is not None), None)


def _same(measured: Any, expected: Any, rel_tol: float) -> bool:
    if isinstance(expected, float) and isinstance(measured, int | float) and not isinstance(measured, bool):
        return math.isclose(measured, expected, rel_tol=rel_tol)
    return bool(measured == expected) and isinstance(measured, bool) == isinstance(expected, bool)

"""Measured ceilings of a cluster: what its own matrix products, memories and collectives reach at best.

A file in TOML, JSON or CSV, or `[[calibration]]` tables of a manifest. A row names a `kind` and its rate, and where it does
not hold for all of them the `hardware` (catalogue id), the `dtype` and the `collective`:

    [[calibration]]
    kind = "matmul"          # or hbm, busbw
    dtype = "bf16"           # of matmul; every matmul row needs one
    tflops = 745             # of matmul; gb_per_s of hbm and busbw
"""

import csv
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tracegap.ingest.errors import TraceError
from tracegap.models import hardware
from tracegap.models.errors import TracegapError
from tracegap.models.hardware import PEAK_COLUMNS
from tracegap.models.ops import CollectiveKind

KINDS = {"matmul": "tflops", "hbm": "gb_per_s", "busbw": "gb_per_s"}
"""What can be measured, and the key of its rate: 10^12 FLOP, or 10^9 bytes, a second and device."""
KEYS = ("kind", "hardware", "dtype", "collective", "tflops", "gb_per_s", "source")


def load(path: Path) -> list[dict[str, Any]]:
    """Reads a file of ceilings.

    Raises:
        TraceError: it is not valid, or a row says too little or what is not known.
    """
    try:
        text = path.read_text()
        if path.suffix == ".csv":
            rows: Any = [
                {k: v for k, v in row.items() if v not in (None, "")} for row in csv.DictReader(text.splitlines())
            ]
        else:
            rows = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
            rows = rows.get("calibration") if isinstance(rows, dict) else rows
    except ValueError as e:
        raise TraceError(str(path), f"not a valid calibration: {e}", code="malformed") from e
    if not isinstance(rows, list) or not rows:
        raise TraceError(str(path), "not a calibration: rows with kind and rate are expected", code="malformed")
    found = [_numbers(row) if isinstance(row, dict) else row for row in rows]
    if wrong := list(problems(found)):
        raise TraceError(str(path), "; ".join(wrong), code="malformed", todo="see docs/manifest.md")
    return found


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose rates may have come as text."""

    def number(value: Any) -> Any:
        try:
            return float(value) if isinstance(value, str) else value
        except ValueError:
            return value

    return {key: number(value) if key in KINDS.values() else value for key, value in row.items()}


def problems(rows: Iterable[Any]) -> Iterator[str]:
    """What is wrong with rows of ceilings."""
    for place, row in enumerate(rows, 1):
        for said in _problems(row) if isinstance(row, dict) else ("a table is expected",):
            yield f"calibration {place}: {said}"


def _problems(row: Mapping[str, Any]) -> Iterator[str]:
    if unknown := [key for key in row if key not in KEYS]:
        yield f"unknown key {unknown[0]!r}, known are {', '.join(KEYS)}"
    kind = row.get("kind")
    if kind not in KINDS:
        yield f"kind is {kind!r}, known are {', '.join(KINDS)}"
        return
    rate = row.get(KINDS[kind])
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 < rate < math.inf:
        yield f"{KINDS[kind]} of a {kind} is {rate!r}, a number above 0 is expected"
    if (kind == "matmul") != (row.get("dtype") in PEAK_COLUMNS):
        yield f"dtype is {row.get('dtype')!r}; a matmul has one of {', '.join(PEAK_COLUMNS)}, others none"
    if "collective" in row and (kind != "busbw" or row["collective"] not in set(CollectiveKind)):
        yield f"collective is {row['collective']!r}; a busbw may have one, such as all_reduce"
    if "hardware" in row:
        try:
            hardware.get(str(row["hardware"]))
        except TracegapError as e:
            yield str(e)

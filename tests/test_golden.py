"""Worked examples, one test a row: `pytest tests/test_golden.py --golden FILE.csv` runs anyone's."""

import csv
import json

import pytest

from tracegap.models.quantities import compute


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    path = metafunc.config.getoption("--golden")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    metafunc.parametrize("row", rows, ids=[f"{row['id']}-{row['quantity']}" for row in rows])


def test_golden(row: dict[str, str]) -> None:
    value = compute(row["quantity"], row["formula"], json.loads(row["inputs"]))
    assert value == pytest.approx(float(row["expected"]), rel=float(row["rel_tol"]), abs=0), row["unit"]

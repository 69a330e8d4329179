"""Options of the three suites that take their data from outside: the project's own by default."""

from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --golden FILE.csv, --cases DIR and --corpus DIR."""
    group = parser.getgroup("tracegap", "data of the suites that anyone can run on their own")
    group.addoption("--golden", type=Path, default=DATA / "golden.csv", help="worked examples (test_golden.py)")
    group.addoption("--cases", type=Path, default=DATA / "cases", help="folders with a case.json (test_cases.py)")
    group.addoption("--corpus", type=Path, default=DATA / "corpus", help="traces, expected.json (test_corpus.py)")

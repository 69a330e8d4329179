"""Whole traces with counted facts, one test a file and fact: `pytest tests/test_corpus.py --corpus DIR` runs anyone's.

An expected.json has an entry for each file with its `facts`; `_broken` lists damaged files and what must come of them.
On every file that can be read, the laws of the account hold.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.suites.broken import report_wrong, wrong
from tests.suites.expected_failures import EXPECTED_FAILURES
from tests.suites.facts import of_fact
from tests.suites.same import difference
from tests.suites.subject import Subject, ingested

from tracegap.ingest import files
from tracegap.reports import laws

UNREADABLE = ("nsys-rep",)
"""Kinds of entries that only another program can read."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    root = metafunc.config.getoption("--corpus")
    expected = json.loads((root / "expected.json").read_text())
    broken = expected.pop("_broken", {})
    sound = {name: entry for name, entry in expected.items() if entry["kind"] not in UNREADABLE}
    rows: list[tuple[str, tuple[Any, ...]]]
    if metafunc.function is test_fact:
        rows = [(f"{n}::{f}", (root, n, f, v)) for n, entry in sound.items() for f, v in entry["facts"].items()]
    elif metafunc.function is test_law:
        rows = [(f"{name}::{law.name}", (root, name, law)) for name in sound for law in laws.LAWS]
    elif metafunc.function is test_broken:
        rows = [(name, (root, name, entry["expect"], sound)) for name, entry in broken.items()]
    else:
        rows = [(name, (root, name, e["facts"]["header"])) for name, e in expected.items() if e["kind"] in UNREADABLE]
    metafunc.parametrize("given", [EXPECTED_FAILURES.mark(given, test_id) for test_id, given in rows])


@pytest.fixture(scope="module")
def open_file() -> Iterator[Any]:
    """Ingests a file; the last one stays open, since its checks follow each other."""
    stack, now = ExitStack(), None

    def opened(root: Path, name: str) -> Subject:
        nonlocal now
        if now is None or now[0] != name:
            stack.close()
            now = name, stack.enter_context(ingested(root, [root / name]))
        return now[1]

    with stack:
        yield opened


def test_fact(given: tuple[Path, str, str, Any], open_file: Any) -> None:
    root, file, name, expected = given
    measuring = of_fact(name)
    measured = measuring(open_file(root, file), name)
    if isinstance(measured, Decimal):
        expected = Decimal(expected)
    assert difference(measured, expected, rel_tol=0) is None


def test_law(given: tuple[Path, str, laws.Law], open_file: Any) -> None:
    root, file, law = given
    assert laws.check(open_file(root, file).con, law) is None


def test_broken(given: tuple[Path, str, str, dict[str, Any]], open_file: Any) -> None:
    root, name, expect, sound = given
    assert wrong(open_file(root, name), expect, sound) is None


def test_report(given: tuple[Path, str, str], open_file: Any) -> None:
    root, name, header = given
    assert files.head_of(root / name).startswith(header.encode())
    assert report_wrong(open_file(root, name), root / name) is None

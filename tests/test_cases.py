"""Small inputs with right answers, one test a case and key: `pytest tests/test_cases.py --cases DIR` runs anyone's.

A case is a folder with a case.json whose `expect` has an answer by key. Parts of it stand under `per_file` (by file),
under `devices` (by device), or under the name of a part of the case's documents.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.suites import documents, measures
from tests.suites.expected_failures import EXPECTED_FAILURES
from tests.suites.same import difference
from tests.suites.subject import Subject, ingested

assert documents.__name__  # its measures are registered by the import


@dataclass(frozen=True)
class Check:
    """One key of one case."""

    folder: Path
    file: str | None
    part: str | None
    device: str | None
    key: str
    expected: Any

    @property
    def id(self) -> str:
        """`case[/file][/part][/device]::key`."""
        where = (self.folder.name, self.file, self.part, self.device)
        return "/".join(name for name in where if name is not None) + "::" + self.key


def checks(folder: Path) -> Iterator[Check]:
    """All of a case."""
    expect = json.loads((folder / "case.json").read_text())["expect"]
    alone = expect.pop("per_file", {})
    yield from _checks(folder, None, None, None, expect)
    for file, mine in alone.items():
        yield from _checks(folder, file, None, None, mine)


def _checks(
    folder: Path, file: str | None, part: str | None, device: str | None, expect: dict[str, Any]
) -> Iterator[Check]:
    for key, expected in expect.items():
        if key == "devices" and isinstance(expected, dict):
            for name, mine in expected.items():
                yield from _checks(folder, file, part, name, mine)
        elif isinstance(expected, dict) and key not in measures.MEASURES and _is_part(folder, key):
            yield from _checks(folder, file, key, device, expected)
        else:
            yield Check(folder, file, part, device, key, expected)


def _is_part(folder: Path, name: str) -> bool:
    """Whether the documents of a case have a part of that name."""
    history = folder / "history.json"
    return history.exists() and name in json.loads(history.read_text())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    root = metafunc.config.getoption("--cases")
    found = [check for case in sorted(root.glob("*/case.json")) for check in checks(case.parent)]
    metafunc.parametrize("check", [EXPECTED_FAILURES.mark(check, check.id) for check in found])


@pytest.fixture(scope="module")
def open_case() -> Iterator[Any]:
    """Ingests a case or one of its files; the last one stays open, since its checks follow each other."""
    stack, now = ExitStack(), None

    def opened(folder: Path, file: str | None) -> Subject:
        nonlocal now
        if now is None or now[0] != (folder, file):
            stack.close()
            now = (folder, file), stack.enter_context(ingested(folder, [folder / file if file else folder]))
        return now[1]

    with stack:
        yield opened


def test_case(check: Check, open_case: Any) -> None:
    measure = measures.of_key(check.key)
    subject = open_case(check.folder, check.file).narrowed_to(part=check.part, device_id=check.device)
    measured = measures.value(subject, check.key, check.expected)
    match measure.holds:
        case "at_least":
            assert measured >= check.expected
        case "at_most":
            assert measured <= check.expected
        case _:
            assert difference(measured, check.expected) is None

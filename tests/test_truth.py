"""Simulated traces against their truth, nanosecond by nanosecond: `pytest tests/test_truth.py --truth DIR` takes anyone's.

DIR holds folders of traces with a truth.json. Without it small jobs of 1 and 8 ranks are simulated in each format, with
--seeds 50 also of 64 and with more seeds.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.suites import simulated, truths
from tests.suites.same import difference
from tests.suites.subject import ingested

from tracegap.reports import laws

RANKS_AND_SEEDS = ((1, 1), (8, 1), (64, 1), (8, 2), (8, 3))
"""Of simulated jobs; the last three only from so many --seeds on."""
_MANY = 20


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "given" not in metafunc.fixturenames:
        return
    root = metafunc.config.getoption("--truth")
    many = metafunc.config.getoption("--seeds") >= _MANY
    if root is None:
        jobs = [(form, *job) for form in simulated.FORMATS for job in RANKS_AND_SEEDS[: None if many else 2]]
        rows = [
            (f"{f}-{r}-{s}::{check}", ((f, r, s), check))
            for f, r, s in jobs
            for check in ("steps", "shares", "collectives", "costs", "laws")
        ]
    else:
        folders = sorted(path.parent for path in root.rglob("truth.json"))
        rows = [(f"{d.relative_to(root)}::{c}", (d, c)) for d in folders for c in [*truths.names(truths.of(d)), "laws"]]
    metafunc.parametrize("given", [pytest.param(value, id=name) for name, value in rows])


@pytest.fixture(scope="module")
def open_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Ingests a folder; the last one stays open, since its checks follow each other."""
    stack, now = ExitStack(), None

    def opened(given: Any) -> Any:
        nonlocal now
        if now is None or now[0] != given:
            stack.close()
            folder = given
            if not isinstance(given, Path):
                folder = tmp_path_factory.mktemp("truth")
                simulated.write(*given, folder)
            now = given, stack.enter_context(ingested(folder, [folder]))
        return now[1]

    with stack:
        yield opened


def test_truth(given: tuple[Any, str], open_folder: Any) -> None:
    folder, check = given
    subject = open_folder(folder)
    if check == "laws":
        assert [breach.line() for law in laws.LAWS if (breach := laws.check(subject.con, law))] == []
        return
    (run_id,) = subject.run_ids
    pairs = list(truths.CHECKS[check](subject.con, run_id, truths.of(subject.folder)))
    assert pairs
    for measured, true in pairs:
        assert difference(measured, true, rel_tol=0) is None

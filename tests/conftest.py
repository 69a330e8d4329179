"""Options of the suites that take their data from outside: the project's own by default."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("tracegap", deadline=None)  # a slow machine is no failure
settings.load_profile("tracegap")

DATA = Path(__file__).parent / "data"
SAMPLE_TRACES = Path(__file__).parents[1] / "sample_traces"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --golden FILE.csv, --cases DIR, --corpus DIR, --truth DIR and --seeds N."""
    group = parser.getgroup("tracegap", "data of the suites that anyone can run on their own")
    group.addoption("--golden", type=Path, default=DATA / "golden.csv", help="worked examples (test_golden.py)")
    group.addoption("--cases", type=Path, default=DATA / "cases", help="folders with a case.json (test_cases.py)")
    group.addoption("--truth", type=Path, help="folders of simulated traces with a truth.json (test_truth.py)")
    group.addoption("--corpus", type=Path, default=DATA / "corpus", help="traces, expected.json (test_corpus.py)")
    group.addoption("--seeds", type=int, default=8, help="seeds of jobs with planted clocks and stragglers")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the argument `any_seed` runs for each of --seeds."""
    if "any_seed" in metafunc.fixturenames:
        metafunc.parametrize("any_seed", range(metafunc.config.getoption("--seeds")))


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with all sample traces, evaluated. Open it read-only, or copy it."""
    from tracegap.ingest.pipeline import ingest_paths
    from tracegap.ingest.store import open_store
    from tracegap.reports import join

    store = tmp_path_factory.mktemp("samples") / "samples.duckdb"
    with open_store(store) as con:
        results = ingest_paths(con, [SAMPLE_TRACES])
        join.evaluate_stale(con, [r.run_id for r in results if r.run_id])
    return store

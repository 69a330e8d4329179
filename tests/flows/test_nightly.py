"""The Prefect flow: the same round, run twice on a temporary server; what is tried again and what is not."""

import json

import pytest
from prefect.logging import disable_run_logger
from prefect.states import Failed
from prefect.testing.utilities import prefect_test_harness

from tracegap.flows import nightly
from tracegap.ingest.errors import TraceError
from tracegap.models.errors import TracegapError


def kineto(kernel_us):
    """A trace of two steps of one kernel each."""
    events = []
    for step in range(2):
        at = 1000.0 + 200 * step
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1, "ts": at, "dur": 190},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 1, "dur": 2,
             "args": {"correlation": step + 1}},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at + 5, "dur": kernel_us,
             "args": {"device": 0, "stream": 7, "correlation": step + 1}},
        ]  # fmt: skip
    return json.dumps({"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}], "traceEvents": events})


class Busy(TracegapError):
    """An error that goes away."""

    retryable = True


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (Busy("held"), True),
        (TracegapError("wrong"), False),
        (TraceError("x.json", "malformed"), False),
        (ValueError("a defect"), False),
    ],
)
def test_only_errors_that_say_so_are_tried_again(error, again):
    assert nightly.worth_retrying(None, None, Failed(data=error)) is again


def test_tasks_are_the_plain_functions(tmp_path):
    (tmp_path / "a.json").write_text(kineto(50))
    with disable_run_logger():
        found = nightly.discover.fn(tmp_path, 0.0)
        (stored,) = nightly.ingest.fn(tmp_path / "s.duckdb", found.settled)
        assert nightly.evaluate.fn(tmp_path / "s.duckdb") == [stored.run_id]
        published = nightly.publish.fn(tmp_path / "s.duckdb", tmp_path / "site")
    assert list(published.pages) == [stored.run_id]


@pytest.fixture(scope="session")
def prefect_server():
    with prefect_test_harness(server_startup_timeout=180):
        yield


@pytest.mark.usefixtures("prefect_server")
def test_the_flow_run_twice_over_two_traces_and_a_foreign_file(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.json").write_text(kineto(50))
    (source / "b.json").write_text(kineto(60))
    (source / "c.json").write_text('{"nodes": []}')
    first, second = (nightly.run_nightly(source, tmp_path / "site", tmp_path / "s.duckdb") for _ in range(2))
    assert first.lines()[0] == "2 new traces in 2 runs"
    assert sorted(first.published.pages) == ["a", "b"]
    assert all((tmp_path / "site" / name).is_file() for name in ("index.html", *first.published.pages.values()))
    assert second.lines()[0] == f"nothing new in {source}: 2 traces already in the store"
    assert second.published.pages == {}
    assert [i.path for i in first.failed] == [i.path for i in second.failed] == [str(source / "c.json")]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("s3://AK:s3kr1t77@bucket/run/", "s3://bucket/run/: the URL has credentials"),
        ("https://host/run/?sig=s3kr1t77", "https://host/run/: the URL has credentials"),
        ("/no/such/folder", "/no/such/folder: no such folder"),
    ],
)
def test_prefect_never_gets_to_see_credentials_or_a_folder_that_is_not_there(source, said, tmp_path):
    with pytest.raises(TracegapError, match=said) as error:
        nightly.run_nightly(source, tmp_path / "site", tmp_path / "s.duckdb")
    assert "s3kr1t77" not in str(error.value)

"""One round over a folder, as plain functions: what is new, what is skipped, what is said and what is published."""

import json
import os
import time

import pytest

from tracegap.flows import round as rounds
from tracegap.ingest.store import open_store
from tracegap.models.errors import TracegapError


def kineto(kernel_us=(100, 100, 100), gap_us=20):
    """A trace of three steps on one device: one matrix product a step, `gap_us` apart."""
    events = []
    at = 1000.0
    for step, dur in enumerate(kernel_us):
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1, "ts": at, "dur": dur},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 1, "dur": 2,
             "args": {"correlation": step + 1}},
            {"ph": "X", "cat": "kernel", "name": "ampere_bf16_s16816gemm", "pid": 0, "tid": 7, "ts": at + 5, "dur": dur,
             "args": {"device": 0, "stream": 7, "correlation": step + 1}},
        ]  # fmt: skip
        at += dur + gap_us
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}],
        "traceEvents": events,
    }


def night(source, name, day, kernel_us):
    """A run of job `j` that began on that day of a month."""
    folder = source / name
    folder.mkdir(parents=True)
    (folder / "manifest.toml").write_text(f'job = "j"\nrun = "{name}"\nstarted_at = "2026-01-{day:02}T00:00:00Z"\n')
    (folder / "trace.json").write_text(json.dumps(kineto(kernel_us)))


def one_round(source, tmp_path):
    store, pages = tmp_path / "s.duckdb", tmp_path / "site"
    found = rounds.discover(source)
    ingested = rounds.ingest(store, found.settled)
    rounds.evaluate(store)
    published = rounds.publish(store, pages)
    return rounds.Round(source=source, ingested=ingested, published=published, growing=found.growing)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "traces"
    night(folder, "mon", 1, (100, 100, 100))
    return folder


def test_a_second_round_finds_nothing_new_says_so_and_leaves_the_page(source, tmp_path):
    first = one_round(source, tmp_path)
    written = tmp_path / "site" / first.published.pages["j/mon"]
    before = written.stat().st_mtime_ns
    second = one_round(source, tmp_path)
    assert first.lines()[0] == "1 new trace in 1 run"
    assert second.lines()[0] == f"nothing new in {source}: 1 trace already in the store"
    assert second.published.pages == {}
    assert written.stat().st_mtime_ns == before


def test_a_slower_night_is_named_with_its_page_and_the_run_before(source, tmp_path):
    one_round(source, tmp_path)
    night(source, "tue", 2, (150, 150, 150))
    done = one_round(source, tmp_path)
    (change,) = done.published.changes
    assert (change.run_id, change.before, change.verdict) == ("j/tue", "j/mon", "slower")
    assert change.delta_ns == 50_000
    assert "nothing got slower" not in done.lines()[0]
    assert change.words.startswith("j/tue: 50.0 µs (41.7%) slower than j/mon (120 µs → 170 µs a step)")
    assert (tmp_path / "site" / change.page).is_file()


def test_an_ordinary_night_after_a_freak_one_is_compared_with_the_last_ordinary_one(source, tmp_path):
    night(source, "tue", 2, (101, 100, 100))
    night(source, "wed", 3, (100, 101, 102))
    night(source, "thu", 4, (900, 900, 900))
    night(source, "fri", 5, (100, 101, 101))
    changes = {c.run_id: c for c in one_round(source, tmp_path).published.changes}
    assert changes["j/thu"].verdict == "slower"
    assert (changes["j/fri"].before, changes["j/fri"].verdict) == ("j/wed", "same")


def test_a_bad_file_is_named_and_the_rest_goes_on(source, tmp_path):
    (source / "foreign.json").write_text('{"nodes": []}')
    done = one_round(source, tmp_path)
    assert [i.path for i in done.failed] == [str(source / "foreign.json")]
    assert len(done.new) == 1
    assert any(line.startswith(f"not read: {source / 'foreign.json'}") for line in done.lines())
    assert json.loads(json.dumps(done.as_dict()))["failed"][0]["status"] == "failed"


def test_a_round_that_was_cut_off_is_finished_by_the_next(source, tmp_path):
    store = tmp_path / "s.duckdb"
    rounds.ingest(store, rounds.discover(source).settled)  # and then the power went
    done = one_round(source, tmp_path)
    assert done.new == []
    assert list(done.published.pages) == ["j/mon"]
    assert (tmp_path / "site" / done.published.pages["j/mon"]).is_file()


def test_a_page_that_was_removed_is_written_again(source, tmp_path):
    name = one_round(source, tmp_path).published.pages["j/mon"]
    (tmp_path / "site" / name).unlink()
    assert one_round(source, tmp_path).published.pages == {"j/mon": name}


def test_another_rank_of_a_known_run_renews_its_page(source, tmp_path):
    one_round(source, tmp_path)
    (source / "mon" / "late.json").write_text(json.dumps(kineto((100, 100, 101))))
    done = one_round(source, tmp_path)
    assert list(done.published.pages) == ["j/mon"]


def test_a_file_that_may_still_be_written_to_is_left(source):
    trace = source / "mon" / "trace.json"
    os.utime(trace, (time.time() - 100, time.time() - 100))
    assert rounds.discover(source, settle_s=50).settled == [trace]
    assert rounds.discover(source, settle_s=1000) == rounds.Found(settled=[], growing=[trace])


def test_nothing_half_written_lies_in_the_published_folder(source, tmp_path):
    one_round(source, tmp_path)
    assert {p.suffix for p in (tmp_path / "site").iterdir()} == {".html"}
    assert all(p.read_text().rstrip().endswith("</html>") for p in (tmp_path / "site").iterdir())


def test_an_empty_folder_gives_an_empty_index_and_says_what_was_looked_for(tmp_path):
    (tmp_path / "none").mkdir()
    done = one_round(tmp_path / "none", tmp_path)
    assert done.lines()[0].startswith(f"no trace in {tmp_path / 'none'}")
    assert done.published.index.is_file()


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(TracegapError, match="no such file or folder"):
        rounds.discover(tmp_path / "nowhere")


def test_the_store_is_free_again_after_each_part(source, tmp_path):
    one_round(source, tmp_path)
    with open_store(tmp_path / "s.duckdb", wait_s=0) as con:
        assert con.execute("select count(*) from traces").fetchall() == [(1,)]


def test_a_bucket_is_a_folder(source, tmp_path):
    import fsspec

    bucket = fsspec.filesystem("memory")
    bucket.put(str(source), "/bucket", recursive=True)
    first = one_round("memory://bucket/", tmp_path)
    again = one_round("memory://bucket/", tmp_path)
    bucket.rm("/bucket", recursive=True)
    assert first.as_dict()["new"] == ["memory://bucket/mon/trace.json"]
    assert list(first.published.pages) == ["j/mon"]
    assert again.lines()[0] == "nothing new in memory://bucket/: 1 trace already in the store"

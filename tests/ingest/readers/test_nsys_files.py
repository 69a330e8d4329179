"""Files of Nsight Systems as they come: compressed, damaged, of another kind, reports, and a real recording."""

import gzip
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
import zstandard

from tracegap.ingest.errors import TraceError
from tracegap.ingest.readers import nsys

SAMPLE = Path(__file__).parents[3] / "sample_traces" / "nsys_nvtx"
REPORT = Path(__file__).parents[2] / "data" / "nsys_nvtx_train.nsys-rep"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """The recorded export, unpacked."""
    path = tmp_path / "train.sqlite"
    path.write_bytes(gzip.decompress((SAMPLE / "train.sqlite.gz").read_bytes()))
    return path


def code_of(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        nsys.read(path)
    assert str(path) in str(caught.value)
    return caught.value.code


# ---------------------------------------------------------------- the recording
def test_the_recording_agrees_with_what_its_program_does(plain):
    trace = nsys.read(plain)
    layers, steps = 4, 6  # of train.py
    assert trace.step_marks["step"].to_list() == list(range(steps))
    names = trace.host_events["name"].to_list()
    assert names.count("load_batch") == steps
    assert names.count("layer_0") == 2 * steps
    # a step: itself, forward, backward, optimizer and two ranges a layer; load_batch; train around all
    assert trace.facts["nvtx_by_eventType"]["59"] == steps * (4 + 2 * layers) + steps
    assert trace.facts["nvtx_by_eventType"]["60"] == 1
    loader = trace.host_events.filter(trace.host_events["name"] == "load_batch")
    assert set(loader["kind"]) == {"input"}
    assert set(loader["thread"]).isdisjoint(trace.step_marks["thread"])
    assert (len(trace.ops), trace.issues.by_code) == (0, {})


def test_the_recording_agrees_with_plain_sql(plain):
    trace = nsys.read(plain)
    with sqlite3.connect(plain) as db:
        rows = db.execute(
            'SELECT value, start, "end" - start FROM NVTX_EVENTS JOIN StringIds ON textId = id '
            "WHERE eventType IN (59, 60)"
        ).fetchall()
        tables = [n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'") if n[:5] != "ENUM_"]
        counts = {t: db.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables}
        origin = db.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()[0]
    db.close()
    ranges = trace.host_events.filter(~trace.host_events["kind"].is_in(["overhead", "runtime"]))
    assert sorted(ranges.select("name", "start_ns", "dur_ns").rows()) == sorted(rows)
    assert trace.facts["tables"] == {t: n for t, n in counts.items() if n}
    assert trace.facts["empty_tables"] == sum(not n for n in counts.values())
    assert trace.origin_unix_ns == origin
    assert (trace.format, trace.facts["schema_version"]) == ("nsys", "3.0.0")


def test_ranges_of_a_step_lie_in_it(plain):
    events = nsys.read(plain).host_events.rows(named=True)
    by_id = {e["event_id"]: e for e in events}
    parents = {by_id[e["parent_id"]]["name"] for e in events if e["name"] == "layer_2"}
    assert parents == {"forward", "backward"}
    children: dict[int, int] = {}
    for event in events:
        if event["parent_id"] is not None:
            children[event["parent_id"]] = children.get(event["parent_id"], 0) + event["dur_ns"]
    for event in events:
        if event["self_ns"] is not None:
            assert event["self_ns"] == event["dur_ns"] - children.get(event["event_id"], 0)


# ---------------------------------------------------------------- packaging and damage
@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress, bytes])
def test_compression_is_known_by_content(tmp_path, plain, pack):
    packed = tmp_path / "any_name.sqlite"
    packed.write_bytes(pack(plain.read_bytes()))
    assert nsys.read(packed).step_marks.equals(nsys.read(SAMPLE / "train.sqlite.gz").step_marks)


def test_the_file_of_the_user_is_left_alone(plain):
    before = plain.read_bytes(), sorted(plain.parent.iterdir())
    plain.chmod(0o444)
    nsys.read(plain)
    assert (plain.read_bytes(), sorted(plain.parent.iterdir())) == before


def test_names_with_characters_that_mean_something_in_a_uri(tmp_path, plain):
    odd = tmp_path / "run #3? 100%.sqlite"
    shutil.copy(plain, odd)
    assert len(nsys.read(odd).step_marks) == 6


def test_empty_file(tmp_path):
    path = tmp_path / "empty.sqlite"
    path.touch()
    assert code_of(path) == "empty"


@pytest.mark.parametrize("kept", [50, 5_000, 100_000])
def test_cut_database(tmp_path, plain, kept):
    path = tmp_path / "cut.sqlite"
    path.write_bytes(plain.read_bytes()[:kept])
    assert code_of(path) == "truncated"


def test_cut_compression(tmp_path):
    path = tmp_path / "cut.sqlite.gz"
    data = (SAMPLE / "train.sqlite.gz").read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert code_of(path) == "truncated"


def test_damage_inside_a_table(tmp_path, plain):
    with sqlite3.connect(plain) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'NVTX_EVENTS'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    db.close()
    data = bytearray(plain.read_bytes())
    data[(page - 1) * size : page * size] = b"\xaa" * size
    plain.write_bytes(data)
    assert code_of(plain) == "malformed"


def test_database_of_something_else(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
    db.close()
    assert code_of(path) == "foreign"


def test_git_lfs_pointer(tmp_path):
    path = tmp_path / "report.nsys-rep"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    assert code_of(path) == "lfs_pointer"


def test_report_that_is_none(tmp_path):
    path = tmp_path / "report.nsys-rep"
    path.write_bytes(b"PK\x03\x04 something else altogether")
    assert code_of(path) == "foreign"


@pytest.mark.parametrize(
    ("name", "head", "ours"),
    [
        ("a.sqlite", b"SQLite format 3\0 ...", True),
        ("a.db", b"SQLite format 3\0 ...", True),
        ("a.nsys-rep", b"NVIDIA Tegra Profiler Report 1.", True),
        ("a.qdrep", b"version https://git-lfs", True),
        ("a.sqlite.gz", b"", True),
        ("a.pt.trace.json", b'{"traceEvents": [', False),
        ("a.xplane.pb", b"\x0a\x10", False),
    ],
)
def test_sniffing(name, head, ours):
    assert nsys.sniff(name, head) is ours


# ---------------------------------------------------------------- reports
def test_report_without_nsys_says_how_to_export_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("NSYS", raising=False)
    with pytest.raises(TraceError) as caught:
        nsys.read(REPORT)
    assert caught.value.code == "no_nsys"
    assert "nsys export --type sqlite -o nsys_nvtx_train.sqlite nsys_nvtx_train.nsys-rep" in str(caught.value)


def test_nsys_that_is_not_where_the_variable_says(tmp_path, monkeypatch):
    monkeypatch.setenv("NSYS", str(tmp_path / "nsys"))
    assert code_of(REPORT) == "no_nsys"


NSYS = shutil.which(os.environ.get("NSYS") or "nsys")


@pytest.mark.skipif(NSYS is None, reason="Nsight Systems is not installed here (put nsys on PATH or in NSYS)")
def test_report_through_nsys_is_as_its_export(tmp_path):
    report, export = nsys.read(REPORT), nsys.read(SAMPLE / "train.sqlite.gz")
    assert report.host_events.equals(export.host_events)
    assert report.step_marks.equals(export.step_marks)
    cut = tmp_path / "cut.nsys-rep"
    cut.write_bytes(REPORT.read_bytes()[:50_000])
    assert code_of(cut) == "malformed"

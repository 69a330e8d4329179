"""Finding files, and putting them together to runs."""

import json
import shutil
from pathlib import Path

import pytest

from tracegap.ingest import pipeline
from tracegap.ingest.readers._xplane import PROTO
from tracegap.ingest.store import open_store
from tracegap.models.errors import TracegapError

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def kineto(path, *, rank=None, world_size=None, at=0, note=""):
    """A tiny trace with one kernel; `note` makes the content differ."""
    content = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "baseTimeNanoseconds": at,
        "note": note,
        "traceEvents": [
            {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10.0, "dur": 5.0,
             "args": {"device": 0, "stream": 7, "correlation": 1}},
        ],
    }  # fmt: skip
    if world_size is not None:
        content["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def con(tmp_path):
    with open_store(tmp_path / "s.duckdb") as connection:
        yield connection


def runs(con):
    return dict(con.execute("select run_id, list(rank order by rank) from traces group by run_id").fetchall())


def test_folders_are_walked_and_what_is_no_trace_is_left(tmp_path):
    for name in ("b/x.json", "a.xplane.pb", ".hidden/y.json", "manifest.json", "truth.json", "notes.txt", "r.sqlite", "r.nsys-rep",
                 "alone.nsys-rep"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    found = [p.relative_to(tmp_path).as_posix() for p in pipeline.find_traces([tmp_path])]
    assert found == ["a.xplane.pb", "alone.nsys-rep", "b/x.json", "r.sqlite"]
    assert list(pipeline.find_traces([tmp_path / "notes.txt"])) == [tmp_path / "notes.txt"]
    with pytest.raises(TracegapError, match="no such file"):
        list(pipeline.find_traces([tmp_path / "none"]))


def xspace(path, device, *, core=0):
    """A tiny profile of a host with one TPU."""
    space = PROTO["XSpace"](hostnames=[path.name])
    env = space.planes.add(name="Task Environment")
    env.stat_metadata[1].name = "profile_start_time"
    env.stats.add(metadata_id=1, uint64_value=1_735_689_600_000_000_000 + core)
    plane = space.planes.add(name=f"/device:TPU:{device}")
    plane.stat_metadata[1].name = "core_details"
    plane.stats.add(metadata_id=1, bytes_value=bytes([0x28, core, 0x30, core]))
    plane.event_metadata[1].name = "fusion.1"
    plane.lines.add(name="XLA Ops").events.add(metadata_id=1, offset_ps=1000, duration_ps=5000)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(space.SerializeToString())
    return path


def test_hosts_of_a_profile_folder_are_one_run(con, tmp_path):
    session = tmp_path / "log" / "plugins" / "profile" / "2026_11_30_04_00_00"
    for host in range(2):
        xspace(session / f"host{host}.xplane.pb", 0, core=host)
        xspace(tmp_path / "loose" / f"host{host}.xplane.pb", 0, core=host + 2)
    pipeline.ingest_paths(con, [tmp_path])
    found = con.execute("select run_id, count(*) from traces group by all order by all").fetchall()
    assert found == [(session.name, 2), ("host0", 1), ("host1", 1)]
    ranks = con.execute("select rank from steps where run_id = ? order by 1", [session.name]).fetchall()
    assert ranks == [(0,), (1,)]


def test_ranks_of_a_job_are_one_run_and_strangers_in_the_folder_are_not(con, tmp_path):
    job = tmp_path / "job"
    for rank in range(2):
        kineto(job / f"x{rank}.json", rank=rank, world_size=4)
    kineto(job / "other_size.json", rank=0, world_size=8)
    kineto(job / "next_day.json", rank=0, world_size=4, at=86_400 * 10**9)
    kineto(job / "alone.json")
    pipeline.ingest_paths(con, [job])
    got = runs(con)
    assert sorted(map(str, got.values())) == ["[0, 1]", "[0]", "[0]", "[None]"]


def test_the_same_name_in_two_folders_is_two_runs(con, tmp_path):
    kineto(tmp_path / "mon" / "trace.json", note="mon")
    kineto(tmp_path / "tue" / "trace.json", note="tue")
    pipeline.ingest_paths(con, [tmp_path / "mon", tmp_path / "tue"])
    assert sorted(runs(con)) == ["trace", "tue/trace"]


def test_the_manifest_names_the_run_and_a_late_rank_joins_it(con, tmp_path):
    kineto(tmp_path / "in" / "a.json", rank=0, world_size=2)
    (tmp_path / "in" / "manifest.toml").write_text('job = "j"\nrun = "r"\nhardware = "h200"\n[config]\nx = 1\n')
    pipeline.ingest_paths(con, [tmp_path / "in"])
    kineto(tmp_path / "in" / "b.json", rank=1, world_size=2)
    statuses = [r.status for r in pipeline.ingest_paths(con, [tmp_path / "in"])]
    assert statuses == ["already", "ok"]
    assert runs(con) == {"j/r": [0, 1]}
    assert con.execute("select job, world_size, config ->> 'x' from runs").fetchall() == [("j", 2, "1")]
    assert con.execute("select distinct hardware, matched_by from devices").fetchall() == [("h200", "named by hand")]


def test_the_rank_of_a_file_name_is_a_last_resort_and_is_noted(con, tmp_path):
    kineto(tmp_path / "a" / "rank3.json")
    kineto(tmp_path / "b" / "rank3.json", rank=1, world_size=2)
    results = pipeline.ingest_paths(con, [tmp_path / "a", tmp_path / "b"])
    assert [r.rank for r in results] == [3, 1]
    assert [[d["code"] for d in r.diagnostics if "rank" in d["code"]] for r in results] == [["rank_from_name"], []]


def test_a_copy_of_a_stored_file_changes_nothing(con, tmp_path):
    kineto(tmp_path / "a" / "t.json")
    pipeline.ingest_paths(con, [tmp_path / "a"])
    shutil.copytree(tmp_path / "a", tmp_path / "delivered again")
    assert [r.status for r in pipeline.ingest_paths(con, [tmp_path / "delivered again"])] == ["already"]
    assert con.execute("select count(*) from traces").fetchall() == [(1,)]


def test_an_unknown_part_named_by_hand_is_an_error_and_nothing_is_stored(con, tmp_path):
    kineto(tmp_path / "t.json")
    with pytest.raises(TracegapError, match="h100_sxm"):
        pipeline.ingest_paths(con, [tmp_path / "t.json"], part="h100")
    assert con.execute("select count(*) from traces").fetchall() == [(0,)]


def test_every_reader_has_what_the_pipeline_needs():
    names = [r.NAME for r in pipeline.all_readers()]
    assert sorted(names) == ["kineto", "nsys", "xla_chrome", "xspace"]
    for reader in pipeline.all_readers():
        assert callable(reader.sniff)
        assert callable(reader.read)
        assert reader.__doc__


def test_ranks_by_name_alone_are_put_together_only_where_they_communicate_and_differ(con, tmp_path):
    def exchange(path, **more):
        text = kineto(path, **more).read_text()
        path.write_text(text.replace('"name": "k"', '"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"'))

    for rank in range(2):
        exchange(tmp_path / "job" / f"rank{rank}.json", note=str(rank))
    exchange(tmp_path / "job" / "again" / "rank1.json", note="another try")
    kineto(tmp_path / "apart" / "rank0.json", note="a")
    kineto(tmp_path / "apart" / "rank1.json", note="b")
    pipeline.ingest_paths(con, [tmp_path / "job", tmp_path / "apart"])
    assert sorted(map(str, runs(con).values())) == ["[0, 1]", "[0]", "[1]", "[1]"]


def described(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.toml").write_text(text)


def test_two_deliveries_that_call_themselves_the_same_are_two_runs(con, tmp_path):
    for name in ("a", "b"):
        described(tmp_path / name, 'job = "j"\nrun = "same"\n')
        kineto(tmp_path / name / "r0.json", rank=0, world_size=2, note=name)
    kineto(tmp_path / "a" / "r1.json", rank=1, world_size=2, note="other rank")
    results = pipeline.ingest_paths(con, [tmp_path / "a", tmp_path / "b"])
    assert [r.run_id for r in results] == ["j/same", "j/same", "j/same~2"]


def test_a_manifest_that_is_added_or_mended_is_taken_up(con, tmp_path):
    kineto(tmp_path / "in" / "t.json", rank=0, world_size=2)
    assert [r.status for r in pipeline.ingest_paths(con, [tmp_path / "in"])] == ["ok"]
    described(tmp_path / "in", 'job = "j"\nrun = "r"\nhardware = "h200"\ntokens_per_step = 5\n')
    assert [r.status for r in pipeline.ingest_paths(con, [tmp_path / "in"])] == ["ok"]
    assert [r.status for r in pipeline.ingest_paths(con, [tmp_path / "in"])] == ["already"]
    assert con.execute("select run_id, tokens_per_step from runs").fetchall() == [("j/r", 5)]
    assert con.execute("select hardware from devices").fetchall() == [("h200",)]
    described(tmp_path / "in", 'job = "j"\nrun = "r"\nhardware = "h100_sxm"\n')
    assert [r.status for r in pipeline.ingest_paths(con, [tmp_path / "in"])] == ["ok"]
    assert con.execute("select run_id, tokens_per_step from runs").fetchall() == [("j/r", None)]
    assert con.execute("select hardware from devices").fetchall() == [("h100_sxm",)]
    assert con.execute("select count(*) from traces").fetchall() == [(1,)]


def test_a_part_or_run_named_by_hand_later_is_taken_up(con, tmp_path):
    kineto(tmp_path / "t.json")
    pipeline.ingest_paths(con, [tmp_path / "t.json"])
    assert [r.status for r in pipeline.ingest_paths(con, [tmp_path / "t.json"], part="h200")] == ["ok"]
    assert [r.status for r in pipeline.ingest_paths(con, [tmp_path / "t.json"], part="h200")] == ["already"]
    assert [r.run_id for r in pipeline.ingest_paths(con, [tmp_path / "t.json"], run="mine")] == ["mine"]
    assert con.execute("select run_id from runs").fetchall() == [("mine",)]


def test_a_file_that_was_cut_is_replaced_by_its_whole_delivery(con, tmp_path):
    path = kineto(tmp_path / "t.json")
    whole = path.read_text()
    path.write_text(whole[:-2])
    assert [r.status for r in pipeline.ingest_paths(con, [path])] == ["partial"]
    path.write_text(whole)
    assert [r.status for r in pipeline.ingest_paths(con, [path])] == ["ok"]
    assert con.execute("select status from traces").fetchall() == [("ok",)]

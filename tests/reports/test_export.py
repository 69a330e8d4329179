"""Runs for other tools: what is written is what the store holds, and Perfetto's own messages read it.

Perfetto's trace processor is a program that is fetched from the network, so what it draws is not tested here.
"""

from collections import defaultdict

import polars as pl
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from tracegap.ingest.store import open_store
from tracegap.models.errors import TracegapError
from tracegap.reports import parquet, perfetto


@pytest.fixture(scope="module")
def con(samples):
    with open_store(samples, read_only=True) as connection:
        yield connection


def run_of(con, folder):
    return con.execute("select distinct run_id from traces where path like ?", [f"%/{folder}/%"]).fetchall()[0][0]


def slices(path):
    """By track: name, and its slices as (begin, end, name, notes)."""
    trace = perfetto_trace_pb2.Trace()
    trace.ParseFromString(path.read_bytes())
    names, parents, found, begun = {}, {}, defaultdict(list), defaultdict(list)
    last = defaultdict(int)
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            names[track.uuid], parents[track.uuid] = track.name, track.parent_uuid
            continue
        event = packet.track_event
        assert packet.timestamp >= last[event.track_uuid]  # as Perfetto asks for within a sequence and track
        last[event.track_uuid] = packet.timestamp
        if event.type == event.TYPE_SLICE_BEGIN:
            assert not begun[event.track_uuid], "slices of a track must not overlap"
            begun[event.track_uuid].append((packet.timestamp, event))
        else:
            at, first = begun[event.track_uuid].pop()
            notes = {n.name: n.string_value or n.int_value or n.double_value for n in first.debug_annotations}
            found[event.track_uuid].append((at, packet.timestamp, first.name, notes, list(first.flow_ids)))
    assert not any(begun.values())
    return {(names[parents[t]], names[t], t): some for t, some in found.items()}


@pytest.mark.parametrize("folder", ["sim_h100_before", "sim_tpu_v5p", "sim_nsys_h100", "jax_cpu"])
def test_the_trace_has_each_operation_once_and_its_gap_beside_it(con, folder, tmp_path):
    run = run_of(con, folder)
    out = tmp_path / "run.pftrace"
    written = perfetto.write(con, run, out)
    tracks = slices(out)
    ops = [s for (_, name, _), some in tracks.items() if name.startswith("stream") for s in some]
    gaps = [s for (_, name, _), some in tracks.items() if name.startswith("gap of") for s in some]
    steps = [s for (_, name, _), some in tracks.items() if name == "steps" for s in some]
    count, dur, lost = con.execute(
        "select count(*), sum(dur_ns), sum(greatest(dur_ns - coalesce(t_min_ns, 0), 0)) from op_gap where run_id = ?",
        [run],
    ).fetchall()[0]
    assert written == count == len(ops)
    assert sum(end - at for at, end, *_ in ops) == dur
    assert sum(end - at for at, end, *_ in gaps) == lost
    wall = con.execute("select count(*), sum(wall_ns) from steps where run_id = ?", [run]).fetchall()[0]
    assert (len(steps), sum(end - at for at, end, *_ in steps)) == wall
    assert [p.name for p in tmp_path.iterdir()] == ["run.pftrace"]


def test_the_parts_of_a_collective_are_joined_over_the_ranks(con, tmp_path):
    run = run_of(con, "sim_h100_before")
    perfetto.write(con, run, tmp_path / "x", (12, 12))
    flows = defaultdict(list)
    for some in slices(tmp_path / "x").values():
        for at, end, _, _, ids in some:
            for flow in ids:
                flows[flow].append((at, end))
    assert len(flows) == 5  # buckets of a step
    for parts in flows.values():
        assert len(parts) == 8
        ends = [end for _, end in parts]
        assert max(ends) - min(ends) < 20_000  # on one clock they end together


def test_steps_that_are_not_there_are_refused_and_leave_nothing(con, tmp_path):
    with pytest.raises(TracegapError, match="no such step or run"):
        perfetto.write(con, run_of(con, "sim_h100_before"), tmp_path / "x", (99, 99))
    assert list(tmp_path.iterdir()) == []


def test_parquet_holds_the_rows_of_the_runs(con, tmp_path):
    runs = [run_of(con, "sim_h100_before"), run_of(con, "sim_tpu_v5p")]
    rows = parquet.write(con, runs, tmp_path / "out")
    assert {f"{name}.parquet" for name in rows} == {p.name for p in (tmp_path / "out").iterdir()}
    for name in ("ops", "step_gap", "collective_gap", "findings"):
        frame = pl.read_parquet(tmp_path / "out" / f"{name}.parquet")
        assert len(frame) == rows[name]
    steps = pl.read_parquet(tmp_path / "out" / "step_gap.parquet")
    assert set(steps["run_id"]) == set(runs)
    assert steps["wall_ns"].sum() == con.execute(
        "select sum(wall_ns) from step_gap where list_contains(?, run_id)", [runs]
    ).fetchall()[0][0]  # fmt: skip
    with pytest.raises(TracegapError, match="is there already"):
        parquet.write(con, runs, tmp_path / "out")
    with pytest.raises(TracegapError, match="no such run"):
        parquet.write(con, ["nothing"], tmp_path / "other")

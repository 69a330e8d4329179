"""XSpace files as wholes: any order of what is in them, cut at any byte, read device by device or at once."""

import random
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracegap.ingest.errors import TraceError
from tracegap.ingest.readers import xspace
from tracegap.ingest.readers._xplane import PROTO, Source, read_space
from tracegap.ingest.trace import COLLECTIVES, HOST_EVENTS, OPS

ROWS = ("device_id", "stream", "name", "op_class", "start_ns", "dur_ns", "step", "flops", "bytes", "launch_ns")


def plane_of(name, lines, rng, **stats):
    """A plane with its ids, events and metadata in an order that `rng` chooses.

    Lines are (name, [(event name, start ps, length ps, {statistic: number})]).
    """
    plane = PROTO["XPlane"](name=name, id=rng.randrange(100))
    kinds = sorted({event[0] for _, events in lines for event in events})
    names = sorted({key for _, events in lines for event in events for key in event[3]} | {*stats, "model_flops"})
    kind_ids = dict(zip(kinds, rng.sample(range(1, 400), len(kinds)), strict=True))
    name_ids = dict(zip(names, rng.sample(range(1, 400), len(names)), strict=True))
    for key in rng.sample(names, len(names)):
        plane.stat_metadata[name_ids[key]].name = key
    for key in rng.sample(kinds, len(kinds)):
        plane.event_metadata[kind_ids[key]].name = key
        plane.event_metadata[kind_ids[key]].stats.add(metadata_id=name_ids["model_flops"], int64_value=len(key))
    for key, value in stats.items():
        plane.stats.add(metadata_id=name_ids[key], uint64_value=value)
    for i, (title, events) in rng.sample(list(enumerate(lines)), len(lines)):
        line = plane.lines.add(name=title, id=i, timestamp_ns=rng.choice([0, 5]))
        for what, start, length, numbers in rng.sample(events, len(events)):
            begin = start - 1000 * line.timestamp_ns
            event = line.events.add(metadata_id=kind_ids[what], offset_ps=begin, duration_ps=length)
            for key in rng.sample(sorted(numbers), len(numbers)):
                event.stats.add(metadata_id=name_ids[key], int64_value=numbers[key])
    return plane


def job(seed, order):
    """A file of two TPUs, one with a SparseCore, and a host: the same for a seed, in another order for each `order`."""
    what, rng = random.Random(seed), random.Random(order)
    planes = []
    for device in ("TPU:0", "TPU:1", "TPU:1 SparseCore 0"):
        kind = "Sparse Core " if "Sparse" in device else "XLA "
        at, ops = 10_000, []
        for i in range(what.randrange(1, 30)):
            at += what.randrange(0, 5000)
            name = what.choice(["fusion.1", "all-reduce.2", "copy.3", "while.4"])
            ops.append((name, at, what.randrange(1, 9000), {"group_id": 1 + i // 10}))
            at += ops[-1][2]
        steps = [(str(n), 1000 + n, 10, {"group_id": n, "step_num": n + 6}) for n in (1, 2, 3)]
        lines = [(f"{kind}Ops", ops), ("Sparse Core Steps" if "Sparse" in device else "Steps", steps)]
        planes.append(plane_of(f"/device:{device}", lines, rng))
    calls = [("LoadedExecutable::Execute", 1000 * n, 500, {"run_id": n}) for n in range(4)]
    planes.append(plane_of("/host:CPU", [("python", calls)], rng))
    planes.append(plane_of("Task Environment", [], rng, profile_start_time=1_735_689_600_000_000_000))
    return PROTO["XSpace"](planes=rng.sample(planes, len(planes))).SerializeToString()


def sorted_rows(trace):
    ops = trace.ops.select(ROWS).sort(ROWS, nulls_last=True)
    marks = trace.step_marks.sort("device_id", "step")
    host = trace.host_events.select("thread", "kind", "name", "start_ns", "dur_ns", "self_ns").sort(pl.all())
    return ops.rows(), marks.rows(), host.rows()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_order_in_the_file_does_not_matter(tmp_path_factory, seed, order):
    folder = tmp_path_factory.mktemp("order")
    one, other = (folder / f"{i}.xplane.pb" for i in (0, 1))
    one.write_bytes(job(seed, 0))
    other.write_bytes(job(seed, order))
    assert sorted_rows(xspace.read(one)) == sorted_rows(xspace.read(other))


def test_sparse_cores_are_streams_of_their_chip(tmp_path):
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(job(3, 0))
    trace = xspace.read(path)
    assert [d.device_id for d in trace.devices if d.device_id == "TPU:1"] == ["TPU:1"]
    streams = trace.ops.filter(device_id="TPU:1")["stream"].unique().sort().to_list()
    assert streams == ["SparseCore 0", "XLA Ops"]
    assert set(trace.step_marks["device_id"]) == {"TPU:0", "TPU:1"}


def test_a_large_file_gives_the_same_rows_device_by_device(tmp_path):
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(job(11, 0))
    at_once = xspace.read(path)
    lazy = xspace.trace_of(read_space(Source.of(path)))
    assert not len(lazy.ops)
    host = pl.concat([batch.cast(HOST_EVENTS) for batch in lazy.host_batches()])
    frames = []
    for device_id, frame in lazy.by_device():
        assert frame["device_id"].unique().to_list() == [device_id]
        wanted = at_once.collectives.filter(pl.col("op_id").is_in(frame["op_id"].to_list()))
        assert lazy.collectives.cast(COLLECTIVES).equals(wanted)
        frames.append(frame.cast(OPS))
    assert len(frames) == 2
    assert pl.concat(frames).equals(at_once.ops)
    assert host.equals(at_once.host_events)
    assert lazy.facts == at_once.facts


def read_cut(path: Path, data: bytes):
    path.write_bytes(data)
    try:
        return xspace.read(path)
    except TraceError as error:
        return error


@pytest.mark.parametrize("seed", [1, 2])
def test_a_file_cut_at_any_byte_keeps_its_whole_planes_and_says_the_byte(tmp_path, seed):
    data = job(seed, seed)
    names, ends = [], []
    for plane in PROTO["XSpace"].FromString(data).planes:
        names.append(plane.name)
        ends.append((ends[-1] if ends else 0) + len(PROTO["XSpace"](planes=[plane]).SerializeToString()))
    assert ends[-1] == len(data)
    for size in random.Random(seed).sample(range(len(data)), 60) + [end + d for end in ends for d in (-1, 1)][:-1]:
        read = read_cut(tmp_path / "cut.xplane.pb", data[:size])
        whole = [name for name, end in zip(names, ends, strict=True) if end <= size]
        if not whole:
            assert isinstance(read, TraceError)
            assert read.code in ("truncated", "empty")
            assert f"byte {size}" in str(read) or size == 0
            continue
        assert [plane["name"] for plane in read.facts["planes"]] == whole
        [issue] = [row for row in read.issues.rows() if row["code"] == "truncated"] or [None]
        assert (issue is None) == (size in ends)
        assert issue is None or issue["where"] == f"byte {size}"


def test_samples_of_counters(tmp_path):
    plane = PROTO["XPlane"](name="/device:TPU:0")
    plane.stat_metadata[1].name = "counter_value"
    plane.event_metadata[7].name = "HBM bytes read"
    line = plane.lines.add(name="_counters_", timestamp_ns=2)
    for at, key, value in ((0, "double_value", 1.5), (1000, "uint64_value", 2**40), (2000, "str_value", "none")):
        event = line.events.add(metadata_id=7, offset_ps=at)
        setattr(event.stats.add(metadata_id=1), key, value)
    line.events.add(metadata_id=7, num_occurrences=3).stats.add(metadata_id=1, int64_value=9)
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(PROTO["XSpace"](planes=[plane]).SerializeToString())
    trace = xspace.read(path)
    name = "HBM bytes read"
    assert trace.counters.rows() == [("TPU:0", name, 2, 1.5), ("TPU:0", name, 3, float(2**40))]
    assert [row["count"] for row in trace.issues.rows() if row["code"] == "aggregated_events"] == [1]


def test_a_plane_whose_events_are_damaged_is_left_out_and_the_others_are_read(tmp_path):
    rng = random.Random(0)
    lines = [("XLA Ops", [("fusion.1", 100, 50, {})] * 3)]
    planes = [plane_of(f"/device:TPU:{i}", lines, rng) for i in (0, 1)]
    data = bytearray(PROTO["XSpace"](planes=planes).SerializeToString())
    event = planes[0].lines[0].events[0].SerializeToString()
    data[data.index(event)] = 0x0F  # wire type 7
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(data)
    trace = xspace.read(path)
    assert trace.ops["device_id"].unique().to_list() == ["TPU:1"]
    [issue] = [row for row in trace.issues.rows() if row["code"] == "malformed"]
    assert (issue["severity"], issue["where"]) == ("data_loss", f"byte {data.index(bytes([0x0F]) + event[1:])}")


@pytest.mark.parametrize("seed", range(40))
def test_flipped_bytes_raise_nothing_but_trace_errors(tmp_path, seed):
    rng = random.Random(seed)
    data = bytearray(job(seed, seed))
    for _ in range(rng.choice([1, 3, 20])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    read = read_cut(tmp_path / "flipped.xplane.pb", bytes(data))
    assert isinstance(read, TraceError) or set(read.ops["device_id"]) <= {d.device_id for d in read.devices}

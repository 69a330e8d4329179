"""The wire format of XSpace against protobuf itself, and what is left of damaged files."""

import gzip
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracegap.ingest.readers._xplane import MISSING, PROTO, WANTED_INTS, Source, WireError, read_plane, read_space

INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = ["run_id", "hlo_op", "group_id", "other", "name"]


def stat(draw, message):
    message.metadata_id = draw(st.sampled_from([1, 2, 3, 4, 5, 900]))
    kind = draw(st.sampled_from(["double", "uint64", "int64", "str", "bytes", "ref", "compressed_str", "none"]))
    if kind == "double":
        message.double_value = draw(st.integers(-(2**40), 2**40))
    elif kind == "uint64":
        message.uint64_value = draw(st.integers(0, 2**64 - 1))
    elif kind == "int64":
        message.int64_value = draw(INT64)
    elif kind == "str":
        message.str_value = draw(st.text(max_size=200))
    elif kind == "bytes":
        message.bytes_value = draw(st.binary(max_size=5))
    elif kind == "ref":
        message.ref_value = draw(st.integers(1, 6))
    elif kind == "compressed_str":
        message.compressed_str_value = gzip.compress(draw(st.text(max_size=20)).encode())


@st.composite
def planes(draw):
    plane = PROTO["XPlane"](id=draw(INT64), name=draw(st.text(max_size=10)))
    for key, name in enumerate(NAMES, start=1):
        plane.stat_metadata[key].name = name
    for _ in range(draw(st.integers(0, 3))):
        line = plane.lines.add(id=draw(INT64), name=draw(st.text(max_size=5)), timestamp_ns=draw(INT64))
        for _ in range(draw(st.integers(0, 5))):
            event = line.events.add(metadata_id=draw(INT64), duration_ps=draw(INT64))
            if draw(st.booleans()):
                event.offset_ps = draw(INT64)
            elif draw(st.booleans()):
                event.num_occurrences = draw(INT64)
            for _ in range(draw(st.integers(0, 4))):
                stat(draw, event.stats.add())
    return plane


def number(value) -> int:
    kind = value.WhichOneof("value")
    if kind == "double_value":
        return int(value.double_value)
    if kind in ("uint64_value", "int64_value"):
        return (getattr(value, kind) + 2**63) % 2**64 - 2**63
    return MISSING


def text(value) -> str | None:
    kind = value.WhichOneof("value")
    if kind == "ref_value":
        return dict(enumerate(NAMES, start=1)).get(value.ref_value, "")
    if kind == "str_value":
        return value.str_value
    return gzip.decompress(value.compressed_str_value).decode() if kind == "compressed_str_value" else None


@settings(max_examples=150)
@given(planes())
def test_events_are_those_that_protobuf_reads(plane):
    read = read_plane(plane.SerializeToString())
    assert (read.id, read.name, len(read.lines)) == (plane.id, plane.name, len(plane.lines))
    for line, want in zip(read.lines, plane.lines, strict=True):
        events = [e for e in want.events if e.WhichOneof("value") != "num_occurrences"]
        assert (line.id, line.name, line.timestamp_ns) == (want.id, want.name, want.timestamp_ns)
        assert line.aggregated == len(want.events) - len(events)
        assert line.kind.tolist() == [e.metadata_id for e in events]
        assert line.offset_ps.tolist() == [e.offset_ps for e in events]
        assert line.duration_ps.tolist() == [e.duration_ps for e in events]
        for key, name in enumerate(NAMES, start=1):
            last = [next((s for s in reversed(e.stats) if s.metadata_id == key), None) for e in events]
            if name in WANTED_INTS:
                assert line.numbers(name).tolist() == [MISSING if s is None else number(s) for s in last]
            elif name in ("hlo_op", "name"):
                codes, values = line.codes(name)
                found = [values[c] if c >= 0 else None for c in codes.tolist()]
                assert found == [None if s is None else text(s) for s in last]


def space(*planes, hostname="host-a"):
    return PROTO["XSpace"](planes=planes, hostnames=[hostname]).SerializeToString()


def small_plane(name="/device:TPU:0", events=3):
    plane = PROTO["XPlane"](name=name)
    line = plane.lines.add(name="XLA Ops")
    for i in range(events):
        line.events.add(metadata_id=1, offset_ps=100 * i, duration_ps=50)
    return plane


def test_many_events_cross_the_blocks():
    plane = PROTO["XPlane"](name="p")
    line = plane.lines.add()
    for i in range(70_000):
        line.events.add(metadata_id=i % 7, offset_ps=i * 1000, duration_ps=i)
    [read] = read_plane(plane.SerializeToString()).lines
    assert np.array_equal(read.offset_ps, np.arange(70_000) * 1000)
    assert np.array_equal(read.kind, np.arange(70_000) % 7)
    assert read.duration_ps.sum() == 70_000 * 69_999 // 2


def test_planes_before_a_cut_are_whole_and_the_cut_is_named():
    first, second = small_plane("one"), small_plane("two", 9)
    data = space(first, second)
    border = len(space(first)) - len(space())
    for size in range(1, len(data) - len(space())):
        read = read_space(Source.within(data[:size]))
        whole = int(size >= border)
        assert [p.name for p in read.planes] == ["one"][:whole]
        if size == border:
            assert read.damage is None  # nothing tells that a second plane was meant to follow
        else:
            assert read.damage is not None
            assert read.damage.code == "truncated"


def test_damage_inside_a_line_is_found_when_it_is_read_and_costs_only_its_plane():
    first, second = small_plane("one"), small_plane("two", 9)
    data = bytearray(space(first, second))
    data[data.rindex(b'"\x07\x08')] = 0x27  # the tag of the last event gets wire type 7
    read = read_space(Source.within(bytes(data)))
    assert read.damage is None
    one, two = read.planes
    assert [len(line) for line in one.whole().lines] == [3]
    with pytest.raises(WireError) as caught:
        two.whole()
    assert caught.value.code == "malformed"
    assert data[caught.value.byte] == 0x27


def test_a_length_beyond_all_memory_is_damage_not_an_allocation():
    read = read_space(Source.within(b"\x0a" + b"\xff" * 8 + b"\x7f" + b"\x08\x01"))
    assert read.planes == []
    assert read.damage is not None


@pytest.mark.parametrize("seed", range(60))
def test_any_flipped_bytes_give_planes_or_damage_never_a_crash(seed):
    rng = random.Random(seed)
    data = bytearray(space(small_plane("one", 20), small_plane("two", 20)))
    for _ in range(rng.choice([1, 2, 5])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    read = read_space(Source.within(bytes(data)))
    assert read.damage is not None or len(read.planes) in (1, 2)


def test_errors_warnings_and_hostnames():
    data = PROTO["XSpace"](errors=["lost 3 events"], warnings=["late"], hostnames=["h0"]).SerializeToString()
    read = read_space(Source.within(data))
    assert (read.errors, read.warnings, read.hostnames) == (["lost 3 events"], ["late"], ["h0"])

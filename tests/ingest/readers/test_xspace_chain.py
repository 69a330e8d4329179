"""Finding the events of long lines: side by side as one by one, window by window as at once."""

import random

import numpy as np
import pytest

from tracegap.ingest.readers import _xplane, _xplane_windows
from tracegap.ingest.readers._xplane import PROTO, Source, WireError, read_plane, read_space
from tracegap.ingest.readers._xplane_chain import SPARE, TAG, events_from, follow

HEAD = b"\x08\x01\x10\x05\x18\x07"  # metadata_id, offset_ps, duration_ps
STAT = b"\x22\x04\x08\x03\x18\x09"


def event(body: bytes) -> bytes:
    size = len(body)
    length = (
        [size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14] if size >> 14 else [size & 0x7F | 0x80, size >> 7]
    )
    return bytes([TAG, *([size] if size < 0x80 else length)]) + body


def usual(draw: random.Random) -> bytes:
    return HEAD + STAT * draw.randrange(5)


def statistics_first(draw: random.Random) -> bytes:
    return STAT * draw.randrange(5) + HEAD


def of_any_length(draw: random.Random) -> bytes:
    return HEAD + b"\x4a" + bytes([draw.randrange(100)]) + bytes(draw.choice([10, 100, 200, 5000]))


def like_events_inside(draw: random.Random) -> bytes:
    return bytes(draw.choice(b"\x22\x08\x02\x00\x10") for _ in range(draw.randrange(60)))


@pytest.mark.parametrize("body", [usual, statistics_first, of_any_length, like_events_inside])
@pytest.mark.parametrize("broken", [None, b"\x5a\x02ab", b"\x27"])
def test_lanes_find_what_one_by_one_finds(body, broken):
    draw = random.Random(f"{body.__name__}{broken}")
    data = b"".join(event(body(draw)) for _ in range(20_000 if body is not of_any_length else 500))
    if broken is not None:
        before, _ = follow(data + bytes(SPARE), 0, len(data))
        at = int(before[len(before) // 2])
        data = data[:at] + broken + data[at:]
    for end in (len(data), len(data) - 3):
        starts, after = events_from(data + bytes(SPARE), 0, end)
        expected, expected_after = follow(data + bytes(SPARE), 0, end)
        assert np.array_equal(starts, expected)
        assert after == expected_after
    assert len(starts) > 100


def test_an_event_of_more_than_16_kb_is_left_to_the_caller():
    data = event(HEAD) + event(bytes(1 << 15)) + bytes(SPARE)
    assert [list(part) if isinstance(part, np.ndarray) else part for part in follow(data, 0, len(data))] == [[0], 8]


@pytest.fixture
def plane():
    plane = PROTO["XPlane"](id=1, name="/device:TPU:0")
    plane.stat_metadata[1].name = "group_id"
    for name in ("XLA Ops", "Steps"):
        line = plane.lines.add(name=name, timestamp_ns=5, duration_ps=9)
        for i in range(300):
            made = line.events.add(metadata_id=i, offset_ps=1000 * i, duration_ps=7)
            made.stats.add(metadata_id=1).int64_value = i // 3
            if i % 50 == 0:
                made.stats.add(metadata_id=2).str_value = "x" * 300
    return plane.SerializeToString()


@pytest.mark.parametrize("window", [1, 50, 333, 1 << 20])
def test_windows_give_the_same_lines_and_the_same_damage(plane, window, tmp_path, monkeypatch):
    whole = read_plane(plane)
    file = tmp_path / "a.xplane.pb"
    space = PROTO["XSpace"]().SerializeToString() + b"\x0a" + _varint(len(plane))
    file.write_bytes(space + plane)
    monkeypatch.setattr(_xplane, "_SMALL", 0)
    monkeypatch.setattr(_xplane_windows, "_WINDOW", window)
    monkeypatch.setattr(_xplane_windows, "_PEEP", max(window, 32))
    lines = read_space(Source.of(file)).planes[0].whole().lines
    for line, same in zip(lines, whole.lines, strict=True):
        assert (line.name, line.timestamp_ns, len(line)) == (same.name, same.timestamp_ns, 300)
        assert np.array_equal(line.offset_ps, same.offset_ps)
        assert np.array_equal(line.numbers("group_id"), same.numbers("group_id"))

    at = plane.rindex(b"\x22", 0, len(plane) // 2)  # a tag in the middle becomes what is none
    damaged = plane[:at] + b"\x27" + plane[at + 1 :]
    file.write_bytes(space + damaged)
    with pytest.raises(WireError) as in_memory:
        read_plane(damaged)
    with pytest.raises(WireError) as in_windows:
        read_space(Source.of(file)).planes[0].whole()
    assert in_windows.value.byte == in_memory.value.byte + len(space)
    assert in_windows.value.code == in_memory.value.code == "malformed"


def _varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14])

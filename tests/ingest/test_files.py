import gzip
import hashlib
import io
import random
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tracegap.ingest.errors import TraceError
from tracegap.ingest.files import head_of, open_plain, sha256

DATA = b'{"traceEvents": []}' * 1000


def put(folder: Path, data: bytes, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace.zst"])
def test_content_decides_not_the_name(tmp_path: Path, pack, name: str) -> None:
    path = put(tmp_path, pack(DATA), name)
    with open_plain(path) as stream:
        assert stream.read() == DATA
    assert head_of(path, 100) == DATA[:100]


def test_members_follow_each_other_and_padding_is_no_data(tmp_path: Path) -> None:
    path = put(tmp_path, gzip.compress(b"one ") + gzip.compress(b"two") + b"\0" * 512)
    with open_plain(path) as stream:
        assert stream.read() == b"one two"


@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=30))
def test_reads_of_any_size_give_the_same_bytes(tmp_path_factory, sizes: list[int]) -> None:
    path = put(tmp_path_factory.mktemp("f"), gzip.compress(DATA))
    with open_plain(path) as stream:
        parts = [stream.read(size) for size in sizes]
        rest = stream.read()
    assert b"".join(parts) + rest == DATA
    assert all(len(p) == s for p, s in zip(parts, sizes, strict=True)) or not rest


def test_what_stands_before_a_break_is_read_and_then_it_raises(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(100_000)
    path = put(tmp_path, gzip.compress(data)[:-2000])
    got = []
    with open_plain(path) as stream, pytest.raises(TraceError) as error:
        got.extend(iter(lambda: stream.read(4096), b""))
    assert error.value.code == "truncated"
    assert "ends early" in str(error.value)
    assert 50_000 < len(b"".join(got)) < len(data)
    assert data.startswith(b"".join(got))
    with open_plain(path) as stream, pytest.raises(TraceError):
        stream.read()  # all of it is not to be had: no short answer taken for the whole


def test_damage_in_the_compressed_data_is_malformed(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(DATA + random.Random(1).randbytes(1000).hex().encode()))
    packed[200:300] = b"\xff" * 100
    with pytest.raises(TraceError) as error, open_plain(put(tmp_path, bytes(packed))) as stream:
        stream.read()
    assert error.value.code == "malformed"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "empty"),
        (gzip.compress(b""), "empty"),
        (zstandard.ZstdCompressor().compress(b""), "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "lfs_pointer"),
        (gzip.compress(b"")[:6], "truncated"),
    ],
)
def test_files_without_data_are_named(tmp_path: Path, data: bytes, code: str) -> None:
    with pytest.raises(TraceError) as error:
        open_plain(put(tmp_path, data))
    assert error.value.code == code


def test_readinto_and_buffering_work_as_of_any_raw_stream(tmp_path: Path) -> None:
    with open_plain(put(tmp_path, gzip.compress(b"line 1\nline 2\n"))) as stream:
        assert io.BufferedReader(stream).readlines() == [b"line 1\n", b"line 2\n"]  # type: ignore[arg-type,type-var]


def test_sha256_is_of_the_file_as_it_lies(tmp_path: Path) -> None:
    packed = gzip.compress(DATA)
    assert sha256(put(tmp_path, packed)) == hashlib.sha256(packed).hexdigest()


def test_a_wrong_checksum_is_malformed(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(DATA))
    packed[-6] ^= 1
    with pytest.raises(TraceError) as error, open_plain(put(tmp_path, bytes(packed))) as stream:
        stream.read()
    assert error.value.code == "malformed"

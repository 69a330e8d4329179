"""Opens the files that traces come in: plain, gzip or zstd, told apart by their first bytes and never by the name."""

import contextlib
import hashlib
import io
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import zstandard
from isal import isal_zlib

from tracegap.ingest.errors import Refused, TraceError
from tracegap.models.errors import TracegapError

HEAD_BYTES = 1 << 16
"""How much of a file `sniff` of a reader is shown."""

UNPACK_LIMIT = "TRACEGAP_UNPACK_LIMIT_GIB"
"""Variable that says how much one file or archive may unpack to, GiB."""
DEFAULT_UNPACK_LIMIT_GIB = 64.0
HARMLESS_BYTES = 1 << 28
"""What any file may unpack to."""
MAX_RATIO = 200
"""What a file may unpack to beyond that, as a multiple of its size: traces reach 50."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class _Decompressor(Protocol):
    """What zlib's and zstd's decompression objects have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _gzip_member() -> _Decompressor:
    return cast(_Decompressor, isal_zlib.decompressobj(wbits=16 + zlib.MAX_WBITS))


def _zstd_frame() -> _Decompressor:
    return cast(_Decompressor, zstandard.ZstdDecompressor().decompressobj())


# zstd has no bound to what it makes of a piece (32 KiB a byte): small pieces keep memory bounded.
_DAMAGE = (zlib.error, cast(type[Exception], isal_zlib.error), zstandard.ZstdError)
_CODECS = {_GZIP: ("gzip", _gzip_member, 1 << 16), _ZSTD: ("zstd", _zstd_frame, 1 << 11)}


def unpack_limit_bytes() -> int:
    """The limit of TRACEGAP_UNPACK_LIMIT_GIB, bytes.

    Raises:
        TracegapError: it is no positive number.
    """
    said = os.environ.get(UNPACK_LIMIT)
    try:
        limit = int(float(said or DEFAULT_UNPACK_LIMIT_GIB) * 2**30)
    except (ValueError, OverflowError):  # also nan and inf
        limit = 0
    if limit <= 0:
        raise TracegapError(f"{UNPACK_LIMIT}={said}: not a number of GiB above 0")
    return limit


class Allowance:
    """How much may be unpacked from one file and from all that is packed in it."""

    def __init__(self, shown: str, packed_bytes: int) -> None:
        self.shown, self.packed_bytes = shown, packed_bytes
        self.taken_bytes = 0
        self._limit_bytes = unpack_limit_bytes()
        self._bomb_bytes = max(HARMLESS_BYTES, MAX_RATIO * packed_bytes)

    def take(self, n: int) -> None:
        """Counts `n` bytes more.

        Raises:
            Refused: it is too much.
        """
        self.taken_bytes += n
        if self.taken_bytes > self._bomb_bytes:
            what = f"its {self.packed_bytes:,} bytes unpack to more than {self._bomb_bytes:,}, as a decompression bomb does"
            raise Refused(
                self.shown, what, code="bomb", todo="if you trust it, unpack it yourself and give what comes out"
            )
        if self.taken_bytes > self._limit_bytes:
            what = f"unpacks to more than {self._limit_bytes / 2**30:g} GiB"
            raise Refused(self.shown, what, code="bomb", todo=f"if you trust it, set {UNPACK_LIMIT} higher")


class _Inflated(io.RawIOBase):
    """Decompressed bytes of a gzip or zstd file of any number of members.

    Where the compressed data breaks off or is damaged, everything before is handed out first and the next read raises.
    """

    def __init__(self, path: Path, allowance: Allowance, codec: str, make: Any, piece_bytes: int) -> None:
        super().__init__()
        self._path, self._allowance = path, allowance
        self._codec, self._make, self._piece_bytes = codec, make, piece_bytes
        self._file = path.open("rb")
        self._member: _Decompressor | None = None
        self._compressed = b""
        self._plain, self._at = b"", 0
        self._error: TraceError | None = None
        self._done = False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any, /) -> int:
        """Fills `buffer`, less only at the end; how many bytes they are."""
        place, filled = memoryview(buffer), 0
        for part in self._parts(len(place)):
            place[filled : filled + len(part)] = part
            filled += len(part)
        return filled

    def read(self, size: int | None = -1, /) -> bytes:
        """Exactly `size` bytes, fewer only at the end; all that is left for a negative `size`."""
        return b"".join(self._parts(sys.maxsize if size is None or size < 0 else size))

    def _parts(self, wanted: int) -> Iterator[memoryview]:
        left = wanted
        while left:
            if self._at == len(self._plain):
                if self._done or self._error is not None:
                    break
                self._plain, self._at = self._inflate(), 0
            part = memoryview(self._plain)[self._at : self._at + left]
            self._at += len(part)
            left -= len(part)
            yield part
        if self._error is not None and wanted in (sys.maxsize, left):
            raise self._error

    def unread(self, data: bytes) -> None:
        """Puts bytes back in front."""
        self._plain, self._at = data + self._plain[self._at :], 0

    def _inflate(self) -> bytes:
        """The next piece of plain data; sets `_done` or `_error` at the end."""
        if not self._compressed:
            self._compressed = self._file.read(self._piece_bytes)
        if not self._compressed:
            if self._member is not None:
                self._fail("truncated", f"the {self._codec} data ends early", "copy the file again or profile again")
            self._done = True
            return b""
        if self._member is None:
            self._compressed = self._compressed.lstrip(b"\0")  # padding between or after members
            if not self._compressed:
                return b""
            self._member = self._make()
        try:
            piece = self._member.decompress(self._compressed)
        except _DAMAGE as error:
            self._fail("malformed", f"the {self._codec} data is damaged ({error})", "copy the file again")
            return b""
        if self._member.eof:
            self._compressed = self._member.unused_data
            self._member = None
        else:
            self._compressed = b""
        self._allowance.take(len(piece))
        return piece

    def _fail(self, code: str, what: str, todo: str) -> None:
        at = self._file.tell() - len(self._compressed)
        self._error = TraceError(str(self._path), f"{what}, at compressed byte {at}", code=code, todo=todo)


def open_plain(path: Path, allowance: Allowance | None = None) -> BinaryIO:
    """The file's bytes, decompressed if it is gzip or zstd by content.

    `allowance` counts what is unpacked, together with other files; else the file has its own. The read that goes beyond
    it raises `Refused`.

    Raises `TraceError` with code `empty` (nothing in it, also behind compression) or `lfs_pointer` at once, and with
    `truncated` or `malformed` from the read that comes after the last byte that could be decompressed.
    """
    with path.open("rb") as file:
        magic = file.read(len(_LFS_POINTER))
    codec = next((made for start, made in _CODECS.items() if magic.startswith(start)), None)
    if magic == _LFS_POINTER:
        raise TraceError(str(path), "is a git LFS pointer, not a trace", code="lfs_pointer", todo="run `git lfs pull`")
    if not magic:
        raise TraceError(str(path), "is empty (0 bytes)", code="empty", todo="profile again")
    if codec is None:
        return path.open("rb")
    stream = _Inflated(path, allowance or Allowance(str(path), path.stat().st_size), *codec)
    try:
        first = stream.read(1)
    except (TraceError, Refused):
        stream.close()
        raise
    if not first:
        stream.close()
        what = f"holds no data: its {codec[0]} stream is empty"
        raise TraceError(str(path), what, code="empty", todo="profile again")
    stream.unread(first)
    return cast(BinaryIO, stream)


def count_inflated(path: Path, allowance: Allowance) -> None:
    """Decompresses a compressed file only to count it: damage is no matter here.

    Raises:
        Refused: the allowance does not suffice.
    """
    with contextlib.suppress(TraceError), open_plain(path, allowance) as stream:
        while isinstance(stream, _Inflated) and stream.read(1 << 20):
            pass


def head_of(path: Path, size: int = HEAD_BYTES) -> bytes:
    """The first `size` decompressed bytes, as `sniff` of a reader takes them; of a folder the names of its files.

    Errors as `open_plain`.
    """
    if path.is_dir():
        return "\n".join(sorted(p.name for p in path.iterdir())).encode()
    with open_plain(path) as stream:
        return stream.read(size)


def size_of(path: Path) -> int:
    """Bytes of a file, or of the files of a folder."""
    return sum(p.stat().st_size for p in (path.iterdir() if path.is_dir() else [path]) if p.is_file())


def sha256(path: Path) -> str:
    """SHA-256 of the file as it lies (what `sha256sum` prints), in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

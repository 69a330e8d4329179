"""Opens the files that traces come in: plain, gzip or zstd, told apart by their first bytes and never by the name."""

import hashlib
import io
import sys
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import zstandard
from isal import isal_zlib

from tracegap.ingest.errors import TraceError

HEAD_BYTES = 1 << 16
"""How much of a file `sniff` of a reader is shown."""

_CHUNK_BYTES = 1 << 16
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


_DAMAGE = (zlib.error, cast(type[Exception], isal_zlib.error), zstandard.ZstdError)
_CODECS = {_GZIP: ("gzip", _gzip_member), _ZSTD: ("zstd", _zstd_frame)}


class _Inflated(io.RawIOBase):
    """Decompressed bytes of a gzip or zstd file of any number of members.

    Where the compressed data breaks off or is damaged, everything before is handed out first and the next read raises.
    """

    def __init__(self, path: Path, codec: str, make: Any) -> None:
        super().__init__()
        self._path, self._codec, self._make = path, codec, make
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
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        """Exactly `size` bytes, fewer only at the end; all that is left for a negative `size`."""
        wanted = sys.maxsize if size is None or size < 0 else size
        parts, length = [], 0
        while length < wanted:
            if self._at == len(self._plain):
                if self._done or self._error is not None:
                    break
                self._plain, self._at = self._inflate(), 0
            part = self._plain[self._at : self._at + wanted - length]
            self._at += len(part)
            length += len(part)
            parts.append(part)
        if self._error is not None and (wanted == sys.maxsize or not length):
            raise self._error
        return b"".join(parts)

    def unread(self, data: bytes) -> None:
        """Puts bytes back in front."""
        self._plain, self._at = data + self._plain[self._at :], 0

    def _inflate(self) -> bytes:
        """The next piece of plain data; sets `_done` or `_error` at the end."""
        if not self._compressed:
            self._compressed = self._file.read(_CHUNK_BYTES)
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
        return piece

    def _fail(self, code: str, what: str, todo: str) -> None:
        at = self._file.tell() - len(self._compressed)
        self._error = TraceError(str(self._path), f"{what}, at compressed byte {at}", code=code, todo=todo)


def open_plain(path: Path) -> BinaryIO:
    """The file's bytes, decompressed if it is gzip or zstd by content.

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
    stream = _Inflated(path, *codec)
    try:
        first = stream.read(1)
    except TraceError:
        stream.close()
        raise
    if not first:
        stream.close()
        what = f"holds no data: its {codec[0]} stream is empty"
        raise TraceError(str(path), what, code="empty", todo="profile again")
    stream.unread(first)
    return cast(BinaryIO, stream)


def head_of(path: Path, size: int = HEAD_BYTES) -> bytes:
    """The first `size` decompressed bytes, as `sniff` of a reader takes them. Errors as `open_plain`."""
    with open_plain(path) as stream:
        return stream.read(size)


def sha256(path: Path) -> str:
    """SHA-256 of the file as it lies (what `sha256sum` prints), in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

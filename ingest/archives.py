"""Archives (.zip, .tar, .tar.gz, .tar.zst) as folders of traces: members are unpacked one at a time.

An archive is gone through twice. The first time everything in it is looked at, unpacked and decompressed, also archives
within it, only to count: so whatever is refused is refused before anything of it has been handed out.
"""

import lzma
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Self, cast

from tracegap.ingest import manifest
from tracegap.ingest.errors import InputError, Refused, TraceError
from tracegap.ingest.files import Allowance, count_inflated, head_of, open_plain
from tracegap.ingest.naming import may_be_trace, printable, traces_among

MAX_MEMBERS = 20_000
"""Members of an archive and of all archives in it."""
MAX_DEPTH = 4
"""Levels of archives within archives."""
_MAX_NAME_CHARS = 1000
_MAX_HEADER_BYTES = 1 << 20  # what a tar archive may say about one member: Python reads it into memory
_TAR_BLOCK_BYTES = 512
_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_ZIP_ENCRYPTED = 0x1 | 0x40 | 0x2000  # flags: traditional, strong, central directory
_TAR_EXTENSIONS = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE)
# What the standard library raises for damage and for compression that it does not know; OSError where the disk is full.
_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, UnicodeError, OSError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Member:
    """A file out of an archive. It lies at `path`, beside the manifest of its folder, until the next one is asked for."""

    path: Path
    shown: str
    """The archive, `!/` and the place in it."""
    error: InputError | None = None
    """Why this one, or the rest of the archive `shown`, is not to be had; nothing lies at `path` then."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A member as the archive lists it."""

    name: str
    is_folder: bool
    problem: str | None
    """What it is, where that is neither a file nor a folder."""
    open: Callable[[], IO[bytes]]


@dataclass(slots=True)
class _Pass:
    """One way through an archive and all archives in it."""

    allowance: Allowance
    chosen: dict[str, set[PurePosixPath]] | None = None
    """Members to hand out, by archive; None = all that may be traces."""
    names: dict[str, list[PurePosixPath]] = field(default_factory=dict)
    """Members that may be traces, by archive."""
    members: int = 0

    def wants(self, archive: str, name: PurePosixPath) -> bool:
        """Whether a member is to be handed out."""
        if self.chosen is not None:
            return name in self.chosen.get(archive, ())
        if may_be_trace(name):
            self.names.setdefault(archive, []).append(name)
            return True
        return False

    def count(self, archive: str) -> None:
        """Counts a member."""
        self.members += 1
        if self.members > MAX_MEMBERS:
            raise Refused(archive, f"has more than {MAX_MEMBERS:,} members", code="members", todo="unpack it yourself")


def is_archive(path: Path) -> bool:
    """Whether a file is an archive, by its content."""
    return _lister(path) is not None


def unpacked(path: Path, shown: str) -> Iterator[Member]:
    """The members that may be traces, each in the folder that it has in the archive.

    Args:
        path: the archive.
        shown: what it is called.

    Raises:
        Refused: the archive or one in it unpacks beyond the allowance, has too many members or levels, is encrypted, or
            has members that are links or devices or point outside. Nothing has been handed out then.
    """
    size_bytes = path.stat().st_size
    with tempfile.TemporaryDirectory(prefix="tracegap-") as folder:
        look = _Pass(Allowance(shown, size_bytes))
        for member in _walk(path, shown, Path(folder), look, depth=1):
            if member.error is None:
                count_inflated(member.path, look.allowance)
        chosen = {archive: set(traces_among(names)) for archive, names in look.names.items()}
        yield from _walk(path, shown, Path(folder), _Pass(Allowance(shown, size_bytes), chosen), depth=1)


def _walk(path: Path, shown: str, root: Path, way: _Pass, *, depth: int) -> Iterator[Member]:
    """Unpacks one member after the other into `root`; manifests stay there, so that the second pass finds them all."""
    if depth > MAX_DEPTH:
        raise Refused(shown, f"archives within archives, more than {MAX_DEPTH} levels", code="nested")
    entries = _lister(path)
    if entries is None:
        return
    try:
        for entry in entries(path, shown, way.allowance):
            way.count(shown)
            name = _safe_name(entry, shown)
            described = name.name in manifest.NAMES
            if entry.is_folder or not (described or way.wants(shown, name)):
                continue
            target, told = root / name, f"{shown}!/{printable(str(name))}"
            try:
                _copy(entry, target)
            except (TraceError, *_DAMAGE) as e:
                yield Member(target, told, _error(told, e))
                if entries is _tar_entries:  # a stream: what follows is lost with it
                    return
                continue
            if described:
                continue
            try:
                if is_archive(target):
                    yield from _walk(target, told, target.with_name(target.name + "!"), way, depth=depth + 1)
                else:
                    yield Member(target, told)
            finally:
                target.unlink(missing_ok=True)
    except (TraceError, *_DAMAGE) as e:
        yield Member(path, shown, _error(shown, e))


def _copy(entry: _Entry, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with entry.open() as source, target.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)


def _error(shown: str, e: Exception) -> InputError:
    if isinstance(e, TraceError):
        return TraceError(shown, e.what, code=e.code, todo=e.todo)
    if isinstance(e, OSError) and e.strerror:  # bz2 raises one without for damage
        what = f"cannot be unpacked ({e.strerror})"
        return TraceError(shown, what, code="not_unpacked", todo="TMPDIR names the folder to unpack in")
    return TraceError(shown, f"the archive is damaged ({printable(str(e))})", code="malformed", todo="copy it again")


def _safe_name(entry: _Entry, shown: str) -> PurePosixPath:
    """The member's place below the archive.

    Raises:
        Refused: it is outside, or the member is no file and no folder.
    """
    posix, windows = PurePosixPath(entry.name), PureWindowsPath(entry.name)
    outside = posix.is_absolute() or windows.drive or windows.root or ".." in (*posix.parts, *windows.parts)
    problem = entry.problem or ("points outside" if outside or "\0" in entry.name else None)
    if len(entry.name) > _MAX_NAME_CHARS:
        problem = f"has a name of more than {_MAX_NAME_CHARS} characters"
    if problem:
        what = f"its member {printable(entry.name[:100])!r} {problem}; nothing of it is taken"
        raise Refused(shown, what, code="unsafe", todo="look into it before you unpack it")
    return posix


def _lister(path: Path) -> "Callable[[Path, str, Allowance], Iterator[_Entry]] | None":
    """What lists the members of a file; None where it is no archive."""
    with path.open("rb") as file:
        if file.read(4) in _ZIP_MAGIC:
            return _zip_entries
    try:
        tarfile.TarInfo.frombuf(head_of(path, _TAR_BLOCK_BYTES), tarfile.ENCODING, "surrogateescape")
    except (TraceError, tarfile.TarError):  # a header has a checksum, which other files fail
        return None
    return _tar_entries


def _tar_entries(path: Path, shown: str, allowance: Allowance) -> Iterator[_Entry]:
    class Header(tarfile.TarInfo):
        """Says no to headers that would fill the memory."""

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            info = super().frombuf(buf, encoding, errors)
            if info.type in _TAR_EXTENSIONS and info.size > _MAX_HEADER_BYTES:
                what = f"has a member whose name and attributes take {info.size:,} bytes"
                raise Refused(shown, what, code="bomb", todo="look into it before you unpack it")
            return info

    with (
        open_plain(path, allowance) as stream,
        tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20, tarinfo=Header) as tar,
    ):
        for info in tar:
            yield _Entry(info.name, info.isdir(), _tar_problem(info), partial(_open_in_tar, tar, info))


def _open_in_tar(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    return cast(IO[bytes], tar.extractfile(info))  # None only of what _tar_problem names


def _tar_problem(info: tarfile.TarInfo) -> str | None:
    if info.issym() or info.islnk():
        return "is a link"
    if info.issparse():
        return "is a sparse file"
    return None if info.isdir() or info.isreg() else "is a device or of an unknown kind"


def _zip_entries(path: Path, shown: str, allowance: Allowance) -> Iterator[_Entry]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.flag_bits & _ZIP_ENCRYPTED:
                what = f"is encrypted (member {printable(info.filename[:100])!r})"
                raise Refused(shown, what, code="encrypted", todo="unpack it yourself and give what comes out")
            allowance.take(info.file_size)  # what it says is what `open` gives at most
            yield _Entry(info.filename, info.is_dir(), _zip_problem(info), partial(archive.open, info))


def _zip_problem(info: zipfile.ZipInfo) -> str | None:
    kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where the archive was not made under Unix
    if kind == stat.S_IFLNK:
        return "is a link"
    return None if kind in (0, stat.S_IFREG, stat.S_IFDIR) else "is a device or of an unknown kind"

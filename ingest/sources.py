"""Traces from anywhere: files, folders, patterns and URLs; archives are folders of traces.

`find` says what there is, `files_of` brings each file to this machine's disk, one at a time.
"""

import glob
import itertools
import tempfile
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from tracegap.ingest import archives, remote
from tracegap.ingest.errors import InputError, TraceError
from tracegap.ingest.naming import is_table_folder, plain_stem, table_folders, traces_among
from tracegap.ingest.remote import Remote
from tracegap.models.errors import TracegapError

Source = Path | Remote
"""A file, an archive or a folder of tables, here or elsewhere."""
_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class File:
    """A file to be read as a trace, and what it is called."""

    path: Path
    """Where its bytes lie, for as long as the next file is not asked for; its manifest lies beside it."""
    shown: str
    """As the user named it or found it: a path, a URL without credentials, `archive.zip!/member`."""
    stored: str
    """As the store has it: likewise, and absolute."""
    error: InputError | None = None
    """Why it is not to be had."""

    @property
    def place(self) -> PurePosixPath:
        """`stored` taken apart; not what can be opened."""
        return PurePosixPath(self.stored)

    @property
    def folder_name(self) -> str:
        """Name of the folder or archive that it is in."""
        name = self.place.parent.name
        return plain_stem(name.removesuffix("!")) if name.endswith("!") else name

    def told(self, text: str) -> str:
        """A text that may name the temporary copy, in the user's terms."""
        shown_folder = self.shown.rpartition("/")[0]
        if str(self.path) == self.shown:
            return text
        return text.replace(str(self.path), self.shown).replace(str(self.path.parent), shown_folder)


def is_given(text: str) -> bool:
    """Whether a text is a URL, a path of something that exists, or a pattern that matches something."""
    return remote.is_url(text) or Path(text).exists() or bool(_matching(Path(text)))


def find(given: Iterable[str | Source]) -> Iterator[Source]:
    """Files given by name, and in folders and where a pattern matches everything that may be a trace, in order of name.

    Raises:
        TracegapError: a path does not exist, nothing matches a pattern, or what reads a URL is not installed.
        InputError: a URL names nothing, or its server fails.
    """
    for item in given:
        if isinstance(item, Remote):
            yield item
        elif isinstance(item, str) and item.lower().startswith("file://"):
            yield from find_here(Path(unquote(urlsplit(item).path)))
        elif isinstance(item, str) and remote.is_url(item):
            yield from remote.find(item)
        else:
            yield from find_here(Path(item))


def find_here(path: Path) -> Iterator[Path]:
    """What `find` says of a path of this machine."""
    if path.is_dir():
        names = sorted(p.relative_to(path) for p in path.rglob("*") if p.is_file())
        yield from (path / name for name in sorted([*traces_among(names), *table_folders(names)]))
    elif path.exists():
        yield path
    elif found := _matching(path):
        yield from found
    else:
        raise TracegapError(f"{path}: no such file or folder")


def _matching(pattern: Path) -> list[Path]:
    """What matches a pattern (`*`, `?`, `[...]`, `**`) or lies in a folder that does, and may be a trace."""
    literal = Path(*itertools.takewhile(_MAGIC.isdisjoint, pattern.parts))
    if literal == pattern:
        return []
    files: set[Path] = set()
    for match in map(Path, glob.glob(str(pattern), recursive=True)):  # noqa: PTH207 (takes absolute patterns too)
        files.update(find_here(match) if match.is_dir() else [match])
    return [literal / name for name in traces_among(sorted(f.relative_to(literal) for f in files))]


def files_of(source: Source) -> Generator[File, None, None]:
    """The file itself, fetched if it is elsewhere; of an archive each member that may be a trace.

    What cannot be had is a `File` with an error. Copies are removed when the next file is asked for.
    """
    if isinstance(source, Path):
        yield from _files_in(source, str(source), str(source.resolve()))
        return
    with tempfile.TemporaryDirectory(prefix="tracegap-") as folder:
        try:
            copy = source.fetch(Path(folder))
        except InputError as e:
            yield File(Path(folder) / source.name, source.shown, source.shown, e)
        else:
            yield from _files_in(copy, source.shown, source.shown)


def _files_in(path: Path, shown: str, stored: str) -> Iterator[File]:
    try:
        if is_table_folder(path) or not archives.is_archive(path):
            yield File(path, shown, stored)
            return
        for member in archives.unpacked(path, shown):
            yield File(member.path, member.shown, stored + member.shown.removeprefix(shown), member.error)
    except OSError as e:
        yield File(path, shown, stored, TraceError(shown, f"cannot be opened ({e.strerror})", code="not_opened"))
    except InputError as e:
        yield File(path, shown, stored, e)

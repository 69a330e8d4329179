"""What names of files say: which may be a trace, and what is left when format and compression are taken off."""

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import TypeVar

from tracegap.ingest import manifest

AnyPath = TypeVar("AnyPath", bound=PurePath)
_IGNORED = {*manifest.NAMES, "truth.json", "SOURCE.md", "expected.json", "case.json"}
_ARCHIVES = (".zip", ".tar", ".tgz")
_SUFFIXES = (".json", ".gz", ".zst", ".pb", ".sqlite", ".nsys-rep", ".qdrep", *_ARCHIVES)
_REPORTS = (".nsys-rep", ".qdrep")
_STRIP = (".gz", ".zst", ".json", ".trace", ".pt", ".pb", ".xplane", ".sqlite", ".nsys-rep", ".qdrep", *_ARCHIVES)


TABLE_FOLDER = ("StringIds.parquet", "META_DATA_EXPORT.parquet")
"""Files of which a folder has one if it is a trace itself: an export of Nsight Systems with a Parquet file a table."""


def plain_stem(name: str) -> str:
    """A file name without the endings that say format and compression."""
    while name.endswith(_STRIP):
        name = next(name.removesuffix(s) for s in _STRIP if name.endswith(s))
    return name


def may_be_trace(path: PurePath) -> bool:
    """Whether a file of a folder or archive (`path` is relative to it) may be a trace or an archive of traces."""
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and path.name not in _IGNORED and path.name.endswith(_SUFFIXES)


def traces_among(paths: Iterable[AnyPath]) -> Iterator[AnyPath]:
    """Those that may be traces, less the reports of Nsight Systems beside their SQLite export: it holds the same data."""
    found = [p for p in paths if may_be_trace(p)]
    exported = {p.parent / plain_stem(p.name) for p in found if ".sqlite" in p.suffixes}
    return (p for p in found if not (p.suffix in _REPORTS and p.parent / plain_stem(p.name) in exported))


def is_table_folder(path: Path) -> bool:
    """Whether a path of this machine is such a folder."""
    return any((path / name).is_file() for name in TABLE_FOLDER)


def table_folders(paths: Iterable[AnyPath]) -> list[AnyPath]:
    """Folders that are one trace, of the files below one, less those beside the SQLite export of the same report."""
    known = list(paths)
    sqlite = {p.parent / plain_stem(p.name) for p in known if ".sqlite" in p.suffixes}
    folders = {p.parent for p in known if p.name in TABLE_FOLDER}
    return sorted(f for f in folders if f.parent / f.name.removesuffix("_pqtdir") not in sqlite)


def printable(text: str) -> str:
    """The text in one line that any terminal and database can take: names in archives and URLs may hold anything."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)

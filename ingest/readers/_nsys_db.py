"""Opens an Nsight Systems export and gives its tables as frames, whatever the schema version lacks or moved.

The user's file is opened read-only and immutable: no index, journal or lock is made beside it.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from tracegap.ingest.errors import TraceError
from tracegap.ingest.files import open_plain

SQLITE_MAGIC = b"SQLite format 3\0"
_MARKS_OF_NSYS = {"StringIds", "EXPORT_META_DATA", "META_DATA_EXPORT"}
"""Tables of which an export has at least one (the oldest have no metadata, cut ones may have no names)."""
_ROWS_AT_ONCE = 4096  # rows of this many fit the cache: larger blocks were slower


@contextmanager
def unpacked(path: Path, magic: bytes, kind: str) -> Iterator[Path]:
    """The file itself, or where it is compressed a temporary plain copy; `kind` says in an error what was expected.

    Raises:
        TraceError: of `open_plain` (empty, lfs_pointer, truncated, malformed), or foreign: it begins with no `magic`.

    """
    with open_plain(path) as plain:
        head = plain.read(64)
    if not head.startswith(magic):
        raise TraceError(str(path), f"this is not {kind}: it starts with {head[:16]!r}", code="foreign")
    with path.open("rb") as f:
        packed = f.read(len(magic)) != magic
    if not packed:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="tracegap-") as folder:
        copy = Path(folder) / "plain"
        with open_plain(path) as plain, copy.open("wb") as out:
            shutil.copyfileobj(plain, out, 1 << 20)
        yield copy


class Database:
    """An export, open for reading."""

    def __init__(self, path: Path, shown: str) -> None:
        """Opens `path`; errors name `shown`.

        Raises:
            TraceError: truncated, malformed, or a database of something else (foreign).

        """
        self.shown = shown
        self._check_length(path)
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            names = [str(r[0]) for r in self._rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
            self.columns = {n: [str(r[1]) for r in self._rows(f'PRAGMA table_info("{n}")')] for n in names}
        except TraceError:
            self.close()
            raise
        if not _MARKS_OF_NSYS & set(names):
            self.close()
            raise TraceError(
                shown,
                f"this database is no Nsight Systems export (tables: {', '.join(names[:5]) or 'none'})",
                code="foreign",
                todo="make one with `nsys export --type sqlite report.nsys-rep`",
            )

    def _check_length(self, path: Path) -> None:
        """The header says how many pages there are: a shorter file was cut, which SQLite itself may notice late."""
        with path.open("rb") as f:
            header = f.read(100)
        size = path.stat().st_size
        if len(header) < 100:
            raise TraceError(self.shown, f"the database ends within its header, at byte {size}", code="truncated")
        page_bytes = int.from_bytes(header[16:18], "big")
        page_bytes = 65536 if page_bytes == 1 else page_bytes
        pages = int.from_bytes(header[28:32], "big")
        if header[24:28] == header[92:96] and size < pages * page_bytes:
            raise TraceError(
                self.shown,
                f"the database is cut: {size} of {pages * page_bytes} bytes are there",
                code="truncated",
                todo="copy or export it again",
            )

    def _rows(self, query: str) -> Iterator[tuple[object, ...]]:
        try:
            yield from self._connection.execute(query)
        except sqlite3.DatabaseError as e:
            raise TraceError(self.shown, f"{e} (in: {query})", code="malformed", todo="copy or export it again") from e

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def count(self, table: str) -> int:
        """Rows of a table; 0 where there is none."""
        if table not in self.columns:
            return 0
        return int(str(next(self._rows(f'SELECT count(*) FROM "{table}"'))[0]))

    def read(
        self, table: str, columns: Mapping[str, pl.DataType | type[pl.DataType]], *, sparse: tuple[str, ...] = ()
    ) -> pl.DataFrame:
        """The wanted columns in the file's order, nulls for those that it lacks; no rows where the table is missing.

        `sparse` columns are often empty: a look at whether they are is much cheaper than fetching their nulls.
        """
        schema = dict(columns)
        there = [c for c in schema if c in self.columns.get(table, ())]
        if looked := [c for c in there if c in sparse]:
            counted = ", ".join(f'count("{c}")' for c in looked)
            counts = next(self._rows(f'SELECT {counted} FROM "{table}"'))
            there = [c for c in there if c not in {e for e, n in zip(looked, counts, strict=True) if not n}]
        if not there:
            return pl.DataFrame(schema=schema)
        quoted = ", ".join(f'CAST("{c}" AS BLOB)' if schema[c] == pl.Binary else f'"{c}"' for c in there)
        try:
            frame = self._fetch(table, quoted, {c: schema[c] for c in there})
        except sqlite3.OperationalError as e:
            if "decode" not in str(e):
                raise TraceError(self.shown, f"{table}: {e}", code="malformed", todo="copy or export it again") from e
            self._connection.text_factory = lambda b: b.decode("utf-8", "replace")  # slow, and hardly ever needed
            frame = self._fetch(table, quoted, {c: schema[c] for c in there})
            self._connection.text_factory = str
        except sqlite3.DatabaseError as e:
            raise TraceError(self.shown, f"{table}: {e}", code="malformed", todo="copy or export it again") from e
        return frame.select(pl.col(c) if c in there else pl.lit(None, dtype=t).alias(c) for c, t in schema.items())

    def _fetch(self, table: str, quoted: str, schema: dict[str, pl.DataType | type[pl.DataType]]) -> pl.DataFrame:
        cursor = self._connection.execute(f'SELECT {quoted} FROM "{table}"')
        blocks = []
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            columns = zip(*rows, strict=True)
            blocks.append(pl.DataFrame([_series(n, v, t) for (n, t), v in zip(schema.items(), columns, strict=True)]))
        return pl.concat(blocks) if blocks else pl.DataFrame(schema=schema)


def _series(name: str, values: tuple[object, ...], dtype: pl.DataType | type[pl.DataType]) -> pl.Series:
    """A column of a block. SQLite does not enforce types: what does not fit becomes null."""
    try:
        return pl.Series(name, values, dtype=dtype)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series(name, values, dtype=dtype, strict=False)

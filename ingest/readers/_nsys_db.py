"""SQLite exports of Nsight Systems as tables, whatever the schema version lacks or moved.

The user's file is opened read-only and immutable: no index, journal or lock is made beside it. Large tables come from
the pages of the file, as columns and in two threads; what does not fit its column's type, is no UTF-8 or damaged comes
row by row through Python's own sqlite3, which is many times slower and takes or refuses everything.
"""

import shutil
import sqlite3
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import polars as pl

from tracegap.ingest.errors import TraceError
from tracegap.ingest.files import open_plain
from tracegap.ingest.readers._nsys_export import BATCH_ROWS, MARKS, ROW, Export, Made, Schema, tidy
from tracegap.ingest.readers._nsys_pages import Pages, Part
from tracegap.ingest.readers._nsys_records import Unfit

SQLITE_MAGIC = b"SQLite format 3\0"
_ROWS_AT_ONCE = 4096  # rows of this many fit the cache: larger blocks were slower
_THREADS = 2
_AHEAD = 3  # batches in the making
_PICKED_AT_ONCE = 500


@contextmanager
def unpacked(path: Path, magic: bytes, kind: str) -> Iterator[Path]:
    """The file itself, or where it is compressed a temporary plain copy; `kind` says in an error what was expected.

    Raises:
        TraceError: of `open_plain` (empty, lfs_pointer, truncated, malformed), or foreign: it begins with no `magic`.

    """
    with open_plain(path) as plain:
        head = plain.read(64)
    if len(head) < len(magic) and magic.startswith(head):
        raise TraceError(str(path), f"the file ends after {len(head)} bytes", code="truncated", todo="copy it again")
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


class Database(Export):
    """A SQLite export, open for reading."""

    def __init__(self, path: Path, shown: str) -> None:
        """Opens `path`; errors name `shown`.

        Raises:
            TraceError: truncated, malformed, or a database of something else (foreign).

        """
        self.shown = shown
        self.damaged = {}
        self._check_length(path)
        self._uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False)
        self._one_at_a_time = threading.Lock()
        self._path = path
        self._counts: dict[str, int] = {}
        try:
            names = [str(r[0]) for r in self._rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
            self.columns = {n: [str(r[1]) for r in self._rows(f"PRAGMA table_info({_quoted(n)})")] for n in names}
        except TraceError:
            self.close()
            raise
        if not MARKS & set(names):
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

    def _malformed(self, what: object) -> TraceError:
        return TraceError(self.shown, str(what), code="malformed", todo="copy or export it again")

    def _rows(self, query: str) -> Iterator[tuple[object, ...]]:
        try:
            yield from self._connection.execute(query)
        except (sqlite3.DatabaseError, ValueError) as e:  # ValueError: a name that is no text
            raise self._malformed(f"{e} (in: {query!r})") from e

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def count(self, table: str) -> int:
        """Rows of a table; 0 where there is none."""
        if table not in self._counts:
            count = next(self._rows(f"SELECT count(*) FROM {_quoted(table)}"))[0] if table in self.columns else 0
            self._counts[table] = int(str(count))
        return self._counts[table]

    def pick(self, table: str, columns: Schema, rows: list[int]) -> pl.DataFrame:
        """ROW and the wanted columns of the rows with these numbers, in order."""
        there = {c: t for c, t in columns.items() if c in self.columns.get(table, ())}
        found = self._picked(table, there, rows if there else [])
        return found.select(ROW, *(pl.col(c) if c in there else pl.lit(None, t).alias(c) for c, t in columns.items()))

    def _picked(self, table: str, columns: Schema, rows: list[int]) -> pl.DataFrame:
        parts = [pl.DataFrame(schema={**columns, ROW: pl.Int64})]
        for at in range(0, len(rows), _PICKED_AT_ONCE):
            wanted = ", ".join(map(str, rows[at : at + _PICKED_AT_ONCE]))
            parts.append(self._fetch(table, columns, f"WHERE rowid IN ({wanted})", numbered=True))
        return pl.concat(parts)

    def _batches(
        self, table: str, columns: Schema, prepare: Callable[[pl.DataFrame], Made], *, numbered: bool
    ) -> Iterator[Made]:
        conditions = self._ranges(table)
        with closing(Pages(self._path)) as pages:
            try:
                if len(conditions) == 1:  # a small table
                    raise Unfit
                places = self._places(table, columns)
                parts = pages.parts(self._root(table))
            except Unfit:
                for where in conditions:
                    yield prepare(self._fetch(table, columns, where, numbered=numbered))
                return

            lengths = []

            def make(part: Part) -> Made:
                try:
                    frame, left_out = pages.fetch(part, columns, places)
                except Unfit:
                    frame, left_out = self._fetch(table, columns, part.where, numbered=True), []
                if left_out:
                    frame = pl.concat([frame, self._picked(table, columns, left_out).select(frame.columns)]).sort(ROW)
                lengths.append(len(frame))
                return prepare(frame if numbered else frame.drop(ROW))

            yield from _in_threads(make, parts)
            self._counts[table] = sum(lengths)

    def _ranges(self, table: str) -> list[str]:
        """Conditions that cut a table into parts of BATCH_ROWS row numbers; one that takes all where that is too many."""
        try:
            query = f'SELECT (SELECT min(rowid) FROM "{table}"), (SELECT max(rowid) FROM "{table}")'
            ends = self._connection.execute(query).fetchone()
        except sqlite3.OperationalError:  # a table without row numbers
            return [""]
        except sqlite3.DatabaseError as e:
            raise self._malformed(f"{table}: {e}") from e
        low, high = (0, 0) if None in ends else (int(ends[0]), int(ends[1]))
        if high - low < BATCH_ROWS or high - low > BATCH_ROWS * 50_000:
            return [""]
        return [f"WHERE rowid BETWEEN {a} AND {a + BATCH_ROWS - 1}" for a in range(low, high + 1, BATCH_ROWS)]

    def _root(self, table: str) -> int:
        """The page at which a table's tree begins."""
        query = f"SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = {_text(table)}"
        return int(str(next(self._rows(query))[0]))

    def _places(self, table: str, columns: Schema) -> dict[str, int]:
        """The number that each column has in the records of a table; ~number where it stands for the row's number."""
        described = list(self._rows(f"PRAGMA table_xinfo({_quoted(table)})"))
        if any(hidden for *_, hidden in described):  # its values may not be in the records
            raise Unfit
        keys = [(name, str(kind).upper()) for _, name, kind, _, _, in_key, _ in described if in_key]
        row = keys[0][0] if len(keys) == 1 and keys[0][1] == "INTEGER" else None
        places = {str(name): int(str(number)) for number, name, *_ in described}
        return {c: ~places[c] if c == row else places[c] for c in columns}

    def _fetch(self, table: str, columns: Schema, where: str, *, numbered: bool) -> pl.DataFrame:
        quoted = [f'CAST("{c}" AS BLOB)' if t == pl.Binary else f'"{c}"' for c, t in columns.items()]
        schema = {**columns, ROW: pl.Int64} if numbered else dict(columns)
        query = f'SELECT {", ".join([*quoted, "rowid"] if numbered else quoted)} FROM "{table}" {where}'
        with self._one_at_a_time:
            try:
                return self._blocks(query, schema)
            except sqlite3.OperationalError as e:
                if "decode" not in str(e):
                    raise self._malformed(f"{table}: {e}") from e
            except sqlite3.DatabaseError as e:
                raise self._malformed(f"{table}: {e}") from e
            try:
                self._connection.text_factory = lambda b: b.decode("utf-8", "replace")  # slow, and hardly ever needed
                return self._blocks(query, schema)
            except sqlite3.DatabaseError as e:
                raise self._malformed(f"{table}: {e}") from e
            finally:
                self._connection.text_factory = str

    def _blocks(self, query: str, schema: Schema) -> pl.DataFrame:
        cursor = self._connection.execute(query)
        blocks = []
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            columns = zip(*rows, strict=True)
            blocks.append(pl.DataFrame([_series(n, v, t) for (n, t), v in zip(schema.items(), columns, strict=True)]))
        return tidy(pl.concat(blocks)) if blocks else pl.DataFrame(schema=dict(schema))


def _in_threads(make: Callable[[Part], Made], parts: Iterable[Part]) -> Iterator[Made]:
    """What is made of each part, in order."""
    with ThreadPoolExecutor(_THREADS) as pool:
        pending: deque[Future[Made]] = deque()
        try:
            for part in parts:
                pending.append(pool.submit(make, part))
                if len(pending) > _AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _series(name: str, values: tuple[object, ...], dtype: pl.DataType | type[pl.DataType]) -> pl.Series:
    """A column of a block. SQLite does not enforce types: what does not fit becomes null."""
    try:
        return pl.Series(name, values, dtype=dtype)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series(name, values, dtype=dtype, strict=False)

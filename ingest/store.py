"""The store: one DuckDB file with the tables of `ingest.schema`. Opening, loading and replacing traces."""

import contextlib
import datetime
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl

from tracegap.ingest.errors import StoreBusy, StoreError
from tracegap.ingest.forms import Splitter
from tracegap.ingest.relation import FORM
from tracegap.ingest.schema import BY_NAME, FORMS_OF, OF_RUN, OF_TRACE, PARTS, SCHEMA_VERSION, SPLITS

DEFAULT_STORE = "tracegap.duckdb"
"""Used where neither an argument nor TRACEGAP_STORE names a store."""
_ROW_GROUP = 122_880  # rows that DuckDB compresses together
_AT_ONCE = 2  # row groups of a statement: DuckDB compresses each on a thread of its own
_UNDER_WAY = 2  # statements that wait to be run
LOADING_MEMORY = "100MB"
"""Little, while rows are loaded: they go to disk row group by row group, and nobody reads them yet."""
# DuckDB 1.5 and 2.0 read each other's files; from 1.3 on a text column takes two thirds of the time that it took.
_COMPATIBILITY = {"storage_compatibility_version": "v1.4.0"}
SQL_DIR = Path(__file__).parent / "sql"


def store_path(given: str | os.PathLike[str] | None = None) -> Path:
    """The store that was asked for, else that of TRACEGAP_STORE, else `tracegap.duckdb` here."""
    return Path(given or os.environ.get("TRACEGAP_STORE") or DEFAULT_STORE)


class _Arrow:
    """A polars frame as DuckDB takes it without pyarrow: zero copy."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame = frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.frame.__arrow_c_stream__(requested_schema)


def require_store(path: str | os.PathLike[str] | None = None) -> None:
    """Raises StoreError where there is no store yet."""
    file = store_path(path)
    if not file.exists():
        raise StoreError(f"{file}: no such store; make one with `tracegap ingest PATH` or name it with --store")


@contextlib.contextmanager
def open_store(
    path: str | os.PathLike[str] | None = None, *, read_only: bool = False, wait_s: float = 30.0
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to the store; made with all its tables where it does not exist.

    DuckDB lets one process write and shuts all others out meanwhile, so open late and close early.

    Args:
        path: the file; see `store_path`.
        read_only: other readers may have it open at the same time; the file must exist.
        wait_s: how long to wait for a process that holds it, seconds.

    Raises:
        StoreError: it is held, is of another version, is no store, or is missing (read-only).
    """
    file = store_path(path)
    if read_only:
        require_store(file)
    con = _connect(file, read_only, wait_s)
    try:
        _check_version(con, file, read_only)
        yield con
    finally:
        con.close()


def _connect(file: Path, read_only: bool, wait_s: float) -> duckdb.DuckDBPyConnection:
    end = time.monotonic() + wait_s
    if not read_only:
        file.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            return duckdb.connect(str(file), read_only=read_only, config=dict(_COMPATIBILITY) if not read_only else {})
        except duckdb.IOException as e:
            if "lock" not in str(e).lower():
                raise StoreError(f"{file}: cannot be opened as a store: {_first_line(e)}") from e
            if time.monotonic() > end:
                raise StoreBusy(f"{file}: another process holds the store; try again when it has finished") from e
            time.sleep(0.05)
        except duckdb.Error as e:
            raise StoreError(f"{file}: cannot be opened as a store: {_first_line(e)}") from e


def _first_line(e: Exception) -> str:
    return str(e).splitlines()[0]


def _check_version(con: duckdb.DuckDBPyConnection, file: Path, read_only: bool) -> None:
    tables = {r[0] for r in con.execute("select table_name from duckdb_tables()").fetchall()}
    if not tables and not read_only:
        con.execute("begin").fetchall()
        make_tables(con)
        con.execute("create table store_version (version bigint)").fetchall()
        con.execute("insert into store_version values (?)", [SCHEMA_VERSION]).fetchall()
        con.execute("commit").fetchall()
        return
    if "store_version" not in tables:
        raise StoreError(f"{file}: a DuckDB file, but not a store of tracegap")
    version = con.execute("select max(version) from store_version").fetchall()[0][0]
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{file}: a store of version {version}, this tracegap has {SCHEMA_VERSION}; ingest the traces into a new one"
        )


def make_tables(con: duckdb.DuckDBPyConnection) -> None:
    """The empty tables and views of `ingest.schema`."""
    for part in PARTS:
        con.execute(part.ddl()).fetchall()


def insert(con: duckdb.DuckDBPyConnection, relation: str, frame: pl.DataFrame) -> None:
    """Appends a frame; its columns are a subset of those of the table or split view, the others become NULL."""
    if len(frame):
        first = _free_forms(con)
        for table, part in Splitter().parts(relation, frame, {}):
            _insert(con, table, _renumbered(table, part, first))


def _insert(con: duckdb.DuckDBPyConnection, table: str, frame: pl.DataFrame) -> None:
    source = _Arrow(frame)  # found by name through DuckDB's replacement scan
    con.execute(f"insert into {table} by name select * from source").fetchall()
    del source


def _free_forms(con: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """By table that numbers forms: the first number that is free."""
    first: dict[str, int] = {}
    for split in SPLITS.values():
        ((free,),) = con.execute(f"select coalesce(max({FORM}) + 1, 0) from {split.forms.name}").fetchall()
        first |= {split.forms.name: free, split.rows.name: free}
    return first


def _renumbered(table: str, frame: pl.DataFrame, first: Mapping[str, int]) -> pl.DataFrame:
    """A frame with the forms that it counts from 0 as the store counts them."""
    return frame.with_columns(pl.col(FORM) + pl.lit(first[table], dtype=pl.Int32)) if first.get(table) else frame


def update(con: duckdb.DuckDBPyConnection, table: str, frame: pl.DataFrame) -> None:
    """Sets columns of the rows that have the key of a row of the frame; it has the key and what to set."""
    if len(frame):
        key = BY_NAME[table].key
        source = _Arrow(frame)  # found by name through DuckDB's replacement scan
        sets = ", ".join(f"{name} = source.{name}" for name in frame.columns if name not in key)
        same = " and ".join(f"{table}.{name} = source.{name}" for name in key)
        con.execute(f"update {table} set {sets} from source where {same}").fetchall()
        del source


@contextlib.contextmanager
def memory_limit(con: duckdb.DuckDBPyConnection, limit: str) -> Iterator[None]:
    """Lets DuckDB keep no more than `limit`, as its setting says it ("100MB"); what it needs beyond goes to disk."""
    ((usual,),) = con.execute("select current_setting('memory_limit')").fetchall()
    con.execute(f"set memory_limit = '{limit}'").fetchall()
    try:
        yield
    finally:
        con.execute(f"set memory_limit = '{usual}'").fetchall()


class Appender:
    """Appends frames to tables on a thread of its own, so that the next frame is made meanwhile.

    What it is given is of one trace. Rows go in whole row groups, what is left over waits for the next frame of its table:
    DuckDB would write a group that one statement begins and another one fills twice. Until the block ends the connection
    must not be used.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        """Into the tables of a store."""
        self._con = con
        self._splitter = Splitter()
        self._first = _free_forms(con)
        self._left: dict[str, pl.DataFrame] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._running: list[Future[None]] = []

    def __enter__(self) -> "Appender":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._wait()
                for table, frame in self._left.items():
                    self._submit(table, frame)
                self._wait()
        finally:
            self._thread.shutdown()

    def add(self, table: str, frame: pl.DataFrame, **same: str | int | None) -> None:
        """Appends a frame as `insert` does, with columns `same` of one value. Waits where too much is under way."""
        if len(frame):
            for name, part in self._splitter.parts(table, frame, same):
                self._add(name, _renumbered(name, part, self._first))

    def _add(self, table: str, frame: pl.DataFrame) -> None:
        if table in self._left:
            frame = pl.concat([self._left.pop(table), frame], how="vertical_relaxed")
        size = _AT_ONCE * _ROW_GROUP
        whole = len(frame) - len(frame) % size
        for first in range(0, whole, size):
            groups = [frame.slice(at, _ROW_GROUP) for at in range(first, first + size, _ROW_GROUP)]
            self._submit(table, pl.concat(groups, rechunk=False))
        if whole < len(frame):  # a slice would hold the whole frame
            self._left[table] = frame[np.arange(whole, len(frame))] if whole else frame

    def _submit(self, table: str, frame: pl.DataFrame) -> None:
        if len(self._running) == _UNDER_WAY:
            self._running.pop(0).result()
        self._running.append(self._thread.submit(_insert, self._con, table, frame))

    def _wait(self) -> None:
        while self._running:
            self._running.pop(0).result()


def insert_row(con: duckdb.DuckDBPyConnection, table: str, row: Mapping[str, Any]) -> None:
    """Appends one row; JSON columns take any value."""
    types = {c.name: c.type for c in BY_NAME[table].columns}
    values = [json.dumps(v, default=str) if types[k] == "JSON" and v is not None else v for k, v in row.items()]
    marks = ", ".join("?" * len(values))
    con.execute(f"insert into {table} ({', '.join(row)}) values ({marks})", values).fetchall()


@contextlib.contextmanager
def transaction(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """All or nothing."""
    con.execute("begin").fetchall()
    try:
        yield
    except BaseException:
        con.execute("rollback").fetchall()
        raise
    con.execute("commit").fetchall()


def remove_trace(con: duckdb.DuckDBPyConnection, trace_id: str) -> None:
    """Removes every row of a trace."""
    for table, forms in FORMS_OF.items():
        con.execute(
            f"delete from {table} where {FORM} in (select {FORM} from {forms} where trace_id = ?)", [trace_id]
        ).fetchall()
    for table in ("traces", *OF_TRACE):
        con.execute(f"delete from {table} where trace_id = ?", [trace_id]).fetchall()


def set_calibration(con: duckdb.DuckDBPyConnection, run_ids: Sequence[str], rows: list[dict[str, Any]]) -> None:
    """Gives runs measured ceilings, in place of earlier ones; where they differ theory has to be joined again."""
    text = json.dumps(rows)
    for run_id in run_ids:
        con.execute(
            "update runs set calibration = $text::json, evaluated_at = null "
            "where run_id = $run_id and calibration is distinct from $text::json",
            {"text": text, "run_id": run_id},
        ).fetchall()


def remove_empty_runs(con: duckdb.DuckDBPyConnection) -> None:
    """Removes runs that have no trace any more, with what was worked out for them."""
    for table in OF_RUN:
        con.execute(f"delete from {table} where run_id not in (select run_id from traces)").fetchall()


def now() -> datetime.datetime:
    """The present, as the store has times: naive UTC."""
    return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hexadecimal; of a folder, that of the hashes of its files in order of name."""
    if path.is_dir():
        hashes = [sha256_of(file) for file in sorted(path.iterdir()) if file.is_file()]
        return hashlib.sha256("\n".join(hashes).encode()).hexdigest()
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def frame_of(
    con: duckdb.DuckDBPyConnection, sql: str, params: list[Any] | dict[str, Any] | None = None
) -> pl.DataFrame:
    """The rows of a query as a polars frame; HUGEINT sums come as BIGINT."""
    return pl.DataFrame(con.sql(sql, params=params or None))

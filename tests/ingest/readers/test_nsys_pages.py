"""Tables of SQLite decoded from their pages, against what SQLite itself reads."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from tracegap.ingest.readers import _nsys_pages
from tracegap.ingest.readers._nsys_pages import Pages
from tracegap.ingest.readers._nsys_records import Unfit

COLUMNS = {"a": pl.Int64, "text": pl.String, "b": pl.Int64, "f": pl.Float64}
PLACES = {"a": 0, "text": 2, "b": 3, "f": 4}


def row(draw: random.Random, longest: int) -> tuple[object, ...]:
    whole = draw.choice(
        [0, 1, 2, 127, 128, -129, 1 << 15, -(1 << 23), 1 << 31, -(1 << 47) - 1, (1 << 63) - 1, -(1 << 63)]
    )
    text = draw.choice([None, "", "é", "x" * draw.randrange(longest)])
    return whole, b"x" * draw.randrange(80), text, draw.choice([None, whole]), draw.choice([None, 0, 7, -2.5, 1e300])


def table(path: Path, rows: int, page_bytes: int = 4096, longest: int = 300) -> list[tuple[object, ...]]:
    """A table t whose pages lie among those of another, with holes in its row numbers; its rows as SQLite reads them."""
    draw = random.Random(rows)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {page_bytes}")
        db.execute("CREATE TABLE t (a INTEGER, other BLOB, text TEXT, b INTEGER, f REAL, last TEXT)")
        db.execute("CREATE TABLE u (n INTEGER)")
        db.execute("BEGIN")
        for n in range(rows):
            db.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?, 'x')", row(draw, longest))
            db.executemany("INSERT INTO u VALUES (?)", [(n,)] * draw.randrange(6))
        db.execute("DELETE FROM t WHERE rowid % 7 = 3")
        db.execute("COMMIT")
        return db.execute("SELECT a, nullif(text, ''), b, f, rowid FROM t ORDER BY rowid").fetchall()


def root(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()[0])


def decoded(
    path: Path, columns: dict[str, object] = COLUMNS, places: dict[str, int] = PLACES
) -> tuple[list[object], list[int]]:
    rows: list[object] = []
    left_out = []
    with closing(Pages(path)) as pages:
        for part in pages.parts(root(path)):
            frame, further = pages.fetch(part, columns, places)  # type: ignore[arg-type]
            assert part.low < part.high
            rows += frame.rows()
            left_out += further
    return rows, left_out


@pytest.mark.parametrize("page_bytes", [512, 1024, 4096, 65536])
@pytest.mark.parametrize("rows", [0, 1, 40, 3000])
def test_rows_are_those_that_sqlite_reads(tmp_path, monkeypatch, rows, page_bytes):
    monkeypatch.setattr(_nsys_pages, "_PART_BYTES", 8192)
    read = table(tmp_path / "t.sqlite", rows, page_bytes)
    got, left_out = decoded(tmp_path / "t.sqlite")
    assert got == [r for r in read if r[-1] not in set(left_out)]
    assert not left_out


def test_records_over_several_pages_are_left_out(tmp_path):
    read = table(tmp_path / "t.sqlite", 200, longest=20_000)
    got, left_out = decoded(tmp_path / "t.sqlite")
    assert sorted([*(r[-1] for r in got), *left_out]) == [r[-1] for r in read]  # type: ignore[index]
    assert 20 < len(left_out) < 100


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE t (a INTEGER, b TEXT, PRIMARY KEY (a)) WITHOUT ROWID; INSERT INTO t VALUES (1, 'x')",
        "CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1); ALTER TABLE t ADD COLUMN b TEXT DEFAULT 'x'",
        "CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t VALUES ('word', 'x')",
        "CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t VALUES (1.5, 'x')",
        "CREATE TABLE t (a INTEGER, b); INSERT INTO t VALUES (1, 2)",
        "CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t VALUES (1, x'00')",
        "CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t VALUES (1, CAST(x'4aff' AS TEXT))",
        "PRAGMA encoding = 'UTF-16le'; CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t VALUES (1, 'x')",
        "CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t (rowid, a) VALUES (-5, 1)",
    ],
)
def test_what_it_does_not_know_is_left_to_sqlite(tmp_path, made):
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as db:
        db.executescript(made)
    with pytest.raises(Unfit):
        decoded(tmp_path / "t.sqlite", {"a": pl.Int64, "b": pl.String}, {"a": 0, "b": 1})


def test_a_column_that_stands_for_the_row_number(tmp_path):
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as db:
        db.executescript("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); INSERT INTO t VALUES (7, 'x'), (9, 'y')")
    columns = {"a": pl.Int64, "b": pl.String}
    assert decoded(tmp_path / "t.sqlite", columns, {"a": ~0, "b": 1})[0] == [(7, "x", 7), (9, "y", 9)]


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_noticed_or_read_as_sqlite_reads_it(tmp_path, seed):
    path = tmp_path / "t.sqlite"
    table(path, 300, 512, 60)
    draw = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 20])):
        data[draw.randrange(512, len(data))] = draw.randrange(256)
    path.write_bytes(data)
    try:
        got, left_out = decoded(path)
    except (Unfit, sqlite3.DatabaseError):
        return
    with closing(sqlite3.connect(path)) as db:
        read = db.execute("SELECT a, nullif(text, ''), b, f, rowid FROM t").fetchall()
    assert got == [r for r in read if r[-1] not in set(left_out)]

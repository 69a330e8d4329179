"""Exports of `nsys export --type parquetdir`: a folder with a Parquet file a table, named after it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl

from tracegap.ingest.errors import TraceError
from tracegap.ingest.naming import is_table_folder
from tracegap.ingest.readers._nsys_export import BATCH_ROWS, ROW, Export, Made, Schema, tidy


class Folder(Export):
    """A Parquet export, open for reading."""

    def __init__(self, path: Path) -> None:
        """Looks at the tables in `path`.

        Raises:
            TraceError: foreign: none of the tables that mark an export is there.

        """
        self._path = path
        self.columns, self.damaged = {}, {}
        if not is_table_folder(path):
            raise TraceError(str(path), "this folder is no Parquet export of Nsight Systems", code="foreign")
        for file in sorted(path.glob("*.parquet")):
            try:
                self.columns[file.stem] = list(pl.read_parquet_schema(file))
            except (pl.exceptions.PolarsError, OSError) as e:
                self.damaged[file.stem] = str(e).split("\n", 1)[0]

    def close(self) -> None:
        """Nothing is held open."""

    def count(self, table: str) -> int:
        """Rows of a table; 0 where there is none."""
        return int(self._collect(table, self._scan(table).select(pl.len())).item()) if table in self.columns else 0

    def pick(self, table: str, columns: Schema, rows: list[int]) -> pl.DataFrame:
        """ROW and the wanted columns of the rows with these numbers, in order."""
        found = self.read(table, columns).with_row_index(ROW).with_columns(pl.col(ROW).cast(pl.Int64))
        return found[rows]

    def _batches(
        self, table: str, columns: Schema, prepare: Callable[[pl.DataFrame], Made], *, numbered: bool
    ) -> Iterator[Made]:
        wanted = self._scan(table).select(pl.col(c).cast(t, strict=False) for c, t in columns.items())
        if numbered:
            wanted = wanted.with_row_index(ROW).with_columns(pl.col(ROW).cast(pl.Int64))
        for at in range(0, self.count(table), BATCH_ROWS):
            yield prepare(tidy(self._collect(table, wanted.slice(at, BATCH_ROWS))))

    def _scan(self, table: str) -> pl.LazyFrame:
        return pl.scan_parquet(self._path / f"{table}.parquet", glob=False)

    def _collect(self, table: str, query: pl.LazyFrame) -> pl.DataFrame:
        try:
            return query.collect()
        except (pl.exceptions.PolarsError, OSError) as e:
            what = str(e).split("\n", 1)[0]
            raise TraceError(
                str(self._path), f"{table}.parquet: {what}", code="malformed", todo="copy or export it again"
            ) from e

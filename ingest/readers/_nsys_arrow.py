"""Rows of a SQLite table as columns, through ADBC's driver. It types a column by what it meets first."""

from typing import Any

import polars as pl

from tracegap.ingest.readers._nsys_export import ROW, Schema, tidy

try:
    import adbc_driver_manager as adbc
    import adbc_driver_sqlite
except ImportError:  # it is not built for every platform: rows come one by one there
    THERE = False
else:
    THERE = True

_ROWS_AT_ONCE = 1 << 14


class Columns:
    """A connection of its own, for one thread."""

    def __init__(self, uri: str) -> None:
        """Opens a database that is known to be one."""
        self._uri = uri
        self._connection: Any = None

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
            self._database.close()

    def _connected(self) -> Any:
        if self._connection is None:
            self._database = adbc.AdbcDatabase(driver=adbc_driver_sqlite._driver_path(), uri=self._uri)
            self._connection = adbc.AdbcConnection(self._database)
        return self._connection

    def fetch(self, table: str, columns: Schema, where: str, *, numbered: bool) -> pl.DataFrame | None:
        """The columns and ROW of the rows for which `where` holds; None where something does not fit its column's type."""
        if not THERE or pl.Binary in columns.values():
            return None
        # the driver checks no encoding: texts come as bytes, and polars looks at them
        quoted = [f"CAST(COALESCE(\"{c}\", '') AS BLOB)" if t == pl.String else f'"{c}"' for c, t in columns.items()]
        wanted = ", ".join([*quoted, "rowid"] if numbered else quoted)
        schema = {**columns, ROW: pl.Int64} if numbered else dict(columns)
        try:
            statement = adbc.AdbcStatement(self._connected())
            try:
                statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_ROWS_AT_ONCE)})
                statement.set_sql_query(f'SELECT {wanted} FROM "{table}" {where}')
                stream, _ = statement.execute_query()
                frame = pl.DataFrame(stream)
            finally:
                statement.close()
            frame.columns = list(schema)
            texts = [c for c, t in schema.items() if t == pl.String and frame[c].dtype == pl.Binary]
            floats = [c for c, t in schema.items() if t == pl.Float64 and frame[c].dtype == pl.Int64]
            frame = tidy(frame.with_columns(pl.col(texts).cast(pl.String), pl.col(floats).cast(pl.Float64)))
        except (adbc.Error, pl.exceptions.PolarsError):
            return None
        return frame if dict(frame.schema) == schema else None

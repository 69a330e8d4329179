"""The store in a notebook: `from tracegap import open_store`. Queries in, polars frames out."""

import os
from typing import Any

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.ingest.errors import StoreError


class Store:
    """An open store, read-only: others may read it meanwhile, and ingest once it is closed."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        """Opens it; see `ingest.store.store_path`."""
        self._context = store.open_store(path, read_only=True)
        self._con: duckdb.DuckDBPyConnection | None = self._context.__enter__()

    def sql(self, query: str, **values: Any) -> pl.DataFrame:
        """The rows of a query; `values` are those of its parameters `$name`. JSON columns are text.

        Raises:
            StoreError: the store was closed.
        """
        if self._con is None:
            raise StoreError("the store is closed; open it again")
        return pl.DataFrame(self._con.sql(query, params=values or None))

    @property
    def runs(self) -> pl.DataFrame:
        """The runs, the latest first."""
        return self.sql("select * from runs order by started_at desc nulls last, run_id")

    def steps(self, run_id: str) -> pl.DataFrame:
        """The waterfall of each step of a run on each device: rows of `step_gap`."""
        return self.sql("select * from step_gap where run_id = $run_id order by step, rank, device_id", run_id=run_id)

    def close(self) -> None:
        """Lets others write."""
        if self._con is not None:
            self._con = None
            self._context.__exit__(None, None, None)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_store(path: str | os.PathLike[str] | None = None) -> Store:
    """Opens a store for questions.

    Args:
        path: the store; else the variable TRACEGAP_STORE, else `tracegap.duckdb` here.

    Raises:
        StoreError: there is none, it is held by a writer, or it is of another version.
    """
    return Store(path)

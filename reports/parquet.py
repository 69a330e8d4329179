"""Runs as a folder of Parquet files: one for each table and view, with the rows of those runs."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import duckdb

from tracegap.ingest.schema import BY_NAME
from tracegap.models.errors import TracegapError
from tracegap.reports.dictionary import relations


def write(con: duckdb.DuckDBPyConnection, run_ids: Sequence[str], out: Path) -> dict[str, int]:
    """Writes the public tables and views into a new folder; rows by file name.

    Raises:
        TracegapError: the folder is there already, or no such run.
    """
    if out.exists():
        raise TracegapError(f"{out}: is there already; name a new folder")
    known = {r[0] for r in con.execute("select run_id from runs").fetchall()}
    unknown = [run_id for run_id in run_ids if run_id not in known]
    if unknown:
        raise TracegapError(f"{unknown[0]}: no such run in the store")
    temporary = out.with_name(out.name + ".part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    written = {}
    for relation in relations():
        names = {r[0] for r in con.execute(f"describe {relation.name}").fetchall()}
        where = (
            "where list_contains($runs, run_id)"
            if "run_id" in names
            else "where trace_id in (select trace_id from traces where list_contains($runs, run_id))"
            if "trace_id" in names
            else ""
        )
        order = (
            f" order by {', '.join(BY_NAME[relation.name].key)}"
            if relation.name in BY_NAME and BY_NAME[relation.name].key
            else ""
        )
        rows = con.sql(
            f"select * from {relation.name} {where}{order}", params={"runs": list(run_ids)} if where else None
        )
        rows.write_parquet(str(temporary / f"{relation.name}.parquet"), compression="zstd")
        written[relation.name] = rows.count("*").fetchall()[0][0]
    temporary.replace(out)
    return written

"""Measured ceilings of the run's devices, from its calibration; the most particular row of each kind holds."""

import json
from typing import Any

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.models.units import GB, TERA
from tracegap.reports.stage import Run

ORDER = 5
TABLES = ("ceilings",)


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills ceilings."""
    said = con.execute("select calibration from runs where run_id = ?", [run.run_id]).fetchall()[0][0]
    devices = con.execute(
        "select d.trace_id, d.device_id, d.hardware from devices d join traces t using (trace_id) where t.run_id = ?",
        [run.run_id],
    ).fetchall()
    rows = []
    # A row for the part goes before one for any part, a later one before an earlier
    given = sorted(json.loads(said or "[]"), key=lambda row: "hardware" in row)
    for trace_id, device_id, part in devices:
        best = {
            (row["kind"], row.get("dtype"), row.get("collective")): row
            for row in given
            if row.get("hardware") in (None, part)
        }
        rows += [
            {
                "trace_id": trace_id, "device_id": device_id, "kind": kind, "dtype": dtype, "collective": collective,
                "flops_per_s": row["tflops"] * TERA if kind == "matmul" else None,
                "bytes_per_s": row["gb_per_s"] * GB if kind != "matmul" else None, "source": row.get("source"),
            }
            for (kind, dtype, collective), row in best.items()
        ]  # fmt: skip
    schema: dict[str, Any] = dict.fromkeys(
        ("trace_id", "device_id", "kind", "dtype", "collective", "source"), pl.String
    )
    numbers = dict.fromkeys(("flops_per_s", "bytes_per_s"), pl.Float64)
    store.insert(con, "ceilings", pl.DataFrame(rows, schema=schema | numbers))

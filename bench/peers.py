"""What is measured, each in a process of its own: this project and what it is measured against.

Usage: python bench/peers.py NAME ARGUMENT...

The Python need not be the project's: each imports what it needs when it is called.
"""

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

_DEVICE = "start, end, deviceId, streamId, correlationId, globalPid"
_NSYS = {
    "StringIds": "id, value",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_DEVICE}, demangledName, shortName, graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_DEVICE}, bytes, copyKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_DEVICE}, bytes",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, globalTid, nameId, correlationId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start, end, globalPid, correlationId, syncType",
    "NVTX_EVENTS": "start, end, eventType, globalTid, textId, domainId, text",
}
"""What tracegap reads of the tables that have a row for an event."""


def tracegap(workers: str, *paths: str) -> None:
    """Reads traces into a new store: accounted, and ready for questions."""
    from tracegap.ingest.pipeline import ingest_paths
    from tracegap.ingest.store import open_store

    with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "store.duckdb") as con:
        results = ingest_paths(con, paths, workers=int(workers))
    if bad := [r.error or r.status for r in results if r.status != "ok"]:
        sys.exit(f"not read whole: {bad}")


def command(workers: str, *paths: str) -> None:
    """`tracegap ingest`: the same, and what each operation should have cost."""
    from tracegap.flows.cli import main

    with tempfile.TemporaryDirectory() as folder:
        status = main(["ingest", "--workers", workers, "--store", f"{folder}/store.duckdb", *paths])
    sys.exit(status)


def into(store: str, *paths: str) -> None:
    """Reads traces into a store that stays, by one process; an older one is replaced."""
    from tracegap.ingest.pipeline import ingest_paths
    from tracegap.ingest.store import open_store

    Path(store).unlink(missing_ok=True)
    with open_store(store) as con:
        results = ingest_paths(con, paths, workers=1)
    if bad := [r.error or r.status for r in results if r.status != "ok"]:
        sys.exit(f"not read whole: {bad}")


def evaluate(store: str) -> None:
    """Joins the runs of a store with theory and finds what is worth a look; says how long each part took."""
    import logging

    from tracegap.ingest.store import open_store
    from tracegap.reports import join

    logging.basicConfig(format="%(message)s")
    logging.getLogger("tracegap").setLevel(logging.DEBUG)
    with open_store(store) as con:
        for (run_id,) in con.execute("select run_id from runs").fetchall():
            join.evaluate(con, run_id)


def orjson_loads(path: str) -> None:
    """The text of a JSON file as Python objects, nothing more."""
    import orjson

    orjson.loads(Path(path).read_bytes())


def json_load(path: str) -> None:
    """The same by the standard library."""
    import json

    with Path(path).open() as f:
        json.load(f)


def hta(path: str) -> None:
    """HolisticTraceAnalysis: one file, and its temporal breakdown."""
    analysis: Any = importlib.import_module("hta.trace_analysis")
    analysis.TraceAnalysis(trace_files={0: path}, trace_dir=str(Path(path).parent)).get_temporal_breakdown(
        visualize=False
    )


def protobuf(path: str) -> None:
    """XSpace by protobuf: kind, offset and duration of each event as Python numbers."""
    from tracegap.ingest.readers._xplane_wire import PROTO

    space = PROTO["XSpace"].FromString(Path(path).read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            [(e.metadata_id, e.offset_ps, e.duration_ps) for e in line.events]


def xspace_to_parquet(path: str) -> None:
    """XSpace by XProf's own converter."""
    name = "xprof.convert.events_db.python.pywrap_events_db_c_api"
    with tempfile.TemporaryDirectory() as folder:
        importlib.import_module(name).xspace_to_parquet(input_path=path, output_path=f"{folder}/events.parquet")


def duckdb_sqlite(path: str) -> None:
    """The columns that tracegap reads of an Nsight export, by DuckDB's extension into a DuckDB file."""
    duckdb: Any = importlib.import_module("duckdb")
    package = importlib.import_module("duckdb_extension_sqlite_scanner")
    (extension,) = Path(package.__path__[0]).rglob("*.duckdb_extension")
    with tempfile.TemporaryDirectory() as folder, duckdb.connect(f"{folder}/store.duckdb") as con:
        con.execute(f"load '{extension}'")
        con.execute(f"attach '{path}' as export (type sqlite, read_only)")
        for table, columns in _NSYS.items():
            quoted = ", ".join(f'"{column}"' for column in columns.split(", "))
            con.execute(f"create table {table} as select {quoted} from export.{table}")


OURS = (command, evaluate, into, tracegap)
OTHERS = (duckdb_sqlite, hta, json_load, orjson_loads, protobuf, xspace_to_parquet)
PEERS = {f.__name__: f for f in (*OURS, *OTHERS)}

if __name__ == "__main__":
    PEERS[sys.argv[1]](*sys.argv[2:])

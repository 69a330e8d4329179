"""What the suites measure: traces in a store of their own, read and accounted by tracegap, asked through its tables."""

import contextlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl

from tracegap.ingest import account
from tracegap.ingest.intervals import Cover, Ints, union
from tracegap.ingest.pipeline import Ingested, find_traces, ingest_paths
from tracegap.ingest.steps import NO_KERNEL
from tracegap.ingest.store import frame_of, open_store
from tracegap.models.ops import OpClass
from tracegap.reports import join

DOCUMENTS = ("case.json", "expected.json", "truth.json", "history.json", "model.json", "run.json", "datasheet.json")
"""JSON files of a case that are no traces."""


@dataclass(frozen=True)
class Subject:
    """Some traces of one store; narrowed to one file, device or rank where a key asks for it."""

    con: duckdb.DuckDBPyConnection
    folder: Path
    results: tuple[Ingested, ...]
    device_id: str | None = None
    part: str | None = None
    """Name of the part of the case's documents that is meant."""
    ops_from: str = field(default="ops")
    """Table or view that `ops` is read from."""

    # ------------------------------------------------------------------------------------------ narrowing

    def file(self, name: str) -> "Subject":
        """One file alone."""
        return replace(self, results=tuple(r for r in self.results if Path(r.path).name == name))

    def rank(self, rank: str) -> "Subject":
        """One rank alone."""
        return replace(self, results=tuple(r for r in self.results if str(r.rank) == rank))

    def joined(self) -> "Subject":
        """With operations as they come out of the join with theory."""
        return replace(self, ops_from="op_gap")

    def narrowed_to(self, *, part: str | None, device_id: str | None) -> "Subject":
        """A part of the documents, or one device."""
        return replace(self, part=part, device_id=device_id)

    def narrowed(self, name: str) -> "Subject":
        """One file, device or rank, by its name."""
        if (self.folder / name).exists():
            return self.file(name)
        if name in self.table("devices")["device_id"].to_list():
            return replace(self, device_id=name)
        return self.rank(name)

    # ------------------------------------------------------------------------------------------ rows

    @property
    def trace_ids(self) -> list[str]:
        """The traces that could be read."""
        return [r.trace_id for r in self.results if r.trace_id is not None]

    @property
    def run_ids(self) -> list[str]:
        """Runs of the traces, in order of first mention."""
        return list(dict.fromkeys(r.run_id for r in self.results if r.run_id is not None))

    def table(self, name: str) -> pl.DataFrame:
        """Rows of a table or view that belong to the subject."""
        frame = frame_of(self.con, f"select * from {name} where list_contains($1, trace_id)", [self.trace_ids])
        if self.device_id is not None and "device_id" in frame.columns:
            frame = frame.filter(pl.col("device_id") == self.device_id)
        return frame

    @cached_property
    def traces(self) -> list[dict[str, Any]]:
        """Rows of `traces`, in the order of the files."""
        rows = {row["trace_id"]: row for row in self.table("traces").to_dicts()}
        return [rows[trace_id] for trace_id in self.trace_ids]

    @cached_property
    def facts(self) -> list[dict[str, Any]]:
        """Counts of the raw file, a trace."""
        return [json.loads(trace["facts"]) for trace in self.traces]

    def fact(self, name: str) -> Any:
        """Sum of a fact over the traces; 0 where none could be read; None where it is not known."""
        values = [facts.get(name) for facts in self.facts]
        return None if None in values else sum(values)

    @cached_property
    def diagnostics(self) -> list[dict[str, Any]]:
        """What the readers report of the files, worst first."""
        stored = [row for trace in self.traces for row in json.loads(trace["diagnostics"])]
        failed = [row | {"severity": "error"} for r in self.results if r.status == "failed" for row in r.diagnostics]
        return sorted([*failed, *stored], key=lambda row: ("error", "data_loss", "info").index(row["severity"]))

    def diagnosed(self, *codes: str) -> int:
        """How often the readers report any of the codes."""
        return sum(row["count"] for row in self.diagnostics if row["code"] in codes)

    @cached_property
    def ops(self) -> pl.DataFrame:
        """Device work in the order of the files; none of it on a CPU, where there are no kernels."""
        devices = self.table("devices").select("trace_id", "device_id", "kind")
        order = pl.DataFrame(
            {"trace_id": self.trace_ids, "file": range(len(self.trace_ids))}, schema_overrides={"trace_id": pl.String}
        )
        ops = self.table(self.ops_from).join(devices, on=("trace_id", "device_id")).filter(pl.col("kind") != "cpu")
        ops = ops.join(order, on="trace_id").with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
        return ops.sort("file", "op_id")

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """Device kernels in the order of the files."""
        return self.ops.filter(~pl.col("op_class").is_in(NO_KERNEL))

    @cached_property
    def comm(self) -> pl.DataFrame:
        """Kernels that communicate."""
        return self.ops.filter(pl.col("op_class") == OpClass.COLLECTIVE)

    @cached_property
    def copies(self) -> pl.DataFrame:
        """Copies in the order of the files."""
        return self.ops.filter(pl.col("op_class") == OpClass.COPY)

    @cached_property
    def host(self) -> pl.DataFrame:
        """Spans of host threads in the order of the files."""
        return self.table("host_events").sort("trace_id", "event_id")

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """Collectives with theory, in the order of their start."""
        return self.table("collective_gap").sort("start_ns", "op_id")

    # ------------------------------------------------------------------------------------------ time

    @cached_property
    def states(self) -> dict[str, int]:
        """Time in each state of the account from the first start to the last end, ns; devices added up."""
        total = np.zeros(len(account.WORK_STATES) + 1, dtype=np.int64)
        for _, ops in self.ops.group_by("trace_id", "device_id"):
            starts, ends = spans(ops)
            whole = account.Windows(starts.min(keepdims=True), ends.max(keepdims=True))
            total += account.shares(starts, ends, account.states_of(ops["op_class"]), whole).times[:, 0]
        return dict(zip(("compute", "exposed_comm", "exposed_copy", "idle"), total.tolist(), strict=True))


def spans(ops: pl.DataFrame) -> tuple[Ints, Ints]:
    """Starts and ends."""
    return ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()


def covered_ns(ops: pl.DataFrame) -> int:
    """Length of the union of operations, device by device."""
    total = 0
    for _, mine in ops.group_by("trace_id", "device_id"):
        starts, ends = union(*spans(mine))
        total += int((ends - starts).sum())
    return total


def overlap_ns(some: pl.DataFrame, others: pl.DataFrame) -> int:
    """Length of what both cover, device by device."""
    total = 0
    for (trace_id, device_id), mine in some.group_by("trace_id", "device_id"):
        there = others.filter(pl.col("trace_id") == trace_id, pl.col("device_id") == device_id)
        total += int(Cover.of(*spans(there)).within(*union(*spans(mine))).sum())
    return total


@contextlib.contextmanager
def ingested(folder: Path, paths: Sequence[Path]) -> Any:
    """A subject of files and folders, in a new store with theory joined."""
    files = [p for p in find_traces(paths) if p.name not in DOCUMENTS]
    with tempfile.TemporaryDirectory() as scratch, open_store(Path(scratch) / "suite.duckdb") as con:
        join.install_views(con)
        results = tuple(ingest_paths(con, files))
        join.evaluate_stale(con, [r.run_id for r in results if r.run_id])
        yield Subject(con, folder, results)

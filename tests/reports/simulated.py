"""Jobs of the simulator, ingested and evaluated; and how long their steps really are."""

from pathlib import Path
from typing import Any

import duckdb
from _sim import ddp, folder, fsdp, kineto, pipeline, sets

from tracegap.ingest.pipeline import ingest_paths
from tracegap.ingest.store import open_store
from tracegap.reports import join

START = "2026-09-01T00:00:00Z"


def write(job: Any, into: Path) -> None:
    """The traces of a job and its manifest."""
    into.mkdir(parents=True)
    if isinstance(job, fsdp.Job):
        sets.write_xspace(fsdp.simulate(job), into)
        manifest = sets.FSDP_MANIFEST | {"job": "sim", "run": into.name}
    elif isinstance(job, pipeline.Job):
        for stage in pipeline.simulate(job):
            kineto.write(job, stage, into / f"rank{stage.rank}.pt.trace.json.gz")
        manifest = {
            "job": "sim", "run": into.name, "simulated": True, "started_at": START, "world_size": job.ranks,
            "mesh": {"pipeline": job.ranks},
            "config": {"pipeline.schedule": job.schedule, "pipeline.microbatches": job.microbatches},
        }  # fmt: skip
    else:
        sets.write_kineto(ddp.simulate(job), into)
        manifest = sets.ddp_manifest(job, name="sim", run=into.name, started_at=START, seed=job.seed)
    (into / "manifest.toml").write_text(folder.toml(manifest))


def stored(folder_: Path, store: Path) -> tuple[duckdb.DuckDBPyConnection, str]:
    """A store with the traces of a folder, evaluated; the run's name."""
    with open_store(store) as con:
        results = ingest_paths(con, [folder_])
        join.evaluate_stale(con, [r.run_id for r in results if r.run_id])
    return duckdb.connect(str(store), read_only=True), next(r.run_id for r in results if r.run_id)


def walls_ns(job: Any) -> dict[int, float]:
    """Wall time of each step but the last, mean over devices: from its first kernel to that of the next step."""
    simulate = {fsdp.Job: lambda j: fsdp.simulate(j).chips, pipeline.Job: pipeline.simulate, ddp.Job: ddp.simulate}
    runs = simulate[type(job)](job)
    begins: dict[int, list[int]] = {}
    for run in runs:
        first: dict[int, int] = {}
        for op in run.ops:
            if op.op_class not in ("copy", "memset"):
                first[op.step] = min(first.get(op.step, op.start_ns), op.start_ns)
        for step, ns in first.items():
            begins.setdefault(step, []).append(ns)
    means = {step: sum(ns) / len(ns) for step, ns in begins.items()}
    return {step: means[step + 1] - ns for step, ns in means.items() if step + 1 in means}

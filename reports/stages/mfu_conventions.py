"""Utilisation of the typical step by the conventions of counting that are in use, side by side."""

from collections.abc import Iterator, Mapping
from typing import Any

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.models.conventions import CONVENTIONS
from tracegap.models.errors import TracegapError
from tracegap.models.mesh import sizes
from tracegap.reports import described
from tracegap.reports.stage import Run
from tracegap.reports.stages.step_theory import trained
from tracegap.reports.summary import TYPICAL

ORDER = 65
TABLES = ("mfu_conventions",)

_STEP = f"""
with {TYPICAL},
peak as (
    select min(p.flops_per_s) filter (p.dtype = 'bf16') as bf16
    from peaks p join traces t using (trace_id) where t.run_id = $run_id and p.unit = 'matrix'
)
select
    avg(g.wall_ns) as step_ns, avg(1e9 / g.wall_ns) as steps_per_s, min(g.mfu_dtype) as dtype, avg(s.peak_flops_per_s) as peak,
    avg(s.measured_flops_per_s) as ceiling,
    avg(g.model_flops) as model_flops, min(g.model_flops_source) as source, avg(g.matrix_flops_done) as done,
    avg(w.matrix_math_ns) as matrix_math_ns, bool_and(g.source not in ('whole_trace', 'inferred')) as marked,
    any_value(peak.bf16) as bf16, min(g.mfu_note) as note, min(g.modelled_share_frac) as modelled
from typical g
join step_theory s using (trace_id, device_id, step)
left join step_work w using (trace_id, device_id, step), peak
having count(*) > 0
"""


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills mfu_conventions; of a run without a step nothing."""
    steps = store.frame_of(con, _STEP, {"run_id": run.run_id}).to_dicts()
    if not steps:
        return
    rows = []
    for name, flops, peak, note in (*_described(con, run, steps[0]), *_measured(steps[0])):
        known = flops is not None and peak and steps[0]["step_ns"]
        rows.append(
            {
                "run_id": run.run_id, "convention": name, "flops": flops, "peak_flops_per_s": peak,
                "step_ns": round(steps[0]["step_ns"]), "note": note,
                "utilisation_frac": flops * steps[0]["steps_per_s"] / peak if known else None,
            }
        )  # fmt: skip
    schema = {"run_id": pl.String, "convention": pl.String, "flops": pl.Float64, "peak_flops_per_s": pl.Float64,
              "step_ns": pl.Int64, "utilisation_frac": pl.Float64, "note": pl.String}  # fmt: skip
    store.insert(con, "mfu_conventions", pl.DataFrame(rows, schema=schema))


def _described(
    con: duckdb.DuckDBPyConnection, run: Run, step: Mapping[str, Any]
) -> Iterator[tuple[str, float | None, float | None, str]]:
    """Conventions that count by the description of the model: name, FLOPs on a device, peak, note."""
    try:
        found = described.of(run)
        devices = (
            run.world_size
            or con.execute(
                "select count(distinct (trace_id, device_id)) from steps where run_id = ?", [run.run_id]
            ).fetchall()[0][0]
        )
        missing = (
            "the model is not described" if found is None
            else "tokens_per_step is not in the manifest" if found.tokens_per_step is None
            else "no step is marked" if not step["marked"]
            else "no backward pass ran" if trained(con, run.run_id) is False else None
        )  # fmt: skip
    except TracegapError as e:
        found, missing, devices = None, str(e), 0
    for convention in CONVENTIONS:
        flops, note = None, f"unknown: {missing}"
        if found is not None and missing is None and found.tokens_per_step is not None:
            try:
                tensor = sizes(found.mesh).tensor if found.mesh else 1
                flops, note = convention.flops(found.model, found.tokens_per_step, tensor) / devices, convention.note
            except TracegapError as e:
                note = f"unknown: {e}"
        yield convention.name, flops, step["peak"], note


def _measured(step: Mapping[str, Any]) -> Iterator[tuple[str, float | None, float | None, str]]:
    """What counts by the operations, and against other peaks."""
    done, model, dtype = step["done"], step["model_flops"], step["dtype"]
    least = "" if (step["modelled"] or 0) > 0.9995 else "; a lower bound, some costs are unknown"
    yield "hfu", done, step["peak"], f"matrix FLOPs done, recomputation and padding included: hardware FLOPs{least}"
    own = done / (step["matrix_math_ns"] / 1e9) if done and step["matrix_math_ns"] else None
    note = "model FLOPs, each matrix product held against the peak of its own dtype"
    yield "own_dtype_peaks", model, own, note if model is not None else f"unknown: {step['note']}"
    if step["ceiling"]:
        yield (
            "measured_ceiling",
            model,
            step["ceiling"],
            f"model FLOPs against the best {dtype} matrix product of the calibration",
        )
    if dtype not in (None, "bf16") and step["bf16"]:
        yield (
            "bf16_peak",
            model,
            step["bf16"],
            f"model FLOPs against the bf16 peak, though most are in {dtype}: may exceed 1",
        )

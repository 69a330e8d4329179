"""Model FLOPs of each step, where they come from, and the peak that MFU is taken against."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.models import transformer
from tracegap.models.errors import TracegapError
from tracegap.reports import described, people
from tracegap.reports.stage import Run

ORDER = 50
TABLES = ("step_theory",)

MOST_UNKNOWN = 0.05
"""Part of compute time that may hide matrix products of unknown FLOPs, up to which FLOPs done still stand for the model's."""
_SCHEMA = {
    "trace_id": pl.String, "device_id": pl.String, "step": pl.Int64, "model_flops": pl.Int64,
    "model_flops_source": pl.String, "peak_flops_per_s": pl.Float64, "measured_flops_per_s": pl.Float64,
    "mfu_dtype": pl.String, "mfu_note": pl.String,
}  # fmt: skip
_STEPS = """
with by_dtype as (
    select o.trace_id, o.device_id, coalesce(o.dtype, '') as dtype, p.flops_per_s, sum(o.flops) as flops
    from ops o join traces t using (trace_id)
    left join peaks p on p.trace_id = o.trace_id and p.device_id = o.device_id and p.unit = 'matrix' and p.dtype = o.dtype
    where t.run_id = $run_id and o.op_class in ('matmul', 'attention', 'convolution') and o.flops > 0
    group by all
),
used as (
    select *, flops / sum(flops) over device as part, row_number() over (device order by flops desc, dtype) as place
    from by_dtype window device as (partition by trace_id, device_id)
)
select
    s.trace_id, s.device_id, s.step, s.source, s.compute_ns, nullif(u.dtype, '') as dtype, u.part, u.flops_per_s as peak,
    e.flops_per_s as ceiling, coalesce(w.matrix_flops_done, 0) as done, coalesce(w.recomputed_flops, 0) as recomputed,
    coalesce(w.matrix_unknown_ns, s.compute_ns) as unknown_ns
from steps s
left join step_work w using (trace_id, device_id, step)
left join used u on u.trace_id = s.trace_id and u.device_id = s.device_id and u.place = 1
left join ceilings e on e.trace_id = s.trace_id and e.device_id = s.device_id and e.kind = 'matmul' and e.dtype = u.dtype
where s.run_id = $run_id
"""
# Whether the traces show gradients or an optimizer at work; NULL where they name no operation of a framework.
_TRAINS = """
with named as (
    select distinct o.framework_op, o.name, o.op_class
    from ops o join traces t using (trace_id)
    where t.run_id = $run_id and o.op_class not in ('collective', 'copy', 'memset')
),
signs as (
    select
        bool_or(op_class = 'optimizer'
                or regexp_matches(coalesce(framework_op, name),
                                  'ackward|transpose[(/]|[Aa]dam|[Oo]ptimizer|apply_(gradients|updates)')
                or regexp_matches(name, '(_|\\b)(bwd|dgrad|wgrad)(_|\\b)')) as seen,
        bool_or(framework_op is not null and op_class in ('matmul', 'attention', 'convolution')) as told
    from named
)
select case
    when seen or exists (select 1 from host_events h join traces t using (trace_id)
                         where t.run_id = $run_id and starts_with(h.name, 'autograd::engine')) then true
    when told then false end
from signs
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """Model FLOPs of a step on one device by the description of the model."""

    flops: int | None
    """None = unknown."""
    words: str
    """Convention, or why they are unknown."""


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Model FLOPs of a step on one device, and the peak of the dtype that does most of the matrix arithmetic."""
    rows = store.frame_of(con, _STEPS, {"run_id": run.run_id}).to_dicts()
    trains = trained(con, run.run_id)
    devices = run.world_size or len({(row["trace_id"], row["device_id"]) for row in rows})
    needed = _by_description(run, devices, trains)
    told = pl.DataFrame([_theory(row, needed, trains) for row in rows], schema=_SCHEMA)
    store.insert(con, "step_theory", told)


def trained(con: duckdb.DuckDBPyConnection, run_id: str) -> bool | None:
    """Whether the traces of a run show a backward pass or an optimizer; None: they do not tell."""
    found: bool | None = con.execute(_TRAINS, {"run_id": run_id}).fetchall()[0][0]
    return found


def _by_description(run: Run, devices: int, trains: bool | None) -> Needed:
    try:
        found = described.of(run)
        if found is None:
            return Needed(
                flops=None, words="the model is not described; add [model] and tokens_per_step to manifest.toml"
            )
        if found.tokens_per_step is None:
            return Needed(flops=None, words="tokens_per_step is not in the manifest")
        tokens = found.tokens_per_step
        if trains is False:
            flops, work = (
                transformer.forward_flops(found.model, tokens).total,
                "forward pass alone, no backward pass ran; ",
            )
        else:
            flops, work = transformer.train_flops(found.model, tokens), ""
    except TracegapError as e:
        return Needed(flops=None, words=str(e))
    mask = "causal attention (half)" if found.model.causal else "full attention"
    words = f"{work}matrix products only, {mask}, no recomputation, no look-up"
    if found.source != described.MANIFEST:
        words = f"model from {found.source}; {words}"
    return Needed(flops=round(flops / devices) if devices else None, words=words)


def _theory(row: Mapping[str, Any], needed: Needed, trains: bool | None) -> dict[str, Any]:
    """A row of step_theory."""
    flops, source, note = needed.flops, "config", needed.words
    if flops is not None and row["source"] in ("whole_trace", "inferred"):
        flops, note = None, "no step is marked, and what stands for one may be more or less than a step"
    elif flops is not None and row["done"] < flops * (1 - 1e-6):
        note += _more_than_done(flops, row)
    if flops is None:
        flops, source, note = _by_operations(row, note, trains)
    if flops is None:
        note = f"no MFU: {note}"
    if row["peak"] is None:
        note += f"; no peak of this part for dtype {row['dtype'] or '(no matrix product with known FLOPs)'}"
    elif row["part"] < 0.9995:
        note += f"; {people.percent(row['part'])} of the matrix FLOPs are in {row['dtype']}, whose peak counts here"
    return {
        "trace_id": row["trace_id"], "device_id": row["device_id"], "step": row["step"], "model_flops": flops,
        "model_flops_source": None if flops is None else source, "peak_flops_per_s": row["peak"],
        "measured_flops_per_s": row["ceiling"],
        "mfu_dtype": row["dtype"], "mfu_note": note,
    }  # fmt: skip


def _more_than_done(flops: int, row: Mapping[str, Any]) -> str:
    """What is to be said where the model needs more than the operations of known cost did."""
    known = f"; the matrix products of known cost did {people.percent(row['done'] / flops)} of it"
    if row["unknown_ns"]:
        return f"{known}, the rest is among operations of unknown cost, or the description does not fit what ran"
    return f"{known}, though the cost of every one is known: the description does not fit what ran"


def _by_operations(row: Mapping[str, Any], why: str, trains: bool | None) -> tuple[int | None, str, str]:
    """Model FLOPs by what was done less what was recomputed; the source; and the words."""
    unknown = row["unknown_ns"] / row["compute_ns"] if row["compute_ns"] else 0.0
    if not row["done"]:
        return None, "operations", f"{why}; and no matrix product has known FLOPs"
    if unknown > MOST_UNKNOWN:
        return None, "operations", f"{why}; and {people.percent(unknown)} of compute time has unknown FLOPs"
    again = row["recomputed"] / row["done"]
    said = ["from the operations: matrix products, attention and convolutions done"]
    if again:
        said.append(f" less the {people.percent(again)} of them that were recomputed")
    if trains is False:
        said.append("; a forward pass alone, no backward pass ran")
    if unknown:
        said.append(f"; a lower bound, {people.percent(unknown)} of compute time has unknown FLOPs")
    return row["done"] - row["recomputed"], "operations", "".join(said) + f" ({why})"

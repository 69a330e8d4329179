"""The typical step of a run beside what the plan of its model and mesh predicts: the one that `tracegap plan` makes."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.ingest.manifest import Manifest
from tracegap.models import hardware
from tracegap.models.errors import TracegapError
from tracegap.models.mesh import axes_of, axes_of_group
from tracegap.models.plan import Plan, slowest
from tracegap.models.recipe import Recipe, recipe_of
from tracegap.reports import described, planning
from tracegap.reports.stage import Run
from tracegap.reports.summary import TYPICAL

ORDER = 60
TABLES = ("run_theory",)

UNKNOWN_AXIS = "unknown"
"""Stands for the axis of groups of ranks that the mesh does not have, or that the traces do not say."""
_STEP = f"""
with {TYPICAL},
optimizer as (
    select sum(w.share_ns) as ns
    from op_windows w join ops o using (trace_id, op_id)
    join typical t on t.trace_id = w.trace_id and t.device_id = w.device_id and t.step = w.step
    where w.state = 'compute' and (o.op_class = 'optimizer' or regexp_matches(o.framework_op, '[Aa]dam|[Oo]ptimizer'))
),
again as (
    select sum(o.flops) as flops
    from recomputed_ops r join ops o using (trace_id, op_id)
    join typical t on t.trace_id = o.trace_id and t.device_id = o.device_id and t.step = o.step
    where o.op_class in ('matmul', 'attention', 'convolution')
)
select
    count(*) as device_steps, avg(wall_ns) as step_ns, avg(compute_ns) as compute_ns,
    avg(exposed_comm_ns) as exposed_comm_ns, avg(idle_pipeline_ns) as idle_pipeline_ns,
    avg(matrix_flops_done) as matrix_flops, avg(recomputed_flops) as recomputed_flops, avg(mfu) as mfu, min(mfu_note) as mfu_note,
    any_value(optimizer.ns)::double / count(*) as optimizer_ns,
    coalesce(any_value(again.flops), 0)::double / count(*) as again_flops,
    min(modelled_share_frac) as modelled_share_frac
from typical, optimizer, again
having count(*) > 0
"""
_COLLECTIVES = f"""
with {TYPICAL}
select
    g.collective, g.group_ranks, g.group_size, any_value(c.device_steps) as device_steps,
    sum(coalesce(g.transfer_ns, g.dur_ns))::double as transfer_ns, sum(g.exposed_ns)::double as exposed_ns,
    sum(g.message_bytes)::double as bytes,
    bool_or(g.transfer_ns is null) as waits, count(*) as calls
from collective_gap g
join typical t on t.trace_id = g.trace_id and t.device_id = g.device_id and t.step = g.step
join (select count(*) as device_steps from typical) c on true
where coalesce(g.group_size, 2) > 1
group by g.collective, g.group_ranks, g.group_size
"""
_PARTS = """
select distinct d.hardware, d.matched_by
from devices d join traces t using (trace_id) where t.run_id = $run_id order by 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of run_theory."""

    quantity: str
    unit: str
    note: str
    axis: str | None = None
    measured: float | None = None
    predicted: float | None = None
    least: float | None = None

    def values(self) -> dict[str, Any]:
        """With the ratio."""
        ratio = self.measured / self.predicted if self.measured is not None and self.predicted else None
        return {name: getattr(self, name) for name in self.__slots__} | {"ratio_frac": ratio}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What a device sent in the typical step over one axis, mean over devices."""

    transfer_ns: float
    exposed_ns: float
    message_bytes: float
    waits: bool
    """Whether waiting for other ranks is in the time, since it could not be told apart."""
    kinds: frozenset[str]


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills run_theory; of a run without a step nothing."""
    steps = store.frame_of(con, _STEP, {"run_id": run.run_id}).to_dicts()
    if steps:
        rows = [row.values() | {"run_id": run.run_id} for row in compared(con, run, steps[0])]
        schema: dict[str, Any] = {
            "quantity": pl.String,
            "unit": pl.String,
            "note": pl.String,
            "axis": pl.String,
            "run_id": pl.String,
        }
        numbers = dict.fromkeys(("measured", "predicted", "least", "ratio_frac"), pl.Float64)
        store.insert(con, "run_theory", pl.DataFrame(rows, schema=schema | numbers))


def compared(con: duckdb.DuckDBPyConnection, run: Run, step: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a run."""
    calls = store.frame_of(con, _COLLECTIVES, {"run_id": run.run_id}).to_dicts()
    try:
        known = _known(con, run)
        sent = by_axis(calls, known.mesh)
        candidate = planning.on_mesh(
            known.subject, known.chip, known.mesh, known.tokens_per_step, recipe=(chosen := _recipe(known, step, sent)).recipe,
            kept=chosen.kept,
        )  # fmt: skip
    except TracegapError as e:
        yield Row(quantity="step", unit="ns", measured=step["step_ns"], note=f"not predicted: {e}")
        return
    words = "; ".join([*known.assumed, *chosen.words, _mesh_words(known.mesh)])
    if candidate.plan.fits is False:
        words += "; by the plan this does not fit into the memory"
    yield from _of_step(candidate.plan, step, words)
    yield from _of_axes(candidate.plan, sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What a plan of the run needs."""

    subject: planning.Subject
    chip: hardware.Chip
    mesh: dict[str, int]
    tokens_per_step: int
    said: dict[str, Any]
    """Choices of a recipe that somebody states."""
    assumed: tuple[str, ...]


def _known(con: duckdb.DuckDBPyConnection, run: Run) -> _Known:
    """Raises TracegapError, which says what is missing."""
    found = described.of(run)
    if found is None:
        raise TracegapError("the model is not described; add [model], [mesh] and tokens_per_step to manifest.toml")
    if found.tokens_per_step is None:
        raise TracegapError("tokens_per_step is not in the manifest")
    parts = con.execute(_PARTS, {"run_id": run.run_id}).fetchall()
    unknown = [why for part, why in parts if part is None]
    if unknown or not parts:
        raise TracegapError(f"unknown part: {'; '.join(dict.fromkeys(unknown)) or 'no device'}")
    assumed = [] if found.source == described.MANIFEST else [f"model from {found.source}"]
    mesh = found.mesh
    if not mesh and run.world_size:
        mesh = {"data": run.world_size}
        assumed.append("no mesh is described: data parallel over all ranks")
    if not mesh:
        raise TracegapError("neither a mesh nor the number of ranks is known; add [mesh] to manifest.toml")
    manifest = Manifest(topology=run.topology, mesh=found.mesh or None, world_size=run.world_size)
    return _Known(
        subject=planning.Subject(name=run.run_id, source=found.source, model=found.model, described=manifest),
        chip=slowest([hardware.get(part) for part in dict.fromkeys(part for part, _ in parts)]),
        mesh=mesh,
        tokens_per_step=found.tokens_per_step,
        said=found.recipe,
        assumed=tuple(assumed),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    recipe: Recipe
    kept: tuple[str, ...]
    words: tuple[str, ...]


def _recipe(known: _Known, step: Mapping[str, Any], sent: Mapping[str, Sent]) -> _Chosen:
    """The recipe of the run: what is stated, else what the traces show, else what a plan would choose."""
    seen: dict[str, Any] = {}
    words = []
    if "recompute" not in known.said:
        part = step["again_flops"] / step["matrix_flops"] if step["matrix_flops"] else 0.0
        # All layers once more are a quarter of the FLOPs done, less the output head
        seen["recompute"] = "full" if part > 1 / 8 else "selective" if part > 0 else "none"
        words.append(f"recomputation {seen['recompute']}, as the operations show")
    replicas = "+".join(axes_of(known.mesh, "data", "expert", "context"))
    if "zero" not in known.said and replicas in sent:
        kinds = sent[replicas].kinds
        if kinds <= {"all_reduce", "broadcast", "barrier"}:
            seen["zero"] = 0
            words.append("ZeRO stage 0, as gradients are all-reduced")
        elif {"reduce_scatter", "all_gather"} <= kinds:
            seen["zero"] = 1
            words.append("ZeRO stage 1, as gradients are scattered and weights gathered over replicas")
    said = known.said | seen
    return _Chosen(
        recipe=recipe_of(said), kept=tuple(name for name in planning.CHOSEN if name in said), words=tuple(words)
    )


def by_axis(calls: list[dict[str, Any]], mesh: Mapping[str, int]) -> dict[str, Sent]:
    """Collectives by the axes over which their groups spread; a group of unknown ranks by its size where that is clear."""
    found: dict[str, list[dict[str, Any]]] = {}
    for call in calls:
        found.setdefault(_axis(call, mesh), []).append(call)
    return {
        axis: Sent(
            transfer_ns=sum(c["transfer_ns"] / c["device_steps"] for c in of_axis),
            exposed_ns=sum(c["exposed_ns"] / c["device_steps"] for c in of_axis),
            message_bytes=sum((c["bytes"] or 0) / c["device_steps"] for c in of_axis),
            waits=any(c["waits"] for c in of_axis),
            kinds=frozenset(c["collective"] or "unknown" for c in of_axis),
        )
        for axis, of_axis in found.items()
    }


def _axis(call: Mapping[str, Any], mesh: Mapping[str, int]) -> str:
    ranks = json.loads(call["group_ranks"]) if call["group_ranks"] else None
    if ranks:
        axes = axes_of_group(mesh, ranks)
        return "+".join(axes) if axes else UNKNOWN_AXIS
    alike = [axis for axis, ways in mesh.items() if ways == call["group_size"]]
    return alike[0] if len(alike) == 1 else UNKNOWN_AXIS


def _mesh_words(mesh: Mapping[str, int]) -> str:
    return "mesh " + ", ".join(f"{axis} {ways}" for axis, ways in mesh.items())


def _of_step(plan: Plan, step: Mapping[str, Any], words: str) -> Iterator[Row]:
    """Rows that are of no axis."""
    yield Row(
        quantity="step",
        unit="ns",
        measured=step["step_ns"],
        predicted=plan.predicted_ns,
        least=plan.lower_ns,
        note=words,
    )
    optimizer = step["optimizer_ns"]
    busy = step["compute_ns"] - (optimizer or 0)
    yield Row(
        quantity="compute", unit="ns", measured=busy, predicted=max(plan.compute_ns / plan.reachable_share, plan.hbm_ns),
        least=max(plan.compute_ns, plan.hbm_ns),
        note=f"without the optimizer's; predicted at {plan.reachable_share:.0%} of the peak, the best that is published for "
        "matrix products of this part" if plan.reachable_share < 1 else "without the optimizer's; predicted at the peak",
    )  # fmt: skip
    seen = optimizer is not None
    yield Row(
        quantity="optimizer", unit="ns", measured=optimizer, predicted=plan.optimizer_ns, least=plan.optimizer_ns,
        note="bytes of the states at the rate of the memory" if seen else "no operation was recognised as the optimizer's",
    )  # fmt: skip
    if plan.bubble_ns:
        yield Row(
            quantity="bubble", unit="ns", measured=step["idle_pipeline_ns"], predicted=plan.bubble_ns / plan.reachable_share,
            least=plan.bubble_ns, note=f"waiting for other stages; {plan.microbatches} microbatches",
        )  # fmt: skip
    yield Row(
        quantity="exposed_communication", unit="ns", measured=step["exposed_comm_ns"],
        predicted=sum(item.exposed_ns for item in plan.traffic), note="measured with waiting for late ranks",
    )  # fmt: skip
    # Scores that fused attention computes again in its backward pass are in what was done, but in no plan
    done = step["matrix_flops"]
    yield Row(
        quantity="matrix_flops", unit="flops", predicted=plan.flops_per_device,
        measured=None if done is None else done - (step["recomputed_flops"] - step["again_flops"]),
        note="no matrix product has known FLOPs" if done is None
        else "done, padding and checkpoints included, without the scores that fused attention computes again"
        + ("" if step["modelled_share_frac"] > 0.9995 else f"; cost known for {step['modelled_share_frac']:.1%} of compute"),
    )  # fmt: skip
    yield Row(
        quantity="mfu", unit="frac", measured=step["mfu"], predicted=plan.mfu,
        note=step["mfu_note"] or "not joined with theory",
    )  # fmt: skip
    yield Row(
        quantity="memory", unit="bytes", predicted=plan.memory.total, least=plan.memory.states,
        note="of the fullest device; not measured: the traces hold no memory events",
    )  # fmt: skip


def _of_axes(plan: Plan, sent: Mapping[str, Sent]) -> Iterator[Row]:
    """Rows of communication, axis by axis."""
    planned = {item.axis: [one for one in plan.traffic if one.axis == item.axis] for item in plan.traffic}
    unclear = UNKNOWN_AXIS in sent
    for axis in dict.fromkeys((*planned, *sent)):
        seen, items = sent.get(axis), planned.get(axis, [])
        kinds = ", ".join(dict.fromkeys(str(item.collective.value) for item in items)) or "nothing"
        note = f"the plan sends {kinds}"
        if seen is None:
            note += "; none of it was found in the traces" + (", where some groups are unknown" if unclear else "")
        else:
            note += f"; the traces have {', '.join(sorted(seen.kinds))}"
            note += ", waiting included, which could not be told apart" if seen.waits else ", waiting left out"
            note += "; one that runs beside others takes longer than alone"
        missing = None if unclear else 0.0
        predicted = None if axis == UNKNOWN_AXIS else float(sum(item.total_ns for item in items))
        yield Row(
            quantity="communication", axis=axis, unit="ns", measured=seen.transfer_ns if seen else missing,
            predicted=predicted, note=note,
        )  # fmt: skip
        yield Row(
            quantity="collective_bytes", axis=axis, unit="bytes", measured=seen.message_bytes if seen else missing,
            predicted=None if predicted is None else sum(item.calls * item.message_bytes for item in items),
            note="sizes as nccl-tests count them",
        )  # fmt: skip

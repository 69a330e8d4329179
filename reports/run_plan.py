"""The plan of a run: what `tracegap plan` makes of its model, mesh and batch, with the recipe that it states or shows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

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
    sum(coalesce(g.transfer_ns, g.dur_ns))::double as transfer_ns,
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
class RunPlan:
    """The plan of a run, and what it rests on."""

    plan: Plan
    recipe: Recipe
    words: str
    """What was assumed and read off the traces, and the mesh."""


def typical_step(con: duckdb.DuckDBPyConnection, run: Run) -> dict[str, Any] | None:
    """Measured times and FLOPs of the typical step, mean over its devices; None of a run without one."""
    rows = store.frame_of(con, _STEP, {"run_id": run.run_id}).to_dicts()
    return rows[0] if rows else None


def collectives(con: duckdb.DuckDBPyConnection, run: Run) -> list[dict[str, Any]]:
    """The collectives of the typical step, by kind and group."""
    return store.frame_of(con, _COLLECTIVES, {"run_id": run.run_id}).to_dicts()


def plan_of(
    con: duckdb.DuckDBPyConnection, run: Run, step: Mapping[str, Any] | None, calls: list[dict[str, Any]]
) -> tuple[RunPlan, dict[str, "Sent"]]:
    """The plan of a run, and its collectives by the axes of the mesh.

    Args:
        con: the store.
        run: the run.
        step: its `typical_step`, which tells what is recomputed.
        calls: its `collectives`, which tell what is sharded.

    Raises:
        TracegapError: it says what is missing.
    """
    known = _known(con, run)
    sent = by_axis(calls, known.mesh)
    chosen = _recipe(known, step, sent)
    candidate = planning.on_mesh(
        known.subject, known.chip, known.mesh, known.tokens_per_step, recipe=chosen.recipe, kept=chosen.kept
    )
    words = "; ".join([*known.assumed, *chosen.words, _mesh_words(known.mesh)])
    if candidate.plan.fits is False:
        words += "; by the plan this does not fit into the memory"
    return RunPlan(plan=candidate.plan, recipe=candidate.recipe, words=words), sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What a device sent in the typical step over one axis, mean over devices."""

    transfer_ns: float
    message_bytes: float
    waits: bool
    """Whether waiting for other ranks is in the time, since it could not be told apart."""
    kinds: frozenset[str]


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


def _recipe(known: _Known, step: Mapping[str, Any] | None, sent: Mapping[str, Sent]) -> _Chosen:
    """The recipe of the run: what is stated, else what the traces show, else what a plan would choose."""
    seen: dict[str, Any] = {}
    words = []
    if "recompute" not in known.said and step is not None:
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

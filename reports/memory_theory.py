"""Device memory that the plan of a run's model and mesh needs: the numbers of `tracegap plan`."""

from collections.abc import Mapping

import duckdb

from tracegap.models import hardware, search
from tracegap.models.errors import TracegapError
from tracegap.models.footprint import Memory
from tracegap.models.mesh import Links, sizes
from tracegap.models.plan import slowest
from tracegap.models.recipe import Recipe
from tracegap.reports import planning
from tracegap.reports.stage import Run

PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "margin")
"""Parts of `Memory`, which add up to its total."""


def predicted(con: duckdb.DuckDBPyConnection, run: Run) -> tuple[Memory | None, str]:
    """What the fullest device needs, and what was assumed; or None and why it cannot be planned."""
    if run.model is None:
        return (
            None,
            "not predicted: the model is not described; add [model], [mesh] and tokens_per_step to manifest.toml",
        )
    if run.tokens_per_step is None:
        return None, "not predicted: tokens_per_step is not in the manifest"
    mesh = run.mesh or ({"data": run.world_size} if run.world_size else None)
    if mesh is None:
        return None, "not predicted: neither a mesh nor the number of ranks is known; add [mesh] to manifest.toml"
    parts = con.execute(
        "select distinct d.hardware from devices d join traces t using (trace_id) where t.run_id = ? order by 1",
        [run.run_id],
    ).fetchall()
    if not parts or any(part is None for (part,) in parts):
        return None, "not predicted: a part of the run is unknown"
    chip = slowest([hardware.get(part) for (part,) in parts])
    try:
        model = planning.model_of(run.model)
        links = Links(
            chip=chip,
            ranks_per_domain=run.topology.get("ranks_per_domain"),
            torus=run.topology.get("torus") or search.slice_shape(chip, sizes(mesh).devices),
            wrap=run.topology.get("wrap"),
        )
        kept = ("zero",) if _gradients_are_whole(con, run.run_id, mesh) else ()
        found = search.of_mesh(model, chip, mesh, run.tokens_per_step, Recipe(), links=links, kept=kept)
    except TracegapError as e:
        return None, f"not predicted: {e}"
    recipe = found.recipe
    seen = ", as gradients are all-reduced" if kept else ""
    words = "" if run.mesh else "; no mesh is described: data parallel over all ranks"
    return found.plan.memory, (
        f"fullest device; {recipe.optimizer}, ZeRO stage {recipe.zero}{seen}, recomputation {recipe.recompute}; what nobody"
        f" says is as a plan chooses what fits{words}"
    )


def _gradients_are_whole(con: duckdb.DuckDBPyConnection, run_id: str, mesh: Mapping[str, int]) -> bool:
    """Whether replicas all-reduce and do nothing else: then nothing is sharded over them (ZeRO stage 0)."""
    kinds = {
        kind
        for (kind,) in con.execute(
            "select distinct collective from collectives join traces using (trace_id) where run_id = ? and group_size = ?",
            [run_id, mesh.get("data", 1)],
        ).fetchall()
    }
    return "all_reduce" in kinds and kinds <= {"all_reduce", "broadcast", "barrier"}

"""What a stage of the evaluation works on: one run, as its manifest and its traces describe it."""

import json
from dataclasses import dataclass
from typing import Any

import duckdb

from tracegap.models.errors import TracegapError


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of the store, with what is known of the job."""

    run_id: str
    world_size: int | None
    """Ranks of the job; None = unknown."""
    model: dict[str, Any] | None
    """[model] of the manifest; None = not described."""
    mesh: dict[str, Any]
    """Mesh axes and their sizes; empty = unknown."""
    topology: dict[str, Any]
    """Torus and domains; empty = unknown."""
    recipe: dict[str, Any]
    """How it is trained, by the names of `models.recipe.Recipe`; empty = not said."""
    tokens_per_step: int | None
    """Tokens of one step over all ranks; None = unknown."""
    config: dict[str, Any]
    """Configuration, flat."""

    @classmethod
    def load(cls, con: duckdb.DuckDBPyConnection, run_id: str) -> "Run":
        """Reads a run.

        Raises:
            TracegapError: the store has no such run.
        """
        found = con.execute(
            "select world_size, model, mesh, topology, recipe, tokens_per_step, config from runs where run_id = ?",
            [run_id],
        ).fetchall()
        if not found:
            raise TracegapError(
                f"{run_id}: no such run in the store; `tracegap sql 'select run_id from runs'` lists them"
            )
        world_size, model, mesh, topology, recipe, tokens, config = (
            json.loads(v) if isinstance(v, str) else v for v in found[0]
        )
        return cls(
            run_id=run_id,
            world_size=world_size,
            model=model,
            mesh=mesh or {},
            topology=topology or {},
            recipe=recipe or {},
            tokens_per_step=tokens,
            config=config or {},
        )

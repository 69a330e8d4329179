"""The model, mesh and batch of a run: as its manifest describes them, else as its configuration does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracegap.models import megatron_args
from tracegap.models.architecture import Model
from tracegap.reports import planning
from tracegap.reports.stage import Run

MANIFEST = "manifest"
"""Source of what `[model]` of the manifest says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What is known of the training of a run."""

    model: Model
    source: str
    """MANIFEST, or the keys of the configuration that say it."""
    mesh: dict[str, int] = field(default_factory=dict)
    """Axis to size; empty = unknown."""
    tokens_per_step: int | None = None
    """Over all ranks; None = unknown."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """Choices that are known, by the names of `models.recipe.Recipe`."""


def of(run: Run) -> Described | None:
    """The training of a run; None where nothing describes its model. What the manifest says goes first.

    Raises:
        TracegapError: what describes it lacks something or contradicts itself.
    """
    if run.model is not None:
        return Described(
            model=planning.model_of(run.model),
            source=MANIFEST,
            mesh=run.mesh,
            tokens_per_step=run.tokens_per_step,
            recipe=run.recipe,
        )
    for prefix in _prefixes(run.config, "model_type"):
        table = _under(run.config, prefix)
        words = f"the configuration ({prefix}model_type = {table['model_type']})"
        return Described(
            model=planning.model_of(table, f"config {prefix}*"),
            source=words,
            mesh=run.mesh,
            tokens_per_step=run.tokens_per_step,
            recipe=run.recipe,
        )
    for prefix in _prefixes(run.config, megatron_args.SIGN):
        if f"{prefix}num_layers" not in run.config:
            continue
        found = megatron_args.read(_under(run.config, prefix), run.world_size)
        return Described(
            model=found.model,
            source=f"Megatron's arguments in the configuration ({prefix}{megatron_args.SIGN} and others)",
            mesh=run.mesh or found.mesh,
            tokens_per_step=run.tokens_per_step or found.tokens_per_step,
            recipe=found.recipe | run.recipe,
        )
    return None


def _prefixes(config: Mapping[str, Any], key: str) -> list[str]:
    """What stands before a key in the dotted names of a configuration, the shortest first."""
    found = [name.removesuffix(key) for name in config if name == key or name.endswith("." + key)]
    return sorted(found, key=lambda prefix: (len(prefix), prefix))


def _under(config: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Values of a configuration below a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in config.items() if name.startswith(prefix)}

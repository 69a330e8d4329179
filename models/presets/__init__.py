"""Published models: one TOML file each, with its source and the parameter count that the source states.

To add one, add a file; its tests find it.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from tracegap.models.architecture import Model
from tracegap.models.errors import TracegapError
from tracegap.models.names import did_you_mean


class UnknownModel(TracegapError):
    """A model that is no preset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A published model."""

    id: str
    name: str
    source: str
    """Where the figures are published."""
    checked: str
    """What was opened to check the figures of `model`, and when; what is from memory is named."""
    params_checked: str
    """What was opened to check `params` and `active_params`, which owes nothing to our count, and when."""
    model: Model
    params: int
    """Stored parameters as published."""
    params_tolerance: float = 0
    """Relative, of a published count that is rounded."""
    active_params: int | None = None
    """Parameters that a token uses, as published."""
    active_params_tolerance: float = 0
    note: str | None = None
    """What the description leaves out."""


@cache
def names() -> tuple[str, ...]:
    """Ids of all presets."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


@cache
def get(preset_id: str) -> Preset:
    """The preset of that id. Raises UnknownModel, which names the nearest ones."""
    if preset_id not in names():
        hint = did_you_mean(preset_id, names())
        raise UnknownModel(f"no model {preset_id!r} among the presets{hint or ';'} `tracegap plan --help` lists all")
    text = resources.files(__name__).joinpath(f"{preset_id}.toml").read_text(encoding="utf-8")
    values: dict[str, Any] = tomllib.loads(text)
    return Preset(id=preset_id, **(values | {"model": Model(**values["model"])}))

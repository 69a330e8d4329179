"""Types of options: finite numbers, counts as people write them, meshes, files to write; and what goes together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tracegap.models.errors import TracegapError

LEAST, MOST = 1e-6, 1e12
"""Of a number that nothing else bounds; the least of one that is not zero."""
_SCALE = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


class Finite(click.FloatRange):
    """A number within bounds, which neither nan nor inf is."""

    def __init__(self, least: float = LEAST, most: float = MOST) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; a line where it is none."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return number


class Count(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """A count as people write it: 300B, 15T, 4M, 524288."""

    name = "number"

    def __init__(self, most: float = MOST) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The count; a line where it is none, or more than makes sense."""
        text = str(value)
        scale = _SCALE.get(text[-1:].lower())
        try:
            number = float(text[:-1]) * scale if scale else float(text)
        except ValueError:
            number = math.nan
        if not 1 <= number < math.inf:
            self.fail(f"{text!r} is no number such as 15T or 4194304", param, ctx)
        if number > self.most:
            self.fail(f"{text!r} is more than {self.most:.0e}", param, ctx)
        return number


class Mesh(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """Axes of a mesh and their sizes: fsdp=16,tensor=8."""

    name = "mesh"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:  # noqa: ARG002
        """The mesh; a line where it is none."""
        from tracegap.models.mesh import mesh_of  # noqa: PLC0415 - the help needs no models

        return mesh_of(value)


class Written(click.Path):
    """A file to write."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; a line where it names no file."""
        if not Path(value).name:
            self.fail(f"{str(value)!r} names no file to write.", param, ctx)
        return super().convert(value, param, ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Options that another one leaves without effect, or that have none without another one."""

    options: Sequence[str]
    """Names of parameters."""
    beside: str | None = None
    """Not to be used together with this one."""
    without: str | None = None
    """Of use only with this one."""
    why: str = ""


def check_together(ctx: click.Context, rules: Sequence[Rule]) -> None:
    """Refuses options that would be ignored beside what else was given.

    Raises:
        TracegapError: one would be.
    """

    def given(name: str) -> bool:
        return ctx.get_parameter_source(name) not in (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)

    flags = {param.name: param.opts[-1] for param in ctx.command.params if param.name}
    for rule in rules:
        for name in filter(given, rule.options):
            if rule.beside and given(rule.beside):
                raise TracegapError(f"{flags[name]} is not used together with {flags[rule.beside]}{rule.why}")
            if rule.without and not given(rule.without):
                raise TracegapError(f"{flags[name]} is used only together with {flags[rule.without]}{rule.why}")

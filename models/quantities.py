"""The registry of theory: every formula under the name and code by which worked examples call it.

A row of a golden CSV names a quantity, a formula code and its inputs. `@quantity(name, code)` puts a function behind
that pair, so that adding one needs no edit elsewhere: all modules of `tracegap.models` are searched. It also holds the
inputs to what makes sense, by their names.
"""

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache, wraps
from importlib import import_module
from math import inf
from typing import Any, TypeVar, cast

import tracegap.models
from tracegap.models.errors import BadInput, NoFormula

F = TypeVar("F", bound=Callable[..., float])

SHARES = frozenset({"accept", "mfu", "nvls_share", "overlap_fraction"})
"""Inputs from 0 to 1."""
COUNTS = frozenset({
    "axes", "axis_size", "channels", "chips", "chips_per_host", "chunk", "cp", "devices", "dp", "gpus", "gpus_per_node",
    "group", "groups", "microbatches", "mxu_side", "nodes", "pp", "ranks", "stages", "tp", "virtual", "virtual_stages",
})  # fmt: skip
"""Inputs from 1 on."""
SIGNED = frozenset({"shift", "window", "window_right"})
"""Inputs that may be negative; all other numbers are sizes, times and rates from 0 on."""

_FORMULAS: dict[tuple[str, str], Callable[..., float]] = {}


def quantity(name: str, *formulas: str) -> Callable[[F], F]:
    """Registers a function for a quantity under one or more formula codes.

    The function's parameters are the inputs of the worked examples, by name; optional inputs have defaults. May be
    stacked where one function answers for several quantities. Called with inputs out of range, it raises BadInput.
    """

    def register(function: F) -> F:
        function = _guarded(function)
        for formula in formulas:
            if (name, formula) in _FORMULAS:
                raise ValueError(f"{name} {formula} is registered twice, the second time by {function.__qualname__}")
            _FORMULAS[name, formula] = function
        return function

    return register


def _guarded(function: F) -> F:
    """The function, which checks its inputs; itself where it does already."""
    if hasattr(function, "bounds"):
        return function
    bounds = {
        parameter.name: _bounds(parameter.name)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.annotation in (int, float, int | None, float | None) and parameter.name not in SIGNED
    }

    @wraps(function)
    def guarded(**inputs: Any) -> float:
        for name, value in inputs.items():
            if value is not None and name in bounds:
                least, most = bounds[name]
                if not least <= value <= most:
                    words = f"from {least} to {most}" if most < inf else f"from {least} on"
                    raise BadInput(f"{function.__name__}: {name} = {value}, a number {words} is expected")
        try:
            return function(**inputs)
        except ArithmeticError as error:
            zero = ", ".join(name for name, value in inputs.items() if isinstance(value, int | float) and value == 0)
            hint = f": {zero} = 0" if zero else ""
            raise BadInput(f"{function.__name__} has no value for these inputs ({error}){hint}") from error

    guarded.bounds = bounds  # type: ignore[attr-defined]
    return cast(F, guarded)


def _bounds(name: str) -> tuple[float, float]:
    return (0, 1) if name in SHARES else (1, inf) if name in COUNTS else (0, inf)


@cache
def formulas() -> dict[tuple[str, str], Callable[..., float]]:
    """Every registered function by (quantity, formula code), in the order of the names."""
    for module in pkgutil.walk_packages(tracegap.models.__path__, "tracegap.models."):
        import_module(module.name)
    return dict(sorted(_FORMULAS.items()))


def compute(quantity: str, formula: str, inputs: Mapping[str, Any]) -> float:
    """Value of a quantity in the unit of its name.

    Raises NoFormula, by name, where the pair is unknown or the inputs are not those that the formula takes.
    """
    known = formulas()
    function = known.get((quantity, formula))
    if function is None:
        codes = [code for name, code in known if name == quantity]
        hint = f"it is known by {', '.join(codes)}" if codes else "no formula of that name is registered"
        raise NoFormula(f"{quantity} by formula {formula}: {hint}")
    try:
        arguments = inspect.signature(function).bind(**inputs)
    except TypeError as error:
        raise NoFormula(f"{quantity} by formula {formula}: {error}, given {', '.join(sorted(inputs))}") from None
    return float(function(*arguments.args, **arguments.kwargs))

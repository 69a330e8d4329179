"""The registry of theory: every formula under the name and code by which worked examples call it.

A row of a golden CSV names a quantity, a formula code and its inputs. `@quantity(name, code)` puts a function behind
that pair, so that adding one needs no edit elsewhere: all modules of `tracegap.models` are searched.
"""

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import tracegap.models
from tracegap.models.errors import NoFormula

F = TypeVar("F", bound=Callable[..., float])

_FORMULAS: dict[tuple[str, str], Callable[..., float]] = {}


def quantity(name: str, *formulas: str) -> Callable[[F], F]:
    """Registers a function for a quantity under one or more formula codes.

    The function's parameters are the inputs of the worked examples, by name; optional inputs have defaults. May be
    stacked where one function answers for several quantities.
    """

    def register(function: F) -> F:
        for formula in formulas:
            if (name, formula) in _FORMULAS:
                raise ValueError(f"{name} {formula} is registered twice, the second time by {function.__qualname__}")
            _FORMULAS[name, formula] = function
        return function

    return register


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

"""FLOPs and bytes of operations, one module a family; found by walking this folder.

A formula takes an `OpSpec` and returns its `Cost`. Adding one is a decorated function in a module here and its test:
nothing else is edited. FLOPs count one multiply-add as 2. Bytes are compulsory: each operand read once at its stored
size, each result written once. Codes in brackets, such as [M5], are those under which the theory is registered
(`tracegap.models.quantities`).
"""

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module

from tracegap.models.cost import Cost
from tracegap.models.errors import NoFormula
from tracegap.models.ops import OpSpec

Formula = Callable[[OpSpec], Cost]

_REGISTERED: dict[str, Formula] = {}


def formula(*kinds: str) -> Callable[[Formula], Formula]:
    """Registers a function as the formula of one or more `OpSpec.kind`."""

    def register(function: Formula) -> Formula:
        for kind in kinds:
            if kind in _REGISTERED:
                raise ValueError(f"two formulas for {kind}")
            _REGISTERED[kind] = function
        return function

    return register


@cache
def known() -> dict[str, Formula]:
    """Every formula by kind, sorted by name."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
    return dict(sorted(_REGISTERED.items()))


def cost(spec: OpSpec) -> Cost:
    """Cost of an operation; raises NoFormula for an unknown kind and BadShape where the shapes do not fit it."""
    function = known().get(spec.kind)
    if function is None:
        raise NoFormula(f"no formula for {spec.kind}; known: {', '.join(known())}")
    return function(spec)

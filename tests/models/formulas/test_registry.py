"""The contract of every formula, so that a new one needs no new test for it."""

import importlib
import pkgutil

import pytest

from tracegap.models import formulas
from tracegap.models.errors import BadShape, NoFormula
from tracegap.models.formulas import formula
from tracegap.models.ops import OpSpec


def test_every_module_is_found() -> None:
    homes = {function.__module__ for function in formulas.known().values()}
    for module in pkgutil.iter_modules(formulas.__path__, "tracegap.models.formulas."):
        if hasattr(importlib.import_module(module.name), "formula"):
            assert module.name in homes


@pytest.mark.parametrize("kind", list(formulas.known()))
def test_every_formula_says_what_it_takes(kind: str) -> None:
    doc = formulas.known()[kind].__doc__
    assert doc
    assert "\n" not in doc.split(".")[0]


@pytest.mark.parametrize("kind", list(formulas.known()))
def test_no_tensors_is_a_bad_shape_or_an_unknown_cost(kind: str) -> None:
    spec = OpSpec(
        kind=kind, tensors=(), params={"layout": "BNTH", "out_features": 1, "flops_per_element": 1, "dims": 2}
    )
    try:
        cost = formulas.cost(spec)
    except BadShape:
        return
    assert cost.flops in {None, 0}
    assert cost.bytes in {None, 0}


def test_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(NoFormula, match="matmul"):
        formulas.cost(OpSpec(kind="teleport", tensors=()))


def test_a_kind_has_one_formula() -> None:
    with pytest.raises(ValueError, match="two formulas for matmul"):
        formula("matmul")(formulas.cost)

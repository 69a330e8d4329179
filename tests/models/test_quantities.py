import pytest

from tracegap.models import quantities
from tracegap.models.errors import NoFormula


def test_unknown_quantity_fails_by_name() -> None:
    with pytest.raises(NoFormula, match="warp_speed by formula R1: no formula of that name"):
        quantities.compute("warp_speed", "R1", {})


def test_unknown_code_lists_the_known_ones() -> None:
    with pytest.raises(NoFormula, match=r"mfu by formula Z9: it is known by U1, U2, U4"):
        quantities.compute("mfu", "Z9", {})


@pytest.mark.parametrize("inputs", [{"flops": 1}, {"flops": 1, "peak_flops_per_s": 1, "colour": 3}])
def test_missing_and_unknown_inputs_fail_by_name(inputs: dict[str, float]) -> None:
    with pytest.raises(NoFormula, match=r"t_math_s by formula R1: .*(peak_flops_per_s|colour)"):
        quantities.compute("t_math_s", "R1", inputs)


def test_a_pair_is_registered_once() -> None:
    quantities.formulas()
    with pytest.raises(ValueError, match="t_math_s R1 is registered twice"):
        quantities.quantity("t_math_s", "R1")(lambda: 0.0)


def test_every_formula_says_what_it_computes() -> None:
    bare = [name for (name, _), function in quantities.formulas().items() if not function.__doc__]
    assert not bare

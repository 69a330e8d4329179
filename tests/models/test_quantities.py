import inspect

import pytest

from tracegap.models import quantities
from tracegap.models.errors import BadInput, NoFormula


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


@pytest.mark.parametrize(
    ("name", "code", "changes", "words"),
    [
        ("pp_bubble_fraction", "P11", {"stages": 0, "microbatches": 8}, "stages = 0, a number from 1 on is expected"),
        ("pp_bubble_fraction", "P11", {"stages": 4, "microbatches": 0}, "microbatches = 0, a number from 1 on"),
        ("t_math_s", "R1", {"flops": -1, "peak_flops_per_s": 1e12}, "flops = -1, a number from 0 on is expected"),
        ("t_math_s", "R1", {"flops": 1, "peak_flops_per_s": float("nan")}, "peak_flops_per_s = nan, a number from 0"),
        ("t_math_s", "R1", {"flops": 1, "peak_flops_per_s": 0}, "t_math_s has no value .*: peak_flops_per_s = 0"),
        ("spec_decode_tokens_per_step", "I9", {"accept": 1.5, "draft_len": 4}, "accept = 1.5, a number from 0 to 1"),
    ],
)
def test_inputs_out_of_range_fail_by_name(name: str, code: str, changes: dict[str, float], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        quantities.compute(name, code, changes)


def test_functions_called_by_name_hold_their_inputs_too() -> None:
    from tracegap.models.utilisation import train_time_days

    with pytest.raises(BadInput, match="train_time_days: mfu = 40, a number from 0 to 1"):
        train_time_days(flops=1e21, peak_flops_per_s=1e15, chips=8, mfu=40)


def test_no_formula_ends_in_an_error_of_arithmetic() -> None:
    """Of those whose inputs are numbers alone, each of them zero in turn, and all."""
    tried = 0
    for function in quantities.formulas().values():
        parameters = inspect.signature(function).parameters.values()
        names = [p.name for p in parameters if p.default is p.empty]
        if any(p.annotation not in (int, float) for p in parameters if p.name in names):
            continue
        tried += 1
        for zeros in (*([name] for name in names), names):
            try:
                function(**{name: 0 if name in zeros else 2 for name in names})
            except (BadInput, NoFormula):
                continue
    assert tried > 100

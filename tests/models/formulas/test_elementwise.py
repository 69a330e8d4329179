import pytest

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import cost
from tracegap.models.formulas.sizes import UNKNOWN
from tracegap.models.ops import OpSpec, Tensor


def t(*shape: int, dtype: str = "bf16", strides: tuple[int, ...] | None = None) -> Tensor:
    return Tensor(shape=shape, dtype=dtype, strides=strides)


def run(kind: str, *tensors: Tensor | tuple[Tensor, ...] | None, **params: object) -> Cost:
    return cost(OpSpec(kind=kind, tensors=tensors, params=params))


def test_add_moves_three_tensors() -> None:
    assert run("elementwise", t(7, 11), t(7, 11)) == Cost(flops=77, bytes=3 * 154, dtype="bf16")


def test_in_place_reads_and_writes_the_same_tensor() -> None:
    assert run("elementwise", t(7, 11), in_place=True).bytes == 2 * 154
    assert run("elementwise", t(7, 11), t(7, 11), in_place=True).bytes == 3 * 154


def test_broadcast_inputs_count_at_their_own_size() -> None:
    assert run("elementwise", t(7, 11), t(11)).bytes == 2 * (77 + 11 + 77)
    assert run("elementwise", t(7, 11), t(7, 11, strides=(0, 1))).bytes == 2 * (77 + 11 + 77)


def test_a_comparison_writes_booleans() -> None:
    assert run("elementwise", t(7, 11), t(7, 11), out_dtype="bool").bytes == 2 * 154 + 77


def test_mixed_dtypes_write_the_wider_one() -> None:
    c = run("elementwise", t(7, 11), t(7, 11, dtype="fp32"))
    assert (c.bytes, c.dtype) == (154 + 308 + 308, "fp32")


def test_dropout_writes_a_mask() -> None:
    assert run("elementwise", t(7, 11), mask=True).bytes == 2 * 154 + 77


def test_unknown_dtypes_leave_flops_known() -> None:
    c = run("elementwise", t(7, 11, dtype=UNKNOWN), t(7, 11, dtype=UNKNOWN))
    assert (c.flops, c.bytes, c.dtype) == (77, None, None)
    assert c.note == "dtypes are not in the trace"


def test_lists_are_the_sum_of_their_tensors() -> None:
    first, second = (t(7), t(11)), (t(7), t(11))
    apart = [run("elementwise", a, b, in_place=True) for a, b in zip(first, second, strict=True)]
    assert run("foreach_elementwise", first, second, in_place=True) == apart[0] + apart[1]


def test_lists_of_different_lengths() -> None:
    with pytest.raises(BadShape, match=r"lists of \[2, 1\]"):
        run("foreach_elementwise", (t(7), t(11)), (t(7),))


def test_gate_halves_the_width() -> None:
    assert run("gated_activation", t(5, 14)) == Cost(flops=6 * 35, bytes=2 * (70 + 35), dtype="bf16")


def test_gate_backward_makes_both_halves() -> None:
    c = run("gated_activation_backward", t(5, 7), t(5, 14))
    assert c == Cost(flops=350, bytes=2 * (35 + 70 + 70), dtype="bf16")


def test_random_fill_writes_once() -> None:
    assert run("random_fill", t(7, 11)) == Cost(flops=77, bytes=154, dtype="bf16")


def test_rotary_reads_and_writes_what_it_rotates() -> None:
    c = run("rotary_embedding", (t(5, 16), t(5, 4)), t(5, dtype="int64"), t(1000, 4))
    # the table of 1000 positions is larger than what is rotated: at most as much of it is read
    assert c == Cost(flops=3 * 100, bytes=2 * 200 + 40 + 200, dtype="bf16")

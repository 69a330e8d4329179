import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models.cost import Cost
from tracegap.models.formulas import cost
from tracegap.models.ops import OpSpec, Tensor
from tracegap.models.quantities import compute


def t(*shape: int, dtype: str = "bf16") -> Tensor:
    return Tensor(shape=shape, dtype=dtype)


def norm(kind: str, *tensors: Tensor | None, **params: object) -> Cost:
    return cost(OpSpec(kind=kind, tensors=tensors, params=params))


def test_layer_norm_by_hand() -> None:
    # 7 rows of 11; weights and bias read, mean and 1/deviation of each row saved in fp32
    c = norm("layer_norm", t(7, 11), t(11), t(11), normalized=11)
    assert c == Cost(flops=5 * 77, bytes=2 * (77 + 11 + 11 + 77) + 4 * 2 * 7, dtype="bf16")


def test_rms_norm_agrees_with_the_registered_flops() -> None:
    c = norm("rms_norm", t(7, 11), t(11), normalized=11)
    assert c.flops == compute("rms_norm_fwd_flops", "M8", {"rows": 7, "cols": 11, "affine": True})
    assert c.bytes == 2 * (77 + 11 + 77) + 4 * 7


def test_a_row_of_unknown_size_is_assumed_and_noted() -> None:
    c = norm("layer_norm", t(7, 11), None, None, normalized=None)
    assert c.bytes == 2 * 154 + 4 * 2 * 7
    assert "assumed" in (c.note or "")


@pytest.mark.parametrize(
    ("mask", "flops_each", "extra"),
    [
        ((True, True, True), 10, 77 + 22),
        ((True, False, False), 7, 77),
        ((False, True, True), 3, 22),
        ((True, True), 9, 77 + 11),
    ],
)
def test_backward_by_mask(mask: tuple[bool, ...], flops_each: int, extra: int) -> None:
    statistics = t(7, dtype="fp32")
    c = norm("layer_norm_backward", t(7, 11), t(7, 11), t(11), statistics, statistics, output_mask=mask)
    assert c.flops == flops_each * 77
    assert c.bytes == 2 * (77 + 77 + 11 + extra) + 2 * 4 * 7


def test_backward_without_a_mask_says_what_it_assumes() -> None:
    c = norm("layer_norm_backward", t(7, 11), t(7, 11), t(11))
    assert c.flops == 770
    assert "assumed" in (c.note or "")


def test_batch_norm_in_training_and_inference() -> None:
    x, channel = t(2, 3, 5, 7), t(3, dtype="fp32")
    operands = (x, channel, channel, channel, channel)
    training = norm("batch_norm", *operands, training=True)
    inference = norm("batch_norm", *operands, training=False)
    assert training.flops == 5 * 210 + 6 * 3
    assert inference.flops == 2 * 210
    # training also updates two running statistics and saves two of the batch
    assert inference.bytes == 2 * 2 * 210 + 4 * 4 * 3
    assert training.bytes == inference.bytes + 4 * 4 * 3
    assert "assumed" in (norm("batch_norm", *operands, training=None).note or "")


def test_batch_norm_backward() -> None:
    x, channel = t(2, 3, 5, 7), t(3, dtype="fp32")
    c = norm("batch_norm_backward", x, x, channel, channel, channel, output_mask=(True, True, True), channels=3)
    assert c == Cost(flops=2100, bytes=2 * 3 * 210 + 4 * (3 * 3 + 2 * 3), dtype="bf16")


def test_group_norm() -> None:
    c = norm("group_norm", t(2, 6, 35), t(6), t(6), groups=3)
    assert c == Cost(flops=5 * 420, bytes=2 * (2 * 420 + 12) + 4 * 2 * 6, dtype="bf16")


def test_softmax_and_its_backward() -> None:
    assert norm("softmax", t(7, 11)) == Cost(flops=385, bytes=4 * 77, dtype="bf16")
    assert norm("softmax", t(7, 11), out_dtype="fp32").bytes == 6 * 77
    assert norm("softmax_backward", t(7, 11), t(7, 11)) == Cost(flops=308, bytes=6 * 77, dtype="bf16")


@given(
    st.sampled_from(["layer_norm", "rms_norm", "softmax"]), st.integers(1, 30), st.integers(1, 30), st.integers(2, 5)
)
def test_rows_scale_flops(kind: str, rows: int, cols: int, times: int) -> None:
    one, many = norm(kind, t(rows, cols)), norm(kind, t(rows * times, cols))
    assert many.flops == times * one.flops
    assert many.bytes == times * one.bytes

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import cost
from tracegap.models.formulas.convolution import conv_bwd_flops, conv_fwd_flops
from tracegap.models.ops import OpSpec, Tensor


def t(*shape: int, dtype: str = "fp16") -> Tensor:
    return Tensor(shape=shape, dtype=dtype)


def conv(*tensors: Tensor | None, kind: str = "convolution", **params: object) -> Cost:
    return cost(OpSpec(kind=kind, tensors=tensors, params=params))


def test_by_hand() -> None:
    # 11 x 13 image, 3 x 5 kernel, stride 2, padding 1: 6 x 6 positions
    c = conv(t(2, 3, 11, 13), t(7, 3, 3, 5), None, stride=[2, 2], padding=[1, 1], dilation=[1, 1], groups=1)
    assert c.flops == 2 * (2 * 7 * 6 * 6) * (3 * 3 * 5)
    assert c.bytes == 2 * (2 * 3 * 11 * 13 + 7 * 3 * 3 * 5 + 2 * 7 * 6 * 6)
    assert c.dtype == "fp16"


@given(
    size=st.integers(4, 9),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 4]),
)
def test_every_tap_of_every_position_is_two_flops(
    *, size: int, kernel: int, stride: int, padding: int, dilation: int, groups: int
) -> None:
    """Walks the padded line and counts: the formula knows only sizes."""
    starts = [s for s in range(-padding, size + padding, stride) if s + dilation * (kernel - 1) < size + padding]
    taps = sum(1 for _ in product(starts, range(kernel), range(8), range(4 // groups)))
    c = conv(t(1, 4, size), t(8, 4 // groups, kernel), stride=stride, padding=padding, dilation=dilation, groups=groups)
    assert c.flops == 2 * taps


@given(st.integers(1, 7), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
def test_transposed_spreads_what_the_forward_gathers(size: int, kernel: int, stride: int, dilation: int) -> None:
    """It maps the result's shape of a convolution back to the input's, with the same work."""
    spread = conv(
        t(2, 6, size), t(6, 4, kernel), stride=stride, padding=0, dilation=dilation, transposed=True, groups=1
    )
    made = (size - 1) * stride + dilation * (kernel - 1) + 1
    gathered = conv(t(2, 4, made), t(6, 4, kernel), stride=stride, padding=0, dilation=dilation, groups=1)
    assert spread.flops == gathered.flops
    assert spread.bytes == gathered.bytes


def test_depthwise() -> None:
    c = conv(t(1, 8, 10, 10), t(8, 1, 3, 3), stride=1, padding=1, groups=8)
    assert c.flops == 2 * 8 * 100 * 9


def test_without_a_stride_the_result_is_unknown() -> None:
    c = conv(t(1, 8, 10, 10), t(8, 8, 3, 3), stride=None)
    assert (c.flops, c.bytes) == (None, None)
    assert "stride" in (c.note or "")


def test_channels_must_fit() -> None:
    with pytest.raises(BadShape, match="groups 2"):
        conv(t(1, 8, 10, 10), t(8, 8, 3, 3), stride=1, groups=2)


GRAD, X, W = t(2, 7, 6, 6), t(2, 3, 11, 13), t(7, 3, 3, 5)
FORWARD = 2 * (2 * 7 * 6 * 6) * (3 * 3 * 5)


def test_backward_by_mask() -> None:
    n_grad, n_x, n_w = 504, 858, 315
    both = conv(GRAD, X, W, kind="convolution_backward", output_mask=[True, True, False])
    assert both == Cost(flops=2 * FORWARD, bytes=2 * (n_grad + 2 * n_x + 2 * n_w), dtype="fp16")
    first_layer = conv(GRAD, X, W, kind="convolution_backward", output_mask=[False, True, False])
    assert first_layer == Cost(flops=FORWARD, bytes=2 * (n_grad + n_x + n_w), dtype="fp16")
    bias = conv(GRAD, X, W, kind="convolution_backward", output_mask=[False, False, True])
    assert bias == Cost(flops=n_grad, bytes=2 * (n_grad + 7), dtype="fp16")


@given(st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_backward_is_the_sum_of_its_gradients(mask: tuple[bool, bool, bool]) -> None:
    each = [
        conv(GRAD, X, W, kind="convolution_backward", output_mask=[i == j for j in range(3)]).flops or 0
        for i in range(3)
        if mask[i]
    ]
    assert conv(GRAD, X, W, kind="convolution_backward", output_mask=mask).flops == sum(each)


def test_an_unknown_mask_assumes_both_and_says_so() -> None:
    c = conv(GRAD, X, W, kind="convolution_backward", output_mask=None)
    assert c.flops == 2 * FORWARD
    assert "assumed" in (c.note or "")


def test_single_gradients_of_older_releases() -> None:
    to_input = conv(GRAD, W, kind="convolution_input_gradient", size=list(X.shape))
    to_weight = conv(GRAD, X, kind="convolution_weight_gradient", size=list(W.shape))
    both = conv(GRAD, X, W, kind="convolution_backward", output_mask=[True, True, False])
    assert (to_input.flops or 0) + (to_weight.flops or 0) == both.flops
    assert conv(GRAD, W, kind="convolution_input_gradient", size=None).flops == to_input.flops
    assert conv(GRAD, X, kind="convolution_weight_gradient", size=None).flops is None


def test_registered_quantities_agree_with_the_formula() -> None:
    sizes = {"N": 2, "C_in": 4, "H": 11, "W": 13, "C_out": 6, "kh": 3, "kw": 5, "stride": 2, "pad": 1, "groups": 2}
    by_formula = conv(t(2, 4, 11, 13), t(6, 2, 3, 5), stride=2, padding=1, groups=2)
    assert conv_fwd_flops(**sizes) == by_formula.flops
    assert conv_bwd_flops(**sizes, output_mask=[True, True, False]) == 2 * by_formula.flops

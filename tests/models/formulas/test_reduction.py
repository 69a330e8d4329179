from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import cost
from tracegap.models.ops import OpSpec, Tensor


def t(*shape: int, dtype: str = "fp32") -> Tensor:
    return Tensor(shape=shape, dtype=dtype)


def run(kind: str, *tensors: Tensor | tuple[Tensor, ...] | None, **params: object) -> Cost:
    return cost(OpSpec(kind=kind, tensors=tensors, params=params))


@pytest.mark.parametrize(("dims", "out"), [(None, 1), ([], 1), (0, 55), ([1, -1], 7), (-2, 35), ([0, 1, 2], 1)])
def test_adds_are_in_less_out(dims: object, out: int) -> None:
    c = run("reduction", t(7, 11, 5), dims=dims)
    assert c == Cost(flops=385 - out, bytes=4 * (385 + out), dtype="fp32")


def test_unknown_dimensions_leave_what_is_read() -> None:
    c = run("reduction", t(7, 11), dims="unknown")
    assert (c.flops, c.bytes) == (None, 4 * 77)
    assert "dimensions" in (c.note or "")


def test_an_index_goes_with_each_result() -> None:
    assert run("reduction", t(7, 11), dims=1, index=True).bytes == 4 * 77 + (4 + 8) * 7
    assert run("reduction", t(7, 11), dims=1, out_dtype="int64").bytes == 4 * 77 + 8 * 7


def test_a_dimension_that_is_not_there() -> None:
    with pytest.raises(BadShape):
        run("reduction", t(7, 11), dims=2)


def test_largest_of_two_tensors_is_elementwise() -> None:
    assert run("extreme", t(7, 11), t(7, 11)).bytes == 3 * 308
    assert run("extreme", t(7, 11), None, dims=None).bytes == 308 + 4


def test_norms_of_a_list() -> None:
    assert run("foreach_reduction", (t(7), t(11)), flops_per_element=2) == Cost(flops=36, bytes=4 * 20, dtype="fp32")


@given(size=st.integers(4, 12), kernel=st.integers(1, 3), stride=st.integers(1, 3), data=st.data())
def test_pooling_counts_the_windows(*, size: int, kernel: int, stride: int, data: st.DataObject) -> None:
    padding = data.draw(st.integers(0, kernel // 2))
    starts = range(-padding, size + padding - kernel + 1, stride)
    c = run(
        "pooling", t(2, 3, size, size), dims=2, kernel=[kernel], stride=[stride], padding=[padding], index=True
    )  # fmt: skip
    made = 6 * len(starts) ** 2
    assert c.flops == made * kernel * kernel
    assert c.bytes == 4 * 6 * size * size + (4 + 8) * made


# sizes of results by max_pool1d(ceil_mode=True) of PyTorch 2.13
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "made"),
    [(5, 2, 2, 0, 3), (6, 3, 2, 1, 4), (4, 1, 3, 0, 2), (5, 1, 3, 0, 2), (4, 2, 1, 0, 3), (7, 3, 3, 1, 3)],
)
def test_pooling_in_ceil_mode(*, size: int, kernel: int, stride: int, padding: int, made: int) -> None:
    settings = {"kernel": [kernel, 1], "stride": [stride, 1], "padding": [padding, 0]}
    assert run("pooling", t(1, 1, size, 1), dims=2, ceil_mode=True, **settings).flops == made * kernel


def test_adaptive_pooling_covers_the_input_once() -> None:
    c = run("pooling", t(2, 3, 8, 8), dims=2, out_size=[1, 1])
    assert c == Cost(flops=384, bytes=4 * (384 + 6), dtype="fp32")


def test_pooling_backward_writes_the_input_size() -> None:
    c = run("pooling_backward", t(2, 3, 4, 4), t(2, 3, 8, 8), t(2, 3, 4, 4, dtype="int64"))
    assert c.bytes == 4 * 96 + 8 * 96 + 4 * 384


def test_losses() -> None:
    assert run("nll_loss", t(32, 1000), t(32, dtype="int64")) == Cost(flops=32, bytes=32 * 12 + 8, dtype="fp32")
    back = run("nll_loss_backward", t(), t(32, 1000), t(32, dtype="int64"))
    assert back.bytes == 4 + 256 + 4 * 32000


def test_sort_and_top_k() -> None:
    assert run("sort", t(3, 16), dim=1) == Cost(flops=3 * 16 * 4, bytes=4 * 48 + 12 * 48, dtype="fp32")
    assert run("sort", t(3, 16), dim=-1, results=2).bytes == 4 * 48 + 12 * 6


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_reducing_in_two_steps_adds_as_often(shape: list[int], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(shape) - 1))
    rest = [n for i, n in enumerate(shape) if i != first]
    at_once = run("reduction", t(*shape), dims=None).flops
    in_steps = (run("reduction", t(*shape), dims=first).flops or 0) + (run("reduction", t(*rest), dims=None).flops or 0)
    assert at_once == in_steps == prod(shape) - 1

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models.errors import BadShape
from tracegap.models.formulas.sizes import UNKNOWN, broadcast, nbytes, promote, stored_elements
from tracegap.models.ops import Tensor


def t(*shape: int, dtype: str = "fp32", strides: tuple[int, ...] | None = None) -> Tensor:
    return Tensor(shape=shape, dtype=dtype, strides=strides)


@pytest.mark.parametrize(
    ("shape", "strides", "stored"),
    [
        ((7, 11), (11, 1), 77),
        ((7, 11), (1, 7), 77),
        ((7, 11), (0, 1), 11),
        ((7, 11), (0, 0), 1),
        ((5, 3), (1, 1), 7),  # windows of 3 that overlap: 0 1 2 | 1 2 3 | ... | 4 5 6
        ((2, 3), (300, 1), 6),  # rows far apart in memory are still 6 elements
        ((0, 3), (3, 1), 0),
        ((), (), 1),
        ((7, 11), None, 77),
    ],
)
def test_stored_elements(shape: tuple[int, ...], strides: tuple[int, ...] | None, stored: int) -> None:
    assert stored_elements(t(*shape, strides=strides)) == stored


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), min_size=1, max_size=3))
def test_stored_elements_bound_the_touched_addresses(dims: list[tuple[int, int]]) -> None:
    addresses = {0}
    for size, stride in dims:
        addresses = {a + i * stride for a in addresses for i in range(size)}
    x = t(*(n for n, _ in dims), strides=tuple(s for _, s in dims))
    assert len(addresses) <= stored_elements(x)
    assert stored_elements(x) <= max(addresses) + 1


def test_nbytes_of_lists_none_and_half_bytes() -> None:
    assert nbytes((t(3), t(5, dtype="bf16")), None, t(7, dtype="int4")) == 12 + 10 + 4
    assert nbytes(t(3), t(3, dtype=UNKNOWN)) is None


def test_broadcast() -> None:
    assert broadcast([(7, 1, 3), (5, 1), ()]) == (7, 5, 3)
    with pytest.raises(BadShape, match="do not broadcast"):
        broadcast([(2, 3), (4, 3)])


# by torch.result_type of PyTorch 2.13
@pytest.mark.parametrize(
    ("operands", "result"),
    [
        ([t(2, dtype="bf16"), t(2, dtype="fp32")], "fp32"),
        ([t(2, dtype="bf16"), t(dtype="fp32")], "bf16"),
        ([t(2, dtype="bf16"), t(2, dtype="fp16")], "fp32"),
        ([t(2, dtype="int64"), t(dtype="fp32")], "fp32"),
        ([t(2, dtype="bool"), t(2, dtype="uint8")], "uint8"),
        ([t(2, dtype="int8"), t(2, dtype="uint8")], "int16"),
        ([t(dtype="fp64"), t(dtype="fp32")], "fp64"),
        ([t(2, dtype="int32"), t(dtype="int64")], "int32"),
        ([t(2, dtype=UNKNOWN), t(2)], UNKNOWN),
        ([], UNKNOWN),
    ],
)
def test_promote(operands: list[Tensor], result: str) -> None:
    assert promote(operands) == result

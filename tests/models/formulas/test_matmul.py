import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import cost
from tracegap.models.ops import OpSpec, Tensor
from tracegap.models.quantities import compute

sizes = st.integers(1, 64)


def t(*shape: int, dtype: str = "bf16", strides: tuple[int, ...] | None = None) -> Tensor:
    return Tensor(shape=shape, dtype=dtype, strides=strides)


def matmul(*tensors: Tensor | None, **params: object) -> Cost:
    return cost(OpSpec(kind="matmul", tensors=tensors, params=params))


def test_a_product_by_hand() -> None:
    # 7 x 13 results of 11 multiply-adds; 77 + 143 + 91 elements of 2 bytes
    assert matmul(t(7, 11), t(11, 13)) == Cost(flops=2002, bytes=622, dtype="bf16")


def test_bias_is_read_at_its_own_size() -> None:
    plain = matmul(t(7, 11), t(11, 13))
    row = matmul(t(7, 11), t(11, 13), t(13))
    full = matmul(t(7, 11), t(11, 13), t(7, 13))
    assert row.bytes == plain.bytes + 2 * 13
    assert full.bytes == plain.bytes + 2 * 91
    assert row.flops == full.flops == plain.flops


def test_linear_layer_takes_weights_by_rows() -> None:
    by_rows = matmul(t(2, 3, 11), t(13, 11), None, transposed_b=True)
    assert by_rows == matmul(t(6, 11), t(11, 13))


def test_vectors() -> None:
    assert matmul(t(7, 11), t(11)).flops == 154
    assert matmul(t(11), t(11)) == Cost(flops=22, bytes=46, dtype="bf16")


def test_a_broadcast_batch_is_stored_once() -> None:
    stored = matmul(t(5, 7, 11), t(5, 11, 13))
    shared = matmul(t(5, 7, 11), t(5, 11, 13, strides=(0, 13, 1)))
    assert stored.flops == shared.flops == 5 * 2002
    assert stored.bytes - shared.bytes == 2 * 4 * 143


def test_eight_bit_operands_and_a_wider_result() -> None:
    c = matmul(t(32, 64, dtype="fp8"), t(64, 16, dtype="fp8"), t(dtype="fp32"), t(dtype="fp32"), out_dtype="bf16")
    assert c == Cost(flops=65536, bytes=2048 + 1024 + 1024 + 8, dtype="fp8")


def test_a_result_of_unknown_dtype_leaves_bytes_unknown() -> None:
    c = matmul(t(32, 64, dtype="fp8"), t(64, 16, dtype="fp8"), out_dtype=None)
    assert c.flops == 65536
    assert c.bytes is None
    assert "result" in (c.note or "")


@given(sizes, sizes, sizes, st.integers(1, 9))
def test_batch_scales_everything(m: int, k: int, n: int, batch: int) -> None:
    one, many = matmul(t(m, k), t(k, n)), matmul(t(batch, m, k), t(batch, k, n))
    assert many.flops == batch * one.flops
    assert many.bytes == batch * one.bytes


@given(sizes, sizes, sizes)
def test_both_gradients_are_two_products(m: int, k: int, n: int) -> None:
    forward = matmul(t(m, k), t(k, n))
    grad_input, grad_weight = matmul(t(m, n), t(n, k)), matmul(t(k, m), t(m, n))
    assert grad_input.flops + grad_weight.flops == 2 * forward.flops
    assert grad_input.bytes == grad_weight.bytes == forward.bytes


@pytest.mark.parametrize("shapes", [((7, 11), (13, 7)), ((2, 7, 11), (3, 11, 13)), ((7, 11), (2, 11, 13))])
def test_shapes_that_do_not_fit(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(BadShape):
        matmul(*(t(*s) for s in shapes))


def test_packed_weights() -> None:
    # 5 x 64 activations, 16 rows of 64 four-bit weights in 32-bit words, 2 groups of (scale, zero) a row
    spec = OpSpec(
        kind="weight_only_matmul",
        tensors=(t(5, 64), t(2, 1, 32, 2, dtype="int32"), t(2, 16, 2)),
        params={"out_features": 16},
    )
    assert cost(spec) == Cost(
        flops=2 * 5 * 64 * 16, bytes=5 * 64 * 2 + 16 * 64 // 2 + 64 * 2 + 5 * 16 * 2, dtype="bf16"
    )


def test_grouped_rows_agree_with_the_registered_bytes() -> None:
    spec = OpSpec(kind="grouped_matmul", tensors=(t(96, 20), t(3, 20, 7)))
    c = cost(spec)
    assert c.flops == 2 * 96 * 20 * 7
    assert c.bytes == compute("grouped_mm_bytes", "M1", {"M": 96, "K": 20, "N": 7, "G": 3, "bytes_per_elem": 2})


def test_grouped_weight_gradient_has_a_result_for_each_group() -> None:
    offsets = t(3, dtype="int32")
    c = cost(OpSpec(kind="grouped_matmul", tensors=(t(20, 96), t(96, 7), offsets)))
    assert c.flops == 2 * 20 * 96 * 7
    assert c.bytes == 2 * (20 * 96 + 96 * 7 + 3 * 20 * 7) + 12

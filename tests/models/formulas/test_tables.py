"""Lookups in tables of embeddings and rows of 8-bit numbers, worked out on paper."""

from tracegap.models.formulas import cost
from tracegap.models.ops import OpSpec, Tensor


def t(*shape: int, dtype: str = "fp32") -> Tensor:
    return Tensor(shape=shape, dtype=dtype)


def test_weighted_lookups_multiply_too() -> None:
    tensors = (t(7000, dtype="fp16"), t(11, dtype="int64"), t(6, dtype="int64"), t(11))
    found = cost(OpSpec(kind="table_lookup", tensors=tensors, params={"width": 7}))
    assert found.flops == 2 * 11 * 7
    assert found.bytes == 2 * 11 * 7 + 4 * 5 * 7 + 8 * (11 + 6) + 4 * 11


def test_a_backward_without_its_lookup_is_unknown() -> None:
    found = cost(OpSpec(kind="table_lookup_backward", tensors=(t(5, 7),), params={"width": 7}))
    assert (found.flops, found.bytes) == (None, None)


def test_rows_of_8_bits_with_their_scale() -> None:
    down = cost(OpSpec(kind="quantized_rows", tensors=(t(5, 7),), params={"scale_bytes": 8, "out_dtype": "uint8"}))
    assert (down.flops, down.bytes) == (2 * 35, 4 * 35 + 5 * (7 + 8))
    up = cost(
        OpSpec(
            kind="quantized_rows", tensors=(t(5, 15, dtype="uint8"),), params={"scale_bytes": 8, "out_dtype": "fp32"}
        )
    )
    assert (up.flops, up.bytes) == (2 * 35, 5 * 15 + 4 * 35)


def test_values_put_where_unknown_indices_say() -> None:
    values, target = t(5, 7, dtype="fp16"), t(100, 7, dtype="fp16")
    adding = cost(OpSpec(kind="put", tensors=(values, target), params={"adds": True}))
    assert (adding.flops, adding.bytes) == (35, 2 * 35 + 2 * 35 * 2)
    unknown = cost(OpSpec(kind="put", tensors=(values, target), params={"adds": None}))
    assert (unknown.flops, unknown.bytes) == (None, 2 * 35 + 2 * 35)

import pytest

from tracegap.ingest.classify.dtypes import DTYPES, PACKED, of_scalar_type
from tracegap.models.ops import DTYPE_BYTES


def test_every_name_is_ours() -> None:
    assert set(DTYPES.values()) <= set(DTYPE_BYTES)
    assert set(DTYPES) >= PACKED


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("float", "fp32"), ("double", "fp64"), ("c10::BFloat16", "bf16"), ("c10::Half", "fp16"), ("long int", "int64"),
        ("int", "int32"), ("short int", "int16"), ("signed char", "int8"), ("unsigned char", "uint8"), ("bool", "bool"),
        ("c10::Float8_e4m3fn", "fp8"), ("c10::Float8_e5m2fnuz", "fp8"), ("c10::complex<float>", "complex64"),
        ("Float", "fp32"), ("BFloat16", "bf16"), ("Half", "fp16"), ("Long", "int64"), ("Int", "int32"),
        ("Byte", "uint8"),
        ("bf16", "bf16"), ("f32", "fp32"), ("s32", "int32"), ("pred", "bool"), ("u8", "uint8"), ("f8e4m3fn", "fp8"),
        ("c64", "complex64"), ("s4", "int4"), ("float32", "fp32"), ("bfloat16", "bf16"), ("torch.bfloat16", "bf16"),
    ],
)  # fmt: skip
def test_names(name: str, ours: str) -> None:
    assert DTYPES[name] == ours


@pytest.mark.parametrize("name", ["TensorList", "Scalar", "ScalarList", "", "Tensor"])
def test_what_is_no_dtype(name: str) -> None:
    assert name not in DTYPES


# numbers of torch's c10/core/ScalarType.h
@pytest.mark.parametrize(
    ("number", "ours"),
    [(0, "uint8"), (4, "int64"), (5, "fp16"), (6, "fp32"), (7, "fp64"), (8, None), (11, "bool"), (15, "bf16"),
     (24, "fp8"), (44, "fp8"), (45, "fp4"), (-1, None), (99, None)],
)  # fmt: skip
def test_scalar_types(number: int, ours: str | None) -> None:
    assert of_scalar_type(number) == ours

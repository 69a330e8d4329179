"""Names that frameworks give to element types, in our words. Pure."""

from collections.abc import Mapping
from types import MappingProxyType

_NAMES = {
    "fp64": "double float64 f64 fp64 torch.float64 kFloat64 at::Double",
    "fp32": "float float32 f32 fp32 single torch.float32",
    "tf32": "tf32 tfloat32 TensorFloat32",
    "bf16": "c10::BFloat16 BFloat16 bfloat16 bf16 at::BFloat16 torch.bfloat16 __nv_bfloat16 __hip_bfloat16 "
    "nv_bfloat16 hip_bfloat16 cutlass::bfloat16_t bfloat16_t",
    "fp16": "c10::Half Half half float16 f16 fp16 at::Half torch.float16 __half cutlass::half_t half_t",
    "fp8": "c10::Float8_e4m3fn c10::Float8_e5m2 c10::Float8_e4m3fnuz c10::Float8_e5m2fnuz c10::Float8_e8m0fnu "
    "Float8_e4m3fn Float8_e5m2 Float8_e4m3fnuz Float8_e5m2fnuz Float8_e8m0fnu float8_e4m3fn float8_e5m2 "
    "float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float8_e4m3 float8_e3m4 float8_e4m3b11fnuz f8e4m3fn f8e5m2 f8e4m3 "
    "f8e3m4 f8e4m3fnuz f8e5m2fnuz f8e4m3b11fnuz f8e8m0fnu e4m3 e5m2 fp8 fp8e4m3 fp8e5m2 f8 float8 mxfp8 "
    "__nv_fp8_e4m3 __nv_fp8_e5m2",
    "int8": "signed_char int8 int8_t s8 i8 char torch.int8 qint8 c10::qint8",
    "uint8": "unsigned_char uint8 uint8_t u8 Byte byte torch.uint8 quint8 c10::quint8",
    "fp4": "c10::Float4_e2m1fn_x2 Float4_e2m1fn_x2 float4_e2m1fn_x2 float4_e2m1fn f4e2m1fn fp4 mxfp4 nvfp4 e2m1",
    "int4": "int4 uint4 s4 u4 i4 quint4x2 c10::quint4x2",
    "bool": "bool pred i1 boolean torch.bool",
    "int16": "short short_int int16 int16_t s16 i16 uint16 u16 unsigned_short unsigned_short_int torch.int16 "
    "c10::UInt16",
    "int32": "int int32 int32_t s32 i32 uint32 u32 unsigned_int torch.int32 qint32 c10::qint32 c10::UInt32",
    "int64": "long long_int int64 int64_t s64 i64 uint64 u64 unsigned_long unsigned_long_int long_long torch.int64 "
    "c10::UInt64",
    "complex64": "c10::complex<float> ComplexFloat complex64 c64 cfloat torch.complex64",
    "complex128": "c10::complex<double> ComplexDouble complex128 c128 cdouble torch.complex128",
}

DTYPES: Mapping[str, str] = MappingProxyType(
    {
        spelling: ours
        for ours, names in _NAMES.items()
        for name in names.split()
        for spelling in {name, name.replace("_", " "), name.capitalize()}
    }
)
"""A framework's name of a dtype -> key of `models.ops.DTYPE_BYTES`. Kineto's C++ spellings ("long int", "signed char"),
NCCL's words in Kineto ("Float", "Long", "Byte"), XLA's ("f32", "s32", "pred", "u8") and short ones ("bf16")."""

PACKED = frozenset({"c10::Float4_e2m1fn_x2", "Float4_e2m1fn_x2", "float4_e2m1fn_x2", "c10::quint4x2", "quint4x2"})
"""Types of which one stored element holds two values: shapes of a trace count the pairs."""

_SCALAR_TYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "fp16", "fp32", "fp64", None, "complex64", "complex128", "bool"),
    *("int8", "uint8", "int32", "bf16", "int4"),
)
"""PyTorch's `ScalarType` numbers from 0 on in our words (8, half-precision complex, has none)."""

_LATER_SCALAR_TYPES = {
    **dict.fromkeys((23, 24, 25, 26, 44), "fp8"),
    27: "int16",
    28: "int32",
    29: "int64",
    45: "fp4",
}


def of_scalar_type(number: int) -> str | None:
    """Our name of PyTorch's `ScalarType` number, as `Concrete Inputs` write a dtype (15 = bfloat16); None = unknown."""
    return _SCALAR_TYPES[number] if 0 <= number < len(_SCALAR_TYPES) else _LATER_SCALAR_TYPES.get(number)

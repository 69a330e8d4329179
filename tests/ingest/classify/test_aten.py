"""Arguments as Kineto writes them, to class and cost. Figures are hand arithmetic."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracegap.ingest.classify import aten
from tracegap.ingest.classify.aten import Described, describe
from tracegap.ingest.classify.aten_names import REASONS, VIEWS, WRAPPERS
from tracegap.ingest.classify.aten_table import entries
from tracegap.models import formulas
from tracegap.models.ops import DTYPE_BYTES, OpClass

ENTRIES = entries()

BF16, F32, I64 = "c10::BFloat16", "float", "long int"


def call(name: str, *arguments: object, **more: str) -> Described:
    """Describes a call: (shape, type[, strides]) are tensors, None is an absent one, all else scalars."""
    dims, types, strides, concrete = [], [], [], []
    for a in arguments:
        tensor = a if isinstance(a, tuple) else ([], "" if a is None else "Scalar")
        dims.append(tensor[0])
        types.append(tensor[1])
        strides.append(tensor[2] if len(tensor) > 2 else [])
        concrete.append("" if isinstance(a, tuple) or a is None else str(a))
    return describe(name, dims, types, strides, concrete, **more)


def test_every_entry_has_a_formula_and_stands_once() -> None:
    assert {entry.kind for entry in ENTRIES.values()} <= set(formulas.known())
    assert not set(ENTRIES) & (set(REASONS) | VIEWS)
    assert not VIEWS & WRAPPERS


# --- matrix products: two rows of TraceLens' reports of public traces (its addmm counts the bias' M N as well)


def test_mm_of_a_large_language_model() -> None:
    d = call("aten::mm", ([8944, 1024], BF16, [1024, 1]), ([1024, 2816], BF16, [1, 1024]))
    assert d == Described(OpClass.MATMUL, "bf16", 51_581_550_592, 74_457_088, None)


def test_addmm_of_a_small_encoder() -> None:
    d = call("aten::addmm", ([512], BF16), ([141, 512], BF16), ([512, 512], BF16), 1, 1)
    assert d == Described(OpClass.MATMUL, "bf16", 73_996_800 - 141 * 512, 814_080, None)


def test_addmm_does_not_read_what_beta_zeroes() -> None:
    full = call("aten::baddbmm", ([2, 3, 7], F32), ([2, 3, 5], F32), ([2, 5, 7], F32), 1, 1)
    none = call("aten::baddbmm", ([2, 3, 7], F32), ([2, 3, 5], F32), ([2, 5, 7], F32), 0, 1)
    assert full.flops == none.flops == 2 * 2 * 3 * 5 * 7
    assert (full.bytes or 0) - (none.bytes or 0) == 4 * 42


def test_scaled_mm_of_both_releases() -> None:
    a, b, scale = ([32, 64], "c10::Float8_e4m3fn"), ([64, 16], "c10::Float8_e4m3fn"), ([], F32)
    now = call("aten::_scaled_mm", a, b, scale, scale, None, None, 15, True)
    then = call("aten::_scaled_mm", a, b, None, 15, scale, scale, None, True)
    assert now == then == Described(OpClass.MATMUL, "fp8", 65_536, 2048 + 1024 + 1024 + 8, None)
    rows = call("aten::_scaled_mm", a, b, ([32, 1], F32), ([1, 16], F32), None, None, 15, True)
    assert rows.bytes == 2048 + 1024 + 1024 + 4 * 48


def test_scaled_mm_with_lists_of_scales() -> None:
    fp8, scales = "c10::Float8_e4m3fn", ([[32, 1]], "TensorList")
    d = call(
        "aten::_scaled_mm_v2", ([32, 64], fp8), ([64, 16], fp8), scales, "[0]", "[0]", scales, "[0]", "[0]", None, 15,
        "[]", True,
    )  # fmt: skip
    assert (d.flops, d.bytes, d.note) == (65_536, 2048 + 1024 + 1024, "scales are not counted")


def test_int8_gives_int32() -> None:
    d = call("aten::_int_mm", ([32, 64], "signed char"), ([64, 16], "signed char"))
    assert (d.dtype, d.bytes) == ("int8", 2048 + 1024 + 4 * 512)


def test_weights_of_four_bits() -> None:
    d = call("aten::_weight_int4pack_mm", ([5, 64], BF16), ([2, 1, 32, 2], "int"), 32, ([2, 16, 2], BF16))
    assert (d.dtype, d.flops) == ("bf16", 2 * 5 * 64 * 16)
    assert d.bytes == 640 + 512 + 128 + 160


def test_packed_four_bit_floats_count_pairs() -> None:
    packed = "c10::Float4_e2m1fn_x2"
    d = call(
        "aten::_scaled_mm", ([32, 32], packed, [32, 1]), ([32, 16], packed, [1, 32]), ([32, 4], "c10::Float8_e4m3fn"),
        ([4, 16], "c10::Float8_e4m3fn"), None, None, 15, False,
    )  # fmt: skip
    assert (d.dtype, d.flops, d.bytes) == ("fp4", 2 * 32 * 64 * 16, 1024 + 512 + 128 + 64 + 1024)


# --- attention


def test_flash_attention_of_a_public_trace() -> None:
    # 16 sequences of 559, 16 heads of 64, causal: TraceLens has 10.239377408 GFLOP and 69.875 MiB
    qkv = ([16, 16, 559, 64], BF16)
    d = call("aten::_scaled_dot_product_flash_attention", qkv, qkv, qkv, 0.0, True, False, 0.125)
    assert d == Described(OpClass.ATTENTION, "bf16", 10_239_377_408, int(69.875 * 2**20), None)


def test_the_inner_operator_says_the_same_in_its_own_layout() -> None:
    qkv = ([16, 559, 16, 64], BF16)
    nothing = (None, None)
    d = call(
        "aten::_flash_attention_forward", qkv, qkv, qkv, *nothing, 559, 559, 0.0, True, False, 0.125, None, None, None,
        None,
    )  # fmt: skip
    assert (d.flops, d.note) == (10_239_377_408, None)


def test_a_local_window() -> None:
    # each of 6 queries sees itself and up to 2 keys before: 1 + 2 + 3 + 3 + 3 + 3
    qkv = ([1, 6, 1, 8], BF16)
    d = call("flash_attn::_flash_attn_forward", qkv, qkv, qkv, 0.0, 1.0, True, 2, 0, 0.0, None, False)
    assert d.flops == 4 * 8 * 15


@pytest.mark.parametrize(("mask_type", "scores"), [(0, 4 * 8), (1, 8), (2, 24)])
def test_efficient_attention_by_mask_type(mask_type: int, scores: int) -> None:
    # 4 queries, 8 keys: full, or half the square at the top left, or that with all 4 older keys
    q, kv = ([1, 4, 1, 16], BF16), ([1, 8, 1, 16], BF16)
    d = call(
        "aten::_efficient_attention_forward", q, kv, kv, None, None, None, None, None, 0.0, mask_type, False
    )  # fmt: skip
    assert d.flops == 4 * 16 * scores


def test_packed_batches_need_their_lengths() -> None:
    qkv = ([100, 4, 16], BF16)
    d = call(
        "flash_attn::_flash_attn_varlen_forward", qkv, qkv, qkv, ([3], "int"), ([3], "int"), 60, 60, 0.0, 1.0, True
    )
    assert (d.flops, d.bytes) == (None, 4 * 2 * 6400)
    assert "lengths" in (d.note or "")


def test_attention_without_scalars_has_flops_only_where_the_kernel_tells_the_mask() -> None:
    qkv = [2, 4, 8, 16]
    op = "aten::_scaled_dot_product_flash_attention", [qkv] * 3 + [[], []], [BF16] * 3 + ["Scalar"] * 2
    assert describe(*op).flops is None
    assert "causal" in (describe(*op).note or "")
    full = 4 * 2 * 4 * 8 * 8 * 16
    assert describe(*op, causal=False).flops == full
    assert describe(*op, causal=True).flops == full // 2
    recorded = ["", "", "", "0.0", "False"]
    assert describe(*op, None, recorded, causal=True).flops == full


def test_attention_backward() -> None:
    x, lse = ([2, 4, 8, 16], BF16), ([2, 4, 8], F32)
    d = call(
        "aten::_scaled_dot_product_flash_attention_backward", x, x, x, x, x, lse, None, None, 8, 8, 0.0, True,
    )  # fmt: skip
    assert d.flops == 10 * 2 * 4 * 8 * 8 * 16 // 2
    assert d.bytes == (5 + 3) * 2 * 1024 + 4 * 64


# --- convolutions


def test_convolutions_under_their_many_names() -> None:
    x, w = ([2, 4, 9, 9], BF16), ([6, 2, 3, 3], BF16)
    flops, nbytes = 2 * 2 * 6 * 25 * 2 * 9, 2 * (648 + 108 + 300)
    named = {
        "aten::convolution": (x, w, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 2),
        "aten::cudnn_convolution": (x, w, [1, 1], [2, 2], [1, 1], 2, False, False, True),
        "aten::miopen_convolution": (x, w, None, [1, 1], [2, 2], [1, 1], 2, False, False),
        "aten::cudnn_convolution_relu": (x, w, None, [2, 2], [1, 1], [1, 1], 2),
    }
    for name, arguments in named.items():
        assert call(name, *arguments) == Described(OpClass.CONVOLUTION, "bf16", flops, nbytes, None), name


def test_convolution_backward_of_a_first_layer() -> None:
    g, x, w = ([2, 6, 5, 5], F32), ([2, 4, 9, 9], F32), ([6, 2, 3, 3], F32)
    mask = "[False, True, True]"
    d = call("aten::convolution_backward", g, x, w, [6], [2, 2], [1, 1], [1, 1], False, [0, 0], 2, mask)
    assert d.flops == 2 * 300 * 18 + 300
    assert d.bytes == 4 * (300 + 648 + 108 + 6)


# --- quirks of Kineto


def test_in_place_and_overloads() -> None:
    plain = call("aten::add", ([7, 11], BF16), ([7, 11], BF16), 1)
    assert call("aten::add_", ([7, 11], BF16), ([7, 11], BF16), 1).bytes == plain.bytes == 3 * 154
    assert call("aten::relu_", ([7, 11], BF16)).bytes == 2 * 154
    assert call("aten::add.Tensor", ([7, 11], BF16), ([7, 11], BF16), 1) == plain
    assert call("aten::add", ([7, 11], BF16), ([7, 11], BF16), 2).flops == 2 * 77


def test_python_numbers_move_no_bytes() -> None:
    # `x * 2.5` is recorded as a 0-dimensional double
    assert call("aten::mul", ([7, 11], BF16), ([], "double")).bytes == 2 * 154
    assert call("aten::mul", ([7, 11], BF16), ([], F32)).bytes == 2 * 154 + 4
    assert call("aten::mul", ([7, 11], I64), ([], "double")).bytes == 77 * (8 + 4)


def test_a_lone_number_is_a_tensor() -> None:
    d = call("aten::add_", ([], I64), ([], I64), 1)
    assert (d.flops, d.bytes) == (1, 24)


def test_expanded_inputs_move_what_is_stored() -> None:
    d = call("aten::mul", ([7, 11], F32, [11, 1]), ([7, 11], F32, [0, 1]))
    assert d.bytes == 4 * (77 + 11 + 77)


def test_the_oldest_traces_have_no_types_and_no_scalars() -> None:
    d = describe("aten::addmm", [[1000], [32, 2048], [2048, 1000], [], []], [], None, None)
    assert (d.op_class, d.flops, d.bytes, d.dtype) == (OpClass.MATMUL, 2 * 32 * 2048 * 1000, None, None)
    assert d.note == "dtypes are not in the trace"
    d = describe("aten::cudnn_convolution", [[32, 3, 224, 224], [64, 3, 7, 7]] + [[]] * 6, [])
    assert (d.flops, d.bytes) == (None, None)
    assert "stride" in (d.note or "")


def test_lists_of_tensors_take_their_dtype_from_the_kernel() -> None:
    lists = ([[[7, 11], [13]], "TensorList"], [[[7, 11], [13]], "TensorList"])
    dims, types = [x[0] for x in lists], [x[1] for x in lists]
    blind = describe("aten::_foreach_add_", [*dims, []], [*types, "Scalar"], None, ["", "", "1"])
    assert (blind.flops, blind.bytes) == (90, None)
    told = describe("aten::_foreach_add_", [*dims, []], [*types, "Scalar"], None, ["", "", "1"], list_dtype="fp32")
    assert (told.flops, told.bytes) == (90, 3 * 360)


def test_lists_without_shapes_are_unknown_not_free() -> None:
    d = describe("aten::_foreach_add_", [[], [], []], ["TensorList", "TensorList", "Scalar"])
    assert (d.flops, d.bytes, d.note) == (None, None, "shapes of the tensor list are not in the trace")
    d = describe("aten::stack", [[2048, 437], [], []], ["float", "TensorList", "Scalar"])
    assert (d.flops, d.bytes) == (None, None)


def test_scalars_of_older_releases_are_no_tensors() -> None:
    assert describe("aten::mul", [[7, 11], []], ["float", "Double"]).bytes == 2 * 308
    assert describe("aten::mul", [[7, 11], []], ["long", "Int"]).bytes == 2 * 616


def test_leftovers_before_a_condition() -> None:
    d = describe("aten::where", [[9, 9], [9, 9], [9], [9], []], ["float", "float", "bool", "float", "Scalar"])
    assert (d.flops, d.bytes) == (None, None)


def test_fused_adam() -> None:
    group = [[7, 11], [13]]
    dims = [group, group, group, group, [], [[1], [1]]] + [[]] * 6
    types = ["TensorList"] * 6 + ["Scalar"] * 6
    d = describe("aten::_fused_adamw_", dims, types, None, None, list_dtype="fp32")
    # parameters and two moments read and written, gradients read
    assert (d.op_class, d.flops, d.bytes) == (OpClass.OPTIMIZER, 16 * 90, 7 * 360)


def test_sum_tells_its_overloads_apart() -> None:
    x = ([7, 11], BF16)
    assert call("aten::sum", x, None).bytes == 154 + 2
    assert call("aten::sum", x, 6).bytes == 154 + 4  # to float: dtype 6, not dimension 6
    assert call("aten::sum", x, "[0]", False, None).bytes == 154 + 22
    assert call("aten::max", x, ([7, 11], BF16)).bytes == 3 * 154
    assert call("aten::max", x, 1, False).bytes == 154 + 7 * 10


def test_compiled_kernels_count_their_buffers() -> None:
    d = call(
        "triton_poi_fused_clone_slice_1", ([2, 38, 4429, 64], BF16), ([2, 4096, 2432], BF16), 19_922_944
    )  # fmt: skip
    assert (d.op_class, d.flops) == (OpClass.ELEMENTWISE, None)
    assert d.bytes == 2 * 2 * 19_922_944
    assert "each buffer" in (d.note or "")


def test_templates_of_products_are_told_by_their_buffers() -> None:
    a, b, c = ([128, 64], BF16), ([64, 256], BF16), ([128, 256], BF16)
    d = call("triton_tem_fused_mm_3", a, b, c, 8, 1, 1)
    assert (d.op_class, d.dtype, d.flops) == (OpClass.MATMUL, "bf16", 2 * 128 * 64 * 256)
    assert d.bytes == 2 * (128 * 64 + 64 * 256 + 128 * 256)
    # a bias and a residual of the epilogue change no FLOPs; square matrices fit in several ways of one cost
    assert call("triton_tem_fused_addmm_relu_3", ([256], BF16), a, b, c, c).flops == d.flops
    square = ([64, 64], BF16)
    assert call("triton_tem_fused_mm_3", square, square, square).flops == 2 * 64**3
    batch = call("triton_tem_fused_bmm_3", ([4, 128, 64], BF16), ([4, 64, 32], BF16), ([4, 128, 32], BF16))
    assert batch.flops == 2 * 4 * 128 * 64 * 32
    unclear = call("triton_tem_fused_mm_3", ([128, 64], BF16), ([64, 256], BF16))
    assert (unclear.flops, unclear.bytes) == (None, 2 * (128 * 64 + 64 * 256))
    assert call("triton_poi_fused_mm_add_3", a, b, c).flops is None  # only a word in the name of another kernel


def test_what_has_no_formula_says_so() -> None:
    assert call("mylib::teleport", ([7], F32)) == Described(None, None, None, None, "no formula for mylib::teleport")
    assert call("aten::index", ([7, 3], F32), None).note == "shapes of the index tensors are not in the trace"
    assert "record_shapes" in (describe("aten::mm", None, None).note or "")
    assert call("c10d::allreduce_", ([7], F32)).op_class is OpClass.COLLECTIVE
    assert "contracted sizes differ" in (call("aten::mm", ([7, 11], F32), ([13, 7], F32)).note or "")


@pytest.mark.parametrize(
    "name",
    ["aten::linear", "aten::matmul", "aten::einsum", "aten::scaled_dot_product_attention", "AddmmBackward0",
     "autograd::engine::evaluate_function: MmBackward0", "torch::autograd::AccumulateGrad", "aten::cross_entropy_loss"],
)  # fmt: skip
def test_wrappers(name: str) -> None:
    assert aten.is_wrapper(name)
    assert not aten.is_view(name)


@pytest.mark.parametrize("name", ["aten::view", "aten::t", "aten::empty_strided", "aten::as_strided_", "aten::detach"])
def test_views(name: str) -> None:
    assert aten.is_view(name)
    assert call(name, ([7, 11], F32)).bytes == 0


@pytest.mark.parametrize("name", ["aten::mm", "aten::copy_", "aten::add_", "flash_attn::_flash_attn_backward"])
def test_leaves_are_neither(name: str) -> None:
    assert not aten.is_wrapper(name)
    assert not aten.is_view(name)


shapes = st.lists(st.integers(0, 9), max_size=5)
arguments = st.tuples(
    st.one_of(shapes, st.lists(shapes, max_size=3)),
    st.sampled_from([BF16, F32, I64, "bool", "", "Scalar", "ScalarList", "TensorList", "odd"]),
    st.one_of(st.just([]), shapes),
    st.sampled_from(["", "0", "1", "-1", "15", "2.5", "True", "False", "[1, 1]", "[]", "None", "text"]),
)


@settings(max_examples=200)
@given(st.sampled_from(sorted(ENTRIES)), st.lists(arguments, max_size=16), st.booleans(), st.booleans())
def test_no_arguments_break_it(
    name: str, given_: list[tuple[object, str, list[int], str]], typed: bool, valued: bool
) -> None:
    full = name if "::" in name else f"aten::{name}"
    dims, types, strides, concrete = ([a[i] for a in given_] for i in range(4))
    d = describe(full, dims, types if typed else None, strides, concrete if valued else None)
    assert d.flops is None or d.flops >= 0
    assert d.bytes is None or d.bytes >= 0
    assert d.dtype is None or d.dtype in DTYPE_BYTES
    assert d.note or (d.flops is not None and d.bytes is not None)
    json.dumps([d.flops, d.bytes, d.note])

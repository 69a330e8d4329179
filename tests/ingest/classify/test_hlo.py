"""HLO: text and protobuf say the same, costs by hand, groups by counting, classes and layer paths."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.ingest.classify import hlo
from tracegap.ingest.classify.hlo_cost import call_cost, cost
from tracegap.ingest.classify.hlo_module import PROTO, Array, Module, iota_groups, parse_text
from tracegap.models.ops import CollectiveKind, OpClass

F32, S32, BF16, PRED = 11, 4, 16, 1


class Program:
    """A module with computations built instruction by instruction."""

    def __init__(self):
        self.proto = PROTO["HloProto"]()
        self.ids = itertools.count(1)
        self.entry = self.computation("main")

    def computation(self, name):
        return self.proto.hlo_module.computations.add(name=name, id=next(self.ids))

    def add(self, opcode, dims, *operands, where=None, type_=F32, name=None, calls=(), **more):
        where = self.entry if where is None else where
        made = where.instructions.add(
            id=next(self.ids),
            opcode=opcode,
            operand_ids=[o.id for o in operands],
            called_computation_ids=[c.id for c in calls],
            **more,
        )
        made.name = name or f"{opcode}.{made.id}"
        shapes = dims if isinstance(dims[:1], list) and dims and isinstance(dims[0], list) else None
        if shapes is None:
            made.shape.element_type = type_
            made.shape.dimensions.extend(dims)
        else:
            made.shape.element_type = 13
            for part in shapes:
                made.shape.tuple_shapes.add(element_type=type_, dimensions=part)
        where.root_id = made.id
        return made

    def parameter(self, dims, where=None, type_=F32):
        return self.add("parameter", dims, where=where, type_=type_)

    def module(self):
        module = Module.parse(self.proto.SerializeToString())
        assert module is not None
        return module

    def cost(self, made):
        module = self.module()
        found = cost(module.find(made.name), module)
        return found.flops, found.bytes

    def op_class(self, made, framework_op=""):
        module = self.module()
        return hlo.op_class(module.find(made.name), module, framework_op)


def dot(program, left, right, dims, contracted, *, where=None):
    made = program.add("dot", dims, left, right, where=where)
    made.dot_dimension_numbers.lhs_contracting_dimensions.append(contracted[0])
    made.dot_dimension_numbers.rhs_contracting_dimensions.append(contracted[1])
    return made


# ---------------------------------------------------------------------------------------------- cost


def test_dot_is_two_for_each_product():
    p = Program()
    made = dot(p, p.parameter([7, 11]), p.parameter([11, 13]), [7, 13], (1, 0))
    assert p.cost(made) == (2 * 7 * 11 * 13, 4 * (7 * 11 + 11 * 13 + 7 * 13))
    assert p.op_class(made) == OpClass.MATMUL


def convolution(p, image, kernel, out, windows, *, groups=1):
    """Layouts NCHW, OIHW, NCHW."""
    made = p.add("convolution", out, p.parameter(image), p.parameter(kernel), feature_group_count=groups)
    numbers = made.convolution_dimension_numbers
    numbers.input_batch_dimension, numbers.input_feature_dimension = 0, 1
    numbers.kernel_output_feature_dimension, numbers.kernel_input_feature_dimension = 0, 1
    numbers.output_batch_dimension, numbers.output_feature_dimension = 0, 1
    for i, window in enumerate(windows):
        for spatial in (
            numbers.input_spatial_dimensions,
            numbers.kernel_spatial_dimensions,
            numbers.output_spatial_dimensions,
        ):
            spatial.append(2 + i)
        made.window.dimensions.add(
            **{"stride": 1, "window_dilation": 1, "base_dilation": 1, "size": kernel[2 + i], **window}
        )
    return made


def taps(size, kernel, out, *, stride=1, padding_low=0, window_dilation=1, base_dilation=1, **_):
    """Products of one dimension, counted one by one on the dilated and padded row."""
    row = [i % base_dilation == 0 for i in range((size - 1) * base_dilation + 1)]
    places = (o * stride + k * window_dilation - padding_low for o in range(out) for k in range(kernel))
    return sum(0 <= at < len(row) and row[at] for at in places)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "stride": st.integers(1, 3),
                "padding_low": st.integers(0, 3),
                "window_dilation": st.integers(1, 2),
                "base_dilation": st.integers(1, 3),
            }
        ),
        min_size=1,
        max_size=2,
    ),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([1, 2]),
)
def test_convolution_counts_only_taps_on_elements(windows, size, kernel, out, groups):
    p, n = Program(), len(windows)
    made = convolution(
        p, [3, 4] + [size] * n, [6, 4 // groups] + [kernel] * n, [3, 6] + [out] * n, windows, groups=groups
    )
    want = math.prod(taps(size, kernel, out, **window) for window in windows)
    assert p.cost(made)[0] == 2 * 3 * 6 * (4 // groups) * want


def test_convolution_of_xla_strided_same_padding():
    # [2,6,17,19] by [8,6,3,5], strides 2, SAME: XLA's own analysis of the convolution alone says 220800
    p = Program()
    windows = [{"stride": 2, "padding_low": 1}, {"stride": 2, "padding_low": 2}]
    made = convolution(p, [2, 6, 17, 19], [8, 6, 3, 5], [2, 8, 9, 10], windows)
    assert p.cost(made)[0] == 220_800
    assert p.op_class(made) == OpClass.CONVOLUTION
    assert p.op_class(made, "jit(f)/dot_general") == OpClass.MATMUL


def test_elementwise_transcendental_and_movement():
    p = Program()
    x, y = p.parameter([5, 7]), p.parameter([5, 7])
    assert p.cost(p.add("add", [5, 7], x, y)) == (35, 3 * 35 * 4)
    assert p.cost(p.add("multiply", [5, 7], x, x)) == (35, 2 * 35 * 4)  # one operand, read once
    assert p.cost(p.add("tanh", [5, 7], x)) == (0, 2 * 35 * 4)
    assert p.cost(p.add("transpose", [7, 5], x)) == (0, 2 * 35 * 4)
    assert p.cost(p.add("slice", [2, 7], x)) == (0, 2 * 14 * 4)
    assert p.cost(p.add("bitcast", [35], x)) == (0, 0)


def test_reduction_costs_one_for_each_element_that_disappears():
    p = Program()
    adds = p.computation("adds")
    p.add("add", [], p.parameter([], where=adds), p.parameter([], where=adds), where=adds)
    made = p.add("reduce", [5], p.parameter([5, 7]), p.add("constant", []), calls=[adds], dimensions=[1])
    assert p.cost(made) == (35 - 5, 4 * (35 + 1 + 5))


def test_gather_reads_only_the_rows():
    p = Program()
    made = p.add("gather", [3, 16], p.parameter([1000, 16]), p.parameter([3, 1], type_=S32))
    assert p.cost(made) == (0, 2 * 3 * 16 * 4 + 3 * 4)


def fusion(p, dims, *operands, inside, kind="kLoop"):
    """A fusion whose body is built by `inside(computation, parameters)`."""
    body = p.computation("fused")
    parameters = [p.parameter(list(o.shape.dimensions), where=body) for o in operands]
    inside(body, parameters)
    return p.add("fusion", dims, *operands, calls=[body])


def test_fusion_adds_its_members_and_moves_only_its_edges():
    p = Program()

    def inside(body, parameters):
        total = p.add("add", [4, 6], *parameters, where=body)
        p.add("exponential", [4, 6], p.add("multiply", [4, 6], total, total, where=body), where=body)

    made = fusion(p, [4, 6], p.parameter([4, 6]), p.parameter([4, 6]), inside=inside)
    assert p.cost(made) == (2 * 24, 3 * 24 * 4)
    assert p.op_class(made) == OpClass.ELEMENTWISE


def test_fusion_with_a_product_is_one_and_computes_in_its_type():
    p = Program()
    made = fusion(
        p, [4, 8], p.parameter([4, 6]), p.parameter([6, 8]),
        inside=lambda body, ps: p.add("add", [4, 8], *[dot(p, *ps, [4, 8], (1, 0), where=body)] * 2, where=body),
    )  # fmt: skip
    assert p.cost(made) == (2 * 4 * 6 * 8 + 32, 4 * (24 + 48 + 32))
    assert p.op_class(made) == OpClass.MATMUL
    assert hlo.math_dtype(p.module().find(made.name), p.module()) == "fp32"


def test_fusion_that_slices_and_updates_in_place_moves_the_parts():
    p = Program()

    def inside(body, parameters):
        table, big = parameters
        rows = p.add("dynamic-slice", [2, 16], table, where=body)
        p.add("dynamic-update-slice", [500, 16], big, rows, where=body)

    made = fusion(p, [500, 16], p.parameter([1000, 16]), p.parameter([500, 16]), inside=inside)
    assert p.cost(made) == (0, 2 * 16 * 4 + 2 * 16 * 4)
    assert p.op_class(made) == OpClass.DATA_MOVEMENT


def test_arithmetic_on_indices_does_not_make_a_lookup_elementwise():
    p = Program()

    def inside(body, parameters):
        table, indices = parameters
        p.add("gather", [3, 16], table, p.add("clamp", [3], indices, where=body), where=body)

    made = fusion(p, [3, 16], p.parameter([1000, 16]), p.parameter([3]), inside=inside)
    assert p.op_class(made) == OpClass.DATA_MOVEMENT


def test_gemm_by_library_from_its_configuration():
    p = Program()
    numbers = {"lhs_contracting_dimensions": ["0"], "rhs_contracting_dimensions": ["0"]}
    config = json.dumps({"gemm_backend_config": {"dot_dimension_numbers": numbers}}).encode()
    left, right = p.parameter([11, 7]), p.parameter([11, 13])
    made = p.add(
        "custom-call", [[7, 13], [4096]], left, right, custom_call_target="__cublas$gemm", backend_config=config
    )
    assert p.cost(made) == (2 * 7 * 11 * 13, 4 * (77 + 143 + 91))  # the second result is scratch space
    assert p.op_class(made) == OpClass.MATMUL


def test_cost_of_a_custom_call_is_unknown_and_says_so():
    p = Program()
    made = p.add("custom-call", [4], p.parameter([4]), custom_call_target="my_kernel")
    module = p.module()
    found = cost(module.find(made.name), module)
    assert (found.flops, found.bytes) == (None, None)
    assert "my_kernel" in (found.note or "")
    outer = fusion(p, [4], p.parameter([4]), inside=lambda b, ps: p.add("custom-call", [4], *ps, where=b))
    assert p.cost(outer) == (None, None)  # unknown inside is unknown outside


def attention_call(p, mask, *, backward=False, window=0, sizes=(2, 256, 8, 2, 64)):
    """Fused attention of cuDNN: tokens before heads, keys of fewer heads."""
    batch, tokens, heads, kv_heads, width = sizes
    q, k, v = (p.parameter([batch, tokens, n, width]) for n in (heads, kv_heads, kv_heads))
    shape = {"element_type": "BF16", "dimensions": [str(n) for n in (batch, heads, tokens, tokens)]}
    settings = {"intermediate_tensor_shape": shape, "mask_type": mask, "sliding_window_length": window}
    target = "__cudnn$fmhaSoftmaxBackward" if backward else "__cudnn$fmhaSoftmax"
    results = [
        [batch, tokens, heads, width],
        [batch, tokens, kv_heads, width],
        [batch, tokens, kv_heads, width],
        [4096],
    ]
    return p.add(
        "custom-call", results if backward else [results[0], [4096]], q, k, v, custom_call_target=target,
        backend_config=json.dumps({"cudnn_fmha_backend_config": settings}).encode(),
    )  # fmt: skip


def test_fused_attention_of_cudnn():
    whole = 4 * 2 * 8 * 256 * 256 * 64
    moved = 4 * 2 * 256 * 64 * (8 + 2 + 2)
    for mask, flops in (("NO_MASK", whole), ("CAUSAL", whole // 2)):
        p = Program()
        assert p.cost(attention_call(p, mask)) == (flops, moved + 4 * 2 * 256 * 64 * 8)
        back = attention_call(p, mask, backward=True)
        assert p.cost(back) == (flops * 5 // 2, moved + 4 * 2 * 256 * 64 * 12)
        assert p.op_class(back) == OpClass.ATTENTION
    p = Program()
    windowed = attention_call(p, "CAUSAL", window=64)
    assert p.cost(windowed)[0] == 4 * 2 * 8 * 64 * sum(min(i + 1, 64) for i in range(256))
    assert p.cost(attention_call(p, "PADDING_CAUSAL")) == (None, None)


def test_what_the_author_of_a_kernel_states_counts():
    p = Program()
    estimate = {"flops": "1000", "transcendentals": 7, "bytes_accessed": 300}
    config = json.dumps({"custom_call_config": {"body": "...", "cost_estimate": estimate}}).encode()
    made = p.add("custom-call", [4], p.parameter([4]), custom_call_target="tpu_custom_call", backend_config=config)
    assert p.cost(made) == (1000, 300)
    for empty in (b"{}", b"no json", json.dumps({"custom_call_config": {"cost_estimate": {"flops": 0}}}).encode()):
        silent = p.add("custom-call", [4], p.parameter([4]), custom_call_target="tpu_custom_call", backend_config=empty)
        assert p.cost(silent) == (None, None)


def test_products_of_ragged_groups():
    p = Program()
    rows, weights, sizes = p.parameter([40, 8]), p.parameter([4, 8, 16]), p.parameter([4], type_=S32)
    made = p.add("ragged-dot", [40, 16], rows, weights, sizes)
    assert p.cost(made) == (2 * 40 * 8 * 16, 4 * (320 + 512 + 640) + 16)
    gradient = p.add("ragged-dot", [4, 8, 16], p.parameter([8, 40]), p.parameter([40, 16]), sizes)
    assert p.cost(gradient)[0] == 2 * 8 * 40 * 16
    assert p.op_class(made) == OpClass.MATMUL


@pytest.mark.parametrize(
    ("opcode", "operands", "out", "more", "flops", "op_class"),
    [
        ("top-k", [[6, 64]], [[6, 4], [6, 4]], {}, 6 * 64 * 6, OpClass.SORT),
        ("cholesky", [[5, 12, 12]], [5, 12, 12], {}, 5 * 12**3 // 3, OpClass.OTHER),
        ("triangular-solve", [[12, 12], [12, 3]], [12, 3], {}, 144 * 3, OpClass.OTHER),
        ("fft", [[6, 64]], [6, 33], {"fft_length": [64]}, 6 * 5 * 64 * 6 // 2, OpClass.OTHER),
        ("batch-norm-training", [[4, 8], [8], [8]], [[4, 8], [8], [8]], {}, 160, OpClass.NORMALIZATION),
        ("rng-bit-generator", [[2]], [100], {}, 0, OpClass.RANDOM),
    ],
)
def test_rarer_opcodes(*, opcode, operands, out, more, flops, op_class):
    p = Program()
    made = p.add(opcode, out, *(p.parameter(dims) for dims in operands), **more)
    assert p.cost(made)[0] == flops
    assert p.op_class(made) == op_class


def test_sorts_by_custom_call():
    p = Program()
    made = p.add("custom-call", [[6, 4], [6, 4]], p.parameter([6, 64]), custom_call_target="TopK")
    assert p.cost(made)[0] == 6 * 64 * 6
    assert p.op_class(made) == OpClass.SORT


def test_a_collective_inside_a_fusion_is_that_collective():
    p = Program()

    def inside(body, parameters):
        summed = p.add("add", [16], *parameters, where=body)
        p.add("all-reduce", [16], summed, where=body)

    made = fusion(p, [16], p.parameter([16]), p.parameter([16]), inside=inside)
    assert p.op_class(made) == OpClass.COLLECTIVE
    module = p.module()
    found = hlo.collective(module.find(made.name), module)
    assert (found.kind, found.message_bytes) == (CollectiveKind.ALL_REDUCE, 64)
    assert p.cost(made)[0] == 32


def test_incomplete_instruction_is_unknown_not_a_crash():
    p = Program()
    made = p.add("dot", [4, 4])
    assert p.cost(made) == (None, None)


# ---------------------------------------------------------------------------------------------- text

TEXT = (
    "%all-gather-start.4 = (bf16[2,8]{1,0:T(8,128)(2,1)}, bf16[8,8]{1,0:T(8,128)(2,1)S(1)}) "
    "all-gather-start(bf16[2,8]{1,0} %param.3), channel_id=7, replica_groups={{0,2},{1,3}}, dimensions={0}"
)


def test_text_of_an_instruction():
    found = parse_text(TEXT)
    assert found is not None
    assert (found.name, found.opcode, found.channel_id) == ("all-gather-start.4", "all-gather-start", 7)
    assert found.result == (Array("bf16", (2, 8)), Array("bf16", (8, 8)))
    assert found.operands == ((Array("bf16", (2, 8)),),)
    assert (found.operand_names, found.replica_groups) == (("param.3",), ((0, 2), (1, 3)))


@pytest.mark.parametrize("text", ["fusion.1", "", "%a = ", "%a = f32[2]", "jit_f(12)", "%x = (f32[2] add("])
def test_other_text_is_no_instruction(text):
    assert parse_text(text) is None


@given(st.text(max_size=60))
def test_any_text_is_an_instruction_or_none(text):
    found = parse_text("%a.1 = f32[2]{0} " + text)
    assert found is None or found.name == "a.1"


def test_unfinished_text_keeps_what_it_says():
    found = parse_text(
        "%all-reduce = f32[8]{0} all-reduce(f32[8]{0} %b), channel_id=1, replica_groups=[1,2]<=[2], to_ap"
    )
    assert found is not None
    assert found.replica_groups == ((0, 1),)


# ---------------------------------------------------------------------------------------------- groups


def test_iota_groups_with_transposition():
    assert iota_groups((4, 2), (2, 4), (1, 0)) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert iota_groups((2, 4), (8,)) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert iota_groups((2, 4), (9,)) is None
    assert iota_groups((2, 4), (2, 4), (1, 1)) is None


@given(st.permutations([0, 1, 2]), st.sampled_from([(2, 12), (6, 4), (24, 1), (3, 8)]))
def test_iota_groups_hold_every_device_once(permutation, shape):
    groups = iota_groups(shape, (2, 3, 4), tuple(permutation))
    assert groups is not None
    assert sorted(itertools.chain(*groups)) == list(range(24))
    # digit by digit: position in the transposed order -> id
    extents = (2, 3, 4)
    flat = [
        sum(dict(zip(permutation, index, strict=True))[axis] * stride for axis, stride in enumerate((12, 4, 1)))
        for index in itertools.product(*(range(extents[axis]) for axis in permutation))
    ]
    assert list(itertools.chain(*groups)) == flat


def mesh_collective(axes, chosen, device_ids=()):
    p = Program()
    made = p.add("all-gather", [8], p.parameter([4]), channel_id=1, use_global_device_ids=True)
    for i, size in enumerate(axes):
        made.mesh_groups.mesh.axes.add(name=f"a{i}", size=size)
    made.mesh_groups.mesh.device_ids.extend(device_ids)
    for choice in chosen:
        index, *part = choice
        ref = made.mesh_groups.axes.add(mesh_axis_index=index)
        if part:
            ref.sub_axis_info.pre_size, ref.sub_axis_info.size = part
    return p.module().find(made.name).replica_groups


def test_groups_along_mesh_axes():
    assert mesh_collective([2, 2], [(1,)]) == ((0, 1), (2, 3))
    assert mesh_collective([2, 2], [(0,)]) == ((0, 2), (1, 3))
    assert mesh_collective([2, 1, 2], [(2,), (0,)]) == ((0, 2, 1, 3),)  # order of the axes is order in the group
    assert mesh_collective([2, 2], [(1,)], [3, 1, 2, 0]) == ((3, 1), (2, 0))


def test_groups_along_parts_of_a_mesh_axis():
    assert mesh_collective([8], [(0, 2, 2)]) == ((0, 2), (1, 3), (4, 6), (5, 7))  # the middle of [2, 2, 2]
    assert mesh_collective([8], [(0, 1, 2)]) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert mesh_collective([8], [(0, 3, 2)]) is None


def test_logical_ids_become_devices_of_the_module():
    p = Program()
    made = p.add("all-reduce", [8], p.parameter([8]), channel_id=1, use_global_device_ids=True)
    for ids in ([0, 1], [2, 3]):
        made.replica_groups.add().replica_ids.extend(ids)
    assigned = p.proto.hlo_module.device_assignment
    assigned.replica_count, assigned.computation_count = 1, 4
    for device in (5, 4, 7, 6):
        assigned.computation_devices.add().replica_device_ids.append(device)
    everyone = p.add("all-reduce", [8], p.parameter([8]), channel_id=2)
    module = p.module()
    assert hlo.collective(module.find(made.name), module).groups == ((5, 4), (7, 6))
    assert hlo.collective(module.find(made.name), module).group_of(7) == (7, 6)
    assert hlo.collective(module.find(everyone.name), module).groups == ((5, 4, 7, 6),)


@pytest.mark.parametrize(
    ("text", "kind", "size"),
    [
        (TEXT, CollectiveKind.ALL_GATHER, 2 * 8 * 2 * 2),  # the output: two inputs
        ("%a = f32[8] all-gather(f32[2] %x), replica_groups={{0,1,2,3}}", CollectiveKind.ALL_GATHER, 32),
        ("%a = f32[8] all-gather(%x), replica_groups={{0,1,2,3}}", CollectiveKind.ALL_GATHER, 32),
        ("%a = f32[2] reduce-scatter(f32[8] %x), replica_groups={{0,1,2,3}}", CollectiveKind.REDUCE_SCATTER, 32),
        ("%a = f32[2] reduce-scatter(%x), replica_groups={{0,1,2,3}}", CollectiveKind.REDUCE_SCATTER, 32),
        ("%a = (f32[8], bf16[4]) all-reduce(f32[8] %x, bf16[4] %y), replica_groups={}", CollectiveKind.ALL_REDUCE, 40),
        ("%a = f32[8] collective-permute(f32[8] %x), source_target_pairs={{0,1},{1,0}}", CollectiveKind.PERMUTE, 32),
        ("%a = f32[8] all-to-all(f32[8] %x), replica_groups={{0,1}}", CollectiveKind.ALL_TO_ALL, 32),
        ("%a = f32[8] all-gather-done((f32[2], f32[8]) %x)", CollectiveKind.ALL_GATHER, 32),
    ],
)
def test_messages(text, kind, size):
    found = hlo.collective(parse_text(text))
    assert (found.kind, found.message_bytes) == (kind, size)


def test_permutation_is_a_group_of_all_who_take_part():
    found = hlo.collective(parse_text("%a = f32[8] collective-permute(f32[8] %x), source_target_pairs={{0,1},{1,2}}"))
    assert found.pairs == ((0, 1), (1, 2))
    assert found.group_of(0) == (0, 1, 2)


# ---------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "opcode"),
    [
        ("all-reduce.3", "all-reduce"),
        ("%copy-start.12", "copy-start"),
        ("loop_add_fusion.2", "fusion"),
        ("wrapped_tanh", "tanh"),
        ("dot_general.60", "dot"),
        ("while.1.clone.2", "while"),
        ("my_kernel.7", "my-kernel"),
    ],
)
def test_opcode_by_name(name, opcode):
    assert hlo.opcode_of_name(name) == opcode


@pytest.mark.parametrize(
    ("op_name", "path"),
    [
        ("jit(step)/jvp(layer_3)/mlp/dot_general:", "layer_3/mlp"),
        ("jit(step)/transpose(jvp(layer_3))/mlp/dot_general", "layer_3/mlp [backward]"),
        ("jit(step)/jit(main)/checkpoint/rematted_computation/layer_0/add", "layer_0 [recomputed]"),
        ("jit(f)/jit(main)/while/body/block/attn/bhqd,bhkd->bhqk/dot_general", "block/attn"),
        ("jit(f)/dot_general", None),
        ("", None),
        (
            "replica_4/bert/layer_5/dropout/random_uniform/RandomUniform:RandomUniform",
            "replica_4/bert/layer_5/dropout/random_uniform",
        ),
    ],
)
def test_module_path(op_name, path):
    assert hlo.module_path(op_name) == path


def test_bytes_of_types():
    bits = {"pred": 8, "bf16": 16, "f8e4m3fn": 8, "s4": 4, "f64": 64, "c64": 64}
    assert {
        kind: Array(kind, (8,)).bytes for kind in bits
    } == bits  # of eight elements, so as many bytes as bits of one


# ---------------------------------------------------------------------------------------------- hand-written kernels

_KERNEL = (
    "%{name} = bf16[1024,25600]{{1,0}} custom-call(bf16[1024,5120]{{1,0}} %x, {weights} %w, f32[10,1,25600]{{2,1,0}} %s), "
    'custom_call_target="tpu_custom_call"'
)


def test_a_hand_written_product_is_told_by_its_shapes():
    text = _KERNEL.format(name="quantized_matmul_kernel_512_6400_1024.64", weights="f4e2m1fn[25600,5120]{1,0}")
    found = call_cost(parse_text(text))
    assert found.flops == 2 * 1024 * 25600 * 5120
    assert found.bytes == 2 * 1024 * 5120 + 25600 * 5120 // 2 + 4 * 10 * 25600 + 2 * 1024 * 25600


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("my_attention.1", "bf16[25600,5120]{1,0}"),  # called after something else
        ("matmul_kernel.1", "bf16[25600,5121]{1,0}"),  # no operand fits
        ("matmul_kernel.1", "bf16[4,25600,5120]{2,1,0}"),  # groups: how many rows each has is not known
    ],
)
def test_what_may_be_another_operation_is_unknown(name, weights):
    found = call_cost(parse_text(_KERNEL.format(name=name, weights=weights)))
    assert (found.flops, found.bytes) == (None, None)
    assert "author" in found.note

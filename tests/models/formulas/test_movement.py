import pytest

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import cost
from tracegap.models.ops import OpSpec, Tensor
from tracegap.models.quantities import compute


def t(*shape: int, dtype: str = "fp32", strides: tuple[int, ...] | None = None) -> Tensor:
    return Tensor(shape=shape, dtype=dtype, strides=strides)


def run(kind: str, *tensors: Tensor | tuple[Tensor, ...] | None, **params: object) -> Cost:
    return cost(OpSpec(kind=kind, tensors=tensors, params=params))


def test_copy_reads_and_writes() -> None:
    assert run("copy", t(7, 11), t(7, 11)) == Cost(flops=0, bytes=2 * 308)
    assert run("copy", t(7, 11), t(7, 11, strides=(0, 1))).bytes == 308 + 44
    assert run("copy", t(7, 11), None).bytes == 308


def test_a_cast_counts_an_operation_an_element() -> None:
    assert run("copy", t(7, 11, dtype="bf16"), t(7, 11)) == Cost(flops=77, bytes=154 + 308, dtype="fp32")


def test_copies_of_lists_add() -> None:
    assert run("copy", (t(7), t(11)), (t(7), t(11))).bytes == 2 * 72


def test_an_expanded_input_is_read_once_and_written_out() -> None:
    assert run("rewrite", t(7, 11, strides=(0, 1))).bytes == 44 + 308
    assert run("rewrite", (t(2, 3), t(4, 3))).bytes == 2 * 72


def test_fill_writes() -> None:
    assert run("fill", t(7, 11)) == Cost(flops=0, bytes=308)


def test_resize() -> None:
    assert run("resize", t(1, 3, 8, 8), out_size=[16, 16]).bytes == 4 * 3 * (64 + 256)
    assert run("resize", t(1, 3, 8, 8), out_size=None).bytes is None


def test_resize_backward() -> None:
    c = run("resize_backward", t(1, 3, 16, 16), size=[1, 3, 8, 8])
    assert c == Cost(flops=768, bytes=4 * 3 * (64 + 256), dtype="fp32")
    assert run("resize_backward", t(1, 3, 16, 16), size=None).bytes is None


def test_buffers_move_once_and_no_more_than_is_visited() -> None:
    c = run("buffers", t(7, 11), t(7, 11), None, iterations=None)
    assert (c.flops, c.bytes) == (None, 616)
    assert run("buffers", t(1000, 11), t(7, 11), iterations=77).bytes == 616
    assert run("buffers", None).bytes is None


def test_embedding_reads_touched_rows() -> None:
    # 5 x 7 indices of 8 bytes, rows of 11: read and written
    assert run("embedding", t(1000, 11), t(5, 7, dtype="int64")) == Cost(flops=0, bytes=2 * 4 * 385 + 280)


def test_embedding_gradient_zeroes_the_table() -> None:
    c = run("embedding_backward", t(35, 11), t(35, dtype="int64"), rows=1000)
    assert c == Cost(flops=385, bytes=4 * 385 + 280 + 4 * 11000 + 2 * 4 * 385, dtype="fp32")
    assert run("embedding_backward", t(35, 11), t(35, dtype="int64"), rows=None).bytes is None


def test_embedding_bag_adds_what_it_reads() -> None:
    c = run("embedding_bag", t(1000, 8), t(30, dtype="int64"), t(5, dtype="int64"))
    assert c == Cost(flops=240, bytes=4 * (240 + 40) + 8 * 35, dtype="fp32")


def test_gathers_and_scatters_touch_what_is_indexed() -> None:
    index = t(7, dtype="int64")
    assert run("gather", t(1000), index).bytes == 2 * 28 + 56
    assert run("index_select", t(20, 11), index, dim=0).bytes == 2 * 4 * 77 + 56
    assert run("index_select", t(20, 11), index, dim=None).bytes is None
    assert run("scatter", t(7), index).bytes == 28 + 56 + 28
    assert run("scatter", t(7), index, adds=True) == Cost(flops=7, bytes=28 + 56 + 56, dtype="fp32")
    assert run("scatter", None, index, dtype="bf16").bytes == 56 + 14


def test_a_dimension_that_is_not_there() -> None:
    with pytest.raises(BadShape, match="dimension 2"):
        run("index_select", t(20, 11), t(7, dtype="int64"), dim=2)


def test_fused_adam_agrees_with_the_registered_bytes() -> None:
    parameters = (t(7, 11), t(13))
    gradients = (t(7, 11, dtype="bf16"), t(13, dtype="bf16"))
    c = run("fused_optimizer", parameters, gradients, parameters, parameters, flops_per_element=16)
    sizes = {"params": 90, "grad_bytes": 2, "master_bytes": 4, "moment_bytes": 4, "out_param_bytes": 0}
    assert c == Cost(flops=16 * 90, bytes=int(compute("adam_step_bytes", "M10", sizes)), dtype="fp32")


def test_an_optimizer_needs_lists() -> None:
    with pytest.raises(BadShape):
        run("fused_optimizer", t(7), t(7), flops_per_element=16)

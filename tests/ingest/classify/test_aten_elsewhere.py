"""Sizes that other calls tell: of convolutions and pooling without scalars, and of FBGEMM's lookups in tables."""

import pytest

from tracegap.ingest.classify.aten import describe
from tracegap.ingest.classify.aten_elsewhere import Elsewhere

X, W, OUT = [32, 64, 56, 56], [128, 64, 3, 3], [32, 128, 28, 28]
BACKWARD = ("aten::cudnn_convolution_backward", [X, OUT, W, [], [], [], [], [], [], [], []])


def test_a_forward_takes_its_size_from_the_backward_with_the_same_tensors() -> None:
    told = Elsewhere([BACKWARD]).told("aten::cudnn_convolution", [X, W, [], [], [], [], [], [], []])
    assert told == {"out_shape": tuple(OUT)}
    found = describe("aten::cudnn_convolution", [X, W, []], ["float", "float", ""], told=told)
    # 2 x 32 x 128 x 28 x 28 positions x 64 x 3 x 3 taps; input, weights and result in fp32
    assert found.flops == 2 * 32 * 128 * 784 * 576
    assert found.bytes == 4 * (32 * 64 * 3136 + 128 * 576 + 32 * 128 * 784)


def test_newer_releases_have_the_gradient_first() -> None:
    calls = [("aten::convolution_backward", [OUT, X, W, [], [], [], [], [], [], [], []])]
    assert Elsewhere(calls).told("aten::cudnn_convolution", [X, W]) == {"out_shape": tuple(OUT)}


def test_sizes_that_differ_tell_nothing() -> None:
    other = ("aten::cudnn_convolution_backward", [X, [32, 128, 56, 56], W])
    assert Elsewhere([BACKWARD, other]).told("aten::cudnn_convolution", [X, W]) == {}


def test_the_caller_is_surer_than_other_calls() -> None:
    """The gradient of the input is 56 wide in one call and 28 in another, with the same gradient and weights."""
    other = ("aten::cudnn_convolution_backward", [[32, 64, 28, 28], OUT, W])
    elsewhere = Elsewhere([BACKWARD, other])
    dims = [[], OUT, W, [], [], [], [], [], [], []]
    assert elsewhere.told("aten::cudnn_convolution_backward_input", dims) == {}
    told = elsewhere.told("aten::cudnn_convolution_backward_input", dims, caller=BACKWARD)
    assert told == {"size": tuple(X)}
    found = describe("aten::cudnn_convolution_backward_input", dims, ["", "float", "float"], told=told)
    assert found.flops == 2 * 32 * 128 * 784 * 576


def test_what_the_call_records_itself_stands() -> None:
    concrete = ["", "", "", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False"]
    found = describe(
        "aten::miopen_convolution", [X, W, [], [], [], [], [], [], []], ["float", "float", *[""] * 7], None, concrete,
        told={"out_shape": (1, 1, 1, 1)},
    )  # fmt: skip
    assert found.flops == 2 * 32 * 128 * 784 * 576


def test_pooling_without_its_window_moves_what_its_backward_tells() -> None:
    calls = [("aten::max_pool2d_with_indices_backward", [[8, 3, 5, 5], [8, 3, 11, 11]])]
    told = Elsewhere(calls).told("aten::max_pool2d_with_indices", [[8, 3, 11, 11], []])
    found = describe("aten::max_pool2d_with_indices", [[8, 3, 11, 11], []], ["float", ""], told=told)
    assert (found.flops, found.bytes) == (None, 4 * 24 * 121 + (4 + 8) * 24 * 25)


def test_types_that_no_release_recorded_come_from_the_kernel() -> None:
    plain = describe("aten::add_", [[7, 11], [7, 11], []], None, list_dtype="fp16")
    assert (plain.flops, plain.bytes) == (77, 2 * 3 * 77)
    assert "kernel's name" in (plain.note or "")
    # a copy casts, an embedding has indices of another type: nothing is taken for these
    assert describe("aten::copy_", [[7], [7]], None, list_dtype="fp16").bytes is None
    assert describe("aten::embedding", [[7, 11], [5]], None, list_dtype="fp16").bytes is None


# --- lookups in tables

ROWS, WIDTH, TABLES, BATCH = 1000, 16, 3, 128
GRADIENT = ("torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>", [[BATCH, TABLES * WIDTH]])


def lookup(lookups: int, *, size: int = ROWS * WIDTH, rows: int | None = ROWS) -> tuple[str, list[list[int]]]:
    """A call as FBGEMM records it: tables at 1, columns at 6, indices at 11, offsets at 12, then the optimizer's state."""
    state: list[list[int]] = [] if rows is None else [[rows], [0], [TABLES], [TABLES]]
    dims = [[0], [size], [0], [0, 0], [TABLES], [TABLES], [TABLES + 1], [], [], [TABLES + 1], []]
    dims += [[lookups], [BATCH * TABLES + 1], [], [], [], [0], [], [], [], *state]
    return "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function", dims


def types(dims: list[list[int]]) -> list[str]:
    return [
        "c10::Half" if i == 1 else "long int" if i in (11, 12) else "float" if d else "" for i, d in enumerate(dims)
    ]


def test_tables_whose_rows_are_as_wide_as_their_columns() -> None:
    """16 000 elements in 1000 rows are 16 wide, and so are 48 columns of 3 tables: all are."""
    name, dims = lookup(5000)
    elsewhere = Elsewhere([(name, dims), GRADIENT])
    told = elsewhere.told(name, dims)
    assert told == {"width": 16, "mean": False}
    forward = describe(name, dims, types(dims), told=told)
    assert forward.flops == 5000 * 16
    assert forward.bytes == 2 * 5000 * 16 + 4 * BATCH * TABLES * 16 + 8 * (5000 + BATCH * TABLES + 1)
    told = elsewhere.told(*GRADIENT)
    assert told == {"width": 16, "lookups": 5000, "mean": False}
    backward = describe(GRADIENT[0], GRADIENT[1], ["float"], told=told)
    assert (backward.flops, backward.bytes) == (5000 * 16, 4 * 5000 * 16 + 8 * 5000)


def test_of_two_lookups_that_fit_a_backward_the_smaller_counts() -> None:
    assert Elsewhere([lookup(5000), lookup(4000), GRADIENT]).told(*GRADIENT)["lookups"] == 4000


@pytest.mark.parametrize("gradient", [50, 36])
def test_tables_that_differ_in_width_are_unknown(gradient: int) -> None:
    """50 columns are not divisible by 3; 36 are 12 to a table, while rows are 16 wide on average."""
    name, dims = lookup(5000)
    backward = (GRADIENT[0], [[BATCH, gradient]])
    elsewhere = Elsewhere([(name, dims), backward])
    assert elsewhere.told(*backward) == {}
    assert elsewhere.told(name, dims) == {}
    assert describe(name, dims, types(dims), told={}).flops is None


def test_a_state_that_tells_no_rows_leaves_a_mean_that_is_said() -> None:
    name, dims = lookup(5000, rows=None)
    assert Elsewhere([(name, dims), GRADIENT]).told(name, dims) == {"width": 16, "mean": True}
    found = describe(name, dims, types(dims), told={"width": 16, "mean": True})
    assert "equally wide" in (found.note or "")

"""Kernels without a call that repeat others: found where their sequence is, and only where all such places agree."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracegap.ingest.readers import kineto
from tracegap.ingest.readers._kineto_repeats import REACH, LaunchShapes, find_repeats

LAYER = 2 * REACH + 3  # kernels of a layer, all different


def arrays(*columns: Any) -> list[Any]:
    return [np.array(c, np.int64) for c in columns]


def found(
    kernels: list[int], costs: list[int], known: list[bool], ops: list[int] | None = None, places: int = 1
) -> dict[int, int]:
    n = len(kernels)
    lane, kernel, start, op, cost = arrays([0] * n, kernels, range(n), ops or range(n), costs)
    is_known = np.array(known)
    got = find_repeats(lane, kernel, start, op, cost, known=is_known, wanted=~is_known, places=places)
    return dict(zip(got.row.tolist(), got.of.tolist(), strict=True))


def test_a_layer_that_came_before_the_recording_is_the_one_that_follows() -> None:
    kernels = list(range(LAYER)) * 3
    got = found(kernels, [7 * k for k in kernels], [i >= LAYER for i in range(3 * LAYER)])
    assert got == {i: got[i] for i in range(LAYER)}
    assert all(kernels[a] == kernels[b] for a, b in got.items())


def test_kernels_that_cost_now_this_and_now_that_stay_unknown() -> None:
    kernels = list(range(LAYER)) * 4
    costs = [k if k != 5 else 100 + i // LAYER for i, k in enumerate(kernels)]
    got = found(kernels, costs, [i >= LAYER for i in range(4 * LAYER)])
    assert 5 not in got
    assert set(got) == set(range(LAYER)) - {5}


def test_another_sequence_is_no_repeat() -> None:
    kernels = [*range(100, 100 + LAYER), *list(range(LAYER)) * 2]
    assert found(kernels, kernels, [i >= LAYER for i in range(3 * LAYER)]) == {}


def test_one_place_is_not_enough_where_two_are_asked_for() -> None:
    kernels = list(range(LAYER)) * 2
    known = [i >= LAYER for i in range(2 * LAYER)]
    assert len(found(kernels, kernels, known)) > 0
    assert found(kernels, kernels, known, places=2) == {}


def test_an_operator_is_taken_whole_or_not_at_all() -> None:
    """Kernels 3 and 4 are of one operator; in the unknown layer another kernel stands in place of the fourth."""
    kernels = list(range(LAYER)) * 3
    ops = [i if k != 4 else i - 1 for i, k in enumerate(kernels)]
    known = [i >= LAYER for i in range(3 * LAYER)]
    assert {3, 4} <= set(found(kernels, [0] * len(kernels), known, ops))
    kernels[4] = 999
    assert not {3, 4} & set(found(kernels, [0] * len(kernels), known, ops))


@given(st.lists(st.integers(0, 3), min_size=30, max_size=120), st.integers(0, 60))
def test_what_is_found_has_the_cost_of_every_equal_place(kernels: list[int], hidden: int) -> None:
    """The cost is a function of the kernel, so that whatever is found must be right."""
    known = [i >= hidden for i in range(len(kernels))]
    for row, of in found(kernels, [k * k for k in kernels], known).items():
        assert kernels[row] == kernels[of]
        assert known[of]
        assert not known[row]


def test_grids_and_blocks_tell_kernels_of_one_name_apart() -> None:
    number = LaunchShapes().of
    shapes = [([1, 2, 3], [4, 5, 6]), ([3, 2, 1], [4, 5, 6]), ([1, 2, 3], [6, 5, 4]), ([0, 0, 0], [0, 0, 0])]
    assert len({number(*s) for s in shapes} | {number(None, None)}) == 5
    assert number(None, None) == number("[1, 2]", 3) == number([[1]], [2]) == 0


def _event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def test_work_that_was_queued_before_the_recording_has_the_cost_of_the_next_layer(tmp_path: Path) -> None:
    """Three layers of products [64, 32 + i] x [32 + i, 16]; only the kernels of the first are there without their calls."""
    events = []
    for layer in range(3):
        for i in range(LAYER):
            at, corr = 1000.0 * layer + 20 * i, layer * LAYER + i + 1
            kernel = {"device": 0, "stream": 7, "correlation": corr, "grid": [i + 1, 1, 1], "block": [128, 1, 1]}
            events.append({**_event("kernel", "gemm", at + 5, 10, **kernel), "pid": 0, "tid": 7})
            if layer:
                dims = {"Input Dims": [[64, 32 + i], [32 + i, 16]], "Input type": ["float", "float"]}
                events.append(_event("cpu_op", "aten::mm", at, 4, **dims))
                events.append(_event("cuda_runtime", "cudaLaunchKernel", at + 1, 2, correlation=corr))
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    ops = kineto.read(path).ops
    flops = [2 * 64 * (32 + i) * 16 for i in range(LAYER)]
    assert ops["flops"].to_list() == flops * 3
    assert ops["cost_source"].to_list() == ["shapes"] * (3 * LAYER)
    first = ops.head(LAYER)
    assert first["framework_op"].null_count() == first["launch_ns"].null_count() == LAYER
    assert first["cost_note"].unique().to_list() == [
        "no call explains it: the cost of the equal kernel in an equal sequence of this file"
    ]

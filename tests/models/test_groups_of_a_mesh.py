"""Which axes a group of ranks spreads over."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models.mesh import axes_of_group, group, strides

MESH = {"pipeline": 2, "data": 2, "tensor": 4}
"""Rank 8 p + 4 d + t."""


@pytest.mark.parametrize(
    ("ranks", "axes"),
    [
        ([0, 1, 2, 3], ("tensor",)),
        ([12, 15, 13, 14], ("tensor",)),
        ([1, 5], ("data",)),
        ([7, 15], ("pipeline",)),
        ([2, 6, 10, 14], ("pipeline", "data")),
        (list(range(16)), ("pipeline", "data", "tensor")),
        ([0, 1], None),
        ([4, 8], None),
        ([2, 3, 4, 5], None),
        ([0], None),
    ],
)
def test_groups_of_sixteen_ranks(ranks, axes):
    assert axes_of_group(MESH, ranks) == axes


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_every_group_along_some_axes_is_found_again(sizes, data):
    mesh = {f"axis{i}": ways for i, ways in enumerate(sizes)}
    wide = [axis for axis, ways in mesh.items() if ways > 1]
    for count in range(1, len(wide) + 1):
        for axes in combinations(wide, count):
            others = strides(mesh, [axis for axis in mesh if axis not in axes])
            start = sum(data.draw(st.integers(0, ways - 1)) * distance for ways, distance in others)
            assert axes_of_group(mesh, [start + rank for rank in group(mesh, axes)]) == axes

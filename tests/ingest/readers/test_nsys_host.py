"""Spans of host threads of Nsight Systems."""

import numpy as np
import pytest

from tracegap.ingest.hosttree import nest
from tracegap.ingest.readers import _nsys_host


@pytest.mark.parametrize("seed", range(30))
def test_nesting_in_windows_is_nesting_at_once(seed, monkeypatch):
    """Also of spans that cross each other, have no length, or the same extent."""
    monkeypatch.setattr(_nsys_host, "_NESTED_ROWS", int(np.random.default_rng(seed).integers(1, 9)))
    random = np.random.default_rng(seed)
    start = random.integers(0, 60, 80)
    end = start + random.integers(0, 25, 80) * random.integers(0, 2, 80)
    parent, self_ns = np.full(80, -1), np.full(80, -1)
    rows = np.flatnonzero(random.random(80) < 0.9)
    _nsys_host._nest(_nsys_host._by_start(rows, start, end), start, end, parent, self_ns)
    whole = nest(np.zeros(len(rows), np.uint8), start[rows], (end - start)[rows])
    assert parent[rows].tolist() == np.where(whole.parent >= 0, rows[whole.parent], -1).tolist()
    assert self_ns[rows].tolist() == whole.self_ns.tolist()

"""Peaks as data sheets print them: the tensor figure of a sheet is often the one with 2:4 structured sparsity."""

import re
from collections.abc import Mapping
from typing import Any

from tracegap.models.units import TERA

SPARSE_SPEEDUP = 2
"""By how much 2:4 structured sparsity raises the peak of a matrix unit: half of the products are not done."""
_WITH_SPARSITY = re.compile(r"with(?!out)[^;.]*sparsity", re.IGNORECASE)


def dense_flops_per_s(sheet: Mapping[str, Any], dtype: str) -> float | None:
    """Dense matrix peak that a data sheet states, FLOP a second; None where it has no figure for the dtype.

    Args:
        sheet: `<dtype>_tensor_tflops`, and `footnote` where the figures have one.
        dtype: a key of `models.ops.DTYPE_BYTES`.
    """
    printed = sheet.get(f"{dtype}_tensor_tflops")
    if printed is None:
        return None
    sparse = _WITH_SPARSITY.search(str(sheet.get("footnote", ""))) is not None
    return float(printed) * TERA / (SPARSE_SPEEDUP if sparse else 1)

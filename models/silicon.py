# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""Peaks from the inside of a chip, and what the shape of its units makes unreachable.

Formula codes H2 to H5 and Q2 to Q4 are those of the theory reference (Scaling Book, chapters 2 and 12; NVIDIA
deep-learning performance guide; XProf's table of tensor cores). The clock is the one at which the data sheet's peak
holds, not the boost clock.
"""

from collections.abc import Sequence
from math import ceil, prod

from tracegap.models.quantities import quantity


@quantity("vpu_flops_per_s", "H2")
def vpu_flops_per_s(*, cores: float, lanes: float, sublanes: float, alus_per_lane: float, clock_hz: float) -> float:
    """[H2] FLOP/s of a TPU's vector units, without fused multiply-adds."""
    return cores * lanes * sublanes * alus_per_lane * clock_hz


@quantity("mxu_peak_flops_per_s", "H3")
def mxu_peak_flops_per_s(*, cores: float, mxus_per_core: float, mxu_side: float, clock_hz: float) -> float:
    """[H3] FLOP/s of a TPU's matrix units: a multiply-add per cell and cycle."""
    return cores * mxus_per_core * 2 * mxu_side**2 * clock_hz


@quantity("vector_flops_per_s", "H4")
def vector_flops_per_s(
    *, sms: float, subpartitions: float, lanes: float, clock_hz: float, flops_per_lane_cycle: float = 2
) -> float:
    """[H4] FLOP/s of a GPU's vector lanes; a fused multiply-add counts 2."""
    return sms * subpartitions * lanes * flops_per_lane_cycle * clock_hz


@quantity("clock_hz", "H4")
def clock_hz(
    *, vector_flops_per_s: float, sms: float, subpartitions: float, lanes: float, flops_per_lane_cycle: float = 2
) -> float:
    """[H4] The clock at which a vector peak holds."""
    return vector_flops_per_s / (sms * subpartitions * lanes * flops_per_lane_cycle)


@quantity("tensor_core_flops_per_s", "H5")
def tensor_core_flops_per_s(*, sms: float, flops_per_sm_cycle: float, clock_hz: float) -> float:
    """[H5] FLOP/s of a GPU's tensor cores."""
    return sms * flops_per_sm_cycle * clock_hz


@quantity("wave_efficiency", "Q2")
def wave_efficiency(*, tiles: int, sms: int, ctas_per_sm: int = 1) -> float:
    """[Q2] Share of the slots of all waves that have a tile to compute."""
    slots = sms * ctas_per_sm
    return tiles / (ceil(tiles / slots) * slots)


@quantity("mxu_padding_efficiency", "Q3")
def mxu_padding_efficiency(*, K: int, N: int, mxu_side: int, M: int | None = None) -> float:
    """[Q3] Share of a systolic array's cells that a [K,N] operand fills; given M rows to multiply, of its work."""
    dims = (K, N) if M is None else (K, N, M)
    return prod(dims) / prod(ceil(dim / mxu_side) * mxu_side for dim in dims)


@quantity("tiled_layout_padding_ratio", "Q4")
def tiled_layout_padding_ratio(*, shape: Sequence[int], tile: Sequence[int]) -> float:
    """[Q4] Stored over logical elements of an array whose last dimensions are padded to whole tiles."""
    untiled = len(shape) - len(tile)
    tiles = (1,) * untiled + tuple(tile)
    return prod(ceil(dim / side) * side for dim, side in zip(shape, tiles, strict=True)) / prod(shape)

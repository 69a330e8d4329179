# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""Peaks from the inside of a chip, and what the shape of its units makes unreachable.

Formula codes H2 to H5 and Q2 to Q4 are those of the theory reference (Scaling Book, chapters 2 and 12; NVIDIA
deep-learning performance guide; XProf's table of tensor cores). The clock is the one at which the data sheet's peak
holds, not the boost clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from tracegap.models.hardware import Chip
from tracegap.models.ops import DTYPE_BYTES
from tracegap.models.quantities import quantity

LAUNCH_FLOOR_US = {"gpu": 2.0, "tpu": 1.0}
"""Shortest time between two operations, by kind of part: about 2 to 5 us for kernels of a GPU, 1 us on a TPU. An operation
whose roofline is shorter is bound by its launch."""
GPU_TILE = (128, 128)
"""Rows and columns of a large product that a GPU's thread block usually computes."""
_LEAST_TILE = 16
"""Of a tensor core's instruction: narrow products get narrow tiles, in powers of two."""
_SUBLANE_BYTES = 32
"""A TPU's register holds 8 sublanes of 4 bytes: 8 rows of fp32, 16 of bf16, 32 of int8."""


@quantity("slice_peak_flops_per_s", "H1")
def slice_peak_flops_per_s(*, chips: float, peak_flops_per_s: float) -> float:
    """[H1] FLOP/s of a slice or pod of chips."""
    return chips * peak_flops_per_s


@quantity("slice_hosts", "H1")
def slice_hosts(*, chips: int, chips_per_host: int) -> float:
    """[H1] Hosts of a slice."""
    return ceil(chips / chips_per_host)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """What whole units make of a matrix product: shares of the peak, each on its own. Together they multiply."""

    padding: float
    """Useful over done multiply-adds, with dimensions rounded up to tiles (GPU) or to systolic arrays (TPU) [Q3]."""
    waves: float
    """Busy over all slots of the waves in which a GPU computes tiles [Q2]; 1 elsewhere."""

    @property
    def efficiency(self) -> float:
        """Share of the peak that is left."""
        return self.padding * self.waves


def matmul_quantisation(
    chip: Chip, M: int, K: int, N: int, *, batch: int = 1, dtype: str = "bf16", tile: tuple[int, int] = GPU_TILE
) -> Quantisation:
    """Quantisation of `batch` products [M, K] x [K, N] on one device; nothing is lost where the part's units are unknown.

    A library may choose other tiles, split K or keep a persistent grid: then less is lost than said here.
    """
    if chip.mxu_side is not None:
        sublanes = max(8, round(_SUBLANE_BYTES / DTYPE_BYTES[dtype]))
        done = ceil(M / sublanes) * sublanes * prod(ceil(dim / chip.mxu_side) * chip.mxu_side for dim in (K, N))
        return Quantisation(padding=M * K * N / done, waves=1.0)
    if chip.kind != "gpu" or not chip.device_core_count:
        return Quantisation(padding=1.0, waves=1.0)
    sides = [min(side, max(_LEAST_TILE, 1 << (dim - 1).bit_length())) for dim, side in zip((M, N), tile, strict=True)]
    rows, columns = ceil(M / sides[0]), ceil(N / sides[1])
    padding = M * N / (rows * sides[0] * columns * sides[1])
    return Quantisation(
        padding=padding, waves=wave_efficiency(tiles=batch * rows * columns, sms=int(chip.device_core_count))
    )

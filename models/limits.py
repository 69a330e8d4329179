# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""The roofline of a part of the catalogue: all its memories, mixed precisions, and what whole units lose, each as a term.

Formula codes are those of `roofline` and `silicon`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tracegap.models import roofline, silicon
from tracegap.models.errors import NoFormula
from tracegap.models.hardware import Chip
from tracegap.models.ops import DTYPE_BYTES
from tracegap.models.units import US_PER_S, ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A memory that operands may come from."""

    name: str
    """Such as HBM, VMEM, L2, host or NVLink."""
    bytes_per_s: float
    """Of one device, one direction."""
    capacity_bytes: float | None
    """None: not known, or another device's."""


def levels(chip: Chip) -> tuple[Level, ...]:
    """Memories of a device, fastest first: on the chip, HBM, over one scale-up egress, over the host link.

    Those whose bandwidth the catalogue does not have are left out.
    """
    rates = (
        (chip.onchip_kind or "on chip", chip.device_onchip_bytes_per_s, chip.device_onchip_bytes),
        ("HBM", chip.device_hbm_bytes_per_s, chip.device_memory_bytes),
        (chip.scaleup_kind or "scale-up", chip.device_egress_bytes_per_s, None),
        ("host", chip.device_pcie_bytes_per_s, None),
    )
    known = [Level(name=name, bytes_per_s=rate, capacity_bytes=size) for name, rate, size in rates if rate is not None]
    return tuple(sorted(known, key=lambda level: -level.bytes_per_s))


def level(chip: Chip, name: str) -> Level:
    """One memory of a device. Raises NoFormula, listing the known ones."""
    found = {each.name: each for each in levels(chip)}
    if name not in found:
        raise NoFormula(f"no bandwidth of {name} of {chip.id} in the catalogue; known are {', '.join(found)}")
    return found[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Time of an operation against all limits of a device, whole nanoseconds."""

    terms: Mapping[str, int]
    """By limit: "math", the name of each memory that it uses, "comm"."""

    @property
    def lower_ns(self) -> int:
        """All overlap [R2]."""
        return max(self.terms.values(), default=0)

    @property
    def upper_ns(self) -> int:
        """None overlap [R2]."""
        return sum(self.terms.values())

    @property
    def bound(self) -> str | None:
        """The limit that takes longest, the first of several; None where there is none."""
        return max(self.terms, key=lambda name: self.terms[name], default=None)


def bounds(
    chip: Chip, flops: float, bytes_by_memory: Mapping[str, float], *, dtype: str = "bf16", comm_ns: int | None = None
) -> Bounds:
    """Bounds [R1, R2] of an operation that moves bytes between the arithmetic and several memories of a device.

    Each memory has its own rate and works beside the others: what comes over the host link or stays on the chip does not
    count as traffic of HBM. Raises NoFormula where the part has no peak in that dtype or no such memory.
    """
    terms = {"math": ns(flops / Precision(math=dtype).peak(chip)) if flops else 0}
    terms |= {name: ns(moved / level(chip, name).bytes_per_s) for name, moved in bytes_by_memory.items()}
    return Bounds(terms=terms if comm_ns is None else terms | {"comm": comm_ns})


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Dtypes of a product: how operands are stored, and in what they are multiplied."""

    weights: str = "bf16"
    activations: str = "bf16"
    out: str = "bf16"
    math: str = "bf16"
    """Its peak applies; operands stored otherwise are converted on the way, which costs nothing here."""

    def peak(self, chip: Chip) -> float:
        """Dense peak of one device. Raises NoFormula where the part has none in that dtype."""
        found = chip.device_flops_per_s(self.math)
        if found is None:
            raise NoFormula(f"{chip.id} has no peak in {self.math}")
        return found


PRECISIONS = {
    "bf16": Precision(),
    "w8a16": Precision(weights="int8"),
    "w4a16": Precision(weights="int4"),
    "w8a8": Precision(weights="int8", activations="int8", math="int8"),
    "fp8": Precision(weights="fp8", activations="fp8", math="fp8"),
    "w4a8": Precision(weights="int4", activations="fp8", math="fp8"),
    "fp4": Precision(weights="fp4", activations="fp4", math="fp4"),
}
"""Usual mixes by the names that people give them: bits of weights and of activations."""


def ridge(chip: Chip, dtype: str = "bf16", memory: str = "HBM") -> float:
    """[R4] FLOP a byte above which arithmetic in a dtype, not a memory, limits a device."""
    peak = Precision(math=dtype).peak(chip)
    return roofline.ridge_flops_per_byte(peak_flops_per_s=peak, hbm_bytes_per_s=level(chip, memory).bytes_per_s)


def critical_batch(
    chip: Chip, precision: Precision = PRECISIONS["bf16"], memory: str = "HBM", *, experts: float = 1, active: float = 1
) -> float:
    """[R6, R9] Tokens a replica of the weights from which a wide matmul is compute bound, its weights in that memory."""
    return roofline.moe_critical_batch_tokens(
        peak_flops_per_s=precision.peak(chip),
        hbm_bytes_per_s=level(chip, memory).bytes_per_s,
        weight_bytes=DTYPE_BYTES[precision.weights],
        E=experts,
        k=active,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulTime:
    """Time of a matrix product on a device, whole nanoseconds, by cause. What is not needed at the peak is apart."""

    t_math_ns: int
    """FLOPs at the dense peak."""
    padding_ns: int
    """Multiply-adds of padding beyond that [Q3]."""
    waves_ns: int
    """Slots without a tile beyond both [Q2]."""
    t_mem_ns: int
    """Compulsory bytes over the bandwidth of the memory that they come from."""
    launch_floor_ns: int | None
    """Shortest operation on such a part; None where it is not known."""

    @property
    def lower_ns(self) -> int:
        """The roofline: arithmetic at the peak and traffic overlapped [R2]."""
        return max(self.t_math_ns, self.t_mem_ns)

    @property
    def reachable_ns(self) -> int:
        """With the units that the part has: padding, waves and the launch floor counted."""
        return max(self.t_math_ns + self.padding_ns + self.waves_ns, self.t_mem_ns, self.launch_floor_ns or 0)

    @property
    def upper_ns(self) -> int:
        """Nothing overlapped."""
        return self.t_math_ns + self.padding_ns + self.waves_ns + self.t_mem_ns + (self.launch_floor_ns or 0)

    @property
    def bound(self) -> Literal["math", "memory", "launch"]:
        """What sets `reachable_ns`."""
        if self.reachable_ns == self.t_mem_ns:
            return "memory"
        return "launch" if self.reachable_ns == self.launch_floor_ns else "math"


def matmul_time(
    chip: Chip,
    M: int,
    K: int,
    N: int,
    *,
    batch: int = 1,
    precision: Precision = PRECISIONS["bf16"],
    memory: str = "HBM",
    tile: tuple[int, int] = silicon.GPU_TILE,
) -> MatmulTime:
    """Time of `batch` products [M, K] x [K, N] on one device [R1, R2, Q2, Q3]; weights are the [K, N].

    Raises NoFormula where the part has no peak in that dtype or no such memory.
    """
    math_s = 2 * batch * M * K * N / precision.peak(chip)
    lost = silicon.matmul_quantisation(chip, M, K, N, batch=batch, dtype=precision.math, tile=tile)
    each = (
        (M * K, precision.activations),
        (K * N, precision.weights),
        (M * N, precision.out),
    )
    moved = batch * sum(count * DTYPE_BYTES[dtype] for count, dtype in each)
    floor_us = silicon.LAUNCH_FLOOR_US.get(chip.kind)
    return MatmulTime(
        t_math_ns=ns(math_s),
        padding_ns=ns(math_s / lost.padding - math_s),
        waves_ns=ns(math_s / lost.efficiency - math_s / lost.padding),
        t_mem_ns=ns(moved / level(chip, memory).bytes_per_s),
        launch_floor_ns=None if floor_us is None else ns(floor_us / US_PER_S),
    )

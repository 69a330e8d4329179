# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""Roofline: how long an operation must take, and how large it has to be before arithmetic is the limit.

A lower bound assumes perfect overlap of arithmetic and memory traffic, an upper bound none. Formula codes R1 to R9, Q1,
M1 and M9 are those of the theory reference (Scaling Book, chapters 1, 2, 12; NVIDIA deep-learning performance guide).
"""

from dataclasses import dataclass
from typing import Literal

from tracegap.models import silicon
from tracegap.models.errors import NoFormula
from tracegap.models.hardware import Chip
from tracegap.models.ops import DTYPE_BYTES
from tracegap.models.quantities import quantity
from tracegap.models.units import US_PER_S, ns

Bound = Literal["math", "memory", "comm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Bounds of one operation's time, whole nanoseconds. A term is None where its FLOPs, bytes or rate are unknown."""

    t_math_ns: int | None
    """FLOPs over the peak."""
    t_mem_ns: int | None
    """Bytes over the memory bandwidth."""
    t_comm_ns: int | None
    """Time of the collective model."""
    lower_ns: int
    """All terms overlap perfectly: the largest of them."""
    upper_ns: int
    """None overlap: their sum."""
    bound: Bound
    """The largest term; the first of math, memory, comm where several are equal."""


def predict(
    flops: float | None,
    bytes: float | None,  # noqa: A002 - the word of the field
    flops_per_s: float | None,
    bytes_per_s: float | None,
    comm_ns: int | None = None,
) -> Prediction | None:
    """Bounds [R1, R2] of an operation on a device of the given rates; None where no term is known.

    A term of known zero work takes zero whatever the rate. Each term is rounded to whole nanoseconds.
    """
    terms: dict[Bound, int | None] = {
        "math": _time_ns(flops, flops_per_s),
        "memory": _time_ns(bytes, bytes_per_s),
        "comm": comm_ns,
    }
    known = {name: term for name, term in terms.items() if term is not None}
    if not known:
        return None
    return Prediction(
        t_math_ns=terms["math"],
        t_mem_ns=terms["memory"],
        t_comm_ns=terms["comm"],
        lower_ns=max(known.values()),
        upper_ns=sum(known.values()),
        bound=max(known, key=lambda name: known[name]),
    )


def _time_ns(amount: float | None, rate_per_s: float | None) -> int | None:
    if amount == 0:
        return 0
    if amount is None or rate_per_s is None:
        return None
    return ns(amount / rate_per_s)


@quantity("t_math_s", "R1")
def t_math_s(*, flops: float, peak_flops_per_s: float) -> float:
    """[R1] Seconds of arithmetic at peak."""
    return flops / peak_flops_per_s


@quantity("weight_load_time_s", "R1")
def weight_load_time_s(*, params: float, bytes_per_param: float, hbm_bytes_per_s: float, chips: float = 1) -> float:
    """[R1] Seconds to read all weights once from the memories of all chips."""
    return params * bytes_per_param / (chips * hbm_bytes_per_s)


@quantity("elementwise_add_time_s", "M9")
def elementwise_add_time_s(*, n: float, bytes_per_elem: float, hbm_bytes_per_s: float) -> float:
    """[M9] Seconds of adding two vectors of n elements: two reads and a write each."""
    return 3 * n * bytes_per_elem / hbm_bytes_per_s


@quantity("ridge_flops_per_byte", "R4")
def ridge_flops_per_byte(*, peak_flops_per_s: float, hbm_bytes_per_s: float) -> float:
    """[R4] Intensity above which arithmetic, not memory, is the limit."""
    return peak_flops_per_s / hbm_bytes_per_s


@quantity("dot_intensity_flops_per_byte", "R5")
def dot_intensity(*, n: float, bytes_per_elem: float) -> float:
    """[R5] FLOP/byte of a dot product of n elements: never above 1 / element size, so memory is the limit."""
    return (2 * n - 1) / (bytes_per_elem * (2 * n + 1))


@quantity("matmul_intensity_flops_per_byte", "M1")
def matmul_intensity(*, B: float, D: float, F: float, bytes_per_elem: float) -> float:
    """[M1] FLOP/byte of [B,D] x [D,F], every operand read once and the result written once."""
    return 2 * B * D * F / (bytes_per_elem * (B * D + D * F + B * F))


@quantity("batched_weight_intensity_flops_per_byte", "M1")
def batched_weight_intensity(*, B: float, D: float, F: float, bytes_per_elem: float) -> float:
    """[M1] FLOP/byte of [B,D] x [B,D,F] -> [B,F]: each row has weights of its own, so it never exceeds 2/q."""
    return 2 * B * D * F / (bytes_per_elem * (B * D + B * D * F + B * F))


@quantity("tiled_matmul_intensity_flops_per_byte", "Q1")
def tiled_matmul_intensity(*, bm: float, bn: float, bytes_per_elem: float) -> float:
    """[Q1] FLOP/byte of a bm x bn output tile over the whole contraction, at the level that its operands come from."""
    return 2 * bm * bn / (bytes_per_elem * (bm + bn))


@dataclass(frozen=True, slots=True)
class _Terms:
    """Seconds of a matmul [B,D] x [D,F] and its intensity."""

    t_math_s: float
    t_mem_s: float
    intensity: float


def _matmul_terms(
    *,
    B: float,
    D: float,
    F: float,
    act_bytes: float,
    weight_bytes: float,
    out_bytes: float,
    peak_flops_per_s: float,
    hbm_bytes_per_s: float,
) -> _Terms:
    flops = 2 * B * D * F
    moved = act_bytes * B * D + weight_bytes * D * F + out_bytes * B * F
    return _Terms(flops / peak_flops_per_s, moved / hbm_bytes_per_s, flops / moved)


@quantity("t_lower_s", "R2")
def t_lower_s(
    *,
    B: float,
    D: float,
    F: float,
    act_bytes: float,
    weight_bytes: float,
    out_bytes: float,
    peak_flops_per_s: float,
    hbm_bytes_per_s: float,
) -> float:
    """[R2] Seconds of [B,D] x [D,F] with arithmetic and memory traffic fully overlapped."""
    terms = _matmul_terms(
        B=B,
        D=D,
        F=F,
        act_bytes=act_bytes,
        weight_bytes=weight_bytes,
        out_bytes=out_bytes,
        peak_flops_per_s=peak_flops_per_s,
        hbm_bytes_per_s=hbm_bytes_per_s,
    )
    return max(terms.t_math_s, terms.t_mem_s)


@quantity("t_upper_s", "R2")
def t_upper_s(
    *,
    B: float,
    D: float,
    F: float,
    act_bytes: float,
    weight_bytes: float,
    out_bytes: float,
    peak_flops_per_s: float,
    hbm_bytes_per_s: float,
) -> float:
    """[R2] Seconds of [B,D] x [D,F] with arithmetic and memory traffic one after the other."""
    terms = _matmul_terms(
        B=B,
        D=D,
        F=F,
        act_bytes=act_bytes,
        weight_bytes=weight_bytes,
        out_bytes=out_bytes,
        peak_flops_per_s=peak_flops_per_s,
        hbm_bytes_per_s=hbm_bytes_per_s,
    )
    return terms.t_math_s + terms.t_mem_s


@quantity("attainable_flops_per_s", "R3")
def attainable_flops_per_s(
    *,
    B: float,
    D: float,
    F: float,
    act_bytes: float,
    weight_bytes: float,
    out_bytes: float,
    peak_flops_per_s: float,
    hbm_bytes_per_s: float,
) -> float:
    """[R3] FLOP/s of [B,D] x [D,F] at its point of the roofline."""
    terms = _matmul_terms(
        B=B,
        D=D,
        F=F,
        act_bytes=act_bytes,
        weight_bytes=weight_bytes,
        out_bytes=out_bytes,
        peak_flops_per_s=peak_flops_per_s,
        hbm_bytes_per_s=hbm_bytes_per_s,
    )
    return min(peak_flops_per_s, terms.intensity * hbm_bytes_per_s)


@quantity("critical_batch_tokens", "R6")
def critical_batch_tokens(*, peak_flops_per_s: float, hbm_bytes_per_s: float, weight_bytes: float) -> float:
    """[R6] Tokens per replica of the weights from which a wide matmul is compute bound.

    The peak is that of the arithmetic, the bytes are those of a stored weight.
    """
    return peak_flops_per_s / hbm_bytes_per_s * weight_bytes / 2


@quantity("pcie_critical_batch_tokens", "R6")
def pcie_critical_batch_tokens(*, peak_flops_per_s: float, pcie_bytes_per_s: float, weight_bytes: float) -> float:
    """[R6] The same with the weights streamed from the host."""
    return critical_batch_tokens(
        peak_flops_per_s=peak_flops_per_s, hbm_bytes_per_s=pcie_bytes_per_s, weight_bytes=weight_bytes
    )


@quantity("critical_batch_exact_tokens", "R7")
def critical_batch_exact_tokens(
    *,
    D: float,
    F: float,
    act_bytes: float,
    weight_bytes: float,
    out_bytes: float,
    peak_flops_per_s: float,
    hbm_bytes_per_s: float,
) -> float:
    """[R7] Tokens from which [B,D] x [D,F] is compute bound, activations counted; infinite where it never is."""
    per_token = 2 * hbm_bytes_per_s / peak_flops_per_s - act_bytes / F - out_bytes / D
    return weight_bytes / per_token if per_token > 0 else float("inf")


@quantity("moe_critical_batch_tokens", "R9")
def moe_critical_batch_tokens(
    *, peak_flops_per_s: float, hbm_bytes_per_s: float, weight_bytes: float, E: float, k: float
) -> float:
    """[R9] R6 for E experts of which a token uses k, balanced routing: each expert sees k/E of the tokens."""
    dense = critical_batch_tokens(
        peak_flops_per_s=peak_flops_per_s, hbm_bytes_per_s=hbm_bytes_per_s, weight_bytes=weight_bytes
    )
    return dense * E / k


@quantity("critical_contraction_dim", "R8")
def critical_contraction_dim(*, peak_flops_per_s: float, link_bytes_per_s: float) -> float:
    """[R8] Contracted width from which two devices that exchange 2-byte partial sums are compute bound."""
    return 2 * peak_flops_per_s / link_bytes_per_s


# ---------------------------------------------------------------------------- a part, all its memories, mixed precisions


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
    return ridge_flops_per_byte(peak_flops_per_s=peak, hbm_bytes_per_s=level(chip, memory).bytes_per_s)


def critical_batch(
    chip: Chip, precision: Precision = PRECISIONS["bf16"], memory: str = "HBM", *, experts: float = 1, active: float = 1
) -> float:
    """[R6, R9] Tokens a replica of the weights from which a wide matmul is compute bound, its weights in that memory."""
    return moe_critical_batch_tokens(
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

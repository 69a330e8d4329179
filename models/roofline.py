# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""Roofline: how long an operation must take, and how large it has to be before arithmetic is the limit.

A lower bound assumes perfect overlap of arithmetic and memory traffic, an upper bound none. Formula codes R1 to R9, Q1,
M1 and M9 are those of the theory reference (Scaling Book, chapters 1, 2, 12; NVIDIA deep-learning performance guide).
"""

from dataclasses import dataclass
from typing import Literal

from tracegap.models.quantities import quantity
from tracegap.models.units import ns

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

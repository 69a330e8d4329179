# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""State-space models: selective scans (Mamba), chunked scans (Mamba 2), and their short causal convolutions.

Sources: Gu and Dao 2023, Dao and Gu 2024. Bound by memory where the state stays on the chip.
"""

from math import prod

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import formula
from tracegap.models.formulas.sizes import bytes_of, elements, math_dtype, nbytes, tensor, total, unknown_dtype_note
from tracegap.models.ops import OpSpec
from tracegap.models.quantities import quantity


@quantity("selective_scan_fwd_flops", "M8")
def selective_scan_fwd_flops(*, B: int, L: int, D: int, N: int, gated: bool = False, skip: bool = False) -> float:
    """FLOPs of a selective scan over B sequences of L, width D, state N: 9 an element of the state [M8].

    That is discretisation (3), recurrence (4: two products and a sum, and the input), and 2 for the output; a skip
    connection adds 2 and a gate 2 an element of the output.
    """
    return B * L * D * (9 * N + 2 * skip + 2 * gated)


@quantity("chunked_scan_fwd_flops", "M2")
def chunked_scan_fwd_flops(*, B: int, L: int, H: int, P: int, N: int, G: int, chunk: int) -> float:
    """FLOPs of a chunked scan with H heads of P, state N shared by G groups: four products, each 2 x its extents [M2].

    In a chunk of Q: scores 2 Q^2 N a group and their product with the inputs 2 Q^2 P a head; between chunks: states and
    outputs, 2 Q N P a head each. Scores above the diagonal are counted.
    """
    return 2 * B * L * (chunk * (G * N + H * P) + 2 * H * N * P)


@formula("selective_scan")
def selective_scan(spec: OpSpec) -> Cost:
    """Tensors: u [B, D, L], delta, A [D, N], B, C, then what else is read (skip, gate, bias). Writes one like u.

    Params: `gated`, `skip`. The arithmetic is in fp32 whatever the operands are.
    """
    u, a = tensor(spec, 0), tensor(spec, 2)
    if len(u.shape) != 3 or len(a.shape) != 2 or u.shape[1] != a.shape[0]:
        raise BadShape(f"{spec.kind}: u {u.shape} and A {a.shape}: expected [B, D, L] and [D, N]")
    batch, width, length = u.shape
    flops = selective_scan_fwd_flops(
        B=batch,
        L=length,
        D=width,
        N=a.shape[1],
        gated=bool(spec.params.get("gated")),
        skip=bool(spec.params.get("skip")),
    )
    moved = total(nbytes(*spec.tensors), bytes_of(elements(u), u.dtype))
    return Cost(flops=int(flops), bytes=moved, dtype="fp32", note=unknown_dtype_note(*spec.tensors))


@formula("chunked_scan")
def chunked_scan(spec: OpSpec) -> Cost:
    """Tensors: x [B, L, H, P], dt [B, L, H], A [H], B and C [B, L, G, N], then what else is read. Writes one like x.

    Params: `chunk` (None = not known: FLOPs unknown).
    """
    x, b = tensor(spec, 0), tensor(spec, 3)
    if len(x.shape) != 4 or len(b.shape) != 4:
        raise BadShape(f"{spec.kind}: x {x.shape} and B {b.shape}: expected [B, L, H, P] and [B, L, G, N]")
    moved = total(nbytes(*spec.tensors), bytes_of(elements(x), x.dtype))
    chunk = spec.params.get("chunk")
    if chunk is None:
        return Cost(flops=None, bytes=moved, dtype=math_dtype(x), note="length of a chunk is not in the trace")
    batch, length, heads, head_dim = x.shape
    flops = chunked_scan_fwd_flops(
        B=batch, L=length, H=heads, P=head_dim, N=b.shape[3], G=b.shape[2], chunk=min(int(chunk), length)
    )
    return Cost(flops=int(flops), bytes=moved, dtype=math_dtype(x), note=unknown_dtype_note(*spec.tensors))


@formula("causal_conv1d")
def causal_conv1d(spec: OpSpec) -> Cost:
    """A short filter a channel. Tensors: x, filters [D, taps], bias. 2 x taps FLOPs an element; one like x is written."""
    x, filters = tensor(spec, 0), tensor(spec, 1)
    moved = total(nbytes(*spec.tensors), bytes_of(elements(x), x.dtype))
    taps = prod(filters.shape[1:])
    return Cost(flops=2 * taps * elements(x), bytes=moved, dtype=math_dtype(x), note=unknown_dtype_note(*spec.tensors))

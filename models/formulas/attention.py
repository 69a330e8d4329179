# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""Attention: FLOPs by mask [M5], compulsory bytes of fused kernels [M6]."""

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import formula
from tracegap.models.formulas.sizes import (
    bytes_of,
    elements,
    join,
    math_dtype,
    nbytes,
    tensor,
    total,
    unknown_dtype_note,
)
from tracegap.models.ops import OpSpec, Tensor
from tracegap.models.quantities import quantity


def visible_share(
    *,
    T: int,
    S: int,
    causal: bool,
    mask: str = "bottom_right",
    window: int | None = None,
    window_right: int | None = None,
) -> float:
    """Share of the T x S scores that a mask leaves [M5].

    Causal with T = S is 1/2 by the convention of benchmarks (exact: (T + 1) / 2T), and in the same convention where
    T != S: the last query sees all keys (`bottom_right`) or the first one sees the first key (`top_left`). Windows are
    counted exactly: the keys that a query sees before and after its own; None or negative = all, and after it none if
    causal.
    """
    if mask not in {"bottom_right", "top_left"}:
        raise BadShape(f"unknown causal mask {mask!r}: bottom_right or top_left")
    if T <= 0 or S <= 0:
        return 1.0
    offset = S - T if mask == "bottom_right" else 0
    reach = S + T
    before = reach if window is None or window < 0 else window
    after = 0 if causal else reach if window_right is None or window_right < 0 else window_right
    if before >= S - 1 and causal:
        # area under the diagonal from (0, offset) to (T, T + offset), cut at 0 and S
        return (_ramp(T + offset, S) - _ramp(offset, S)) / (T * S)
    seen = _clamped_sum(offset + after + 1, T, S) - _clamped_sum(offset - before, T, S)
    return seen / (T * S)


def _ramp(x: int, S: int) -> float:
    """Integral of clamp(t, 0, S) up to x."""
    return 0.0 if x <= 0 else x * x / 2 if x <= S else S * S / 2 + S * (x - S)


def _clamped_sum(start: int, count: int, high: int) -> int:
    """Sum of clamp(i, 0, high) over i = start .. start + count - 1."""

    def below(x: int) -> int:
        inside = min(max(x, 0), high + 1)
        return inside * (inside - 1) // 2 + high * max(0, x - high - 1)

    return below(start + count) - below(start)


@quantity("attention_fwd_flops", "M5")
def attention_fwd_flops(
    *,
    B: int,
    T: int,
    S: int,
    N: int,
    d_qk: int,
    d_v: int,
    causal: bool,
    mask: str = "bottom_right",
    window: int | None = None,
    window_right: int | None = None,
) -> float:
    """FLOPs of attention over B sequences, T queries, S keys, N query heads: 2 B N T S (d_qk + d_v) x visible share."""
    return (
        2
        * B
        * N
        * T
        * S
        * (d_qk + d_v)
        * visible_share(T=T, S=S, causal=causal, mask=mask, window=window, window_right=window_right)
    )


@quantity("attention_bwd_flops", "M5")
def attention_bwd_flops(
    *,
    B: int,
    T: int,
    S: int,
    N: int,
    d_qk: int,
    d_v: int,
    causal: bool,
    mask: str = "bottom_right",
    window: int | None = None,
    window_right: int | None = None,
) -> float:
    """FLOPs of the fused backward, five products: the scores are computed again. 2 B N T S (3 d_qk + 2 d_v) x share."""
    return (
        2
        * B
        * N
        * T
        * S
        * (3 * d_qk + 2 * d_v)
        * visible_share(T=T, S=S, causal=causal, mask=mask, window=window, window_right=window_right)
    )


@quantity("attention_fwd_bytes", "M6")
def attention_fwd_bytes(*, B: int, T: int, S: int, N: int, K: int, d_qk: int, d_v: int, bytes_per_elem: float) -> float:
    """Compulsory bytes of fused attention with K key/value heads; no log-sum-exp (4 B N T more where it is written)."""
    return bytes_per_elem * (B * T * N * d_qk + B * S * K * (d_qk + d_v) + B * T * N * d_v)


def _sizes(q: Tensor, k: Tensor, v: Tensor, layout: str) -> dict[str, int]:
    """B, T, S, N, d_qk, d_v by layout: BNTH (heads before tokens) or BTNH (tokens before heads)."""
    if len(q.shape) != 4 or len(k.shape) != 4 or len(v.shape) != 4:
        raise BadShape(f"attention: expected four dimensions {layout}, got {q.shape}, {k.shape}, {v.shape}")
    tokens, heads = (2, 1) if layout == "BNTH" else (1, 2)
    if q.shape[3] != k.shape[3] or q.shape[0] != k.shape[0] or k.shape[tokens] != v.shape[tokens]:
        raise BadShape(f"attention: {q.shape}, {k.shape}, {v.shape} as {layout} do not go together")
    return {
        "B": q.shape[0],
        "T": q.shape[tokens],
        "S": k.shape[tokens],
        "N": q.shape[heads],
        "d_qk": q.shape[3],
        "d_v": v.shape[3],
    }


def _packed_sizes(spec: OpSpec, q: Tensor, k: Tensor, v: Tensor) -> dict[str, int] | None:
    """Sizes of a packed batch, of which shapes tell the sum and the longest: None unless all are as long as that one."""
    p = spec.params
    batch, longest_q, longest_k = p.get("sequences"), p.get("longest_q"), p.get("longest_k")
    if not batch or not longest_q or not longest_k or min(len(q.shape), len(k.shape), len(v.shape)) < 3:
        return None
    tokens = [elements(t) // max(t.shape[-1] * t.shape[-2], 1) for t in (q, k)]
    if tokens != [batch * longest_q, batch * longest_k]:
        return None
    return {"B": batch, "T": longest_q, "S": longest_k, "N": q.shape[-2], "d_qk": q.shape[-1], "d_v": v.shape[-1]}


def _flops(spec: OpSpec, q: Tensor, k: Tensor, v: Tensor, *, backward: bool) -> tuple[int | None, str | None]:
    """FLOPs, and what they assume or why they are unknown."""
    if spec.params.get("contexts_unknown"):
        return None, "lengths of the contexts are not in the trace"
    causal = spec.params.get("causal")
    packed = bool(spec.params.get("varlen")) or len(q.shape) == 3
    sizes = _packed_sizes(spec, q, k, v) if packed else _sizes(q, k, v, spec.params["layout"])
    if sizes is None:
        return None, "sequence lengths of a packed batch are not in the trace"
    if causal is None:
        return None, "whether the mask is causal is not in the trace (PyTorch 2.1 and newer record it with the shapes)"
    count = attention_bwd_flops if backward else attention_fwd_flops
    flops = count(
        **sizes,
        causal=causal,
        mask=spec.params.get("mask", "bottom_right"),
        window=spec.params.get("window"),
        window_right=spec.params.get("window_right"),
    )
    return round(flops), None


@formula("attention")
def attention(spec: OpSpec) -> Cost:
    """Fused attention forward [M5, M6].

    Tensors: q, k, v, then what else is read (bias). Params: `layout` (BNTH or BTNH), `causal` (None = not known: FLOPs
    unknown, for it halves them), `mask`, `window`, `window_right`, `varlen` (packed sequences: FLOPs known only where
    `sequences`, `longest_q` and `longest_k` say that all are equally long), `contexts_unknown` (keys come from a cache of
    which only a part is used: FLOPs unknown, and bytes are unknown then). Log-sum-exp is not counted.
    """
    q, k, v = (tensor(spec, i) for i in range(3))
    flops, note = _flops(spec, q, k, v, backward=False)
    out = elements(q) // max(q.shape[-1], 1) * v.shape[-1]
    moved = None if spec.params.get("contexts_unknown") else total(nbytes(*spec.tensors), bytes_of(out, q.dtype))
    return Cost(flops=flops, bytes=moved, dtype=math_dtype(q), note=join(note, unknown_dtype_note(q, k, v)))


@formula("attention_backward")
def attention_backward(spec: OpSpec) -> Cost:
    """Fused attention backward: reads q, k, v, the output, its gradient and log-sum-exp; writes three gradients.

    Tensors: q, k, v, then what else is read (gradient of the output, output, log-sum-exp, bias). Params as `attention`.
    """
    q, k, v = (tensor(spec, i) for i in range(3))
    flops, note = _flops(spec, q, k, v, backward=True)
    gradients = total(*(bytes_of(elements(t), t.dtype) for t in (q, k, v)))
    moved = total(nbytes(*spec.tensors), gradients)
    return Cost(flops=flops, bytes=moved, dtype=math_dtype(q), note=join(note, unknown_dtype_note(*spec.tensors)))


@quantity("mla_decode_flops", "M5")
def mla_decode_flops(*, B: int, S: int, N: int, d_latent: int, d_rope: int) -> float:
    """FLOPs of a decoding step of latent attention (MLA) with absorbed projections: B queries, S cached tokens each.

    Scores have d_latent + d_rope, values d_latent: 2 B N S (2 d_latent + d_rope).
    """
    return 2 * B * N * S * (2 * d_latent + d_rope)


@quantity("mla_decode_bytes", "M6")
def mla_decode_bytes(*, B: int, S: int, N: int, d_latent: int, d_rope: int, bytes_per_elem: float) -> float:
    """Bytes of that step: one latent a cached token for all heads, queries read, outputs written [M6]."""
    return bytes_per_elem * B * (S * (d_latent + d_rope) + N * (2 * d_latent + d_rope))


@formula("paged_attention")
def paged_attention(spec: OpSpec) -> Cost:
    """A decoding step over a paged cache: each sequence reads its own context once. Tensors: q [sequences, N, d].

    Params: `contexts` (tokens of each sequence; None = not known, as in every trace: a configuration may tell), `kv_heads`,
    `cache_dtype` (default q's), `latent` (width of a latent cache, MLA: then kv_heads is 1 and q has d = latent + rope).
    """
    q, contexts = tensor(spec, 0), spec.params.get("contexts")
    if contexts is None:
        return Cost(flops=None, bytes=None, dtype=math_dtype(q), note="lengths of the contexts are not in the trace")
    if len(q.shape) != 3:
        raise BadShape(f"{spec.kind}: expected [sequences, heads, width], got {q.shape}")
    sequences, heads, width = q.shape
    latent, cached = spec.params.get("latent"), sum(contexts)
    values = width if latent is None else int(latent)
    stored = width if latent is not None else 2 * width * int(spec.params.get("kv_heads") or heads)
    cache = bytes_of(cached * stored, spec.params.get("cache_dtype") or q.dtype)
    moved = total(cache, nbytes(q), bytes_of(sequences * heads * values, q.dtype))
    return Cost(
        flops=2 * heads * cached * (width + values), bytes=moved, dtype=math_dtype(q), note=unknown_dtype_note(q)
    )

"""FLOPs of XLA's custom calls, from their shapes and what their backend configuration says."""

import json
import math
import re
from collections.abc import Callable
from typing import Any

from tracegap.ingest.classify.hlo_module import Instruction
from tracegap.ingest.classify.kernel import kernel_class
from tracegap.models.errors import BadInput
from tracegap.models.formulas.attention import attention_bwd_flops, attention_fwd_flops
from tracegap.models.ops import OpClass

Found = tuple[int | None, str | None]
"""FLOPs, and the reason where they are None."""


def config(instruction: Instruction) -> dict[str, Any]:
    """The backend configuration; empty where there is none, or none in JSON."""
    try:
        found = json.loads(instruction.proto.backend_config or b"{}") if instruction.proto is not None else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def stated_cost(instruction: Instruction) -> tuple[int, int] | None:
    """FLOPs and bytes that the author of a hand-written kernel (Pallas: `cost_estimate`) stated; None where nobody did.

    Zero FLOPs with zero bytes is no statement.
    """
    found = config(instruction)
    for key in ("custom_call_config", "cost_estimate"):
        found = found.get(key) or {}
        if not isinstance(found, dict):
            return None
    flops, moved = (int(found.get(key) or 0) for key in ("flops", "bytes_accessed"))
    return (flops, moved) if flops or moved else None


def flops(instruction: Instruction) -> Found:
    """FLOPs of a custom call."""
    unknown = f"custom call {instruction.target or instruction.name}: its cost is not in the HLO"
    if not instruction.operands or not instruction.result:
        return None, unknown
    handler = next((found for pattern, found in _TARGETS if pattern.search(instruction.target)), None)
    return (None, unknown) if handler is None else handler(instruction)


def _gemm(instruction: Instruction) -> Found:
    """2 x elements of the result x contracted extent, of cuBLAS."""
    found = config(instruction)
    numbers = found.get("gemm_backend_config", found).get("dot_dimension_numbers", {})
    contracted = [int(d) for d in numbers.get("lhs_contracting_dimensions", ())]
    if not contracted:
        return None, f"custom call {instruction.target}: its contracted dimensions are not in the HLO"
    left = instruction.operands[0][0]
    return 2 * instruction.result[0].elements * math.prod(left.dims[d] for d in contracted), None


def _attention(instruction: Instruction) -> Found:
    """Fused attention of cuDNN [M5], by the scores that its configuration states and the elements of q, k and v."""
    found = config(instruction).get("cudnn_fmha_backend_config", {})
    scores = [int(d) for d in found.get("intermediate_tensor_shape", {}).get("dimensions", ())]
    mask = str(found.get("mask_type", "NO_MASK"))
    if len(scores) != 4 or len(instruction.operands) < 3:
        return None, f"custom call {instruction.target}: the shape of its scores is not in the HLO"
    if "PADDING" in mask:
        return None, "lengths of padded sequences are not in the trace"
    batch, heads, length_q, length_k = scores
    q, k, v = (operand[0].elements for operand in instruction.operands[:3])
    try:
        width = q // (batch * heads * length_q)
        kv_heads = k // (batch * length_k * width)
        window = int(found.get("sliding_window_length") or 0)
        count = attention_bwd_flops if "Backward" in instruction.target else attention_fwd_flops
        return round(
            count(
                B=batch,
                T=length_q,
                S=length_k,
                N=heads,
                d_qk=width,
                d_v=v // (batch * length_k * kv_heads),
                causal="CAUSAL" in mask,
                window=window - 1 if window > 0 else None,
            )
        ), None
    except (BadInput, ZeroDivisionError) as error:
        return None, f"shapes that attention cannot have: {error}"


def _sort(instruction: Instruction) -> Found:
    """N log2 n comparisons along the last dimension."""
    array = instruction.operands[0][0]
    along = array.dims[-1] if array.dims else 1
    return int(array.elements * math.ceil(math.log2(max(along, 1)))), None


def _product(instruction: Instruction) -> Found:
    """2 M N K of a hand-written kernel that is called after a matrix product, where its shapes allow one product only.

    Its result is [M, N], and of its operands two alone can be [M, K] and [N, K] or [K, N]; the others (scales, sizes of
    groups) are no matrices of these.
    """
    unknown = f"hand-written kernel {instruction.name}: the compiler states no cost, and its author none"
    out = instruction.result[0].dims
    if kernel_class(instruction.name) is not OpClass.MATMUL or len(instruction.result) != 1 or len(out) != 2:
        return None, unknown
    matrices = [o[0].dims for o in instruction.operands if len(o) == 1 and len(o[0].dims) == 2]
    contracted = {
        (a[1], i, j)
        for i, a in enumerate(matrices)
        for j, b in enumerate(matrices)
        if i != j and a[0] == out[0] and b in ((out[1], a[1]), (a[1], out[1]))
    }
    if len(contracted) != 1:
        return None, unknown
    return 2 * out[0] * out[1] * next(iter(contracted))[0], None


_TARGETS: tuple[tuple[re.Pattern[str], Callable[[Instruction], Found]], ...] = (
    (re.compile(r"^__cublas\$"), _gemm),
    (re.compile(r"^__cudnn\$fmha"), _attention),
    (re.compile(r"^tpu_custom_call$|^mosaic_gpu|triton"), _product),
    (re.compile(r"^TopK$|^__cub\$|^__gpu\$TopK"), _sort),
)

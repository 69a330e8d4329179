"""What one execution of an HLO instruction costs: FLOPs and bytes, from its shapes.

FLOPs follow the conventions of XLA's cost analysis: a multiply-add is 2, an elementwise operation 1 for each element of
its result, a reduction one for each element that disappears, transcendental functions and data movement 0.
Bytes are those that must cross the memory: every operand once (of a sliced one only the slice), and the result.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tracegap.ingest.classify import hlo_custom
from tracegap.ingest.classify.hlo import CLASS_OF_OPCODE, COLLECTIVES, FREE, base_opcode, members
from tracegap.ingest.classify.hlo_module import Array, Instruction, Module
from tracegap.models.ops import OpClass

_FUNCTIONS = (
    "exponential exponential-minus-one log log-plus-one logistic tanh tan sine cosine sqrt rsqrt cbrt power erf atan2"
)
_TRANSCENDENTAL = frozenset(_FUNCTIONS.split())
_SLICERS = frozenset({"slice", "dynamic-slice", "gather"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an operation does; None is unknown, and `note` says why."""

    flops: int | None
    bytes: int | None
    note: str | None = None


def cost(instruction: Instruction, module: Module) -> Cost:
    """FLOPs and bytes of one execution of an instruction of a module."""
    opcode = instruction.opcode
    if opcode in FREE:
        return Cost(flops=0, bytes=0)
    if opcode == "while":
        return _loop(instruction, module)
    if opcode == "conditional":
        return Cost(flops=None, bytes=None, note=f"{opcode}: the operations inside are not in the trace")
    if opcode == "custom-call" and (stated := hlo_custom.stated_cost(instruction)) is not None:
        return Cost(flops=stated[0], bytes=stated[1], note="FLOPs and bytes as the kernel's author states them")
    try:
        flops, note = _flops(instruction, module)
        return Cost(flops=flops, bytes=_bytes(instruction, module) if flops is not None else None, note=note)
    except (IndexError, ValueError, ZeroDivisionError):
        return Cost(flops=None, bytes=None, note=f"the HLO of {instruction.name} lacks operands or dimensions")


def _loop(instruction: Instruction, module: Module) -> Cost:
    """Condition and body of a loop as often as the compiler says that it runs; its own analysis counts them once."""
    trips = hlo_custom.config(instruction).get("known_trip_count") or {}
    count = int(trips["n"]) if isinstance(trips, dict) and str(trips.get("n", "")).isdigit() else None
    if count is None:
        return Cost(flops=None, bytes=None, note="while: how often it runs is not in the HLO")
    inside = [cost(i, module) for i in members(instruction, module)]
    unknown = next((c for c in inside if c.flops is None or c.bytes is None), None)
    if unknown is not None or not inside:
        return Cost(flops=None, bytes=None, note=unknown.note if unknown is not None else "while: its body is missing")
    return Cost(
        flops=count * sum(c.flops or 0 for c in inside),
        bytes=count * sum(c.bytes or 0 for c in inside),
        note=f"{count} times what its condition and body do",
    )


def call_cost(instruction: Instruction) -> Cost:
    """FLOPs and bytes of a custom call of which only the text is known: by its target and its shapes."""
    flops, note = hlo_custom.flops(instruction)
    return Cost(flops=flops, bytes=_whole_bytes(instruction) if flops is not None else None, note=note)


def _flops(instruction: Instruction, module: Module) -> tuple[int | None, str | None]:
    opcode = instruction.opcode
    if opcode in ("fusion", "call", "map", "async-start"):
        return _flops_inside(instruction, module)
    if opcode in FLOPS:
        return FLOPS[opcode](instruction, module)
    if opcode in _TRANSCENDENTAL or CLASS_OF_OPCODE.get(base_opcode(opcode)) in (OpClass.DATA_MOVEMENT, OpClass.COPY):
        return 0, None
    if CLASS_OF_OPCODE.get(opcode) is OpClass.ELEMENTWISE:
        return sum(array.elements for array in instruction.result[:1]), None
    return None, f"no formula for {opcode}"


def _flops_inside(instruction: Instruction, module: Module) -> tuple[int | None, str | None]:
    """Sum over the called computation; a map runs it for every element."""
    total = 0
    for member in members(instruction, module):
        if member.opcode in FREE:
            continue
        flops, note = _flops(member, module)
        if flops is None:
            return None, note
        total += flops
    return total * (instruction.result[0].elements if instruction.opcode == "map" else 1), None


def _dot(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    """2 × elements of the result × contracted extent."""
    left = instruction.operands[0][0]
    contracted = instruction.proto.dot_dimension_numbers.lhs_contracting_dimensions
    return 2 * instruction.result[0].elements * math.prod(left.dims[d] for d in contracted), None


def _convolution(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    image, kernel = instruction.operands[0][0], instruction.operands[1][0]
    return _convolution_flops(instruction, image, kernel, instruction.result[0]), None


def _convolution_flops(instruction: Instruction, image: Array, kernel: Array, out: Array) -> int:
    """2 × batch × output features × input features of a group × valid taps over all spatial dimensions."""
    proto = instruction.proto
    d = proto.convolution_dimension_numbers
    taps = 1
    spatial = (d.input_spatial_dimensions, d.output_spatial_dimensions, d.kernel_spatial_dimensions)
    for window, i, o, k in zip(proto.window.dimensions, *spatial, strict=True):
        taps *= _valid_taps(image.dims[i], kernel.dims[k], out.dims[o], window)
    batch = image.dims[d.input_batch_dimension] // max(proto.batch_group_count, 1)
    features_in = image.dims[d.input_feature_dimension] // max(proto.feature_group_count, 1)
    return int(2 * batch * out.dims[d.output_feature_dimension] * features_in * taps)


def _valid_taps(size: int, taps: int, positions: int, window: object) -> int:
    """(position, tap) pairs of one dimension that fall on an element, not on padding or between dilated elements."""
    stride, low = getattr(window, "stride", 1) or 1, getattr(window, "padding_low", 0)
    spread, base = getattr(window, "window_dilation", 1) or 1, getattr(window, "base_dilation", 1) or 1
    at = np.arange(positions)[:, None] * stride + np.arange(taps)[None, :] * spread - low
    return int(((at >= 0) & (at <= (size - 1) * base) & (at % base == 0)).sum())


def _reduce(instruction: Instruction, module: Module) -> tuple[int | None, str | None]:
    """One application of the combiner for each element that disappears."""
    arrays = len(instruction.operands) // 2
    gone = instruction.operands[0][0].elements - instruction.result[0].elements
    combiner = sum(1 for i in members(instruction, module) if i.opcode not in FREE)
    return gone * (max(combiner, 1) if arrays > 1 else 1), None


def _reduce_window(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    window = math.prod(w.size for w in instruction.proto.window.dimensions)
    return instruction.result[0].elements * (window - 1), None


def _scatter(instruction: Instruction, module: Module) -> tuple[int | None, str | None]:
    """The combiner for each updated element; nothing if it only replaces."""
    combiner = sum(1 for i in members(instruction, module) if i.opcode not in FREE)
    return instruction.operands[-1][0].elements * combiner, None


def _sort(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    """N log2 n comparisons along the sorted dimension."""
    array = instruction.operands[0][0]
    dims = instruction.proto.dimensions
    along = array.dims[dims[0]] if dims and array.dims else array.elements
    return int(array.elements * math.ceil(math.log2(max(along, 1)))), None


def _nothing(_: Instruction, __: Module) -> tuple[int | None, str | None]:
    return 0, None


def _collective(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    """Additions of a reducing collective, one for each element of the input; others only move."""
    reduces = base_opcode(instruction.opcode) in ("all-reduce", "reduce-scatter", "all-reduce-scatter")
    return sum(a.elements for o in instruction.operands for a in o) if reduces else 0, None


def _ragged_dot(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    """2 × elements of the left operand × columns of the result: rows are split over groups, none is used twice."""
    return 2 * instruction.operands[0][0].elements * instruction.result[0].dims[-1], None


def _top_k(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    """N log2 n comparisons along the last dimension."""
    array = instruction.operands[0][0]
    return int(array.elements * math.ceil(math.log2(max(array.dims[-1], 1)))), None


def _select_and_scatter(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    """A comparison for each element of a window but one, and an addition, for each element of the source."""
    window = math.prod(w.size for w in instruction.proto.window.dimensions)
    return instruction.operands[1][0].elements * window, None


def _fft(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    """5 n log2 n for each transform of n points; half of it where one side is real."""
    sides = (instruction.operands[0][0], instruction.result[0])
    points = math.prod(instruction.proto.fft_length)
    real = any(not (side.dtype or "").startswith("complex") for side in sides)
    elements = max(side.elements for side in sides)
    return round((2.5 if real else 5) * elements * math.log2(max(points, 1))), None


def _cholesky(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    """n³/3 for each matrix."""
    array = instruction.operands[0][0]
    return array.elements * array.dims[-1] // 3, None


def _triangular_solve(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    """n² for each right-hand side."""
    return instruction.operands[0][0].dims[-1] * instruction.result[0].elements, None


def _batch_norm(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    """5 an element in training, 2 in inference, 10 backward."""
    each = {"batch-norm-training": 5, "batch-norm-inference": 2}.get(instruction.opcode, 10)
    return each * instruction.operands[0][0].elements, None


def _custom_call(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    """By its target: products of cuBLAS, convolutions and attention of cuDNN, sorts; else unknown."""
    if instruction.target.startswith("__cudnn$conv") and len(instruction.operands) >= 2 and instruction.result:
        first, second, out = instruction.operands[0][0], instruction.operands[1][0], instruction.result[0]
        # which of the three is the image, the kernel and the output of the forward convolution
        image, kernel, output = {
            "__cudnn$convBackwardInput": (out, second, first),
            "__cudnn$convBackwardFilter": (first, out, second),
        }.get(instruction.target, (first, second, out))
        return _convolution_flops(instruction, image, kernel, output), None
    return hlo_custom.flops(instruction)


FLOPS: dict[str, Callable[[Instruction, Module], tuple[int | None, str | None]]] = {
    "dot": _dot,
    "scaled-dot": _dot,
    "ragged-dot": _ragged_dot,
    "convolution": _convolution,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "scatter": _scatter,
    "sort": _sort,
    "topk": _top_k,
    "top-k": _top_k,
    "select-and-scatter": _select_and_scatter,
    "fft": _fft,
    "cholesky": _cholesky,
    "triangular-solve": _triangular_solve,
    **dict.fromkeys(("batch-norm-training", "batch-norm-inference", "batch-norm-grad"), _batch_norm),
    "rng": _nothing,
    "rng-bit-generator": _nothing,
    "rng-get-and-update-state": _nothing,
    "custom-call": _custom_call,
    **dict.fromkeys(COLLECTIVES, _collective),
    **{f"{name}-start": _collective for name in COLLECTIVES},
    **{f"{name}-done": _nothing for name in COLLECTIVES},
}


def _bytes(instruction: Instruction, module: Module) -> int:
    opcode = instruction.opcode
    result = sum(array.bytes for array in instruction.result)
    if opcode == "custom-call" and instruction.target.startswith(("__cublas$", "__cudnn$")):
        gradients = 3 if "fmha" in instruction.target and "Backward" in instruction.target else 1
        result = sum(array.bytes for array in instruction.result[:gradients])  # the rest is scratch space
    if opcode in _SLICERS:
        indices = sum(a.bytes for operand in instruction.operands[1:] for a in operand)
        return 2 * result + indices
    if opcode == "dynamic-update-slice":
        return 2 * sum(a.bytes for a in instruction.operands[1])
    if opcode in ("fusion", "call"):
        return _fusion_bytes(instruction, module)
    return _whole_bytes(instruction, result)


def _whole_bytes(instruction: Instruction, result_bytes: int | None = None) -> int:
    """Every operand once and the result."""
    result = sum(array.bytes for array in instruction.result) if result_bytes is None else result_bytes
    distinct = dict(zip(instruction.operand_names, instruction.operands, strict=False))
    return sum(a.bytes for arrays in distinct.values() for a in arrays) + result


def _fusion_bytes(instruction: Instruction, module: Module) -> int:
    """Parameters once (of those that are only sliced, the slices) and outputs (of updates in place, the update)."""
    inside = next(module.called(instruction), [])
    users: dict[str, list[Instruction]] = {}
    for member in inside:
        for name in dict.fromkeys(member.operand_names):
            users.setdefault(name, []).append(member)
    read = sum(_read(member, users) for member in inside if member.opcode == "parameter")
    return read + (_written(inside[-1], {m.name: m for m in inside}) if inside else 0)


def _read(parameter: Instruction, users: dict[str, list[Instruction]]) -> int:
    whole = sum(a.bytes for a in parameter.result)
    read = 0
    for user in users.get(parameter.name, []):
        first = user.operand_names[0] == parameter.name
        if first and user.opcode in _SLICERS:
            read += sum(a.bytes for a in user.result)
        elif first and user.opcode == "dynamic-update-slice":
            continue  # updated in place: what is not replaced is not read
        else:
            return whole
    return min(read, whole)


def _written(root: Instruction, inside: dict[str, Instruction]) -> int:
    if root.opcode == "tuple":
        return sum(_written(inside[n], inside) for n in root.operand_names if n in inside)
    if root.opcode == "bitcast" and root.operand_names and root.operand_names[0] in inside:
        return _written(inside[root.operand_names[0]], inside)
    if root.opcode == "dynamic-update-slice":
        return sum(a.bytes for a in root.operands[1])
    return sum(a.bytes for a in root.result)

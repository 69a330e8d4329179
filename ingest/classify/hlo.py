"""What an HLO operation is and what it costs: class, FLOPs, bytes, collective. Pure; trace formats stay outside.

FLOPs follow the conventions of XLA's cost analysis: a multiply-add is 2, an elementwise operation 1 for each element of
its result, a reduction one for each element that disappears, transcendental functions and data movement 0.
Bytes are those that must cross the memory: every operand once (of a sliced one only the slice), and the result.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from tracegap.ingest.classify.hlo_module import Array, Arrays, Instruction, Module
from tracegap.ingest.classify.kernel import kernel_class
from tracegap.models.ops import CollectiveKind, OpClass

STRUCTURE = frozenset({"while", "conditional", "call", "async-call"})
"""Operations whose time is that of the operations inside them, where those are in the trace."""

FREE = frozenset(
    ["parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id", "opt-barrier", "add-dependency", "get-dimension-size", "domain", "bitcast-convert"]
)
"""Opcodes that compute and move nothing."""

COLLECTIVES = {
    "all-reduce": CollectiveKind.ALL_REDUCE,
    "all-reduce-scatter": CollectiveKind.REDUCE_SCATTER,
    "all-gather": CollectiveKind.ALL_GATHER,
    "reduce-scatter": CollectiveKind.REDUCE_SCATTER,
    "all-to-all": CollectiveKind.ALL_TO_ALL,
    "ragged-all-to-all": CollectiveKind.ALL_TO_ALL,
    "collective-permute": CollectiveKind.PERMUTE,
    "collective-broadcast": CollectiveKind.BROADCAST,
    "send": CollectiveKind.SEND,
    "recv": CollectiveKind.RECV,
}
"""Communication by opcode, without the `-start` and `-done` of its asynchronous form."""

_MOVES = (
    "copy transpose reshape concatenate pad reverse broadcast iota slice dynamic-slice dynamic-update-slice gather scatter "
    "dynamic-reshape set-dimension-size"
)
CLASS_OF_OPCODE: dict[str, OpClass] = {
    **dict.fromkeys(_MOVES.split(), OpClass.DATA_MOVEMENT),
    **dict.fromkeys(COLLECTIVES, OpClass.COLLECTIVE),
    **dict.fromkeys(("dot", "ragged-dot", "scaled-dot"), OpClass.MATMUL),
    **dict.fromkeys(("reduce", "reduce-window", "select-and-scatter"), OpClass.REDUCTION),
    **dict.fromkeys(("sort", "topk", "top-k"), OpClass.SORT),
    **dict.fromkeys(("rng", "rng-bit-generator", "rng-get-and-update-state"), OpClass.RANDOM),
    **dict.fromkeys(("infeed", "outfeed", "copy-start", "copy-done", "async-start", "async-done"), OpClass.COPY),
    **dict.fromkeys(("batch-norm-training", "batch-norm-inference", "batch-norm-grad"), OpClass.NORMALIZATION),
    **dict.fromkeys((*FREE, *STRUCTURE, "fft", "cholesky", "triangular-solve"), OpClass.OTHER),
    "convolution": OpClass.CONVOLUTION,
    "custom-call": OpClass.CUSTOM,
}
"""Class by opcode; every opcode that is not listed works element by element."""

CLASS_OF_CATEGORY: dict[str, OpClass] = {
    "loop fusion": OpClass.ELEMENTWISE,
    "non-fusion elementwise": OpClass.ELEMENTWISE,
    "input fusion": OpClass.REDUCTION,
    "output fusion": OpClass.MATMUL,
    "convolution fusion": OpClass.CONVOLUTION,
    "data formatting": OpClass.DATA_MOVEMENT,
    "custom fusion": OpClass.OTHER,
    "host send": OpClass.COPY,
    "host recv": OpClass.COPY,
    "host send-done": OpClass.COPY,
    "host recv-done": OpClass.COPY,
    "megacore fusion": OpClass.OTHER,
}
"""Class by the `hlo_category` of XLA's profiler, where it is not simply an opcode."""

_TRANSCENDENTAL = frozenset(
    ["exponential", "exponential-minus-one", "log", "log-plus-one", "logistic", "tanh", "tan", "sine", "cosine", "sqrt", "rsqrt", "cbrt", "power", "erf", "atan2"]
)
_SLICERS = frozenset({"slice", "dynamic-slice", "gather"})
_ATTENTION = re.compile(r"attention|fmha|flash_attn|splash|\bmha\b", re.IGNORECASE)
_CONVOLUTION_OP = re.compile(r"conv_general|conv\d?d|convolution", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What an operation does; None is unknown, and `note` says why."""

    flops: int | None
    bytes: int | None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Communication that an operation does."""

    kind: CollectiveKind | None
    message_bytes: int | None
    dtype: str | None
    groups: tuple[tuple[int, ...], ...] | None = None
    """Devices of each group; None: not stated, or all."""
    pairs: tuple[tuple[int, int], ...] = ()
    """Source and target of a permutation."""
    channel_id: int | None = field(default=None)

    def group_of(self, device: int) -> tuple[int, ...] | None:
        """The group in which a device takes part."""
        if self.pairs:
            return tuple(sorted({device for pair in self.pairs for device in pair})) or None
        return next((group for group in self.groups or () if device in group), None)


def base_opcode(opcode: str) -> str:
    """The opcode without `-start`, `-done` or `-update`: both halves of an asynchronous operation are that operation."""
    for suffix in ("-start", "-done", "-update"):
        if opcode.endswith(suffix):
            return opcode.removesuffix(suffix)
    return opcode


def opcode_of_name(name: str) -> str:
    """The opcode that an instruction's name suggests: `all-reduce.3` -> `all-reduce`, `loop_add_fusion.2` -> `fusion`."""
    stem = re.sub(r"(\.\d+|\.clone|\.remat\d*)+$", "", name.lstrip("%").split(" ")[0])
    if stem in CLASS_OF_OPCODE or base_opcode(stem) in CLASS_OF_OPCODE:
        return stem
    return "fusion" if "fusion" in stem else stem.replace("_", "-")


def is_half(opcode: str) -> str | None:
    """`start` or `done` for half of an asynchronous operation."""
    return next((half for half in ("start", "done") if opcode.endswith("-" + half)), None)


def category_class(category: str, framework_op: str = "") -> OpClass | None:
    """Class by the profiler's category; None if the category is unknown."""
    if base_opcode(category.removesuffix(" fusion")) in COLLECTIVES or category.startswith("async-collective"):
        return OpClass.COLLECTIVE
    found = CLASS_OF_CATEGORY.get(category) or CLASS_OF_OPCODE.get(category) or CLASS_OF_OPCODE.get(base_opcode(category))
    if found is OpClass.CONVOLUTION:  # on TPU a matrix product is lowered to a convolution too
        return OpClass.CONVOLUTION if _CONVOLUTION_OP.search(framework_op) else OpClass.MATMUL
    return found


def op_class(instruction: Instruction, module: Module | None = None, framework_op: str = "") -> OpClass:
    """Class by opcode; of a fusion or call by what is inside it, where the module is at hand."""
    base = base_opcode(instruction.opcode)
    where = framework_op or instruction.op_name
    if base in ("send", "recv") and instruction.host_transfer:
        return OpClass.COPY
    if base == "convolution":
        return _convolution_class(instruction, where)
    if base == "custom-call":
        return _custom_class(instruction, where)
    if base in ("fusion", "call", "async"):
        size = max((array.elements for array in instruction.result), default=0)
        inside = [
            found
            for i in _members(instruction, module)
            # arithmetic on something smaller than the result is that of indices and scalars
            if (found := op_class(i, module, i.op_name or where)) is not OpClass.ELEMENTWISE
            or max((array.elements for array in i.result), default=0) >= size
        ]
        return _dominant(inside) if inside else CLASS_OF_OPCODE.get(instruction.opcode, OpClass.OTHER)
    return CLASS_OF_OPCODE.get(base) or CLASS_OF_OPCODE.get(instruction.opcode, OpClass.ELEMENTWISE)


_DOMINANT = (
    OpClass.COLLECTIVE,
    OpClass.ATTENTION,
    OpClass.MATMUL,
    OpClass.CONVOLUTION,
    OpClass.CUSTOM,
    OpClass.SORT,
    OpClass.RANDOM,
    OpClass.NORMALIZATION,
    OpClass.REDUCTION,
    OpClass.ELEMENTWISE,
    OpClass.DATA_MOVEMENT,
    OpClass.COPY,
    OpClass.OTHER,
)


def _dominant(classes: Iterable[OpClass]) -> OpClass:
    present = set(classes)
    return next((c for c in _DOMINANT if c in present), OpClass.OTHER)


def _convolution_class(instruction: Instruction, framework_op: str) -> OpClass:
    if framework_op:
        return OpClass.CONVOLUTION if _CONVOLUTION_OP.search(framework_op) else OpClass.MATMUL
    windows = instruction.proto.window.dimensions if instruction.proto is not None else ()
    return OpClass.CONVOLUTION if any(w.size > 1 for w in windows) else OpClass.MATMUL


def _custom_class(instruction: Instruction, framework_op: str) -> OpClass:
    target = instruction.target.lower()
    if _ATTENTION.search(f"{target} {framework_op} {instruction.name}"):
        return OpClass.ATTENTION
    for pattern, found in (
        (r"gemm|matmul", OpClass.MATMUL),
        (r"conv", OpClass.CONVOLUTION),
        (r"topk|sort", OpClass.SORT),
        (r"layernorm|rmsnorm|\$norm", OpClass.NORMALIZATION),
        (r"softmax", OpClass.SOFTMAX),
    ):
        if re.search(pattern, target):
            return found
    named = kernel_class(instruction.name)  # hand-written kernels are called after the function that they run
    return named if named in (OpClass.MATMUL, OpClass.NORMALIZATION, OpClass.SOFTMAX, OpClass.EMBEDDING) else OpClass.CUSTOM


def _members(instruction: Instruction, module: Module | None) -> list[Instruction]:
    return [i for computation in module.called(instruction) for i in computation] if module is not None else []


def math_dtype(instruction: Instruction, module: Module | None = None) -> str | None:
    """Element type of the arithmetic: of the operands of the first matrix product inside, else of the result."""
    products = ("dot", "convolution", "ragged-dot", "scaled-dot")
    for member in (instruction, *_members(instruction, module)):
        is_product = member.opcode in products or (
            member.opcode == "custom-call" and op_class(member) in (OpClass.MATMUL, OpClass.CONVOLUTION)
        )
        if is_product and member.operands:
            return _dtype(member.operands[0])
    return _dtype(instruction.result) or next(filter(None, map(_dtype, instruction.operands)), None)


def _dtype(arrays: Arrays) -> str | None:
    return arrays[0].dtype if arrays else None


# ---------------------------------------------------------------------------------------------- cost


def cost(instruction: Instruction, module: Module) -> Cost:
    """FLOPs and bytes of one execution of an instruction of a module."""
    opcode = instruction.opcode
    if opcode in FREE:
        return Cost(flops=0, bytes=0)
    if opcode in ("while", "conditional"):
        return Cost(flops=None, bytes=None, note=f"{opcode}: the operations inside are not in the trace")
    try:
        flops, note = _flops(instruction, module)
        return Cost(flops=flops, bytes=_bytes(instruction, module) if flops is not None else None, note=note)
    except (IndexError, ValueError):
        return Cost(flops=None, bytes=None, note=f"the HLO of {instruction.name} lacks operands or dimensions")


def _flops(instruction: Instruction, module: Module) -> tuple[int | None, str | None]:
    opcode = instruction.opcode
    if opcode in ("fusion", "call", "map", "async-start"):
        return _flops_inside(instruction, module)
    if opcode in _FLOPS:
        return _FLOPS[opcode](instruction, module)
    if opcode in _TRANSCENDENTAL or CLASS_OF_OPCODE.get(base_opcode(opcode)) in (OpClass.DATA_MOVEMENT, OpClass.COPY):
        return 0, None
    if opcode in CLASS_OF_OPCODE and CLASS_OF_OPCODE[opcode] is OpClass.OTHER and opcode not in FREE:
        return None, f"no formula for {opcode}"
    return sum(array.elements for array in instruction.result[:1]), None


def _flops_inside(instruction: Instruction, module: Module) -> tuple[int | None, str | None]:
    """Sum over the called computation; a map runs it for every element."""
    total = 0
    for member in _members(instruction, module):
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
    return _convolution_flops(instruction, instruction.operands[0][0], instruction.operands[1][0], instruction.result[0]), None


def _convolution_flops(instruction: Instruction, image: Array, kernel: Array, out: Array) -> int:
    """2 × batch × output features × input features of a group × valid taps over all spatial dimensions."""
    proto = instruction.proto
    d = proto.convolution_dimension_numbers
    taps = 1
    windows = zip(
        proto.window.dimensions, d.input_spatial_dimensions, d.output_spatial_dimensions, d.kernel_spatial_dimensions, strict=True
    )
    for window, i, o, k in windows:
        taps *= _valid_taps(image.dims[i], kernel.dims[k], out.dims[o], window)
    batch = image.dims[d.input_batch_dimension] // max(proto.batch_group_count, 1)
    features_in = image.dims[d.input_feature_dimension] // max(proto.feature_group_count, 1)
    return 2 * batch * out.dims[d.output_feature_dimension] * features_in * taps


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
    combiner = sum(1 for i in _members(instruction, module) if i.opcode not in FREE)
    return gone * (max(combiner, 1) if arrays > 1 else 1), None


def _reduce_window(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    window = math.prod(w.size for w in instruction.proto.window.dimensions)
    return instruction.result[0].elements * (window - 1), None


def _scatter(instruction: Instruction, module: Module) -> tuple[int | None, str | None]:
    """The combiner for each updated element; nothing if it only replaces."""
    combiner = sum(1 for i in _members(instruction, module) if i.opcode not in FREE)
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


def _custom_call(instruction: Instruction, _: Module) -> tuple[int | None, str | None]:
    target = instruction.target
    if target.startswith("__cublas$"):
        contracted = _gemm_contracted(instruction.proto.backend_config)
        if contracted is not None and instruction.operands and instruction.result:
            left = instruction.operands[0][0]
            return 2 * instruction.result[0].elements * math.prod(left.dims[d] for d in contracted), None
    if target.startswith("__cudnn$conv") and len(instruction.operands) >= 2 and instruction.result:
        first, second, out = instruction.operands[0][0], instruction.operands[1][0], instruction.result[0]
        # which of the three is the image, the kernel and the output of the forward convolution
        image, kernel, output = {
            "__cudnn$convBackwardInput": (out, second, first),
            "__cudnn$convBackwardFilter": (first, out, second),
        }.get(target, (first, second, out))
        return _convolution_flops(instruction, image, kernel, output), None
    return None, f"custom call {target or instruction.name}: its cost is not in the HLO"


def _gemm_contracted(config: bytes) -> list[int] | None:
    """Contracted dimensions of the left operand, from the backend configuration."""
    try:
        found = json.loads(config or b"{}")
    except ValueError:
        return None
    numbers = found.get("gemm_backend_config", found).get("dot_dimension_numbers", {})
    return [int(d) for d in numbers.get("lhs_contracting_dimensions", ())] or None


_FLOPS: dict[str, Callable[[Instruction, Module], tuple[int | None, str | None]]] = {
    "dot": _dot,
    "convolution": _convolution,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "scatter": _scatter,
    "sort": _sort,
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
        result = instruction.result[0].bytes  # the rest of the tuple is scratch space
    if opcode in _SLICERS:
        indices = sum(a.bytes for operand in instruction.operands[1:] for a in operand)
        return 2 * result + indices
    if opcode == "dynamic-update-slice":
        return 2 * sum(a.bytes for a in instruction.operands[1])
    if opcode in ("fusion", "call"):
        return _fusion_bytes(instruction, module)
    distinct = dict(zip(instruction.operand_names, instruction.operands, strict=False))
    return sum(a.bytes for arrays in distinct.values() for a in arrays) + result


def _fusion_bytes(instruction: Instruction, module: Module) -> int:
    """Parameters once (of those that are only sliced, the slices) and outputs (of updates in place, the update)."""
    total = 0
    for members in module.called(instruction):
        users: dict[str, list[Instruction]] = {}
        for member in members:
            for name in dict.fromkeys(member.operand_names):
                users.setdefault(name, []).append(member)
        for member in members:
            if member.opcode == "parameter":
                total += _read(member, users)
        total += _written(members[-1], {m.name: m for m in members}) if members else 0
        break
    return total


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


def _written(root: Instruction, members: dict[str, Instruction]) -> int:
    if root.opcode == "tuple":
        return sum(_written(members[n], members) for n in root.operand_names if n in members)
    if root.opcode == "bitcast" and root.operand_names and root.operand_names[0] in members:
        return _written(members[root.operand_names[0]], members)
    if root.opcode == "dynamic-update-slice":
        return sum(a.bytes for a in root.operands[1])
    return sum(a.bytes for a in root.result)


# ---------------------------------------------------------------------------------------------- collectives


def collective(instruction: Instruction, module: Module | None = None) -> Collective:
    """The communication of an instruction: of a fusion or an asynchronous wrapper the one inside it."""
    base = base_opcode(instruction.opcode)
    if base not in COLLECTIVES:
        inner = next((i for i in _members(instruction, module) if base_opcode(i.opcode) in COLLECTIVES), None)
        if inner is not None:
            return collective(inner, module)
    kind = COLLECTIVES.get(base) or _kind_of_name(instruction.name)
    sent = [array for operand in instruction.operands for array in operand]
    arrays = sent or list(instruction.result)
    size = sum(array.bytes for array in arrays)
    group = next(iter(instruction.replica_groups or ()), ())
    if kind is CollectiveKind.ALL_GATHER:
        size = size * len(group) if sent and group else sum(a.bytes for a in _output(instruction))
    elif kind is CollectiveKind.REDUCE_SCATTER and not sent:
        size *= max(len(group), 1)
    return Collective(
        kind=kind,
        message_bytes=size or None,
        dtype=arrays[0].dtype if arrays else None,
        groups=_on_devices(instruction, module),
        pairs=_pairs_on_devices(instruction, module),
        channel_id=instruction.channel_id,
    )


def _on_devices(instruction: Instruction, module: Module | None) -> tuple[tuple[int, ...], ...] | None:
    """Groups as device ids. Where the module does not assign devices, logical ids are taken for them."""
    devices = module.devices if module is not None else None
    if module is None or devices is None:
        return instruction.replica_groups
    if instruction.replica_groups is None:
        return None if instruction.pairs else (devices,)
    ids = [i for group in instruction.replica_groups for i in group]
    if not (instruction.global_ids or module.one_kind) or max(ids, default=0) >= len(devices):
        return None
    return tuple(tuple(devices[i] for i in group) for group in instruction.replica_groups)


def _pairs_on_devices(instruction: Instruction, module: Module | None) -> tuple[tuple[int, int], ...]:
    devices = module.devices if module is not None and module.one_kind else None
    if devices is None or max((i for pair in instruction.pairs for i in pair), default=0) >= len(devices):
        return instruction.pairs
    return tuple((devices[a], devices[b]) for a, b in instruction.pairs)


def _output(instruction: Instruction) -> Arrays:
    """What a collective returns; the asynchronous start returns its input beside it."""
    result = instruction.result
    return result[len(result) // 2 :] if is_half(instruction.opcode) == "start" else result


def _kind_of_name(name: str) -> CollectiveKind | None:
    flat = name.replace("_", "-")
    return next((kind for word, kind in COLLECTIVES.items() if re.search(rf"\b{word}\b", flat)), None)


# ---------------------------------------------------------------------------------------------- names

_WRAPPER = re.compile(r"^(p?jit|pmap|xmap|named|main|vmap|custom_[jv][jv]p(_call)?|remat|checkpoint|shard_map)\((.*)\)$")
_NO_SCOPE = frozenset(
    ["main", "while", "body", "cond", "scan", "closed_call", "core_closed_call", "remat", "checkpoint", "rematted_computation", "shard_map", "pjit", "branch_0_fun", "branch_1_fun", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "xla_call"]
)
_DERIVED = re.compile(r"^(transpose|jvp|vmap|remat|checkpoint)\((.*)\)$")


def module_path(op_name: str) -> str | None:
    """Layer path of a framework operation: `jit(f)/transpose(jvp(layer_3))/mlp/dot_general` -> `layer_3/mlp [backward]`.

    Left out are the program's name, the operation itself and what transformations add; a backward pass and a
    recomputation are marked. None where nothing is left.
    """
    parts = _split_path(op_name.rstrip(":").split("#")[0])
    backward = recomputed = False
    scopes = []
    for part in parts[:-1]:
        name = part
        while match := _DERIVED.match(name):
            backward |= match[1] == "transpose"
            recomputed |= match[1] in ("remat", "checkpoint")
            name = match[2]
        recomputed |= name == "rematted_computation"
        if name and name not in _NO_SCOPE and "->" not in name and not _WRAPPER.match(name):
            scopes.append(name)
    if not scopes:
        return None
    return "/".join(scopes) + " [recomputed]" * recomputed + " [backward]" * backward


def _split_path(path: str) -> list[str]:
    """Parts between the slashes outside parentheses."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(path):
        depth += (c == "(") - (c == ")")
        if c == "/" and depth <= 0:
            parts.append(path[start:i])
            start = i + 1
    return [*parts, path[start:]]

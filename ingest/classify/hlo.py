"""What an HLO operation is: its class, its communication, the layer that it belongs to. Pure; formats stay outside."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tracegap.ingest.classify.hlo_module import Arrays, Instruction, Module
from tracegap.ingest.classify.kernel import kernel_class
from tracegap.models.ops import CollectiveKind, OpClass

STRUCTURE = frozenset({"while", "conditional", "call", "async-call"})
"""Operations whose time is that of the operations inside them, where those are in the trace."""

_FREE = (
    "parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id opt-barrier add-dependency "
    "get-dimension-size domain bitcast-convert"
)
FREE = frozenset(_FREE.split())
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
    "copy transpose reshape concatenate pad reverse broadcast iota slice dynamic-slice dynamic-update-slice "
    "gather scatter dynamic-reshape set-dimension-size"
)
_ELEMENTWISE = (
    "abs add and atan2 cbrt ceil clamp compare complex convert cosine count-leading-zeros divide erf exponential "
    "exponential-minus-one floor imag is-finite log log-plus-one logistic map maximum minimum multiply negate not or "
    "popcnt power real reduce-precision remainder round-nearest-afz round-nearest-even rsqrt select shift-left "
    "shift-right-arithmetic shift-right-logical sign sine sqrt stochastic-convert subtract tan tanh xor"
)
CLASS_OF_OPCODE: dict[str, OpClass] = {
    **dict.fromkeys(_ELEMENTWISE.split(), OpClass.ELEMENTWISE),
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
"""Class by opcode."""

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

_ATTENTION = re.compile(r"attention|fmha|flash_attn|splash|\bmha\b", re.IGNORECASE)
_CONVOLUTION_OP = re.compile(r"conv_general|conv\d?d|convolution", re.IGNORECASE)


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
    channel_id: int | None = None

    def group_of(self, device: int) -> tuple[int, ...] | None:
        """The group in which a device takes part."""
        if self.pairs:
            return tuple(sorted({device for pair in self.pairs for device in pair})) or None
        return next((group for group in self.groups or () if device in group), None)


def base_opcode(opcode: str) -> str:
    """The opcode without `-start`, `-done` or `-update`: the halves of an asynchronous operation are that operation."""
    for suffix in ("-start", "-done", "-update"):
        if opcode.endswith(suffix):
            return opcode.removesuffix(suffix)
    return opcode


def opcode_of_name(name: str) -> str:
    """The opcode that a name suggests: `all-reduce.3` -> `all-reduce`, `loop_add_fusion.2` -> `fusion`."""
    stem = re.sub(r"(\.\d+|\.clone|\.remat\d*)+$", "", name.lstrip("%").split(" ")[0]).removeprefix("wrapped_")
    if stem in CLASS_OF_OPCODE or base_opcode(stem) in CLASS_OF_OPCODE:
        return stem
    if "fusion" in stem:
        return "fusion"
    return {"dot_general": "dot", "conv_general_dilated": "convolution"}.get(stem, stem.replace("_", "-"))


def is_half(opcode: str) -> str | None:
    """`start` or `done` for half of an asynchronous operation."""
    return next((half for half in ("start", "done") if opcode.endswith("-" + half)), None)


def category_class(category: str, framework_op: str = "") -> OpClass | None:
    """Class by the profiler's category; None if the category is unknown."""
    if base_opcode(category.removesuffix(" fusion")) in COLLECTIVES or category.startswith("async-collective"):
        return OpClass.COLLECTIVE
    tables = ((CLASS_OF_CATEGORY, category), (CLASS_OF_OPCODE, category), (CLASS_OF_OPCODE, base_opcode(category)))
    found = next((table[key] for table, key in tables if key in table), None)
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
            for i in members(instruction, module)
            # arithmetic on something smaller than the result is that of indices and scalars
            if (found := op_class(i, module, i.op_name or where)) is not OpClass.ELEMENTWISE
            or max((array.elements for array in i.result), default=0) >= size
        ]
        return _dominant(inside) if inside else CLASS_OF_OPCODE.get(instruction.opcode, OpClass.OTHER)
    return CLASS_OF_OPCODE.get(base) or CLASS_OF_OPCODE.get(instruction.opcode, OpClass.OTHER)


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


_NAMED_KERNELS = (OpClass.MATMUL, OpClass.NORMALIZATION, OpClass.SOFTMAX, OpClass.EMBEDDING)


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
    return named if named in _NAMED_KERNELS else OpClass.CUSTOM


def members(instruction: Instruction, module: Module | None) -> list[Instruction]:
    """Instructions of the computations that an instruction calls; none where the module is not at hand."""
    return [i for computation in module.called(instruction) for i in computation] if module is not None else []


def math_dtype(instruction: Instruction, module: Module | None = None) -> str | None:
    """Element type of the arithmetic: of the operands of the first matrix product inside, else of the result."""
    products = ("dot", "convolution", "ragged-dot", "scaled-dot")
    for member in (instruction, *members(instruction, module)):
        is_product = member.opcode in products or (
            member.opcode == "custom-call" and op_class(member) in (OpClass.MATMUL, OpClass.CONVOLUTION)
        )
        if is_product and member.operands:
            return _dtype(member.operands[0])
    return _dtype(instruction.result) or next(filter(None, map(_dtype, instruction.operands)), None)


def _dtype(arrays: Arrays) -> str | None:
    return arrays[0].dtype if arrays else None


# ---------------------------------------------------------------------------------------------- collectives


def collective(instruction: Instruction, module: Module | None = None) -> Collective:
    """The communication of an instruction: of a fusion or an asynchronous wrapper the one inside it."""
    base = base_opcode(instruction.opcode)
    if base not in COLLECTIVES:
        inner = next((i for i in members(instruction, module) if base_opcode(i.opcode) in COLLECTIVES), None)
        if inner is not None:
            return collective(inner, module)
    kind = COLLECTIVES.get(base) or _kind_of_name(instruction.name)
    finished = is_half(instruction.opcode) == "done"  # its operand is what the start returned: input and output
    sent = [] if finished else [array for operand in instruction.operands for array in operand]
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

_WRAPPER = re.compile(
    r"^(p?jit|pmap|xmap|named|main|vmap|custom_[jv][jv]p(_call)?|remat|checkpoint|shard_map)\((.*)\)$"
)
_STEPS = (
    "main while body cond scan closed_call core_closed_call remat checkpoint rematted_computation shard_map pjit "
    "branch_0_fun branch_1_fun custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr xla_call"
)
_NO_SCOPE = frozenset(_STEPS.split())
_DERIVED = re.compile(r"^(transpose|jvp|vmap|remat|checkpoint)\((.*)\)$")


def module_path(op_name: str) -> str | None:
    """Layer path of a framework operation: `jit(f)/transpose(jvp(layer_3))/mlp/dot` -> `layer_3/mlp [backward]`.

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

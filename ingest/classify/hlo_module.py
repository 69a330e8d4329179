"""HLO as traces carry it: modules as protobuf, single instructions as text. Kept is what costs and collectives need."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tracegap.ingest.protobuf import DecodeError, messages
from tracegap.models.ops import DTYPE_BYTES

PROTO = messages(
    "tracegap.hlo",
    {
        "HloProto": "hlo_module 1 HloModuleProto",
        "HloModuleProto": "name 1 str; computations 3 HloComputationProto*; entry_computation_id 6 i64;"
        "device_assignment 15 DeviceAssignmentProto",
        "DeviceAssignmentProto": "replica_count 1 i32; computation_count 2 i32;"
        "computation_devices 3 ComputationDevice*",
        "ComputationDevice": "replica_device_ids 1 i64*",
        "HloComputationProto": "name 1 str; instructions 2 HloInstructionProto*; id 5 i64; root_id 6 i64",
        "HloInstructionProto": "name 1 str; opcode 2 str; shape 3 ShapeProto; metadata 7 OpMetadata;"
        "dimensions 14 i64*; window 15 Window;"
        "convolution_dimension_numbers 16 ConvolutionDimensionNumbers; channel_id 26 i64; custom_call_target 28 str;"
        "fft_length 32 i64*;"
        "dot_dimension_numbers 30 DotDimensionNumbers; id 35 i64; operand_ids 36 i64*;"
        "called_computation_ids 38 i64*; backend_config 43 bytes; is_host_transfer 47 bool;"
        "replica_groups 49 ReplicaGroup*; feature_group_count 50 i64;"
        "source_target_pairs 52 SourceTarget*; batch_group_count 58 i64; use_global_device_ids 71 bool;"
        "collective_device_list 87 CollectiveDeviceListProto; iota_groups 92 IotaReplicaGroupListProto;"
        "mesh_groups 93 MeshGroups",
        "ShapeProto": "element_type 2 i32; dimensions 3 i64*; tuple_shapes 4 ShapeProto*",
        "OpMetadata": "op_name 2 str",
        "Window": "dimensions 1 WindowDimension*",
        "WindowDimension": "size 1 i64; stride 2 i64; padding_low 3 i64; padding_high 4 i64; window_dilation 5 i64;"
        "base_dilation 6 i64",
        "ConvolutionDimensionNumbers": "kernel_input_feature_dimension 3 i64; kernel_output_feature_dimension 4 i64;"
        "kernel_spatial_dimensions 6 i64*; input_batch_dimension 7 i64; input_feature_dimension 8 i64;"
        "output_batch_dimension 9 i64; output_feature_dimension 10 i64; input_spatial_dimensions 11 i64*;"
        "output_spatial_dimensions 12 i64*",
        "DotDimensionNumbers": "lhs_contracting_dimensions 1 i64*; rhs_contracting_dimensions 2 i64*;"
        "lhs_batch_dimensions 3 i64*; rhs_batch_dimensions 4 i64*",
        "ReplicaGroup": "replica_ids 1 i64*",
        "IotaReplicaGroupListProto": "num_replica_groups 1 i64; num_devices_per_group 2 i64; iota_reshape_dims 3 i64*;"
        "iota_transpose_perm 4 i32*",
        "CollectiveDeviceListProto": "replica_groups 1 ReplicaGroup*;"
        "iota_replica_group_list 2 IotaReplicaGroupListProto",
        "SourceTarget": "source 1 i64; target 2 i64",
        "MeshGroups": "mesh 1 MeshProto; axes 2 AxisRefProto*",
        "MeshProto": "axes 1 MeshAxis*; device_ids 2 i64*",
        "MeshAxis": "name 1 str; size 2 i64",
        "AxisRefProto": "mesh_axis_index 1 i64; sub_axis_info 2 SubAxis",
        "SubAxis": "pre_size 1 i64; size 2 i64",
    },
)
"""Message classes with the fields that are read (numbers from xla/service/hlo.proto and xla/xla_data.proto)."""

_TYPES = (
    "pred s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64 tuple opaque c64 bf16 token c128 f8e5m2 f8e4m3fn s4 u4 "
    "f8e4m3b11fnuz f8e5m2fnuz f8e4m3fnuz s2 u2 f8e4m3 f8e3m4 s1 u1 f4e2m1fn f8e8m0fnu"
)
_PRIMITIVES = dict(enumerate(_TYPES.split(), start=1))
"""xla.PrimitiveType by number."""

_DTYPES = {
    "pred": "bool",
    "s4": "int4",
    "u4": "int4",
    "s8": "int8",
    "u8": "uint8",
    "s16": "int16",
    "u16": "int16",
    "s32": "int32",
    "u32": "int32",
    "s64": "int64",
    "u64": "int64",
    "f16": "fp16",
    "bf16": "bf16",
    "f32": "fp32",
    "f64": "fp64",
    "f4e2m1fn": "fp4",
    "c64": "complex64",
    "c128": "complex128",
}

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Array:
    """An array shape."""

    type: str
    """XLA's name of the element type, such as `f32`."""
    dims: tuple[int, ...]

    @property
    def dtype(self) -> str | None:
        """The element type as a key of DTYPE_BYTES; None for types that are not in it."""
        return "fp8" if self.type.startswith("f8") else _DTYPES.get(self.type)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Size of the logical array, without the padding of tiled layouts. Packed 4-bit types count half a byte."""
        return math.ceil(self.elements * DTYPE_BYTES.get(self.dtype or "", 0))


Arrays = tuple[Array, ...]
"""A shape with its tuples flattened; tokens and opaque values left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """An HLO instruction, from text or from a module."""

    name: str
    opcode: str
    result: Arrays
    operands: tuple[Arrays, ...]
    """Shapes of the operands; empty where the text leaves them out."""
    operand_names: tuple[str, ...] = ()
    replica_groups: Groups | None = None
    """None: not stated, or all devices."""
    global_ids: bool = False
    """Whether the groups count replicas and partitions through."""
    pairs: tuple[tuple[int, int], ...] = ()
    """Source and target of a collective-permute."""
    channel_id: int | None = None
    target: str = ""
    """Of a custom call."""
    op_name: str = ""
    """Framework path, such as `jit(f)/dot_general`."""
    host_transfer: bool = False
    proto: Any = field(default=None, compare=False, repr=False)
    """The message, for an instruction of a module."""


class Module:
    """A module with its computations."""

    def __init__(self, proto: Any) -> None:
        self.name: str = proto.name
        self.proto = proto
        self._computations = {c.id: c for c in proto.computations}

    @cached_property
    def _by_id(self) -> dict[int, Any]:
        return {i.id: i for c in self._computations.values() for i in c.instructions}

    @cached_property
    def devices(self) -> tuple[int, ...] | None:
        """Device ids by flattened logical id (replica × partitions + partition); None if not stated."""
        assigned = self.proto.device_assignment.computation_devices
        columns = [tuple(c.replica_device_ids) for c in assigned]
        if not columns or len({len(c) for c in columns}) != 1:
            return None
        return tuple(device for replica in zip(*columns, strict=True) for device in replica) or None

    @property
    def one_kind(self) -> bool:
        """Whether the module has only replicas or only partitions, so that an id of either is the flattened one."""
        assigned = self.proto.device_assignment
        return bool(min(assigned.replica_count, assigned.computation_count) <= 1)

    @classmethod
    def parse(cls, data: bytes) -> "Module | None":
        """From a serialized xla.HloProto; None if it is none."""
        try:
            proto = PROTO["HloProto"].FromString(data)
        except DecodeError:
            return None
        return cls(proto.hlo_module) if proto.HasField("hlo_module") else None

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of computations and instructions."""
        return len(self._computations), sum(len(c.instructions) for c in self._computations.values())

    @cached_property
    def _names(self) -> dict[str, Any]:
        return {i.name: i for c in self._computations.values() for i in c.instructions}

    def find(self, name: str) -> Instruction | None:
        """The instruction of this name."""
        proto = self._names.get(name.lstrip("%"))
        return None if proto is None else self.instruction(proto)

    def instruction(self, proto: Any) -> Instruction:
        """A message of this module as an Instruction."""
        operands = [self._by_id[i] for i in proto.operand_ids if i in self._by_id]
        return Instruction(
            name=proto.name,
            opcode=proto.opcode,
            result=_flatten(proto.shape),
            operands=tuple(_flatten(o.shape) for o in operands),
            operand_names=tuple(o.name for o in operands),
            replica_groups=_groups_of(proto),
            global_ids=proto.use_global_device_ids,
            pairs=tuple((p.source, p.target) for p in proto.source_target_pairs),
            channel_id=proto.channel_id if proto.channel_id > 0 else None,
            target=proto.custom_call_target,
            op_name=proto.metadata.op_name,
            host_transfer=proto.is_host_transfer,
            proto=proto,
        )

    def called(self, instruction: Instruction) -> Iterator[list[Instruction]]:
        """The computations that an instruction calls, each as its instructions, operands first."""
        for key in instruction.proto.called_computation_ids if instruction.proto is not None else ():
            if key in self._computations:
                yield [self.instruction(i) for i in self._computations[key].instructions]

    def root(self, instruction: Instruction) -> Instruction | None:
        """The root of the first computation that an instruction calls."""
        for key in instruction.proto.called_computation_ids if instruction.proto is not None else ():
            computation = self._computations.get(key)
            if computation is not None and computation.root_id in self._by_id:
                return self.instruction(self._by_id[computation.root_id])
        return None


def _flatten(shape: Any) -> Arrays:
    if shape.tuple_shapes:
        return tuple(array for part in shape.tuple_shapes for array in _flatten(part))
    kind = _PRIMITIVES.get(shape.element_type, "")
    return () if kind in ("", "tuple", "opaque", "token") else (Array(kind, tuple(shape.dimensions)),)


def _groups_of(proto: Any) -> Groups | None:
    """Replica groups in any of the forms that XLA has had: listed, as a reshaped iota, as axes of a mesh."""
    devices = proto.collective_device_list
    if proto.HasField("mesh_groups"):
        return _mesh_groups(proto.mesh_groups)
    if proto.HasField("iota_groups") or devices.HasField("iota_replica_group_list"):
        iota = proto.iota_groups if proto.HasField("iota_groups") else devices.iota_replica_group_list
        return iota_groups(
            (iota.num_replica_groups, iota.num_devices_per_group),
            tuple(iota.iota_reshape_dims),
            tuple(iota.iota_transpose_perm),
        )
    groups = tuple(tuple(g.replica_ids) for g in devices.replica_groups or proto.replica_groups)
    return groups or None


def _mesh_groups(stated: Any) -> Groups | None:
    """Groups along some axes of a device mesh. A part of an axis stands for it split into [before, part, after]."""
    sizes = [axis.size for axis in stated.mesh.axes]
    parts: dict[int, list[tuple[int, int]]] = {}
    for ref in stated.axes:
        if ref.mesh_axis_index >= len(sizes):
            return None
        sub = ref.sub_axis_info
        whole = (1, sizes[ref.mesh_axis_index])
        parts.setdefault(ref.mesh_axis_index, []).append(
            (sub.pre_size, sub.size) if ref.HasField("sub_axis_info") else whole
        )
    shape: list[int] = []
    along: dict[tuple[int, int], int] = {}
    for axis, size in enumerate(sizes):
        done = 1
        for before, part in sorted(parts.get(axis, [])):
            if not part or before % done or size % (before * part):
                return None
            shape += [before // done, part]
            along[axis, before] = len(shape) - 1
            done = before * part
        shape.append(size // done)
    ids = np.array(stated.mesh.device_ids or range(math.prod(sizes)))
    if ids.size != math.prod(shape):
        return None
    order = [
        along[r.mesh_axis_index, r.sub_axis_info.pre_size if r.HasField("sub_axis_info") else 1] for r in stated.axes
    ]
    rest = [i for i in range(len(shape)) if i not in order]
    length = math.prod(shape[i] for i in order)
    return tuple(tuple(row) for row in ids.reshape(shape).transpose(rest + order).reshape(-1, length).tolist())


def iota_groups(shape: tuple[int, ...], reshape: tuple[int, ...], permutation: tuple[int, ...] = ()) -> Groups | None:
    """Groups that XLA writes as `[shape]<=[reshape]T(permutation)`; None if the numbers do not fit together."""
    if math.prod(shape) != math.prod(reshape) or len(shape) != 2:
        return None
    ids = np.arange(math.prod(reshape)).reshape(reshape)
    if permutation:
        if sorted(permutation) != list(range(len(reshape))):
            return None
        ids = ids.transpose(permutation)
    return tuple(tuple(row) for row in ids.reshape(shape).tolist())


_HEAD = re.compile(r"^\s*(?:ROOT\s+)?%?(?P<name>[^\s=]+) = ")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=]*)\]")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)+)\}")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)+)\}")
_CHANNEL = re.compile(r"\bchannel_id=(\d+)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_BRACED = re.compile(r"\{([\d,]+)\}")


@lru_cache(1 << 15)  # the planes of a file's devices repeat the same texts
def parse_text(text: str) -> Instruction | None:
    """An instruction as HLO text, `%dot.3 = f32[2,4]{1,0} dot(f32[2,8]{1,0} %a, ...), ...`; None if it is none."""
    head = _HEAD.match(text)
    if head is None:
        return None
    end = _shape_end(text, head.end())
    opcode = _OPCODE.match(text, end)
    if opcode is None:
        return None
    stop = _closing(text, opcode.end() - 1)
    inside, attributes = text[opcode.end() : stop], text[stop + 1 :]
    channel, target = _CHANNEL.search(attributes), _TARGET.search(attributes)
    pairs = _PAIRS.search(attributes)
    return Instruction(
        name=head["name"],
        opcode=opcode[1],
        result=_arrays(text[head.end() : end]),
        operands=tuple(filter(None, map(_arrays, _split(inside)))),
        operand_names=tuple(re.findall(r"%([\w.\-]+)", inside)),
        replica_groups=_text_groups(attributes),
        pairs=tuple((int(a), int(b)) for a, b in (p.split(",") for p in _BRACED.findall(pairs[1]))) if pairs else (),
        channel_id=int(channel[1]) if channel else None,
        target=target[1] if target else "",
        global_ids="use_global_device_ids=true" in attributes,
        host_transfer="is_host_transfer=true" in attributes,
    )


def _text_groups(attributes: str) -> Groups | None:
    iota = _IOTA.search(attributes)
    if iota is not None:
        shape, reshape, permutation = (tuple(map(int, part.split(","))) if part else () for part in iota.groups())
        return iota_groups(shape, reshape, permutation)
    listed = _LISTED.search(attributes)
    return tuple(tuple(map(int, g.split(","))) for g in _BRACED.findall(listed[1])) if listed else None


def _arrays(text: str) -> Arrays:
    return tuple(
        Array(kind, tuple(int(d.lstrip("<=")) for d in dims.split(",") if d))
        for kind, dims in _ARRAY.findall(text)
        if kind in _DTYPES or kind.startswith("f8")
    )


def _closing(text: str, at: int) -> int:
    """Position of the bracket that closes the one at `at`; the end of the text if none does."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in "({[") - (text[i] in ")}]")
        if depth == 0:
            return i
    return len(text)


def _shape_end(text: str, at: int) -> int:
    """End of the shape that begins at `at`: a tuple in parentheses, or all up to the next blank outside brackets."""
    if text.startswith("(", at):
        return _closing(text, at) + 1
    while at < len(text) and text[at] != " ":
        at = _closing(text, at) + 1 if text[at] in "[{" else at + 1
    return at


def _split(text: str) -> list[str]:
    """Parts between the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "({[") - (c in ")}]")
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]

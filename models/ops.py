"""The words that all parts share: what an operation is, and what a collective is."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class OpClass(StrEnum):
    """Classes of device operations (`ops.op_class`, public)."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    NORMALIZATION = "normalization"
    SOFTMAX = "softmax"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    EMBEDDING = "embedding"
    OPTIMIZER = "optimizer"
    DATA_MOVEMENT = "data_movement"
    SORT = "sort"
    RANDOM = "random"
    COLLECTIVE = "collective"
    COPY = "copy"
    MEMSET = "memset"
    GRAPH = "graph"
    CUSTOM = "custom"
    OTHER = "other"


class State(StrEnum):
    """What a device does at an instant; the first of these that applies (design, section 3)."""

    COMPUTE = "compute"
    EXPOSED_COMM = "exposed_comm"
    EXPOSED_COPY = "exposed_copy"
    IDLE = "idle"


STATE_OF_CLASS = dict.fromkeys(OpClass, State.COMPUTE) | {
    OpClass.COLLECTIVE: State.EXPOSED_COMM,
    OpClass.COPY: State.EXPOSED_COPY,
    OpClass.MEMSET: State.EXPOSED_COPY,
}
"""The state that a running operation of a class puts its device in, unless an earlier state of `State` applies."""


class CollectiveKind(StrEnum):
    """Kinds of communication (`collectives.collective`, public)."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    SEND = "send"
    RECV = "recv"
    SEND_RECV = "send_recv"
    PERMUTE = "permute"
    BARRIER = "barrier"


DTYPE_BYTES = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "uint8": 1.0,
    "fp4": 0.5,
    "int4": 0.5,
    "bool": 1.0,
    "int16": 2.0,
    "int32": 4.0,
    "int64": 8.0,
    "complex64": 8.0,
    "complex128": 16.0,
}
"""Bytes of one element, by our name of the dtype (`ops.dtype`, `collectives.dtype`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An operand or result."""

    shape: tuple[int, ...]
    """Extent of each dimension, elements."""
    dtype: str
    """A key of DTYPE_BYTES."""
    strides: tuple[int, ...] | None = None
    """Elements between neighbours of each dimension, where the trace has them; 0 marks a broadcast dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """An operation as a formula sees it: its name in `models.formulas` and what it works on."""

    kind: str
    """The formula's name, such as `matmul` or `attention_backward`."""
    tensors: tuple[Tensor | tuple[Tensor, ...] | None, ...]
    """Inputs in the order that the formula documents; a tuple where an input is a list of tensors."""
    params: dict[str, Any] = field(default_factory=dict)
    """Scalars that the formula documents, such as `causal` or `stride`."""

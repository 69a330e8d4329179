"""What a training step must take on a mesh of devices, before anything ran: memory, arithmetic, traffic of each axis.

An estimate for choosing a mesh, made of the same formulas as the gap: mixed-precision AdamW, fused attention (scores
are never stored), norms and dropout split with the tensor axis, one-forward-one-backward pipeline, equal stages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from tracegap.models import collectives
from tracegap.models.architecture import Model
from tracegap.models.errors import NoFormula
from tracegap.models.hardware import Chip
from tracegap.models.memory import OPTIMIZER_BYTES
from tracegap.models.ops import DTYPE_BYTES, CollectiveKind
from tracegap.models.parallelism import pp_bubble_over_ideal
from tracegap.models.transformer import forward_flops, saved_values_per_token
from tracegap.models.units import ns

AXES = {
    "data": "data",
    "dp": "data",
    "replica": "data",
    "fsdp": "fsdp",
    "tensor": "tensor",
    "tp": "tensor",
    "model": "tensor",
    "pipeline": "pipeline",
    "pp": "pipeline",
    "stage": "pipeline",
}
"""What an axis of a mesh does, by its name: `data` replicates all states, `fsdp` shards them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the fullest device."""

    weights: float
    gradients: float
    optimizer: float
    """fp32 master weights and two moments."""
    activations: float
    """Kept for backward, with the logits where one device has both ends of the model."""

    @property
    def total(self) -> float:
        """All of it; contexts, workspaces and fragmentation come on top."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Collectives of one kind on one axis, in a step, of one device."""

    axis: str
    """Name of the axis in the mesh."""
    ranks: int
    collective: CollectiveKind
    calls: int
    message_bytes: float
    """Of one call, as nccl-tests count it."""
    total_ns: int
    """Of all calls, by the collective model."""
    fabric: str
    """The links assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Bounds of a step on a mesh."""

    devices: int
    microbatches: int
    tokens_per_microbatch: float
    """Of one replica."""
    params: int
    memory: Memory
    memory_bytes: float | None
    """Of a device as sold; None where the catalogue does not know it."""
    flops_per_device: float
    """Done in a step, recomputation included."""
    compute_ns: int
    """Arithmetic at the dense peak of the model's dtype."""
    bubble_ns: int
    """What a pipeline idles besides."""
    traffic: tuple[Traffic, ...]
    lower_ns: int
    """All communication hides: the longest of compute with bubble and the traffic of an axis."""
    upper_ns: int
    """None hides."""
    bound: str
    """`compute`, or the axis whose traffic takes longer."""

    @property
    def fits(self) -> bool | None:
        """Whether the states and activations fit into a device; None where its memory is not known."""
        return None if self.memory_bytes is None else self.memory.total <= self.memory_bytes

    def axis_ns(self, axis: str) -> int:
        """Time of all traffic of an axis."""
        return sum(traffic.total_ns for traffic in self.traffic if traffic.axis == axis)


def plan(
    model: Model,
    chip: Chip,
    mesh: Mapping[str, int],
    tokens_per_step: int,
    *,
    microbatches: int | None = None,
    recompute: bool = False,
    ranks_per_domain: int | None = None,
    torus: Sequence[int] | None = None,
    wrap: Sequence[bool] | None = None,
) -> Plan:
    """Bounds of a training step.

    `mesh` gives the size of each axis, a name of AXES, the last one fastest over the ranks. By default a pipeline gets
    a microbatch a sequence and anything else one a step. `recompute` keeps only the input of each layer and does its
    forward pass twice; the output head is not done again. Ranks sit as `collectives.fabric_for` says.

    Raises NoFormula where an axis, the sequence length, a peak or a link rate is not known.
    """
    size = _sizes(mesh)
    peak = chip.device_flops_per_s(model.dtype)
    if peak is None:
        raise NoFormula(f"no {model.dtype} peak of {chip.id} in the catalogue")
    forward = forward_flops(model, tokens_per_step).total
    devices = prod(mesh.values())
    replica_tokens = tokens_per_step / (size["data"] * size["fsdp"])
    if microbatches is None:
        microbatches = max(1, int(replica_tokens // (model.seq or 1))) if size["pipeline"] > 1 else 1
    tokens = replica_tokens / microbatches
    again = forward - 2 * tokens_per_step * model.hidden * model.vocab if recompute else 0
    flops = (3 * forward + again) / devices
    compute_ns = ns(flops / peak)
    bubble_ns = round(compute_ns * pp_bubble_over_ideal(stages=size["pipeline"], microbatches=microbatches))
    traffic: list[Traffic] = []
    for axis, kind, calls, message_bytes in _messages(model, mesh, size, tokens, microbatches, recompute=recompute):
        fabric = collectives.fabric_for(chip, _group(mesh, axis), ranks_per_domain, torus, wrap=wrap)
        one = collectives.predict(kind, round(message_bytes), mesh[axis], fabric)
        traffic.append(
            Traffic(
                axis=axis,
                ranks=mesh[axis],
                collective=kind,
                calls=calls,
                message_bytes=message_bytes,
                total_ns=calls * one.total_ns,
                fabric=one.model,
            )
        )
    terms = {"compute": compute_ns + bubble_ns}
    for item in traffic:
        terms[item.axis] = terms.get(item.axis, 0) + item.total_ns
    return Plan(
        devices=devices,
        microbatches=microbatches,
        tokens_per_microbatch=tokens,
        params=model.params,
        memory=_memory(model, size, tokens, microbatches, recompute=recompute),
        memory_bytes=chip.device_memory_bytes,
        flops_per_device=flops,
        compute_ns=compute_ns,
        bubble_ns=bubble_ns,
        traffic=tuple(traffic),
        lower_ns=max(terms.values()),
        upper_ns=sum(terms.values()),
        bound=max(terms, key=lambda term: terms[term]),
    )


def _sizes(mesh: Mapping[str, int]) -> dict[str, int]:
    """Ranks by what they do, over all axes that do it."""
    size = dict.fromkeys(AXES.values(), 1)
    for axis, ranks in mesh.items():
        if axis not in AXES or ranks < 1:
            raise NoFormula(f"mesh axis {axis} = {ranks}: known are {', '.join(AXES)}, each at least 1")
        size[AXES[axis]] *= ranks
    return size


def _group(mesh: Mapping[str, int], axis: str) -> list[int]:
    """Ranks of the first group along an axis: the last axis of the mesh is the fastest."""
    names = list(mesh)
    stride = prod(mesh[faster] for faster in names[names.index(axis) + 1 :])
    return [i * stride for i in range(mesh[axis])]


def _messages(
    model: Model, mesh: Mapping[str, int], size: Mapping[str, int], tokens: float, microbatches: int, *, recompute: bool
) -> list[tuple[str, CollectiveKind, int, float]]:
    """(axis, kind, calls a step, message bytes) of one device [P1, P2, P4, P10]; embeddings go with the layers."""
    element = DTYPE_BYTES[model.dtype]
    layers = ceil(model.layers / size["pipeline"])
    layer_bytes = model.params * element / (size["tensor"] * size["pipeline"]) / layers
    boundary_bytes = tokens * model.hidden * element
    of_role = {
        "data": [(CollectiveKind.ALL_REDUCE, layers, layer_bytes / size["fsdp"])],
        "fsdp": [
            (CollectiveKind.ALL_GATHER, 2 * layers * microbatches, layer_bytes),
            (CollectiveKind.REDUCE_SCATTER, layers * microbatches, layer_bytes),
        ],
        "tensor": [(CollectiveKind.ALL_REDUCE, (6 if recompute else 4) * layers * microbatches, boundary_bytes)],
        "pipeline": [(CollectiveKind.SEND_RECV, 2 * microbatches, boundary_bytes / size["tensor"])],
    }
    return [(axis, *message) for axis, ranks in mesh.items() if ranks > 1 for message in of_role[AXES[axis]]]


def _memory(model: Model, size: Mapping[str, int], tokens: float, microbatches: int, *, recompute: bool) -> Memory:
    """States [Y1, Y4] and activations [Y7, Y9] of a device on the first stage."""
    element = DTYPE_BYTES[model.dtype]
    params = model.params / (size["tensor"] * size["pipeline"] * size["fsdp"])
    saved = saved_values_per_token(model)
    layers = ceil(model.layers / size["pipeline"])
    in_flight = min(size["pipeline"], microbatches)
    kept = in_flight * layers * model.hidden + saved if recompute else in_flight * layers * saved
    logits = 4 * model.vocab if size["pipeline"] == 1 else 0
    return Memory(
        weights=params * element,
        gradients=params * element,
        optimizer=params * OPTIMIZER_BYTES["adamw"],
        activations=tokens * (kept * element + logits) / size["tensor"],
    )

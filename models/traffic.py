"""What a training step sends: the collectives of each mesh axis, their sizes, and behind what they can hide.

One generator a kind of parallelism; `TRAFFIC` lists them. Formula codes P1 to P15 are those of the theory reference.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tracegap.models.footprint import device_params
from tracegap.models.mesh import axes_of
from tracegap.models.ops import CollectiveKind
from tracegap.models.recipe import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Collectives of one kind in a step."""

    axes: tuple[str, ...]
    """Names of the mesh's axes over which the group spreads."""
    collective: CollectiveKind
    calls: int
    message_bytes: float
    """Of one call, as nccl-tests count it."""
    behind: str
    """What can run meanwhile: `backward`, `layers` (any arithmetic), `attention`, `microbatches`; empty: nothing."""
    of: str = ""
    """Whose weights or gradients, where a model has experts, which are split otherwise than the rest."""


def _whose(step: Step, *, expert: bool) -> str:
    return "" if not step.model.moe_layers else "experts" if expert else "the rest"


def _gradients(step: Step) -> Iterator[Message]:
    """[P1] Gradients added up over the replicas, layer by layer; ZeRO scatters them and gathers the new weights."""
    for expert in (False, True):
        axes = axes_of(step.mesh, "data", "context", *([] if expert else ["expert"]))
        trained = device_params(step, expert=expert, trained=True) / step.size.fsdp
        if not axes or not trained:
            continue
        each = trained / step.layers
        if step.recipe.zero == 0:
            yield Message(
                axes=axes,
                collective=CollectiveKind.ALL_REDUCE,
                calls=step.layers,
                message_bytes=each * step.gradient,
                behind="backward",
                of=_whose(step, expert=expert),
            )
        elif step.recipe.zero < 3:
            for kind, size, behind in (
                (CollectiveKind.REDUCE_SCATTER, step.gradient, "backward"),
                (CollectiveKind.ALL_GATHER, step.element, "layers"),
            ):
                yield Message(
                    axes=axes, collective=kind, calls=step.layers, message_bytes=each * size, behind=behind,
                    of=_whose(step, expert=expert),
                )  # fmt: skip
        else:
            yield from _gathered(step, axes, expert=expert, of=step.size.fsdp)


def _fully_sharded(step: Step) -> Iterator[Message]:
    """[P2] Weights gathered before each use and gradients scattered after it, each microbatch again."""
    axes = axes_of(step.mesh, "fsdp")
    for expert in (False, True):
        if axes and device_params(step, expert=expert):
            yield from _gathered(step, axes, expert=expert)


def _gathered(step: Step, axes: tuple[str, ...], *, expert: bool, of: int = 1) -> Iterator[Message]:
    """Messages of one of the axes over which weights are sharded; `of`: into how many parts the others split them."""
    each = device_params(step, expert=expert) / step.layers / of
    scattered = device_params(step, expert=expert, trained=True) / step.layers / of
    calls = step.layers * step.microbatches
    yield Message(
        axes=axes,
        collective=CollectiveKind.ALL_GATHER,
        calls=2 * calls,
        message_bytes=each * step.element,
        behind="layers",
        of=_whose(step, expert=expert),
    )
    yield Message(
        axes=axes,
        collective=CollectiveKind.REDUCE_SCATTER,
        calls=calls,
        message_bytes=scattered * step.gradient,
        behind="backward",
        of=_whose(step, expert=expert),
    )


def _tensor(step: Step) -> Iterator[Message]:
    """[P3, P4] Activations joined after each block, in each pass; with sequence parallelism in two halves."""
    axes = axes_of(step.mesh, "tensor")
    joins = round(step.model.blocks * step.passes * step.layers * step.microbatches)
    kinds: tuple[CollectiveKind, ...] = (CollectiveKind.ALL_REDUCE,)
    if step.recipe.sequence_parallel:
        kinds = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
    behind = "layers" if step.recipe.async_tensor else ""
    for kind in kinds if axes else ():
        yield Message(axes=axes, collective=kind, calls=joins, message_bytes=step.boundary_bytes, behind=behind)


def _pipeline(step: Step) -> Iterator[Message]:
    """[P10] Activations to the next stage and gradients back, once a virtual stage."""
    if axes := axes_of(step.mesh, "pipeline"):
        yield Message(
            axes=axes,
            collective=CollectiveKind.SEND_RECV,
            calls=2 * step.microbatches * step.recipe.virtual_stages,
            message_bytes=step.boundary_bytes / step.size.tensor,
            behind="microbatches",
        )


def _experts(step: Step) -> Iterator[Message]:
    """[P12] Tokens to their experts and back, in each pass."""
    model = step.model
    axes = axes_of(step.mesh, "expert")
    if axes and model.moe_layers:
        layers = step.layers * model.moe_layers / (model.layers + model.encoder_layers)
        routed = step.boundary_bytes * model.experts_per_token * model.capacity_factor * step.recipe.expert_skew
        yield Message(
            axes=axes,
            collective=CollectiveKind.ALL_TO_ALL,
            calls=round(2 * step.passes * layers * step.microbatches),
            message_bytes=routed / step.size.tensor,
            # The two halves of a schedule that runs both directions at once cover each other
            behind="layers" if step.recipe.schedule == "dualpipe" else "",
        )


def _context(step: Step) -> Iterator[Message]:
    """[P13] Keys and values round a ring, gathered, or heads exchanged for tokens (Ulysses); twice as much back."""
    model = step.model
    axes = axes_of(step.mesh, "context")
    if not axes or not model.attention_layers:
        return
    layers = round(step.layers * model.attention_layers / model.layers)
    calls = layers * step.microbatches
    heads = max(model.kv_head_count / step.size.tensor, 1)
    kv_bytes = step.tokens * heads * (model.qk_width + model.v_width) * step.element
    qo_bytes = step.tokens * model.heads / step.size.tensor * (model.qk_width + model.v_width) * step.element
    c, passes = step.size.context, step.passes + 1
    if step.recipe.context == "ring":
        kind, calls, size, behind = CollectiveKind.PERMUTE, calls * (c - 1) * passes, kv_bytes, "attention"
    elif step.recipe.context == "ulysses":
        kind, calls, size, behind = CollectiveKind.ALL_TO_ALL, 2 * calls * step.passes, (qo_bytes + kv_bytes) / 2, ""
    else:
        kind, calls, size, behind = CollectiveKind.ALL_GATHER, calls * passes, kv_bytes * c, ""
    yield Message(axes=axes, collective=kind, calls=calls, message_bytes=size, behind=behind)


TRAFFIC: tuple[Callable[[Step], Iterator[Message]], ...] = (
    _pipeline,
    _gradients,
    _fully_sharded,
    _experts,
    _context,
    _tensor,
)
"""What sends in a step."""


def messages(step: Step) -> list[Message]:
    """All collectives of a step, of one device."""
    return [message for source in TRAFFIC for message in source(step) if message.message_bytes and message.calls]

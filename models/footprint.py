"""Bytes of a training on the fullest device, by component, from the table of weights and the recipe."""

from dataclasses import dataclass
from functools import cache

from tracegap.models import schedules
from tracegap.models.architecture import Model, weights
from tracegap.models.memory import OPTIMIZER_BYTES
from tracegap.models.mesh import Sizes
from tracegap.models.recipe import Step
from tracegap.models.transformer import saved_values_per_token

GPU_CONTEXT_BYTES = 1e9
"""What driver, libraries and collectives keep on a GPU, about (0.5 to 2 GB)."""
LIVE_LAYERS = 2
"""Layers whose weights are gathered at a time, one at work and one on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on the fullest device."""

    weights: float
    gradients: float
    optimizer: float
    """Master weights and moments."""
    activations: float
    """Kept for backward, with the logits where a device has them."""
    buffers: float = 0.0
    """Gathered layers, and what driver and libraries keep."""
    margin: float = 0.0
    """For fragmentation."""

    @property
    def total(self) -> float:
        """All of it."""
        return self.states + self.activations + self.buffers + self.margin

    @property
    def states(self) -> float:
        """Weights, gradients and optimizer."""
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Weights of a model that are split alike."""

    params: int
    trained: int
    ways: int
    """Tensor-parallel ranks over which they can be split."""
    copies: int
    """Experts over which an expert axis can be split; 1: none."""
    end: str

    def on_device(self, size: Sizes) -> float:
        """Share of them that a device of their stage has before data-parallel sharding."""
        return 1 / (min(size.tensor, self.ways) * min(size.expert, self.copies))


@cache
def parts(model: Model) -> tuple[Part, ...]:
    """The table of weights, summed up by how they are split; a model has a handful of such parts."""
    sums: dict[tuple[int, int, str], list[int]] = {}
    for weight in weights(model):
        if weight.params:
            key = (weight.ways, weight.copies if weight.expert else 1, weight.end)
            total = sums.setdefault(key, [0, 0])
            total[0] += weight.params
            total[1] += weight.params * weight.trained
    return tuple(
        Part(params=params, trained=trained, ways=ways, copies=copies, end=end)
        for (ways, copies, end), (params, trained) in sums.items()
    )


def stage_layers(model: Model, size: Sizes, stage: int) -> int:
    """Layers of a stage, an encoder's among them.

    Where they do not divide evenly the ends, which have embedding and head besides, have the fewest (Grattafiori et al.
    2024, section 3.3.2), and of the others the later ones the most, for they keep fewer microbatches.
    """
    base, extra = divmod(model.layers + model.encoder_layers, size.pipeline)
    last = size.pipeline - 1
    turn = {last: last - 1, 0: last}.get(stage, last - 1 - stage)
    return base + (turn < extra)


def stage_share(model: Model, part: Part, size: Sizes, stage: int) -> float:
    """Share of a part that lies on a stage."""
    if part.end == "every":
        return 1.0
    if part.end:
        there = 0 if part.end == "first" else size.pipeline - 1
        copied = part.end == "first" and model.tied_embeddings and stage == size.pipeline - 1
        return float(stage == there or copied)
    return stage_layers(model, size, stage) / (model.layers + model.encoder_layers)


def memory(step: Step, *, context_bytes: float = 0.0) -> Memory:
    """Bytes on the fullest device: of the first, the last, or the first of the longest stages; the others have less."""
    last = step.size.pipeline - 1
    extra = (step.model.layers + step.model.encoder_layers) % step.size.pipeline
    stages = {0, last, max(1, last - extra) if extra else 0}
    found = (stage_memory(step, stage, context_bytes=context_bytes) for stage in stages)
    return max(found, key=lambda one: one.total)


def stage_memory(step: Step, stage: int, *, context_bytes: float = 0.0) -> Memory:
    """Bytes on a device of a stage."""
    model, size, recipe = step.model, step.size, step.recipe
    kept_weights = kept_gradients = kept_optimizer = whole = 0.0
    for part in parts(model):
        share = stage_share(model, part, size, stage) * part.on_device(size)
        replicas = size.replicas(expert=part.copies > 1)
        shard = share / size.fsdp
        kept_weights += part.params * shard * step.element / (replicas if recipe.zero == 3 else 1)
        kept_gradients += part.trained * shard * step.gradient / (replicas if recipe.zero >= 2 else 1)
        kept_optimizer += part.trained * shard * OPTIMIZER_BYTES[recipe.optimizer] / (replicas if recipe.zero else 1)
        whole += 0 if part.end else part.params * share
    gathered = size.fsdp > 1 or (recipe.zero == 3 and size.replicas(expert=False) > 1)
    buffers = (
        whole / max(1, stage_layers(model, size, stage)) * (LIVE_LAYERS * step.element + step.gradient)
        if gathered
        else 0.0
    )
    each = {
        "weights": kept_weights * schedules.get(recipe.schedule).weight_copies,
        "gradients": kept_gradients,
        "optimizer": 0.0 if "optimizer" in recipe.offload else kept_optimizer,
        "activations": activation_bytes(step, stage),
        "buffers": buffers + context_bytes,
    }
    return Memory(**each, margin=recipe.margin * sum(each.values()))


def activation_bytes(step: Step, stage: int = 0) -> float:
    """Bytes of activations on a device of a stage: its layers for each microbatch in flight, and logits at the end."""
    recipe, size = step.recipe, step.size
    in_flight = schedules.get(recipe.schedule).in_flight(size.pipeline, step.microbatches, recipe.virtual_stages, stage)
    layers = in_flight * stage_layers(step.model, size, stage)
    if "activations" in recipe.offload:
        layers = min(layers, LIVE_LAYERS)
    everything, block_input = layer_bytes(step)
    # Where all is recomputed, one layer at a time is there whole
    kept = layers * block_input + everything if recipe.recompute == "full" else layers * everything
    logits = 4 * step.tokens * step.model.vocab / size.tensor if stage == size.pipeline - 1 else 0
    return kept + logits


def layer_bytes(step: Step) -> tuple[float, float]:
    """Bytes of a microbatch that a layer computes and backward reads, and of its input alone, on a rank."""
    model, recipe = step.model, step.recipe
    everything = saved_values_per_token(model)
    whole = 0 if recipe.sequence_parallel else 2 * model.branches * model.hidden
    scores = 0.0
    if recipe.recompute == "none" and not recipe.fused_attention and model.seq is not None:
        # [Y5] 5 a s bytes: softmax's output, its dropout's mask and output
        scores = 2.5 * model.heads * model.seq * model.attention_layers / model.layers
    layer = whole + (everything - whole + scores) / step.size.tensor
    block_input = model.hidden / (step.size.tensor if recipe.sequence_parallel else 1)
    return layer * step.tokens * step.element, block_input * step.tokens * step.element


def device_params(step: Step, *, expert: bool, trained: bool = False) -> float:
    """Weights of experts, or of all else, on a stage and tensor-parallel rank: the mean of the stages."""
    return sum(
        (part.trained if trained else part.params)
        * part.on_device(step.size)
        / (1 if part.end == "every" else step.size.pipeline)
        for part in parts(step.model)
        if (part.copies > 1) == expert
    )

"""What a training step must take on a mesh of devices, before anything ran: memory, arithmetic, traffic of each axis.

Made of the same formulas as the gap. `lower_ns` lets everything overlap at peak rates, `upper_ns` lets nothing overlap
at the rates that matrix products reach in practice, and `predicted_ns` lies between: each collective hides behind what
`traffic` says can run meanwhile, and no further.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, gcd

from tracegap.models import collectives, division, footprint, published, schedules
from tracegap.models.architecture import MLP_MATRICES, Model
from tracegap.models.errors import NoFormula
from tracegap.models.footprint import Memory
from tracegap.models.hardware import Chip
from tracegap.models.memory import OPTIMIZER_BYTES
from tracegap.models.mesh import Links, Sizes, sizes
from tracegap.models.ops import CollectiveKind
from tracegap.models.recipe import Recipe, Step
from tracegap.models.traffic import Message, messages
from tracegap.models.transformer import attention_flops_per_token, forward_flops, train_flops
from tracegap.models.units import ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Collectives of one kind on one axis, in a step, of one device."""

    axis: str
    """Name of the axis in the mesh; several joined by "+" where a group spreads over them."""
    ranks: int
    collective: CollectiveKind
    calls: int
    message_bytes: float
    """Of one call, as nccl-tests count it."""
    total_ns: int
    """Of all calls, by the collective model."""
    exposed_ns: int
    """Of that, what is predicted not to hide."""
    behind: str
    """What can run meanwhile; empty: nothing."""
    fabric: str
    """The links assumed."""
    of: str = ""
    """Whose weights or gradients, where a model has experts: theirs or those of the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Bounds of a step on a mesh."""

    mesh: dict[str, int]
    devices: int
    microbatches: int
    tokens_per_microbatch: float
    """Of a device of the busiest replica, before the tensor axis."""
    busiest: float
    """Tokens of the busiest replica over the mean; 1 where the sequences divide."""
    params: int
    memory: Memory
    memory_bytes: float | None
    """Of a device as sold; None where the catalogue does not know it."""
    model_flops: float
    """Of a step on all devices, without recomputation."""
    flops_per_device: float
    """Done in a step, recomputation and padding included, mean over devices."""
    compute_ns: int
    """Arithmetic of the longest stage of the busiest replica at the dense peak of the model's dtype."""
    offload_ns: int
    """Saved activations over the link to the host, one way: out beside the forward pass, back beside the backward."""
    hbm_ns: int
    """Reading the weights in each pass and writing and reading the activations, at the memory's rate."""
    optimizer_ns: int
    """Updating the weights, bound by the memory, or by the host's link where the optimizer lies there."""
    bubble_ns: int
    """What a pipeline idles besides, at peak."""
    reachable_share: float
    """Of the peak, what matrix products of good shape reach on this part (published); 1 where nobody says."""
    traffic: tuple[Traffic, ...]
    lower_ns: int
    """All communication hides: the longest of compute with bubble and optimizer and the traffic of an axis."""
    predicted_ns: int
    """Compute at the reachable rate, with what communication cannot hide."""
    upper_ns: int
    """Compute at the reachable rate, and nothing hides."""
    bound: str
    """`compute`, `memory`, `host` where offloaded activations take longer, or the axis whose traffic does."""
    peak_flops_per_s: float
    """Of a device, in the dtype of its matrix products."""

    @property
    def fits(self) -> bool | None:
        """Whether the states and activations fit into a device; None where its memory is not known."""
        return None if self.memory_bytes is None else self.memory.total <= self.memory_bytes

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation to expect: attention counted with its mask."""
        return self.mfu_at(self.predicted_ns)

    def mfu_at(self, step_ns: float) -> float:
        """Model FLOPs utilisation of a step that takes so long."""
        return self.model_flops / (self.devices * self.peak_flops_per_s * step_ns / 1e9)

    def axis_ns(self, axis: str) -> int:
        """Time of all traffic of an axis."""
        return sum(traffic.total_ns for traffic in self.traffic if traffic.axis == axis)


def plan(
    model: Model,
    chip: Chip,
    mesh: Mapping[str, int],
    tokens_per_step: int,
    recipe: Recipe | None = None,
    *,
    ranks_per_domain: int | None = None,
    torus: Sequence[int] | None = None,
    wrap: Sequence[bool] | None = None,
    links: Links | None = None,
    whole_sequences: bool = True,
) -> Plan:
    """Bounds of a training step.

    `mesh` gives the size of each axis, a name of mesh.AXES, the last one fastest over the ranks. Ranks sit as
    `collectives.fabric_for` says. `links` may be shared by plans of the same devices; it goes before the three others.
    A model with towers needs `plan_towers`.

    A step takes what the busiest replica takes, which has ceil(sequences / replicas) whole sequences. Without
    `whole_sequences` the tokens are divided evenly whatever their sequences, as the Scaling Book does (chapter 6).

    Raises NoFormula where an axis, the sequence length, a peak or a link rate is not known, and where the mesh does not
    divide the model (`division.check`) or the microbatches not the sequences.
    """
    recipe = recipe or Recipe()
    links = links or Links(chip=chip, ranks_per_domain=ranks_per_domain, torus=torus, wrap=wrap)
    size = sizes(mesh)
    dtype = recipe.math_dtype or model.dtype
    peak = _peak(chip, dtype)
    division.check(model, size)
    sequences = division.busiest_sequences(model, size, tokens_per_step)
    microbatches = recipe.microbatches or default_microbatches(model, size, tokens_per_step)
    if recipe.schedule == "interleaved" and microbatches % size.pipeline:
        raise NoFormula(
            f"an interleaved pipeline of {size.pipeline} needs a multiple of that, not {microbatches} microbatches"
        )
    layers = ceil((model.layers + model.encoder_layers) / size.pipeline)
    if recipe.virtual_stages > layers:
        raise NoFormula(f"{recipe.virtual_stages} virtual stages need as many layers a stage, not {layers}")
    if whole_sequences:
        division.check_microbatches(microbatches, sequences)
    tokens = microbatch_tokens(model, size, tokens_per_step, microbatches, whole_sequences=whole_sequences)
    busiest = tokens * microbatches * size.token_ways / tokens_per_step
    own = replace(model, towers=()) if model.towers else model
    step = Step(model=own, mesh=mesh, size=size, recipe=recipe, tokens=tokens, microbatches=microbatches)

    executed = executed_flops(own, tokens_per_step, recipe)
    compute_s = executed * busiest * _longest_stage(own, size) / size.devices / peak
    context_bytes = footprint.GPU_CONTEXT_BYTES if chip.kind == "gpu" else 0.0
    hbm_s = _hbm_bytes(step) / chip.device_hbm_bytes_per_s
    optimizer_s = _optimizer_s(step, chip)
    share = published.reachable_share(chip.id, dtype) or 1.0
    idle = schedules.get(recipe.schedule).bubble_over_ideal(size.pipeline, microbatches, recipe.virtual_stages)

    moved_s = _offloaded_s(step, chip)
    busy_s = _beside(max(compute_s, hbm_s), moved_s, step.passes)
    real_s = _beside(max(compute_s / share, hbm_s), moved_s, step.passes)
    attention = attention_flops_per_token(own) / (forward_flops(own, tokens_per_step).total / tokens_per_step)
    room = {
        "backward": ns(real_s * 2 / 3),
        "layers": ns(real_s),
        "attention": ns(real_s * attention),
        "microbatches": ns(real_s),
    }
    traffic = tuple(_timed(messages(step), step, links, room))
    exposed_ns = sum(item.exposed_ns for item in traffic)
    terms = {"compute": ns(busy_s * (1 + idle) + optimizer_s)}
    for item in traffic:
        terms[item.axis] = terms.get(item.axis, 0) + item.total_ns
    longest = max(terms, key=lambda term: terms[term])
    total_ns = sum(item.total_ns for item in traffic)
    # Collectives inside a layer delay the stages that wait for it as arithmetic does
    inside_ns = sum(item.exposed_ns for item in traffic if not item.behind)
    return Plan(
        mesh=dict(mesh),
        devices=size.devices,
        microbatches=microbatches,
        tokens_per_microbatch=tokens,
        busiest=busiest,
        params=own.params,
        memory=footprint.memory(step, context_bytes=context_bytes),
        memory_bytes=chip.device_memory_bytes,
        model_flops=train_flops(own, tokens_per_step),
        flops_per_device=executed / size.devices,
        compute_ns=ns(compute_s),
        hbm_ns=ns(hbm_s),
        offload_ns=ns(moved_s),
        optimizer_ns=ns(optimizer_s),
        bubble_ns=ns(compute_s * idle),
        reachable_share=share,
        traffic=traffic,
        lower_ns=terms[longest],
        predicted_ns=ns((real_s + inside_ns / 1e9) * (1 + idle) + optimizer_s) + exposed_ns - inside_ns,
        upper_ns=ns((real_s + inside_ns / 1e9) * (1 + idle) + optimizer_s) + total_ns - inside_ns,
        bound=longest if longest != "compute" else _busiest(compute_s, hbm_s, busy_s),
        peak_flops_per_s=peak,
    )


def plan_towers(
    model: Model,
    chip: Chip,
    meshes: Mapping[str, Mapping[str, int]],
    tokens_per_step: int,
    recipe: Recipe | None = None,
    *,
    links: Links | None = None,
) -> dict[str, Plan]:
    """A plan for each part of a multi-modal model: its towers and, under "", the model itself.

    Each has its own mesh over the same devices; a tower without one takes the model's. The parts share a device and run
    one after the other, so that their bytes and times add up. A tower has the model's microbatches as far as they divide
    its own sequences.
    """
    links = links or Links(chip=chip)
    recipe = recipe or Recipe()
    plans = {"": plan(replace(model, towers=()), chip, meshes[""], tokens_per_step, recipe, links=links)}
    for name, tower in model.towers:
        if model.seq is None or tower.seq is None:
            raise NoFormula(f"tower {name} needs its seq and that of the model")
        mesh = meshes.get(name, meshes[""])
        tokens = round(tokens_per_step * tower.seq / model.seq)
        sequences = division.busiest_sequences(tower, sizes(mesh), tokens)
        microbatches = gcd(plans[""].microbatches, sequences)
        own = replace(recipe, schedule="1f1b", virtual_stages=1, microbatches=microbatches)
        plans[name] = plan(tower, chip, mesh, tokens, own, links=links)
        if plans[name].devices != plans[""].devices:
            raise NoFormula(f"the mesh of tower {name} has {plans[name].devices} devices, not {plans[''].devices}")
    return plans


def slowest(chips: Sequence[Chip]) -> Chip:
    """The part that a synchronous job on different parts runs at [E1]: of each figure the least that any has.

    Equal shards wait for the slowest arithmetic, memory, link and network; nothing is faster than its weakest member.
    A figure that one part lacks is lacking.
    """
    kinds = list({chip.id: chip for chip in chips}.values())
    if len(kinds) == 1:
        return kinds[0]
    if len({chip.kind for chip in kinds}) > 1:
        named = " and ".join(f"{chip.id} ({chip.kind})" for chip in kinds)
        raise NoFormula(f"{named} share no job: parts of one kind do")
    least: dict[str, float | None] = {}
    for column in fields(Chip):
        values = [getattr(chip, column.name) for chip in kinds]
        if column.type in (float, float | None):
            per_device = [
                None if v is None else v / c.trace_devices_per_package for v, c in zip(values, kinds, strict=True)
            ]
            known = [v for v in per_device if v is not None]
            least[column.name] = min(known) if len(known) == len(values) else None
    domains = [c.scaleup_max_domain * c.trace_devices_per_package for c in kinds if c.scaleup_max_domain is not None]
    changed = least | {
        "id": "+".join(chip.id for chip in kinds),
        "name": " and ".join(chip.name for chip in kinds),
        "trace_devices_per_package": 1,
        "scaleup_max_domain": min(domains) if len(domains) == len(kinds) else None,
    }
    return replace(kinds[0], **changed)  # type: ignore[arg-type]


def default_microbatches(model: Model, size: Sizes, tokens_per_step: int) -> int:
    """A sequence each in a pipeline, else one."""
    return 1 if size.pipeline == 1 else division.busiest_sequences(model, size, tokens_per_step)


def microbatch_tokens(
    model: Model, size: Sizes, tokens_per_step: int, microbatches: int, *, whole_sequences: bool = True
) -> float:
    """Tokens of a microbatch on a device of the busiest replica; those of the mean one without `whole_sequences`."""
    if not whole_sequences:
        return tokens_per_step / size.token_ways / microbatches
    sequences = division.busiest_sequences(model, size, tokens_per_step)
    return sequences * (model.seq or 1) / size.context / microbatches


def executed_flops(model: Model, tokens: int, recipe: Recipe) -> float:
    """FLOPs that the devices do in a step: model FLOPs, what is recomputed [Y8], and padding of experts."""
    forward = forward_flops(model, tokens)
    flops = float(train_flops(model, tokens))
    head = 2 * tokens * model.hidden * model.vocab
    if recipe.recompute == "full":
        flops += forward.total - head
    elif recipe.recompute == "selective" and not recipe.fused_attention:
        flops += forward.attention
    return flops + 3 * _expert_flops(model, tokens) * (model.capacity_factor * recipe.expert_skew - 1)


def _expert_flops(model: Model, tokens: int) -> float:
    """FLOPs of the routed experts of a forward pass."""
    width = model.ffn if model.expert_ffn is None else model.expert_ffn
    matrices = MLP_MATRICES[model.mlp]
    return 2 * tokens * model.moe_layers * model.experts_per_token * matrices * model.hidden * width


def _peak(chip: Chip, dtype: str) -> float:
    peak = chip.device_flops_per_s(dtype)
    if peak is None:
        others = ", ".join(chip.dtypes)
        raise NoFormula(f"no {dtype} peak of {chip.id} in the catalogue; it has {others}: name one with --math")
    return peak


def _longest_stage(model: Model, size: Sizes) -> float:
    """Work of the longest stage over the mean; embedding and head are taken to be balanced against layers."""
    layers = model.layers + model.encoder_layers
    ends = 2 * model.hidden * model.vocab / max(1, forward_flops(replace(model, seq=model.seq or 1), 1).total)
    return max(1.0, ceil(layers / size.pipeline) * size.pipeline / layers * (1 - ends))


def _hbm_bytes(step: Step) -> float:
    """Least traffic of a device's memory: weights once a pass and microbatch, saved activations out and in."""
    weights = footprint.device_params(step, expert=False) + footprint.device_params(step, expert=True)
    everything, block_input = footprint.layer_bytes(step)
    saved = step.layers * (block_input if step.recipe.recompute == "full" else everything)
    return step.microbatches * ((step.passes + 1) * weights * step.element + 2 * saved)


def _optimizer_s(step: Step, chip: Chip) -> float:
    """[M10, P15] Seconds to update the weights that a device has to: its memory, or the link to the host."""
    trained = 0.0
    for expert in (False, True):
        replicas = step.size.replicas(expert=expert) if step.recipe.zero else 1
        trained += footprint.device_params(step, expert=expert, trained=True) / (step.size.fsdp * replicas)
    if "optimizer" not in step.recipe.offload:
        moved = step.gradient + 2 * OPTIMIZER_BYTES[step.recipe.optimizer] + step.element
        return trained * moved / chip.device_hbm_bytes_per_s
    return trained * max(step.gradient, step.element) / _host_bytes_per_s(chip)


def _busiest(compute_s: float, hbm_s: float, busy_s: float) -> str:
    if busy_s > max(compute_s, hbm_s) * (1 + 1e-9):
        return "host"
    return "memory" if hbm_s > compute_s else "compute"


def _offloaded_s(step: Step, chip: Chip) -> float:
    """[P15] Seconds that saved activations take over the link to the host, one way; zero where they stay."""
    if "activations" not in step.recipe.offload:
        return 0.0
    everything, block_input = footprint.layer_bytes(step)
    saved = block_input if step.recipe.recompute == "full" else everything
    return step.microbatches * step.layers * saved / _host_bytes_per_s(chip)


def _beside(busy_s: float, moved_s: float, passes: int) -> float:
    """[P15] Busy seconds with activations on their way out beside the forward and back beside the backward pass.

    The forward pass is a third of the work, a quarter where backward does it once more.
    """
    forward_s = busy_s / (passes + 1)
    return max(forward_s, moved_s) + max(busy_s - forward_s, moved_s)


def _host_bytes_per_s(chip: Chip) -> float:
    if chip.device_pcie_bytes_per_s is None:
        raise NoFormula(f"offload needs the rate of the link to the host, which the catalogue lacks for {chip.id}")
    return chip.device_pcie_bytes_per_s


def _timed(sent: Sequence[Message], step: Step, links: Links, room: Mapping[str, int]) -> list[Traffic]:
    """Times of the messages, and what of each is exposed.

    Each hides behind what it can, after its first call, which nothing precedes; all together they hide behind no more
    arithmetic than there is. Between stages, the first and last microbatch of each stage have nothing to hide behind.
    """
    left = room["layers"]
    out = []
    for message in sent:
        ranks = 1
        for axis in message.axes:
            ranks *= step.mesh[axis]
        fabric = links.fabric(step.mesh, message.axes)
        one = collectives.predict(message.collective, round(message.message_bytes), ranks, fabric)
        total = message.calls * one.total_ns
        if message.behind:
            first = min(message.calls, 2 * (step.size.pipeline - 1) if message.behind == "microbatches" else 1)
            hidden = min(total - first * one.total_ns, room[message.behind], left)
            left -= hidden
        else:
            hidden = 0
        out.append(
            Traffic(
                axis="+".join(message.axes),
                ranks=ranks,
                collective=message.collective,
                calls=message.calls,
                message_bytes=message.message_bytes,
                total_ns=total,
                exposed_ns=total - hidden,
                behind=message.behind,
                fabric=one.model,
                of=message.of,
            )
        )
    return out

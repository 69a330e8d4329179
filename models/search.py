"""Which mesh is best for a number of devices, on how few devices a training fits, and where more stop helping."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isqrt

from tracegap.models import division, footprint
from tracegap.models.architecture import Model
from tracegap.models.errors import NoFormula
from tracegap.models.hardware import Chip
from tracegap.models.mesh import Links, sizes
from tracegap.models.plan import Plan, default_microbatches, microbatch_tokens, plan
from tracegap.models.recipe import Recipe, Step

SHORTEST_PIECE = 4096
"""Tokens that a context axis leaves of a sequence at least; shorter pieces send more than they compute."""
ORDER = ("pipeline", "data", "fsdp", "expert", "context", "tensor")
"""Axes of the meshes tried, the last one nearest: what sends most and waits for it sits on the fastest links."""
NODE = 8
"""Devices of a node, by which clusters without a torus grow."""
MAX_TENSOR = 64
"""Widest tensor axis that is tried."""
MAX_VIRTUAL_STAGES = 8
"""Chunks of layers a rank in interleaved schedules; more send more and gain little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A mesh with the recipe that makes it fit."""

    recipe: Recipe
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The meshes of a number of devices, the best first."""

    candidates: tuple[Candidate, ...]
    tried: int
    """Meshes that divide the model and the batch."""
    fitting: int
    """Those of them whose memory fits."""

    @property
    def distinct(self) -> tuple[Candidate, ...]:
        """The best of those that differ in the ways to split the model, not only in how replicas shard their states."""
        best: dict[tuple[tuple[str, int], ...], Candidate] = {}
        for candidate in self.candidates:
            split = tuple((a, n) for a, n in candidate.plan.mesh.items() if a not in ("data", "fsdp"))
            best.setdefault(split, candidate)
        return tuple(best.values())


def meshes(
    model: Model, chip: Chip, devices: int, tokens_per_step: int, *, coarse: bool = False
) -> Iterator[dict[str, int]]:
    """Meshes that divide heads, layers, experts and sequences; tensor axes stay within a scale-up domain.

    `data` beside `fsdp` is HSDP; a coarse search tries one of them alone. Where no mesh divides the sequences evenly,
    those that leave some replicas one fewer.
    """
    even = list(_meshes(model, chip, devices, tokens_per_step, coarse=coarse, even=True))
    yield from even or _meshes(model, chip, devices, tokens_per_step, coarse=coarse, even=False)


def _meshes(
    model: Model, chip: Chip, devices: int, tokens_per_step: int, *, coarse: bool, even: bool
) -> Iterator[dict[str, int]]:
    sequences = tokens_per_step / (model.seq or 1)
    domain = (chip.scaleup_max_domain or 1) * chip.trace_devices_per_package
    head_ways = division.head_ways(model)
    longest = (model.seq or 0) // SHORTEST_PIECE if model.attention_layers else 1
    for tensor in (n for n in _divisors(devices) if n <= min(domain, MAX_TENSOR) and head_ways % n == 0):
        for pipeline in (n for n in _divisors(devices // tensor) if _fills(model, n)):
            for context in (n for n in _divisors(devices // tensor // pipeline) if n <= max(1, longest)):
                shards = devices // tensor // pipeline // context
                for expert in (n for n in _divisors(shards) if n == 1 or (model.experts and model.experts % n == 0)):
                    if shards > sequences or (even and sequences % shards):
                        continue
                    replicas = shards // expert
                    for fsdp in sorted({1, replicas}) if coarse else _divisors(replicas):
                        ways = (pipeline, replicas // fsdp, fsdp, expert, context, tensor)
                        yield {axis: n for axis, n in zip(ORDER, ways, strict=True) if n > 1}


def _fills(model: Model, stages: int) -> bool:
    """Whether stages of ceil(L/p) layers, the longest, leave some for the last: others idle more than they need."""
    layers = model.layers + model.encoder_layers
    return stages == 1 or -(-layers // stages) * (stages - 1) < layers


@cache
def _divisors(n: int) -> tuple[int, ...]:
    small = [i for i in range(1, isqrt(n) + 1) if n % i == 0]
    return tuple(sorted({*small, *(n // i for i in small)}))


def slice_shape(chip: Chip, devices: int) -> tuple[int, ...] | None:
    """The torus of a slice of so many chips, as near to a cube or square as sides of 4 (or powers of 2) go.

    More chips than a pod has are several slices of a whole pod. None where the part has no torus.
    """
    if chip.scaleup_kind != "ICI" or devices % chip.trace_devices_per_package:
        return None
    chips = min(devices // chip.trace_devices_per_package, chip.scaleup_max_domain or devices)
    dims = 3 if (chip.scaleup_shape or "").startswith("3D") else 2
    shapes = list(_shapes(chips, dims))
    whole = [shape for shape in shapes if all(side % 4 == 0 for side in shape)]
    return min(whole or shapes, key=lambda shape: (max(shape), sum(shape)), default=None)


def _shapes(chips: int, dims: int) -> Iterator[tuple[int, ...]]:
    if dims == 1:
        yield (chips,)
        return
    for side in _divisors(chips):
        for rest in _shapes(chips // side, dims - 1):
            if side <= rest[0]:
                yield (side, *rest)


def recipes(
    model: Model, mesh: Mapping[str, int], tokens_per_step: int, base: Recipe, kept: Collection[str] = ()
) -> Iterator[Recipe]:
    """Recipes of a mesh, those with less recomputation first, then those with fewer microbatches.

    Replicas that hold all weights shard at least the optimizer (ZeRO 1), which costs no traffic. A pipeline is also
    tried interleaved. What `base` says other than the defaults is kept, and of `kept` (`zero`, `recompute`, `schedule`)
    the defaults too.
    """
    size = sizes(mesh)
    zero = max(base.zero, 1) if size.replicas(expert=False) > 1 and "zero" not in kept else base.zero
    sequences = division.busiest_sequences(model, size, tokens_per_step)
    start = base.microbatches or default_microbatches(model, size, tokens_per_step)
    counts = [start] if base.microbatches else [m for m in _divisors(sequences) if m >= start]
    depths = [base.recompute] if base.recompute != "none" or "recompute" in kept else ["none", "full"]
    orders = [(base.schedule, base.virtual_stages)]
    layers = -(-(model.layers + model.encoder_layers) // size.pipeline)
    chunks = max(v for v in _divisors(layers) if v <= MAX_VIRTUAL_STAGES)
    if size.pipeline > 1 and base.schedule == "1f1b" and "schedule" not in kept and chunks > 1:
        orders.append(("interleaved", chunks))
    for schedule, virtual in orders:
        for recompute in depths:
            for m in counts if schedule != "interleaved" else [m for m in counts if m % size.pipeline == 0]:
                yield replace(
                    base, zero=zero, recompute=recompute, microbatches=m, schedule=schedule, virtual_stages=virtual
                )


def first_fit(
    model: Model,
    chip: Chip,
    mesh: Mapping[str, int],
    tokens_per_step: int,
    base: Recipe,
    kept: Collection[str] = (),
) -> list[Recipe]:
    """The recipes of a mesh worth timing: the first of each schedule and depth of recomputation that fits."""
    capacity = chip.device_memory_bytes
    found: dict[tuple[str, str], Recipe] = {}
    for recipe in recipes(model, mesh, tokens_per_step, base, kept):
        kind = (recipe.schedule, recipe.recompute)
        if kind not in found and (
            capacity is None or _memory_bytes(model, chip, mesh, tokens_per_step, recipe) <= capacity
        ):
            found[kind] = recipe
    return list(found.values())


def _memory_bytes(model: Model, chip: Chip, mesh: Mapping[str, int], tokens_per_step: int, recipe: Recipe) -> float:
    """Of the fullest device."""
    size = sizes(mesh)
    microbatches = recipe.microbatches or 1
    tokens = microbatch_tokens(model, size, tokens_per_step, microbatches)
    step = Step(model=model, mesh=mesh, size=size, recipe=recipe, tokens=tokens, microbatches=microbatches)
    context_bytes = footprint.GPU_CONTEXT_BYTES if chip.kind == "gpu" else 0.0
    return footprint.memory(step, context_bytes=context_bytes).total


def fitted(
    model: Model,
    chip: Chip,
    mesh: Mapping[str, int],
    tokens_per_step: int,
    recipe: Recipe | None = None,
    *,
    links: Links | None = None,
    kept: Collection[str] = (),
) -> Candidate | None:
    """A mesh with the recipe that a ranking gives it: of those that fit the shortest predicted step; None: none fits.

    Raises NoFormula as `plan` does.
    """
    found = first_fit(model, chip, mesh, tokens_per_step, recipe or Recipe(), kept)
    plans = [Candidate(recipe=one, plan=plan(model, chip, mesh, tokens_per_step, one, links=links)) for one in found]
    return min(plans, key=lambda candidate: candidate.plan.predicted_ns, default=None)


def thriftiest(
    model: Model,
    chip: Chip,
    mesh: Mapping[str, int],
    tokens_per_step: int,
    recipe: Recipe | None = None,
    *,
    links: Links | None = None,
    kept: Collection[str] = (),
) -> Candidate:
    """A mesh with that of its recipes that takes the least memory, the first of equal ones."""
    base = recipe or Recipe()
    tried = recipes(model, mesh, tokens_per_step, base, kept)
    least = min(tried, key=lambda one: _memory_bytes(model, chip, mesh, tokens_per_step, one), default=base)
    return Candidate(recipe=least, plan=plan(model, chip, mesh, tokens_per_step, least, links=links))


def of_mesh(
    model: Model,
    chip: Chip,
    mesh: Mapping[str, int],
    tokens_per_step: int,
    recipe: Recipe | None = None,
    *,
    links: Links | None = None,
    kept: Collection[str] = (),
) -> Candidate:
    """A mesh with the recipe of a ranking where one fits, else with the one that takes the least memory.

    Raises NoFormula as `plan` does, before anything is searched for what cannot be.
    """
    base = recipe or Recipe()
    size = sizes(mesh)
    division.check(model, size)
    if base.microbatches:
        division.check_microbatches(base.microbatches, division.busiest_sequences(model, size, tokens_per_step))
    found = fitted(model, chip, mesh, tokens_per_step, base, links=links, kept=kept)
    return found or thriftiest(model, chip, mesh, tokens_per_step, base, links=links, kept=kept)


def remedies(model: Model, candidate: Candidate, tokens_per_step: int) -> tuple[str, ...]:
    """Options of the command that lower the memory of a plan; the last is to change the mesh."""
    recipe, size = candidate.recipe, sizes(candidate.plan.mesh)
    sequences = division.busiest_sequences(model, size, tokens_per_step)
    out = []
    if recipe.zero < 3 and size.replicas(expert=False) > 1:
        out.append("--zero 3")
    if recipe.recompute != "full":
        out.append("--recompute full")
    if candidate.plan.microbatches < sequences:
        out.append(f"--microbatches {sequences}")
    out.extend(f"--offload {what}" for what in ("activations", "optimizer") if what not in recipe.offload)
    return (*out, "a mesh that splits the model further")


def rank(
    model: Model,
    chip: Chip,
    devices: int,
    tokens_per_step: int,
    recipe: Recipe | None = None,
    *,
    links: Links | None = None,
    coarse: bool = False,
    kept: Collection[str] = (),
) -> Ranking:
    """All meshes that fit, the shortest predicted step first; of equal ones that with fewer axes.

    A `coarse` ranking leaves out those that differ only in how replicas shard their states. Meshes whose links are not
    in the catalogue are left out; where that leaves none, NoFormula says what is missing.
    """
    links = links or Links(chip=chip, torus=slice_shape(chip, devices))
    candidates: list[Candidate] = []
    tried = fitting = 0
    unknown: NoFormula | None = None
    for mesh in meshes(model, chip, devices, tokens_per_step, coarse=coarse):
        tried += 1
        try:
            candidate = fitted(model, chip, mesh, tokens_per_step, recipe, links=links, kept=kept)
        except NoFormula as error:
            unknown = error
            fitting += 1
            continue
        if candidate is not None:
            fitting += 1
            candidates.append(candidate)
    if unknown is not None and not candidates:
        raise unknown
    candidates.sort(key=lambda c: (c.plan.predicted_ns, len(c.plan.mesh)))
    return Ranking(candidates=tuple(candidates), tried=tried, fitting=fitting)


def fewest_devices(
    model: Model,
    chip: Chip,
    tokens_per_step: int,
    recipe: Recipe | None = None,
    *,
    most: int = 1 << 20,
    kept: Collection[str] = (),
) -> int | None:
    """The fewest devices on which a mesh fits; None where not even `most` do.

    Powers of two, as slices of a torus have; elsewhere between the last two also whole nodes of NODE, in sixteenths.
    """

    def fits(devices: int) -> bool:
        tried = meshes(model, chip, devices, tokens_per_step, coarse=True)
        return any(first_fit(model, chip, mesh, tokens_per_step, recipe or Recipe(), kept) for mesh in tried)

    powers = (1 << i for i in range(most.bit_length()))
    enough = next((devices for devices in powers if fits(devices)), None)
    if enough is None or chip.scaleup_kind == "ICI":
        return enough
    step = max(NODE, enough // 16)
    return next((devices for devices in range(enough // 2 + step, enough, step) if fits(devices)), enough)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The same batch on more and more devices."""

    points: tuple[Candidate, ...]
    """Best mesh of each number of devices."""
    limit: int | None
    """Devices from which useful arithmetic is less than half of the lowest bound of any mesh: traffic, memory and
    bubbles take over even where everything overlaps. None: not reached."""


def scaling(
    model: Model,
    chip: Chip,
    tokens_per_step: int,
    counts: Sequence[int],
    recipe: Recipe | None = None,
    *,
    kept: Collection[str] = (),
) -> Scaling:
    """Best mesh for each of some numbers of devices, at a fixed batch [strong scaling]."""
    points = []
    limit = None
    for devices in counts:
        ranked = rank(model, chip, devices, tokens_per_step, recipe, coarse=True, kept=kept).candidates
        if ranked:
            points.append(ranked[0])
            lowest = min((candidate.plan for candidate in ranked), key=lambda found: found.lower_ns)
            arithmetic_ns = lowest.model_flops / devices / lowest.peak_flops_per_s * 1e9
            if limit is None and lowest.lower_ns > 2 * arithmetic_ns:
                limit = devices
    return Scaling(points=tuple(points), limit=limit)

"""How a training is run: sharding stage, recomputation, schedule, precision of states, offload; and one step of it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any

from tracegap.models import schedules
from tracegap.models.architecture import Model
from tracegap.models.errors import NoFormula
from tracegap.models.memory import OPTIMIZER_BYTES
from tracegap.models.mesh import Sizes
from tracegap.models.ops import DTYPE_BYTES

RECOMPUTE = ("none", "selective", "full")
"""Activations computed twice: none; the attention core (which fused kernels do anyhow); every layer from its input."""
CONTEXT = ("ring", "ulysses", "all_gather")
"""How a context axis exchanges keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Choices of a training."""

    zero: int = 0
    """ZeRO stage over the replicas: 1 shards the optimizer, 2 gradients too, 3 weights too. An fsdp axis is stage 3."""
    recompute: str = "none"
    """One of RECOMPUTE."""
    fused_attention: bool = True
    """Whether scores are never stored (FlashAttention)."""
    sequence_parallel: bool = True
    """Whether norms and block inputs are split over the tensor axis too."""
    async_tensor: bool = False
    """Whether collectives of the tensor axis run behind pieces of their own products (collective matmul)."""
    microbatches: int | None = None
    """Of a replica in a step (gradient accumulation); None: one a sequence in a pipeline, else one."""
    schedule: str = "1f1b"
    """A key of schedules.SCHEDULES."""
    virtual_stages: int = 1
    """Chunks of layers a rank, of an interleaved schedule."""
    context: str = "ring"
    """One of CONTEXT."""
    optimizer: str = "adamw"
    """A key of memory.OPTIMIZER_BYTES."""
    math_dtype: str | None = None
    """Of matrix products, whose peak is then the measure, such as fp8 with bf16 weights; None: the model's."""
    gradient_bytes: float | None = None
    """Bytes of a gradient; None: as a weight."""
    expert_skew: float = 1.0
    """Tokens of the busiest expert's rank over the mean."""
    offload: tuple[str, ...] = ()
    """What lies in the host's memory: `optimizer`, `activations`."""
    margin: float = 0.05
    """Share of memory added for fragmentation: allocators lose 5 to 10 % of what they hand out."""

    def __post_init__(self) -> None:
        schedules.get(self.schedule)
        for what, value, known in (
            ("ZeRO stage", self.zero, (0, 1, 2, 3)),
            ("recompute", self.recompute, RECOMPUTE),
            ("context", self.context, CONTEXT),
            ("optimizer", self.optimizer, tuple(OPTIMIZER_BYTES)),
            ("math dtype", self.math_dtype, (None, *DTYPE_BYTES)),
            *(("offload", item, ("optimizer", "activations")) for item in self.offload),
        ):
            if value not in known:
                names = ", ".join(str(name) for name in known if name is not None)
                raise NoFormula(f"{what} {value!r}: known are {names}")
        if self.virtual_stages > 1 and self.schedule != "interleaved":
            raise NoFormula(f"{self.virtual_stages} virtual stages need the schedule interleaved, not {self.schedule}")


def recipe_of(said: Mapping[str, Any], base: Recipe | None = None) -> Recipe:
    """The choices of a table such as a manifest's [recipe]; those of `base` that are not the default go before.

    Raises NoFormula where a key or a value is unknown.
    """
    base, usual = base or Recipe(), Recipe()
    known = {column.name for column in fields(Recipe)}
    if unknown := said.keys() - known:
        raise NoFormula(f"[recipe] {min(unknown)!r}: known are {', '.join(sorted(known))}")
    open_to = {name: value for name, value in said.items() if getattr(base, name) == getattr(usual, name)}
    for name, value in open_to.items():
        kinds = _KINDS.get(type(getattr(usual, name)), (int, float, str))
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise NoFormula(f"[recipe] {name} = {value!r}: not of the kind that it should be")
    if "offload" in open_to:
        open_to["offload"] = tuple(open_to["offload"])
    return replace(base, **open_to)


_KINDS: dict[type, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
    tuple: (list, tuple),
}
"""Types that a value may have, by that of its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a training on a mesh: what its memory and its traffic follow from."""

    model: Model
    mesh: Mapping[str, int]
    size: Sizes
    recipe: Recipe
    tokens: float
    """Of a microbatch on a device, before the tensor axis."""
    microbatches: int

    @property
    def element(self) -> float:
        """Bytes of a weight or activation."""
        return DTYPE_BYTES[self.model.dtype]

    @property
    def gradient(self) -> float:
        """Bytes of a gradient."""
        return self.element if self.recipe.gradient_bytes is None else self.recipe.gradient_bytes

    @property
    def layers(self) -> int:
        """Layers of the longest stage, an encoder's among them."""
        return ceil((self.model.layers + self.model.encoder_layers) / self.size.pipeline)

    @property
    def boundary_bytes(self) -> float:
        """Bytes of the activations between layers, whole over the tensor axis."""
        return self.tokens * self.model.hidden * self.element

    @property
    def passes(self) -> int:
        """Forward and backward passes through a layer: one more where all is recomputed."""
        return 3 if self.recipe.recompute == "full" else 2

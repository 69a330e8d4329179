"""A mesh of devices: what its axes do, which ranks talk to each other, and over which links."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from tracegap.models import collectives
from tracegap.models.collectives import Fabric
from tracegap.models.errors import NoFormula
from tracegap.models.hardware import Chip

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
    "expert": "expert",
    "ep": "expert",
    "context": "context",
    "cp": "context",
}
"""What an axis of a mesh does, by its name.

`data` replicates all states, `fsdp` shards them, `tensor` splits each layer, `pipeline` the layers. `expert` splits the
experts and, as data parallelism, the batch of everything else; `context` splits each sequence. `data` beside `fsdp` is
HSDP.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Ranks by what they do, over all axes that do it."""

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    context: int = 1

    @property
    def devices(self) -> int:
        """All ranks."""
        return self.data * self.fsdp * self.tensor * self.pipeline * self.expert * self.context

    @property
    def batch_ways(self) -> int:
        """Parts into which the sequences of a batch are divided."""
        return self.data * self.fsdp * self.expert

    @property
    def token_ways(self) -> int:
        """Parts into which the tokens of a batch are divided."""
        return self.batch_ways * self.context

    def replicas(self, *, expert: bool) -> int:
        """Ranks that hold the same part of a weight (of an expert, if so) and add up its gradients."""
        return self.data * self.context * (1 if expert else self.expert)


def sizes(mesh: Mapping[str, int]) -> Sizes:
    """Ranks by what they do. Raises NoFormula where a name is not one of AXES or a size is below 1."""
    size = dict.fromkeys(AXES.values(), 1)
    for axis, ranks in mesh.items():
        if axis not in AXES or not isinstance(ranks, int) or ranks < 1:
            raise NoFormula(f"mesh axis {axis} = {ranks}: known are {', '.join(AXES)}, each at least 1")
        size[AXES[axis]] *= ranks
    return Sizes(**size)


def mesh_of(text: str) -> dict[str, int]:
    """A mesh as people write it: "fsdp=16,tensor=8", the last axis fastest. Raises NoFormula where it is no mesh."""
    mesh: dict[str, int] = {}
    for item in text.split(","):
        name, _, ways = item.partition("=")
        if not ways.strip().isdecimal():
            raise NoFormula(f"mesh {text!r}: write it as fsdp=16,tensor=8")
        if name.strip() in mesh:
            raise NoFormula(f"mesh {text!r}: axis {name.strip()} comes twice; write it as fsdp=16,tensor=8")
        mesh[name.strip()] = int(ways)
    sizes(mesh)
    return mesh


def axes_of(mesh: Mapping[str, int], *roles: str) -> tuple[str, ...]:
    """Axes of more than one rank that do one of these."""
    return tuple(axis for axis, ranks in mesh.items() if ranks > 1 and AXES[axis] in roles)


def strides(mesh: Mapping[str, int], axes: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """(ranks, distance between neighbours) of each of some axes: the last axis of the mesh is the fastest."""
    distance: dict[str, int] = {}
    below = 1
    for axis in reversed(list(mesh)):
        distance[axis] = below
        below *= mesh[axis]
    return tuple((mesh[axis], distance[axis]) for axis in axes)


def group(mesh: Mapping[str, int], axes: Sequence[str]) -> tuple[int, ...]:
    """Ranks of the first group along some axes."""
    ranks = [0]
    for ways, distance in strides(mesh, axes):
        ranks = [rank + i * distance for i in range(ways) for rank in ranks]
    return tuple(sorted(ranks))


def axes_of_group(mesh: Mapping[str, int], ranks: Sequence[int]) -> tuple[str, ...] | None:
    """The axes over which a group of ranks spreads, in the order of the mesh; None where it is a group of no axes."""
    wide = tuple(axis for axis, ways in mesh.items() if ways > 1)
    lowest, members = min(ranks), sorted(ranks)
    for count in range(1, len(wide) + 1):
        for axes in combinations(wide, count):
            first = group(mesh, axes)
            # The lowest member has the first place on each of the axes
            starts = all(lowest // distance % ways == 0 for ways, distance in strides(mesh, axes))
            if len(first) == len(members) and starts and [lowest + rank for rank in first] == members:
                return axes
    return None


@dataclass(slots=True, kw_only=True)
class Links:
    """Where ranks sit, as `collectives.fabric_for` has it; remembers the fabrics it has worked out."""

    chip: Chip
    ranks_per_domain: int | None = None
    torus: Sequence[int] | None = None
    wrap: Sequence[bool] | None = None
    network_bytes_per_s: float | None = None
    _known: dict[tuple[tuple[int, int], ...], Fabric] = field(default_factory=dict)

    def fabric(self, mesh: Mapping[str, int], axes: Sequence[str]) -> Fabric:
        """The links between the ranks of a group along some axes. Raises NoFormula where a rate is unknown."""
        key = strides(mesh, axes)
        if key not in self._known:
            self._known[key] = collectives.fabric_for(
                self.chip,
                group(mesh, axes),
                self.ranks_per_domain,
                self.torus,
                wrap=self.wrap,
                network_bytes_per_s=self.network_bytes_per_s,
            )
        return self._known[key]

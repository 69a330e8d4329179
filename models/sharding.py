"""Arrays over a mesh of devices in the notation of the Scaling Book, and what moving and multiplying them costs.

`A[I_X, J_{YZ}]` is an array whose axis I is split over mesh axis X and J over Y and Z; `{U_X}` behind it says that every
device along X holds a partial sum. Theory reference, section 4 [S0, S3]; Scaling Book, chapter 3. Collectives are priced
by `collectives.predict`, so a mesh may be a torus, a switch or several domains.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Literal

from tracegap.models import collectives, roofline
from tracegap.models.collectives import Fabric
from tracegap.models.errors import BadShape
from tracegap.models.hardware import Chip
from tracegap.models.ops import CollectiveKind
from tracegap.models.quantities import quantity
from tracegap.models.torus import Axis
from tracegap.models.units import ns

_ARRAY = re.compile(r"\s*(?P<name>\w*)\s*\[(?P<dims>.*?)\]\s*(?:\{\s*U_(?P<partial>.*?)\s*\})?\s*$")
_LETTERS = re.compile(r"[A-Z]\d*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Devices by named axes."""

    sizes: Mapping[str, int]
    """Devices along each axis."""
    fabric: Callable[[tuple[str, ...]], Fabric]
    """The links between the devices that differ in these axes only."""

    @classmethod
    def torus(cls, axes: Mapping[str, Axis], link_bytes_per_s: float) -> "Mesh":
        """Each mesh axis is an axis of a torus whose links carry so much in one direction."""

        def fabric(names: tuple[str, ...]) -> Fabric:
            used = tuple(axes[name] for name in names)
            ports = sum(axis.ports for axis in used)
            return Fabric(
                shape="torus " + "x".join(str(axis.size) for axis in used),
                egress_bytes_per_s=ports * link_bytes_per_s,
                pair_bytes_per_s=link_bytes_per_s,
                latency="ici",
                axes=used,
            )

        return cls(sizes={name: axis.size for name, axis in axes.items()}, fabric=fabric)

    @classmethod
    def of(cls, chip: Chip, sizes: Mapping[str, int], ranks_per_domain: int | None = None) -> "Mesh":
        """Ranks of a chip's scale-up domains and the network between them; the last axis varies fastest."""

        def fabric(names: tuple[str, ...]) -> Fabric:
            return collectives.fabric_for(chip, _group(sizes, names), ranks_per_domain)

        return cls(sizes=dict(sizes), fabric=fabric)

    def ways(self, axes: tuple[str, ...]) -> int:
        """Parts that these axes make."""
        return prod(self.sizes[axis] for axis in axes)

    @property
    def devices(self) -> int:
        """Of the whole mesh."""
        return prod(self.sizes.values())


def _group(sizes: Mapping[str, int], names: tuple[str, ...]) -> list[int]:
    """Ranks of the group of rank 0 along these axes."""
    ranks, stride = [0], 1
    for name, size in reversed(list(sizes.items())):
        if name in names:
            ranks = [rank + i * stride for i in range(size) for rank in ranks]
        stride *= size
    return sorted(ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """A logical array and how it is split; `parse_array` reads it from text."""

    name: str
    dims: Mapping[str, tuple[str, ...]]
    """Mesh axes that split each axis of the array, in the order of the array's axes."""
    partial: tuple[str, ...] = ()
    """Mesh axes over which the devices' values still have to be added."""

    def __post_init__(self) -> None:
        used = self.axes + self.partial
        if len(set(used)) != len(used):
            raise BadShape(f"{self}: a mesh axis splits one axis of an array at most")

    def __str__(self) -> str:
        """The notation, such as "A[I_X, J] {U_Y}"."""
        dims = ", ".join(dim + _subscript(axes) for dim, axes in self.dims.items())
        return f"{self.name}[{dims}]" + (f" {{U{_subscript(self.partial)}}}" if self.partial else "")

    @property
    def axes(self) -> tuple[str, ...]:
        """Mesh axes that split it, in order."""
        return tuple(axis for axes in self.dims.values() for axis in axes)

    def split(self, dim: str, axes: tuple[str, ...]) -> "Array":
        """The same array with one axis split otherwise."""
        return replace(self, dims=dict(self.dims) | {dim: axes})

    def bytes_per_device(self, sizes: Mapping[str, int], bytes_per_elem: float, mesh: Mesh) -> int:
        """[S0] Bytes that each device holds: the largest shard where sizes do not divide."""
        shard = prod(ceil(sizes[dim] / mesh.ways(axes)) for dim, axes in self.dims.items())
        return ceil(shard * bytes_per_elem)

    def bytes_on_all_devices(self, sizes: Mapping[str, int], bytes_per_elem: float, mesh: Mesh) -> int:
        """[S0] Bytes on the whole mesh: copies along axes that do not split it are real memory."""
        return self.bytes_per_device(sizes, bytes_per_elem, mesh) * mesh.devices


def _subscript(axes: tuple[str, ...]) -> str:
    plain = all(_LETTERS.fullmatch(axis) for axis in axes)
    inside = ("" if plain else ",").join(axes)
    return "" if not axes else f"_{inside}" if plain and len(axes) == 1 else f"_{{{inside}}}"


def _axes(text: str) -> tuple[str, ...]:
    """Mesh axes of a subscript: "X", "XY", "{XY}" are single letters, "{data,model}" are names."""
    inside = text.strip().removeprefix("{").removesuffix("}").replace(" ", "")
    if "," not in inside and "".join(_LETTERS.findall(inside)) == inside:
        return tuple(_LETTERS.findall(inside))
    return tuple(filter(None, inside.split(",")))


def parse_array(text: str) -> Array:
    """`A[I_X, J_{YZ}] {U_W}` as an Array; raises BadShape where it is not one."""
    match = _ARRAY.match(text)
    if match is None:
        raise BadShape(f"{text!r} is no array: expected something like A[I_X, J_{{YZ}}] {{U_W}}")
    dims: dict[str, tuple[str, ...]] = {}
    for part in filter(None, map(str.strip, re.split(r",(?![^{]*\})", match["dims"]))):
        dim, _, subscript = part.partition("_")
        if dim in dims:
            raise BadShape(f"{text!r}: axis {dim} comes twice")
        dims[dim] = _axes(subscript)
    return Array(name=match["name"], dims=dims, partial=_axes(match["partial"] or ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product of two arrays over the axes that the result does not have."""

    left: Array
    right: Array
    result: Array

    @property
    def contracted(self) -> tuple[str, ...]:
        """Axes that are summed over."""
        return tuple(dim for dim in self.left.dims if dim not in self.result.dims)

    @property
    def case(self) -> Literal[1, 2, 3, 4]:
        """Which of the book's four cases of a sharded product it is.

        1: no contracted axis is split. 2: one is, in one operand. 3: one is, in both alike. 4: a mesh axis splits an
        axis of the result in either operand, of which it can keep one; this goes first.
        """
        left, right = self.left, self.right
        kept = [{a: d for a, d in _homes(array).items() if d not in self.contracted} for array in (left, right)]
        if any(kept[0][axis] != kept[1][axis] for axis in kept[0].keys() & kept[1].keys()):
            return 4
        split = [(left.dims[d], right.dims[d]) for d in self.contracted if left.dims[d] or right.dims[d]]
        if not split:
            return 1
        return 3 if all(a == b for a, b in split) else 2


def parse_product(text: str) -> Product:
    """`A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]` as a Product; raises BadShape where the axes do not go together.

    `·` and `@` stand for `*`, `→` for `->`.
    """
    sides = re.split(r"->|→", text)
    factors = re.split(r"\s[*·@]\s", sides[0])
    if len(sides) != 2 or len(factors) != 2:
        raise BadShape(f"{text!r} is no product: expected something like A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]")
    left, right, result = parse_array(factors[0]), parse_array(factors[1]), parse_array(sides[1])
    if left.partial or right.partial:
        raise BadShape(f"{text!r}: partial sums have to be added before they are multiplied")
    alone = (left.dims.keys() ^ right.dims.keys()) - result.dims.keys()
    unknown = result.dims.keys() - left.dims.keys() - right.dims.keys()
    if alone or unknown:
        raise BadShape(f"{text!r}: axis {min(alone | unknown)} is in one of them only")
    return Product(left=left, right=right, result=result)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One collective on the way."""

    kind: CollectiveKind
    axes: tuple[str, ...]
    """Mesh axes that it runs along."""
    before: Array
    after: Array
    message_bytes: int
    """Size as `collectives.predict` takes it."""
    time_ns: int
    """Predicted, whole nanoseconds."""

    def __str__(self) -> str:
        """Such as "all_gather over X: A[I, J_X] -> A[I, J]"."""
        return f"{self.kind} over {''.join(self.axes)}: {self.before} -> {self.after}"


def reshard(
    before: Array, after: Array, sizes: Mapping[str, int], bytes_per_elem: float, mesh: Mesh
) -> tuple[Step, ...]:
    """Collectives that turn one sharding of an array into another, cheap ones first; a slice of what is there is free.

    Partial sums into a split: reduce-scatter; into copies: all-reduce. A mesh axis from one axis of the array to another:
    all-to-all. Away from a split: all-gather. Raises BadShape where the axes of the arrays differ, or partial sums would
    have to come from nowhere.
    """
    if before.dims.keys() != after.dims.keys() or set(after.partial) - set(before.partial):
        raise BadShape(f"{before} cannot become {after}")
    home = {axis: dim for dim, axes in after.dims.items() for axis in axes}
    moves: list[tuple[CollectiveKind, tuple[str, ...], Array]] = []
    now = before

    def move(kind: CollectiveKind, axes: tuple[str, ...], then: Array) -> None:
        nonlocal now
        if axes:
            moves.append((kind, axes, then))
            now = then

    for dim in now.dims:
        into = tuple(axis for axis in now.partial if home.get(axis) == dim)
        left = tuple(axis for axis in now.partial if axis not in into)
        then = replace(now, dims=dict(now.dims) | {dim: now.dims[dim] + into}, partial=left)
        move(CollectiveKind.REDUCE_SCATTER, into, then)
    whole = tuple(axis for axis in now.partial if axis not in after.partial)
    move(CollectiveKind.ALL_REDUCE, whole, replace(now, partial=after.partial))
    for dim, axes in before.dims.items():
        for target in now.dims:
            going = tuple(axis for axis in axes if home.get(axis) == target != dim)
            stay = tuple(axis for axis in now.dims[dim] if axis not in going)
            then = replace(now, dims=dict(now.dims) | {dim: stay, target: now.dims[target] + going})
            move(CollectiveKind.ALL_TO_ALL, going, then)
    for dim in now.dims:
        gone = tuple(axis for axis in now.dims[dim] if axis not in home)
        move(CollectiveKind.ALL_GATHER, gone, now.split(dim, tuple(a for a in now.dims[dim] if a not in gone)))

    chain = [before, *(then for _, _, then in moves)]
    pairs = zip(moves, chain, strict=False)

    def priced(kind: CollectiveKind, axes: tuple[str, ...], was: Array, then: Array) -> Step:
        # the message is what a device holds at its largest: before a reduction, after a gather
        held = then if kind is CollectiveKind.ALL_GATHER else was
        message = held.bytes_per_device(sizes, bytes_per_elem, mesh)
        ranks = mesh.ways(axes)
        time_ns = 0 if ranks < 2 else collectives.predict(kind, message, ranks, mesh.fabric(axes)).total_ns
        return Step(kind=kind, axes=axes, before=was, after=then, message_bytes=message, time_ns=time_ns)

    return tuple(priced(kind, axes, was, then) for (kind, axes, then), was in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplication:
    """One way to do a sharded product."""

    steps: tuple[Step, ...]
    """Collectives on operands, then on the result."""
    local: Product
    """What each device multiplies, before the result is reduced and resharded."""
    flops_per_device: int
    t_math_ns: int
    t_comms_ns: int
    """Of the collectives one after the other."""

    @property
    def lower_ns(self) -> int:
        """With arithmetic and communication fully overlapped, as a collective matrix product has them."""
        return max(self.t_math_ns, self.t_comms_ns)

    @property
    def upper_ns(self) -> int:
        """With one after the other."""
        return self.t_math_ns + self.t_comms_ns

    @property
    def compute_bound(self) -> bool:
        """Whether the communication can hide behind the arithmetic."""
        return self.t_comms_ns <= self.t_math_ns


@quantity("sharded_bytes_per_device", "S0")
def sharded_bytes_per_device(*, global_bytes: float, shards: Sequence[int]) -> float:
    """[S0] Bytes that a device holds of an array split over mesh axes of these sizes; axes that only copy it do not count."""
    return global_bytes / prod(shards)


@quantity("sharded_bytes_on_all_devices", "S0")
def sharded_bytes_on_all_devices(*, global_bytes: float, shards: Sequence[int], devices: int) -> float:
    """[S0] Bytes on a whole mesh: the copies along axes that do not split the array are real memory."""
    return global_bytes * devices / prod(shards)


@quantity("collective_matmul_time_s", "S3")
def collective_matmul_time_s(*, t_math_s: float, t_comms_s: float, devices: int) -> float:
    """[S3] Seconds of a product whose gather or scatter goes round a ring in steps, each beside a part of the product.

    The first hop has nothing to hide behind; of each later one, what is longer than its part of the arithmetic shows.
    """
    if devices < 2:
        return t_math_s
    hop_s = t_comms_s / (devices - 1)
    return t_math_s + hop_s + (devices - 2) * max(0.0, hop_s - t_math_s / devices)


def ways_to_multiply(
    product: Product, sizes: Mapping[str, int], mesh: Mesh, *, peak_flops_per_s: float, bytes_per_elem: float = 2
) -> list[Multiplication]:
    """All sensible ways to do a sharded product, fastest first by the lower, then the upper bound.

    Each mesh axis splits, during the product, one of the axes that it splits in an operand or in the result, or none: so
    that where a contracted axis is split in one operand only, that operand is gathered, or the other one is sliced and
    the result reduced [S3]; where a mesh axis splits different axes of the two (case 4), either is gathered. `sizes` are
    the extents of the arrays' axes; one element size holds for all arrays. The order of mesh axes on one axis of an
    array is not told apart.
    """
    found = {}
    for left, right in _agreed(product):
        partial = tuple(axis for dim in product.contracted for axis in left.dims[dim])
        dims = {dim: left.dims.get(dim) or right.dims.get(dim, ()) for dim in product.result.dims}
        made = Array(name=product.result.name, dims=dims, partial=partial)
        steps = (
            *reshard(product.left, left, sizes, bytes_per_elem, mesh),
            *reshard(product.right, right, sizes, bytes_per_elem, mesh),
            *reshard(made, product.result, sizes, bytes_per_elem, mesh),
        )
        local = Product(left=left, right=right, result=made)
        flops = local_flops(local, sizes, mesh)
        found[str(local)] = Multiplication(
            steps=steps,
            local=local,
            flops_per_device=flops,
            t_math_ns=ns(roofline.t_math_s(flops=flops, peak_flops_per_s=peak_flops_per_s)),
            t_comms_ns=sum(step.time_ns for step in steps),
        )
    return sorted(found.values(), key=lambda way: (way.lower_ns, way.upper_ns))


def local_flops(local: Product, sizes: Mapping[str, int], mesh: Mesh) -> int:
    """[M2] FLOPs of each device: 2 x all extents, each divided by the mesh axes that split it in either operand."""
    splits = {dim: set(local.left.dims.get(dim, ())) | set(local.right.dims.get(dim, ())) for dim in sizes}
    used = local.left.dims.keys() | local.right.dims.keys()
    return 2 * prod(ceil(sizes[dim] / mesh.ways(tuple(splits[dim]))) for dim in used)


def _agreed(product: Product) -> Iterator[tuple[Array, Array]]:
    """Shardings of the operands that multiply without communication: for each mesh axis, what it may split in both."""
    left, right = product.left, product.right
    mine, theirs, wanted = _homes(left), _homes(right), _homes(product.result)
    choices: list[list[tuple[str, str | None, str | None]]] = []
    for axis in dict.fromkeys((*mine, *theirs, *wanted)):
        homes = dict.fromkeys(home for home in (mine.get(axis), theirs.get(axis), wanted.get(axis)) if home)
        choices.append(
            [(axis, home if home in left.dims else None, home if home in right.dims else None) for home in homes]
        )
        if any(home in product.contracted for home in homes) and mine.get(axis) != theirs.get(axis):
            choices[-1].append((axis, None, None))
    for chosen in itertools.product(*choices):
        yield _with(left, {axis: dim for axis, dim, _ in chosen}), _with(right, {axis: dim for axis, _, dim in chosen})


def _homes(array: Array) -> dict[str, str]:
    return {axis: dim for dim, axes in array.dims.items() for axis in axes}


def _with(array: Array, homes: Mapping[str, str | None]) -> Array:
    """The array split as told, axes that it had before in their order."""
    dims = {dim: tuple(axis for axis, home in homes.items() if home == dim) for dim in array.dims}
    return replace(array, dims=dims)

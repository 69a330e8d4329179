"""How long a collective must take at its size on the links between its ranks.

Sizes are S of nccl-tests: the whole output of an all-gather, the whole input of a reduce-scatter, one rank's send
buffer of an all-to-all, else the buffer. Bandwidths are nominal. Behind switches the latency is that of NCCL's ring
with protocol LL [N3], its smallest, and adds to the transfer; on a torus the longer of hops and transfer counts [T3].
That is a lower bound of a ring; trees, reduction in the network, phases one after the other and NCCL's protocols are asked
for by name.
Formula codes are those of the theory reference.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Literal

from tracegap.models import nccl
from tracegap.models.errors import NoFormula
from tracegap.models.hardware import Chip
from tracegap.models.ops import CollectiveKind
from tracegap.models.torus import HOP_LATENCY_S, Axis, all_to_all_s, busiest_link_bytes
from tracegap.models.units import US_PER_S, human, ns

_ROOTED = {CollectiveKind.GATHER, CollectiveKind.SCATTER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links between the ranks of a group. Rates are of one device in one direction, bytes a second."""

    shape: str
    """What joins the devices of a domain, for people."""
    egress_bytes_per_s: float
    """Over all links inside its domain."""
    pair_bytes_per_s: float
    """To one other device of its domain: all of it behind a switch, one link or a few on a mesh or torus."""
    latency: Literal["nccl", "ici"]
    """Whose latency counts."""
    medium: Literal["nvlink", "pci"] = "nvlink"
    """What a step inside a domain goes over, by NCCL's classes of latency."""
    domain_ranks: int | None = None
    """Ranks of the group in one domain (the most, where they differ); None: all."""
    fewest_ranks: int | None = None
    """Ranks of the domain that has fewest, whose share of the network gates; None: as many as the others."""
    domains: int = 1
    """Domains that the group spans."""
    network_bytes_per_s: float | None = None
    """Between domains; None where there is one domain."""
    axes: tuple[Axis, ...] = ()
    """Axes of the torus that the group spans; none: not a torus, or of unknown shape."""

    @classmethod
    def switch(cls, chip: Chip) -> "Fabric":
        """One scale-up domain: a switch, a full mesh, where a pair has its own links only, or ICI of unknown shape.

        Cards without such links go over PCIe. Raises NoFormula where the catalogue has no rate for either.
        """
        egress, domain = chip.device_egress_bytes_per_s, chip.scaleup_max_domain
        if egress is None:
            return cls.pcie(chip)
        if chip.scaleup_kind == "ICI":
            pair = chip.device_link_bytes_per_s or egress
            return cls(shape="torus of unknown shape", egress_bytes_per_s=egress, pair_bytes_per_s=pair, latency="ici")
        if domain is not None and "full mesh" in (chip.scaleup_shape or ""):
            pair = egress / (domain - 1)
            return cls(shape="full mesh", egress_bytes_per_s=egress, pair_bytes_per_s=pair, latency="nccl")
        return cls(shape="switch", egress_bytes_per_s=egress, pair_bytes_per_s=egress, latency="nccl")

    @classmethod
    def pcie(cls, chip: Chip) -> "Fabric":
        """Cards of one host without links of their own. Raises NoFormula where the catalogue has no rate."""
        rate = chip.device_pcie_bytes_per_s
        if rate is None:
            raise NoFormula(f"no link rate of {chip.id} in the catalogue")
        return cls(shape="PCIe", egress_bytes_per_s=rate, pair_bytes_per_s=rate, latency="nccl", medium="pci")

    @classmethod
    def tiers(
        cls,
        inner: "Fabric",
        *,
        domain_ranks: int,
        domains: int,
        network_bytes_per_s: float,
        fewest_ranks: int | None = None,
    ) -> "Fabric":
        """Several domains of the inner kind, joined by a network of which each device has its share."""
        return replace(
            inner,
            domain_ranks=domain_ranks,
            fewest_ranks=fewest_ranks if fewest_ranks != domain_ranks else None,
            domains=domains,
            network_bytes_per_s=network_bytes_per_s,
            axes=(),
        )

    @classmethod
    def torus(cls, chip: Chip, axes: Sequence[Axis]) -> "Fabric":
        """The axes of a torus that a group spans. Raises NoFormula where the catalogue has no link rate."""
        link = chip.device_link_bytes_per_s
        if link is None:
            raise NoFormula(f"no link rate of {chip.id} in the catalogue")
        ports = sum(axis.ports for axis in axes)
        ends = {axis.wrap for axis in axes}
        wrap = "partly wrapped" if len(ends) > 1 else "wrapped" if ends == {True} else "not wrapped"
        return cls(
            shape=f"torus {'x'.join(map(_side, axes))}, {wrap}",
            egress_bytes_per_s=ports * link,
            pair_bytes_per_s=link,
            latency="ici",
            axes=tuple(axes),
        )

    def __str__(self) -> str:
        """What people should know of it, such as "switch, 450 GB/s"."""
        inside = f"{self.shape}, {human(self.egress_bytes_per_s, 'B/s')}"
        if self.network_bytes_per_s is None:
            return inside
        network = human(self.network_bytes_per_s, "B/s")
        fewest = "" if self.fewest_ranks is None else f"{self.fewest_ranks} to "
        return f"{self.domains} domains of {fewest}{self.domain_ranks} ({inside}), network {network} a device"


def _side(axis: Axis) -> str:
    return str(axis.size) if axis.stride == 1 else f"{axis.size} (each {axis.stride} apart)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Time of one collective, whole nanoseconds."""

    latency_ns: int
    """With nothing to transfer."""
    bandwidth_ns: int
    """Of the transfer alone."""
    total_ns: int
    """Their sum behind switches, the longer on a torus."""
    model: str
    """The fabric assumed, for people."""


Algorithm = Literal["ring", "tree", "in_network", "hierarchical"]


def predict(
    kind: CollectiveKind,
    message_bytes: int,
    ranks: int,
    fabric: Fabric,
    *,
    algorithm: Algorithm = "ring",
    protocol: nccl.Protocol | None = None,
) -> Prediction:
    """Time of a collective over so many ranks. A single rank has nothing to send.

    Without a protocol a lower bound: all of the bandwidth and the smallest latency. With one, its share of the bandwidth
    and its latency. Behind switches there are, beside the ring (for all-to-all and pairs: each to each), the `tree` of an
    all-reduce; `in_network`, where switches reduce and copy (NVLS, SHARP: [G4]); and `hierarchical`, a ring inside each
    domain, one between the domains and again one inside, one after the other where the ring overlaps them; also for
    slices of a torus with a network between them.

    Raises NoFormula where an algorithm does not do the kind, or not on such a fabric.
    """
    if ranks < 2:
        return Prediction(latency_ns=0, bandwidth_ns=0, total_ns=0, model="one rank")
    if fabric.latency == "ici" and (algorithm not in ("ring", "hierarchical") or protocol is not None):
        raise NoFormula(f"{protocol or algorithm} on a torus: algorithms and protocols of NCCL need switches")
    latency_us, per_byte_s = _ALGORITHMS[algorithm](kind, ranks, fabric, protocol or "ll")
    share = 1 if protocol is None else nccl.PROTOCOL_SHARE[protocol]
    latency_ns, bandwidth_ns = ns(latency_us / US_PER_S), ns(per_byte_s * message_bytes / share)
    total_ns = max(latency_ns, bandwidth_ns) if fabric.latency == "ici" else latency_ns + bandwidth_ns
    asked = [str(word) for word in (algorithm if algorithm != "ring" else None, protocol) if word is not None]
    model = ", ".join([str(fabric), *asked])
    return Prediction(latency_ns=latency_ns, bandwidth_ns=bandwidth_ns, total_ns=total_ns, model=model)


def latency_bound_below_bytes(kind: CollectiveKind, ranks: int, fabric: Fabric) -> float:
    """Message below which latency takes longer than the transfer [T3, N5]; there half of the bandwidth is reached."""
    size = 1 << 50
    prediction = predict(kind, size, ranks, fabric)
    return size * prediction.latency_ns / max(prediction.bandwidth_ns, 1)


def predict_uneven(sent_bytes: Sequence[Sequence[int]], fabric: Fabric) -> Prediction:
    """Time of an all-to-all in which rank i sends `sent_bytes[i][j]` to rank j; what it keeps does not count.

    The busiest link gates: a rank's or a pair's inside a domain, a rank's network, or a link of the torus when every
    message takes the shortest way, one axis after the other. Ranks fill the domains, and the torus its axes, in order.
    """
    ranks = len(sent_bytes)
    if any(len(row) != ranks for row in sent_bytes):
        raise NoFormula("an uneven all-to-all needs a row and a column for each rank")
    off = [[0 if i == j else size for j, size in enumerate(row)] for i, row in enumerate(sent_bytes)]
    even = predict(CollectiveKind.ALL_TO_ALL, 0, ranks, fabric)
    if ranks < 2:
        return even
    if fabric.axes:
        seconds = busiest_link_bytes(off, fabric.axes) / fabric.pair_bytes_per_s
    else:
        domain = fabric.domain_ranks or ranks
        inside = [
            [size if i // domain == j // domain else 0 for j, size in enumerate(row)] for i, row in enumerate(off)
        ]
        across = [[size - near for size, near in zip(*rows, strict=True)] for rows in zip(off, inside, strict=True)]
        seconds = max(
            _busiest_rank(inside) / fabric.egress_bytes_per_s,
            max(map(max, inside)) / fabric.pair_bytes_per_s,
            _busiest_rank(across) / (fabric.network_bytes_per_s or float("inf")),
        )
    bandwidth_ns = ns(seconds)
    total_ns = max(even.latency_ns, bandwidth_ns) if fabric.latency == "ici" else even.latency_ns + bandwidth_ns
    return replace(even, bandwidth_ns=bandwidth_ns, total_ns=total_ns)


def _busiest_rank(sent_bytes: Sequence[Sequence[int]]) -> int:
    """Bytes that one rank sends or receives at most."""
    return max(*map(sum, sent_bytes), *map(sum, zip(*sent_bytes, strict=True)))


Terms = tuple[float, float]
"""Latency in microseconds, and seconds a message byte."""


def _ring(kind: CollectiveKind, ranks: int, fabric: Fabric, protocol: nccl.Protocol) -> Terms:
    """[N3] With one rank a domain NCCL takes the network latency of its tree. On a torus: T1 to T9, all axes at once."""
    if fabric.latency == "ici":
        per_byte_s = (_torus_s if fabric.axes else _tiers_s)(kind, ranks, fabric)
        return HOP_LATENCY_S * US_PER_S * _hops(kind, fabric), per_byte_s
    across = (nccl.TREE_STEP_US if fabric.domain_ranks == 1 else nccl.RING_STEP_US)["network"]
    latency_us = nccl.nccl_latency_us(
        collective=kind,
        algo="ring",
        proto=protocol,
        ranks=ranks,
        nodes=fabric.domains,
        base_us=nccl.RING_BASE_US[protocol],
        intra_us=nccl.RING_STEP_US[fabric.medium][protocol],
        inter_us=across[protocol],
    )
    return latency_us, _tiers_s(kind, ranks, fabric)


def _tree(kind: CollectiveKind, ranks: int, fabric: Fabric, protocol: nccl.Protocol) -> Terms:
    """[N3, N4] Each rank sends the buffer up and down, whole."""
    latency_us = nccl.nccl_latency_us(
        collective=kind,
        algo="tree",
        proto=protocol,
        ranks=ranks,
        nodes=fabric.domains,
        base_us=nccl.TREE_BASE_US[protocol],
        intra_us=nccl.TREE_STEP_US[fabric.medium][protocol],
        inter_us=nccl.TREE_STEP_US["network"][protocol],
    )
    return latency_us, 2 * _tiers_s(CollectiveKind.BROADCAST, ranks, fabric)


def _in_network(kind: CollectiveKind, ranks: int, fabric: Fabric, _: nccl.Protocol) -> Terms:
    """[G4, N3] An all-reduce sends the buffer to the switch once; gathers and scatters receive what a ring receives."""
    one_way = {
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.BROADCAST,
        CollectiveKind.REDUCE,
    }
    if kind not in one_way | nccl.REDUCE_AND_SPREAD or fabric.medium != "nvlink":
        raise NoFormula(f"{kind} on {fabric.shape}: switches reduce and copy only, and those of NVLink or the network")
    latency_us = nccl.NVLS_US["nvlink"] + (nccl.NVLS_US["network"] if fabric.domains > 1 else 0)
    return latency_us, _tiers_s(kind if kind in one_way else CollectiveKind.BROADCAST, ranks, fabric)


def _hierarchical(kind: CollectiveKind, ranks: int, fabric: Fabric, protocol: nccl.Protocol) -> Terms:
    """[G5, section 6] Phases inside the domains, each over all ranks' links, and between them, on each rank's network."""
    phases = {
        CollectiveKind.ALL_REDUCE: (
            CollectiveKind.REDUCE_SCATTER,
            CollectiveKind.ALL_REDUCE,
            CollectiveKind.ALL_GATHER,
        ),
        CollectiveKind.ALL_GATHER: (None, CollectiveKind.ALL_GATHER, CollectiveKind.ALL_GATHER),
        CollectiveKind.REDUCE_SCATTER: (CollectiveKind.REDUCE_SCATTER, CollectiveKind.REDUCE_SCATTER, None),
        CollectiveKind.ALL_TO_ALL: (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_TO_ALL, None),
    }.get(kind)
    inside, network = fabric.domain_ranks, fabric.network_bytes_per_s
    if phases is None or inside is None or network is None or inside * fabric.domains != ranks:
        raise NoFormula(f"{kind} on {fabric}: phases need several domains of equal size, and a kind that splits")
    inner = replace(fabric, domain_ranks=None, fewest_ranks=None, domains=1, network_bytes_per_s=None)
    rail = replace(fabric, domain_ranks=1, fewest_ranks=None)
    part = 1 if kind is CollectiveKind.ALL_TO_ALL else 1 / inside
    latency_us = per_byte_s = 0.0
    for phase, where, size, share in zip(
        phases, (inner, rail, inner), (inside, fabric.domains, inside), (1, part, 1), strict=True
    ):
        if phase is not None and size > 1:
            phase_us, phase_s = _ring(phase, size, where, protocol)
            latency_us, per_byte_s = latency_us + phase_us, per_byte_s + share * phase_s
    return latency_us, per_byte_s


_ALGORITHMS: dict[Algorithm, Callable[[CollectiveKind, int, Fabric, nccl.Protocol], Terms]] = {
    "ring": _ring,
    "tree": _tree,
    "in_network": _in_network,
    "hierarchical": _hierarchical,
}


def _tiers_s(kind: CollectiveKind, ranks: int, fabric: Fabric) -> float:
    """Seconds a message byte [G2, G3, G5, G6]: the slower of the links inside a domain and the network between them.

    Of uneven domains the largest gates inside, and the smallest between: it has the fewest shares of the network for all
    that comes from the other ranks.
    """
    inside = ranks if fabric.domain_ranks is None else fabric.domain_ranks
    # A device of a mesh reaches each other rank over the links between the two only.
    device = min(fabric.egress_bytes_per_s, max(1, inside - 1) * fabric.pair_bytes_per_s)
    network = fabric.network_bytes_per_s
    inner = _level(kind, inside, ranks, device=device, pair=fabric.pair_bytes_per_s, child=device)
    if network is None:
        return inner
    fewest, domains = fabric.fewest_ranks or inside, float(fabric.domains)
    if fabric.fewest_ranks is not None:
        domains = ranks / fewest
    return max(inner, _level(kind, domains, domains, device=network, pair=network, child=fewest * network))


def _level(kind: CollectiveKind, children: float, peers: float, *, device: float, pair: float, child: float) -> float:
    """Seconds a message byte on one level of `children`, for the busiest of them.

    `device` and `child` are the egress of one rank and of one child (the same inside a domain), `pair` that of a rank
    to one other; `peers` are the parts into which all-to-all and rooted kinds split a message at this level.
    """
    if children < 2:
        return 0.0
    if kind in nccl.PAIRWISE:
        return 1 / pair
    if kind is CollectiveKind.ALL_TO_ALL:
        return (children - 1) / peers / device
    if kind in _ROOTED:
        return (children - 1) / peers / child
    return nccl.bus_factor(kind, children) / child


def _torus_s(kind: CollectiveKind, ranks: int, fabric: Fabric) -> float:
    """Seconds a message byte [T1, T2, T4, T6 to T9], all axes at once."""
    if kind in nccl.PAIRWISE:
        return max(axis.stride for axis in fabric.axes) / fabric.pair_bytes_per_s
    if kind is CollectiveKind.ALL_TO_ALL:
        return all_to_all_s(ranks, fabric.axes, fabric.pair_bytes_per_s)
    return nccl.bus_factor(kind, ranks) / fabric.egress_bytes_per_s


def _hops(kind: CollectiveKind, fabric: Fabric) -> float:
    """Links in a row that the last byte crosses; at least one where the shape is not known."""
    across = sum(axis.hops for axis in fabric.axes) or 1
    if kind in nccl.PAIRWISE:
        return max((axis.stride for axis in fabric.axes), default=1)
    return across * (2 if kind in nccl.REDUCE_AND_SPREAD else 1)


def fabric_for(
    chip: Chip,
    group_ranks: Sequence[int],
    ranks_per_domain: int | None = None,
    torus: Sequence[int] | None = None,
    *,
    wrap: Sequence[bool] | None = None,
    network_bytes_per_s: float | None = None,
) -> Fabric:
    """The fabric between the ranks of a group, from where they sit.

    Ranks fill scale-up domains of `ranks_per_domain` in order (by default the torus, else the largest domain that the
    chip can have), and a `torus` of that many chips an axis with the first axis fastest, as JAX numbers its devices.
    Where `wrap` is not given, axes wrap as the vendor's slices of that shape do. `network_bytes_per_s` is a device's
    share of the network, by default that of the catalogue. On a torus of unknown shape only a device's egress is a
    bound.

    Raises NoFormula with the reason where a rate or the placement is unknown.
    """
    if not group_ranks:
        raise NoFormula("a group without ranks")
    per_chip = chip.trace_devices_per_package
    largest = None if chip.scaleup_max_domain is None else chip.scaleup_max_domain * per_chip
    shape = tuple(torus) if torus is not None and chip.scaleup_kind == "ICI" else None
    slice_ranks = None if shape is None else prod(shape) * per_chip
    domain = ranks_per_domain or slice_ranks or largest or max(group_ranks) + 1
    placed = Counter(rank // domain for rank in group_ranks)
    if len(placed) == 1 and shape is not None:
        wraps = slice_wraps(chip, shape) if wrap is None else tuple(wrap)
        return Fabric.torus(chip, _spanned_axes([rank % domain // per_chip for rank in group_ranks], shape, wraps))
    bridged = chip.scaleup_shape == "bridge" and largest is not None and max(placed.values()) > largest
    inner = Fabric.pcie(chip) if bridged else Fabric.switch(chip)
    if len(placed) == 1:
        return inner
    network = network_bytes_per_s or chip.device_scaleout_bytes_per_s
    if network is None:
        raise NoFormula(
            f"the network of {chip.id} depends on the host, and nothing says its rate: say it with --network"
        )
    return Fabric.tiers(
        inner,
        domain_ranks=max(placed.values()),
        fewest_ranks=min(placed.values()),
        domains=len(placed),
        network_bytes_per_s=network,
    )


def slice_wraps(chip: Chip, shape: Sequence[int]) -> tuple[bool, ...]:
    """Which axes of a slice wrap around: in two dimensions those as long as a pod, in three all of whole 4^3 cubes."""
    pod = [int(side) for side in (chip.scaleup_shape or "").rpartition(" ")[2].split("x") if side.isdigit()]
    if len(shape) == 3:
        return (all(side % 4 == 0 for side in shape),) * 3
    return tuple(side in pod for side in shape)


def _spanned_axes(chips: Sequence[int], shape: tuple[int, ...], wraps: tuple[bool, ...]) -> list[Axis]:
    """The axes along which the chips differ; one that is not spanned whole does not wrap.

    Where a group has every second or n-th chip of an axis, the groups of the others are taken to send at the same time, as
    the ranks of a mesh do. Chips that are unevenly far apart have the share of the nearest two.
    """
    if len(shape) != len(wraps) or max(chips) >= prod(shape):
        raise NoFormula(f"a torus {'x'.join(map(str, shape))} does not hold chip {max(chips)}, or wrap does not fit it")
    axes: list[Axis] = []
    stride = 1
    for side, wrapped in zip(shape, wraps, strict=True):
        places = sorted({chip // stride % side for chip in chips})
        gaps = {after - before for before, after in pairwise(places)}
        apart = min(gaps, default=1)
        whole = len(gaps) <= 1 and len(places) * apart == side
        axes.append(Axis(size=len(places), wrap=wrapped and whole, stride=apart))
        stride *= side
    spanned = [axis for axis in axes if axis.size > 1]
    if not spanned:
        raise NoFormula("all ranks of the group are on one chip, whose inner links are not in the catalogue")
    return spanned

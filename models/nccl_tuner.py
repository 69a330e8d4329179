"""Which algorithm and protocol NCCL takes at a size, by its own model of time [N3, N4], and where one beats another.

NCCL predicts each enabled pair and takes the fastest. Constants are those of the theory reference (NCCL's tuning.cc); they
differ by release. Left out: the correction of trees of middle sizes, which makes them up to 2.5 times slower than said
here, the caps of trees over several nodes, CollNet, PAT and NVLS trees. RCCL has constants of its own.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from tracegap.models import nccl
from tracegap.models.errors import NoFormula
from tracegap.models.hardware import Chip
from tracegap.models.ops import CollectiveKind
from tracegap.models.units import GB

Generation = Literal["volta", "ampere", "hopper", "blackwell"]
Algorithm = Literal["ring", "tree", "nvls"]

_GENERATION_OF_MAJOR: dict[str, Generation] = {"7": "volta", "8": "ampere", "9": "hopper", "10": "blackwell"}
NVLINK_GBPS: dict[Generation, float] = {"volta": 20.0, "ampere": 20.0, "hopper": 20.6, "blackwell": 40.1}
"""[N4] What NCCL takes one NVLink to carry, 10^9 bytes a second."""
_LL_MAX_GBPS: dict[Generation, float] = {"volta": 39.0, "ampere": 87.7, "hopper": 141.0, "blackwell": 282.0}
_LL_MAX_ACROSS_GBPS = {"intel": (39.0, 20.4), "amd": (22.5, 19.0)}
_RING_LL128_CAP_GBPS: dict[Generation, float] = {"volta": 20.0, "ampere": 20.0, "hopper": 36.7, "blackwell": 40.0}
_TREE_CAP_GBPS: dict[Generation, float] = {"volta": 26.5, "ampere": 24.0, "hopper": 38.7, "blackwell": 70.0}
_TREE_LL128_CAP_GBPS: dict[Generation, float] = {"volta": 20.0, "ampere": 20.0, "hopper": 36.7, "blackwell": 55.6}
_NVLS_SHARE: dict[Generation, float] = {"hopper": 0.85, "blackwell": 0.74}


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """What NCCL knows of the ranks and the links between them."""

    generation: Generation
    ranks: int
    nodes: int = 1
    channels: int
    bw_per_channel_gbps: float
    """Inside a node, 10^9 bytes a second; NCCL takes it for two nodes as well."""
    network_bw_per_channel_gbps: float | None = None
    """From three nodes on."""
    cpu: Literal["intel", "amd"] = "intel"
    nvls: bool = False
    """Whether NVSwitches reduce."""

    @classmethod
    def of(cls, chip: Chip, ranks: int, nodes: int = 1, *, nvls: bool = False) -> "Communicator":
        """A part with NVLink, one channel a link; raises NoFormula for others.

        The network of more than two nodes is the catalogue's share of each device, as many channels in all.
        """
        generation = _GENERATION_OF_MAJOR.get((chip.compute_capability or "").partition(".")[0])
        if generation is None or chip.scaleup_kind != "NVLink" or not chip.scaleup_links:
            raise NoFormula(f"{chip.id} is no part whose NVLinks NCCL's model knows")
        share = chip.device_scaleout_bytes_per_s
        return cls(
            generation=generation,
            ranks=ranks,
            nodes=nodes,
            channels=chip.scaleup_links,
            bw_per_channel_gbps=NVLINK_GBPS[generation],
            network_bw_per_channel_gbps=None if share is None else share * ranks / nodes / GB / chip.scaleup_links,
            nvls=nvls,
        )

    @property
    def channel_gbps(self) -> float:
        """Bandwidth that counts for so many nodes. Raises NoFormula where the network's is not known."""
        if self.nodes <= 2:
            return self.bw_per_channel_gbps
        if self.network_bw_per_channel_gbps is None:
            raise NoFormula(f"{self.nodes} nodes need the bandwidth of the network")
        return self.network_bw_per_channel_gbps


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An algorithm with a protocol, and NCCL's time for it."""

    algorithm: Algorithm
    protocol: nccl.Protocol
    time_us: float

    def __str__(self) -> str:
        """Such as "ring/ll128"."""
        return f"{self.algorithm}/{self.protocol}"


def options(kind: CollectiveKind, message_bytes: float, group: Communicator) -> list[Choice]:
    """Every pair that does the kind, fastest first."""
    pairs: list[tuple[Algorithm, nccl.Protocol]] = [("ring", "ll"), ("ring", "ll128"), ("ring", "simple")]
    if kind is CollectiveKind.ALL_REDUCE:
        pairs += [("tree", "ll"), ("tree", "ll128"), ("tree", "simple")]
    if group.nvls and kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        pairs.append(("nvls", "simple"))
    choices = [Choice(algorithm=a, protocol=p, time_us=time_us(kind, a, p, message_bytes, group)) for a, p in pairs]
    return sorted(choices, key=lambda choice: choice.time_us)


def choose(kind: CollectiveKind, message_bytes: float, group: Communicator) -> Choice:
    """What NCCL takes at this size."""
    return options(kind, message_bytes, group)[0]


def time_us(
    kind: CollectiveKind, algorithm: Algorithm, protocol: nccl.Protocol, message_bytes: float, group: Communicator
) -> float:
    """NCCL's time of one pair, microseconds [N4]; raises NoFormula where its model has none."""
    if algorithm == "nvls":
        return _nvls_us(kind, message_bytes, group)
    ring = algorithm == "ring"
    steps = nccl.RING_STEP_US if ring else nccl.TREE_STEP_US
    # with one rank a node, NCCL takes the tree's network latency for every algorithm
    across = nccl.TREE_STEP_US if group.nodes == group.ranks > 1 else steps
    ll_max = _LL_MAX_GBPS[group.generation] if group.nodes == 1 else _LL_MAX_ACROSS_GBPS[group.cpu][group.nodes > 2]
    caps = _RING_LL128_CAP_GBPS if ring else _TREE_LL128_CAP_GBPS if protocol == "ll128" else _TREE_CAP_GBPS
    return nccl.nccl_time_us(
        collective=kind,
        algo=algorithm,
        proto=protocol,
        bytes=message_bytes,
        ranks=group.ranks,
        nodes=group.nodes,
        channels=group.channels,
        bw_per_channel_gbps=group.channel_gbps,
        base_us=(nccl.RING_BASE_US if ring else nccl.TREE_BASE_US)[protocol],
        intra_us=steps["nvlink"][protocol],
        inter_us=across["network"][protocol],
        perch_max_gbps=caps[group.generation],
        ll_max_gbps=ll_max,
    )


def _nvls_us(kind: CollectiveKind, message_bytes: float, group: Communicator) -> float:
    """Reduction and copies inside the switch: an all-reduce sends its data once."""
    share = _NVLS_SHARE.get(group.generation)
    if share is None:
        raise NoFormula(f"{group.generation} has no reduction in its switches")
    return nccl.nccl_time_us(
        collective=kind,
        algo="nvls",
        proto="simple",
        bytes=message_bytes,
        ranks=group.ranks,
        nodes=group.nodes,
        channels=group.channels,
        bw_per_channel_gbps=group.channel_gbps,
        base_us=0,
        intra_us=nccl.NVLS_US["nvlink"],
        inter_us=nccl.NVLS_US["network"],
        nvls_share=share,
    )


def crossovers(kind: CollectiveKind, group: Communicator, *, largest_bytes: int = 1 << 34) -> list[tuple[int, Choice]]:
    """Sizes from which NCCL takes another pair than below, with that pair; the first starts at 1 byte.

    Found between powers of two, then by halving to within a byte.
    """

    def changes(low: int, high: int) -> list[tuple[int, Choice]]:
        after = choose(kind, high, group)
        if str(choose(kind, low, group)) == str(after):
            return []
        middle = (low + high) // 2
        return [(high, after)] if high - low == 1 else changes(low, middle) + changes(middle, high)

    sizes = (1 << i for i in range(largest_bytes.bit_length()))
    return [(1, choose(kind, 1, group)), *(change for pair in pairwise(sizes) for change in changes(*pair))]

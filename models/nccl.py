"""NCCL's and XLA's own models of a collective, and the bandwidths that nccl-tests report.

Formula codes N1 and N3 to N6 are those of the theory reference (nccl-tests PERFORMANCE.md; NCCL tuning.cc; XLA's
speed-of-light model). Latencies are microseconds, as in the sources.
"""

from math import ceil, log2
from typing import Literal

from tracegap.models.errors import NoFormula
from tracegap.models.ops import CollectiveKind
from tracegap.models.quantities import quantity
from tracegap.models.units import GB, US_PER_S

Protocol = Literal["ll", "ll128", "simple"]
Medium = Literal["nvlink", "pci", "network"]

PROTOCOL_SHARE = {"ll": 0.5, "ll128": 120 / 128, "simple": 1.0}
"""Of the bandwidth that a protocol leaves to data: LL has a flag of 4 bytes for each 4, LL128 one of 8 for each 120."""
RING_BASE_US = {"ll": 6.6, "ll128": 14.0, "simple": 8.4}
"""[N3] Fixed latency of a ring, by protocol."""
RING_STEP_US = {
    "nvlink": {"ll": 0.6, "ll128": 1.9, "simple": 3.4},
    "pci": {"ll": 1.0, "ll128": 2.5, "simple": 5.7},
    "network": {"ll": 2.7, "ll128": 4.0, "simple": 14.0},
}
"""[N3] Latency of a ring step, by what it goes over and protocol."""
TREE_BASE_US = {"ll": 6.8, "ll128": 14.0, "simple": 8.4}
"""[N3] Fixed latency of a tree, by protocol."""
TREE_STEP_US = {
    "nvlink": {"ll": 0.6, "ll128": 1.25, "simple": 4.0},
    "pci": {"ll": 1.0, "ll128": 1.9, "simple": 4.0},
    "network": {"ll": 5.0, "ll128": 8.5, "simple": 14.0},
}
"""[N3] Latency of a tree step; NCCL takes that over the network for every algorithm with one rank a node."""
NVLS_US = {"nvlink": 25.0, "network": 18.0}
"""[N3] Latency of reduction inside NVSwitches, and of the network behind it."""
NET_OVERHEAD_US = 1.0
"""[N3] Cost of posting to the network on Intel and Arm hosts; three times that with protocol Simple."""

_GATHERED = {CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER}
_WHOLE = {CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.GATHER, CollectiveKind.SCATTER}
"""Collectives whose size S is n times one rank's part."""
REDUCE_AND_SPREAD = {CollectiveKind.ALL_REDUCE, CollectiveKind.BARRIER}
"""Those that go round a ring twice; a barrier is an all-reduce of next to nothing."""
_SPLIT = _WHOLE | {CollectiveKind.ALL_TO_ALL}
PAIRWISE = {CollectiveKind.SEND, CollectiveKind.RECV, CollectiveKind.SEND_RECV, CollectiveKind.PERMUTE}
"""Those in which a rank sends to one other."""


def bus_factor(kind: CollectiveKind, ranks: float) -> float:
    """[N1] Bus bandwidth over algorithm bandwidth: bytes on the busiest link over S, the size as nccl-tests say it.

    Not a whole number of ranks: those of a group over those of its smallest part.
    """
    if kind in REDUCE_AND_SPREAD:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in _SPLIT else 1.0


def ring_steps(kind: CollectiveKind, ranks: int) -> int:
    """[N3] Steps of a ring over so many ranks (or nodes, for the steps that cross the network).

    Messages between two are sent at once, those of an all-to-all all at once: one step (theory, section 5: one hop).
    """
    if kind in PAIRWISE or kind is CollectiveKind.ALL_TO_ALL:
        return min(1, ranks - 1)
    return (2 if kind in REDUCE_AND_SPREAD else 1) * (ranks - 1)


@quantity("effective_bytes_per_s", "N5")
def effective_bytes_per_s(*, bytes: float, latency_s: float, bytes_per_s: float) -> float:  # noqa: A002
    """[N5] Rate at a size: half of the full one where bytes = latency x rate, the half-bandwidth size."""
    return bytes / (latency_s + bytes / bytes_per_s)


@quantity("one_shot_all_reduce_time_us", "N6")
def one_shot_all_reduce_time_us(
    *,
    bytes: float,  # noqa: A002 - name of the input
    ranks: int,
    gbytes_per_s: float,
    launch_us: float = 5.0,
    barrier_us: float = 1.5,
) -> float:
    """[N6] All-reduce in one node in which each rank reads the buffers of all others; XLA does so up to 256 KB."""
    return launch_us + (ranks - 1) * bytes / (gbytes_per_s * GB) * US_PER_S + barrier_us


@quantity("two_shot_all_reduce_time_us", "N6")
def two_shot_all_reduce_time_us(
    *,
    bytes: float,  # noqa: A002 - name of the input
    ranks: int,
    gbytes_per_s: float,
    launch_us: float = 5.0,
    barrier_us: float = 1.5,
) -> float:
    """[N6] All-reduce in one node as reduce-scatter and all-gather over direct links; XLA does so up to 4 MB."""
    half_us = (ranks - 1) / ranks * bytes / (gbytes_per_s * GB) * US_PER_S + barrier_us
    return launch_us + 2 * half_us


_OTHER_NAMES = {
    "alltoallv": CollectiveKind.ALL_TO_ALL,
    "bcast": CollectiveKind.BROADCAST,
    "collectivepermute": CollectiveKind.PERMUTE,
    "ppermute": CollectiveKind.PERMUTE,
    "p2p": CollectiveKind.SEND_RECV,
}
_KINDS = {kind.replace("_", ""): kind for kind in CollectiveKind} | _OTHER_NAMES


def _kind(name: str) -> CollectiveKind:
    """The kind of a name, with or without `_`, `-`, spaces and capitals: "all_reduce", "AllReduce", "all-reduce"."""
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    if plain not in _KINDS:
        raise NoFormula(f"collective {name}: known are {', '.join(CollectiveKind)}")
    return _KINDS[plain]


@quantity("busbw_bytes_per_s", "N1")
def busbw_bytes_per_s(
    *,
    collective: str,
    ranks: int,
    time_s: float,
    bytes: float | None = None,  # noqa: A002 - name of the input
    total_bytes: float | None = None,
    per_rank_bytes: float | None = None,
) -> float:
    """[N1] Bus bandwidth from the size S of nccl-tests, from the whole array over all ranks, or from one rank's part.

    Whole and part: the output of an all-gather and what each rank sends; all send buffers of an all-to-all and one of
    them; for an all-reduce or broadcast both are the buffer.
    """
    kind = _kind(collective)
    if bytes is not None:
        size = bytes
    elif total_bytes is not None:
        size = total_bytes / ranks if kind is CollectiveKind.ALL_TO_ALL else total_bytes
    elif per_rank_bytes is not None:
        size = per_rank_bytes * ranks if kind in _WHOLE else per_rank_bytes
    else:
        raise NoFormula("busbw_bytes_per_s needs bytes, total_bytes or per_rank_bytes")
    return size / time_s * bus_factor(kind, ranks)


@quantity("nccl_latency_us", "N3")
def nccl_latency_us(
    *,
    collective: str,
    algo: str,
    proto: str,
    ranks: int,
    nodes: int,
    base_us: float,
    intra_us: float,
    inter_us: float = 0,
    net_overhead_us: float = NET_OVERHEAD_US,
) -> float:
    """[N3] Latency by algorithm from its base and its steps inside a node and over the network.

    `net_overhead_us` is the host's cost of posting to the network; a ring step inside a node is never shorter.
    """
    kind = _kind(collective)
    overhead_us = 0 if nodes == 1 else net_overhead_us * (3 if proto.lower() == "simple" else 1)
    match algo.lower():
        case "ring":
            network_steps = ring_steps(kind, nodes)
            inner_steps = ring_steps(kind, ranks) - network_steps
            return base_us + inner_steps * max(intra_us, overhead_us) + network_steps * inter_us
        case "tree" if kind is CollectiveKind.ALL_REDUCE:
            return base_us + 2 * ((ranks / nodes - 1) * intra_us + log2(nodes) * inter_us)
        case "nvls":
            return intra_us + (inter_us if nodes > 1 else 0)
        case "pat":
            return base_us + log2(nodes) * inter_us / 3.5 + 2.8 * ranks
        case _:
            raise NoFormula(f"latency of {kind} by {algo}: known are ring, nvls, pat, and tree for an all-reduce")


@quantity("nccl_time_us", "N4")
def nccl_time_us(
    *,
    collective: str,
    algo: str,
    proto: str,
    bytes: float,  # noqa: A002 - name of the input
    ranks: int,
    nodes: int,
    channels: int,
    bw_per_channel_gbps: float,
    base_us: float,
    intra_us: float,
    inter_us: float = 0,
    net_overhead_us: float = NET_OVERHEAD_US,
    perch_max_gbps: float = float("inf"),
    ll_max_gbps: float = float("inf"),
    nvls_share: float = 0.85,
) -> float:
    """[N4] Latency plus size over algorithm bandwidth, as NCCL's tuner has it.

    `perch_max_gbps` caps the bus bandwidth of a channel, where the algorithm and protocol have such a cap, and
    `ll_max_gbps` that of protocol LL; both default to no cap. `nvls_share` is what NVLS keeps of the links: 0.85 on
    Hopper, 0.74 on Blackwell. All rates are 10^9 bytes a second.
    """
    kind, algo, proto = _kind(collective), algo.lower(), proto.lower()
    reduces = kind is CollectiveKind.ALL_REDUCE
    if (algo, reduces) == ("pat", True) or (
        algo in ("nvls", "pat") and kind not in _GATHERED | {CollectiveKind.ALL_REDUCE}
    ):
        raise NoFormula(f"{kind} by {algo}: NVLS does all-reduce, all-gather and reduce-scatter, PAT the last two")
    latency_us = nccl_latency_us(
        collective=collective,
        algo=algo,
        proto=proto,
        ranks=ranks,
        nodes=nodes,
        base_us=base_us,
        intra_us=intra_us,
        inter_us=inter_us,
        net_overhead_us=net_overhead_us,
    )
    raw_gbps = channels * bw_per_channel_gbps
    cap_gbps = channels * perch_max_gbps
    a_node = ranks / nodes
    in_switch = 2 if reduces else (a_node - 1) / a_node
    busbw_gbps = {
        ("ring", "simple"): raw_gbps,
        ("ring", "ll"): min(0.5 * raw_gbps, ll_max_gbps),
        ("ring", "ll128"): min(0.92 * raw_gbps, cap_gbps),
        ("tree", "simple"): min(0.92 * raw_gbps, cap_gbps),
        ("tree", "ll"): min(min(0.92 * raw_gbps, cap_gbps) / 3.8, ll_max_gbps),
        ("tree", "ll128"): min(0.92 * raw_gbps * (7 / 9 if nodes == 1 else 120 / 128), cap_gbps),
        ("nvls", "simple"): nvls_share * raw_gbps * (channels - 1) / channels * in_switch,
        ("pat", "simple"): 0.75 * raw_gbps,
    }.get((algo, proto))
    if busbw_gbps is None:
        raise NoFormula(
            f"bandwidth of algorithm {algo} with protocol {proto}: known are ring and tree with ll, ll128 and simple, "
            "nvls and pat with simple"
        )
    if algo == "ring":
        algbw_gbps = busbw_gbps / bus_factor(kind, ranks)
        # NCCL finds the Simple ring slower to start across nodes once a chunk fills a line.
        if reduces and proto == "simple" and nodes > 1 and bytes / (channels * ranks) >= 64:
            latency_us *= 1.4
    elif algo == "tree":
        algbw_gbps = busbw_gbps / 2
    else:
        algbw_gbps = busbw_gbps / bus_factor(kind, ranks) if reduces else busbw_gbps
    return latency_us + bytes / (algbw_gbps * GB) * US_PER_S


@quantity("sol_ring_time_us", "N6")
def sol_ring_time_us(
    *,
    collective: str,
    bytes: float,  # noqa: A002 - name of the input
    nodes: int,
    gpus_per_node: int,
    nic_gbytes_per_s: float,
    chunk_bytes: float,
    chunk_prep_us: float,
    rtt_us: float,
    launch_us: float,
    header_overhead: float = 0.025,
) -> float:
    """[N6] XLA's ring over nodes: each step sends a rank's part in chunks, with headers, and waits for a round trip.

    An all-to-all is no ring: a rank's buffer goes in n-1 parts, those for the ranks of other nodes one after the other.
    """
    ranks, kind = nodes * gpus_per_node, _kind(collective)
    exchange = kind is CollectiveKind.ALL_TO_ALL
    part = bytes / max(1, ranks - 1 if exchange else ranks)
    rounds = 2 if kind in REDUCE_AND_SPREAD else 1
    steps = gpus_per_node * (nodes - 1) if exchange else rounds * (ranks - 1) / gpus_per_node
    transfer_us = part / (nic_gbytes_per_s * GB) * (1 + header_overhead) * US_PER_S
    step_us = transfer_us + ceil(part / chunk_bytes) * chunk_prep_us + rtt_us
    return steps * step_us + launch_us

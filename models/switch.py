# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""Collectives behind full-duplex switches: a node of GPUs, and trees of such domains.

Sizes are those of the whole logical array. Formula codes G2 to G6 are those of the theory reference (Scaling Book,
chapter 12).
"""

from collections.abc import Sequence

from tracegap.models.quantities import quantity


@quantity("node_bandwidth_bytes_per_s", "G1")
def node_bandwidth_bytes_per_s(
    *, gpus: int, gpu_egress_bytes_per_s: float, switches: int, ports_per_switch: int, port_bytes_per_s: float
) -> float:
    """[G1] Bytes a second of all GPUs of a node at once: what they can send, or what the switches can carry."""
    return min(gpus * gpu_egress_bytes_per_s, switches * ports_per_switch * port_bytes_per_s)


@quantity("node_egress_bytes_per_s", "G1")
def node_egress_bytes_per_s(*, nics: int, nic_bytes_per_s: float, oversubscription: float = 1) -> float:
    """[G1] Bytes a second that leave a node; a network oversubscribed r to 1 carries an r-th of it."""
    return nics * nic_bytes_per_s / oversubscription


@quantity("hierarchical_all_reduce_time_s", "G5")
def hierarchical_all_reduce_time_s(
    *, global_bytes: float, gpus_per_node: int, nodes: int, gpu_egress_bytes_per_s: float, nic_bytes_per_s: float
) -> float:
    """[G5] Seconds in phases: reduce-scatter in a node, all-reduce of a GPU's part over its rail, all-gather in a node."""
    inside = 2 * global_bytes * (gpus_per_node - 1) / (gpus_per_node * gpu_egress_bytes_per_s)
    across = 2 * global_bytes / gpus_per_node * (nodes - 1) / (nodes * nic_bytes_per_s)
    return inside + across


@quantity("all_gather_time_s", "G2")
def all_gather_time_s(*, global_bytes: float, gpus: int, gpu_egress_bytes_per_s: float) -> float:
    """[G2] Seconds of an all-gather or reduce-scatter inside a node."""
    return global_bytes * (gpus - 1) / (gpus * gpu_egress_bytes_per_s)


@quantity("all_to_all_time_s", "G3")
def all_to_all_time_s(*, global_bytes: float, gpus: int, gpu_egress_bytes_per_s: float) -> float:
    """[G3] Seconds of an all-to-all inside a node: a GPU sends only the part that each peer needs."""
    return global_bytes * (gpus - 1) / (gpus**2 * gpu_egress_bytes_per_s)


@quantity("distinct_destination_fraction", "G3")
def distinct_destination_fraction(*, Z: int, k: int) -> float:
    """[G3] Expected share of Z shards that a token with k experts goes to, independent draws, its own left out."""
    return (1 - ((Z - 1) / Z) ** k) * (Z - 1) / Z


@quantity("all_reduce_speedup_sharp", "G4")
def all_reduce_speedup_sharp(*, gpus: int) -> float:
    """[G4] Gain of reducing in the switch, where each GPU sends the array once, over a ring."""
    return 2 * (gpus - 1) / gpus


@quantity("tree_all_gather_bandwidth_bytes_per_s", "G5")
def tree_all_gather_bandwidth_bytes_per_s(*, levels: Sequence[Sequence[float]]) -> float:
    """[G5] Array bytes a second of an all-gather over (children, egress of a child) levels, the slowest of them."""
    rates = (children * egress / (children - 1) for children, egress in levels if children > 1)
    return min(rates, default=float("inf"))


@quantity("all_gather_time_s", "G5")
def tree_all_gather_time_s(*, global_bytes: float, levels: Sequence[Sequence[float]]) -> float:
    """[G5] Seconds of an all-gather or reduce-scatter over the levels."""
    return global_bytes / tree_all_gather_bandwidth_bytes_per_s(levels=levels)


@quantity("all_to_all_time_s", "G6")
def node_all_to_all_time_s(*, global_bytes: float, nodes: int, node_egress_bytes_per_s: float) -> float:
    """[G6] Seconds of the part between nodes of an all-to-all."""
    return global_bytes * (nodes - 1) / (nodes**2 * node_egress_bytes_per_s)

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models import collectives, hardware
from tracegap.models.collectives import Fabric, fabric_for, predict, slice_wraps
from tracegap.models.errors import NoFormula
from tracegap.models.ops import CollectiveKind as Kind
from tracegap.models.torus import Axis

H100, V5E, V5P, MI300X = (hardware.get(chip_id) for chip_id in ("h100_sxm", "tpu_v5e", "tpu_v5p", "mi300x"))
NODE = Fabric.switch(H100)
TWO_NODES = Fabric.tiers(NODE, domain_ranks=8, domains=2, network_bytes_per_s=50e9)
RING = Fabric.torus(V5E, [Axis(size=16, wrap=True)])
LINE = Fabric.torus(V5E, [Axis(size=16, wrap=False)])
FABRICS = {"switch": NODE, "tiers": TWO_NODES, "ring": RING, "line": LINE}
RANKS = 16


@pytest.mark.parametrize(
    ("kind", "bandwidth_ns", "latency_ns"),
    [
        # 450 MB over 450 GB/s is 1 ms; a ring of 8 has 7 steps of 0.6 us after 6.6 us
        (Kind.ALL_REDUCE, 1_750_000, 15_000),
        (Kind.ALL_GATHER, 875_000, 10_800),
        (Kind.REDUCE_SCATTER, 875_000, 10_800),
        (Kind.ALL_TO_ALL, 875_000, 7_200),  # each to each at once: one step
        (Kind.GATHER, 875_000, 10_800),
        (Kind.SCATTER, 875_000, 10_800),
        (Kind.BROADCAST, 1_000_000, 10_800),
        (Kind.REDUCE, 1_000_000, 10_800),
        (Kind.SEND, 1_000_000, 7_200),
        (Kind.RECV, 1_000_000, 7_200),
        (Kind.SEND_RECV, 1_000_000, 7_200),
        (Kind.PERMUTE, 1_000_000, 7_200),
        (Kind.BARRIER, 1_750_000, 15_000),
    ],
)
def test_a_node_of_eight(kind: Kind, bandwidth_ns: int, latency_ns: int) -> None:
    prediction = predict(kind, 450_000_000, 8, NODE)
    assert (prediction.bandwidth_ns, prediction.latency_ns) == (bandwidth_ns, latency_ns)
    assert prediction.total_ns == bandwidth_ns + latency_ns
    assert prediction.model == "switch, 450 GB/s"


@pytest.mark.parametrize(
    ("kind", "bandwidth_ns", "latency_ns"),
    [
        # 400 MB: half of it between nodes over 8 x 50.0 GB/s takes 500 us; inside, 7/8 over 450 GB/s take 778 us
        (Kind.ALL_GATHER, 777_778, 6_600 + 14 * 1_000 + 2_700),
        (Kind.ALL_REDUCE, 1_555_556, 6_600 + 28 * 1_000 + 2 * 2_700),
        # each rank sends 8/16 of its 400 MB over its own 50.0 GB/s
        (Kind.ALL_TO_ALL, 4_000_000, 6_600 + 2_700),
        (Kind.SEND, 8_000_000, 6_600 + 2_700),
        (Kind.BROADCAST, 1_000_000, 6_600 + 14 * 1_000 + 2_700),
    ],
)
def test_two_nodes(kind: Kind, bandwidth_ns: int, latency_ns: int) -> None:
    prediction = predict(kind, 400_000_000, 16, TWO_NODES)
    assert (prediction.bandwidth_ns, prediction.latency_ns) == (bandwidth_ns, latency_ns)
    assert prediction.model == "2 domains of 8 (switch, 450 GB/s), network 50.0 GB/s a device"


@pytest.mark.parametrize(
    ("fabric", "kind", "message_bytes", "total_ns"),
    [
        # v5e: 50.0 GB/s a link. 16 MB over two links of a ring: 15 of 16 parts over 100 GB/s
        (RING, Kind.ALL_GATHER, 16_000_000, 150_000),
        (LINE, Kind.ALL_GATHER, 16_000_000, 300_000),
        (RING, Kind.ALL_REDUCE, 16_000_000, 300_000),
        (RING, Kind.ALL_TO_ALL, 1_000_000, 40_000),  # 16 MB in all, a quarter of it over 100 GB/s
        (LINE, Kind.ALL_TO_ALL, 1_000_000, 80_000),
        (RING, Kind.PERMUTE, 5_000_000, 100_000),
        (RING, Kind.ALL_GATHER, 1_000, 8_000),  # eight hops
        (LINE, Kind.ALL_GATHER, 1_000, 15_000),
        (LINE, Kind.ALL_REDUCE, 1_000, 30_000),
        (RING, Kind.PERMUTE, 1_000, 1_000),
    ],
)
def test_a_torus_axis(fabric: Fabric, kind: Kind, message_bytes: int, total_ns: int) -> None:
    assert predict(kind, message_bytes, 16, fabric).total_ns == total_ns


def test_two_torus_axes_at_once() -> None:
    square = Fabric.torus(V5P, [Axis(size=4, wrap=True), Axis(size=4, wrap=True)])
    # 15/16 of 64 MB over four links of 100 GB/s; bisection: 64 MB x 4 / (8 x 16 x 100 GB/s)
    assert predict(Kind.ALL_GATHER, 64_000_000, 16, square).total_ns == 150_000
    assert predict(Kind.ALL_TO_ALL, 4_000_000, 16, square).total_ns == 20_000


@pytest.mark.parametrize("fabric", FABRICS.values(), ids=FABRICS)
@given(message_bytes=st.integers(0, 10**12))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(fabric: Fabric, message_bytes: int) -> None:
    all_reduce, scatter, gather = (
        predict(kind, message_bytes, RANKS, fabric).bandwidth_ns
        for kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_GATHER)
    )
    assert abs(all_reduce - scatter - gather) <= 1


@pytest.mark.parametrize("fabric", FABRICS.values(), ids=FABRICS)
@given(kind=st.sampled_from(Kind), message_bytes=st.integers(0, 10**12), more=st.integers(0, 10**12))
def test_more_bytes_are_never_faster(fabric: Fabric, kind: Kind, message_bytes: int, more: int) -> None:
    small, large = (predict(kind, size, RANKS, fabric) for size in (message_bytes, message_bytes + more))
    assert 0 < small.latency_ns == large.latency_ns
    assert max(small.latency_ns, small.bandwidth_ns) <= small.total_ns <= large.total_ns


@given(
    kind=st.sampled_from(Kind),
    message_bytes=st.integers(0, 10**12),
    network=st.floats(1e9, 1e12),
    faster=st.floats(1, 100),
)
def test_more_bandwidth_is_never_slower(kind: Kind, message_bytes: int, network: float, faster: float) -> None:
    slow, fast = (
        Fabric.tiers(NODE, domain_ranks=8, domains=4, network_bytes_per_s=rate) for rate in (network, network * faster)
    )
    assert predict(kind, message_bytes, 32, fast).total_ns <= predict(kind, message_bytes, 32, slow).total_ns


@given(kind=st.sampled_from(Kind), message_bytes=st.integers(0, 10**12), domains=st.integers(2, 64))
def test_a_network_slower_than_the_links_never_helps(kind: Kind, message_bytes: int, domains: int) -> None:
    ranks = 8 * domains
    split = Fabric.tiers(NODE, domain_ranks=8, domains=domains, network_bytes_per_s=50e9)
    assert predict(kind, message_bytes, ranks, NODE).latency_ns <= predict(kind, message_bytes, ranks, split).latency_ns


@pytest.mark.parametrize("kind", [Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.ALL_TO_ALL])
def test_more_ranks_in_a_node_are_never_faster(kind: Kind) -> None:
    times = [predict(kind, 10**8, ranks, NODE).total_ns for ranks in range(1, 9)]
    assert times[0] == 0
    assert all(fewer <= more for fewer, more in pairwise(times))


def test_a_pair_on_a_mesh_has_one_link() -> None:
    mesh = fabric_for(MI300X, range(8))
    assert predict(Kind.SEND, 64_000_000, 2, mesh).bandwidth_ns == 1_000_000
    assert predict(Kind.ALL_GATHER, 64_000_000, 8, mesh).bandwidth_ns == 125_000  # 7/8 over seven links of 64.0 GB/s
    assert predict(Kind.ALL_GATHER, 64_000_000, 2, mesh).bandwidth_ns == 500_000  # half over the one between the two
    assert predict(Kind.BARRIER, 0, 8, mesh).model == "full mesh, 448 GB/s"


@pytest.mark.parametrize(
    ("chip_id", "ranks", "per_domain", "model"),
    [
        ("h100_sxm", range(8), 8, "switch, 450 GB/s"),
        ("h100_sxm", range(8), None, "switch, 450 GB/s"),
        ("h100_sxm", range(16), None, "2 domains of 8 (switch, 450 GB/s), network 50.0 GB/s a device"),
        ("h100_sxm", [0, 8, 16], 8, "3 domains of 1 (switch, 450 GB/s), network 50.0 GB/s a device"),
        ("h100_sxm", [0, 1, 2, 8, 9], 8, "2 domains of 2 to 3 (switch, 450 GB/s), network 50.0 GB/s a device"),
        ("gb200", range(72), None, "switch, 900 GB/s"),
        ("a100_pcie_80", range(2), 8, "switch, 300 GB/s"),
        ("a100_pcie_80", range(8), 8, "PCIe, 32.0 GB/s"),  # a bridge joins two cards, the others meet on PCIe
        ("l4", range(4), None, "PCIe, 32.0 GB/s"),
        ("tpu_v5e", range(8), None, "torus of unknown shape, 200 GB/s"),
        ("tpu_v7", range(8), None, "torus of unknown shape, 300 GB/s"),
    ],
)
def test_the_fabric_of_a_group(chip_id: str, ranks: list[int], per_domain: int | None, model: str) -> None:
    assert str(fabric_for(hardware.get(chip_id), list(ranks), per_domain)) == model


@pytest.mark.parametrize(
    ("chip_id", "ranks", "torus", "wrap", "model"),
    [
        ("tpu_v5e", range(16), [4, 4], None, "torus 4x4, not wrapped, 100 GB/s"),
        ("tpu_v5e", range(128), [8, 16], None, "torus 8x16, partly wrapped, 150 GB/s"),
        ("tpu_v4", range(4), [4, 4, 4], None, "torus 4, wrapped, 100 GB/s"),
        ("tpu_v4", [0, 16, 32, 48], [4, 4, 4], None, "torus 4, wrapped, 100 GB/s"),
        ("tpu_v4", [0, 1], [4, 4, 4], None, "torus 2, not wrapped, 50.0 GB/s"),
        ("tpu_v4", range(8, 16), [2, 2, 2], None, "torus 2x2x2, not wrapped, 150 GB/s"),  # the second slice
        (
            "tpu_v4",
            [0, 8],
            [2, 2, 2],
            None,
            "2 domains of 1 (torus of unknown shape, 300 GB/s), network 6.25 GB/s a device",
        ),
        ("tpu_v4", range(8), [2, 2, 2], None, "torus 2x2x2, not wrapped, 150 GB/s"),
        ("tpu_v4", range(8), [2, 2, 2], [True, True, True], "torus 2x2x2, wrapped, 300 GB/s"),
        ("tpu_v7", range(8), [2, 2, 1], None, "torus 2x2, not wrapped, 100 GB/s"),  # two devices a chip
    ],
)
def test_the_torus_of_a_group(
    chip_id: str, ranks: list[int], torus: list[int], wrap: list[bool] | None, model: str
) -> None:
    assert str(fabric_for(hardware.get(chip_id), list(ranks), None, torus, wrap=wrap)) == model


@pytest.mark.parametrize(
    ("chip_id", "ranks", "torus", "reason"),
    [
        ("l4", [0, 8], None, "network of l4 depends on the host"),
        ("h100_sxm", [], None, "without ranks"),
        ("trn2", [0, 1], None, "no link rate of trn2"),
        ("tpu_v4", [0, 7], [2, 2], "does not hold chip 7"),
        ("tpu_v7", [0, 1], [2, 2, 2], "on one chip"),
    ],
)
def test_an_unknown_fabric_has_a_reason(chip_id: str, ranks: list[int], torus: list[int] | None, reason: str) -> None:
    with pytest.raises(NoFormula, match=reason):
        fabric_for(hardware.get(chip_id), ranks, 8, torus)


def test_a_given_network_goes_before_the_catalogue() -> None:
    fabric = fabric_for(hardware.get("l4"), [0, 8], 8, network_bytes_per_s=12.5e9)
    # One rank a node: the tree's network latency, 5 us
    assert predict(Kind.SEND_RECV, 12_500_000, 2, fabric) == collectives.Prediction(
        latency_ns=11_600,
        bandwidth_ns=1_000_000,
        total_ns=1_011_600,
        model="2 domains of 1 (PCIe, 32.0 GB/s), network 12.5 GB/s a device",
    )


@pytest.mark.parametrize(
    ("chip_id", "shape", "wraps"),
    [
        ("tpu_v5e", (16, 16), (True, True)),
        ("tpu_v6e", (8, 16), (False, True)),
        ("tpu_v3", (16, 32), (False, True)),
        ("tpu_v5p", (4, 4, 8), (True, True, True)),
        ("tpu_v5p", (2, 4, 4), (False, False, False)),
        ("tpu_v4i", (4,), (True,)),
    ],
)
def test_which_axes_of_a_slice_wrap(chip_id: str, shape: tuple[int, ...], wraps: tuple[bool, ...]) -> None:
    assert slice_wraps(hardware.get(chip_id), shape) == wraps

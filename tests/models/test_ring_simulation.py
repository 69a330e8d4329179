"""Collectives done message by message, against the formulas: which rank sends what in which step, and over which links."""

import itertools
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models import hardware, torus
from tracegap.models.collectives import Fabric, fabric_for, latency_bound_below_bytes, predict, predict_uneven
from tracegap.models.errors import NoFormula
from tracegap.models.ops import CollectiveKind as Kind
from tracegap.models.torus import Axis

H100 = hardware.get("h100_sxm")
NODE = Fabric.switch(H100)
NODES = Fabric.tiers(NODE, domain_ranks=8, domains=4, network_bytes_per_s=50e9)
STEP_LATENCY_US = 0.6


def ring(kind: Kind, ranks: int, elements: int) -> tuple[list[list[int]], int, int]:
    """Buffers after a ring over so many ranks, its steps, and the elements that each rank sends in all.

    Rank r starts with the value 1 << r in every element of its input. A step: each rank sends one part to the next.
    """
    part = elements // ranks
    if kind is Kind.ALL_GATHER:
        state = [[1 << r if i // part == r else 0 for i in range(elements)] for r in range(ranks)]
        phases = [False]
    else:
        state = [[1 << r] * elements for r in range(ranks)]
        phases = [True, False] if kind is Kind.ALL_REDUCE else [True]
    steps = sent = 0
    for reduces in phases:
        first = 0 if reduces or kind is Kind.ALL_GATHER else 1  # the sums end one rank further
        for step in range(ranks - 1):
            before = [row[:] for row in state]
            for r in range(ranks):
                index = (r + first - step) % ranks
                at = range(index * part, (index + 1) * part)
                target = state[(r + 1) % ranks]
                for i in at:
                    target[i] = target[i] + before[r][i] if reduces else before[r][i]
            steps += 1
            sent += part
    return state, steps, sent


@pytest.mark.parametrize("kind", [Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_step_by_step(kind: Kind, ranks: int) -> None:
    size = 12 * ranks
    state, steps, sent = ring(kind, ranks, size)
    everyone = (1 << ranks) - 1
    if kind is Kind.ALL_REDUCE:
        assert state == [[everyone] * size] * ranks
    elif kind is Kind.ALL_GATHER:
        assert state == [[1 << i // 12 for i in range(size)]] * ranks
    else:  # each rank has the sum of one part
        assert [row[(r + 1) % ranks * 12] for r, row in enumerate(state)] == [everyone] * ranks
    prediction = predict(kind, size * 10**9, ranks, NODE)
    assert prediction.bandwidth_ns == pytest.approx(sent * 1e9 / 450e9 * 1e9)
    assert prediction.latency_ns == pytest.approx(1e3 * (6.6 + steps * STEP_LATENCY_US))


sides = st.lists(st.tuples(st.integers(2, 4), st.booleans()), min_size=1, max_size=3) | st.lists(
    st.tuples(st.integers(2, 9), st.booleans()), min_size=1, max_size=1
)


@given(sides)
def test_even_all_to_all_on_a_torus_is_no_faster_than_its_busiest_link(shape: list[tuple[int, bool]]) -> None:
    axes = [Axis(size=size, wrap=wrap) for size, wrap in shape]
    n = prod(axis.size for axis in axes)
    busiest = torus.busiest_link_bytes([[1] * n for _ in range(n)], axes)
    formula = torus.all_to_all_s(n * n, axes, 1.0)
    # Rings of even length load all links alike; an odd one has no farthest pair, a line of odd length no middle link.
    assert busiest <= formula * (1 + 1e-9)
    if all(axis.size % 2 == 0 for axis in axes):
        assert busiest == pytest.approx(formula)


def test_messages_on_a_torus_take_the_shortest_way() -> None:
    square = [Axis(size=4, wrap=True), Axis(size=4, wrap=False)]
    one = [[0] * 16 for _ in range(16)]
    one[0][3] = 8  # one hop backwards round the ring
    assert torus.busiest_link_bytes(one, square) == 8
    one[0][3], one[0][2] = 0, 8  # two hops either way: half each
    assert torus.busiest_link_bytes(one, square) == 4
    one[0][2], one[0][12], one[4][8] = 0, 8, 3  # up a line of four, over the link of another message
    assert torus.busiest_link_bytes(one, square) == 11


def test_shifts_share_the_links_between() -> None:
    axis = {"bytes": 9e9, "axis_size": 8, "link_bytes_per_s": 45e9}
    assert torus.permute_time_s(**axis, shift=3) == torus.permute_time_s(**axis, shift=5) == pytest.approx(0.6)
    assert torus.permute_time_s(**axis, shift=5, wrap=False) == pytest.approx(1.0)


def gathered_link_bytes(side: int, stride: int, ranks: int, *, wrap: bool) -> float:
    """Bytes on the busiest link when every group of `ranks` chips, `stride` apart on a side, gathers parts of one byte.

    Each part travels on from member to member, both ways round a ring (halves), outwards on a line; every link it
    crosses counts it.
    """
    load: dict[tuple[int, int], float] = {}
    for first in range(side):
        places = [first + i * stride for i in range(ranks)]
        if first >= stride or places[-1] >= side:
            continue
        for at, source in enumerate(places):
            for step in (1, -1):
                members = ranks - 1 if wrap else ranks - 1 - at if step == 1 else at
                for hop in range(members * stride):
                    link = ((source + step * hop) % side, step)
                    load[link] = load.get(link, 0) + (0.5 if wrap else 1)
    return max(load.values())


@pytest.mark.parametrize(
    ("side", "stride", "ranks"), [(8, 2, 4), (8, 4, 2), (8, 2, 2), (16, 4, 3), (12, 3, 4), (8, 1, 8)]
)
def test_groups_that_interleave_on_a_side_share_its_links(side: int, stride: int, ranks: int) -> None:
    """Every message of every group is laid on the links of the side; the formula sees one group and its stride."""
    wrap = stride * ranks == side
    axis = Axis(size=ranks, wrap=wrap, stride=stride)
    assert torus.gather_s(ranks, [axis], 1.0) == pytest.approx(gathered_link_bytes(side, stride, ranks, wrap=wrap))
    groups = [[first + i * stride for i in range(ranks)] for first in range(stride)]
    sent = [[0.0] * side for _ in range(side)]
    shifted = [[0.0] * side for _ in range(side)]
    for chips in groups:
        for i, chip in enumerate(chips):
            for other in chips:
                sent[chip][other] = 1.0
            if wrap or i + 1 < ranks:
                shifted[chip][chips[(i + 1) % ranks]] = 1.0
    physical = [Axis(size=side, wrap=wrap)]
    even = torus.busiest_link_bytes([[1] * ranks for _ in range(ranks)], [axis])
    assert even == pytest.approx(torus.busiest_link_bytes(sent, physical))
    if ranks % 2 == 0:
        assert torus.all_to_all_s(ranks**2, [axis], 1.0) == pytest.approx(even)
    # Two of a ring may go either way; T8 sends all of it one way
    busiest = torus.busiest_link_bytes(shifted, physical) * (2 if wrap and ranks == 2 else 1)
    assert (
        busiest == stride == torus.permute_time_s(bytes=1, shift=stride, axis_size=side, link_bytes_per_s=1, wrap=wrap)
    )
    chip = hardware.get("tpu_v5p")
    fabric = fabric_for(chip, groups[0], torus=[side, 4, 4], wrap=[wrap] * 3)
    assert fabric.axes == (axis,)
    permuted = predict(Kind.PERMUTE, 10**9, ranks, fabric)
    assert permuted.bandwidth_ns == pytest.approx(stride * 1e18 / chip.device_link_bytes_per_s)


def test_uneven_domains_have_all_their_ranks_and_wait_for_the_smallest() -> None:
    """768 ranks, one in eight of a pod of 4,096 chips and of 2,048 of the next: 512 and 256, not twice 256."""
    chip = hardware.get("tpu_v4")
    network = 1e8  # slow enough to gate
    fabric = fabric_for(chip, range(0, 6144, 8), network_bytes_per_s=network)
    assert (fabric.domain_ranks, fabric.fewest_ranks, fabric.domains) == (512, 256, 2)
    assert "2 domains of 256 to 512 " in str(fabric)
    size = 768 * 10**6
    # Each byte that the other domain's ranks hold comes in over the shares of the domain's own: 512 MB over 256 of them
    # for each part of 1 MB, 256 over 512
    comes_in = {256: 512e6 / (256 * network), 512: 256e6 / (512 * network)}
    got = predict(Kind.ALL_GATHER, size, 768, fabric).bandwidth_ns
    assert got == pytest.approx(max(comes_in.values()) * 1e9, abs=2)
    # All-to-all: a rank of the smaller domain sends 512 of its 768 parts out
    swapped = predict(Kind.ALL_TO_ALL, size, 768, fabric).bandwidth_ns
    assert swapped == pytest.approx(512e6 / network * 1e9, abs=2)
    assert predict_uneven([[10**6] * 768] * 768, fabric).bandwidth_ns == pytest.approx(swapped, abs=2)
    assert fabric_for(chip, range(0, 8192, 8)).fewest_ranks is None


FABRICS = {
    "switch": (NODE, 8),
    "mesh": (Fabric.switch(hardware.get("mi300x")), 8),
    "domains": (NODES, 32),
    "ring": (Fabric.torus(hardware.get("tpu_v5e"), [Axis(size=16, wrap=True)]), 16),
    "line": (Fabric.torus(hardware.get("tpu_v5e"), [Axis(size=4, wrap=False)] * 2), 16),
}


@pytest.mark.parametrize(("fabric", "ranks"), FABRICS.values(), ids=FABRICS)
def test_an_all_to_all_of_equal_parts_is_an_even_one(fabric: Fabric, ranks: int) -> None:
    even = predict(Kind.ALL_TO_ALL, ranks * 10**8, ranks, fabric)
    assert predict_uneven([[10**8] * ranks] * ranks, fabric).total_ns == pytest.approx(even.total_ns, rel=1e-9)


@pytest.mark.parametrize(("fabric", "ranks"), FABRICS.values(), ids=FABRICS)
def test_skew_is_never_faster(fabric: Fabric, ranks: int) -> None:
    even = [[10**7] * ranks for _ in range(ranks)]
    skewed = [[2 * 10**7 if j == 0 else 10**7 - 10**7 // (ranks - 1) for j in range(ranks)] for _ in range(ranks)]
    assert predict_uneven(skewed, fabric).total_ns > predict_uneven(even, fabric).total_ns


def test_uneven_by_hand() -> None:
    # rank 0 gets 90 MB from each of two peers: 180 MB over 450 GB/s
    sent = [[0, 0, 0], [90_000_000, 0, 0], [90_000_000, 0, 10**10 * 0]]
    assert predict_uneven(sent, NODE).bandwidth_ns == 400_000
    assert predict_uneven([[7]], NODE).total_ns == 0
    with pytest.raises(NoFormula, match="a row and a column"):
        predict_uneven([[1, 2]], NODE)


# ------------------------------------------------------------------------ algorithms by name


def test_switches_that_reduce_send_the_buffer_once() -> None:
    # [G4] 450 MB over 450 GB/s, against 7/4 of it
    once = predict(Kind.ALL_REDUCE, 450_000_000, 8, NODE, algorithm="in_network")
    assert (once.latency_ns, once.bandwidth_ns, once.model) == (25_000, 1_000_000, "switch, 450 GB/s, in_network")
    gather = predict(Kind.ALL_GATHER, 450_000_000, 8, NODE, algorithm="in_network")
    assert gather.bandwidth_ns == predict(Kind.ALL_GATHER, 450_000_000, 8, NODE).bandwidth_ns


def test_a_tree_is_faster_for_small_messages_on_many_nodes_only() -> None:
    many = Fabric.tiers(NODE, domain_ranks=8, domains=64, network_bytes_per_s=50e9)
    small, large = (
        [predict(Kind.ALL_REDUCE, s, 512, many, algorithm=a).total_ns for a in ("ring", "tree")] for s in (1000, 10**12)
    )
    assert small[1] < small[0]
    assert large[0] < large[1]
    # 6.8 us + 2 x (7 x 0.6 + 6 x 5 us)
    assert predict(Kind.ALL_REDUCE, 0, 512, many, algorithm="tree").latency_ns == 6_800 + 2 * (4_200 + 30_000)


def test_phases_of_a_hierarchical_all_reduce() -> None:
    # 3.2 GB: reduce-scatter and gather 7/8 over 450 GB/s each; 400 MB of each rank go round a ring of 4 over 50 GB/s
    phases = predict(Kind.ALL_REDUCE, 3_200_000_000, 32, NODES, algorithm="hierarchical")
    assert phases.bandwidth_ns == pytest.approx(2 * 6_222_222 + 2 * 3 / 4 * 8_000_000, abs=2)
    overlapped = predict(Kind.ALL_REDUCE, 3_200_000_000, 32, NODES)
    assert overlapped.bandwidth_ns < phases.bandwidth_ns
    assert phases.latency_ns < overlapped.latency_ns  # 2 x (3 + 7) steps in place of 2 x 31


def test_slices_of_a_torus_over_a_network() -> None:
    # 4 slices of 16 v5p: 64 MB, 15/16 of it over six links of 100 GB/s, twice; 4 MB a chip round the network of 6.25 GB/s
    chip = hardware.get("tpu_v5p")
    slices = Fabric.tiers(Fabric.switch(chip), domain_ranks=16, domains=4, network_bytes_per_s=6.25e9)
    phases = predict(Kind.ALL_REDUCE, 64_000_000, 64, slices, algorithm="hierarchical")
    assert phases.bandwidth_ns == pytest.approx(2 * 100_000 + 2 * 3 / 4 * 640_000)
    assert phases.total_ns == phases.bandwidth_ns > predict(Kind.ALL_REDUCE, 64_000_000, 64, slices).total_ns


@given(size=st.integers(0, 10**12))
def test_protocols_cost_bandwidth_or_latency(size: int) -> None:
    bound = predict(Kind.ALL_REDUCE, size, 8, NODE)
    ll, ll128, simple = (predict(Kind.ALL_REDUCE, size, 8, NODE, protocol=p) for p in ("ll", "ll128", "simple"))
    assert bound.latency_ns == ll.latency_ns < ll128.latency_ns < simple.latency_ns
    assert bound.bandwidth_ns == simple.bandwidth_ns <= ll128.bandwidth_ns <= ll.bandwidth_ns
    assert all(bound.total_ns <= one.total_ns for one in (ll, ll128, simple))


@pytest.mark.parametrize("kind", [Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL])
@pytest.mark.parametrize("name", ["switch", "domains", "ring"])
def test_where_latency_takes_over(kind: Kind, name: str) -> None:
    fabric, ranks = FABRICS[name]
    size = latency_bound_below_bytes(kind, ranks, fabric)
    at = predict(kind, round(size), ranks, fabric)
    assert at.bandwidth_ns == pytest.approx(at.latency_ns, rel=1e-3)


def test_latency_bound_below_the_books_360_kb() -> None:
    # Scaling Book, chapter 2: on a v5e axis of 8 below n w t_h = 8 x 45 kB, here with nominal 50 GB/s and 7/8
    axis = Fabric.torus(hardware.get("tpu_v5e"), [Axis(size=8, wrap=True)])
    size = latency_bound_below_bytes(Kind.ALL_GATHER, 8, axis)
    assert size * 7 / 8 == pytest.approx(8 * 50e9 * 1e-6, rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "algorithm", "fabric", "words"),
    [
        (Kind.ALL_GATHER, "tree", "switch", "tree for an all-reduce"),
        (Kind.ALL_TO_ALL, "in_network", "switch", "reduce and copy only"),
        (Kind.ALL_REDUCE, "hierarchical", "switch", "several domains"),
        (Kind.BROADCAST, "hierarchical", "domains", "a kind that splits"),
        (Kind.ALL_REDUCE, "tree", "ring", "need switches"),
    ],
)
def test_what_an_algorithm_does_not_do(kind: Kind, algorithm: str, fabric: str, words: str) -> None:
    links, ranks = FABRICS[fabric]
    with pytest.raises(NoFormula, match=words):
        predict(kind, 1, ranks, links, algorithm=algorithm)


@given(
    kind=st.sampled_from([Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.ALL_TO_ALL]),
    size=st.integers(2, 16),
    message=st.integers(0, 10**9),
)
def test_one_more_wrapped_axis_never_slows(kind: Kind, size: int, message: int) -> None:
    """The same array on more chips: gathers, and an all-to-all of the same bytes in all, which each rank has fewer of."""
    chip, axis = hardware.get("tpu_v5p"), Axis(size=size, wrap=True)
    for one, two in itertools.pairwise([axis] * n for n in (1, 2, 3)):
        parts = (size ** len(one), size ** len(two)) if kind is Kind.ALL_TO_ALL else (1, 1)
        fewer, more = (
            predict(kind, message // p, prod(a.size for a in axes), Fabric.torus(chip, axes)).bandwidth_ns
            for axes, p in zip((one, two), parts, strict=True)
        )
        assert more <= fewer + 2

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models import nccl
from tracegap.models.errors import NoFormula
from tracegap.models.ops import CollectiveKind as Kind


def ring_traffic(ranks: int, *, reduce: bool, gather: bool) -> tuple[Fraction, int]:
    """Plays a ring over an array of size 1: bytes that leave one rank, and steps, until every part is everywhere."""
    have = [[{rank} for _ in range(ranks)] for rank in range(ranks)]  # whose share of each part a rank has added up
    everyone = set(range(ranks))
    sent, steps = Fraction(0), 0
    if reduce:
        for step in range(ranks - 1):
            for rank in range(ranks):
                part = (rank - step) % ranks
                have[(rank + 1) % ranks][part] |= have[rank][part]
            sent, steps = sent + Fraction(1, ranks), steps + 1
        assert all(have[(part - 1) % ranks][part] == everyone for part in range(ranks))
    if gather:
        owned = [{rank} for rank in range(ranks)]
        while any(parts != everyone for parts in owned):
            owned = [owned[rank] | owned[rank - 1] for rank in range(ranks)]
            sent, steps = sent + Fraction(1, ranks), steps + 1
    return sent, steps


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize(
    ("kind", "phases"),
    [
        (Kind.ALL_REDUCE, {"reduce": True, "gather": True}),
        (Kind.REDUCE_SCATTER, {"reduce": True, "gather": False}),
        (Kind.ALL_GATHER, {"reduce": False, "gather": True}),
    ],
)
def test_factor_and_steps_are_those_of_a_played_ring(kind: Kind, phases: dict[str, bool], ranks: int) -> None:
    sent, steps = ring_traffic(ranks, **phases)
    assert nccl.bus_factor(kind, ranks) == pytest.approx(float(sent))
    assert nccl.ring_steps(kind, ranks) == steps


@given(st.sampled_from(Kind), st.integers(1, 1024))
def test_no_link_carries_more_than_the_array_twice(kind: Kind, ranks: int) -> None:
    assert 0 <= nccl.bus_factor(kind, ranks) < 2


@pytest.mark.parametrize(
    "bad", [{"collective": "all_hands"}, {"algo": "star"}, {"collective": "broadcast", "algo": "tree"}]
)
def test_what_has_no_model_fails_by_name(bad: dict[str, str]) -> None:
    call = {"collective": "all_reduce", "algo": "ring", "proto": "ll"} | bad
    with pytest.raises(NoFormula, match=r"all_hands|star|broadcast"):
        nccl.nccl_latency_us(**call, ranks=8, nodes=1, base_us=1, intra_us=1)


@given(
    st.integers(1, 10**12),
    st.integers(1, 10**12),
    st.sampled_from(["ring", "tree"]),
    st.sampled_from(["ll", "ll128", "simple"]),
)
def test_more_bytes_are_never_faster(size: int, more: int, algo: str, proto: str) -> None:
    small, large = (
        nccl.nccl_time_us(
            collective="all_reduce", algo=algo, proto=proto, bytes=number, ranks=16, nodes=2, channels=8,
            bw_per_channel_gbps=20, base_us=8, intra_us=2, inter_us=10,
        )
        for number in (size, size + more)
    )  # fmt: skip
    assert small <= large


@pytest.mark.parametrize(("algo", "latency_us"), [("nvls", 25 + 18), ("pat", 8 + 2 * 14 / 3.5 + 2.8 * 32)])
def test_latencies_of_the_other_algorithms(algo: str, latency_us: float) -> None:
    base_us, intra_us, inter_us = {"nvls": (0, 25, 18), "pat": (8, 0, 14)}[algo]
    value = nccl.nccl_latency_us(
        collective="all_gather", algo=algo, proto="simple", ranks=32, nodes=4,
        base_us=base_us, intra_us=intra_us, inter_us=inter_us,
    )  # fmt: skip
    assert value == pytest.approx(latency_us)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models import hardware, nccl, nccl_tuner
from tracegap.models.errors import NoFormula
from tracegap.models.nccl_tuner import Communicator, choose, crossovers, options, time_us
from tracegap.models.ops import CollectiveKind as Kind

NODE = Communicator(generation="hopper", ranks=8, channels=12, bw_per_channel_gbps=30)
H100 = hardware.get("h100_sxm")
KINDS = (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.BROADCAST)


def test_times_by_hand() -> None:
    # 1 GiB over 360 GB/s x 8/14, after 8.4 + 14 x 3.4 us
    assert time_us(Kind.ALL_REDUCE, "ring", "simple", 2**30, NODE) == pytest.approx(56 + 2**30 / 360e3 * 14 / 8)
    # LL: half of 360 GB/s, but no more than 141
    assert time_us(Kind.ALL_REDUCE, "ring", "ll", 2**30, NODE) == pytest.approx(15 + 2**30 / 141e3 * 14 / 8)
    # tree: 0.92 x 360 = 331.2 GB/s, each byte up and down; 8.4 + 2 x 7 x 4.0 us
    assert time_us(Kind.ALL_REDUCE, "tree", "simple", 2**30, NODE) == pytest.approx(64.4 + 2**30 / 165.6e3)
    # NVLS: 360 x 0.85 x 11/12 = 280.5 GB/s, twice that for an all-reduce
    assert time_us(Kind.ALL_REDUCE, "nvls", "simple", 2**30, NODE) == pytest.approx(25 + 2**30 / 561e3 * 14 / 8)
    assert time_us(Kind.ALL_GATHER, "nvls", "simple", 2**30, NODE) == pytest.approx(25 + 2**30 / (280.5e3 * 7 / 8))


def test_small_messages_go_by_ll_large_ones_by_simple() -> None:
    for kind in KINDS:
        assert choose(kind, 1024, NODE).protocol == "ll"
        assert choose(kind, 2**32, NODE).protocol == "simple"


def test_many_nodes_take_trees_for_small_messages() -> None:
    many = Communicator.of(H100, 512, 64)
    assert str(choose(Kind.ALL_REDUCE, 1024, many)) == "tree/ll"
    assert choose(Kind.ALL_GATHER, 1024, many).algorithm == "ring"  # there is no other


def test_crossovers_are_where_the_two_are_equal() -> None:
    for kind in KINDS:
        found = crossovers(kind, NODE)
        assert [size for size, _ in found] == sorted({size for size, _ in found})
        for (size, choice), (_, before) in zip(found[1:], found[:-1], strict=True):
            args = (before.algorithm, before.protocol, size, NODE)
            assert time_us(kind, *args) >= choice.time_us
            assert time_us(kind, *args) == pytest.approx(choice.time_us, rel=1e-3)
    # by hand: LL 10.8 us + S/141 GB/s x 7/8, LL128 14 + 7 x 1.9 + S/331.2 x 7/8: equal at 16.5 us / (7/8) x 245.6 GB/s
    (_, second, *_) = crossovers(Kind.ALL_GATHER, NODE)
    assert str(second[1]) == "ring/ll128"
    assert second[0] == pytest.approx(16.5e-6 / (7 / 8) / (1 / 141e9 - 1 / 331.2e9), rel=1e-5)


def test_what_a_part_tells() -> None:
    node = Communicator.of(H100, 8)
    assert (node.generation, node.channels * node.bw_per_channel_gbps) == ("hopper", pytest.approx(370.8))
    # from three nodes on the network counts: 8 x 50 GB/s a node over 18 channels
    assert Communicator.of(H100, 32, 4).channel_gbps * 18 == pytest.approx(400)
    with pytest.raises(NoFormula, match="tpu_v5e"):
        Communicator.of(hardware.get("tpu_v5e"), 8)
    with pytest.raises(NoFormula, match="no reduction"):
        time_us(Kind.ALL_REDUCE, "nvls", "simple", 1, Communicator.of(hardware.get("a100_sxm_80"), 8))
    with pytest.raises(NoFormula, match="3 nodes need"):
        choose(
            Kind.ALL_REDUCE,
            1,
            Communicator(generation="ampere", ranks=24, nodes=3, channels=12, bw_per_channel_gbps=20),
        )


@given(
    kind=st.sampled_from(KINDS),
    size=st.integers(1, 1 << 34),
    nodes=st.sampled_from([1, 2, 4, 64]),
    nvls=st.booleans(),
)
def test_the_choice_is_the_fastest_of_all(kind: Kind, size: int, nodes: int, nvls: bool) -> None:
    group = Communicator.of(H100, 8 * nodes, nodes, nvls=nvls)
    choices = options(kind, size, group)
    assert choose(kind, size, group) == min(choices, key=lambda choice: choice.time_us)
    assert len({str(choice) for choice in choices}) == len(choices)
    assert all(time_us(kind, c.algorithm, c.protocol, 2 * size, group) > c.time_us for c in choices)


@given(latency=st.floats(1e-7, 1e-3), rate=st.floats(1e6, 1e12))
def test_half_of_the_bandwidth_is_at_the_half_bandwidth_size(latency: float, rate: float) -> None:
    half = nccl.effective_bytes_per_s(bytes=latency * rate, latency_s=latency, bytes_per_s=rate)
    assert half == pytest.approx(rate / 2)


def test_direct_all_reduces_of_a_node() -> None:
    # 256 KB over 300 GB/s: seven buffers read, against two times seven eighths of one
    size = {"bytes": 256e3, "ranks": 8, "gbytes_per_s": 300}
    assert nccl.one_shot_all_reduce_time_us(**size) == pytest.approx(5 + 7 * 256 / 300 + 1.5)
    assert nccl.two_shot_all_reduce_time_us(**size) == pytest.approx(5 + 2 * (7 / 8 * 256 / 300 + 1.5))


def test_generations_are_those_of_the_catalogue() -> None:
    parts = [chip for chip in hardware.catalogue().values() if chip.scaleup_kind == "NVLink"]
    assert {Communicator.of(chip, 2).generation for chip in parts} == set(nccl_tuner.NVLINK_GBPS)

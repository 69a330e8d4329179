"""Laws between formulas, each of which would catch a lost factor that a single worked example may share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models import inference, memory, parallelism, roofline, silicon, switch, torus, utilisation

positive = st.floats(1, 1e6)
degree = st.integers(1, 512)
states = {"params": 1e9, "param_bytes": 2, "grad_bytes": 4, "optimizer_bytes": 12}


@given(degree)
def test_sharding_more_of_the_states_never_takes_more(gpus: int) -> None:
    stages = [
        memory.zero1_bytes_per_gpu(**states, gpus=gpus),
        memory.zero2_bytes_per_gpu(**states, gpus=gpus),
        memory.zero3_bytes_per_gpu(**states, gpus=gpus),
    ]
    assert stages == sorted(stages, reverse=True)
    assert stages[2] * gpus == pytest.approx(memory.model_state_bytes(**states))
    if gpus == 1:
        assert stages == [18e9] * 3


@given(degree)
def test_megatron_is_zero_1_with_fp32_gradients(dp: int) -> None:
    mine = memory.zero1_bytes_per_gpu(**(states | {"params": 1}), gpus=dp)
    assert memory.bytes_per_param_distributed_optimizer(dp=dp) == pytest.approx(mine)


@given(s=positive, b=positive, h=positive, layers=degree, a=degree, t=degree, pp=degree, virtual=st.integers(1, 8))
def test_recomputing_more_keeps_less(
    *, s: float, b: float, h: float, layers: int, a: int, t: int, pp: int, virtual: int
) -> None:
    size = {"s": s, "b": b, "h": h, "L": layers}
    split = {"t": t, "pp": pp, "virtual": virtual}
    nothing = memory.activation_bytes_no_recompute(**size, a=a, **split, sequence_parallel=True)
    core = memory.activation_bytes_selective_sp(**size, **split)
    whole = memory.activation_bytes_no_recompute(**size, a=a, **split, sequence_parallel=False)
    assert core <= nothing <= whole * (1 + 1e-12)
    if t == pp == 1:
        assert memory.activation_bytes_full_recompute(**size) <= core


@given(stages=degree, microbatches=degree, virtual=st.integers(1, 8))
def test_the_two_ways_to_say_a_bubble_agree(stages: int, microbatches: int, virtual: int) -> None:
    schedule = {"stages": stages, "microbatches": microbatches, "virtual_stages": virtual}
    over_ideal = parallelism.pp_bubble_over_ideal(**schedule)
    share = parallelism.pp_bubble_fraction(**schedule)
    assert share == pytest.approx(over_ideal / (1 + over_ideal))
    assert 0 <= share < 1


@given(batch=positive, ffn=positive, chips=degree)
def test_the_best_mix_of_sharding_has_the_least_traffic(batch: float, ffn: float, chips: int) -> None:
    def traffic(sharded: float) -> float:
        return ffn * sharded / chips + batch / sharded

    best = parallelism.optimal_fsdp_degree(B=batch, F=ffn, N=chips)
    assert traffic(best) <= min(traffic(best * 1.01), traffic(best / 1.01)) * (1 + 1e-12)


@given(gpus=st.integers(2, 512), egress=positive)
def test_a_tree_of_one_level_is_a_node(gpus: int, egress: float) -> None:
    tree_s = switch.tree_all_gather_time_s(global_bytes=1e9, levels=[[gpus, egress]])
    assert tree_s == pytest.approx(switch.all_gather_time_s(global_bytes=1e9, gpus=gpus, gpu_egress_bytes_per_s=egress))
    exchange_s = switch.all_to_all_time_s(global_bytes=1e9, gpus=gpus, gpu_egress_bytes_per_s=egress)
    assert exchange_s * gpus == pytest.approx(tree_s)


@given(gpus=st.integers(1, 72), nodes=st.integers(1, 64), egress=positive, nic=positive)
def test_phases_of_an_all_reduce_never_beat_either_level(gpus: int, nodes: int, egress: float, nic: float) -> None:
    links = {"gpu_egress_bytes_per_s": egress, "nic_bytes_per_s": nic}
    phases_s = switch.hierarchical_all_reduce_time_s(global_bytes=1e9, gpus_per_node=gpus, nodes=nodes, **links)
    levels = [[gpus, egress], [nodes, switch.node_egress_bytes_per_s(nics=gpus, nic_bytes_per_s=nic)]]
    assert phases_s >= 2 * switch.tree_all_gather_time_s(global_bytes=1e9, levels=levels) * (1 - 1e-9)


def test_a_node_is_as_fast_as_its_gpus_or_its_switches() -> None:
    # Scaling Book, chapter 12: 8 H100 of 450 GB/s against 4 switches of 64 ports of 25 GB/s
    node = {"gpus": 8, "gpu_egress_bytes_per_s": 450e9, "switches": 4, "port_bytes_per_s": 25e9}
    assert switch.node_bandwidth_bytes_per_s(**node, ports_per_switch=64) == 3.6e12
    assert switch.node_bandwidth_bytes_per_s(**node, ports_per_switch=32) == 3.2e12
    assert switch.node_egress_bytes_per_s(nics=8, nic_bytes_per_s=50e9) == 400e9


@given(st.integers(1, 10**6), st.sampled_from([1, 2, 4]))
def test_a_dot_product_is_always_bound_by_memory(n: int, size: int) -> None:
    assert roofline.dot_intensity(n=n, bytes_per_elem=size) < 1 / size
    # the limit for long vectors in bf16 is a half
    assert roofline.dot_intensity(n=10**6, bytes_per_elem=2) == pytest.approx(0.5, rel=1e-5)


def test_a_pod_of_chips() -> None:
    # Scaling Book, chapter 2: a v5e pod of 256 has 32 hosts of 8 and 50 PFLOP/s
    assert silicon.slice_hosts(chips=256, chips_per_host=8) == 32
    assert silicon.slice_peak_flops_per_s(chips=256, peak_flops_per_s=1.97e14) == pytest.approx(5.04e16, rel=1e-3)


@given(size=st.integers(2, 64), axes=st.integers(1, 3), link=positive)
def test_a_line_is_never_faster_than_a_ring(size: int, axes: int, link: float) -> None:
    array = {"global_bytes": 1e9, "axis_size": size, "axes": axes, "link_bytes_per_s": link}
    line_s = torus.all_gather_time_s(**array, wrap=False)
    ring_s = torus.all_gather_time_s(**array, wrap=True, exact=True)
    assert line_s == pytest.approx(2 * ring_s)
    assert torus.all_gather_time_s(**array, wrap=True) >= ring_s


@given(size=st.integers(2, 64), link=positive)
def test_bisection_of_one_axis_is_the_rule_of_a_quarter(size: int, link: float) -> None:
    for wrap in (True, False):
        bisection_s = torus.all_to_all_bisection_time_s(
            global_bytes=1e9, torus=[size], link_bytes_per_s=link, wrap=wrap
        )
        rule_s = torus.all_to_all_time_s(global_bytes=1e9, bidi_bytes_per_s=2 * link, wrap=wrap)
        assert bisection_s == pytest.approx(rule_s)


@given(st.integers(1, 2048), st.integers(1, 2048), st.sampled_from([128, 256]))
def test_padding_wastes_nothing_exactly_at_multiples(k: int, n: int, side: int) -> None:
    share = silicon.mxu_padding_efficiency(K=k, N=n, mxu_side=side)
    assert 0 < share <= 1
    assert (share == 1) == (k % side == n % side == 0)
    assert silicon.tiled_layout_padding_ratio(shape=[k, n], tile=[side, side]) == pytest.approx(1 / share)


@given(st.integers(1, 10_000), st.integers(1, 200), st.integers(1, 4))
def test_waves_are_full_exactly_at_multiples(tiles: int, sms: int, per_sm: int) -> None:
    share = silicon.wave_efficiency(tiles=tiles, sms=sms, ctas_per_sm=per_sm)
    assert 0 < share <= 1
    assert (share == 1) == (tiles % (sms * per_sm) == 0)


@given(accept=st.floats(0, 1), draft_len=st.integers(0, 16))
def test_a_draft_gives_between_one_and_all_of_its_tokens(accept: float, draft_len: int) -> None:
    tokens = inference.spec_decode_tokens_per_step(accept=accept, draft_len=draft_len)
    assert 1 - 1e-9 <= tokens <= draft_len + 1 + 1e-9


@given(batch=positive, more=st.floats(1, 10))
def test_larger_batches_are_slower_steps_and_more_tokens(batch: float, more: float) -> None:
    server = {"kv_bytes_per_seq": 1e7, "param_bytes": 2e10, "chips": 4, "hbm_bytes_per_s": 1e12}
    steps = [
        inference.decode_step_time_s(**server, params=1e10, peak_flops_per_s=4e14, batch=size)
        for size in (batch, batch * more)
    ]
    rates = [inference.decode_tokens_per_s(**server, batch=size) for size in (batch, batch * more)]
    assert steps[0] <= steps[1]
    assert rates[0] <= rates[1] * (1 + 1e-12)


def test_caches_that_do_not_fit_are_none_not_negative() -> None:
    fits = inference.max_kv_caches(
        chips=1, hbm_bytes=100, params=200, weight_bytes=2, L=1, K=1, H=1, S=1, kv_bytes_per_elem=1
    )
    assert fits == 0


@given(iter_s=positive)
def test_hardware_flops_are_never_fewer_than_model_flops(iter_s: float) -> None:
    step = {"B": 64, "s": 2048, "L": 96, "h": 12288, "V": 51200, "iter_s": iter_s, "gpus": 64}
    mfu = utilisation.mfu_gpt(**step, peak_flops_per_s=1e14)
    core_again = utilisation.hfu_gpt_selective(**step, peak_flops_per_s=1e14)
    published = utilisation.hfu_gpt_selective_published(**step, peak_flops_per_s=1e14)
    all_again = utilisation.achieved_flops_per_s_per_gpu(**step) / 1e14
    assert mfu < core_again < published < all_again < mfu * 8 / 6

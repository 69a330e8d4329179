"""Whole trainings: published compute, and what failures take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models.campaign import DEVICE_MTBF_S, Goodput, campaign, goodput
from tracegap.models.errors import NoFormula

NO_FAILURES = Goodput(mtbf_s=1e12, interval_s=1e6, share=1)


def test_llama_3_fails_every_three_hours_on_16k_gpus():
    got = goodput(16384)
    assert got.mtbf_s / 3600 == pytest.approx(54 * 24 / 419)  # 3.1 h
    assert pytest.approx(50_677, rel=0.001) == DEVICE_MTBF_S / 3600
    assert 0.85 < got.share < 0.95  # the report says above 90% effective training time
    assert goodput(8).share > 0.998


def test_compute_is_rate_times_time():
    """[C1] C = 6 P D = tau T, and GPT-3's 3.14e23 FLOPs."""
    tokens, params, rate, devices = 300e9, 174.6e9, 140e12, 1024
    step_s = 6 * params * 3.2e6 / (devices * rate)
    run = campaign(
        active_params=params,
        tokens=tokens,
        tokens_per_step=3.2e6,
        step_s=step_s,
        devices=devices,
        usd_per_device_hour=2.0,
        reliability=NO_FAILURES,
    )
    assert run.flops_6pd == pytest.approx(3.14e23, rel=0.002)
    assert run.days * 86400 * devices * rate == pytest.approx(run.flops_6pd)
    assert run.usd == pytest.approx(2 * run.device_hours) == pytest.approx(2 * run.days * 24 * devices)
    assert run.steps == 93_750
    assert run.tokens_per_param == pytest.approx(1.718, rel=0.001)
    assert 6 * run.optimal_params * 20 * run.optimal_params == pytest.approx(run.flops_6pd)


@given(devices=st.integers(1, 200_000), more=st.integers(1, 10))
def test_more_devices_fail_more_often(devices, more):
    few, many = goodput(devices), goodput(devices * more)
    assert 0 <= many.share <= few.share <= 1


def test_failures_stretch_the_time_and_can_eat_all_of_it():
    same = {"active_params": 1e9, "tokens": 1e12, "tokens_per_step": 1e6, "step_s": 1.0}
    whole = campaign(**same, devices=8, reliability=NO_FAILURES)
    half = campaign(**same, devices=8, reliability=Goodput(mtbf_s=1e3, interval_s=1e2, share=0.5))
    assert half.days == 2 * whole.days
    assert whole.usd is None
    with pytest.raises(NoFormula, match="no training gets ahead of its checkpoints and restarts"):
        campaign(**same, devices=1_000_000)

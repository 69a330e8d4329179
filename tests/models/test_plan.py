import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models import hardware
from tracegap.models.architecture import Model
from tracegap.models.errors import NoFormula
from tracegap.models.ops import CollectiveKind as Kind
from tracegap.models.plan import plan
from tracegap.models.transformer import saved_values_per_token

H100 = hardware.get("h100_sxm")
MODEL = Model(layers=4, hidden=1000, heads=10, kv_heads=10, ffn=4000, vocab=10_000, seq=500, causal=False)
PARAMS = 4 * (4 * 1_000_000 + 3 * 4_000_000) + 2 * 10_000_000


def test_one_device() -> None:
    one = plan(MODEL, H100, {}, 10_000)
    assert one.params == PARAMS == 84_000_000
    assert (one.devices, one.microbatches, one.traffic, one.bubble_ns) == (1, 1, (), 0)
    # A token: 2 x 74e6 of weights, and 4 layers x 10 heads x 500 keys x 100 x 4; times 3, 10,000 tokens
    assert one.flops_per_device == 3 * 10_000 * (148_000_000 + 8_000_000)
    assert one.compute_ns == round(4.68e12 / 989.4e12 * 1e9)
    assert one.lower_ns == one.upper_ns == one.compute_ns
    assert one.bound == "compute"
    assert (one.memory.weights, one.memory.gradients, one.memory.optimizer) == (168e6, 168e6, 1008e6)
    assert saved_values_per_token(MODEL) == 20 * 1000
    assert one.memory.activations == 10_000 * (4 * 20_000 * 2 + 10_000 * 4)
    assert one.fits is True


def test_axes_share_the_work_and_add_their_traffic() -> None:
    mesh = {"pipeline": 2, "data": 2, "fsdp": 2, "tensor": 2}
    split = plan(MODEL, H100, mesh, 16_000, ranks_per_domain=8)
    assert (split.devices, split.microbatches, split.tokens_per_microbatch) == (16, 8, 500)
    assert split.flops_per_device == 3 * 16_000 * 156_000_000 / 16
    assert split.bubble_ns == round(split.compute_ns / 8)
    found = {(item.axis, item.collective): (item.calls, item.message_bytes, item.fabric) for item in split.traffic}
    node, network = "switch, 450 GB/s", "2 domains of 1 (switch, 450 GB/s), network 50.0 GB/s a device"
    layer = 84e6 * 2 / 4 / 2  # bytes of one of two layers of a stage, half of its tensors
    assert found == {
        ("pipeline", Kind.SEND_RECV): (16, 500 * 1000 * 2 / 2, network),
        ("data", Kind.ALL_REDUCE): (2, layer / 2, node),
        ("fsdp", Kind.ALL_GATHER): (32, layer, node),
        ("fsdp", Kind.REDUCE_SCATTER): (16, layer, node),
        ("tensor", Kind.ALL_REDUCE): (64, 500 * 1000 * 2, node),
    }
    longest = max([split.compute_ns + split.bubble_ns, *(split.axis_ns(axis) for axis in mesh)])
    assert split.lower_ns == longest
    assert split.upper_ns == split.compute_ns + split.bubble_ns + sum(split.axis_ns(axis) for axis in mesh)
    assert split.bound == "fsdp"


def test_recomputation_trades_arithmetic_for_memory() -> None:
    kept, again = (plan(MODEL, H100, {}, 10_000, recompute=recompute) for recompute in (False, True))
    assert again.memory.activations < kept.memory.activations
    # One more forward pass of all but the output head
    assert again.flops_per_device - kept.flops_per_device == 10_000 * (156_000_000 - 2 * 10_000_000)


def test_small_messages_make_tensor_parallelism_the_bound() -> None:
    assert plan(MODEL, H100, {"tensor": 8}, 500).bound == "tensor"


def test_a_model_that_does_not_fit_says_so() -> None:
    large = Model(layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672, vocab=128_256, seq=8192)
    assert plan(large, H100, {"data": 8}, 65_536).fits is False
    assert plan(large, H100, {"fsdp": 64}, 65_536 * 8, recompute=True).fits is True


sizes = st.sampled_from([1, 2, 4, 8])


@given(data=sizes, fsdp=sizes, tensor=sizes, pipeline=st.sampled_from([1, 2, 4]), recompute=st.booleans())
def test_bounds_and_totals(data: int, fsdp: int, tensor: int, pipeline: int, recompute: bool) -> None:
    mesh = {"pp": pipeline, "dp": data, "fsdp": fsdp, "tp": tensor}
    whole = plan(MODEL, H100, {}, 64_000, recompute=recompute)
    split = plan(MODEL, H100, mesh, 64_000, recompute=recompute)
    assert split.lower_ns <= split.upper_ns <= (1 + len(mesh)) * split.lower_ns
    assert split.flops_per_device * split.devices == pytest.approx(whole.flops_per_device)
    states = split.memory.weights + split.memory.gradients + split.memory.optimizer
    assert states * fsdp * tensor * pipeline == pytest.approx(16 * PARAMS)
    assert {item.axis for item in split.traffic} == {axis for axis, size in mesh.items() if size > 1}


@pytest.mark.parametrize(
    ("mesh", "chip_id", "reason"),
    [
        ({"banana": 2}, "h100_sxm", "mesh axis banana = 2: known are data, dp"),
        ({"data": 0}, "h100_sxm", "data = 0"),
        ({}, "v100_sxm2_16", "no bf16 peak of v100_sxm2_16"),
        ({"data": 100}, "l4", "network of l4"),
    ],
)
def test_what_cannot_be_planned_has_a_reason(mesh: dict[str, int], chip_id: str, reason: str) -> None:
    with pytest.raises(NoFormula, match=reason):
        plan(MODEL, hardware.get(chip_id), mesh, 64_000, ranks_per_domain=8)


def test_a_torus_carries_the_axes() -> None:
    v5p = hardware.get("tpu_v5p")
    cube = plan(MODEL, v5p, {"fsdp": 16, "tensor": 4}, 64_000, torus=[4, 4, 4])
    assert {(item.axis, item.fabric) for item in cube.traffic} == {
        ("fsdp", "torus 4x4, wrapped, 400 GB/s"),
        ("tensor", "torus 4, wrapped, 200 GB/s"),
    }
    open_ends = plan(MODEL, v5p, {"fsdp": 16, "tensor": 4}, 64_000, torus=[4, 4, 4], wrap=[False] * 3)
    assert open_ends.axis_ns("tensor") > cube.axis_ns("tensor")

"""Serving: the Scaling Book's chapters 7 and 8, and laws."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models import hardware, presets, serving
from tracegap.models.errors import NoFormula
from tracegap.models.inference import max_kv_caches
from tracegap.models.serving import Server

V5E = hardware.get("tpu_v5e")
H100 = hardware.get("h100_sxm")
LLAMA = presets.get("llama-3-70b").model


def book(devices, dtype="int8", usable=1.0):
    return Server(
        model=LLAMA, chip=V5E, devices=devices, context=8192, weight_dtype=dtype, kv_dtype=dtype, usable=usable
    )


def test_the_scaling_book_chapter_8():
    """LLaMA-3 70B on v5e: int8 on 8 chips holds 43 sequences of 8,192, and a step of them takes 19 ms (0.55 QPS/chip).

    Ours counts 70.55e9 parameters where the book takes 70e9 [I4]: 42 sequences; the embedding is looked up, not read.
    """
    server = book(8)
    rule = {"hbm_bytes": 16e9, "L": 80, "K": 8, "H": 128, "S": 8192}
    for chips, size in ((8, 1), (16, 2)):
        fits = [
            max_kv_caches(chips=chips, params=params, weight_bytes=size, kv_bytes_per_elem=size, **rule)
            for params in (70e9, LLAMA.params)
        ]
        assert fits == [43, 42]
    assert server.cache_bytes == 163_840 * 8192
    assert server.max_sequences == 42
    point = serving.decode(server, 43)
    assert point.step_s - point.comm_s == pytest.approx(0.019, rel=0.03)
    assert book(16, "bf16").max_sequences == 42  # the book has 43
    # Prefill of 8,192 tokens on 16 chips at 40%: 0.91 s for the weights; with attention at half its mask 6.5% more
    server = book(16, "bf16")
    assert serving.prefill_s(server, 8192, 0.4) - serving.joins_s(server, 8192) == pytest.approx(0.91, rel=0.09)
    # Three prefill servers to a decode server of 16 chips: 4.07 with attention (+7%) and communication (+23%) of the
    # prefill, and the step of a batch of 32 (18.1 ms) for that of 43. On 8 chips with int8 weights the products stay bf16:
    # a prompt takes twice as long, but for the communication
    split = serving.disaggregate(server, 32, 8192, 512, 0.4)
    assert split.prefill_servers_per_decode_server == pytest.approx(3 * 1.3 * 19 / 18.1, rel=0.01)
    prefill = [serving.prefill_s(one, 8192, 0.4) - serving.joins_s(one, 8192) for one in (book(8), server)]
    assert prefill[0] == pytest.approx(2 * prefill[1])


def test_narrow_weights_are_multiplied_in_bf16():
    """Chapters 1 and 7: int8 weights and bf16 FLOPs have a critical batch of 120 (1.97e14 / 8.2e11 / 2), all int8 240."""
    for dtype in ("bf16", "int8", "int4"):
        assert book(4, dtype).flops_per_s == 4 * 197e12
    narrow = Server(model=LLAMA, chip=V5E, devices=8, context=8192, weight_dtype="int8")
    for math, batch in ((None, 120), ("int8", 240)):
        server = replace(narrow, math_dtype=math)
        # Where multiplying takes as long as reading: weights of one byte, but for the table that is looked up in
        critical = server.touched_bytes(1) / server.hbm_bytes_per_s / (2 * LLAMA.matmul_params / server.flops_per_s)
        assert critical == pytest.approx(batch, rel=0.01)
        below, above = (serving.decode(server, n) for n in (batch - 5, batch + 5))
        assert below.weights_s == pytest.approx(server.touched_bytes(1) / server.hbm_bytes_per_s)
        assert above.weights_s > below.weights_s
    with pytest.raises(NoFormula, match=r"no bf16 peak of v100_sxm2_16 .* it has fp64, fp32, fp16"):
        _ = Server(
            model=LLAMA, chip=hardware.get("v100_sxm2_16"), devices=1, context=1, weight_dtype="int8"
        ).flops_per_s


@pytest.mark.parametrize(("dtype", "devices"), [("bf16", 16), ("int8", 8), ("int4", 4)])
def test_the_fewest_devices(dtype, devices):
    assert (
        serving.fewest_devices(LLAMA, V5E, context=8192, weight_dtype=dtype, kv_dtype=dtype) == devices
    )  # chapter 8: 8.75, 4.4 and 2.2 chips of weights


@given(batch=st.integers(1, 512), more=st.integers(1, 4))
def test_larger_batches_are_slower_steps_and_no_fewer_tokens(batch, more):
    server = Server(model=LLAMA, chip=H100, devices=8, context=4096)
    small, large = serving.decode(server, batch), serving.decode(server, batch * more)
    assert small.step_s <= large.step_s
    assert small.tokens_per_s <= large.tokens_per_s * (1 + 1e-9)
    assert small.step_s == small.weights_s + small.cache_s + small.comm_s


@given(batch=st.integers(1, 4096))
def test_more_tokens_touch_more_experts_up_to_all(batch):
    mixture = presets.get("mixtral-8x7b").model
    server = Server(model=mixture, chip=H100, devices=8, context=4096)
    whole = 2 * (mixture.params - mixture.vocab * mixture.hidden)
    assert server.touched_bytes(batch) <= whole * (1 + 1e-12)
    assert server.touched_bytes(batch) <= server.touched_bytes(batch + 1)
    if batch == 1:
        looked_up = mixture.vocab * mixture.hidden
        assert server.touched_bytes(1) == pytest.approx(2 * (mixture.active_params - looked_up))


def test_the_frontier_ends_with_what_fits():
    server = book(8)
    points = serving.frontier(server)
    assert [point.batch for point in points] == [1, 2, 4, 8, 16, 32, 42]
    assert serving.frontier(book(4)) == []
    assert [p.batch for p in serving.frontier(server, 3)] == [1, 2, 3]


def test_speculation_pays_while_verifying_is_memory_bound():
    server = book(8)
    at_one = serving.speculate(server, 1, accept=0.8, draft_len=4, draft_cost=0.05)
    assert at_one == pytest.approx(2.8013, rel=1e-3)  # Leviathan et al.: verifying is free
    # 5 x 512 tokens are far above v5e's critical batch
    assert serving.speculate(server, 512, accept=0.8, draft_len=4, draft_cost=0.05) < at_one


def test_speculation_pays_less_where_more_tokens_touch_more_experts():
    """Of 8 experts with 2 a token, five tokens touch 1 - (3/4)^5 of them, one 1/4: the rest of the weights is small."""
    model = presets.get("mixtral-8x7b").model
    server = Server(model=model, chip=hardware.get("h200"), devices=1, context=1024)
    experts = 3 * 32 * 8 * 4096 * 14336
    others = model.params - experts - 32000 * 4096  # the table that is looked up in is not read
    plain, verified = (others + experts * (1 - (3 / 4) ** n) for n in (1, 5))
    cache = 2 * 32 * 8 * 128 * 1024
    gain = serving.speculate(server, 1, accept=0.8, draft_len=4, draft_cost=0.05)
    assert gain == pytest.approx(3.3616 / (0.2 + (verified + cache) / (plain + cache)), rel=1e-4)
    dense = Server(model=LLAMA, chip=hardware.get("h200"), devices=2, context=1024)
    assert gain < 1.5 < serving.speculate(dense, 1, accept=0.8, draft_len=4, draft_cost=0.05)


def test_a_state_is_read_and_written_in_each_step():
    model = presets.get("mamba-2.8b").model
    server = Server(model=model, chip=V5E, devices=1, context=1024)
    # 64 layers of 5120 channels, 16 values of state and 3 of convolution each
    assert serving.decode(server, 1).cache_s == pytest.approx(2 * 64 * 5120 * 19 * 2 / 819e9)
    assert server.cache_bytes == 64 * 5120 * 19 * 2


def test_a_state_needs_no_room_for_longer_texts():
    mamba = presets.get("mamba-2.8b").model
    short, long = (Server(model=mamba, chip=H100, devices=1, context=context) for context in (100, 100_000))
    assert short.max_sequences == long.max_sequences > 1000
    assert serving.decode(short, 8) == serving.decode(long, 8)
    latent = Server(model=presets.get("deepseek-v3").model, chip=H100, devices=16, context=4096, cache_over="heads")
    # One compressed vector of 576 values on every device: no rank can split it
    assert latent.cache_bytes == 16 * 61 * 576 * 4096 * 2
    assert replace(latent, cache_over=None).cache_bytes == 61 * 576 * 4096 * 2


def test_caches_go_over_the_batch_where_heads_do_not_suffice():
    heads, batch = (replace(book(16, "bf16"), cache_over=over) for over in ("heads", "batch"))
    assert heads.cache_bytes == 2 * batch.cache_bytes
    assert serving.decode(batch, 16).cache_s == serving.decode(heads, 16).cache_s / 2
    assert serving.decode(batch, 16).comm_s > serving.decode(heads, 16).comm_s
    assert book(16).by_batch
    assert not book(8).by_batch


def test_unknown_memory_is_no_limit():
    unknown = replace(H100, hbm_gb=None)
    server = Server(model=LLAMA, chip=unknown, devices=8, context=4096)
    assert server.max_sequences is None
    assert serving.fewest_devices(LLAMA, unknown, context=1, weight_dtype="bf16", kv_dtype="bf16") is None

"""Attention over caches, scans, quantised weights, transforms: against arithmetic counted one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models import formulas
from tracegap.models.errors import BadShape
from tracegap.models.formulas import attention, matmul, scan, spectral
from tracegap.models.ops import OpSpec, Tensor


def cost(kind: str, *tensors: Tensor, **params: object):
    return formulas.cost(OpSpec(kind=kind, tensors=tensors, params=params))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.sampled_from([1, 2, 4]))
def test_a_decoding_step_reads_each_context_once(contexts: list[int], group: int) -> None:
    heads, kv, d = 8, 8 // group, 64
    q = Tensor(shape=(len(contexts), heads, d), dtype="bf16")
    step = cost("paged_attention", q, contexts=contexts, kv_heads=kv)
    # for each query head: a product of d with each key and each value
    assert step.flops == sum(2 * (2 * d * n) * heads for n in contexts)
    assert step.bytes == sum(2 * 2 * kv * d * n for n in contexts) + 2 * 2 * heads * d * len(contexts)
    # as the attention formula has it, sequence by sequence
    one = [attention.attention_fwd_flops(B=1, T=1, S=n, N=heads, d_qk=d, d_v=d, causal=False) for n in contexts]
    assert step.flops == sum(one)


def test_caches_of_latents_serve_all_heads() -> None:
    # DeepSeek-V3: 128 heads, latents of 512 and 64 for positions
    q = Tensor(shape=(4, 128, 576), dtype="bf16")
    step = cost("paged_attention", q, contexts=[1000] * 4, latent=512)
    sizes = {"B": 4, "S": 1000, "N": 128, "d_latent": 512, "d_rope": 64}
    assert step.flops == attention.mla_decode_flops(**sizes) == 2 * 4 * 128 * 1000 * (576 + 512)
    assert step.bytes == attention.mla_decode_bytes(**sizes, bytes_per_elem=2)
    assert (
        cost("paged_attention", q, contexts=[1000] * 4, latent=512, cache_dtype="fp8").bytes == step.bytes - 4000 * 576
    )


def test_contexts_that_nobody_tells_are_unknown() -> None:
    assert cost("paged_attention", Tensor(shape=(4, 8, 64), dtype="bf16")).flops is None
    with pytest.raises(BadShape, match="sequences, heads, width"):
        cost("paged_attention", Tensor(shape=(8, 64), dtype="bf16"), contexts=[1])


def test_a_chunked_scan_by_its_products() -> None:
    batch, length, heads, p, n, groups, chunk = 2, 256, 4, 64, 16, 1, 64
    x = Tensor(shape=(batch, length, heads, p), dtype="bf16")
    bc = Tensor(shape=(batch, length, groups, n), dtype="bf16")
    dt, a = Tensor(shape=(batch, length, heads), dtype="fp32"), Tensor(shape=(heads,), dtype="fp32")
    chunks = batch * length // chunk
    products = [
        matmul.matmul_flops(chunk, n, chunk, chunks * groups),  # scores inside a chunk
        matmul.matmul_flops(chunk, chunk, p, chunks * heads),  # scores times inputs
        matmul.matmul_flops(n, chunk, p, chunks * heads),  # state at the end of a chunk
        matmul.matmul_flops(chunk, n, p, chunks * heads),  # outputs of the state before it
    ]
    found = cost("chunked_scan", x, dt, a, bc, bc, chunk=chunk)
    assert found.flops == sum(products)
    assert cost("chunked_scan", x, dt, a, bc, bc, chunk=10**6).flops == cost(
        "chunked_scan", x, dt, a, bc, bc, chunk=length
    ).flops  # fmt: skip


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_scan_grows_with_state_and_length(length: int, state: int) -> None:
    one = scan.selective_scan_fwd_flops(B=1, L=length, D=8, N=state)
    assert scan.selective_scan_fwd_flops(B=3, L=length, D=8, N=state) == 3 * one
    assert scan.selective_scan_fwd_flops(B=1, L=length, D=8, N=2 * state) == 2 * one


def test_weights_of_few_bits_with_scales() -> None:
    # 4 bits in groups of 128 with a bf16 scale and a 4-bit zero point: 4.156 bits a weight
    size = matmul.quantised_weight_bytes(K=4096, N=4096, weight_bits=4, group=128, zero_bytes=0.5)
    assert size / 4096**2 * 8 == pytest.approx(4 + 20 / 128)


def test_a_fast_transform_beats_a_slow_one() -> None:
    # the sum of n products for each of n results: 8 n^2 real operations
    assert spectral.fft_flops(n=4) == 40
    assert spectral.fft_flops(n=1024) < 8 * 1024**2 / 100

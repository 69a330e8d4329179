from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.models.errors import NoFormula
from tracegap.models.transformer import ForwardFlops, Model, forward_flops, train_flops

GQA = Model(layers=2, hidden=1024, heads=16, kv_heads=4, head_dim=64, ffn=2816, vocab=32000, seq=2048)
LLAMA_3_70B = Model(layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672, vocab=128256, seq=8192)
GPT_2 = Model(layers=12, hidden=768, heads=12, ffn=3072, mlp="gelu", vocab=50257, seq=1024, tied_embeddings=True)


def test_a_causal_decoder_with_grouped_queries() -> None:
    assert forward_flops(GQA, 4 * 2048) == ForwardFlops(linear=906_238_099_456, attention=68_719_476_736)
    assert train_flops(GQA, 4 * 2048) == 2_924_872_728_576


def products(model: Model, sequences: int) -> list[tuple[int, ...]]:
    """Every matrix product of a forward pass as (rows, contracted, columns), one after the other, nothing masked."""
    d, h, n, k = model.hidden, model.head_width, model.heads, model.kv_head_count
    seq = model.seq or 0
    tokens = sequences * seq
    layer = [(tokens, d, n * h), (tokens, d, k * h), (tokens, d, k * h), (tokens, n * h, d)]
    layer += [(tokens, d, model.ffn), (tokens, model.ffn, d)]
    layer += [(tokens, d, model.ffn)] if model.mlp == "swiglu" else []
    layer += [(seq, h, seq), (seq, seq, h)] * (sequences * n)
    return layer * model.layers + [(tokens, d, model.vocab)]


@pytest.mark.parametrize("kv_heads", [None, 3, 1])
@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
def test_flops_are_those_of_every_product_written_out(mlp: str, kv_heads: int | None) -> None:
    model = Model(
        layers=2, hidden=10, heads=3, kv_heads=kv_heads, head_dim=7, ffn=23, mlp=mlp, vocab=31, seq=5, causal=False
    )
    assert forward_flops(model, 4 * 5).total == sum(2 * prod(product) for product in products(model, 4))


def test_published_sizes() -> None:
    assert LLAMA_3_70B.params == 70_552_387_584  # 70.6e9 as published, norms left out
    # 124.4e6 as published: 38.6e6 of the embedding, 85e6 of layers; biases, norms and 0.8e6 of positions left out
    assert GPT_2.params == 12 * 12 * 768**2 + 50257 * 768
    assert GPT_2.head_width == 64


models = st.builds(
    Model,
    layers=st.integers(1, 8),
    hidden=st.integers(1, 64).map(lambda n: 8 * n),
    heads=st.sampled_from([1, 2, 4, 8]),
    kv_heads=st.none() | st.just(1),
    ffn=st.integers(1, 512),
    mlp=st.sampled_from(["swiglu", "geglu", "gelu", "relu"]),
    vocab=st.integers(1, 1000),
    seq=st.integers(1, 64).map(lambda n: 2 * n),
    causal=st.booleans(),
    tied_embeddings=st.booleans(),
)


@given(models, st.integers(1, 50))
def test_flops_are_linear_in_sequences_and_thrice_in_training(model: Model, sequences: int) -> None:
    assert model.seq
    one = forward_flops(model, model.seq)
    many = forward_flops(model, sequences * model.seq)
    assert (many.linear, many.attention) == (sequences * one.linear, sequences * one.attention)
    assert train_flops(model, model.seq) == 3 * one.total


@given(models)
def test_tying_the_embeddings_saves_memory_not_arithmetic(model: Model) -> None:
    other = {field: getattr(model, field) for field in Model.__slots__} | {"tied_embeddings": not model.tied_embeddings}
    twin = Model(**other)
    assert model.seq
    assert forward_flops(twin, model.seq) == forward_flops(model, model.seq)
    assert abs(twin.params - model.params) == model.hidden * model.vocab


def test_what_is_missing_or_unknown_is_said() -> None:
    with pytest.raises(NoFormula, match="sequence length"):
        forward_flops(Model(layers=1, hidden=8, heads=1, ffn=8, vocab=8), 8)
    with pytest.raises(NoFormula, match=r"mlp 'moe'.*swiglu"):
        Model(layers=1, hidden=8, heads=1, ffn=8, vocab=8, mlp="moe")

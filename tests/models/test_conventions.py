"""Conventions of utilisation against figures that papers print, and against products counted on paper."""

import pytest

from tracegap.models import presets
from tracegap.models.architecture import Model
from tracegap.models.conventions import CONVENTIONS
from tracegap.models.transformer import train_flops

BY_NAME = {convention.name: convention for convention in CONVENTIONS}
TINY = Model(layers=4, hidden=5, heads=1, ffn=20, mlp="gelu", vocab=7, seq=3)
"""A token and layer forward: 24 x 25 = 600 FLOPs of weights, 4 x 3 x 5 = 60 of unmasked attention; the head 2 x 5 x 7 = 70."""


def flops(name: str, model: Model, tokens: int = 1, tensor: int = 1) -> float:
    return BY_NAME[name].flops(model, tokens, tensor)


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("model_flops", 6 * 3 * (4 * (600 + 30) + 70)),
        ("full_attention", 6 * 3 * (4 * (600 + 60) + 70)),
        ("megatron_2021", 6 * (4 * 4 * (600 + 60) + 3 * 70)),
        ("6nd", 6 * 6 * (4 * 300 + 2 * 35)),
        ("6nd_without_embeddings", 6 * 6 * 4 * 300),
        ("palm", 6 * (6 * (4 * 300 + 2 * 35) + 12 * 4 * 5 * 3)),
        ("nanogpt", 6 * (6 * (4 * 300 + 2 * 35) + 12 * 4 * 5 * 3)),
        ("megatron", 6 * 3 * (4 * (600 + 30) + 2 * 5 * 128)),
    ],
)
def test_six_tokens_of_a_tiny_model_on_paper(name, by_hand):
    assert flops(name, TINY, 6) == by_hand


def test_every_convention_is_worked_out_on_paper():
    tested = {
        "model_flops",
        "full_attention",
        "megatron_2021",
        "6nd",
        "6nd_without_embeddings",
        "palm",
        "nanogpt",
        "megatron",
    }
    assert set(BY_NAME) == tested


def test_palm_as_printed():
    """Appendix B: 238.3 thousand tokens a second on 6,144 TPU v4 of 275 TFLOP/s, 46.2% with and 45.7% without attention."""
    palm = presets.get("palm-540b").model
    at_peak = 6144 * 275e12 / 238.3e3
    assert round(100 * flops("palm", palm) / at_peak, 1) == 46.2
    assert round(100 * flops("6nd", palm) / at_peak, 1) == 45.7


def test_megatron_175b_as_printed():
    """Korthikanti et al., table 5: 64 sequences in 13.75 s on 64 A100 of 312 TFLOP/s, MFU 51.4%."""
    gpt = Model(layers=96, hidden=12288, heads=96, ffn=49152, mlp="gelu", vocab=51200, seq=2048)
    assert round(100 * flops("full_attention", gpt, 64 * 2048) / (13.75 * 64 * 312e12), 1) == 51.4


def test_nanogpt_of_gpt_2():
    """123.65M parameters, as nanoGPT prints: 124,439,808 less 1024 x 768 positions; 12 x 12 x 12 x 64 x 1024 of attention."""
    gpt = presets.get("gpt-2").model
    assert flops("nanogpt", gpt) == 6 * 123_653_376 + 113_246_208
    assert flops("palm", gpt) == 6 * 124_439_808 + 113_246_208


def test_the_vocabulary_is_padded_a_tensor_rank():
    gpt = presets.get("gpt-2").model
    for tensor, padded in ((1, 50304), (8, 51200)):
        assert flops("megatron", gpt, 10, tensor) - train_flops(gpt, 10) == 6 * 768 * (padded - 50257) * 10


def test_recomputing_all_is_a_third_more_and_no_mask_is_never_less():
    """4 forward passes over 3, but for the head; and the causal half."""
    model = presets.get("llama-3-8b").model
    assert 1.29 < flops("megatron_2021", model) / flops("full_attention", model) < 4 / 3
    assert flops("model_flops", model) < flops("full_attention", model)

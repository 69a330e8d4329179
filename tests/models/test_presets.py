"""Published models: parameter counts as published, and the same models from their `config.json`."""

import pytest

from tracegap.models import hf_config, presets
from tracegap.models.architecture import weights
from tracegap.models.errors import NoFormula
from tracegap.models.presets import UnknownModel
from tracegap.models.transformer import cache_bytes, train_flops

LLAMA = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
    "num_hidden_layers": 80, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS = {
    "llama-3-70b": LLAMA,
    "llama-3.2-1b": LLAMA | {
        "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_hidden_layers": 16,
        "head_dim": 64, "tie_word_embeddings": True, "mlp_bias": False,
    },
    "mistral-7b": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
        "hidden_act": "silu", "sliding_window": 4096, "tie_word_embeddings": False,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
        "hidden_act": "silu", "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    },
    "qwen-2.5-72b": {
        "model_type": "qwen2", "hidden_size": 8192, "intermediate_size": 29568, "num_attention_heads": 64,
        "num_hidden_layers": 80, "num_key_value_heads": 8, "vocab_size": 152064, "max_position_embeddings": 131072,
        "hidden_act": "silu", "use_sliding_window": False, "sliding_window": 131072, "tie_word_embeddings": False,
    },
    "qwen-3-8b": {
        "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
        "num_hidden_layers": 36, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "max_position_embeddings": 40960, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
    },
    "qwen-3-30b-a3b": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32,
        "num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
        "max_position_embeddings": 40960, "hidden_act": "silu", "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
    },
    "gemma-7b": {
        "model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576, "num_attention_heads": 16,
        "num_hidden_layers": 28, "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256000,
        "max_position_embeddings": 8192, "hidden_act": "gelu",
    },
    "gemma-2-9b": {
        "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16,
        "num_hidden_layers": 42, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000,
        "max_position_embeddings": 8192, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61, "vocab_size": 129280,
        "max_position_embeddings": 163840, "hidden_act": "silu", "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
        "tie_word_embeddings": False,
    },
    "gpt-2": {
        "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
    },
    "gpt-neox-20b": {
        "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64,
        "num_hidden_layers": 44, "vocab_size": 50432, "max_position_embeddings": 2048, "hidden_act": "gelu_fast",
        "use_parallel_residual": True, "tie_word_embeddings": False,
    },
    "t5-11b": {
        "model_type": "t5", "d_model": 1024, "d_kv": 128, "d_ff": 65536, "num_heads": 128, "num_layers": 24,
        "vocab_size": 32128, "n_positions": 512, "relative_attention_num_buckets": 32,
    },
    "falcon-7b": {
        "model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32,
        "vocab_size": 65024, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False,
        "bias": False,
    },
    "falcon-40b": {
        "model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60,
        "num_kv_heads": 8, "vocab_size": 65024, "new_decoder_architecture": True, "bias": False,
    },
    "mamba-2.8b": {
        "model_type": "mamba", "hidden_size": 2560, "intermediate_size": 5120, "num_hidden_layers": 64,
        "vocab_size": 50280, "state_size": 16, "time_step_rank": 160, "conv_kernel": 4,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_has_as_many_parameters_as_published(name):
    preset = presets.get(name)
    assert preset.source
    # What was opened, and when
    assert "opened 2026-" in preset.checked
    assert "opened 2026-" in preset.params_checked
    assert preset.model.params == pytest.approx(preset.params, rel=max(preset.params_tolerance, 1e-12), abs=0)
    if preset.active_params is not None:
        active = preset.model.active_params
        assert active == pytest.approx(preset.active_params, rel=preset.active_params_tolerance)
        assert active < preset.model.params
    else:
        assert preset.model.active_params == preset.model.params


@pytest.mark.parametrize(
    ("name", "files_hold", "besides"),
    [
        ("falcon-7b", 7_217_189_760, lambda m: m.vocab * m.hidden),  # the head, tied, is written out
        ("falcon-40b", 41_835_970_560, lambda m: m.vocab * m.hidden),
        ("llama-2-7b", 6_738_417_664, lambda m: m.layers * m.head_width // 2),  # rotary frequencies, which do not train
        ("llama-2-13b", 13_015_866_880, lambda m: m.layers * m.head_width // 2),
        ("llama-2-70b", 68_976_653_312, lambda m: m.layers * m.head_width // 2),
        # The authors' 8 or 16 files each hold the norms, and 16 hold the 8 key/value heads twice
        ("llama-3-70b", 70_562_938_880, lambda m: 7 * (2 * m.layers + 1) * m.hidden),
        (
            "llama-3.1-405b",
            410_143_424_512,
            lambda m: 15 * (2 * m.layers + 1) * m.hidden + m.layers * 2 * m.hidden * m.kv_head_count * m.head_width,
        ),
    ],
)
def test_the_files_of_a_release_hold_what_we_count_and_copies(name, files_hold, besides):
    """Totals of the released files (thamada/modelQuery README.md, tables of the Hugging Face API)."""
    model = presets.get(name).model
    assert model.params + besides(model) == files_hold


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_json_describes_the_same_model(name):
    read, preset = hf_config.model_from(CONFIGS[name]), presets.get(name).model
    assert weights(read) == weights(preset) or name == "t5-11b"  # whose preset has a longer input than target
    assert read.params == preset.params
    for field in ("layers", "kv_head_count", "head_width", "window", "moe_layers", "parallel_block"):
        assert getattr(read, field) == getattr(preset, field)


def test_every_architecture_is_tried():
    assert {config["model_type"] for config in CONFIGS.values()} == set(hf_config.ARCHITECTURES)


def test_what_is_not_known_is_refused_by_name():
    with pytest.raises(NoFormula, match="model_type 'rwkv' is not known; known are llama"):
        hf_config.model_from({"model_type": "rwkv"})
    with pytest.raises(NoFormula, match="model_type None"):
        hf_config.model_from({})
    with pytest.raises(NoFormula, match="config.json of a llama lacks hidden_size"):
        hf_config.model_from({k: v for k, v in LLAMA.items() if k != "hidden_size"})
    with pytest.raises(NoFormula, match="activation 'relu2'"):
        hf_config.model_from(LLAMA | {"hidden_act": "relu2"})
    with pytest.raises(UnknownModel, match=r"no model 'llama-3-70' .* did you mean llama-3-70b"):
        presets.get("llama-3-70")


def test_published_flops():
    """Against 6 P D of papers: GPT-3 3.14e23 on 300B tokens (+1.5%: attention and head are in ours, positions and
    look-ups are not); Llama 3 405B 3.8e25 on 15.6T (+3.6%)."""
    gpt3 = presets.get("gpt-3-175b").model
    assert 6 * gpt3.params * 300e9 == pytest.approx(3.14e23, rel=0.002)
    assert train_flops(gpt3, 2048) / 2048 * 300e9 == pytest.approx(3.14e23, rel=0.03)
    llama = presets.get("llama-3.1-405b").model
    assert 6 * llama.params * 15.6e12 == pytest.approx(3.8e25, rel=0.001)
    assert train_flops(llama, 8192) / 8192 * 15.6e12 == pytest.approx(3.8e25, rel=0.04)


def test_published_caches():
    """MLA keeps 576 values a token and layer (DeepSeek-V3, section 2.1.1); the Scaling Book's 160 KiB a token."""
    assert cache_bytes(presets.get("deepseek-v3").model, 1, 2) == 61 * 576 * 2
    assert cache_bytes(presets.get("llama-3-70b").model, 1, 1) == 163840
    # A window keeps no more than its own tokens, a state-space model its state however long the text is
    assert cache_bytes(presets.get("mistral-7b").model, 10_000, 2) == cache_bytes(
        presets.get("mistral-7b").model, 4096, 2
    )
    mamba = presets.get("mamba-2.8b").model
    assert cache_bytes(mamba, 10, 2) == cache_bytes(mamba, 100_000, 2) == 64 * 5120 * (16 + 3) * 2

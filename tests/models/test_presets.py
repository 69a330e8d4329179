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

RELEASED = {
    "zamba-7b": (7_232_490_496, {
        "model_type": "zamba", "num_hidden_layers": 76, "vocab_size": 32000, "hidden_size": 3712, "intermediate_size": 14848,
        "num_attention_heads": 16, "num_key_value_heads": 16, "attention_hidden_size": 7424, "attention_head_dim": 464,
        "attn_layer_period": 6, "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
        "mamba_dt_rank": 232, "hidden_act": "gelu", "max_position_embeddings": 4096,
    }),
    "gpt-oss-20b": (20_914_757_184, {
        "model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32, "vocab_size": 201088,
        "hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64,
        "num_key_value_heads": 8, "sliding_window": 128, "num_experts_per_tok": 4, "max_position_embeddings":
        131072, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": True,
    }),
    "gemma-3-1b": (999_885_952, {
        "model_type": "gemma3_text", "num_hidden_layers": 26, "vocab_size": 262144, "hidden_size": 1152,
        "intermediate_size": 6912, "head_dim": 256, "num_attention_heads": 4, "num_key_value_heads": 1,
        "sliding_window": 512, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 32768,
    }),
    "opt-6.7b": (6_658_473_984, {
        "model_type": "opt", "num_hidden_layers": 32, "vocab_size": 50272, "hidden_size": 4096, "ffn_dim": 16384,
        "num_attention_heads": 32, "max_position_embeddings": 2048, "activation_function": "relu",
        "word_embed_proj_dim": 4096, "do_layer_norm_before": True,
    }),
    "bloom-176b": (176_247_271_424, {
        "model_type": "bloom", "n_layer": 70, "vocab_size": 250880, "hidden_size": 14336, "n_head": 112,
    }),
    "qwen1.5-moe": (14_315_784_192, {
        "model_type": "qwen2_moe", "num_hidden_layers": 24, "vocab_size": 151936, "hidden_size": 2048,
        "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 60,
        "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "hidden_act": "silu", "max_position_embeddings": 8192, "tie_word_embeddings": False,
    }),
    "deepseek-v2-lite": (15_706_484_224, {
        "model_type": "deepseek_v2", "num_hidden_layers": 27, "vocab_size": 102400, "hidden_size": 2048,
        "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_attention_heads": 16, "num_key_value_heads":
        16, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim":
        128, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
        "hidden_act": "silu", "max_position_embeddings": 163840, "tie_word_embeddings": False,
    }),
    "phi-3-mini": (3_821_079_552, {
        "model_type": "phi3", "num_hidden_layers": 32, "vocab_size": 32064, "hidden_size": 3072,
        "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
        "max_position_embeddings": 4096, "sliding_window": 2047, "tie_word_embeddings": False,
    }),
    "starcoder2-3b": (3_030_371_328, {
        "model_type": "starcoder2", "num_hidden_layers": 30, "vocab_size": 49152, "hidden_size": 3072,
        "intermediate_size": 12288, "num_attention_heads": 24, "num_key_value_heads": 2, "max_position_embeddings":
        16384, "sliding_window": 4096, "use_bias": True,
    }),
    "jamba-v0.1": (51_570_323_328, {
        "model_type": "jamba", "num_hidden_layers": 32, "vocab_size": 65536, "hidden_size": 4096,
        "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
        "max_position_embeddings": 262144, "num_experts": 16, "num_experts_per_tok": 2, "expert_layer_period": 2,
        "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16,
        "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256, "tie_word_embeddings": False,
    }),
    "mamba-codestral-7b": (7_285_403_648, {
        "model_type": "mamba2", "num_hidden_layers": 64, "vocab_size": 32768, "hidden_size": 4096, "state_size":
        128, "num_heads": 128, "head_dim": 64, "n_groups": 8, "expand": 2, "conv_kernel": 4, "tie_word_embeddings":
        False,
    }),
    "falcon-mamba-7b": (7_272_665_088, {
        "model_type": "falcon_mamba", "num_hidden_layers": 64, "vocab_size": 65024, "hidden_size": 4096,
        "state_size": 16, "time_step_rank": 256, "expand": 16, "intermediate_size": 8192, "conv_kernel": 4,
        "tie_word_embeddings": False,
    }),
    "olmo-7b": (6_888_095_744, {
        "model_type": "olmo", "num_hidden_layers": 32, "vocab_size": 50304, "hidden_size": 4096,
        "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
        "max_position_embeddings": 2048, "tie_word_embeddings": False,
    }),
    "granite-3.1-8b": (8_170_848_256, {
        "model_type": "granite", "num_hidden_layers": 40, "vocab_size": 49155, "hidden_size": 4096,
        "intermediate_size": 12800, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
        "max_position_embeddings": 131072, "tie_word_embeddings": True,
    }),
    "kimi-k2": (1_026_408_209_408, {
        "model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_attention_heads": 64, "num_key_value_heads": 64, "num_hidden_layers": 61, "vocab_size": 163840,
        "max_position_embeddings": 131072, "hidden_act": "silu", "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 384,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "tie_word_embeddings": False,
    }),
}  # fmt: skip
"""Parameters and `config.json` of models that are no presets. The counts are Transformers 5.24's own, of the model that it
builds from the configuration without memory (tests/oracles/test_transformers.py)."""


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


@pytest.mark.parametrize("name", RELEASED)
def test_a_config_json_of_a_release_has_its_parameters(name):
    params, config = RELEASED[name]
    assert hf_config.model_from(config).params == params


def test_every_architecture_is_tried():
    configs = [*CONFIGS.values(), *(config for _, config in RELEASED.values())]
    assert {config["model_type"] for config in configs} == set(hf_config.ARCHITECTURES)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("gemma-3-1b", {"layer_types": ["sliding_attention"] * 26}, "layer_types with 0 full_attention of 26"),
        ("qwen1.5-moe", {"shared_expert_intermediate_size": 5000}, "a shared expert of width 5000"),
        ("qwen1.5-moe", {"mlp_only_layers": [0]}, "mlp_only_layers"),
        ("opt-6.7b", {"word_embed_proj_dim": 512}, "narrow embeddings"),
        ("opt-6.7b", {"activation_function": "silu"}, "activation 'silu' of an MLP: known are relu, gelu"),
        ("jamba-v0.1", {"num_hidden_layers": 30}, "jamba with attention in every 8th of 30 layers"),
        ("mamba-codestral-7b", {"use_bias": True}, "mamba2 with biases"),
    ],
)
def test_what_is_nearly_known_is_refused(name, changes, words):
    with pytest.raises(NoFormula, match=words):
        hf_config.model_from(RELEASED[name][1] | changes)


def test_windows_and_states_of_released_models():
    """gpt-oss: every other layer sees 128 tokens; Gemma 3: one of six sees all; Jamba: 4 of 32 layers have a cache."""
    oss, gemma, jamba = (
        hf_config.model_from(RELEASED[name][1]) for name in ("gpt-oss-20b", "gemma-3-1b", "jamba-v0.1")
    )
    assert cache_bytes(oss, 10_000, 2) == 2 * 8 * 64 * 2 * (12 * 10_000 + 12 * 128)
    assert cache_bytes(gemma, 10_000, 2) == 2 * 1 * 256 * 2 * (4 * 10_000 + 22 * 512)
    assert cache_bytes(jamba, 10_000, 2) == 2 * (4 * 10_000 * 2 * 8 * 128 + 28 * 8192 * (16 + 3))
    # Zamba: a state in each of 76 layers, and a cache of each of 13 uses of the one shared block
    zamba = hf_config.model_from(RELEASED["zamba-7b"][1])
    assert cache_bytes(zamba, 1000, 2) == 2 * (13 * 1000 * 2 * 16 * 464 + 76 * 7424 * (16 + 3))
    # its block is stored once and multiplied 13 times: q, k, v, o and three of the MLP
    block = 3 * 7424**2 + 7424 * 3712 + 3 * 3712 * 14848
    mamba_layer = 3712 * 2 * 7424 + 7424 * (232 + 32) + 232 * 7424 + 7424 * 3712
    assert zamba.matmul_params == 13 * (block + 3712**2) + 76 * mamba_layer + 32000 * 3712
    # Mamba 2 convolves its input and output maps too: 8 groups of 128 each
    mamba = hf_config.model_from(RELEASED["mamba-codestral-7b"][1])
    assert cache_bytes(mamba, 10, 2) == 2 * 64 * (8192 * 128 + (8192 + 2 * 8 * 128) * 3)


def test_what_is_not_known_is_refused_by_name():
    with pytest.raises(NoFormula, match="model_type 'rwkv' is not known; known are llama"):
        hf_config.model_from({"model_type": "rwkv"})
    with pytest.raises(NoFormula, match="model_type None"):
        hf_config.model_from({})
    with pytest.raises(NoFormula, match=r"config\.json of a llama lacks hidden_size"):
        hf_config.model_from({k: v for k, v in LLAMA.items() if k != "hidden_size"})
    with pytest.raises(NoFormula, match=r"config\.json of a bloom lacks n_layer, n_head, vocab_size"):
        hf_config.model_from({"model_type": "bloom", "hidden_size": 64})
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

"""Hugging Face's Transformers as an oracle: parameters of the models that it builds, and FLOPs of their products.

Skipped where transformers and torch are not installed; they are no dependencies. Met with transformers 5.24 and torch 2.13:

- no deviation in the parameters of any architecture of `models/hf_config.py`, each with the library's own default
  configuration, written as it writes it;
- none in FLOPs against PyTorch's `FlopCounterMode`, forward and with backward three times as many, once the mask that the
  counter ignores is left out of ours; state-space layers, whose scan is no product, are not compared.
"""

import json
from dataclasses import replace

import pytest

from tracegap.models import hf_config
from tracegap.models.transformer import forward_flops, train_flops

torch = pytest.importorskip("torch", reason="the oracle needs torch: pip install torch")
transformers = pytest.importorskip("transformers", reason="the oracle needs transformers: pip install transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

SMALLER = {
    "deepseek_v2": {"num_hidden_layers": 3, "first_k_dense_replace": 1},
    "deepseek_v3": {"num_hidden_layers": 5},
    "gemma3_text": {"num_hidden_layers": 12},
    "jamba": {"num_hidden_layers": 8},
}


@pytest.mark.parametrize("name", sorted(hf_config.ARCHITECTURES))
def test_parameters(name):
    try:
        config = transformers.AutoConfig.for_model(name, **SMALLER.get(name, {}))
    except ValueError:
        pytest.skip(f"no {name} in transformers {transformers.__version__}")
    built = transformers.T5ForConditionalGeneration if name == "t5" else transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        model = built(config)
    model.tie_weights()
    written = json.loads(json.dumps(config.to_dict(), default=str))
    assert hf_config.model_from(written).params == sum(weight.numel() for weight in model.parameters())


TOKENS = 32
USUAL = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 64, "head_dim": 16,
    "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}  # fmt: skip
PLAIN = {"hidden_size": 64, "vocab_size": 128}
WHOLE = {key: value for key, value in USUAL.items() if key not in ("num_key_value_heads", "head_dim")}
TINY = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "granite", "olmo", "phi3", "starcoder2"), USUAL),
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"), USUAL | EXPERTS),
    "gemma3_text": USUAL | {"num_hidden_layers": 6},
    "deepseek_v3": WHOLE | {
        "num_hidden_layers": 3, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "first_k_dense_replace": 1, "moe_intermediate_size": 32, "n_group": 2, "topk_group": 1,
    },
    "gpt2": {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 128, "n_positions": 64},
    "gpt_neox": WHOLE,
    "opt": WHOLE | {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "bloom": PLAIN | {"n_layer": 2, "n_head": 4},
    "falcon": PLAIN | {"num_hidden_layers": 2, "num_attention_heads": 4},
    "t5": {"num_layers": 2, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_heads": 4, "vocab_size": 128},
}  # fmt: skip


@pytest.mark.parametrize("name", TINY)
def test_flops(name):
    from torch.utils.flop_counter import FlopCounterMode

    config = transformers.AutoConfig.for_model(name, **TINY[name])
    if name == "t5":
        model = transformers.T5ForConditionalGeneration(config)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        model.set_experts_implementation("eager")
    ids = torch.zeros((1, TOKENS), dtype=torch.int64)
    inputs = {"input_ids": ids, "use_cache": False} | ({"decoder_input_ids": ids} if name == "t5" else {})
    with FlopCounterMode(display=False) as counted:
        said = model(**inputs).logits
    forward = counted.get_total_flops()
    with counted:
        said.sum().backward()
    written = json.loads(json.dumps(config.to_dict(), default=str))
    ours = replace(hf_config.model_from(written), seq=TOKENS, causal=False)
    assert forward_flops(ours, TOKENS).total == forward
    # the counter starts anew each time
    assert train_flops(ours, TOKENS) == forward + counted.get_total_flops()

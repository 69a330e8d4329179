"""Arguments of Megatron-LM as a model, a mesh and a batch."""

import pytest

from tracegap.models import megatron_args, presets
from tracegap.models.errors import NoFormula

LLAMA = {
    "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "group_query_attention": True, "num_query_groups": 8,
    "kv_channels": 128, "ffn_hidden_size": 14336, "swiglu": True, "padded_vocab_size": 128256, "seq_length": 8192,
    "untie_embeddings_and_output_weights": True, "bf16": True, "normalization": "RMSNorm", "add_bias_linear": False,
    "position_embedding_type": "rope", "max_position_embeddings": 8192, "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 4, "context_parallel_size": 1, "global_batch_size": 128, "micro_batch_size": 1,
    "use_distributed_optimizer": True, "recompute_granularity": "full", "fp8": None,
}  # fmt: skip


def test_llama_3_8b_is_the_preset():
    found = megatron_args.read(LLAMA, 64)
    preset = presets.get("llama-3-8b")
    assert found.model.params == preset.params
    assert found.model.seq == 8192
    # 64 ranks over 4 stages of 2 tensor ranks are 8 replicas, each with 128 / 8 sequences, one at a time
    assert found.mesh == {"pipeline": 4, "data": 8, "tensor": 2}
    assert found.tokens_per_step == 1_048_576
    assert found.recipe == {"recompute": "full", "zero": 1, "microbatches": 16}


def test_without_the_number_of_ranks_there_is_no_mesh():
    found = megatron_args.read(LLAMA)
    assert found.mesh == {}
    assert "microbatches" not in found.recipe


def test_experts_share_the_ranks_of_the_replicas():
    moe = LLAMA | {"num_experts": 8, "moe_router_topk": 2, "expert_model_parallel_size": 4, "moe_ffn_hidden_size": 1024}
    found = megatron_args.read(moe, 64)
    assert found.mesh == {"pipeline": 4, "data": 2, "expert": 4, "tensor": 2}
    assert (found.model.experts, found.model.experts_per_token, found.model.expert_ffn) == (8, 2, 1024)


def test_widths_that_megatron_sets_itself():
    plain = {k: v for k, v in LLAMA.items() if k not in ("ffn_hidden_size", "swiglu")}
    assert megatron_args.read(plain).model.ffn == 4 * 4096
    gated = {k: v for k, v in LLAMA.items() if k != "ffn_hidden_size"}
    assert megatron_args.read(gated).model.ffn == 10880  # 8/3 of 4096 is 10922.7, in whole 64s


@pytest.mark.parametrize(
    ("change", "ranks", "says"),
    [
        ({"hidden_size": None}, 64, "lack hidden_size"),
        ({}, 20, "20 ranks are no multiple of the 8"),
        ({"num_experts": 8, "moe_layer_freq": [1, 0]}, 64, "moe_layer_freq"),
        ({"num_experts": 8, "moe_shared_expert_intermediate_size": 1000}, 64, "no whole number"),
    ],
)
def test_what_does_not_fit_is_said(change, ranks, says):
    with pytest.raises(NoFormula, match=says):
        megatron_args.read(LLAMA | change, ranks)

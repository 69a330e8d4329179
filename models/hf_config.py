"""Models from the `config.json` that Hugging Face's Transformers writes: which of its keys is which of our fields.

To add an architecture, add a row to `ARCHITECTURES`. One that is not there is refused by name: a description that is
nearly right is wrong.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from tracegap.models.architecture import Model
from tracegap.models.errors import NoFormula

Config = Mapping[str, Any]
Keys = dict[str, str | tuple[str, ...]]

_USUAL: Keys = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "seq": "max_position_embeddings",
}
_ACTIVATIONS = {
    "silu": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu",
    "gelu_new": "geglu",
}
"""Name of a gated MLP by the activation of its gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How to read the configuration of one `model_type`."""

    keys: Keys = field(default_factory=lambda: _USUAL)
    """Our field to their key, or to its names in several releases, where the value is taken as it is; one that is absent
    or null keeps our default."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """What the architecture says and no key does."""
    tied: bool = False
    """Whether embeddings are tied where the file does not say: the default of the library for this architecture."""
    more: Callable[[Config], dict[str, Any]] = lambda _: {}
    """What takes more than a name to read."""

    def names(self, ours: str) -> tuple[str, ...]:
        """Their names of a field."""
        theirs = self.keys.get(ours, ours)
        return (theirs,) if isinstance(theirs, str) else theirs


def _gated(config: Config) -> dict[str, Any]:
    name = config.get("hidden_activation") or config.get("hidden_act", "silu")
    if name not in _ACTIVATIONS:
        raise NoFormula(f"config.json: activation {name!r} of a gated MLP: known are {', '.join(_ACTIVATIONS)}")
    return {"mlp": _ACTIVATIONS[name]}


def _llama(config: Config) -> dict[str, Any]:
    biases = {(False, False): "none", (True, False): "attention", (True, True): "all", (False, True): "mlp"}
    told = (bool(config.get("attention_bias")), bool(config.get("mlp_bias")))
    return _gated(config) | {"biases": biases[told]}


def _window(config: Config) -> dict[str, Any]:
    used = config.get("use_sliding_window", True) and config.get("sliding_window")
    return _gated(config) | ({"window": config["sliding_window"]} if used else {})


def _gemma2(config: Config) -> dict[str, Any]:
    return _gated(config) | {"window": config.get("sliding_window", 4096), "global_every": 2}


def _qwen3_moe(config: Config) -> dict[str, Any]:
    if config.get("mlp_only_layers"):
        raise NoFormula("config.json: qwen3_moe with mlp_only_layers is not described")
    return _window(config) | {"moe_every": config.get("decoder_sparse_step", 1)}


def _layers_of(config: Config, kind: str, count: int) -> int:
    """One of how many layers is of a kind, by `layer_types`; an uneven pattern is refused."""
    types = config.get("layer_types") or ()
    found = sum(one == kind for one in types)
    if types and (not found or len(types) // found != count or len(types) // count != found):
        raise NoFormula(f"config.json: layer_types with {found} {kind} of {len(types)} are not described")
    return count


def _gemma3(config: Config) -> dict[str, Any]:
    every = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
    return _gated(config) | {
        "window": config.get("sliding_window") or 4096,
        "global_every": _layers_of(config, "full_attention", every),
    }


def _gpt_oss(config: Config) -> dict[str, Any]:
    return _gated(config) | {
        "window": config.get("sliding_window") or 128,
        "global_every": _layers_of(config, "full_attention", 2),
    }


def _qwen2_moe(config: Config) -> dict[str, Any]:
    shared, expert = config["shared_expert_intermediate_size"], config["moe_intermediate_size"]
    if shared % expert:
        raise NoFormula(f"config.json: a shared expert of width {shared} beside others of {expert} is not described")
    return _qwen3_moe(config) | {"shared_experts": shared // expert}


def _opt(config: Config) -> dict[str, Any]:
    if (
        not config.get("do_layer_norm_before", True)
        or config.get("word_embed_proj_dim", config["hidden_size"]) != config["hidden_size"]
    ):
        raise NoFormula("config.json: opt with norms after blocks or narrow embeddings (350M) is not described")
    act = config.get("activation_function", "relu")
    if act not in ("relu", "gelu"):
        raise NoFormula(f"config.json: activation {act!r} of an MLP: known are relu, gelu")
    return {"mlp": act, "positions": config["max_position_embeddings"] + 2}


def _starcoder2(config: Config) -> dict[str, Any]:
    window = config.get("sliding_window")
    return ({"window": window} if window else {}) | {"biases": "all" if config.get("use_bias", True) else "none"}


def _gpt2(config: Config) -> dict[str, Any]:
    return {"ffn": config.get("n_inner") or 4 * config["n_embd"], "positions": config["n_positions"]}


def _neox(config: Config) -> dict[str, Any]:
    return {"parallel_block": config.get("use_parallel_residual", True)}


def _falcon(config: Config) -> dict[str, Any]:
    new = bool(config.get("new_decoder_architecture"))
    kv_heads = config.get("num_kv_heads") if new else 1 if config.get("multi_query", True) else None
    parallel = bool(config.get("parallel_attn", True)) or new
    return {
        "kv_heads": kv_heads,
        "ffn": config.get("ffn_hidden_size") or 4 * config["hidden_size"],
        "parallel_block": parallel,
        "norms_per_layer": 1 if parallel and not new else 2,
        "biases": "all" if config.get("bias") else "none",
    }


def _t5(config: Config) -> dict[str, Any]:
    act = config.get("feed_forward_proj", "relu")
    kinds = {"relu": "relu", "gelu": "gelu", "gated-gelu": "geglu", "gated-silu": "swiglu"}
    if act not in kinds:
        raise NoFormula(f"config.json: feed_forward_proj {act!r}: known are {', '.join(kinds)}")
    layers = config.get("num_decoder_layers") or config["num_layers"]
    return {"mlp": kinds[act], "layers": layers, "encoder_layers": config["num_layers"]}


def _mamba(config: Config) -> dict[str, Any]:
    inner = config.get("intermediate_size") or config.get("expand", 2) * config["hidden_size"]
    rank = config.get("time_step_rank", "auto")
    return {
        "inner": inner,
        "dt_rank": -(-config["hidden_size"] // 16) if rank == "auto" else rank,
        "state_dim": config.get("state_size", 16),
        "conv_width": config.get("conv_kernel", 4),
    }


def _mamba2(config: Config) -> dict[str, Any]:
    if config.get("use_bias"):
        raise NoFormula("config.json: mamba2 with biases of its projections is not described")
    return {"inner": config.get("expand", 2) * config["hidden_size"]}


def _jamba(config: Config) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    for what, period, offset in (
        ("attention", config["attn_layer_period"], config["attn_layer_offset"]),
        ("experts", config["expert_layer_period"], config["expert_layer_offset"]),
    ):
        if len(range(offset, layers, period)) != layers // period:
            raise NoFormula(f"config.json: jamba with {what} in every {period}th of {layers} layers is not described")
    rank = config.get("mamba_dt_rank", "auto")
    return _gated(config) | {
        "inner": config.get("mamba_expand", 2) * config["hidden_size"],
        "dt_rank": -(-config["hidden_size"] // 16) if rank == "auto" else rank,
    }


def _zamba(config: Config) -> dict[str, Any]:
    types = config.get("layers_block_type")
    beside = config["num_hidden_layers"] - 3
    placed = range(config.get("attn_layer_offset", 4), beside, config.get("attn_layer_period", 6))
    hidden = config["hidden_size"]
    width = config.get("attention_hidden_size") or 2 * hidden
    rank = config.get("mamba_dt_rank", "auto")
    return {
        "mlp": _ACTIVATIONS.get(config.get("hidden_act", "gelu"), "geglu"),
        "shared_uses": types.count("hybrid") if types else 1 + len(placed),
        "shared_width": width,
        "head_dim": config.get("attention_head_dim") or width // config["num_attention_heads"],
        "inner": config.get("mamba_expand", 2) * hidden,
        "dt_rank": -(-hidden // 16) if rank == "auto" else rank,
    }


_MLA: Keys = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "head_dim": "qk_nope_head_dim",
    "rope_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
    "q_rank": "q_lora_rank",
    "kv_rank": "kv_lora_rank",
    "ffn": "intermediate_size",
    "expert_ffn": "moe_intermediate_size",
    "experts": "n_routed_experts",
    "experts_per_token": "num_experts_per_tok",
    "shared_experts": "n_shared_experts",
    "dense_layers": "first_k_dense_replace",
    "moe_every": "moe_layer_freq",
    "vocab": "vocab_size",
    "seq": "max_position_embeddings",
}
_MIXTURE: Keys = {
    "experts": ("num_experts", "num_local_experts"),
    "experts_per_token": "num_experts_per_tok",
    "expert_ffn": "moe_intermediate_size",
}
_MAMBA = {"heads": 0, "ffn": 0, "norm": "rms", "norms_per_layer": 1}
_GEMMA = {"mlp": "geglu", "norm": "rms"}
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(fixed={"norm": "rms"}, more=_llama),
    "mistral": Architecture(fixed={"norm": "rms"}, more=_window),
    "mixtral": Architecture(
        keys=_USUAL | {"experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
        fixed={"norm": "rms"},
        more=_window,
    ),
    # Its files state a window that use_sliding_window switches off
    "qwen2": Architecture(
        fixed={"norm": "rms", "biases": "qkv"}, more=lambda c: _window({"use_sliding_window": False, **c})
    ),
    "qwen3": Architecture(
        fixed={"norm": "rms", "qk_norm": True}, more=lambda c: _window({"use_sliding_window": False, **c})
    ),
    "qwen3_moe": Architecture(
        keys=_USUAL | _MIXTURE,
        fixed={"norm": "rms", "qk_norm": True},
        more=lambda c: _qwen3_moe({"use_sliding_window": False, **c}),
    ),
    "qwen2_moe": Architecture(
        keys=_USUAL | _MIXTURE,
        fixed={"norm": "rms", "biases": "qkv", "shared_gate": True},
        more=lambda c: _qwen2_moe({"use_sliding_window": False, **c}),
    ),
    "gemma": Architecture(fixed=_GEMMA, tied=True),
    "gemma2": Architecture(fixed=_GEMMA | {"norms_per_layer": 4}, tied=True, more=_gemma2),
    "gemma3_text": Architecture(fixed=_GEMMA | {"norms_per_layer": 4, "qk_norm": True}, tied=True, more=_gemma3),
    "granite": Architecture(fixed={"norm": "rms"}, more=_llama),
    "phi3": Architecture(fixed={"norm": "rms"}, more=_window),
    "olmo": Architecture(more=_llama),  # its norms have no weights
    "starcoder2": Architecture(fixed={"mlp": "gelu", "norm": "layer"}, tied=True, more=_starcoder2),
    "gpt_oss": Architecture(
        keys=_USUAL | {"experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"},
        fixed={"norm": "rms", "biases": "mixture", "sinks": True},
        more=_gpt_oss,
    ),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "kimi_k2"), Architecture(keys=_MLA, fixed={"norm": "rms"}, more=_gated)
    ),
    "opt": Architecture(
        keys=_USUAL | {"ffn": "ffn_dim"}, fixed={"norm": "layer", "biases": "all"}, tied=True, more=_opt
    ),
    "bloom": Architecture(
        keys={
            "layers": ("n_layer", "num_hidden_layers"),
            "hidden": ("hidden_size", "n_embed"),
            "heads": ("n_head", "num_attention_heads"),
            "vocab": "vocab_size",
            "seq": "seq_length",
        },
        fixed={"mlp": "gelu", "norm": "layer", "biases": "all", "embedding_norm": True},
        tied=True,
        more=lambda c: {"ffn": 4 * (c.get("hidden_size") or c["n_embed"])},
    ),
    "gpt2": Architecture(
        keys={"layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "vocab": "vocab_size", "seq": "n_positions"},
        fixed={"mlp": "gelu", "norm": "layer", "biases": "all"},
        tied=True,
        more=_gpt2,
    ),
    "gpt_neox": Architecture(
        fixed={"mlp": "gelu", "norm": "layer", "biases": "all"},
        more=_neox,
    ),
    "falcon": Architecture(
        keys={
            "layers": "num_hidden_layers",
            "hidden": "hidden_size",
            "heads": "num_attention_heads",
            "vocab": "vocab_size",
            "seq": "max_position_embeddings",
        },
        fixed={"mlp": "gelu", "norm": "layer"},
        tied=True,
        more=_falcon,
    ),
    "t5": Architecture(
        keys={
            "hidden": "d_model",
            "heads": "num_heads",
            "head_dim": "d_kv",
            "ffn": "d_ff",
            "vocab": "vocab_size",
            "seq": "n_positions",
            "relative_positions": "relative_attention_num_buckets",
        },
        fixed={"norm": "rms"},
        tied=True,
        more=_t5,
    ),
    **dict.fromkeys(
        ("mamba", "falcon_mamba"),
        Architecture(
            keys={"layers": "num_hidden_layers", "hidden": "hidden_size", "vocab": "vocab_size"},
            fixed=_MAMBA | {"recurrence": "mamba"},
            tied=True,
            more=_mamba,
        ),
    ),
    "mamba2": Architecture(
        keys={
            "layers": "num_hidden_layers",
            "hidden": "hidden_size",
            "vocab": "vocab_size",
            "state_dim": "state_size",
            "state_groups": "n_groups",
            "conv_width": "conv_kernel",
            "dt_rank": "num_heads",
        },
        fixed=_MAMBA | {"recurrence": "mamba2"},
        more=_mamba2,
    ),
    "zamba": Architecture(
        keys=_USUAL | {"state_dim": "mamba_d_state", "conv_width": "mamba_d_conv"},
        fixed={"norm": "rms", "norms_per_layer": 1, "recurrence": "mamba"},
        tied=True,
        more=_zamba,
    ),
    "jamba": Architecture(
        keys=_USUAL
        | _MIXTURE
        | {
            "moe_every": "expert_layer_period",
            "attention_every": "attn_layer_period",
            "state_dim": "mamba_d_state",
            "conv_width": "mamba_d_conv",
        },
        fixed={"norm": "rms", "recurrence": "mamba", "state_norms": True},
        more=_jamba,
    ),
}
"""By `model_type`."""


def model_from(config: Config) -> Model:
    """The model of a decoded `config.json`.

    Raises NoFormula, which names the architecture or the key, where it is not known or a key is missing.
    """
    name = config.get("model_type")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise NoFormula(
            f"config.json: model_type {name!r} is not known; known are {', '.join(ARCHITECTURES)}; "
            "a manifest's [model] or numbers can describe others"
        )
    architecture = ARCHITECTURES[name]
    values: dict[str, Any] = {}
    for ours in architecture.keys:
        given = [config[theirs] for theirs in architecture.names(ours) if config.get(theirs) is not None]
        values |= {ours: given[0]} if given else {}
    try:
        values |= {**architecture.fixed, **architecture.more(config)}
    except KeyError as error:
        raise NoFormula(f"config.json of a {name} lacks {error}") from error
    except TypeError as error:
        raise NoFormula(f"config.json of a {name}: a value is not of the type that it should be: {error}") from error
    values["tied_embeddings"] = config.get("tie_word_embeddings", architecture.tied)
    lacking = [architecture.names(f.name)[0] for f in fields(Model) if f.default is MISSING and f.name not in values]
    if lacking:
        raise NoFormula(f"config.json of a {name} lacks {', '.join(lacking)}")
    return Model(**values)

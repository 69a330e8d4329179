"""Model, mesh, batch and recipe from the arguments of a Megatron-LM training, as its logs and configurations have them.

The names and defaults are those of Megatron-LM's `megatron/training/arguments.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracegap.models.architecture import Model
from tracegap.models.errors import NoFormula

SIGN = "num_attention_heads"
"""An argument without which there is no model; with `num_layers` it is Megatron's, not a `config.json`'s."""
_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "padded_vocab_size", "seq_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the arguments say."""

    model: Model
    mesh: dict[str, int]
    """Axis to size, the last one fastest; empty where the number of ranks is unknown."""
    tokens_per_step: int | None
    """None: no global_batch_size."""
    recipe: dict[str, Any]
    """By the names of `models.recipe.Recipe`."""


def read(args: Mapping[str, Any], world_size: int | None = None) -> Arguments:
    """Reads arguments.

    Raises NoFormula where one that the theory needs is absent, or the ranks do not divide over the axes.
    """
    missing = [name for name in _NEEDED if not args.get(name)]
    if missing:
        raise NoFormula(f"Megatron's arguments lack {', '.join(missing)}")
    mesh = _mesh(args, world_size)
    batch = args.get("global_batch_size")
    recipe: dict[str, Any] = {}
    if args.get("recompute_granularity") in ("full", "selective"):
        recipe["recompute"] = args["recompute_granularity"]
    if args.get("use_distributed_optimizer"):
        recipe["zero"] = 1
    if args.get("fp8"):
        recipe["math_dtype"] = "fp8"
    replicas = mesh.get("data", 1) * mesh.get("expert", 1)
    if batch and args.get("micro_batch_size") and mesh:
        recipe["microbatches"] = int(batch) // (int(args["micro_batch_size"]) * replicas)
    if (chunks := args.get("virtual_pipeline_model_parallel_size")) and int(chunks) > 1:
        recipe |= {"schedule": "interleaved", "virtual_stages": int(chunks)}
    return Arguments(
        model=_model(args),
        mesh=mesh,
        tokens_per_step=int(batch) * int(args["seq_length"]) if batch else None,
        recipe=recipe,
    )


def _model(args: Mapping[str, Any]) -> Model:
    hidden, heads, gated = args["hidden_size"], args["num_attention_heads"], bool(args.get("swiglu"))
    # The defaults that Megatron sets itself where no width is given
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    values: dict[str, Any] = {
        "layers": args["num_layers"],
        "hidden": hidden,
        "heads": heads,
        "kv_heads": args.get("num_query_groups") if args.get("group_query_attention") else None,
        "head_dim": args.get("kv_channels"),
        "ffn": args.get("ffn_hidden_size") or usual,
        "mlp": "swiglu" if gated else "gelu",
        "vocab": args["padded_vocab_size"],
        "seq": args["seq_length"],
        "tied_embeddings": not args.get("untie_embeddings_and_output_weights"),
        "dtype": "bf16" if args.get("bf16") else "fp16" if args.get("fp16") else "fp32",
        "norm": "rms" if args.get("normalization") == "RMSNorm" else "layer",
        "biases": "none" if args.get("add_bias_linear") is False else "all",
    }
    if args.get("position_embedding_type", "learned_absolute") == "learned_absolute":
        values["positions"] = args.get("max_position_embeddings") or 0
    if args.get("num_experts"):
        if not isinstance(args.get("moe_layer_freq", 1), int):
            raise NoFormula(f"moe_layer_freq = {args['moe_layer_freq']!r}: a whole number is understood")
        values |= {
            "experts": args["num_experts"],
            "experts_per_token": args.get("moe_router_topk", 2),
            "expert_ffn": args.get("moe_ffn_hidden_size"),
            "moe_every": args.get("moe_layer_freq", 1),
        }
        if shared := args.get("moe_shared_expert_intermediate_size"):
            width = values["expert_ffn"] or values["ffn"]
            if shared % width:
                raise NoFormula(
                    f"a shared expert of {shared} channels beside experts of {width} is no whole number of them"
                )
            values["shared_experts"] = shared // width
    return Model(**values)


def _mesh(args: Mapping[str, Any], world_size: int | None) -> dict[str, int]:
    """Megatron's order of ranks, tp-cp-ep-dp-pp, tensor the fastest."""
    ways = {
        "pipeline": args.get("pipeline_model_parallel_size") or 1,
        "expert": args.get("expert_model_parallel_size") or 1,
        "context": args.get("context_parallel_size") or 1,
        "tensor": args.get("tensor_model_parallel_size") or 1,
    }
    total = world_size or args.get("world_size")
    if not total:
        return {}
    taken = ways["pipeline"] * ways["expert"] * ways["context"] * ways["tensor"]
    if total % taken:
        raise NoFormula(f"{total} ranks are no multiple of the {taken} that tensor, pipeline, context and expert take")
    order = {
        "pipeline": ways["pipeline"],
        "data": total // taken,
        **{a: ways[a] for a in ("expert", "context", "tensor")},
    }
    return {axis: int(ranks) for axis, ranks in order.items() if ranks > 1} or {"data": 1}

"""The ways in which FLOPs of a training step are counted for a utilisation, side by side: figures of one say nothing of another.

Letters: N parameters, L layers, H heads, Q head width, T sequence length, h model width. Sources: PaLM (Chowdhery et al. 2022,
appendix B); nanoGPT (`estimate_mfu`); Narayanan et al. 2021, equation 3; Megatron-LM (`num_floating_point_operations`);
Kaplan et al. 2020 and Hoffmann et al. 2022 for 6 N D.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from tracegap.models.architecture import Model, weights
from tracegap.models.transformer import attention_flops_per_token, forward_flops, train_flops

VOCAB_PADDING = 128
"""Megatron-LM's `make_vocab_size_divisible_by`, a tensor-parallel rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """A way of counting the FLOPs of a training step."""

    name: str
    flops: Callable[[Model, int, int], float]
    """Of a model, tokens of a step and tensor-parallel ranks, over all devices."""
    note: str
    """What counts, and who counts so."""


def _unmasked(model: Model) -> Model:
    return replace(model, causal=False)


def _palm(model: Model, tokens: int, _tensor: int) -> float:
    return tokens * (6 * model.active_params + 3 * attention_flops_per_token(_unmasked(model)))


def _nanogpt(model: Model, tokens: int, _tensor: int) -> float:
    table = model.positions * model.hidden
    return tokens * (6 * (model.active_params - table) + 3 * attention_flops_per_token(_unmasked(model)))


def _without_embeddings(model: Model) -> float:
    """Parameters in layers that a token uses, final norm included: no embedding, no positions, no output head."""
    ends = sum(weight.params for weight in weights(model) if weight.name in ("embedding", "positions", "head"))
    return model.active_params - ends


def _narayanan(model: Model, tokens: int, _tensor: int) -> float:
    forward = forward_flops(_unmasked(model), tokens).total
    head = 2 * tokens * model.hidden * model.vocab
    return 4 * (forward - head) + 3 * head


def _megatron(model: Model, tokens: int, tensor: int) -> float:
    multiple = VOCAB_PADDING * tensor
    return train_flops(replace(model, vocab=ceil(model.vocab / multiple) * multiple), tokens)


CONVENTIONS = (
    Convention(name="model_flops", flops=lambda m, t, _: train_flops(m, t), note="what the mathematics needs: matrix "
               "products with the output head, attention with its mask, no look-up, no recomputation (this project)"),
    Convention(name="full_attention", flops=lambda m, t, _: train_flops(_unmasked(m), t),
               note="the same, attention without its mask (Korthikanti et al., torchtitan, PyTorch's counter)"),
    Convention(name="palm", flops=_palm, note="6 N + 12 L H Q T a token, N with embeddings, attention without its mask (PaLM)"),
    Convention(name="nanogpt", flops=_nanogpt, note="as palm, N without the table of positions (nanoGPT)"),
    Convention(name="6nd", flops=lambda m, t, _: 6.0 * m.active_params * t, note="6 N a token, N with embeddings, no attention"),
    Convention(name="6nd_without_embeddings", flops=lambda m, t, _: 6.0 * _without_embeddings(m) * t,
               note="6 N a token, N without embeddings and output head, no attention"),
    Convention(name="megatron", flops=_megatron, note="as model_flops, the vocabulary padded to a multiple of "
               f"{VOCAB_PADDING} a tensor-parallel rank (Megatron-LM)"),
    Convention(name="megatron_2021", flops=_narayanan, note="forward pass counted four times, as with full recomputation, the "
               "output head three times, attention without its mask: hardware FLOPs (Narayanan et al. 2021)"),
)  # fmt: skip
"""In the order in which they are shown."""

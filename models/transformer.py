# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""Counting a model: FLOPs, cache and saved activations from its description, and the formulas behind them.

Letters: D or h model width, F MLP hidden width, L layers, N query heads, K key/value heads, H head width, V vocabulary,
B sequences, T queries, S keys, s sequence length. Formula codes M2, M4, X1 to X6, Y8 and Y9 are those of the theory
reference (Scaling Book, chapter 4; EleutherAI cookbook; Narayanan et al. 2021; PaLM, appendix B).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tracegap.models.architecture import MLP_MATRICES, Model, weights
from tracegap.models.errors import NoFormula
from tracegap.models.quantities import quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFlops:
    """FLOPs of matrix products in one forward pass, and of what stands for them in recurrent layers."""

    linear: int
    """Products with weights, output head included."""
    attention: int
    """Scores and their product with the values, masked part left out."""
    recurrence: int = 0
    """Scans of state-space layers."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.linear + self.attention + self.recurrence


SCAN_FLOPS = 6
"""FLOPs a state element and token of a selective scan: decay, input and output map, a multiply and an add each."""


@lru_cache(maxsize=1024)
def forward_flops(model: Model, tokens: int) -> ForwardFlops:
    """Model FLOPs of a forward pass over so many decoder tokens, in sequences of `model.seq`.

    Matrix products only, 2 a multiply-add; a causal mask halves the two attention products, a window leaves those
    within it; the embedding look-up is no product, the output head is one; of experts the chosen ones count. Encoder
    and towers work on their own tokens beside. Raises NoFormula where `model.seq` is needed and not known.
    """
    linear = round(2 * tokens * model.matmul_params)
    attention = round(tokens * attention_flops_per_token(model))
    scan = SCAN_FLOPS * tokens * model.recurrent_layers * model.inner * model.state_dim
    for _, tower in model.towers:
        if model.seq is None or tower.seq is None:
            raise NoFormula("FLOPs of a tower need its seq and that of the model")
        own = forward_flops(tower, round(tokens * tower.seq / model.seq))
        linear, attention, scan = linear + own.linear, attention + own.attention, scan + own.recurrence
    return ForwardFlops(linear=linear, attention=attention, recurrence=scan)


def attention_flops_per_token(model: Model) -> float:
    """FLOPs of all attention cores of a forward pass, a decoder token; a causal mask halves them."""
    if not model.attention_layers and not model.encoder_layers:
        return 0.0
    if model.seq is None:
        raise NoFormula("attention FLOPs need the sequence length: set seq in the model description")
    source = model.encoder_seq or model.seq
    windowed = model.attention_layers - model.global_layers
    keys = model.global_layers * visible_keys(model.seq, model.causal)
    keys += windowed * visible_keys(model.seq, model.causal, model.window)
    keys += model.encoder_layers * model.encoder_share * source
    keys += model.layers * source if model.encoder_layers else 0
    return 2 * keys * model.heads * (model.qk_width + model.v_width)


def visible_keys(seq: int, causal: bool, window: int | None = None) -> float:
    """Keys that a query sees on average.

    Under a causal mask half of them (benchmark convention), or w - w^2/2s of a window of w; without a mask a window
    looks both ways.
    """
    if window is None or window >= seq:
        return seq / 2 if causal else seq
    return window - window**2 / (2 * seq) if causal else window


def train_flops(model: Model, tokens: int) -> int:
    """Model FLOPs of a training step without recomputation: backward costs twice the forward pass.

    Frozen weights (LoRA) need no gradient of their own, so that their backward pass costs one forward.
    """
    full = 3 * forward_flops(model, tokens).total
    if not model.lora_rank:
        return full
    return full - round(2 * tokens * sum(weight.products for weight in weights(model) if not weight.trained))


def cache_bytes(model: Model, seq: int, bytes_per_elem: float, *, tensor: int = 1) -> float:
    """[X6] Bytes that a sequence of so many tokens keeps for decoding, on one of so many tensor-parallel ranks.

    Keys and values of each layer (of a window only its own), MLA's compressed vector and rotary key, which no rank
    can split; the fixed state of recurrent layers; keys and values of an encoder's output.
    """
    kv_heads = max(model.kv_head_count / tensor, 1)
    per_token = model.kv_rank + model.rope_dim if model.kv_rank else 2 * kv_heads * model.head_width
    windowed = model.attention_layers - model.global_layers
    tokens = model.global_layers * seq + windowed * min(seq, model.window or seq)
    tokens += model.layers * (model.encoder_seq or seq) if model.encoder_layers else 0
    return tokens * per_token * bytes_per_elem + state_bytes(model, bytes_per_elem, tensor=tensor)


def state_bytes(model: Model, bytes_per_elem: float, *, tensor: int = 1) -> float:
    """Bytes of the fixed state of recurrent layers, on one of so many tensor-parallel ranks; rewritten with each token.

    The state of each channel, and the last inputs of the short convolution.
    """
    convolved = model.inner + (2 * model.state_groups * model.state_dim if model.recurrence == "mamba2" else 0)
    values = model.inner * model.state_dim + convolved * max(0, model.conv_width - 1)
    return model.recurrent_layers * values / tensor * bytes_per_elem


def saved_values_per_token(model: Model) -> float:
    """Values that a layer keeps for backward, a decoder token [Y9], mean over the layers of decoder and encoder.

    20 D for a gated MLP of F = 4 D: inputs and outputs of two norms; q, k, v and attention's output; what goes in and
    out of the MLP's nonlinearity. Of experts the same for each chosen one, with its copy of the token; of a scan its
    five inputs and outputs; of attention to an encoder the same as of the decoder's own, with the encoder's keys.
    """
    d, share = model.hidden, model.encoder_share
    expert = MLP_MATRICES[model.mlp] * (model.ffn if model.expert_ffn is None else model.expert_ffn)
    mixture = model.experts_per_token * (expert + d) + model.shared_experts * expert
    dense = MLP_MATRICES[model.mlp] * model.ffn
    queries, keys = 2 * model.heads * model.head_width, 2 * model.kv_head_count * model.head_width
    if model.kv_rank:
        queries = model.heads * (2 * model.qk_width + 2 * model.v_width) + model.q_rank
        keys = model.kv_rank
    kept: float = (
        2 * model.branches * d * model.layers
        + model.attention_layers * (queries + keys)
        + model.recurrent_layers * 5 * model.inner
        + model.dense_mlps * dense
        + model.moe_layers * mixture
    )
    if model.encoder_layers:
        kept += model.layers * (2 * d + queries + keys * share)
        kept += model.encoder_layers * share * (2 * model.branches * d + queries + keys + dense)
    return kept / (model.layers + model.encoder_layers)


@quantity("einsum_flops", "M2")
def einsum_flops(*, contract: Sequence[int], free: Sequence[int], batch: Sequence[int] = ()) -> float:
    """[M2] FLOPs over the sizes of all distinct indices; without a contracted one it is a plain multiply."""
    return (2 if contract else 1) * prod(contract) * prod(free) * prod(batch)


@quantity("params", "X1")
def params(
    *,
    L: int,
    D: int,
    F: int,
    V: int,
    mlp_mats: int,
    tied: bool,
    N: int | None = None,
    K: int | None = None,
    H: int | None = None,
    qkvo_dim: int | None = None,
    norm_vectors: int = 0,
    E: int | None = None,
) -> float:
    """[X1] Stored parameters. Attention is four [D, qkvo_dim] matrices, or N, K and H are given.

    `norm_vectors` of width D a layer are counted; with E experts, E MLPs and a router a layer.
    """
    attention = 4 * D * qkvo_dim if qkvo_dim is not None else _projections(D, N, K, H)
    return _params(L=L, D=D, F=F, V=V, mlp_mats=mlp_mats, tied=tied, attention=attention + norm_vectors * D, E=E)


@quantity("active_params", "X1")
def active_params(
    *, L: int, D: int, F: int, V: int, N: int, K: int, H: int, mlp_mats: int, tied: bool, k: int, E: int | None = None
) -> float:
    """[X1] Parameters that one token uses: k experts' MLPs; with the number of experts E, also the router."""
    attention = _projections(D, N, K, H)
    return _params(L=L, D=D, F=F, V=V, mlp_mats=mlp_mats, tied=tied, attention=attention, E=E, mlps=k)


def _projections(D: int, N: int | None, K: int | None, H: int | None) -> int:
    if N is None or K is None or H is None:
        raise NoFormula("attention parameters need N, K and H, or qkvo_dim")
    return 2 * D * (N + K) * H


def _params(
    *, L: int, D: int, F: int, V: int, mlp_mats: int, tied: bool, attention: int, E: int | None, mlps: int | None = None
) -> int:
    """Layers of attention, E (or as many as are given) MLPs and the router of E experts, and one or two embeddings."""
    copies = mlps if mlps is not None else E or 1
    router = 0 if E is None else D * E
    return L * (mlp_mats * D * F * copies + router + attention) + (1 if tied else 2) * D * V


@quantity("params", "X2")
def gpt_params(*, L: int, h: int, V: int, s: int) -> float:
    """[X2] Parameters of a Megatron GPT with biases, norms and learned positions."""
    return 12 * L * h**2 * (1 + 13 / (12 * h) + (V + s) / (12 * L * h))


@quantity("params", "X2b")
def cookbook_params(
    *, L: int, h: int, V: int, s: int, ffn_factor: float = 4, mlp_mats: int = 2, kv_ratio: float = 1, tied: bool = False
) -> float:
    """[X2b] Parameters as the EleutherAI cookbook counts them; kv_ratio is K/N."""
    embeddings = (1 if tied else 2) * h * V + h * s
    matrices = 2 * (1 + kv_ratio) * L * h**2 + mlp_mats * ffn_factor * L * h**2
    return embeddings + matrices + 8 * L * h + 2 * h


@quantity("attention_to_matmul_flops_ratio", "X3")
def attention_to_matmul_flops_ratio(*, T: int, D: int, F: int, N: int, K: int, H: int, mlp_mats: int = 3) -> float:
    """[X3] Training FLOPs of unmasked attention over those of a layer's weights."""
    return 12 * T**2 * N * H / (6 * T * mlp_mats * D * F + 12 * T * D * (N + K) * H)


@quantity("train_flops_per_token", "X4")
def train_flops_per_token(*, params: float, L: int, N: int, H: int, T: int, causal: bool = False) -> float:
    """[X4] Model FLOPs of training on a token: 6 a parameter plus attention, which a causal mask halves."""
    return 6 * params + (6 if causal else 12) * L * N * H * T


@quantity("kv_bytes_per_token", "X6")
def kv_bytes_per_token(*, L: int, K: int, H: int, bytes_per_elem: float) -> float:
    """[X6] Bytes of keys and values that a token leaves in the cache."""
    return 2 * L * K * H * bytes_per_elem


@quantity("kv_cache_bytes", "X6")
def kv_cache_bytes(*, L: int, K: int, H: int, S: int, bytes_per_elem: float, sequences: int = 1) -> float:
    """[X6] Bytes of the cache of sequences of S tokens."""
    return kv_bytes_per_token(L=L, K=K, H=H, bytes_per_elem=bytes_per_elem) * S * sequences


@quantity("attention_intensity_flops_per_byte", "M4")
def attention_intensity(*, T: int, S: int, G: float, bytes_per_elem: float = 2) -> float:
    """[M4] FLOP/byte of attention with G query heads a key/value head, each key/value head read once."""
    return S * T * G / (T * G + S) * 2 / bytes_per_elem


@quantity("remat_extra_flops_per_layer", "Y8")
def remat_extra_flops_per_layer(*, B: int, T: int, N: int, H: int, S: int | None = None, causal: bool = False) -> float:
    """[Y8] FLOPs of computing the attention core of a layer once more, B sequences."""
    full = 4 * B * T * (T if S is None else S) * N * H
    return full / 2 if causal else full


@quantity("activation_bytes_no_remat", "Y9")
def activation_bytes_no_remat(*, tokens: float, D: int, L: int, saved_per_layer: float, bytes_per_elem: float) -> float:
    """[Y9] Bytes of activations kept for backward: so many values of width D a token and layer."""
    return bytes_per_elem * saved_per_layer * D * tokens * L

# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""Counting a Transformer: parameters, FLOPs, cache and saved activations, from its description.

Letters: D or h model width, F MLP hidden width, L layers, N query heads, K key/value heads, H head width, V vocabulary,
B sequences, T queries, S keys, s sequence length. Formula codes M2, M4, X1 to X6, Y8 and Y9 are those of the theory
reference (Scaling Book, chapter 4; EleutherAI cookbook; Narayanan et al. 2021; PaLM, appendix B).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tracegap.models.errors import NoFormula
from tracegap.models.quantities import quantity

MLP_MATRICES = {"swiglu": 3, "geglu": 3, "gelu": 2, "relu": 2}
"""Weight matrices of an MLP block by its kind: gated ones have a third."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder as a run's manifest describes it."""

    layers: int
    hidden: int
    """Model width."""
    heads: int
    """Query heads."""
    ffn: int
    """Hidden width of the MLP."""
    vocab: int
    kv_heads: int | None = None
    """Key/value heads; None: as many as query heads."""
    head_dim: int | None = None
    """Head width; None: hidden / heads."""
    mlp: str = "swiglu"
    """A key of MLP_MATRICES."""
    seq: int | None = None
    """Tokens of a sequence; needed for attention."""
    causal: bool = True
    """Whether a mask hides later tokens, which halves the attention products."""
    tied_embeddings: bool = False
    """Whether the output head uses the embedding's matrix."""
    dtype: str = "bf16"
    """Of weights and activations, a key of models.ops.DTYPE_BYTES."""

    def __post_init__(self) -> None:
        if self.mlp not in MLP_MATRICES:
            raise NoFormula(f"mlp {self.mlp!r} in the model description: known are {', '.join(MLP_MATRICES)}")

    @property
    def head_width(self) -> int:
        """Head width, elements."""
        return self.hidden // self.heads if self.head_dim is None else self.head_dim

    @property
    def kv_head_count(self) -> int:
        """Key/value heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def layer_matmul_params(self) -> int:
        """Weights of one layer's matrix products."""
        projections = 2 * self.hidden * (self.heads + self.kv_head_count) * self.head_width
        return projections + MLP_MATRICES[self.mlp] * self.hidden * self.ffn

    @property
    def matmul_params(self) -> int:
        """Weights that take part in matrix products: layers and output head, not the look-up."""
        return self.layers * self.layer_matmul_params + self.hidden * self.vocab

    @property
    def params(self) -> int:
        """All stored weights of matrices [X1], norm vectors left out."""
        look_up = 0 if self.tied_embeddings else self.hidden * self.vocab
        return self.matmul_params + look_up


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFlops:
    """FLOPs of matrix products in one forward pass."""

    linear: int
    """Products with weights, output head included."""
    attention: int
    """Scores and their product with the values, masked part left out."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.linear + self.attention


def forward_flops(model: Model, tokens: int) -> ForwardFlops:
    """Model FLOPs of a forward pass over so many tokens, in sequences of `model.seq`.

    Matrix products only, 2 a multiply-add; a causal mask halves the two attention products; the embedding look-up is no
    product, the output head is one. Raises NoFormula where `model.seq` is not known.
    """
    if model.seq is None:
        raise NoFormula("attention FLOPs need the sequence length: set seq in the model description")
    full = 4 * model.layers * tokens * model.seq * model.heads * model.head_width
    return ForwardFlops(linear=2 * tokens * model.matmul_params, attention=full // 2 if model.causal else full)


def train_flops(model: Model, tokens: int) -> int:
    """Model FLOPs of a training step without recomputation: backward costs twice the forward pass."""
    return 3 * forward_flops(model, tokens).total


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

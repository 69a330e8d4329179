"""What a model is made of: a flat description, and the table of its weights that everything else is added up from.

A description (`Model`) holds the numbers that papers, manifests and `config.json` files hold. `weights` turns it into
one row a kind of matrix: its shape, in how many layers and copies it lies, how many copies a token goes through, and
over how many tensor-parallel ranks it can be split. Parameters, FLOPs, memory and traffic are sums over that table,
so a new kind of layer is a function that yields its rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from math import inf

from tracegap.models.errors import NoFormula
from tracegap.models.ops import DTYPE_BYTES

MLP_MATRICES = {"swiglu": 3, "geglu": 3, "gelu": 2, "relu": 2}
"""Weight matrices of an MLP block by its kind: gated ones have a third."""
NORM_VECTORS = {None: 0, "rms": 1, "layer": 2}
"""Vectors of a norm by its kind: a scale, and LayerNorm's bias; None leaves them out of the count."""
BIASES = {
    "none": "", "qkv": "qkv", "attention": "qkvo", "all": "qkvom", "mlp": "m", "qkv_mlp": "qkvm", "mixture": "qkvoe",
}  # fmt: skip
"""Which products add a bias: q, k, v, the output o, those of the MLP m, those of experts and their router e."""
LEAST = {
    "layers": 1,
    "hidden": 1,
    "seq": 1,
    "kv_heads": 1,
    "head_dim": 1,
    "window": 1,
    "global_every": 1,
    "moe_every": 1,
}
"""Smallest value of a number in a description that makes sense; of those not named, 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A Transformer or state-space model as a manifest, a preset or a `config.json` describes it."""

    layers: int
    hidden: int
    """Model width."""
    heads: int
    """Query heads; 0 where no layer has attention."""
    ffn: int
    """Hidden width of the MLP; 0 where there is none."""
    vocab: int
    kv_heads: int | None = None
    """Key/value heads; None: as many as query heads."""
    head_dim: int | None = None
    """Head width; None: hidden / heads. Of MLA the part without rotary positions."""
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

    norm: str | None = None
    """A key of NORM_VECTORS."""
    norms_per_layer: int = 2
    parallel_block: bool = False
    """Whether attention and MLP read the same norm and are added, so that a layer is one block, not two."""
    qk_norm: bool = False
    """Whether queries and keys are normed, each with a vector of the head's width."""
    biases: str = "none"
    """A key of BIASES."""
    sinks: bool = False
    """Whether each head has a learned score that takes attention from all keys."""
    embedding_norm: bool = False
    """Whether embedded tokens are normed."""
    positions: int = 0
    """Rows of a table of learned positions."""
    window: int | None = None
    """Keys that a token of a layer with sliding window sees."""
    global_every: int | None = None
    """One of so many layers sees all keys; None: with a window none does."""

    experts: int = 0
    """MLPs of a mixture; 0: a dense model."""
    experts_per_token: int = 0
    shared_experts: int = 0
    """Experts that every token goes through, beside the routed ones."""
    shared_gate: bool = False
    """Whether a product with one vector weighs what the shared ones say."""
    expert_ffn: int | None = None
    """Hidden width of an expert; None: ffn."""
    dense_layers: int = 0
    """First layers whose MLP is no mixture."""
    moe_every: int = 1
    """One of so many of the other layers has the mixture, the rest a dense MLP."""
    capacity_factor: float = 1.0
    """Room of an expert over its mean load; it is filled with padding, which is computed but is no model FLOP."""

    q_rank: int = 0
    """MLA: width to which queries are compressed; 0: not."""
    kv_rank: int = 0
    """MLA: width to which keys and values are compressed, which is what the cache holds; 0: no MLA."""
    rope_dim: int = 0
    """MLA: part of a head that carries positions; of the key it is one for all heads."""
    v_head_dim: int | None = None
    """MLA: width of a value; None: head_dim."""

    recurrence: str | None = None
    """A key of RECURRENCES: layers that carry a fixed state in place of attention."""
    attention_every: int = 0
    """With a recurrence: one of so many layers has attention; 0: none."""
    shared_uses: int = 0
    """With a recurrence: times that a token goes through one Transformer block which layers share, beside all of them
    (Zamba); its weights are stored once, each use has a cache of its own. 0: none."""
    shared_width: int = 0
    """Of what the shared block reads: the layer's input beside the embedding; 0: hidden."""
    state_dim: int = 0
    """State a channel."""
    inner: int = 0
    """Channels of a recurrent layer."""
    conv_width: int = 0
    """Taps of its short convolution."""
    state_groups: int = 1
    """Mamba 2: groups of heads that share input and output maps."""
    state_norms: bool = False
    """Mamba: whether step size, input and output maps are normed (Jamba)."""
    dt_rank: int = 0
    """Mamba: width of the step size's projection; of Mamba 2 the number of heads."""

    encoder_layers: int = 0
    """Layers of an encoder, without mask, to whose output every decoder layer attends; 0: a decoder alone."""
    encoder_seq: int | None = None
    """Tokens of its sequence; None: seq."""
    relative_positions: int = 0
    """T5: buckets of relative positions, a bias a head, in the encoder and in the decoder."""

    lora_rank: int = 0
    """Fine-tuning by two thin matrices beside each of a layer's; everything else is frozen. 0: all is trained."""
    towers: tuple[tuple[str, "Model"], ...] = ()
    """Encoders of other modalities by name; `seq` of each is the tokens that it adds to one sequence. They end in a
    projection to the model's width and have no vocabulary."""
    project_to: int = 0
    """Of a tower: the width of the model that reads it, which sets it; 0: no tower."""

    def __post_init__(self) -> None:
        towers = tuple((name, replace(tower, project_to=self.hidden)) for name, tower in self.towers)
        object.__setattr__(self, "towers", towers)
        for what, value, known in (
            ("mlp", self.mlp, MLP_MATRICES),
            ("norm", self.norm, NORM_VECTORS),
            ("biases", self.biases, BIASES),
            ("recurrence", self.recurrence, {None, *RECURRENCES}),
            ("dtype", self.dtype, DTYPE_BYTES),
        ):
            if value not in (*known,):
                names = ", ".join(str(name) for name in known if name)
                raise NoFormula(f"{what} {value!r} in the model description: known are {names}")
        for column in fields(self):
            value = getattr(self, column.name)
            if column.type in (int, int | None) and not (value is None and column.default is None):
                least = LEAST.get(column.name, 0)
                if not isinstance(value, int) or isinstance(value, bool) or value < least:
                    raise NoFormula(
                        f"{column.name} = {value!r} in the model description: a whole number from {least} on"
                    )
            if column.type is float and not (isinstance(value, int | float) and 0 <= value < inf):
                raise NoFormula(f"{column.name} = {value!r} in the model description: a number from 0 on")
        for what, few, many in (
            ("kv_heads", self.kv_head_count, self.heads),
            ("experts_per_token", self.experts_per_token, self.experts),
            ("dense_layers", self.dense_layers, self.layers),
        ):
            if few > many:
                raise NoFormula(f"{what} = {few} in the model description: more than the {many} that there are")
        if self.kv_heads and self.heads % self.kv_heads:
            raise NoFormula(
                f"kv_heads = {self.kv_heads} in the model description do not divide its {self.heads} heads evenly"
            )
        if not self.heads and self.attention_layers:
            raise NoFormula("heads = 0 in the model description, whose layers have attention")
        if self.head_dim is None and self.heads and self.hidden % self.heads:
            raise NoFormula(
                f"{self.heads} heads do not divide hidden = {self.hidden}: the model description needs head_dim"
            )

    @property
    def head_width(self) -> int:
        """Width of a query or key head without MLA's rotary part, elements."""
        return self.head_dim if self.head_dim is not None else self.hidden // self.heads if self.heads else 0

    @property
    def qk_width(self) -> int:
        """Width over which a score is summed."""
        return self.head_width + (self.rope_dim if self.kv_rank else 0)

    @property
    def v_width(self) -> int:
        """Width of a value head."""
        return self.head_width if self.v_head_dim is None else self.v_head_dim

    @property
    def kv_head_count(self) -> int:
        """Key/value heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def attention_layers(self) -> int:
        """Decoder layers with self-attention."""
        if self.recurrence is None:
            return self.layers
        return self.shared_uses or (self.layers // self.attention_every if self.attention_every else 0)

    @property
    def recurrent_layers(self) -> int:
        """Layers that carry a state."""
        if self.recurrence is None:
            return 0
        return self.layers if self.shared_uses else self.layers - self.attention_layers

    @property
    def dense_mlps(self) -> int:
        """MLPs that a token goes through and that are no mixture."""
        return self.shared_uses or self.layers - self.moe_layers

    @property
    def branches(self) -> float:
        """Attentions, recurrences and MLPs of a layer, mean."""
        if self.shared_uses:
            return 1 + 2 * self.shared_uses / self.layers
        return 2 if self.ffn or self.experts else 1

    @property
    def blocks(self) -> float:
        """Times that a layer adds to its input, mean: once where attention and MLP are parallel."""
        return 1 if self.parallel_block else self.branches

    @property
    def global_layers(self) -> int:
        """Those of them that see all keys."""
        if self.window is None:
            return self.attention_layers
        return self.attention_layers // self.global_every if self.global_every else 0

    @property
    def moe_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return (self.layers - self.dense_layers) // self.moe_every if self.experts else 0

    @property
    def encoder_share(self) -> float:
        """Encoder tokens a decoder token."""
        if not self.encoder_layers:
            return 0.0
        return 1.0 if self.encoder_seq is None or self.seq is None else self.encoder_seq / self.seq

    @property
    def matmul_params(self) -> float:
        """Weights that a token's matrix products use: layers, chosen experts and output head, not the look-up."""
        return sum(weight.products for weight in weights(self))

    @property
    def params(self) -> int:
        """All stored weights [X1], of towers too; norm vectors only where `norm` is given."""
        return sum(weight.params for weight in weights(self)) + sum(tower.params for _, tower in self.towers)

    @property
    def active_params(self) -> int:
        """Stored weights that a token uses, embeddings once [X1]: all but the experts not chosen."""
        return sum(round(weight.params * weight.active_copies / weight.copies) for weight in weights(self))

    @property
    def trained_params(self) -> int:
        """Weights that have gradients: all, or LoRA's."""
        own = sum(weight.params for weight in weights(self) if weight.trained)
        return own + sum(tower.trained_params for _, tower in self.towers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A kind of weight: `layers` x `copies` matrices of [rows, cols]."""

    name: str
    rows: int
    cols: int
    layers: int = 1
    """Layers that have it; its place in a pipeline goes by `end`."""
    copies: int = 1
    """In each of those layers: experts."""
    active_copies: int = 1
    """Of them, those that a token goes through."""
    per_token: float = 1
    """Tokens that are multiplied with it, a token of the decoder; 0: no product (a look-up, a vector)."""
    ways: int = 1
    """Tensor-parallel ranks over which it can be split; more hold copies."""
    end: str = ""
    """`first` or `last` where it lies on that stage of a pipeline only, `every` where each stage has all of it."""
    expert: bool = False
    """Whether an expert axis splits its copies."""
    trained: bool = True

    @property
    def params(self) -> int:
        """Stored elements."""
        return self.layers * self.copies * self.rows * self.cols

    @property
    def products(self) -> float:
        """Elements multiplied a decoder token."""
        return self.layers * self.active_copies * self.per_token * self.rows * self.cols


@cache
def weights(model: Model) -> tuple[Weight, ...]:
    """The table of a model without its towers, which are models of their own."""
    rows = [*_ends(model), *_decoder(model), *_encoder(model)]
    if not model.lora_rank:
        return tuple(rows)
    return tuple(_frozen(rows)) + tuple(_adapters(rows, model.lora_rank))


def _decoder(model: Model) -> Iterator[Weight]:
    if model.recurrence is not None:
        yield from RECURRENCES[model.recurrence](model, model.recurrent_layers)
    if model.shared_uses:
        yield from _shared_block(model)
    else:
        yield from (_mla if model.kv_rank else _attention)(model, model.attention_layers)
        yield from _mlp(model, model.dense_mlps)
    yield from _experts(model, model.moe_layers)
    yield _norm(model, "norms", model.layers, model.norms_per_layer)


def _encoder(model: Model) -> Iterator[Weight]:
    """An encoder of the decoder's widths, and the decoder's attention to it, whose keys come of encoder tokens."""
    share, layers = model.encoder_share, model.encoder_layers
    if not layers:
        return
    yield from _attention(model, layers, "encoder.", tokens=share, kv_tokens=share)
    yield from _mlp(model, layers, "encoder.", tokens=share)
    yield _norm(model, "encoder.norms", layers, model.norms_per_layer)
    yield _norm(model, "encoder.norm", 1, 1)
    yield from _attention(model, model.layers, "cross.", kv_tokens=share)
    yield _norm(model, "cross.norms", model.layers, 1)
    yield Weight(name="relative_positions", rows=2 * model.relative_positions, cols=model.heads, per_token=0)


def _ends(model: Model) -> Iterator[Weight]:
    d, v = model.hidden, model.vocab
    tied = model.tied_embeddings
    yield Weight(name="embedding", rows=v, cols=d, per_token=int(tied), ways=max(1, v), end="first")
    yield Weight(name="positions", rows=model.positions, cols=d, per_token=0, end="first")
    if not tied:
        yield Weight(name="head", rows=d, cols=v, ways=max(1, v), end="last")
    yield _norm(model, "embedding.norm", 1, int(model.embedding_norm))
    yield _norm(model, "norm", 1, 1)
    yield Weight(name="projection", rows=d, cols=model.project_to, end="last")


def _norm(model: Model, name: str, layers: int, norms: int) -> Weight:
    return _vector(name, norms * NORM_VECTORS[model.norm] * model.hidden, layers)


def _vector(name: str, width: int, layers: int, ways: int = 1) -> Weight:
    return Weight(name=name, rows=1, cols=width, layers=layers, per_token=0, ways=ways)


def _attention(
    model: Model, layers: int, prefix: str = "", *, tokens: float = 1, kv_tokens: float = 1
) -> Iterator[Weight]:
    """Multi-head, grouped-query or multi-query attention."""
    d, n, k, h = model.hidden, model.heads, model.kv_head_count, model.head_width
    for name, rows, cols, ways, used in (
        ("q", d, n * h, n, tokens),
        ("k", d, k * h, k, kv_tokens),
        ("v", d, k * h, k, kv_tokens),
        ("o", n * h, d, n, tokens),
    ):
        yield Weight(name=prefix + name, rows=rows, cols=cols, layers=layers, per_token=used, ways=ways)
        if name in BIASES[model.biases]:
            yield _vector(f"{prefix}{name}.bias", cols, layers, 1 if name == "o" else ways)
    if model.sinks:
        yield _vector(f"{prefix}sinks", n, layers, n)
    if model.qk_norm:
        yield _vector(f"{prefix}qk_norm", 2 * h * NORM_VECTORS[model.norm], layers)


def _shared_block(model: Model) -> Iterator[Weight]:
    """Attention and MLP, stored once and used several times; after each use a projection of that layer's own."""
    d, w, uses = model.hidden, model.shared_width or model.hidden, model.shared_uses
    n, k, h = model.heads, model.kv_head_count, model.head_width
    for name, rows, cols, ways in (("q", w, n * h, n), ("k", w, k * h, k), ("v", w, k * h, k), ("o", n * h, d, n)):
        yield Weight(name=f"shared.{name}", rows=rows, cols=cols, per_token=uses, ways=ways, end="every")
    for name, rows, cols in _mlp_matrices(model, model.ffn):
        yield Weight(name=f"shared.mlp.{name}", rows=rows, cols=cols, per_token=uses, ways=model.ffn, end="every")
    yield _vector("shared.norms", NORM_VECTORS[model.norm] * (w + d), 1)
    yield Weight(name="shared.out", rows=d, cols=d, layers=uses)


def _mla(model: Model, layers: int) -> Iterator[Weight]:
    """Multi-head latent attention: low-rank queries, one compressed vector for keys and values, one rotary key."""
    d, n = model.hidden, model.heads
    q_in = model.q_rank or d
    norm = NORM_VECTORS[model.norm]
    if model.q_rank:
        yield Weight(name="q_down", rows=d, cols=model.q_rank, layers=layers)
        yield _vector("q_norm", norm * model.q_rank, layers)
    yield Weight(name="q_up", rows=q_in, cols=n * model.qk_width, layers=layers, ways=n)
    yield Weight(name="kv_down", rows=d, cols=model.kv_rank + model.rope_dim, layers=layers)
    yield _vector("kv_norm", norm * model.kv_rank, layers)
    yield Weight(name="kv_up", rows=model.kv_rank, cols=n * (model.head_width + model.v_width), layers=layers, ways=n)
    yield Weight(name="o", rows=n * model.v_width, cols=d, layers=layers, ways=n)


def _mamba(model: Model, layers: int) -> Iterator[Weight]:
    """Mamba: selective scan whose step size, input and output maps depend on the token."""
    d, i, s, r = model.hidden, model.inner, model.state_dim, model.dt_rank
    for name, rows, cols in (("in", d, 2 * i), ("x", i, r + 2 * s), ("dt", r, i), ("out", i, d)):
        yield Weight(name=f"ssm.{name}", rows=rows, cols=cols, layers=layers, ways=i)
    # Convolution with bias, bias of dt, A and D
    yield _vector("ssm.channels", i * (model.conv_width + 1 + 1 + s + 1), layers, i)
    if model.state_norms:
        yield _vector("ssm.norms", NORM_VECTORS[model.norm] * (r + 2 * s), layers)


def _mamba2(model: Model, layers: int) -> Iterator[Weight]:
    """Mamba 2: one scalar decay a head, input and output maps from the same projection, a norm before the output."""
    d, i, s, heads = model.hidden, model.inner, model.state_groups * model.state_dim, model.dt_rank
    yield Weight(name="ssm.in", rows=d, cols=2 * i + 2 * s + heads, layers=layers, ways=heads)
    yield Weight(name="ssm.out", rows=i, cols=d, layers=layers, ways=heads)
    yield _vector("ssm.channels", (i + 2 * s) * (model.conv_width + 1) + 3 * heads + i, layers, heads)


RECURRENCES: dict[str, Callable[[Model, int], Iterator[Weight]]] = {"mamba": _mamba, "mamba2": _mamba2}
"""Layers with a fixed state by their name."""


def _mlp(model: Model, layers: int, prefix: str = "", *, tokens: float = 1) -> Iterator[Weight]:
    d, f = model.hidden, model.ffn
    for name, rows, cols in _mlp_matrices(model, f):
        yield Weight(name=f"{prefix}mlp.{name}", rows=rows, cols=cols, layers=layers, per_token=tokens, ways=max(1, f))
    if "m" in BIASES[model.biases]:
        yield _vector(f"{prefix}mlp.bias", (MLP_MATRICES[model.mlp] - 1) * f, layers, max(1, f))
        yield _vector(f"{prefix}mlp.down_bias", d, layers)


def _mlp_matrices(model: Model, f: int) -> list[tuple[str, int, int]]:
    up = ["gate", "up"] if MLP_MATRICES[model.mlp] == 3 else ["up"]
    return [*((name, model.hidden, f) for name in up), ("down", f, model.hidden)]


def _experts(model: Model, layers: int) -> Iterator[Weight]:
    """Router, routed and shared experts."""
    if not layers:
        return
    f = model.ffn if model.expert_ffn is None else model.expert_ffn
    yield Weight(name="router", rows=model.hidden, cols=model.experts, layers=layers)
    if model.shared_gate:
        yield Weight(name="shared.weigh", rows=model.hidden, cols=1, layers=layers)
    if "e" in BIASES[model.biases]:
        yield _vector("router.bias", model.experts, layers)
        for name, width, ways in (("up_bias", (MLP_MATRICES[model.mlp] - 1) * f, f), ("down_bias", model.hidden, 1)):
            yield Weight(
                name=f"experts.{name}", rows=1, cols=width, layers=layers, copies=model.experts,
                active_copies=model.experts_per_token, per_token=0, ways=ways, expert=True,
            )  # fmt: skip
    for name, rows, cols in _mlp_matrices(model, f):
        yield Weight(
            name=f"experts.{name}",
            rows=rows,
            cols=cols,
            layers=layers,
            copies=model.experts,
            active_copies=model.experts_per_token,
            ways=f,
            expert=True,
        )
        if model.shared_experts:
            width = model.shared_experts
            yield Weight(name=f"shared.{name}", rows=rows, cols=cols * width, layers=layers, ways=f)


def _frozen(rows: list[Weight]) -> Iterator[Weight]:
    for row in rows:
        values = {name: getattr(row, name) for name in Weight.__slots__} | {"trained": False}
        yield Weight(**values)


def _adapters(rows: list[Weight], rank: int) -> Iterator[Weight]:
    """LoRA: [rows, rank] and [rank, cols] beside each matrix of a layer; routers, embeddings and head have none."""
    for row in rows:
        if row.per_token and row.end in ("", "every") and row.name != "router":
            for half, size in (("a", row.rows), ("b", row.cols)):
                yield Weight(
                    name=f"{row.name}.lora_{half}",
                    rows=size,
                    cols=rank,
                    layers=row.layers,
                    copies=row.copies,
                    active_copies=row.active_copies,
                    per_token=row.per_token,
                    ways=row.ways,
                    expert=row.expert,
                )

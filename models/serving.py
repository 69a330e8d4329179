"""Serving a model on a group of devices: prefill, decode, caches, and throughput against latency over the batch.

Weights are split over all devices of a group (tensor, and expert where the model has experts); a step of decoding reads
them once, and the cache of every sequence. Formula codes I1 to I9 are those of the theory reference (Scaling Book,
chapters 7 and 8; Leviathan et al. 2023).
"""

from dataclasses import dataclass
from math import floor

from tracegap.models import collectives
from tracegap.models.architecture import Model, weights
from tracegap.models.errors import NoFormula
from tracegap.models.hardware import Chip
from tracegap.models.inference import prefill_to_decode_servers, spec_decode_speedup
from tracegap.models.mesh import Links
from tracegap.models.ops import DTYPE_BYTES, CollectiveKind
from tracegap.models.transformer import cache_bytes, forward_flops, state_bytes

USABLE_MEMORY = 0.95
"""Share of a device's memory that a server can fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How a model is served."""

    model: Model
    chip: Chip
    devices: int
    context: int
    """Tokens of a sequence in the cache: prompt, and of the answer what is there on average or at most."""
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    math_dtype: str | None = None
    """Of the products, attention's too; None: the model's, to which narrower weights are widened on the way, as the Scaling
    Book takes it (chapters 1 and 7: int8 weights with bf16 FLOPs, critical batch 120)."""
    cache_over: str | None = None
    """Over what the devices split the caches: `heads`, where more devices than key/value heads hold copies, or `batch`,
    where each holds whole sequences and two all-to-alls a layer bring queries and outputs; None: batch where heads do
    not suffice."""
    torus: tuple[int, ...] | None = None
    ranks_per_domain: int | None = None
    """Devices that the scale-up links join; None: as many as the part can have."""
    network_bytes_per_s: float | None = None
    """A device's share of the network; None: that of the catalogue."""
    usable: float = USABLE_MEMORY

    def __post_init__(self) -> None:
        for what, dtype in (("weights", self.weight_dtype), ("cache", self.kv_dtype), ("products", self.math_dtype)):
            if dtype is not None and dtype not in DTYPE_BYTES:
                raise NoFormula(f"{what} in {dtype!r}: known are {', '.join(DTYPE_BYTES)}")

    @property
    def weight_bytes(self) -> float:
        """Of the whole model [Y10]."""
        return self.model.params * DTYPE_BYTES[self.weight_dtype]

    @property
    def cache_bytes(self) -> float:
        """Of one sequence over all devices, copies among them [X6]."""
        ways = 1 if self.by_batch else self.devices
        return cache_bytes(self.model, self.context, DTYPE_BYTES[self.kv_dtype], tensor=ways) * ways

    @property
    def cache_traffic_bytes(self) -> float:
        """Of one sequence in a step: its cache is read; a state is written too, where a cache grows by one token."""
        return self.cache_bytes + state_bytes(self.model, DTYPE_BYTES[self.kv_dtype])

    @property
    def by_batch(self) -> bool:
        """Whether caches are split over the batch."""
        heads = 1 if self.model.kv_rank else self.model.kv_head_count
        return self.devices > heads if self.cache_over is None else self.cache_over == "batch"

    @property
    def flops_per_s(self) -> float:
        """Of all devices, in the dtype of the products. Raises NoFormula where the catalogue has no peak."""
        peak = self.chip.device_flops_per_s(self.arithmetic)
        if peak is None:
            others = ", ".join(self.chip.dtypes)
            raise NoFormula(
                f"no {self.arithmetic} peak of {self.chip.id} in the catalogue; it has {others}: name one with --math"
            )
        return peak * self.devices

    @property
    def arithmetic(self) -> str:
        """Dtype of the products."""
        return self.math_dtype or self.model.dtype

    @property
    def hbm_bytes_per_s(self) -> float:
        """Of all devices."""
        return self.chip.device_hbm_bytes_per_s * self.devices

    @property
    def max_sequences(self) -> int | None:
        """[I4] Caches that fit beside the weights; None where the memory is not known."""
        if self.chip.device_memory_bytes is None:
            return None
        free = self.usable * self.devices * self.chip.device_memory_bytes - self.weight_bytes
        return max(0, floor(free / self.cache_bytes))

    def touched_bytes(self, batch: float) -> float:
        """Bytes of weights that a step reads: all but the experts that no token of the batch chose, evenly spread."""
        element = DTYPE_BYTES[self.weight_dtype]
        total = 0.0
        for weight in weights(self.model):
            hit = 1 - (1 - weight.active_copies / weight.copies) ** batch if weight.expert else 1.0
            # Of a look-up table a step reads rows only
            total += weight.params * hit if weight.per_token or weight.rows == 1 else 0
        return total * element


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Decoding at a batch."""

    batch: int
    """Sequences decoded at once."""
    step_s: float
    """Of one token of each."""
    weights_s: float
    """Reading weights or multiplying with them, whichever is longer [I1]."""
    cache_s: float
    comm_s: float
    """Joining activations after each block; added, for a step has nothing to hide it behind."""
    tokens_per_s: float
    tokens_per_s_per_device: float
    bound: str
    """`weights`, `compute`, `cache` or `communication`."""


def decode(server: Server, batch: int) -> Point:
    """[I1, I2] A step of decoding: the cache is always memory bound, weights by whichever is longer."""
    model = server.model
    read_s = server.touched_bytes(batch) / server.hbm_bytes_per_s
    math_s = 2 * batch * model.matmul_params / server.flops_per_s
    cache_s = batch * server.cache_traffic_bytes / server.hbm_bytes_per_s
    comm_s = joins_s(server, batch)
    terms = {"weights": read_s, "compute": math_s, "cache": cache_s, "communication": comm_s}
    step_s = max(read_s, math_s) + cache_s + comm_s
    return Point(
        batch=batch,
        step_s=step_s,
        weights_s=max(read_s, math_s),
        cache_s=cache_s,
        comm_s=comm_s,
        tokens_per_s=batch / step_s,
        tokens_per_s_per_device=batch / step_s / server.devices,
        bound=max(terms, key=lambda term: terms[term]),
    )


def joins_s(server: Server, tokens: float) -> float:
    """Seconds of the collectives of a forward pass over so many tokens: activations joined after each block."""
    model, ranks = server.model, server.devices
    if ranks == 1:
        return 0.0
    element = DTYPE_BYTES[model.dtype]
    links = Links(
        chip=server.chip,
        ranks_per_domain=server.ranks_per_domain,
        torus=server.torus,
        network_bytes_per_s=server.network_bytes_per_s,
    )
    fabric = links.fabric({"tensor": ranks}, ("tensor",))
    joined = collectives.predict(CollectiveKind.ALL_REDUCE, round(tokens * model.hidden * element), ranks, fabric)
    total_ns = round(model.blocks * model.layers) * joined.total_ns
    if server.by_batch and model.attention_layers:
        sent = tokens * model.heads * model.v_width * element / ranks
        swapped = collectives.predict(CollectiveKind.ALL_TO_ALL, round(sent), ranks, fabric)
        total_ns += 2 * model.attention_layers * swapped.total_ns
    return total_ns / 1e9


def frontier(server: Server, most: int | None = None) -> list[Point]:
    """Latency against throughput: batches of powers of two up to what fits, and that itself."""
    limit = server.max_sequences if most is None else most
    if limit is None:
        limit = 256
    batches = {1 << i for i in range(20) if 1 << i <= limit} | ({limit} if limit else set())
    return [decode(server, batch) for batch in sorted(batches)]


def prefill_s(server: Server, prompt: int, share: float = 1.0) -> float:
    """[I5] Seconds of a prompt: products and attention at a share of the peak, then communication, which adds."""
    flops = forward_flops(_at(server.model, prompt), prompt).total
    math_s = flops / (server.flops_per_s * share)
    return max(math_s, server.touched_bytes(prompt) / server.hbm_bytes_per_s) + joins_s(server, prompt)


def _at(model: Model, seq: int) -> Model:
    values = {name: getattr(model, name) for name in Model.__slots__} | {"seq": seq, "towers": ()}
    return Model(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """Prefill and decode on servers of their own [I6]."""

    prefill_servers_per_decode_server: float
    transfer_s: float | None
    """Of one prompt's cache from one to the other over the network; None where its rate is not known."""


def disaggregate(server: Server, batch: int, prompt: int, answer: int, share: float = 1.0) -> Disaggregation:
    """How many prefill servers keep one decode server busy, and what the caches' way between them takes."""
    network = server.network_bytes_per_s or server.chip.device_scaleout_bytes_per_s
    moved = cache_bytes(server.model, prompt, DTYPE_BYTES[server.kv_dtype])
    return Disaggregation(
        prefill_servers_per_decode_server=prefill_to_decode_servers(
            prefill_s=prefill_s(server, prompt, share),
            batch=batch,
            step_s=decode(server, batch).step_s,
            decode_tokens=answer,
        ),
        transfer_s=None if network is None else moved / (network * server.devices),
    )


def speculate(server: Server, batch: int, *, accept: float, draft_len: int, draft_cost: float) -> float:
    """[I9] Speed-up by a draft model, with the cost of verifying more tokens than one a sequence at this batch.

    More tokens take more arithmetic, touch more experts and are joined more slowly; caches are read once.
    """
    plain = decode(server, batch)
    tokens = batch * (draft_len + 1)
    math_s = 2 * tokens * server.model.matmul_params / server.flops_per_s
    read_s = server.touched_bytes(tokens) / server.hbm_bytes_per_s
    verify_s = max(read_s, math_s) + plain.cache_s + joins_s(server, tokens)
    ideal = spec_decode_speedup(accept=accept, draft_len=draft_len, draft_cost=draft_cost)
    return ideal * (draft_len * draft_cost + 1) / (draft_len * draft_cost + verify_s / plain.step_s)


def fewest_devices(model: Model, chip: Chip, *, context: int, weight_dtype: str, kv_dtype: str) -> int | None:
    """[Y11] The smallest power of two of devices that holds the weights and one sequence; None: memory not known."""
    if chip.device_memory_bytes is None:
        return None
    devices = 1
    while True:
        server = Server(
            model=model, chip=chip, devices=devices, context=context, weight_dtype=weight_dtype, kv_dtype=kv_dtype
        )
        if server.max_sequences:
            return devices
        devices *= 2

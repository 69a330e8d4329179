"""Records a sharded transformer training step of JAX on the CPU: `python capture.py train.xplane.pb.gz`.

Four forced host devices stand for the chips of a 2 x 2 mesh (data, model): the batch is split over `data`, the weights
of each matrix product over `model`. Six steps are recorded, each in a `StepTraceAnnotation`.
"""

import gzip
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

DEVICES = 4
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

LAYERS, HIDDEN, HEADS, FFN, VOCAB, SEQ, BATCH, STEPS = 2, 128, 4, 512, 512, 64, 8, 6
LEARNING_RATE = 1e-2

Params = dict[str, Any]


def init(key: jax.Array) -> Params:
    """Weights in float32, normal with standard deviation 0.02."""

    def matrix(*shape: int) -> jax.Array:
        nonlocal key
        key, mine = jax.random.split(key)
        return 0.02 * jax.random.normal(mine, shape)

    layers = [
        {
            "qkv": matrix(HIDDEN, 3, HEADS, HIDDEN // HEADS),
            "out": matrix(HEADS, HIDDEN // HEADS, HIDDEN),
            "up": matrix(HIDDEN, FFN),
            "down": matrix(FFN, HIDDEN),
        }
        for _ in range(LAYERS)
    ]
    return {"embedding": matrix(VOCAB, HIDDEN), "layers": layers, "unembedding": matrix(HIDDEN, VOCAB)}


def shardings(mesh: Mesh) -> Params:
    """Weights split over the model axis as Megatron does: by head, by hidden unit of the MLP, by word."""

    def over(*axes: str | None) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*axes))

    layer = {
        "qkv": over(None, None, "model", None),
        "out": over("model", None, None),
        "up": over(None, "model"),
        "down": over("model", None),
    }
    return {"embedding": over("model", None), "layers": [layer] * LAYERS, "unembedding": over(None, "model")}


def normalized(x: jax.Array) -> jax.Array:
    """Root-mean-square norm without a weight."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def attention(x: jax.Array, layer: Params) -> jax.Array:
    """Causal attention over all heads."""
    q, k, v = jnp.einsum("btd,dchk->cbthk", x, layer["qkv"])
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / np.sqrt(HIDDEN // HEADS)
    weights = jax.nn.softmax(jnp.where(np.tri(SEQ, dtype=bool), scores, -1e9))
    return jnp.einsum("bhts,bshk,hkd->btd", weights, v, layer["out"])


def loss(params: Params, tokens: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next token."""
    x = params["embedding"][tokens[:, :-1]]
    for number, layer in enumerate(params["layers"]):
        with jax.named_scope(f"layer_{number}"):
            with jax.named_scope("attention"):
                x = x + attention(normalized(x), layer)
            with jax.named_scope("mlp"):
                x = x + jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
    with jax.named_scope("head"):
        logits = jax.nn.log_softmax(normalized(x) @ params["unembedding"])
        return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], -1))


def train_step(params: Params, tokens: jax.Array) -> tuple[Params, jax.Array]:
    """One step of gradient descent."""
    value, gradients = jax.value_and_grad(loss)(params, tokens)
    with jax.named_scope("optimizer"):
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradients), value


def main(out: Path) -> None:
    """Compiles outside the trace, then records."""
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*")  # no folder of this machine in the HLO
    jax.config.update("jax_traceback_in_locations_limit", 1)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    weights, batch = shardings(mesh), NamedSharding(mesh, PartitionSpec("data", None))
    step = jax.jit(
        train_step, in_shardings=(weights, batch), out_shardings=(weights, NamedSharding(mesh, PartitionSpec()))
    )
    params = jax.device_put(init(jax.random.key(0)), weights)
    random = np.random.default_rng(0)

    def load_batch() -> jax.Array:
        return jax.device_put(random.integers(0, VOCAB, (BATCH, SEQ + 1), dtype=np.int32), batch)

    params, value = step(params, load_batch())
    value.block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 2
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for number in range(STEPS):
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    with jax.profiler.TraceAnnotation("load_batch"):
                        tokens = load_batch()
                    params, value = step(params, tokens)
                    value.block_until_ready()
        (trace,) = Path(folder).rglob("*.xplane.pb")
        out.write_bytes(gzip.compress(trace.read_bytes(), 9, mtime=0))
    print(f"loss {float(value):.4f}, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

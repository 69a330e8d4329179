"""JAX as an oracle: FLOPs and bytes of real small programs, from their compiled HLO, against XLA's `cost_analysis`.

Skipped where jax is not installed; it is no dependency. Deviations, met with jax 0.10 on a CPU and stated where they are
tested:

- none in FLOPs of products, attention, convolutions, normalisations, their gradients and ragged products;
- bytes within 0.1 %: XLA adds a few scalars that fusions share;
- Fourier transforms: XLA counts 8 n log2 n where the convention here is 5 n log2 n;
- sorts: XLA takes the logarithm of all elements, we that of the sorted row.
"""

import pytest

from tracegap.ingest.classify.hlo_cost import cost
from tracegap.ingest.classify.hlo_module import PROTO, Module

jax = pytest.importorskip("jax", reason="the oracle needs jax: pip install jax")
pytestmark = pytest.mark.filterwarnings("ignore")


def both(function, *arguments):
    """FLOPs and bytes as we count them, and as XLA does."""
    compiled = jax.jit(function).lower(*arguments).compile()
    proto = PROTO["HloProto"]()
    proto.hlo_module.ParseFromString(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())
    module = Module.parse(proto.SerializeToString())
    assert module is not None
    entry = next(c for c in module.proto.computations if c.id == module.proto.entry_computation_id)
    costs = [cost(module.instruction(instruction), module) for instruction in entry.instructions]
    assert all(c.flops is not None for c in costs), [c.note for c in costs if c.flops is None]
    theirs = compiled.cost_analysis()
    theirs = theirs[0] if isinstance(theirs, list) else theirs
    ours = sum(c.flops for c in costs), sum(c.bytes for c in costs)
    return ours, (theirs["flops"], theirs["bytes accessed"])


def ones(*shape, dtype="float32"):
    return jax.numpy.ones(shape, dtype)


def mlp(x, w1, w2):
    return (jax.nn.gelu(x @ w1) @ w2).sum()


def attention(q, k, v):
    scores = jax.nn.softmax(jax.numpy.einsum("btnh,bsnh->bnts", q, k))
    return jax.numpy.einsum("bnts,bsnh->btnh", scores, v).sum()


def layer_norm(x, scale):
    x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
    return (x * scale).sum()


def convolution(x, w):
    return jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", feature_group_count=2).sum()


QKV = [(2, 32, 4, 16)] * 3
PROGRAMS = {
    "mlp": (mlp, [(64, 128), (128, 256), (256, 32)]),
    "attention": (attention, QKV),
    "layer_norm": (layer_norm, [(64, 128), (128,)]),
    "convolution": (convolution, [(2, 8, 17, 17), (16, 4, 3, 3)]),
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, backward):
    function, shapes = PROGRAMS[name]
    arguments = [ones(*shape) for shape in shapes]
    run = jax.grad(function, argnums=tuple(range(len(shapes)))) if backward else function
    ours, theirs = both(run, *arguments)
    assert ours[0] == theirs[0]
    assert ours[1] == pytest.approx(theirs[1], rel=1e-3)


def test_ragged_products():
    groups = jax.numpy.array([8, 8, 8, 8])
    ours, theirs = both(jax.lax.ragged_dot, ones(32, 8), ones(4, 8, 16), groups)
    assert ours[0] == theirs[0]


def test_conventions_that_differ():
    ours, theirs = both(jax.numpy.fft.fft, ones(4, 64, dtype="complex64"))
    assert (ours[0], theirs[0]) == (4 * 5 * 64 * 6, 4 * 8 * 64 * 6)
    ours, theirs = both(jax.numpy.sort, ones(4, 64))
    assert (ours[0], theirs[0]) == (256 * 6, 256 * 8)

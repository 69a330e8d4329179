"""Recurrent networks of libraries, all layers and steps in one call."""

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import formula
from tracegap.models.formulas.matmul import matmul_flops
from tracegap.models.formulas.sizes import bytes_of, elements, flat, join, math_dtype, nbytes, tensor, total
from tracegap.models.ops import OpSpec

_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
"""By cuDNN's number of the kind: RNN with ReLU or tanh, LSTM, GRU."""


@formula("recurrent")
def recurrent(spec: OpSpec) -> Cost:
    """Products of all gates, layers, directions and steps [M1]; gates' own arithmetic is not counted.

    Tensors: x [T, B, I] (or [B, T, I]: the same count), weights (a list), then what else is read. Params: `mode`,
    `hidden`, `layers`, `bidirectional`, `backward` (twice the products more); None where the trace has no scalars.
    """
    x, p = tensor(spec, 0), spec.params
    if p.get("hidden") is None or p.get("layers") is None or p.get("mode") not in _GATES:
        return Cost(flops=None, bytes=None, dtype=math_dtype(x), note="layers and widths are not in the trace")
    if len(x.shape) != 3:
        raise BadShape(f"{spec.kind}: expected three dimensions, got {x.shape}")
    ways = 2 if p.get("bidirectional") else 1
    hidden, rows, width = int(p["hidden"]), elements(x) // max(x.shape[2], 1), x.shape[2]
    flops = 0
    for _ in range(int(p["layers"])):
        flops += ways * matmul_flops(rows, width + hidden, _GATES[int(p["mode"])] * hidden)
        width = ways * hidden
    weights = sum(elements(t) for t in flat(spec.tensors[1:2]))
    moved = total(nbytes(x, *spec.tensors[2:]), bytes_of(weights + rows * width, x.dtype))
    return Cost(
        flops=flops * (2 if p.get("backward") else 1),
        bytes=moved,
        dtype=math_dtype(x),
        note=join("what is kept between steps and layers is not counted", None if moved is not None else "no dtypes"),
    )

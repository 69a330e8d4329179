"""Fused optimizer steps over lists of parameters [M10]."""

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import formula
from tracegap.models.formulas.sizes import elements, flat, math_dtype, nbytes, total, unknown_dtype_note
from tracegap.models.ops import OpSpec
from tracegap.models.quantities import quantity


@quantity("adam_step_bytes", "M10")
def adam_step_bytes(
    *, params: int, grad_bytes: float, master_bytes: float, moment_bytes: float, out_param_bytes: float
) -> float:
    """Bytes of one Adam step: gradient read, master weights and two moments read and written, a copy written.

    The sizes are bytes per parameter of each; `out_param_bytes` is 0 where no low-precision copy is kept.
    """
    return params * (grad_bytes + 2 * master_bytes + 2 * 2 * moment_bytes + out_param_bytes)


@formula("fused_optimizer")
def fused_optimizer(spec: OpSpec) -> Cost:
    """One fused step. Tensors: parameters (a list), gradients (a list), then state lists, each at its own dtype.

    Gradients are read, all other lists read and written. Params: `flops_per_element` (Adam 16, SGD 4).
    """
    if len(spec.tensors) < 2 or not isinstance(spec.tensors[0], tuple):
        raise BadShape(f"{spec.kind}: lists of parameters and gradients come first")
    parameters = spec.tensors[0]
    updated = nbytes(parameters, *spec.tensors[2:])
    n = sum(elements(t) for t in parameters)
    return Cost(
        flops=int(spec.params["flops_per_element"]) * n,
        bytes=total(updated, updated, nbytes(spec.tensors[1])),
        dtype=math_dtype(*flat([parameters])),
        note=unknown_dtype_note(*spec.tensors),
    )

"""Fourier transforms, sampling at free places, and dense factorisations."""

from math import log2, prod

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import formula
from tracegap.models.formulas.sizes import bytes_of, elements, math_dtype, nbytes, tensor, total, unknown_dtype_note
from tracegap.models.ops import OpSpec
from tracegap.models.quantities import quantity

_COMPLEX_OF = {"fp32": "complex64", "fp64": "complex128", "complex64": "complex64", "complex128": "complex128"}
_REAL_OF = {"complex64": "fp32", "complex128": "fp64"}


@quantity("fft_flops", "M8")
def fft_flops(*, n: int, transforms: int = 1, real: bool = False) -> float:
    """FLOPs of fast Fourier transforms of n points, by the convention 5 n log2 n [M8]; half of it for real data."""
    return transforms * (2.5 if real else 5) * n * log2(max(n, 1))


@formula("fft")
def fft(spec: OpSpec) -> Cost:
    """Transforms along some dimensions. Tensors: x.

    Params: `dims` (None = not known), `to` ("complex" of complex data, "half" of real data with half of a spectrum as
    the result, "real" back from it), `size` (of the last dimension of a result that is real).
    """
    x, to = tensor(spec, 0), spec.params["to"]
    dims, size = spec.params.get("dims"), int(spec.params.get("size") or 0)
    if not dims or (to == "real" and not size):
        return Cost(flops=None, bytes=None, note="transformed dimensions are not in the trace")
    if any(not -len(x.shape) <= int(d) < len(x.shape) for d in dims):
        raise BadShape(f"{spec.kind} along {dims} of shape {x.shape}")
    shape = list(x.shape)
    last = int(dims[-1])
    out = list(shape)
    if to == "half":
        out[last] = shape[last] // 2 + 1
    elif to == "real":
        out[last] = shape[last] = size
    points = prod(shape[int(d)] for d in dims)
    dtype = _REAL_OF.get(x.dtype, x.dtype) if to == "real" else _COMPLEX_OF.get(x.dtype, x.dtype)
    return Cost(
        flops=round(fft_flops(n=points, transforms=prod(shape) // max(points, 1), real=to != "complex")),
        bytes=total(nbytes(x), bytes_of(prod(out), dtype)),
        dtype=_REAL_OF.get(x.dtype, math_dtype(x)),
        note=unknown_dtype_note(x),
    )


@formula("grid_sample")
def grid_sample(spec: OpSpec) -> Cost:
    """Interpolates an image at the places of a grid: 2 FLOPs for each of 4 or 8 neighbours. Tensors: x, grid [N, ..., d].

    The image counts once, as if every element were met.
    """
    x, grid = tensor(spec, 0), tensor(spec, 1)
    dims = grid.shape[-1] if grid.shape else 0
    if dims not in {2, 3} or len(x.shape) != dims + 2:
        raise BadShape(f"{spec.kind}: {x.shape} at {grid.shape}")
    out = elements(grid) // dims * x.shape[1]
    moved = total(nbytes(x, grid), bytes_of(out, x.dtype))
    return Cost(flops=2 * 2**dims * out, bytes=moved, dtype=math_dtype(x), note=unknown_dtype_note(x, grid))


@formula("grid_sample_backward")
def grid_sample_backward(spec: OpSpec) -> Cost:
    """Gradients of image and grid: about twice the forward. Tensors: gradient, x, grid. Params: `output_mask`."""
    grad, x, grid = (tensor(spec, i) for i in range(3))
    dims = grid.shape[-1] if grid.shape else 0
    mask = spec.params.get("output_mask") or (True, True)
    written = total(nbytes(x) if mask[0] else 0, nbytes(grid))
    return Cost(
        flops=4 * 2**dims * elements(grad),
        bytes=total(nbytes(grad, x, grid), written),
        dtype=math_dtype(x),
        note=unknown_dtype_note(grad, x, grid),
    )


@formula("factorization")
def factorization(spec: OpSpec) -> Cost:
    """A dense factorisation or inverse of [..., n, n] in place. Params: `thirds` (FLOPs are thirds / 3 x n^3)."""
    x = tensor(spec, 0)
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2]:
        raise BadShape(f"{spec.kind} of shape {x.shape}")
    n = x.shape[-1]
    flops = int(spec.params["thirds"]) * elements(x) * n // 3
    moved = total(nbytes(x), bytes_of(elements(x), x.dtype))
    return Cost(flops=flops, bytes=moved, dtype=math_dtype(x), note=unknown_dtype_note(x))


@formula("triangular_solve")
def triangular_solve(spec: OpSpec) -> Cost:
    """Solves n unknowns for m right-hand sides: n^2 m FLOPs. Tensors: triangle [..., n, n], right-hand sides."""
    a, b = tensor(spec, 0), tensor(spec, 1)
    if len(a.shape) < 2:
        raise BadShape(f"{spec.kind} of shape {a.shape}")
    moved = total(nbytes(a, b), bytes_of(elements(b), b.dtype))
    return Cost(flops=a.shape[-1] * elements(b), bytes=moved, dtype=math_dtype(b), note=unknown_dtype_note(a, b))


@formula("pairwise_distance")
def pairwise_distance(spec: OpSpec) -> Cost:
    """Distances of all pairs of rows of [..., P, M] and [..., R, M]: 3 FLOPs a pair and column. Tensors: both."""
    a, b = tensor(spec, 0), tensor(spec, 1)
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-1]:
        raise BadShape(f"{spec.kind}: {a.shape} and {b.shape}")
    pairs = elements(a) // max(a.shape[-1], 1) * b.shape[-2]
    moved = total(nbytes(a, b), bytes_of(pairs, a.dtype))
    return Cost(flops=3 * pairs * a.shape[-1], bytes=moved, dtype=math_dtype(a, b), note=unknown_dtype_note(a, b))

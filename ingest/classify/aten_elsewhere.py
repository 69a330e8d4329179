"""Sizes that a call does not record but another call of the same file does. Pure.

Releases before 2.1 record no scalars, so that a forward convolution does not tell its stride; the backward of a call
with the same tensors has its result's gradient, and with it the size. A size counts only where all such calls agree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tracegap.ingest.classify.table_lookups import BACKWARD, DENSE_LOOKUP, LOOKUP, Lookups, plain_name

Shape = tuple[int, ...]
_LOOKUPS = frozenset({LOOKUP, DENSE_LOOKUP, BACKWARD})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Calls that tell a size of other calls."""

    by: str
    """The operator that tells it."""
    same: tuple[tuple[int, int], ...]
    """Arguments that are equal: positions in the call that lacks the size and in the one that tells it."""
    takes: int
    """Position of the argument whose shape is the size."""
    param: str
    """The formula's parameter that it is."""


_SOURCES: dict[str, list[_Source]] = {}


def _tells(of: str, by: str, param: str, takes: int, *same: tuple[int, int]) -> None:
    for name in of.split():
        sources = (_Source(by=f"aten::{b}", same=same, takes=takes, param=param) for b in by.split())
        _SOURCES.setdefault(f"aten::{name}", []).extend(sources)


_CONVOLUTIONS = (
    "convolution _convolution convolution_overrideable cudnn_convolution miopen_convolution mkldnn_convolution "
    "miopen_depthwise_convolution thnn_conv2d _slow_conv2d_forward conv_depthwise3d _conv_depthwise2d"
)
_OF_LIBRARIES = "cudnn_convolution_backward miopen_convolution_backward mkldnn_convolution_backward"
_tells(_CONVOLUTIONS, _OF_LIBRARIES, "out_shape", 1, (0, 0), (1, 2))
_tells(_CONVOLUTIONS, "convolution_backward", "out_shape", 0, (0, 1), (1, 2))
_tells("cudnn_convolution_backward_input miopen_convolution_backward_input", _OF_LIBRARIES, "size", 0, (1, 1), (2, 2))
_tells("cudnn_convolution_backward_weight miopen_convolution_backward_weight", _OF_LIBRARIES, "size", 2, (1, 1), (2, 0))
for _d in ("2d", "3d"):
    for _pool in (f"max_pool{_d}_with_indices", f"avg_pool{_d}", f"adaptive_max_pool{_d}", f"_adaptive_avg_pool{_d}"):
        _tells(_pool, f"{_pool}_backward", "out_shape", 0, (0, 1))


@cache
def _tellers() -> frozenset[str]:
    return frozenset(source.by for sources in _SOURCES.values() for source in sources)


def tells(name: str) -> bool:
    """Whether calls of this operator may tell sizes of others."""
    return name in _tellers() or plain_name(name) in _LOOKUPS


def lacks(name: str) -> bool:
    """Whether calls of this operator may lack a size that others tell."""
    return name in _SOURCES or plain_name(name) in _LOOKUPS


class Elsewhere:
    """What the calls of a file tell of one another."""

    def __init__(self, calls: Iterable[tuple[str, Sequence[Any] | None]]) -> None:
        """Takes the calls of which `tells` holds: name and `Input Dims`."""
        given_calls = list(calls)
        self._lookups = Lookups(given_calls)
        by_name: dict[str, list[list[Shape | None]]] = {}
        for name, dims in given_calls:
            by_name.setdefault(name, []).append([_shape(d) for d in dims or ()])
        self._known: dict[tuple[Any, ...], set[Shape]] = {}
        for sources in _SOURCES.values():
            for source in sources:
                for shapes in by_name.get(source.by, ()):
                    given = tuple(_at(shapes, theirs) for _, theirs in source.same)
                    size = _at(shapes, source.takes)
                    if size and None not in given:
                        self._known.setdefault((source.by, source.takes, source.same, given), set()).add(size)

    def told(
        self, name: str, dims: Sequence[Any] | None, caller: tuple[str, Sequence[Any] | None] | None = None
    ) -> Mapping[str, Any]:
        """Parameters of a call's formula that its caller tells, else calls with the same tensors where they agree."""
        shapes = [_shape(d) for d in dims or ()]
        found: dict[str, Any] = dict(self._lookups.told(name, dims))
        for source in _SOURCES.get(name, ()):
            given = tuple(_at(shapes, mine) for mine, _ in source.same)
            sizes = self._known.get((source.by, source.takes, source.same, given), set())
            if caller is not None and caller[0] == source.by:
                size = _at([_shape(d) for d in caller[1] or ()], source.takes)
                sizes = sizes if size is None else {size}
            if len(sizes) == 1:
                found.setdefault(source.param, next(iter(sizes)))
        return found


def _shape(dims: Any) -> Shape | None:
    """The shape of a tensor; None of what is none."""
    if not isinstance(dims, list) or not dims or not all(type(n) is int for n in dims):
        return None
    return tuple(dims)


def _at(shapes: list[Shape | None], position: int) -> Shape | None:
    return shapes[position] if position < len(shapes) else None

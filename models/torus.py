# ruff: noqa: N803 - formulas use the letters of the scaling book, each defined where it is used
"""Collectives on a torus of links (ICI), and point to point.

Sizes are those of the whole logical array after division by mesh axes that the collective does not use. A link is one
direction; an axis that wraps around uses both of a device, one that does not has a busiest device with a single link.
Formula codes T1 to T9 are those of the theory reference (Scaling Book, chapters 2, 3, 5, 7, 9).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tracegap.models.errors import NoFormula
from tracegap.models.quantities import quantity

HOP_LATENCY_S = 1e-6
"""Of one link, about (Scaling Book, chapter 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A torus axis that a collective uses."""

    size: int
    """Devices along it."""
    wrap: bool
    """Whether its ends are linked."""
    stride: int = 1
    """Links from a device to the next one of its group. The groups between run at the same time and share the links:
    each has 1/stride of their rate, as the shifts of T8."""

    @property
    def ports(self) -> float:
        """Links by which the busiest device can receive along it, counted in one direction each; its share of them."""
        return 0 if self.size == 1 else (2 if self.wrap else 1) / self.stride

    @property
    def hops(self) -> float:
        """Links between the farthest devices along it."""
        return self.stride * (self.size / 2 if self.wrap and self.size > 1 else self.size - 1)


def gather_s(global_bytes: float, axes: Sequence[Axis], link_bytes_per_s: float) -> float:
    """[T1, T2, T4] Seconds of an all-gather or reduce-scatter, exact factor (n-1)/n; all axes at once."""
    n = prod(axis.size for axis in axes)
    ports = sum(axis.ports for axis in axes)
    return 0.0 if n == 1 else global_bytes * (n - 1) / n / (ports * link_bytes_per_s)


def all_to_all_s(global_bytes: float, axes: Sequence[Axis], link_bytes_per_s: float) -> float:
    """[T6, T7] Seconds of an all-to-all by the bisection of each axis; an axis without wraparound has half of it."""
    n = prod(axis.size for axis in axes)
    return max(
        (
            global_bytes * axis.size / (8 * n * link_bytes_per_s) * (1 if axis.wrap else 2) * axis.stride
            for axis in axes
            if axis.size > 1
        ),
        default=0.0,
    )


def busiest_link_bytes(sent_bytes: Sequence[Sequence[float]], axes: Sequence[Axis]) -> float:
    """Bytes on the busiest link, in one direction, when chip i sends `sent_bytes[i][j]` to chip j by the shortest way.

    Messages go along one axis after the other; what is equally far both ways round is halved. Chips are numbered with the
    first axis fastest. Counts every message: meant for hundreds of chips. Where an axis has a stride, the groups between
    send the same.
    """
    load: dict[tuple[int, int, int], float] = {}
    strides = [prod(axis.size for axis in axes[:i]) for i in range(len(axes))]
    for source, row in enumerate(sent_bytes):
        for target, size in enumerate(row):
            at = source
            for dim, (axis, stride) in enumerate(zip(axes, strides, strict=True)):
                place, goal = at // stride % axis.size, target // stride % axis.size
                ahead = (goal - place) % axis.size
                for step, hops in ((1, ahead), (-1, axis.size - ahead)):
                    other = axis.size - hops
                    share = (hops < other) + 0.5 * (hops == other) if axis.wrap else step * (goal - place) > 0
                    if ahead and size and share:
                        for hop in range(hops):
                            link = (at + ((place + step * hop) % axis.size - place) * stride, dim, step)
                            load[link] = load.get(link, 0) + share * size * axis.stride
                at += (goal - place) * stride
    return max(load.values(), default=0.0)


@quantity("permute_time_s", "T8")
def permute_time_s(*, bytes: float, shift: int, axis_size: int, link_bytes_per_s: float, wrap: bool = True) -> float:  # noqa: A002
    """[T8] Seconds in which every device of an axis sends to the one `shift` further; messages share the links between."""
    hops = min(shift, axis_size - shift) if wrap else shift
    return hops * bytes / link_bytes_per_s


@quantity("all_gather_time_s", "T1", "T2", "T3", "T4")
def all_gather_time_s(
    *,
    global_bytes: float | None = None,
    B: float | None = None,
    D: float | None = None,
    bytes_per_elem: float | None = None,
    other_axis_shards: float = 1,
    axis_size: int | None = None,
    axes: int = 1,
    bidi_bytes_per_s: float | None = None,
    link_bytes_per_s: float | None = None,
    wrap: bool = True,
    exact: bool = False,
    hop_latency_s: float = 0,
) -> float:
    """[T1 to T4] Seconds of an all-gather over `axes` torus axes of `axis_size` devices each.

    The array has `global_bytes`, or is [B, D] and divided by the shards of other axes. The rate is that of one link in
    one direction, or of both directions of an axis. With wraparound the asymptotic form is used unless `exact`; without
    it the form is always exact, because the end device has one link for all n-1 parts. With a hop latency, the longer
    of latency and transfer.
    """
    if global_bytes is None:
        if B is None or D is None or bytes_per_elem is None:
            raise NoFormula("all_gather_time_s needs global_bytes, or B, D and bytes_per_elem")
        global_bytes = B * D * bytes_per_elem
    if link_bytes_per_s is None:
        if bidi_bytes_per_s is None:
            raise NoFormula("all_gather_time_s needs link_bytes_per_s or bidi_bytes_per_s")
        link_bytes_per_s = bidi_bytes_per_s / 2
    part = global_bytes / other_axis_shards
    if axis_size is None:
        if exact or hop_latency_s or not wrap:
            raise NoFormula("all_gather_time_s needs axis_size for latency, exact factor or a line")
        return part / (2 * link_bytes_per_s * axes)
    used = [Axis(size=axis_size, wrap=wrap)] * axes
    n = axis_size**axes
    seconds = gather_s(part, used, link_bytes_per_s)
    if wrap and not exact and n > 1:
        seconds *= n / (n - 1)
    return max(seconds, hop_latency_s * sum(axis.hops for axis in used))


@quantity("all_reduce_time_s", "T4")
def all_reduce_time_s(
    *,
    B: float,
    D: float,
    bytes_per_elem: float,
    bidi_bytes_per_s: float,
    other_axis_shards: float = 1,
    axes: int = 1,
) -> float:
    """[T4] Seconds of an all-reduce of [B, D] over wrapped axes: reduce-scatter, then all-gather."""
    return 2 * all_gather_time_s(
        B=B,
        D=D,
        bytes_per_elem=bytes_per_elem,
        other_axis_shards=other_axis_shards,
        axes=axes,
        bidi_bytes_per_s=bidi_bytes_per_s,
    )


@quantity("all_to_all_time_s", "T6")
def all_to_all_time_s(*, global_bytes: float, bidi_bytes_per_s: float, wrap: bool = True) -> float:
    """[T6] Seconds of an all-to-all on one axis; the array is the one over all devices."""
    return global_bytes / ((4 if wrap else 2) * bidi_bytes_per_s)


@quantity("all_to_all_bisection_time_s", "T7")
def all_to_all_bisection_time_s(
    *, global_bytes: float, torus: Sequence[int], link_bytes_per_s: float, wrap: bool = True
) -> float:
    """[T7] Seconds of an all-to-all on a torus, by the bisection of its longest side."""
    return all_to_all_s(global_bytes, [Axis(size=size, wrap=wrap) for size in torus], link_bytes_per_s)


@quantity("scalars_per_link_all_to_all", "T6")
def scalars_per_link_all_to_all(*, N: int, devices: int, bidirectional: bool = False) -> float:
    """[T6] Elements of an N x N array that cross each link, in each direction used, in an all-to-all on a ring.

    Blocks of (N / devices)^2 travel 1 to devices - 1 links one way round, or the shorter way round; a block that is
    equally far either way is halved.
    """
    one_way = sum(range(1, devices))
    shorter_way = sum(min(distance, devices - distance) for distance in range(1, devices)) / 2
    links = shorter_way if bidirectional else one_way
    return N**2 / devices**2 * links


@quantity("p2p_transfer_time_s", "T9")
def p2p_transfer_time_s(
    *,
    bytes: float,  # noqa: A002 - name of the input
    link_bytes_per_s: float,
    parallel_links: float = 1,
    hops: float = 0,
    hop_latency_s: float = 0,
) -> float:
    """[T9] Seconds between two devices over the minimal paths that run in parallel, and the hops of the first byte."""
    return bytes / (parallel_links * link_bytes_per_s) + hops * hop_latency_s

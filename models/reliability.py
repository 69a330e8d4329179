"""Overlap, stragglers, failures: what a step and a long run lose beside arithmetic and traffic.

Formula codes O1, O2, E1, E2 and F1 to F4 are those of the theory reference (Young 1974; Daly 2006; order statistics).
"""

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import NormalDist

from tracegap.models.quantities import quantity


def union(intervals: Iterable[Sequence[float]]) -> list[tuple[float, float]]:
    """Disjoint half-open intervals that cover the same instants, in order; empty and reversed ones cover none."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted((start, end) for start, end in intervals if end > start):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


@quantity("exposed_comm_s", "O1")
def exposed_comm_s(*, compute_intervals: Iterable[Sequence[float]], comm_intervals: Iterable[Sequence[float]]) -> float:
    """[O1] Time in which communication runs and no compute does, in the unit of the intervals."""
    compute = union(compute_intervals)
    both = union([*compute, *comm_intervals])
    # |comm \ compute| = |comm ∪ compute| - |compute|
    return sum(end - start for start, end in both) - sum(end - start for start, end in compute)


@quantity("step_time_s", "O2")
def step_time_s(*, compute_s: float, comm_s: float, overlap_fraction: float) -> float:
    """[O2] Seconds of a step that hides the given share of its communication; never less than all communication."""
    return max(compute_s + comm_s * (1 - overlap_fraction), compute_s, comm_s)


@quantity("sync_throughput_flops_per_s", "E1")
def sync_throughput_flops_per_s(*, devices: Sequence[Sequence[float]], equal_shards: bool) -> float:
    """[E1] FLOP/s of synchronous data parallelism over (count, FLOP/s) kinds of devices.

    Equal shards go at the pace of the slowest device; shards proportional to speed keep all busy.
    """
    if equal_shards:
        return sum(count for count, _ in devices) * min(rate for _, rate in devices)
    return sum(count * rate for count, rate in devices)


def expected_maximum_of_normals(n: int, *, steps: int = 4000) -> float:
    """Expected largest of n independent standard normals, by Simpson's rule on the distribution of the maximum.

    E[max] is the integral of 1 - Phi(x)^n over x > 0 less that of Phi(x)^n over x < 0; beyond 10 both are below 1e-15
    for any n that a computer has.
    """
    phi = NormalDist().cdf
    limit = 10.0
    width = limit / steps
    weights = [1, *([4, 2] * (steps // 2 - 1)), 4, 1]
    return (
        sum(weight * (1 - phi(i * width) ** n - phi(-i * width) ** n) for i, weight in enumerate(weights)) * width / 3
    )


@quantity("straggler_slowdown", "E2")
def straggler_slowdown(*, ranks: int, mean_s: float, sigma_s: float) -> float:
    """[E2] Expected time of the slowest of independent normal ranks over the mean; real straggling is correlated."""
    return (mean_s + sigma_s * expected_maximum_of_normals(ranks)) / mean_s


@quantity("mtbf_hours", "F1")
def mtbf_hours(*, days: float, failures: float) -> float:
    """[F1] Mean time between failures of a job."""
    return days * 24 / failures


@quantity("young_interval_s", "F2")
def young_interval_s(*, checkpoint_s: float, mtbf_s: float) -> float:
    """[F2] Work between checkpoints that loses least, where a checkpoint is short against the time between failures."""
    return sqrt(2 * checkpoint_s * mtbf_s)


@quantity("daly_interval_s", "F3")
def daly_interval_s(*, checkpoint_s: float, mtbf_s: float) -> float:
    """[F3] The same to higher order; never more than the time between failures."""
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    x = checkpoint_s / (2 * mtbf_s)
    return sqrt(2 * checkpoint_s * mtbf_s) * (1 + sqrt(x) / 3 + x / 9) - checkpoint_s


@quantity("goodput_first_order", "F4")
def goodput_first_order(*, checkpoint_s: float, interval_s: float, restart_s: float, mtbf_s: float) -> float:
    """[F4] Useful share of wall time, where checkpoint and restart are short against the time between failures."""
    return 1 - checkpoint_s / interval_s - (interval_s / 2 + restart_s) / mtbf_s

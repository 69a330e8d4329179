"""What is true of a schedule: every nanosecond of every step, worked out from the schedule by plain integer arithmetic.

A line is swept from one change to the next; at each stretch the operations that run are looked up afresh. Slow, and
obviously right.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

from _sim.schedule import Collective, DeviceOp, HostSpan

BUCKETS = (
    "useful_math",
    "recompute_math",
    "memory_bound",
    "kernel_inefficiency",
    "unmodelled_compute",
    "comm_minimum",
    "comm_wait",
    "comm_inefficiency",
    "exposed_copy",
    "idle_host",
    "idle_sync",
    "idle_input",
    "idle_pipeline",
    "idle_gap",
    "idle_unknown",
)
COPIES = ("copy", "memset")
BUS_FACTOR: dict[str, Callable[[int], Fraction]] = {
    "all_reduce": lambda n: Fraction(2 * (n - 1), n),
    "all_gather": lambda n: Fraction(n - 1, n),
    "reduce_scatter": lambda n: Fraction(n - 1, n),
    "permute": lambda _: Fraction(1),
}
"""busbw over algbw, as nccl-tests defines it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Peaks of one device."""

    matrix_flops_per_s: int
    vector_flops_per_s: int
    hbm_bytes_per_s: int


@dataclass(slots=True, kw_only=True)
class Device:
    """A device, what ran on it and the host that drove it."""

    label: dict[str, Any]
    """Which one it is, as rows of the truth say it: {"rank": 3}, {"device": "TPU:3"}."""
    ops: list[DeviceOp]
    spans: list[HostSpan]
    mark_thread: str
    """The thread that carries the step marks."""


@dataclass(slots=True)
class Step:
    """The account of one step window."""

    start_ns: int
    end_ns: int
    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("compute", "comm", "copy", "idle"), 0))
    buckets: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BUCKETS, 0))
    shares: dict[int, Fraction] = field(default_factory=dict)
    """By position in the device's operations: the share of its state."""
    before_arrival: dict[int, Fraction] = field(default_factory=dict)
    """The same, of the part before a collective's arrival."""


def half_even_ns(amount: int, per_s: int) -> int:
    """Time that `amount` takes at a rate, in whole nanoseconds, ties to even."""
    return round(Fraction(amount * 10**9, per_s))


def state_of(op: DeviceOp) -> str:
    if op.op_class == "collective":
        return "comm"
    return "copy" if op.op_class in COPIES else "compute"


class Truth:
    """The truth of a job."""

    def __init__(self, devices: Sequence[Device], chip: Chip, predict_ns: Callable[[Collective], int]) -> None:
        self.devices = devices
        self.chip = chip
        self.predict_ns = predict_ns
        for device in devices:
            device.ops.sort(key=lambda op: (op.start_ns, op.end_ns))
        self.arrival_ns: dict[Collective, int] = {}
        for device in devices:
            for op in device.ops:
                if op.collective:
                    self.arrival_ns[op.collective] = max(self.arrival_ns.get(op.collective, 0), op.start_ns)
        self.steps = [self._steps(device) for device in devices]

    def _steps(self, device: Device) -> dict[int, Step]:
        first: dict[int, int] = {}
        for op in device.ops:
            if op.op_class not in COPIES:
                first.setdefault(op.step, op.start_ns)
        numbers = sorted(first)
        end = max(op.end_ns for op in device.ops if op.step == numbers[-1])
        edges = [first[n] for n in numbers] + [end]
        steps = {n: Step(a, b) for n, (a, b) in zip(numbers, pairwise(edges), strict=True)}
        for step in steps.values():
            self._account(device, step)
        return steps

    def _account(self, device: Device, step: Step) -> None:
        near = [i for i, op in enumerate(device.ops) if op.start_ns < step.end_ns and op.end_ns > step.start_ns]
        idle: list[tuple[int, int]] = []
        for a, b, running in self._stretches(device, near, step):
            by_state: dict[str, list[int]] = {}
            for i in running:
                by_state.setdefault(state_of(device.ops[i]), []).append(i)
            state = next((s for s in ("compute", "comm", "copy") if s in by_state), "idle")
            step.states[state] += b - a
            for i in by_state.get(state, ()):
                part = Fraction(b - a, len(by_state[state]))
                step.shares[i] = step.shares.get(i, Fraction()) + part
                call = device.ops[i].collective
                if call and b <= self.arrival_ns[call]:
                    step.before_arrival[i] = step.before_arrival.get(i, Fraction()) + part
            if state == "idle":
                joined = idle and idle[-1][1] == a
                idle.append((idle.pop()[0] if joined else a, b))
        for i, share in step.shares.items():
            self._split_share(device.ops[i], whole(share), whole(step.before_arrival.get(i, Fraction())), step.buckets)
        for a, b in idle:
            self._split_idle(device, a, b, step.buckets)

    def _stretches(self, device: Device, near: list[int], step: Step) -> Iterator[tuple[int, int, list[int]]]:
        """The window cut wherever anything changes, with what runs in each piece."""
        cuts = {step.start_ns, step.end_ns}
        for i in near:
            op = device.ops[i]
            cuts |= {op.start_ns, op.end_ns}
            if op.collective:
                cuts.add(self.arrival_ns[op.collective])
        inside = sorted(c for c in cuts if step.start_ns <= c <= step.end_ns)
        for a, b in pairwise(inside):
            yield a, b, [i for i in near if device.ops[i].start_ns <= a and device.ops[i].end_ns >= b]

    def _split_share(self, op: DeviceOp, share: int, before_arrival: int, buckets: dict[str, int]) -> None:
        if op.collective:
            minimum = min(self.predict_ns(op.collective), share - before_arrival)
            buckets["comm_wait"] += before_arrival
            buckets["comm_minimum"] += minimum
            buckets["comm_inefficiency"] += share - before_arrival - minimum
        elif op.op_class in COPIES:
            buckets["exposed_copy"] += share
        elif op.cost is None:
            buckets["unmodelled_compute"] += share
        else:
            t_math, t_min = self.bounds_ns(op)
            buckets["useful_math"] += t_math
            buckets["memory_bound"] += t_min - t_math
            buckets["kernel_inefficiency"] += share - t_min

    def bounds_ns(self, op: DeviceOp) -> tuple[int, int]:
        """t_math and t_min of an operation with a cost."""
        assert op.cost is not None
        peak = self.chip.matrix_flops_per_s if op.cost.matrix else self.chip.vector_flops_per_s
        t_math = half_even_ns(op.cost.flops, peak)
        return t_math, max(t_math, half_even_ns(op.cost.bytes, self.chip.hbm_bytes_per_s))

    def _split_idle(self, device: Device, a: int, b: int, buckets: dict[str, int]) -> None:
        starts = [op.start_ns for op in device.ops]
        following = device.ops[bisect_right(starts, a)]
        assert following.start_ns == b, "an idle stretch ends where an operation starts"
        launch = following.launch
        begun = min(max(launch.start_ns, a), b)
        buckets["idle_gap"] += b - begun
        threads = {launch.thread, device.mark_thread}
        known = {
            kind: [(s.start_ns, s.end_ns) for s in device.spans if s.kind == kind and s.thread in threads]
            for kind in ("input", "sync")
        }
        cuts = sorted({a, begun, *(t for spans in known.values() for s in spans for t in s if a < t < begun)})
        for c, d in pairwise(cuts):
            kind = next((k for k in ("input", "sync") if any(s <= c and d <= e for s, e in known[k])), "host")
            buckets[f"idle_{kind}"] += d - c

    # What is written down

    def step_rows(self, label: Callable[[DeviceOp], str]) -> list[dict[str, Any]]:
        """One row for each device and step, with the shares of its compute operations by label."""
        rows = []
        for device, steps in zip(self.devices, self.steps, strict=True):
            for number, step in steps.items():
                shares: dict[str, int] = {}
                for i, share in sorted(step.shares.items()):
                    if state_of(device.ops[i]) == "compute":
                        name = label(device.ops[i])
                        shares[name] = shares.get(name, 0) + whole(share)
                row = device.label | {
                    "step": number,
                    "start_ns": step.start_ns,
                    "wall_ns": step.end_ns - step.start_ns,
                    "compute_ns": step.states["compute"],
                    "exposed_comm_ns": step.states["comm"],
                    "exposed_copy_ns": step.states["copy"],
                    "idle_ns": step.states["idle"],
                    "buckets": {f"{name}_ns": ns for name, ns in step.buckets.items()},
                    "shares_ns": shares,
                }
                rows.append(row)
        return rows

    def collective_rows(self) -> list[dict[str, Any]]:
        """One row for each instance; its lists have a value for each device, in their order."""
        calls: dict[Collective, list[tuple[DeviceOp, Fraction]]] = {}
        for device, steps in zip(self.devices, self.steps, strict=True):
            for i, op in enumerate(device.ops):
                if op.collective:
                    exposed = sum((s.shares.get(i, Fraction()) for s in steps.values()), Fraction())
                    calls.setdefault(op.collective, []).append((op, exposed))
        rows = []
        for call, on_ranks in sorted(calls.items(), key=lambda item: item[0].seq):
            arrival = self.arrival_ns[call]
            transfer = [op.end_ns - arrival for op, _ in on_ranks]
            factor = BUS_FACTOR[call.kind](len(on_ranks))
            algbw = [Fraction(call.message_bytes, ns) for ns in transfer]
            rows.append(
                {
                    "step": on_ranks[0][0].step,
                    "seq": call.seq,
                    "collective": call.kind,
                    **({"name": call.name} if call.name else {}),
                    "message_bytes": call.message_bytes,
                    "dtype": call.dtype,
                    "arrival_ns": arrival,
                    "start_ns": [op.start_ns for op, _ in on_ranks],
                    "wait_ns": [arrival - op.start_ns for op, _ in on_ranks],
                    "transfer_ns": transfer,
                    "exposed_ns": [whole(exposed) for _, exposed in on_ranks],
                    "algbw_gb_per_s": [round(float(bw), 6) for bw in algbw],
                    "busbw_gb_per_s": [round(float(bw * factor), 6) for bw in algbw],
                    "predicted_ns": self.predict_ns(call),
                }
            )
        return rows

    def op_rows(self, label: Callable[[DeviceOp], str]) -> list[dict[str, Any]]:
        """One row for each kind of operation by label, on the first device: calls, cost and bounds of one call."""
        seen: dict[tuple[str, tuple[int, int] | None], dict[str, Any]] = {}
        for op in self.devices[0].ops:
            cost = op.cost
            key = (label(op), (cost.flops, cost.bytes) if cost else None)
            row = seen.get(key)
            if row is None:
                t_math, t_min = self.bounds_ns(op) if cost else (None, None)
                row = seen[key] = {
                    "op": key[0],
                    "op_class": op.op_class if cost or state_of(op) != "compute" else None,
                    "calls": 0,
                    "flops": cost.flops if cost else None,
                    "bytes": cost.bytes if cost else None,
                    "t_math_ns": t_math,
                    "t_min_ns": t_min,
                }
            row["calls"] += 1
        return list(seen.values())

    def median_step(self) -> dict[str, Any]:
        """The median step: of each device the lower median of its steps by wall time, then the mean over devices.

        The last recorded step is left out: no step follows it, so its window ends with its last operation.
        """
        picked = []
        for steps in self.steps:
            whole_steps = [steps[n] for n in sorted(steps)[:-1]]
            picked.append(sorted(whole_steps, key=lambda s: s.end_ns - s.start_ns)[(len(whole_steps) - 1) // 2])
        walls = [s.end_ns - s.start_ns for s in picked]
        return {
            "wall_ns": mean(walls),
            "buckets": {f"{name}_ns": mean([s.buckets[name] for s in picked]) for name in BUCKETS},
        }


def mean(values: Sequence[int]) -> float:
    """The mean, as a number that JSON can carry; exact for up to eight values below 2^50."""
    return sum(values) / len(values)


def whole(share: Fraction) -> int:
    """A share in whole nanoseconds; schedules are made so that there is nothing to round."""
    assert share.denominator == 1, f"a share of {share} ns cannot be told exactly"
    return int(share)

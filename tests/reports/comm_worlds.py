"""Jobs whose collectives, clocks and stragglers are known: ranks of a mesh that meet only in its rows and columns."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracegap.reports.clocks import Clock
from tracegap.reports.matching import CALL_SCHEMA


@dataclass(frozen=True, kw_only=True)
class World:
    """What ranks recorded, by their own clocks, and the truth about it."""

    calls: pl.DataFrame
    """CALL_SCHEMA, and what is true: instance, true_start_ns, straggler (the rank that is held back; -1: none)."""
    offset_ns: np.ndarray
    """A rank's clock less true time, at true time 0."""
    drift: np.ndarray

    def local(self, rank: int, t: float) -> int:
        """What the clock of a rank shows at a true time."""
        return round(t + self.offset_ns[rank] + self.drift[rank] * t)


def world(
    seed: int,
    shape: tuple[int, int] = (4, 4),
    *,
    rounds: int = 60,
    offset_ns: float = 50e6,
    drift: float = 100e-6,
    jitter_ns: float = 2_000,
    straggle: float = 0.3,
    late_ns: float = 400_000,
    pause_ns: float = 20e6,
    group_of: tuple[str, str] = ("row", "column"),
    noise: bool = True,
    epoch_ns: int = 1_796_000_000_000_000_000,
) -> World:
    """Every round each row, then each column, does an all-reduce; beside them broadcasts and messages that end anyhow.

    A completion is seen up to several `jitter_ns` late (exponential); no group has more than a row or a column.
    """
    rng = np.random.default_rng(seed)
    rows, columns = shape
    n = rows * columns
    clock = World(
        calls=pl.DataFrame(), offset_ns=rng.uniform(-offset_ns, offset_ns, n), drift=rng.uniform(-drift, drift, n)
    )
    free = rng.uniform(0, 1e6, n)
    out: list[dict[str, object]] = []
    names = {
        axis: [(f"{axis}{i} {members}", members) for i, members in enumerate(lists)]
        for axis, lists in (
            (group_of[0], [[r * columns + c for c in range(columns)] for r in range(rows)]),
            (group_of[1], [[r * columns + c for r in range(rows)] for c in range(columns)]),
        )
    }
    instance = 0

    def record(  # noqa: PLR0917 - a row of a table
        rank: int, kind: str, group: str, seq: int, size: int, start: float, end: float, **more: object
    ) -> None:
        a, b = epoch_ns + clock.local(rank, start), epoch_ns + clock.local(rank, end)
        out.append(
            {
                "trace_id": f"t{rank:03}", "op_id": len(out), "device_id": "0", "rank": rank, "step": step, "collective": kind,
                "group_id": group, "group_size": None, "group_ranks": None, "seq": seq, "message_bytes": size, "start_ns": a,
                "dur_ns": b - a, "true_start_ns": start, "peer": None, "instance": instance, "straggler": -1, **more,
            }
        )  # fmt: skip

    for turn in range(rounds):
        step = turn // 4
        for groups in names.values():
            free += rng.uniform(0.2, 1.0) * pause_ns
            for group, members in groups:
                start = free[members] + rng.uniform(0, 20_000, len(members))
                held = -1
                if rng.random() < straggle:
                    held = int(rng.choice(members))
                    start[members.index(held)] = start.max() + late_ns * rng.uniform(1, 2)
                done = start.max() + rng.uniform(100_000, 300_000)
                ends = done + rng.exponential(jitter_ns, len(members)) if jitter_ns else np.full(len(members), done)
                for rank, a, b in zip(members, start, ends, strict=True):
                    record(rank, "all_reduce", group, turn, 4096 + 8 * (turn % 5), a, b, straggler=held)
                instance += 1
                free[members] = ends
                if noise and rng.random() < 0.3:
                    # The root is done at once; the others end when they please. Its sequence runs on in a group of its own.
                    root = int(rng.choice(members))
                    for rank in members:
                        spent = 5_000 if rank == root else rng.uniform(50_000, 900_000)
                        record(rank, "broadcast", f"b {group}", turn, 64, free[rank], free[rank] + spent)
                        free[rank] += spent
                    instance += 1
        if noise:
            for rank in range(n):
                peer = (rank + columns) % n
                record(rank, "send", "p2p", turn, 1 << 20, free[rank], free[rank] + 40_000, peer=peer)
            arrives = free + 40_000
            for rank in range(n):
                source = (rank - columns) % n
                end = max(free[rank] + 40_000, arrives[source]) + rng.uniform(0, 500_000)
                record(rank, "recv", "p2p", turn, 1 << 20, free[rank] + 40_000, end, peer=source)
                free[rank] = end
            instance += 1
    extra = {"true_start_ns": pl.Float64, "instance": pl.Int64, "straggler": pl.Int64}
    frame = pl.DataFrame(out, schema={**{c: CALL_SCHEMA[c] for c in CALL_SCHEMA}, **extra})
    return World(calls=frame, offset_ns=clock.offset_ns, drift=clock.drift)


def clock_errors_ns(w: World, clocks: dict[str, Clock], epoch_ns: int = 1_796_000_000_000_000_000) -> np.ndarray:
    """How far clocks that were brought together are apart at worst, over the capture: (rank) against rank 0, ns."""
    base = w.calls["true_start_ns"]
    worst = np.zeros(len(w.offset_ns))
    for t in np.linspace(float(base.min()), float(base.max()), 9):
        now = [
            int(clocks[f"t{rank:03}"].common(np.array([epoch_ns + w.local(rank, t)], dtype=np.int64))[0])
            for rank in range(len(worst))
        ]
        worst = np.maximum(worst, np.abs(np.array(now) - now[0]))
    return worst

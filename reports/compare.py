"""Two sets of steps side by side: is there a difference, how large, in which buckets, by which operations, and why.

The typical step of a set is its median step by wall time (of an even number, the mean of the two in the middle), with
each step averaged over ranks. So the wall time is the median, and its buckets are those of real steps and add up to it.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import polars as pl

from tracegap.ingest import store
from tracegap.ingest.intervals import apportion
from tracegap.models import hardware
from tracegap.models.errors import TracegapError
from tracegap.models.units import human, human_ns, significant
from tracegap.reports.buckets import BUCKETS, BY_COLUMN, COLUMNS
from tracegap.reports.roles import role

MIN_EFFECT = 0.005
"""A difference below this part of the step is none, however certain."""
_RESAMPLES = 2000
_FEW_STEPS_EFFECT = 0.03  # with fewer than three steps on a side nothing is certain: only this much counts
_MAX_CAUSES = 8
_MAX_OPERATIONS = 20
_CAUSE_SHARE = 0.02  # a bucket is named as a cause from this part of the largest bucket's change

_OF_THE_RECORDING = re.compile(r"(nsys|kineto|xspace|profiler)\b|hardware$")  # how it was recorded moves no bucket
_CONFIG_OF_BUCKET = (
    (
        "bucket|ddp|fsdp|zero|nccl|comm|mesh|parallel|shard|topology|ranks|world|hosts|nodes",
        {"comm_minimum", "comm_inefficiency"},
    ),
    ("data|loader|worker|prefetch|pin_memory|dataset|shuffle", {"idle_input", "comm_wait", "exposed_copy"}),
    ("log|eval|checkpoint_every|sync|item|print", {"idle_sync", "idle_host"}),
    ("compile|graph|capture|eager|launch", {"idle_host", "idle_gap", "kernel_inefficiency", "memory_bound"}),
    (
        "recomp|remat|activation_checkpoint",
        {"recompute_math", "useful_math", "memory_bound", "kernel_inefficiency"},
    ),
    (
        "dtype|precision|bf16|fp8|fp16|tf32|attention|kernel|batch|seq|hidden|layers|heads|vocab|model|optim",
        {"useful_math", "recompute_math", "memory_bound", "kernel_inefficiency", "unmodelled_compute"},
    ),
    ("pipeline|microbatch|stage", {"idle_pipeline", "comm_wait"}),
)
"""Which buckets a configuration key can move, by words in its name. A hint, not a proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two sets of steps."""

    run_id: str
    title: str
    """For people: job, devices, steps."""
    simulated: bool
    steps: int
    wall_ns: int
    """Median step, ns."""
    buckets: dict[str, int]
    """Of the typical step, ns; they add up to wall_ns."""
    mfu: float | None
    mfu_note: str | None
    modelled_share_frac: float | None
    config: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A part of the difference."""

    what: str
    bucket: str
    """Column of step_gap; "rest" for what the listed causes leave."""
    delta_ns: int
    rank: int | None = None
    config: list[str] = field(default_factory=list)
    """Configuration keys that differ and can move this bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What `tracegap compare` says; see the design, section 5."""

    verdict: str
    """slower, faster, same."""
    before: Side
    after: Side
    interval_ns: tuple[int, int] | None
    """95% interval of the difference from resampled steps, ns; None with fewer than three steps on a side."""
    causes: list[Cause]
    config: list[dict[str, Any]]
    """Keys that differ, with both values."""
    operations: list[dict[str, Any]]
    """Operation groups by how much they changed: more calls, slower calls, new, gone."""

    @property
    def delta_ns(self) -> int:
        """Median step after less before, ns."""
        return self.after.wall_ns - self.before.wall_ns

    @property
    def change_frac(self) -> float:
        """Difference over the step before."""
        return self.delta_ns / self.before.wall_ns if self.before.wall_ns else 0.0

    def as_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "verdict": self.verdict,
            "before_ns": self.before.wall_ns,
            "after_ns": self.after.wall_ns,
            "delta_ns": self.delta_ns,
            "change_frac": self.change_frac,
            "interval_ns": list(self.interval_ns) if self.interval_ns else None,
            "buckets": {c: self.after.buckets[c] - self.before.buckets[c] for c in COLUMNS},
            "causes": [
                {"what": c.what, "bucket": c.bucket, "delta_ns": c.delta_ns, "rank": c.rank, "config": c.config}
                for c in self.causes
            ],
            "config": self.config,
            "operations": self.operations,
            "before": self._side(self.before),
            "after": self._side(self.after),
        }

    @staticmethod
    def _side(side: Side) -> dict[str, Any]:
        return {
            "run_id": side.run_id,
            "title": side.title,
            "simulated": side.simulated,
            "steps": side.steps,
            "mfu": side.mfu,
            "mfu_note": side.mfu_note,
            "modelled_share_frac": side.modelled_share_frac,
            "buckets": side.buckets,
        }


def compare(con: duckdb.DuckDBPyConnection, before: str, after: str) -> Comparison:
    """Compares the complete steps of two evaluated runs.

    Raises:
        TracegapError: a run is not in the store, or has no complete step.
    """
    a_steps, b_steps = _steps(con, before), _steps(con, after)
    a, b = _side(con, before, a_steps), _side(con, after, b_steps)
    interval = _interval(a_steps["wall_ns"].to_numpy(), b_steps["wall_ns"].to_numpy())
    config = [
        {"key": k, "before": a.config.get(k), "after": b.config.get(k)}
        for k in sorted(a.config.keys() | b.config.keys())
        if a.config.get(k) != b.config.get(k)
    ]
    return Comparison(
        verdict=_verdict(a.wall_ns, b.wall_ns, interval),
        before=a,
        after=b,
        interval_ns=interval,
        causes=_causes(con, a, b, [str(c["key"]) for c in config]),
        config=config,
        operations=[g for g in operation_groups(con, before, after) if g["delta_ns"]][:_MAX_OPERATIONS],
    )


def _steps(con: duckdb.DuckDBPyConnection, run_id: str) -> pl.DataFrame:
    """A row a step: means over ranks and devices of wall time and buckets, ns."""
    columns = ", ".join(f"avg({c}) as {c}" for c in ("wall_ns", *COLUMNS))
    steps = store.frame_of(
        con,
        f"select step, {columns}, avg(mfu) as mfu, any_value(mfu_note) as mfu_note, "
        "sum(modelled_share_frac * compute_ns) / nullif(sum(compute_ns), 0) as modelled_share_frac "
        "from step_gap where run_id = ? and complete group by step order by step",
        [run_id],
    )
    if not len(steps):
        known = [r[0] for r in con.execute("select run_id from runs order by run_id").fetchall()]
        if run_id not in known:
            raise TracegapError(f"{run_id}: no such run in the store; it has {', '.join(known) or 'none'}")
        raise TracegapError(f"{run_id}: no complete step on any device; `tracegap report {run_id}` says why")
    return steps


def _side(con: duckdb.DuckDBPyConnection, run_id: str, steps: pl.DataFrame) -> Side:
    run = con.execute("select job, simulated, config from runs where run_id = ?", [run_id]).fetchall()[0]
    parts = con.execute(
        "select coalesce(hardware, name, kind), count(*) from devices join traces using (trace_id) "
        "where run_id = ? group by 1 order by 2 desc",
        [run_id],
    ).fetchall()
    names = {chip.id: chip.name for chip in hardware.catalogue().values()}
    devices = " + ".join(f"{n} × {names.get(name, name)}" for name, n in parts)
    typical = _typical(steps)
    wall = round(typical["wall_ns"])
    exact = np.array([typical[c] for c in COLUMNS])
    # Negative parts (an operation beat its bound) are shifted up for the rounding and down again.
    low = np.floor(exact.min() if len(exact) else 0.0)
    parts_ns = apportion(exact - low, np.zeros(len(exact), dtype=np.int64), np.array([wall - int(low) * len(exact)]))
    return Side(
        run_id=run_id,
        title=f"{run[0]} · {devices} · {len(steps)} steps",
        simulated=bool(run[1]),
        steps=len(steps),
        wall_ns=wall,
        buckets={c: int(v) + int(low) for c, v in zip(COLUMNS, parts_ns, strict=True)},
        mfu=steps["mfu"].median(),  # type: ignore[arg-type]
        mfu_note=steps["mfu_note"][0],
        modelled_share_frac=steps["modelled_share_frac"].mean(),  # type: ignore[arg-type]
        config={"hardware": devices} | json.loads(run[2] or "{}"),
    )


def _typical(steps: pl.DataFrame) -> dict[str, float]:
    """The median step: the middle one by wall time, or the mean of the two in the middle."""
    ordered = steps.sort("wall_ns", "step")
    n = len(ordered)
    middle = ordered[(n - 1) // 2 : n // 2 + 1]
    return {c: float(middle[c].mean()) for c in ("wall_ns", *COLUMNS)}  # type: ignore[arg-type]


def _interval(a: np.ndarray, b: np.ndarray) -> tuple[int, int] | None:
    """95% interval of the difference of medians, resampling steps of either side. Deterministic."""
    if min(len(a), len(b)) < 3:
        return None
    random = np.random.default_rng(0)
    medians = [np.median(x[random.integers(0, len(x), (_RESAMPLES, len(x)))], axis=1) for x in (a, b)]
    low, high = np.percentile(medians[1] - medians[0], (2.5, 97.5))
    return round(float(low)), round(float(high))


def _verdict(before_ns: int, after_ns: int, interval: tuple[int, int] | None) -> str:
    delta = after_ns - before_ns
    certain = interval[0] > 0 or interval[1] < 0 if interval else abs(delta) > _FEW_STEPS_EFFECT * before_ns
    if not certain or abs(delta) < MIN_EFFECT * before_ns:
        return "same"
    return "slower" if delta > 0 else "faster"


def _causes(con: duckdb.DuckDBPyConnection, a: Side, b: Side, changed: list[str]) -> list[Cause]:
    """The buckets that changed most, each in words, and a rest; they add up to the difference."""
    deltas = {c: b.buckets[c] - a.buckets[c] for c in COLUMNS}
    largest = max(map(abs, deltas.values()))
    named = sorted((c for c in COLUMNS if deltas[c]), key=lambda c: -abs(deltas[c]))
    named = [c for c in named if abs(deltas[c]) >= _CAUSE_SHARE * largest][:_MAX_CAUSES]
    causes = [
        Cause(
            what=_words(con, column, a, b),
            bucket=column,
            delta_ns=deltas[column],
            rank=_late_rank(con, b) if column in ("comm_wait_ns", "idle_input_ns") else None,
            config=[k for k in changed if _can_move(k, BY_COLUMN[column].name)],
        )
        for column in named
    ]
    rest = sum(deltas.values()) - sum(c.delta_ns for c in causes)
    return [*causes, Cause(what="everything else", bucket="rest", delta_ns=rest)]


def _can_move(key: str, bucket: str) -> bool:
    if _OF_THE_RECORDING.match(key):
        return False
    return any(bucket in moved and re.search(words, key, re.IGNORECASE) for words, moved in _CONFIG_OF_BUCKET)


def _late_rank(con: duckdb.DuckDBPyConnection, side: Side) -> int | None:
    """The rank that finding `late_rank` blames in a run."""
    found = con.execute(
        "select cast(evidence ->> 'last_rank' as bigint) from findings where run_id = ? and kind = 'late_rank'",
        [side.run_id],
    ).fetchall()
    return found[0][0] if found else None


_COMM = """
    with devices as (
        select count(distinct (trace_id, device_id)) as n, count(distinct step) as steps
        from steps where run_id = $1 and complete
    ),
    calls as (
        select g.collective, g.message_bytes, g.busbw_gb_per_s,
               w.share_ns - coalesce(c.wait_ns + c.pipeline_ns + c.minimum_ns, 0) as comm_inefficiency_ns,
               c.wait_ns as comm_wait_ns, c.minimum_ns as comm_minimum_ns
        from collective_gap g
        join op_windows w using (trace_id, op_id)
        join steps s on s.trace_id = w.trace_id and s.device_id = w.device_id and s.step = w.step and s.complete
        left join comm_windows c on c.trace_id = w.trace_id and c.op_id = w.op_id and c.step = w.step
        where g.run_id = $1
    )
    select coalesce(collective, 'communication of unknown kind') as collective,
           count(*) / any_value(n) / any_value(steps) as calls,
           avg(message_bytes) as mean_bytes, median(busbw_gb_per_s) as busbw,
           sum(comm_inefficiency_ns) / any_value(n) / any_value(steps) as comm_inefficiency_ns,
           sum(comm_wait_ns) / any_value(n) / any_value(steps) as comm_wait_ns,
           sum(comm_minimum_ns) / any_value(n) / any_value(steps) as comm_minimum_ns
    from calls, devices group by 1
"""


def _words(con: duckdb.DuckDBPyConnection, column: str, a: Side, b: Side) -> str:
    """What changed in a bucket, in words."""
    if column == "comm_wait_ns":
        late = _late_rank(con, b)
        return "waiting for the last rank" + ("" if late is None else f", most often rank {late}")
    if column.startswith("comm_"):
        sides = [{r["collective"]: r for r in store.frame_of(con, _COMM, [side.run_id]).to_dicts()} for side in (a, b)]
        kinds = sides[0].keys() | sides[1].keys()

        def moved(kind: str) -> float:
            before, after = (float(side.get(kind, {}).get(column) or 0) for side in sides)
            return abs(after - before)

        if kinds:
            kind = max(sorted(kinds), key=moved)
            part = "unavoidable part of " if column == "comm_minimum_ns" else ""
            return f"{part}exposed {kind}: {_comm_words(sides[0].get(kind), sides[1].get(kind))}"
    if column in ("kernel_inefficiency_ns", "memory_bound_ns", "useful_math_ns", "unmodelled_compute_ns"):
        groups = operation_groups(con, a.run_id, b.run_id)
        groups = [g for g in groups if g["delta_ns"] and g["op_class"] not in ("collective", "copy", "memset")]
        if groups:
            g = groups[0]
            return (
                f"{BY_COLUMN[column].title}: most in {g['operation']} ({g['change']}, {human_ns(g['delta_ns'])} a step)"
            )
    return BY_COLUMN[column].title + ": " + BY_COLUMN[column].meaning


def _comm_words(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    if before is None or after is None:
        side = after or before or {}
        return f"{'new' if before is None else 'gone'}, {side.get('calls', 0):.0f} a step"
    parts = [f"{before['calls']:.0f} → {after['calls']:.0f} a step"]
    if before["mean_bytes"] and after["mean_bytes"]:
        parts.append(f"{human(before['mean_bytes'], 'B')} → {human(after['mean_bytes'], 'B')}")
    if before["busbw"] and after["busbw"]:
        parts.append(f"busbw {significant(before['busbw'])} → {significant(after['busbw'])} GB/s")
    return ", ".join(parts)


def operation_groups(con: duckdb.DuckDBPyConnection, before: str, after: str) -> list[dict[str, Any]]:
    """Operations of two runs by role (framework operation, else kernel) and shapes, the largest change first.

    Times are means over complete steps and devices; a change splits into calls (at the old time a call) and time a call.
    """
    a, b = (_groups(con, run) for run in (before, after))
    both = a.join(b, on=["operation", "op_class", "shapes"], how="full", coalesce=True, suffix="_after").fill_null(0)
    rows = []
    for r in both.to_dicts():
        delta = r["share_ns_after"] - r["share_ns"]
        if r["calls"] == 0:
            change, by_calls = "new", delta
        elif r["calls_after"] == 0:
            change, by_calls = "gone", delta
        else:
            by_calls = (r["calls_after"] - r["calls"]) * r["share_ns"] / r["calls"]
            change = "more calls" if by_calls > 0 else "fewer calls"
            if abs(delta - by_calls) >= abs(by_calls):
                change = "slower calls" if delta > by_calls else "faster calls"
        rows.append(
            {
                "operation": r["operation"], "op_class": r["op_class"], "shapes": r["shapes"], "change": change,
                "calls_before": r["calls"], "calls_after": r["calls_after"], "before_ns": round(r["share_ns"]),
                "after_ns": round(r["share_ns_after"]), "delta_ns": round(delta), "by_calls_ns": round(by_calls),
                "by_time_a_call_ns": round(delta - by_calls),
            }
        )  # fmt: skip
    return sorted(rows, key=lambda r: (-abs(r["delta_ns"]), r["operation"], r["shapes"]))


def _groups(con: duckdb.DuckDBPyConnection, run_id: str) -> pl.DataFrame:
    """Calls and share a step and device of each group of operations of a run."""
    sql = """
        with devices as (
            select count(distinct (trace_id, device_id)) as n, count(distinct step) as steps
            from steps where run_id = $1 and complete
        )
        select g.framework_op, g.name, g.op_class, coalesce(g.shapes::varchar, '') as shapes,
               count(*) / any_value(n) / any_value(steps) as calls,
               sum(w.share_ns) / any_value(n) / any_value(steps) as share_ns
        from op_gap g
        join op_windows w using (trace_id, op_id)
        join steps s on s.trace_id = w.trace_id and s.device_id = w.device_id and s.step = w.step and s.complete, devices
        where g.run_id = $1 group by all
    """
    named = store.frame_of(con, sql, [run_id])
    roles = pl.Series("role", [role(name) for name in named["name"]], dtype=pl.String)
    grouped = named.with_columns(operation=pl.coalesce("framework_op", roles)).group_by(
        "operation", "op_class", "shapes"
    )
    return grouped.agg(pl.col("calls").sum(), pl.col("share_ns").sum())


def bucket_titles() -> dict[str, str]:
    """Title for people of each bucket column."""
    return {b.column: b.title for b in BUCKETS}

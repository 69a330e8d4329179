"""Why two sides of a comparison differ: each bucket's change in pieces, each piece in words with the lines that may move it.

A piece is what one group of operations, one kind of collective, or one thing that the host did adds to one bucket.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import duckdb

from tracegap.reports import people, sides
from tracegap.reports.buckets import BY_COLUMN, COLUMNS
from tracegap.reports.operation_changes import PARTS, Change, changes
from tracegap.reports.sides import Side

_MAX_CAUSES = 8
_LEAST_FRAC = 0.02  # a piece is named from this part of the largest one
_OWN_FRAC = 0.25  # a piece is told apart from the rest of its bucket from this part of the largest piece of all
_SYSTEMIC = ("other shapes", "other dtype")  # one decision changes many operations: told together
_MOST_FRAC = 0.5  # a rank is named where it makes at least this part of the change of a bucket over all ranks

_OF_THE_RECORDING = re.compile(r"(nsys|kineto|xspace|profiler)\b|hardware$")  # how it was recorded moves no bucket
_COMPUTE = {"useful_math", "recompute_math", "memory_bound", "kernel_inefficiency", "unmodelled_compute"}
_CONFIG_OF_BUCKET = (
    (
        "bucket|ddp|fsdp|zero|nccl|comm|mesh|parallel|shard|topology|ranks|world|hosts|nodes",
        {"comm_minimum", "comm_inefficiency"},
    ),
    ("data|loader|worker|prefetch|pin_memory|dataset|shuffle", {"idle_input", "comm_wait", "exposed_copy"}),
    ("log|eval|checkpoint_every|sync|item|print|gc", {"idle_sync", "idle_host"}),
    ("compile|graph|capture|eager|launch", {"idle_host", "idle_gap", "kernel_inefficiency", "memory_bound"}),
    ("recomp|remat|activation_checkpoint|checkpointing", _COMPUTE - {"unmodelled_compute"}),
    ("dtype|precision|bf16|fp8|fp16|tf32|attention|kernel|batch|seq|hidden|layers|heads|vocab|model|optim", _COMPUTE),
    ("pipeline|microbatch|stage", {"idle_pipeline", "comm_wait"}),
)
"""Which buckets a configuration key can move, by words in its name. A hint, not a proof."""
_CONFIG_OF_CHANGE = {
    "other shapes": "batch|seq|hidden|layers|heads|vocab|length|tokens|model|micro",
    "other dtype": "dtype|precision|bf16|fp8|fp16|fp32|tf32|amp|quant",
}
"""Words in a key that can change the operations themselves; they go before the words of the bucket."""


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

    def as_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "what": self.what, "bucket": self.bucket, "delta_ns": self.delta_ns, "rank": self.rank, "config": self.config,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of the change of a bucket that has one reason."""

    delta_ns: float
    what: str
    rank: int | None = None
    keys: str = ""
    """Words in names of configuration keys that can move it; "" = those of its bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two sides, and what of them is worked out once."""

    con: duckdb.DuckDBPyConnection
    before: Side
    after: Side
    operations: list[Change]

    @classmethod
    def of(cls, con: duckdb.DuckDBPyConnection, before: Side, after: Side) -> "Pair":
        """Of two loaded sides."""
        return cls(con=con, before=before, after=after, operations=changes(con, before.number, after.number))

    @property
    def numbers(self) -> tuple[int, int]:
        """Of both sides in the table `compared`."""
        return self.before.number, self.after.number

    def delta(self, column: str) -> int:
        """Change of a bucket, ns."""
        return self.after.buckets[column] - self.before.buckets[column]


def causes_of(pair: Pair, changed: list[str]) -> list[Cause]:
    """The largest pieces of the difference, each in words, and a rest; they add up to the difference.

    Args:
        pair: the sides.
        changed: configuration keys that differ.
    """
    found = [(column, piece) for column in COLUMNS if pair.delta(column) for piece in _pieces(pair, column)]
    found.sort(key=lambda p: -abs(p[1].delta_ns))
    largest = abs(found[0][1].delta_ns) if found else 0
    named = [(c, p) for c, p in found if abs(p.delta_ns) >= max(_LEAST_FRAC * largest, 0.5)][:_MAX_CAUSES]
    causes = [
        Cause(
            what=piece.what,
            bucket=column,
            delta_ns=round(piece.delta_ns),
            rank=piece.rank,
            config=[k for k in changed if _can_move(k, column, piece.keys)],
        )
        for column, piece in named
    ]
    rest = pair.after.wall_ns - pair.before.wall_ns - sum(c.delta_ns for c in causes)
    return [*causes, Cause(what="everything else", bucket="rest", delta_ns=rest)]


def _can_move(key: str, column: str, words: str) -> bool:
    if _OF_THE_RECORDING.match(key):
        return False
    if words:
        return bool(re.search(words, key, re.IGNORECASE))
    bucket = BY_COLUMN[column].name
    return any(bucket in moved and re.search(words, key, re.IGNORECASE) for words, moved in _CONFIG_OF_BUCKET)


def _pieces(pair: Pair, column: str) -> Iterator[Piece]:
    """Pieces of a bucket's change; they add up to it."""
    pieces = _PIECES.get(column, _of_ranks)(pair, column)
    left = pair.delta(column) - sum(p.delta_ns for p in pieces)
    yield from pieces
    if abs(left) >= 1:
        others = "the rest: " if pieces else ""
        yield Piece(delta_ns=left, what=others + _meaning(pair, column), rank=_rank(pair, column))


def _meaning(pair: Pair, column: str) -> str:
    return str(_words(pair, column).meaning)


def _words(pair: Pair, column: str) -> Any:
    """The words of the side on which less is known of the bucket."""
    sides_words = (pair.after.words[column], pair.before.words[column])
    return next((w for w in sides_words if w.group == "unknown"), sides_words[0])


def title_of(pair: Pair, column: str) -> str:
    """Title of a bucket that holds for both sides."""
    return str(_words(pair, column).title)


# Compute and copies: groups of operations


def _of_operations(pair: Pair, column: str) -> list[Piece]:
    part = "math_ns" if column == "useful_math_ns" else column
    if column == "useful_math_ns" and (
        pair.before.buckets["recompute_math_ns"] or pair.after.buckets["recompute_math_ns"]
    ):
        return []  # which FLOPs of a group are recomputed is not known
    moved = [(c, c.delta_ns(part)) for c in pair.operations if c.delta_ns(part)]
    systemic = sorted((m for m in moved if m[0].change in _SYSTEMIC), key=lambda m: m[0].change)
    pieces = [_systemic(list(some), change) for change, some in groupby(systemic, key=lambda m: m[0].change)]
    own = sorted((m for m in moved if m[0].change not in _SYSTEMIC), key=lambda m: -abs(m[1]))
    floor = _OWN_FRAC * max([abs(ns) for _, ns in moved] + [abs(pair.delta(column))], default=0)
    pieces += [Piece(delta_ns=ns, what=_operation_words(change)) for change, ns in own if abs(ns) >= floor]
    return pieces


def _systemic(some: list[tuple[Change, float]], change: str) -> Piece:
    """Many operations at other shapes, or in another dtype, as one piece."""
    most = max(some, key=lambda m: abs(m[1]))[0]
    before, after = (side or most.one for side in (most.before, most.after))
    fields = ("dtype", "dtype") if change == "other dtype" else ("shapes", "shapes")
    old, new = getattr(before, fields[0]) or "unknown", getattr(after, fields[1]) or "unknown"
    many = people.plural(len(some), "operation")
    return Piece(
        delta_ns=sum(ns for _, ns in some),
        what=f"{change} in {many}, most in {most.one.operation}: {old} → {new}",
        keys=_CONFIG_OF_CHANGE[change],
    )


def _operation_words(c: Change) -> str:
    """Such as "aten::addmm [..] (slower calls, 12.1 µs → 18.3 µs a call)"."""
    return f"{_name(c)} ({', '.join(_details(c))})"


def _name(c: Change) -> str:
    shapes = f" {c.one.shapes}" if c.one.shapes and len(c.one.shapes) < 60 else ""
    where = f" in {c.one.modules}" if c.one.modules else ""
    if c.change == "renamed" and c.before is not None:
        return f"{c.before.operation} → {c.one.operation}{shapes}{where}"
    return f"{c.one.operation}{shapes}{where}"


def _details(c: Change) -> Iterator[str]:
    yield c.change
    if c.before is None or c.after is None:
        yield f"{c.one.calls:.3g} a step"
        yield f"{people.duration(c.one.share_ns / c.one.calls)} a call"
        return
    if f"{c.before.calls:.3g}" != f"{c.after.calls:.3g}":
        yield f"{c.before.calls:.3g} → {c.after.calls:.3g} a step"
    times = [people.duration(g.share_ns / g.calls) for g in (c.before, c.after) if g.calls]
    yield f"{' → '.join(dict.fromkeys(times))} a call"


def _recomputed(pair: Pair, column: str) -> list[Piece]:
    """More FLOPs than the model needs: the operations that are called more often."""
    more = [
        c for c in pair.operations if c.change in ("more calls", "fewer calls", "new", "gone") and c.delta_ns("math_ns")
    ]
    if not more:
        return []
    most = max(more, key=lambda c: abs(c.delta_ns("math_ns")))
    return [
        Piece(
            delta_ns=pair.delta(column),
            what=f"FLOPs beyond the model's, most in {_operation_words(most)}",
            keys="recomp|remat|checkpoint",
        )
    ]


# Communication: kinds of collectives

_COMM = """
    with mine as (
        select trace_id, device_id, step, count(*) over () as device_steps from compared where side = $1 and typical
    )
    select coalesce(g.collective, 'communication of unknown kind') as collective, g.group_size,
           count(*) / any_value(device_steps) as calls,
           avg(g.message_bytes) as mean_bytes, median(g.busbw_gb_per_s) as busbw,
           sum(w.share_ns - coalesce(c.wait_ns + c.pipeline_ns + c.minimum_ns, 0)) / any_value(device_steps)
               as comm_inefficiency_ns,
           coalesce(sum(c.minimum_ns), 0) / any_value(device_steps) as comm_minimum_ns
    from mine join op_windows w using (trace_id, device_id, step)
    join collective_gap g on g.trace_id = w.trace_id and g.op_id = w.op_id
    left join comm_windows c on c.trace_id = w.trace_id and c.op_id = w.op_id and c.step = w.step
    group by 1, 2
"""


def _of_collectives(pair: Pair, column: str) -> list[Piece]:
    before, after = (
        {(r["collective"], r["group_size"]): r for r in sides.frame(pair.con, _COMM, side).to_dicts()}
        for side in pair.numbers
    )
    part = "unavoidable part of " if column == "comm_minimum_ns" else ""
    pieces = []
    for key in sorted(before.keys() | after.keys(), key=str):
        old, new = before.get(key), after.get(key)
        delta = (new[column] if new else 0) - (old[column] if old else 0)
        if delta:
            over = f" over {people.plural(key[1], 'rank')}" if key[1] else ""
            pieces.append(Piece(delta_ns=delta, what=f"{part}exposed {key[0]}{over}: {_comm_words(old, new)}"))
    return pieces


def _comm_words(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    if before is None or after is None:
        side = after or before or {}
        return f"{'new' if before is None else 'gone'}, {side.get('calls', 0):.3g} a step"
    calls = [f"{side['calls']:.3g}" for side in (before, after)]
    parts = [f"{' → '.join(dict.fromkeys(calls))} a step"]
    if before["mean_bytes"] and after["mean_bytes"]:
        parts.append(" → ".join(dict.fromkeys(people.size(side["mean_bytes"]) for side in (before, after))))
    if before["busbw"] and after["busbw"]:
        told = [people.gb_per_s(side["busbw"]) for side in (before, after)]
        parts.append(f"busbw {told[0].removesuffix(' GB/s')} → {told[1]}" if told[0] != told[1] else f"busbw {told[0]}")
    return ", ".join(parts)


# Waiting: who is late, and what holds that rank up

_LAST = """
    with waited as (
        select g.last_rank, c.step, sum(w.wait_ns) as wait_ns
        from compared c join comm_windows w using (trace_id, device_id, step)
        join collective_gap g on g.trace_id = w.trace_id and g.op_id = w.op_id
        where c.side = $1 and g.last_rank is not null group by all
    ),
    blamed as (
        select step, last_rank from waited qualify row_number() over (partition by step order by wait_ns desc, last_rank) = 1
    )
    select last_rank, count(*) as late, (select count(distinct step) from compared where side = $1) as steps
    from blamed group by last_rank order by late desc, last_rank limit 1
"""
_ON_RANKS = f"""
    select s.rank, {", ".join(f"avg(s.{c}) as {c}" for c in COLUMNS)}, count(distinct (s.trace_id, s.device_id)) as devices
    from compared c join step_gap s using (trace_id, device_id, step)
    where c.side = $1 and c.typical and s.rank is not null group by s.rank
"""


def _of_waiting(pair: Pair, column: str) -> list[Piece]:
    """One piece: the rank that is last most often on the side that waits more, and what it does longer."""
    worse = pair.numbers[pair.delta(column) > 0]
    rows = sides.frame(pair.con, _LAST, worse).to_dicts()
    if not rows or 2 * rows[0]["late"] < rows[0]["steps"]:
        return [Piece(delta_ns=pair.delta(column), what="the last rank is not always the same")]
    rank, late, steps = (rows[0][k] for k in ("last_rank", "late", "steps"))
    held = _held_up(pair, rank)
    what = f"rank {rank} arrives last in {late} of {people.plural(steps, 'step')}" + (f" ({held})" if held else "")
    return [Piece(delta_ns=pair.delta(column), what=what, rank=rank)]


def _held_up(pair: Pair, rank: int) -> str:
    """What a rank does longer than before; "" where nothing of its own grew."""
    before, after = (_on_ranks(pair, side).get(rank) for side in pair.numbers)
    if before is None or after is None:
        return ""
    grown = {c: after[c] - before[c] for c in COLUMNS if not c.startswith("comm_")}
    most = max(grown, key=lambda c: grown[c])
    if grown[most] <= 0:
        return ""
    return f"its {title_of(pair, most)} takes {people.signed_duration(grown[most])}"


def _on_ranks(pair: Pair, side: int) -> dict[int, dict[str, float]]:
    return {r["rank"]: r for r in sides.frame(pair.con, _ON_RANKS, side).to_dicts()}


def _rank(pair: Pair, column: str) -> int | None:
    """The rank that makes most of the change of a bucket; None where none does, or there is only one."""
    before, after = (_on_ranks(pair, side) for side in pair.numbers)
    moved = {r: after[r][column] - before[r][column] for r in before.keys() & after.keys()}
    total = sum(moved.values())
    if len(moved) < 2 or not total:
        return None
    most = max(moved, key=lambda r: (moved[r] / total, -r))
    return most if moved[most] / total >= _MOST_FRAC else None


def _of_ranks(pair: Pair, column: str) -> list[Piece]:
    """One piece, with the rank that makes most of it."""
    rank = _rank(pair, column)
    on = "" if rank is None else f", most on rank {rank}"
    return [Piece(delta_ns=pair.delta(column), what=_meaning(pair, column) + on, rank=rank)]


# Idle: what the host did

_IDLE = """
    with mine as (
        select trace_id, device_id, step, count(*) over () as device_steps from compared where side = $1 and typical
    )
    select activity, name, sum(idle_ns) / any_value(device_steps) as idle_ns
    from mine join idle_causes i using (trace_id, device_id, step) where i.cause = $2 group by all
"""


def _of_idle(pair: Pair, column: str) -> list[Piece]:
    """Pieces by what the host did meanwhile, where the traces tell it."""
    cause = BY_COLUMN[column].name
    before, after = (
        {(r["activity"], r["name"]): r["idle_ns"] for r in sides.frame(pair.con, _IDLE, side, cause).to_dicts()}
        for side in pair.numbers
    )
    moved = {key: after.get(key, 0) - before.get(key, 0) for key in before.keys() | after.keys()}
    floor = _OWN_FRAC * abs(pair.delta(column))
    rank = _rank(pair, column)
    on = "" if rank is None else f", most on rank {rank}"
    return [
        Piece(delta_ns=ns, what=f"{_host_words(*key)}{on}", rank=rank)
        for key, ns in sorted(moved.items(), key=lambda m: (-abs(m[1]), str(m[0])))
        if key[0] is not None and abs(ns) >= floor
    ]


def _host_words(activity: str, name: str | None) -> str:
    said = activity.replace("_", " ")
    return f"{said} ({name})" if name else said


_PIECES: dict[str, Callable[[Pair, str], list[Piece]]] = {
    **dict.fromkeys((*PARTS[1:], "useful_math_ns"), _of_operations),
    "recompute_math_ns": _recomputed,
    "comm_minimum_ns": _of_collectives,
    "comm_inefficiency_ns": _of_collectives,
    "comm_wait_ns": _of_waiting,
    **{f"idle_{cause}_ns": _of_idle for cause in ("host", "sync", "input", "gap")},
}
"""How the change of a bucket is split; of the others, by rank."""

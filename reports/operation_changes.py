"""Operations of two sides of a comparison (`reports.sides`): matched by what they do, and what each adds to which bucket.

Groups are matched by operation, class, shapes and dtype; what is left over by ever less: the same operation at other
shapes or in another dtype, then another kernel for the same shapes that is called as often.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import duckdb
import polars as pl

from tracegap.reports import sides
from tracegap.reports.roles import role

PARTS = ("math_ns", "memory_bound_ns", "kernel_inefficiency_ns", "unmodelled_compute_ns", "exposed_copy_ns")
"""Parts of a group's time; over all groups of a side each adds up to its bucket, `math_ns` to useful and recomputed."""
_SAME_CALLS = 0.01  # relative difference of calls a step of a renamed kernel
_LEAST_TIME_CHANGE = 0.5  # part of a change that time a call must make, to be named rather than the number of calls


@dataclass(slots=True, kw_only=True)
class Group:
    """Operations of one side that are the same: means over its typical steps and devices."""

    operation: str
    op_class: str
    shapes: str
    dtype: str
    calls: float = 0.0
    share_ns: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    modules: str | None = None
    """A module that it runs in."""

    def add(self, other: "Group") -> None:
        """Takes another group in."""
        self.calls += other.calls
        self.share_ns += other.share_ns
        for name in PARTS:
            self.parts[name] += other.parts[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A group on both sides."""

    change: str
    """more calls, fewer calls, slower calls, faster calls, new, gone, other shapes, other dtype, renamed; "" = none."""
    before: Group | None
    after: Group | None

    @property
    def one(self) -> Group:
        """What it is now, or was."""
        group = self.after or self.before
        if group is None:
            raise ValueError("a change needs a side")
        return group

    def delta_ns(self, part: str = "") -> float:
        """Change of its share, or of a part of it, ns a step and device."""
        return _of(self.after, part) - _of(self.before, part)

    @property
    def by_calls_ns(self) -> float:
        """How much of the change its number of calls makes, at the old time a call; all of it where one side has none."""
        if self.before is None or self.after is None or not self.before.calls:
            return self.delta_ns()
        return (self.after.calls - self.before.calls) * self.before.share_ns / self.before.calls

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        before, after = (
            side or Group(operation="", op_class="", shapes="", dtype="") for side in (self.before, self.after)
        )
        return {
            "operation": self.one.operation, "op_class": self.one.op_class, "shapes": self.one.shapes,
            "dtype": self.one.dtype or None, "module": self.one.modules, "change": self.change,
            "before": self.before and {"operation": before.operation, "shapes": before.shapes, "dtype": before.dtype},
            "calls_before": before.calls, "calls_after": after.calls, "before_ns": round(before.share_ns),
            "after_ns": round(after.share_ns), "delta_ns": round(self.delta_ns()), "by_calls_ns": round(self.by_calls_ns),
            "by_time_a_call_ns": round(self.delta_ns() - self.by_calls_ns),
        }  # fmt: skip


def _of(group: Group | None, part: str) -> float:
    if group is None:
        return 0.0
    return group.parts[part] if part else group.share_ns


def changes(con: duckdb.DuckDBPyConnection, before: int, after: int) -> list[Change]:
    """All operation groups of two sides of `compared`, the largest change first. Collectives are not among them."""
    a, b = groups(con, before), groups(con, after)
    found = [*_matched(a, b)]
    return sorted(found, key=lambda c: (-abs(c.delta_ns()), c.one.operation, c.one.shapes))


def groups(con: duckdb.DuckDBPyConnection, side: int) -> list[Group]:
    """Compute, copies and fills in the typical steps of a side."""
    rows = sides.frame(con, _GROUPS, side)
    named = rows.with_columns(
        operation=pl.coalesce("framework_op", rows.select(pl.col("name").map_elements(role, pl.String)).to_series())
    )
    whole: dict[tuple[str, ...], Group] = {}
    for row in named.to_dicts():
        key = tuple(row[k] for k in ("operation", "op_class", "shapes", "dtype"))
        group = whole.setdefault(key, Group(operation=key[0], op_class=key[1], shapes=key[2], dtype=key[3]))
        group.add(
            Group(
                operation=key[0], op_class=key[1], shapes=key[2], dtype=key[3], calls=row["calls"],
                share_ns=row["share_ns"], parts={name: row[name] for name in PARTS},
            )
        )  # fmt: skip
        group.modules = group.modules or row["module"]
    return list(whole.values())


_GROUPS = """
    with mine as (
        select trace_id, device_id, step,
               count(*) over () as device_steps
        from compared where side = $1 and typical
    ),
    -- Cut at the ends of the window exactly as in the account (`step_work`), so that parts add up to the buckets.
    piece as (
        select g.framework_op, g.name, g.op_class, coalesce(g.shapes::varchar, '') as shapes, coalesce(g.dtype, '') as dtype,
               g.module, w.share_ns, w.state, mine.device_steps, g.t_min_ns,
               case when w.dur_ns = g.dur_ns then g.t_math_ns
                    else cast(g.t_math_ns::hugeint * w.dur_ns // g.dur_ns as bigint) end as math_ns,
               case when w.dur_ns = g.dur_ns then g.t_min_ns
                    else cast(g.t_min_ns::hugeint * w.dur_ns // g.dur_ns as bigint) end as min_ns
        from mine join op_windows w using (trace_id, device_id, step)
        join op_gap g on g.trace_id = w.trace_id and g.op_id = w.op_id
        where w.state <> 'exposed_comm'
    )
    select framework_op, name, op_class, shapes, dtype, min(module) as module,
           count(*) / any_value(device_steps) as calls,
           sum(share_ns) / any_value(device_steps) as share_ns,
           coalesce(sum(math_ns) filter (state = 'compute' and t_min_ns is not null), 0) / any_value(device_steps) as math_ns,
           coalesce(sum(min_ns - coalesce(math_ns, 0)) filter (state = 'compute' and t_min_ns is not null), 0)
               / any_value(device_steps) as memory_bound_ns,
           coalesce(sum(share_ns - min_ns) filter (state = 'compute' and t_min_ns is not null), 0)
               / any_value(device_steps) as kernel_inefficiency_ns,
           coalesce(sum(share_ns) filter (state = 'compute' and t_min_ns is null), 0) / any_value(device_steps)
               as unmodelled_compute_ns,
           coalesce(sum(share_ns) filter (state = 'exposed_copy'), 0) / any_value(device_steps) as exposed_copy_ns
    from piece group by framework_op, name, op_class, shapes, dtype
"""


def _matched(a: list[Group], b: list[Group]) -> Iterator[Change]:
    """Pairs by ever weaker keys."""

    def by(
        keys: Iterable[str], word: str, left: list[Group], right: list[Group]
    ) -> tuple[list[Change], list[Group], list[Group]]:
        fields = tuple(keys)
        there: dict[tuple[str, ...], list[Group]] = {}
        for group in right:
            there.setdefault(tuple(getattr(group, f) for f in fields), []).append(group)
        here: dict[tuple[str, ...], list[Group]] = {}
        for group in left:
            here.setdefault(tuple(getattr(group, f) for f in fields), []).append(group)
        both = [(_together(here[key]), _together(there[key])) for key in here if key in there]
        pairs = [Change(change=word or _how(x, y), before=x, after=y) for x, y in both]
        rest_a = [g for key, some in here.items() if key not in there for g in some]
        rest_b = [g for key, some in there.items() if key not in here for g in some]
        return pairs, rest_a, rest_b

    same, a, b = by(("operation", "op_class", "shapes", "dtype"), "", a, b)
    yield from same
    for keys, word in (
        (("operation", "op_class", "shapes"), "other dtype"),
        (("operation", "op_class", "dtype"), "other shapes"),
        (("operation", "op_class"), "other shapes"),
    ):
        pairs, a, b = by(keys, word, a, b)
        yield from pairs
    for gone in sorted(a, key=lambda g: -g.share_ns):
        alike = [
            g
            for g in b
            if (g.op_class, g.shapes) == (gone.op_class, gone.shapes)
            and abs(g.calls - gone.calls) <= _SAME_CALLS * gone.calls
        ]
        if alike:
            new = min(alike, key=lambda g: abs(g.share_ns - gone.share_ns))
            b = [g for g in b if g is not new]
            yield Change(change="renamed", before=gone, after=new)
        else:
            yield Change(change="gone", before=gone, after=None)
    yield from (Change(change="new", before=None, after=g) for g in b)


def _together(some: list[Group]) -> Group:
    """Groups as one; where they differ in shapes or dtype, it says how many of them there are."""
    if len(some) == 1:
        return some[0]

    def said(values: set[str], what: str) -> str:
        return values.pop() if len(values) == 1 else f"{len(values)} {what}"

    first = some[0]
    whole = Group(
        operation=first.operation,
        op_class=first.op_class,
        shapes=said({g.shapes for g in some}, "shapes"),
        dtype=said({g.dtype for g in some}, "dtypes"),
        modules=next((g.modules for g in some if g.modules), None),
    )
    for group in some:
        whole.add(group)
    return whole


def _how(before: Group, after: Group) -> str:
    """Whether calls or time a call make most of a change."""
    change = Change(change="", before=before, after=after)
    delta, by_calls = change.delta_ns(), change.by_calls_ns
    if not delta and not by_calls:
        return ""
    if abs(delta - by_calls) >= _LEAST_TIME_CHANGE * (abs(by_calls) + abs(delta - by_calls)):
        return "slower calls" if delta > by_calls else "faster calls"
    return "more calls" if by_calls > 0 else "fewer calls"

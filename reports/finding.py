"""Findings: each rule is a query over the store and a sentence, one a module of `reports/findings/`.

What findings save is claimed from one ledger (`reports.savings`), so that no nanosecond is promised twice: causes that are
proven on single operations first, then groups of operations as such, then what is left of whole buckets.
"""

import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import duckdb
import numpy as np
import polars as pl

from tracegap.ingest import store
from tracegap.reports import findings as _findings
from tracegap.reports.savings import Claim, Ledger, settle
from tracegap.reports.sentence import filled
from tracegap.reports.typical import typical

Find = Callable[[duckdb.DuckDBPyConnection, str], pl.DataFrame]


class Turn(IntEnum):
    """Who claims first; of the same turn the larger claim."""

    CAUSE = 1
    """A cause that is seen on the operations or the idle time themselves."""
    GROUP = 2
    """Operations that are slow for whatever reason."""
    REST = 3
    """What is left of a bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A kind of finding.

    The query gives a row a finding. It reads the tables of `reports.typical` and, where it has a `$1` for the run, all of
    the store. Its columns fill the sentence, of which a part in double brackets is left out where a value of it is NULL,
    and become the evidence. Columns with a meaning of their own:

    `saves_ns`: what mending it would save of the typical step, were it the only finding, mean over its device steps; NULL =
    cannot be said. It is claimed from the one bucket that the rule draws on. `<bucket>_saves_ns`: the same for each of
    several buckets. `units`: the pieces of operations or idle time that it claims from; without it, all of the bucket.
    `severity`: instead of the rule's.

    In the sentence `alone_ns` is what was asked for, `saves_ns` what is promised, and `left_ns` what findings whose turn came
    before left of `alone_ns`; NULL where they left all of it.
    """

    sentence: str
    query: str | Find
    """SQL, or a function that returns the rows of a run."""
    draws: tuple[str, ...] = ()
    """Buckets that savings come from, without `_ns`."""
    turn: Turn = Turn.CAUSE
    least_frac: float = 0.01
    """Of the typical step: a rule that draws says nothing where less is left for it to claim."""
    severity: str | None = None
    """None: by the saving, "high" above a twentieth of the step, else "medium"; "info" where none can be said."""
    config: str | None = None
    """Configuration keys that it points at, a regular expression."""

    @property
    def of_a_step(self) -> bool:
        """Whether it is about the typical step, and has nothing to say of a run without any."""
        return callable(self.query) or "typical_" in self.query


_ALL = 0.99
REST = "[[; {left_ns:ns} of it are in no other finding]]"
"""End of the sentence of a rule that takes what others left."""
HIGH_FRAC = 0.05
"""Savings above this part of the typical step are of high severity."""


def bucket_rule(bucket: str, sentence: str, *, config: str | None = None) -> Rule:
    """A finding where what is left of a bucket of the typical step is at least a hundredth of it."""
    query = f"""
        select cast(avg({bucket}_ns) as bigint) as saves_ns, 100 * avg({bucket}_ns) / avg(wall_ns) as percent
        from typical_step having saves_ns > 0
    """
    return Rule(sentence=sentence + REST, query=query, draws=(bucket,), turn=Turn.REST, config=config)


_HELD = ("idle_host", "idle_sync", "idle_gap")


def activity_rule(activity: str, sentence: str, *, where: str = "true", config: str | None = None) -> Rule:
    """A finding where the device idles at least a hundredth of the typical step while the host does one thing.

    `where` is a condition on the rows of `typical_idle`, in SQL.
    """
    parts = ", ".join(
        f"cast(sum(idle_ns) filter (bucket = '{b}') / any_value(n) as bigint) as {b}_saves_ns" for b in _HELD
    )
    query = f"""
        select 100 * sum(idle_ns) / any_value(n) / any_value(wall_ns) as percent, arg_max(name, idle_ns) as name,
               sum(gaps) / any_value(n) as gaps, {parts}, list(unit) as units
        from typical_idle, typical_size where activity = '{activity}' and {where} having count(*) > 0
    """
    return Rule(sentence=sentence, query=query, draws=_HELD, config=config)


def rules() -> dict[str, Rule]:
    """Rules by kind, which is the name of their module; found by walking `reports.findings`."""
    kinds = sorted(m.name for m in pkgutil.iter_modules(_findings.__path__))
    return {kind: importlib.import_module(f"{_findings.__name__}.{kind}").RULE for kind in kinds}


def find(con: duckdb.DuckDBPyConnection, run_id: str, chosen: Mapping[str, Rule] | None = None) -> None:
    """Replaces the findings of a run by those of the chosen rules (None: all)."""
    con.execute("delete from findings where run_id = ?", [run_id]).fetchall()
    with typical(con, run_id):
        wall_ns, n = con.execute("select coalesce(wall_ns, 0), n from typical_size").fetchall()[0]
        ledger = Ledger.load(con)
        drafts = [
            _Draft.of(kind, rule, row, n)
            for kind, rule in (rules() if chosen is None else chosen).items()
            if wall_ns or not rule.of_a_step
            for row in _rows(con, run_id, rule)
        ]
    claiming = [d for d in drafts if d.claim is not None and d.alone_ns >= max(d.rule.least_frac * wall_ns, 1)]
    claiming.sort(key=lambda d: (d.rule.turn, -d.alone_ns))
    settle(ledger, [d.claim for d in claiming if d.claim is not None])
    config = json.loads(con.execute("select config from runs where run_id = ?", [run_id]).fetchall()[0][0] or "{}")
    kept = [d for d in claiming if d.claim is not None and d.claim.open >= d.rule.least_frac * wall_ns * n]
    for draft in [d for d in drafts if d.claim is None] + kept:
        store.insert_row(con, "findings", {"run_id": run_id} | draft.as_row(n, wall_ns, config))


def _rows(con: duckdb.DuckDBPyConnection, run_id: str, rule: Rule) -> Iterator[dict[str, Any]]:
    """Rows of a rule; `units` stays a series."""
    if callable(rule.query):
        frame = rule.query(con, run_id)
    else:
        frame = store.frame_of(con, rule.query, [run_id] if "$1" in rule.query else None)
    for i, row in enumerate(frame.drop("units", strict=False).iter_rows(named=True)):
        yield row | ({"units": frame["units"][i]} if "units" in frame.columns else {})


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A finding before it is known what it may claim."""

    kind: str
    rule: Rule
    row: dict[str, Any]
    alone_ns: int
    """Mean over device steps, all buckets together."""
    claim: Claim | None
    """None: nothing that could be said."""

    @classmethod
    def of(cls, kind: str, rule: Rule, row: dict[str, Any], n: int) -> "_Draft":
        units = row.pop("units", None)
        wants = {bucket: row.pop(f"{bucket}_saves_ns", None) for bucket in rule.draws}
        alone = row.pop("saves_ns", None)
        if len(rule.draws) == 1 and alone is not None:
            wants = {rule.draws[0]: alone}
        wanted = {bucket: round(float(ns) * n) for bucket, ns in wants.items() if ns is not None and ns > 0}
        said = sum(ns for ns in wants.values() if ns is not None)
        row["alone_ns"] = round(float(said)) if any(ns is not None for ns in wants.values()) else None
        claim = None
        if row["alone_ns"] is not None:
            claim = Claim(wanted=wanted, units=None if units is None else units.to_numpy().astype(np.int64))
        return cls(kind=kind, rule=rule, row=row, alone_ns=row["alone_ns"] or 0, claim=claim)

    def as_row(self, n: int, wall_ns: float, config: Mapping[str, Any]) -> dict[str, Any]:
        """The row of `findings`, without its run."""
        granted = {bucket: ns // n for bucket, ns in self.claim.granted.items()} if self.claim else {}
        total = sum(self.claim.granted.values()) // n if self.claim else 0
        saves_ns = total or None
        left_ns = self.claim.open // n if self.claim else 0
        row = self.row | {"saves_ns": saves_ns, "left_ns": left_ns if left_ns < _ALL * self.alone_ns else None}
        graded = "info" if self.claim is None else "high" if total > HIGH_FRAC * wall_ns else "medium"
        evidence = {k: v for k, v in self.row.items() if k not in ("severity", "alone_ns")}
        if self.claim is not None:
            evidence |= {"alone_ns": self.alone_ns, "drawn_ns": granted}
        keys = sorted(k for k in config if self.rule.config and re.search(self.rule.config, k, re.IGNORECASE))
        return {
            "severity": self.row.get("severity") or self.rule.severity or graded,
            "kind": self.kind,
            "what": filled(self.rule.sentence, row),
            "saves_ns": saves_ns,
            "config_keys": keys or None,
            "evidence": json.loads(json.dumps(evidence, default=float)),
        }

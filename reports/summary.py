"""A run in a few words and numbers: what the page, the index and the terminal all say first."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import duckdb
import polars as pl

from tracegap.ingest.errors import StoreError
from tracegap.reports import people
from tracegap.reports.buckets import BUCKETS

MINIMUM = ("useful_math_ns", "memory_bound_ns", "comm_minimum_ns")
"""Buckets that physics needs: their sum is the shortest possible step, as far as costs are known."""
SMALL_FRAC = 0.05
"""Unknown parts below this share of the step are not worth a warning in the headline."""

MEDIAN_STEP = """
with ranked as (
    select
        *,
        row_number() over (partition by complete order by wall_ns, rank, device_id, step) as place,
        count(*) over (partition by complete) as steps
    from step_gap
    where run_id = $run_id
)
select * exclude (place, steps)
from ranked
where place = (steps + 1) // 2
order by complete desc
limit 1
"""
"""The step that stands for a run: the median (the lower of two) of all complete steps on all devices."""

_RUN = """
select
    r.*,
    (select count(*) from devices d join traces t using (trace_id) where t.run_id = r.run_id) as device_count,
    (select string_agg(distinct coalesce(d.hardware, d.name, d.kind), ' + ')
     from devices d join traces t using (trace_id) where t.run_id = r.run_id) as parts,
    (select count(*) from traces t where t.run_id = r.run_id and t.status <> 'ok') as partial_traces
from runs r
where r.run_id = $run_id
"""
_STEPS = """
select
    count(distinct step) filter (complete) as complete_steps,
    count(distinct step) as steps,
    string_agg(distinct source, ', ') as sources
from steps
where run_id = $run_id
"""
FINDINGS = """
select severity, kind, what, saves_ns, config_keys, evidence
from findings
where run_id = $run_id
order by saves_ns desc nulls last, array_position(['high', 'medium', 'low', 'info'], severity), what
"""
"""What to look at, the largest saving first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run at a glance."""

    run_id: str
    job: str
    started_at: str | None
    """UTC, to the minute; None where no trace tells."""
    simulated: bool
    title: str
    """ "llama-8b · 8 × h100_sxm · 20 steps"."""
    steps: int
    """Complete steps; averages and medians are over these."""
    step: dict[str, Any] | None
    """Row of `step_gap` of the median step; None where the run has no step."""
    findings: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `findings`, the largest saving first."""
    doubts: list[str] = field(default_factory=list)
    """Sentences on what makes the numbers less than certain."""

    @property
    def step_ns(self) -> int | None:
        """Wall time of the median step."""
        return None if self.step is None else int(self.step["wall_ns"])

    @property
    def minimum_ns(self) -> int | None:
        """What physics needs of it, as far as costs are known."""
        return None if self.step is None else sum(int(self.step[c]) for c in MINIMUM)

    @property
    def unknown_frac(self) -> float:
        """Part of the median step whose cost or cause nobody knows."""
        if not self.step_ns or self.step is None:
            return 0.0
        return sum(int(self.step[b.column]) for b in BUCKETS if b.group == "unknown") / self.step_ns

    @property
    def first_fix(self) -> dict[str, Any] | None:
        """The finding that would save the most; None where no finding can say."""
        return next((f for f in self.findings if f["saves_ns"]), None)

    @property
    def mfu_text(self) -> str:
        """Model FLOPs utilisation, or that it is unknown."""
        return people.percent(self.step["mfu"] if self.step else None)

    @property
    def hfu_text(self) -> str:
        """FLOPs done over the peak; "at least" where some costs are unknown."""
        hfu = self.step["hfu"] if self.step else None
        some_unknown = self.step is not None and (self.step["modelled_share_frac"] or 0) < 0.9995
        return ("at least " if hfu is not None and some_unknown else "") + people.percent(hfu)

    @property
    def mfu_note(self) -> str:
        """Convention and peak of MFU, or why there is none."""
        if self.step is None:
            return "no step in the traces"
        return self.step["mfu_note"] or "the run has not been joined with theory"

    @property
    def headline(self) -> str:
        """The state of the run in words."""
        if self.step is None:
            return "No device work was found in the traces of this run, so there is no step to account for."
        said = f"A step takes {people.duration(self.step_ns)}. "
        if self.unknown_frac >= 0.5:
            said += (
                f"For {people.percent(self.unknown_frac)} of it the traces do not tell what it should cost; the rest needs"
                f" at least {people.duration(self.minimum_ns)}. "
            )
        else:
            said += f"Its mathematics, memory traffic and communication need at least {people.duration(self.minimum_ns)}"
            unknown = f", not counting the {people.percent(self.unknown_frac)} of the step whose cost or cause is unknown"
            said += (unknown if self.unknown_frac >= SMALL_FRAC else "") + ". "
        fix = self.first_fix
        if fix:
            said += f"Fix first: {_sentence(fix['what'])} That saves up to {people.duration(fix['saves_ns'])} a step."
        else:
            loss = self.largest_loss
            said += f"The largest loss is {loss[0]}: {people.duration(loss[1])} a step." if loss else "Nothing is lost."
        return said

    @property
    def largest_loss(self) -> tuple[str, int] | None:
        """Words and ns of the largest bucket that physics does not need."""
        if self.step is None:
            return None
        losses = [(b.title, int(self.step[b.column])) for b in BUCKETS if b.group == "loss"]
        title, ns = max(losses, key=lambda p: p[1])
        return (title, ns) if ns > 0 else None


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."


def _row(con: duckdb.DuckDBPyConnection, sql: str, run_id: str) -> dict[str, Any] | None:
    rows = pl.DataFrame(con.sql(sql, params={"run_id": run_id})).to_dicts()
    return rows[0] if rows else None


def summarize(con: duckdb.DuckDBPyConnection, run_id: str) -> Summary:
    """The summary of a run.

    Raises:
        StoreError: the store has no such run; the message names those that it has.
    """
    run = _row(con, _RUN, run_id)
    if run is None:
        known = [r[0] for r in con.execute("select run_id from runs order by started_at desc nulls last limit 5").fetchall()]
        raise StoreError(f"no run {run_id!r} in the store" + (f"; the latest are {', '.join(known)}" if known else ""))
    counts = _row(con, _STEPS, run_id) or {}
    step = _row(con, MEDIAN_STEP, run_id)
    complete, every = counts["complete_steps"], counts["steps"]
    parts = f"{people.count(run['device_count'])} × {run['parts']}" if run["device_count"] else "no device"
    return Summary(
        run_id=run_id,
        job=run["job"],
        started_at=f"{run['started_at']:%Y-%m-%d %H:%M}" if run["started_at"] else None,
        simulated=bool(run["simulated"]),
        title=f"{run['job']} · {parts} · {people.plural(complete or every, 'step')}",
        steps=complete,
        step=step,
        findings=[
            f | {k: json.loads(f[k] or "null") for k in ("config_keys", "evidence")}
            for f in pl.DataFrame(con.sql(FINDINGS, params={"run_id": run_id})).to_dicts()
        ],
        doubts=_doubts(run, counts, step),
    )


def _doubts(run: dict[str, Any], counts: dict[str, Any], step: dict[str, Any] | None) -> list[str]:
    if step is None:
        return []
    said = []
    if not counts["complete_steps"]:
        said.append(f"No step is complete ({step['incomplete_reason'] or 'reason unknown'}): the numbers are of a partial step.")
    if step["source"] in ("inferred", "whole_trace"):
        how = {
            "inferred": "The trace marks no steps: they are inferred from a repeating pattern of launches.",
            "whole_trace": "The trace marks no steps: all of it counts as one step. Call profiler.step() or use"
            " StepTraceAnnotation to mark them.",
        }
        said.append(how[step["source"]])
    if run["partial_traces"]:
        said.append(f"Something is missing from {people.plural(run['partial_traces'], 'trace')}; see data quality below.")
    return said


@contextlib.contextmanager
def snapshot(con: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[None]:
    """Computes the views of one run once: inside, their names stand for temporary tables with the rows of that run.

    The same queries give the same rows without it; each would walk all operations again.
    """
    views = ("step_gap", "collective_gap", "op_gap")  # step_gap reads op_gap, so it comes before
    made = []
    try:
        for view in views:
            con.execute(f"create temp table {view} as select * from {view} where run_id = $run_id", {"run_id": run_id}).fetchall()
            made.append(view)
        yield
    finally:
        for view in made:
            con.execute(f"drop table temp.{view}").fetchall()

"""A run in a few words and numbers: what the page, the index and the terminal all say first."""

import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import polars as pl

from tracegap.ingest.errors import StoreError
from tracegap.models import hardware
from tracegap.reports import people
from tracegap.reports.buckets import BUCKETS, COLUMNS, Bucket

MINIMUM = ("useful_math_ns", "memory_bound_ns", "comm_minimum_ns")
"""Buckets that physics needs: their sum is the shortest possible step, as far as costs are known."""
RECORD_DEVICES = "Profile with device activities on: ProfilerActivity.CUDA, jax.profiler.trace, or nsys --trace=cuda."
"""What to do where traces hold no device work."""
SMALL_FRAC = 0.05
"""Unknown parts below this share of the step are not worth a warning in the headline."""

TYPICAL = """
by_step as (
    select step, avg(wall_ns) as mean_wall_ns, complete
    from step_gap
    where run_id = $run_id
    group by step, complete
),
ranked as (
    select
        step, complete,
        row_number() over (partition by complete order by mean_wall_ns, step) as place,
        count(*) over (partition by complete) as steps
    from by_step
    where complete or not (select bool_or(complete) from by_step)
),
typical as (
    -- Of an even number of steps the two in the middle stand for the run.
    select g.*
    from step_gap g
    join ranked r on r.step = g.step and r.complete = g.complete
    where g.run_id = $run_id and r.place between (r.steps + 1) // 2 and r.steps // 2 + 1
)
"""
"""Common table expressions: `typical` has the rows of `step_gap` that stand for the run, the median step by wall time
(mean over devices) of the complete ones; of all, where none is complete. Pages and comparisons show their mean."""

_STEP = f"""
with {TYPICAL}
select
    count(*) as device_steps,
    list(distinct step order by step) as steps,
    count(distinct (trace_id, device_id)) as devices,
    bool_and(complete) as complete,
    min(source) as source,
    min(incomplete_reason) as incomplete_reason,
    avg(wall_ns) as wall_ns,
    {", ".join(f"avg({c}) as {c}" for c in COLUMNS)},
    avg(model_flops) as model_flops,
    avg(mfu) as mfu,
    avg(hfu) as hfu,
    min(mfu_note) as mfu_note,
    min(mfu_dtype) as mfu_dtype,
    1 - sum(unmodelled_compute_ns) / nullif(sum(compute_ns), 0) as modelled_share_frac,
    sum(exposed_comm_ns * coalesce(comm_modelled_share_frac, 0)) / nullif(sum(exposed_comm_ns), 0)
        as comm_modelled_share_frac
from typical
having count(*) > 0
"""
_RUN = """
select
    r.*,
    (select count(*) from traces t where t.run_id = r.run_id and t.status <> 'ok') as partial_traces
from runs r
where r.run_id = $run_id
"""
_PARTS = """
select d.hardware, coalesce(d.name, d.kind) as name, count(*) as devices
from devices d join traces t using (trace_id)
where t.run_id = $run_id
group by all
order by devices desc, hardware, name
"""
_STEPS = """
select
    count(distinct step) filter (complete) as complete_steps,
    count(distinct step) as steps,
    string_agg(distinct source, ', ') as sources
from steps
where run_id = $run_id
"""
_MATCHED = """
select coalesce(sum(c.exposed_ns) filter (m.arrival_ns is not null), 0) / nullif(sum(c.exposed_ns), 0) as matched_frac
from collectives c
join traces t using (trace_id)
left join collective_matches m using (trace_id, op_id)
where t.run_id = $run_id
"""
_ONLY_FILE = "select min(path) as path from traces where run_id = $run_id having count(*) = 1"
FINDINGS = """
select
    severity, kind, what,
    -- Of communication that no model predicts, nobody can say what it could save.
    case when kind <> 'slow_communication' or contains(evidence ->> 'known', 'minimum') then saves_ns end as saves_ns,
    config_keys, evidence
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
    """ "llama-8b · 8 × H100 SXM · 20 steps"."""
    steps: int
    """Complete steps; averages and medians are over these."""
    step: dict[str, Any] | None
    """Columns of `step_gap` of the median step, mean over its devices; buckets in whole ns that add up to `wall_ns`.
    None where the run has no step."""
    findings: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `findings`, the largest saving first."""
    no_minimum_because: str | None = None
    """Why it cannot be said what the step should take; None where it can."""
    doubts: list[str] = field(default_factory=list)
    """Sentences on what makes the numbers less than certain."""
    buckets: tuple[Bucket, ...] = BUCKETS
    """The buckets of `step`, in words that hold for this run: see `buckets_of`."""
    file: str | None = None
    """Name of the run's only file; None where it has several."""

    def time_of(self, bucket: Bucket) -> str:
        """Time of one of `buckets` in the median step; "unknown" where its zero only means that nobody could tell."""
        ns = int(self.step[bucket.column]) if self.step else None
        return people.UNKNOWN if ns == 0 and bucket.meaning.startswith(_NOT_KNOWN) else people.duration(ns)

    @property
    def step_ns(self) -> int | None:
        """Wall time of the median step."""
        return None if self.step is None else int(self.step["wall_ns"])

    @property
    def minimum_ns(self) -> int | None:
        """What physics needs of it, as far as costs are known; None where none is."""
        return None if self.step is None else sum(int(self.step[c]) for c in MINIMUM) or None

    @property
    def unknown_frac(self) -> float:
        """Part of the median step whose cost or cause nobody knows."""
        if not self.step_ns or self.step is None:
            return 0.0
        return sum(int(self.step[b.column]) for b in self.buckets if b.group == "unknown") / self.step_ns

    @property
    def comm_is_known(self) -> bool:
        """Whether it is known what the exposed communication of the median step should take."""
        return all(b.group != "unknown" for b in self.buckets if b.name == "comm_inefficiency")

    @property
    def needs(self) -> str:
        """What `minimum_ns` is made of, in words."""
        return (
            "mathematics, memory traffic and communication" if self.comm_is_known else "mathematics and memory traffic"
        )

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
        """The state of the run in words: its step, and what to fix first."""
        return " ".join(filter(None, (self.opening, self._advice)))

    @property
    def opening(self) -> str:
        """How long a step takes and should take."""
        if self.step is None:
            return f"The traces of this run hold no device work, so there is no step to account for. {RECORD_DEVICES}"
        said = f"A step takes {people.duration(self.step_ns)}. "
        if self.minimum_ns is None:
            said += f"What it should take is not known: {self.no_minimum_because}. "
        elif self.unknown_frac >= 0.5:
            said += (
                f"For {people.percent(self.unknown_frac)} of it the traces do not tell what it should cost; the rest"
                f" needs at least {people.duration(self.minimum_ns)}. "
            )
        else:
            said += f"Its {self.needs} need at least {people.duration(self.minimum_ns)}"
            unknown = (
                f", not counting the {people.percent(self.unknown_frac)} of the step whose cost or cause is unknown"
            )
            said += (unknown if self.unknown_frac >= SMALL_FRAC else "") + ". "
        return said.strip()

    @property
    def _advice(self) -> str:
        if self.step is None:
            return ""
        fix, loss = self.first_fix, self.largest_loss
        if fix:
            return (
                f"Fix first: {_sentence(fix['what'])} Mending it saves up to {people.duration(fix['saves_ns'])} a step."
            )
        if loss:
            return f"The largest loss is {loss[0]}: {people.duration(loss[1])} a step."
        return "" if self.unknown_frac >= SMALL_FRAC else "Nothing is lost."

    @property
    def largest_loss(self) -> tuple[str, int] | None:
        """Words and ns of the largest bucket that physics does not need."""
        if self.step is None:
            return None
        losses = [(b.title, int(self.step[b.column])) for b in self.buckets if b.group == "loss"]
        title, ns = max(losses, key=lambda p: p[1])
        return (title, ns) if ns > 0 else None


_NOT_KNOWN = "not known: "
"""So begins the meaning of a bucket that is 0 only because nobody could tell what it is."""


def buckets_of(step: dict[str, Any] | None, comm_matched_frac: float | None) -> tuple[Bucket, ...]:
    """The buckets in words that hold for a step, of which nothing is claimed that nobody knows.

    Args:
        step: columns of `step_gap`.
        comm_matched_frac: part of exposed communication that is matched over ranks; below one half, waiting is unknown.
    """
    if step is None:
        return BUCKETS
    named = {b.name: b for b in BUCKETS}

    def unknown(name: str, why: str) -> None:
        if not step[f"{name}_ns"]:
            named[name] = replace(named[name], meaning=_NOT_KNOWN + why, group="unknown")

    if step["modelled_share_frac"] is not None and step["modelled_share_frac"] < 0.5:
        for name in ("useful_math", "memory_bound", "kernel_inefficiency"):
            unknown(name, "most operations have no known cost")
    if step["model_flops"] is None:
        unknown("recompute_math", "the FLOPs that the model needs are not known; if there is any, it is in useful math")
    rest, inside = named["comm_inefficiency"], ""
    exposed = any(step[f"comm_{part}_ns"] for part in ("minimum", "wait", "inefficiency"))
    unmatched = exposed and comm_matched_frac is not None and comm_matched_frac < 0.5
    if unmatched:
        inside = "waiting for other ranks is inside: not all ranks of the collectives are in the run, or they were not matched"
        rest = replace(rest, title="slow communication or waiting", meaning=f"{rest.meaning}; {inside}")
    if (step["comm_modelled_share_frac"] or 0) < 0.5 and step["comm_modelled_share_frac"] is not None:
        why = "its kind, its size, its ranks or the part are not known"
        unknown("comm_minimum", why)
        meaning = "; ".join(filter(None, (f"what exposed communication should take cannot be said: {why}", inside)))
        rest = replace(rest, title="communication, unknown cost", meaning=meaning, group="unknown")
    if unmatched:
        unknown(
            "comm_wait",
            f"not all ranks of the collectives are in the run, or they were not matched; it is in “{rest.title}”",
        )
    return tuple((named | {rest.name: rest}).values())


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."


_WHY_UNKNOWN = """
select unknown_because
from op_gap
where run_id = $run_id and unknown_because is not null
group by unknown_because
order by sum(dur_ns) desc, unknown_because
limit 1
"""
_UNKNOWN_PARTS = """
select string_agg(distinct d.matched_by, '; ') as why
from devices d join traces t using (trace_id)
where t.run_id = $run_id
having bool_and(d.hardware is null and d.hbm_bytes_per_s is null)
"""


def matched_frac(con: duckdb.DuckDBPyConnection, run_id: str) -> float | None:
    """Part of the exposed communication of a run that is matched over ranks; None where there is none."""
    row = _row(con, _MATCHED, run_id)
    return row["matched_frac"] if row else None


def why_unknown(con: duckdb.DuckDBPyConnection, run_id: str) -> str:
    """Why most of what has no known cost has none."""
    parts, why = _row(con, _UNKNOWN_PARTS, run_id), _row(con, _WHY_UNKNOWN, run_id)
    said = [why["unknown_because"]] if why and not (parts and why["unknown_because"].startswith("unknown part")) else []
    if parts is not None:
        said.append(f"{parts['why'] or 'unknown part'}; name it as “hardware” in manifest.toml")
    return "; and ".join(said) or "no operation has a known cost"


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
        known = [
            r[0] for r in con.execute("select run_id from runs order by started_at desc nulls last limit 5").fetchall()
        ]
        raise StoreError(f"no run {run_id!r} in the store" + (f"; the latest are {', '.join(known)}" if known else ""))
    counts = _row(con, _STEPS, run_id) or {}
    step = _row(con, _STEP, run_id)
    if step is not None:
        step |= _whole_ns(step)
    minimum = step and sum(step[c] for c in MINIMUM)
    only = _row(con, _ONLY_FILE, run_id)
    complete, every = counts["complete_steps"], counts["steps"]
    return Summary(
        run_id=run_id,
        job=run["job"],
        started_at=f"{run['started_at']:%Y-%m-%d %H:%M}" if run["started_at"] else None,
        simulated=bool(run["simulated"]),
        title=f"{run['job']} · {_parts(con, run_id)} · {people.plural(complete or every, 'step')}",
        steps=complete,
        step=step,
        findings=[
            f | {k: json.loads(f[k] or "null") for k in ("config_keys", "evidence")}
            for f in pl.DataFrame(con.sql(FINDINGS, params={"run_id": run_id})).to_dicts()
        ],
        no_minimum_because=why_unknown(con, run_id) if minimum == 0 else None,
        doubts=_doubts(run, counts, step),
        buckets=buckets_of(step, matched_frac(con, run_id)),
        file=only["path"].replace("\\", "/").rsplit("/", 1)[-1] if only else None,
    )


def _whole_ns(step: dict[str, Any]) -> dict[str, int]:
    """Means as whole ns that still add up: the running sum is rounded, as in the query of the waterfall."""
    ends = [round(end) for end in itertools.accumulate(step[c] for c in COLUMNS)]
    return {"wall_ns": ends[-1]} | {c: end - start for c, start, end in zip(COLUMNS, [0, *ends], ends, strict=False)}


def _parts(con: duckdb.DuckDBPyConnection, run_id: str) -> str:
    chips = hardware.catalogue()
    rows = pl.DataFrame(con.sql(_PARTS, params={"run_id": run_id})).to_dicts()
    named = [(r["devices"], chips[r["hardware"]].name if r["hardware"] in chips else r["name"]) for r in rows]
    return " + ".join(f"{people.count(n)} × {name}" for n, name in named) or "no device"


def _doubts(run: dict[str, Any], counts: dict[str, Any], step: dict[str, Any] | None) -> list[str]:
    if step is None:
        return []
    said = []
    if not counts["complete_steps"]:
        said.append(
            f"No step is complete ({step['incomplete_reason'] or 'reason unknown'}): the numbers are of a partial step."
        )
    if step["source"] in ("inferred", "whole_trace"):
        how = {
            "inferred": "The trace marks no steps: they are inferred from a repeating pattern of launches.",
            "whole_trace": "The trace marks no steps: all of it counts as one step. Call profiler.step() or use"
            " StepTraceAnnotation to mark them.",
        }
        said.append(how[step["source"]])
    if run["partial_traces"]:
        said.append(
            f"Something is missing from {people.plural(run['partial_traces'], 'trace')}: “Can these numbers be trusted”,"
            " on the page, says what."
        )
    return said


_SOURCES = """
with by_device as (
    select trace_id, device_id, min(source) as source from step_gap where run_id = $run_id group by trace_id, device_id
)
select source, count(*) as devices from by_device group by source order by devices desc, source
"""


def differing_sources(con: duckdb.DuckDBPyConnection, run_id: str) -> str | None:
    """What marks the steps of which devices, in words; None where it is the same for all.

    Step 3 of a device whose steps are marked is not step 3 of one whose steps are guessed: they cannot be compared.
    """
    rows = pl.DataFrame(con.sql(_SOURCES, params={"run_id": run_id})).to_dicts()
    told = ", ".join(f"{people.plural(r['devices'], 'device')} by {r['source']}" for r in rows)
    return told if len(rows) > 1 else None


VIEWS = ("op_gap", "collective_gap", "step_gap")
"""Views of the gap. The last reads the first, and is faster where that is a table already."""


@contextlib.contextmanager
def snapshot(con: duckdb.DuckDBPyConnection, views: Sequence[str] = VIEWS, run_id: str | None = None) -> Iterator[None]:
    """Computes views once: inside, their names stand for temporary tables with the rows of one run, or of all.

    The same queries give the same rows without it, but each would walk all operations of the store again.
    """
    made = []
    try:
        for view in views:
            rows = f"select * from {view} where $run_id is null or run_id = $run_id"
            con.execute(f"create temp table {view} as {rows}", {"run_id": run_id}).fetchall()
            made.append(view)
        yield
    finally:
        for view in made:
            con.execute(f"drop table temp.{view}").fetchall()

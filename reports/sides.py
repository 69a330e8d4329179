"""What a comparison compares: the complete steps of a run, or those of some of its ranks or of a range of steps."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import polars as pl

from tracegap.ingest import store
from tracegap.ingest.intervals import apportion
from tracegap.models import hardware
from tracegap.models.errors import TracegapError
from tracegap.reports import people
from tracegap.reports.buckets import BUCKETS, COLUMNS, Bucket
from tracegap.reports.summary import buckets_of, matched_frac

_SELECTION = re.compile(r"(?P<base>.+)@(?P<chosen>(?:ranks?|steps?)=[0-9-]+(?:,(?:ranks?|steps?)=[0-9-]+)*)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Steps of a run: `RUN`, `RUN@rank=3`, `RUN@steps=10-20`, `RUN@ranks=0-3,step=17`."""

    run_id: str
    ranks: tuple[int, int] | None = None
    """First and last; None = all."""
    steps: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """As it was asked for."""
        chosen = [
            f"{word}{'s' if first != last else ''}={first}{f'-{last}' if first != last else ''}"
            for word, bounds in (("rank", self.ranks), ("step", self.steps))
            if bounds is not None
            for first, last in [bounds]
        ]
        return self.run_id + ("@" + ",".join(chosen) if chosen else "")


def parted(text: str) -> tuple[str, dict[str, tuple[int, int]]]:
    """A run or path, and the bounds that follow it after an `@`.

    Raises:
        TracegapError: a range ends before it begins.
    """
    found = _SELECTION.fullmatch(text)
    if not found:
        return text, {}
    bounds = {}
    for part in found["chosen"].split(","):
        word, _, numbers = part.partition("=")
        told = _RANGE.fullmatch(numbers)
        first, last = (int(told[1]), int(told[2] or told[1])) if told else (1, 0)
        if first > last:
            raise TracegapError(f"{text}: {numbers!r} is no number or range such as 3 or 10-20")
        bounds[word.removesuffix("s") + "s"] = (first, last)
    return found["base"], bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the sets of steps."""

    number: int
    """Its place, from 0; `side` in the table `compared`."""
    label: str
    """The run, and what of it."""
    run_id: str
    title: str
    """For people: job, devices, steps."""
    devices: str
    """8 × H100 SXM."""
    simulated: bool
    walls_ns: list[float]
    """Wall time of each step, mean over ranks, ns."""
    wall_ns: int
    """Median step, ns."""
    buckets: dict[str, int]
    """Of the typical step, ns; they add up to wall_ns."""
    words: dict[str, Bucket]
    """Each bucket in words that hold for these steps, by column."""
    mfu: float | None
    mfu_note: str | None
    modelled_share_frac: float | None
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """How many steps it has."""
        return len(self.walls_ns)

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        names = ("run_id", "label", "title", "devices", "simulated", "steps", "mfu", "mfu_note", "modelled_share_frac")
        return {name: getattr(self, name) for name in (*names, "wall_ns", "buckets")}


def load(con: duckdb.DuckDBPyConnection, selections: Sequence[Selection]) -> list[Side]:
    """Loads the sides, and makes the temporary table `compared`: side (from 0), trace_id, device_id, step, typical.

    The typical step of a side is its median step by wall time (of an even number, the two in the middle), each step
    averaged over its devices. So the wall time is the median, and its buckets are those of real steps and add up to it.

    Raises:
        TracegapError: a run is not in the store, or has no complete step among those that are asked for.
    """
    con.execute(
        "create or replace temp table compared (side bigint, trace_id varchar, device_id varchar, step bigint, typical bool)"
    ).fetchall()
    return [_load(con, number, chosen) for number, chosen in enumerate(selections)]


_CHOSEN = """
    insert into compared
    with mine as (
        select trace_id, device_id, step, wall_ns from steps
        where run_id = $run and complete
          and ($rank_first is null or rank between $rank_first and $rank_last)
          and ($step_first is null or step between $step_first and $step_last)
    ),
    by_step as (select step, avg(wall_ns) as wall_ns from mine group by step),
    typical as (
        select step from by_step
        qualify row_number() over (order by wall_ns, step) in ((count(*) over () + 1) // 2, count(*) over () // 2 + 1)
    )
    select $side, trace_id, device_id, step, step in (select step from typical) from mine
"""
_STEPS = f"""
    select g.step, any_value(c.typical) as typical, avg(g.wall_ns) as wall_ns,
           {", ".join(f"avg(g.{c}) as {c}" for c in COLUMNS)},
           avg(mfu) as mfu, any_value(mfu_note) as mfu_note, any_value(model_flops) as model_flops,
           sum(modelled_share_frac * compute_ns) / nullif(sum(compute_ns), 0) as modelled_share_frac,
           sum(exposed_comm_ns * coalesce(comm_modelled_share_frac, 0)) / nullif(sum(exposed_comm_ns), 0)
               as comm_modelled_share_frac
    from step_gap g join compared c using (trace_id, device_id, step)
    where c.side = ? group by g.step order by g.step
"""


def _load(con: duckdb.DuckDBPyConnection, number: int, chosen: Selection) -> Side:
    (ranks, steps) = (bounds or (None, None) for bounds in (chosen.ranks, chosen.steps))
    asked = {
        "side": number, "run": chosen.run_id, "rank_first": ranks[0], "rank_last": ranks[1], "step_first": steps[0],
        "step_last": steps[1],
    }  # fmt: skip
    con.execute(_CHOSEN, asked).fetchall()
    rows = store.frame_of(con, _STEPS, [number])
    if not len(rows):
        raise TracegapError(_nothing(con, chosen))
    job, simulated, config = con.execute(
        "select job, simulated, config from runs where run_id = ?", [chosen.run_id]
    ).fetchall()[0]
    parts = con.execute(
        "select coalesce(hardware, name, kind), count(distinct (trace_id, device_id)) "
        "from devices join compared using (trace_id, device_id) where side = ? group by 1 order by 2 desc",
        [number],
    ).fetchall()
    names = {chip.id: chip.name for chip in hardware.catalogue().values()}
    devices = " + ".join(f"{n} × {names.get(name, name)}" for name, n in parts)
    typical = rows.filter("typical")
    values = {c: float(typical[c].mean()) for c in ("wall_ns", *COLUMNS)}  # type: ignore[arg-type]
    buckets = whole(values, round(values["wall_ns"]))
    known = {c: typical[c].mean() for c in ("modelled_share_frac", "comm_modelled_share_frac", "model_flops")}
    return Side(
        number=number,
        label=chosen.label,
        run_id=chosen.run_id,
        title=f"{job} · {devices} · {people.plural(len(rows), 'step')}",
        devices=devices,
        simulated=bool(simulated),
        walls_ns=rows["wall_ns"].to_list(),
        wall_ns=round(values["wall_ns"]),
        buckets=buckets,
        words={b.column: b for b in buckets_of(buckets | known, matched_frac(con, chosen.run_id))},
        mfu=rows["mfu"].median(),  # type: ignore[arg-type]
        mfu_note=rows["mfu_note"][0],
        modelled_share_frac=rows["modelled_share_frac"].mean(),  # type: ignore[arg-type]
        config={"hardware": devices} | json.loads(config or "{}"),
    )


def _nothing(con: duckdb.DuckDBPyConnection, chosen: Selection) -> str:
    known = [r[0] for r in con.execute("select run_id from runs order by run_id").fetchall()]
    if chosen.run_id not in known:
        return f"{chosen.run_id}: no such run in the store; it has {', '.join(known) or 'none'}"
    if chosen.ranks or chosen.steps:
        ((r0, r1, s0, s1),) = con.execute(
            "select min(rank), max(rank), min(step), max(step) from steps where run_id = ? and complete",
            [chosen.run_id],
        ).fetchall()
        if s0 is not None:
            return f"{chosen.label}: no complete step there; the run has ranks {r0} to {r1} and steps {s0} to {s1}"
    return f"{chosen.run_id}: no complete step on any device; `tracegap report {chosen.run_id}` says why"


def whole(parts: dict[str, float], total_ns: int) -> dict[str, int]:
    """The buckets as whole ns that add up to a total; some may be negative (an operation beat its bound)."""
    exact = np.array([parts[b.column] for b in BUCKETS])
    low = int(np.floor(min(exact.min(), 0.0)))  # shifted up for the rounding, and down again
    shifted = apportion(exact - low, np.zeros(len(exact), dtype=np.int64), np.array([total_ns - low * len(exact)]))
    return {b.column: int(v) + low for b, v in zip(BUCKETS, shifted, strict=True)}


def frame(con: duckdb.DuckDBPyConnection, sql: str, side: int, *more: Any) -> pl.DataFrame:
    """Rows of a query over `compared`, whose first parameter is the side."""
    return store.frame_of(con, sql, [side, *more])

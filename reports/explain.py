"""Why one step of a run was slower than its neighbours."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb

from tracegap.ingest import store
from tracegap.models.errors import TracegapError
from tracegap.models.units import human_ns
from tracegap.reports import people
from tracegap.reports.buckets import BY_COLUMN, COLUMNS

_NEIGHBOURS = 5  # complete steps on either side that the step is held against
_LEAST_FRAC = 0.05  # a bucket is named from this part of the largest change


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One step against the mean of its neighbours; bucket differences add up to the difference of the step times."""

    run_id: str
    step: int
    simulated: bool
    wall_ns: int
    neighbours: list[int]
    usual_ns: int
    """Mean wall time of the neighbours, ns."""
    buckets: dict[str, int]
    """Difference of each bucket, ns."""
    ranks: list[dict[str, Any]]
    """Largest change of a bucket on one rank: rank, bucket, delta_ns."""
    operations: list[dict[str, Any]]
    """Operations whose time changed most: operation, delta_ns."""

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {name: getattr(self, name) for name in self.__slots__}

    def lines(self) -> Iterator[str]:
        """For people."""
        delta = self.wall_ns - self.usual_ns
        word = "slower" if delta > 0 else "faster"
        tag = " (simulated)" if self.simulated else ""
        yield (
            f"{self.run_id}{tag}: step {self.step} took {human_ns(self.wall_ns)}, {human_ns(abs(delta))} "
            f"({abs(delta) / max(self.usual_ns, 1):.1%}) {word} than its {len(self.neighbours)} neighbours "
            f"({human_ns(self.usual_ns)})"
        )
        largest = max(map(abs, self.buckets.values()), default=0)
        for column, ns in sorted(self.buckets.items(), key=lambda kv: -abs(kv[1])):
            if abs(ns) < _LEAST_FRAC * largest or ns == 0:
                break
            bucket = BY_COLUMN[column]
            where = next((r for r in self.ranks if r["bucket"] == column), None)
            rank = (
                f"; most on rank {where['rank']} ({people.signed_duration(where['delta_ns'])})"
                if where and where["rank"] is not None
                else ""
            )
            yield f"  {bucket.title:<28} {people.signed_duration(ns):>8}   {bucket.meaning}{rank}"
        for op in self.operations[:3]:
            yield f"  operation {op['operation']}: {people.signed_duration(op['delta_ns'])}"


def explain(con: duckdb.DuckDBPyConnection, run_id: str, step: int) -> Explanation:
    """Holds a step against its nearest complete neighbours.

    Raises:
        TracegapError: no such run or step, or no neighbour.
    """
    run = con.execute("select simulated from runs where run_id = ?", [run_id]).fetchall()
    if not run:
        known = [r[0] for r in con.execute("select run_id from runs order by 1").fetchall()]
        raise TracegapError(f"{run_id}: no such run in the store; runs: {', '.join(known) or 'none'}")
    rows = store.frame_of(
        con, f"select step, rank, complete, wall_ns, {', '.join(COLUMNS)} from step_gap where run_id = ?", [run_id]
    )
    steps = sorted(set(rows["step"].to_list()))
    if step not in steps:
        raise TracegapError(
            f"{run_id}: no step {step}; it has {steps[0]} to {steps[-1]}" if steps else f"{run_id}: no steps"
        )
    complete = sorted(set(rows.filter(rows["complete"])["step"].to_list()) - {step}, key=lambda s: (abs(s - step), s))
    near = sorted(complete[: 2 * _NEIGHBOURS])
    if not near:
        raise TracegapError(f"{run_id}: step {step} has no complete neighbour to hold it against")
    values = ["wall_ns", *COLUMNS]
    mine = rows.filter(rows["step"] == step)
    theirs = rows.filter(rows["step"].is_in(near))
    deltas = {c: float(mine[c].mean()) - float(theirs[c].mean()) for c in values}  # type: ignore[arg-type]
    ranks = []
    for (rank,), part in mine.partition_by("rank", as_dict=True).items():
        usual = theirs.filter(theirs["rank"].eq_missing(rank))
        if len(usual):
            ranks += [
                {"rank": rank, "bucket": c, "delta_ns": round(float(part[c].mean()) - float(usual[c].mean()))}  # type: ignore[arg-type]
                for c in COLUMNS
            ]
    ranks.sort(key=lambda r: (-abs(r["delta_ns"]), r["rank"] or 0))
    operations = store.frame_of(
        con,
        """
        with own as (
            select w.step, coalesce(c.collective, o.framework_op, o.name) as operation, w.share_ns
            from op_windows w join ops o using (trace_id, op_id) join traces t using (trace_id)
            left join collectives c using (trace_id, op_id) where t.run_id = $1
        ),
        devices as (select count(distinct (trace_id, device_id)) as n from steps where run_id = $1)
        select operation, cast(round((coalesce(sum(share_ns) filter (step = $2), 0)
               - coalesce(sum(share_ns) filter (list_contains($3, step)), 0) / len($3)) / any_value(n)) as bigint) as delta_ns
        from own, devices group by operation order by abs(delta_ns) desc, operation limit 5
        """,
        [run_id, step, near],
    )
    return Explanation(
        run_id=run_id,
        step=step,
        simulated=bool(run[0][0]),
        wall_ns=round(float(mine["wall_ns"].mean())),  # type: ignore[arg-type]
        neighbours=near,
        usual_ns=round(float(theirs["wall_ns"].mean())),  # type: ignore[arg-type]
        buckets={c: round(deltas[c]) for c in COLUMNS},
        ranks=ranks,
        operations=operations.filter(operations["delta_ns"] != 0).to_dicts(),
    )

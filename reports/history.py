"""The runs of a job, oldest first: median step, MFU, the change against the run before, the verdict against usual."""

from dataclasses import dataclass
from typing import Any

import duckdb

from tracegap.models.errors import TracegapError
from tracegap.models.units import human_ns
from tracegap.reports.nightly_verdict import judge

HEADINGS = ("started", "run", "commit", "steps", "step", "change", "usual", "MFU", "modelled")
WORDS = {"ok": "as usual", "regression": "slower", "improvement": "faster", "unknown": None}
"""A verdict for people."""
_MS = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """A run in the history of its job."""

    job: str
    run_id: str
    started_at: str | None
    git_commit: str | None
    simulated: bool
    steps: int
    step_ns: int | None
    """Median over complete steps of the mean over ranks, ns; None = no complete step."""
    mfu: float | None
    modelled_share_frac: float | None
    change_frac: float | None
    """Against the run before of the same job; None for the first."""
    verdict: str
    """Against the median of all runs before of the same job; see `reports.nightly_verdict`."""

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {name: getattr(self, name) for name in self.__slots__}

    def cells(self) -> tuple[Any, ...]:
        """For a table."""
        return (
            self.started_at and self.started_at[:19],
            self.run_id + (" (simulated)" if self.simulated else ""),
            self.git_commit and self.git_commit[:10],
            self.steps,
            None if self.step_ns is None else human_ns(self.step_ns),
            None if self.change_frac is None else f"{100 * self.change_frac:+.1f}%",
            WORDS[self.verdict],
            None if self.mfu is None else f"{100 * self.mfu:.1f}%",
            None if self.modelled_share_frac is None else f"{100 * self.modelled_share_frac:.0f}%",
        )


def history(con: duckdb.DuckDBPyConnection, job: str | None) -> list[Night]:
    """The history of a job, or of all jobs.

    Raises:
        TracegapError: the store has no such job.
    """
    rows = con.execute(
        """
        with step as (
            select run_id, step, avg(wall_ns) as wall_ns, avg(mfu) as mfu,
                   sum(modelled_share_frac * compute_ns) / nullif(sum(compute_ns), 0) as modelled
            from step_gap where complete group by all
        ),
        run as (
            select run_id, count(*) as steps, cast(round(median(wall_ns)) as bigint) as step_ns, median(mfu) as mfu,
                   avg(modelled) as modelled
            from step group by run_id
        )
        select r.job, r.run_id, cast(r.started_at as varchar), r.git_commit, r.simulated, coalesce(run.steps, 0), run.step_ns,
               run.mfu, run.modelled,
               run.step_ns / lag(run.step_ns ignore nulls) over (partition by r.job order by r.started_at, r.run_id) - 1
        from runs r left join run using (run_id)
        where $1 is null or r.job = $1
        order by r.job, r.started_at, r.run_id
        """,
        [job],
    ).fetchall()
    if not rows and job is not None:
        known = [r[0] for r in con.execute("select distinct job from runs order by 1").fetchall()]
        raise TracegapError(f"{job}: no such job in the store; jobs: {', '.join(known) or 'none'}")
    names = (
        "job",
        "run_id",
        "started_at",
        "git_commit",
        "simulated",
        "steps",
        "step_ns",
        "mfu",
        "modelled_share_frac",
        "change_frac",
    )
    nights: list[Night] = []
    for row in rows:
        told = dict(zip(names, row, strict=True))
        before = [n.step_ns / _MS for n in nights if n.job == told["job"] and n.step_ns]
        tonight = [told["step_ns"] / _MS] if told["step_ns"] else []
        nights.append(Night(**told, verdict=judge(before, tonight).verdict))
    return nights

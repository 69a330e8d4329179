"""One round over a folder or bucket of traces: find them, ingest what is new, join it with theory, publish what changed.

Plain functions; `flows.nightly` runs them as a Prefect flow. What is still to do is read off the store and the
published folder, never remembered: a round that was cut off is finished by the next one, and one that finds nothing new
writes nothing but the index.
"""

import datetime
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from tracegap.ingest import calibration as calibrations
from tracegap.ingest import sources
from tracegap.ingest.pipeline import Ingested, ingest_paths
from tracegap.ingest.sources import Source
from tracegap.ingest.store import open_store, set_calibration
from tracegap.models.errors import TracegapError
from tracegap.models.units import human_ns
from tracegap.reports import compare, history, join, page
from tracegap.reports.names import history_name, page_name
from tracegap.reports.nightly_verdict import judge

REMEMBERED = 14
"""Runs of a job that tell what an ordinary one is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What lies in the folder."""

    settled: list[Source]
    """Trace files that nobody has written to lately, in order of name; objects of a bucket appear whole."""
    growing: list[Path]
    """Those that may still be written to: left for the next round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A new run against the last ordinary run before it of the same job."""

    job: str
    run_id: str
    before: str
    verdict: str
    """slower, faster, same; or unknown, where one of the two has no complete step."""
    delta_ns: int | None
    """Median step after less before, ns; None where unknown."""
    words: str
    """A sentence for a person."""
    page: str | None
    """Path of the comparison, relative to the published folder; only of a run that got slower or faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What was written."""

    index: Path
    pages: dict[str, str]
    """Run to its page, relative to the folder; only those written in this round."""
    changes: list[Change]
    """One for each page that has a run before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What became of one round."""

    source: str | Path
    ingested: list[Ingested]
    published: Published
    growing: list[Path] = field(default_factory=list)

    @property
    def new(self) -> list[Ingested]:
        """Files that were stored in this round."""
        return [i for i in self.ingested if i.status in ("ok", "partial")]

    @property
    def already(self) -> int:
        """Files whose content the store had."""
        return sum(i.status == "already" for i in self.ingested)

    @property
    def failed(self) -> list[Ingested]:
        """Files that could not be read, or not wholly."""
        return [i for i in self.ingested if not i.sound]

    def lines(self) -> list[str]:
        """The one message of the night."""
        return [self._count(), *(c.words for c in self.published.changes), *self._trouble(), *self._pages()]

    def _count(self) -> str:
        if not self.ingested:
            return f"no trace in {self.source}: files end in .json, .pb, .sqlite or .nsys-rep, also .gz or .zst"
        runs = dict.fromkeys(i.run_id for i in self.new)
        if not self.new:
            return f"nothing new in {self.source}: {_plural(self.already, 'trace')} already in the store"
        known = f"; {self.already} already in the store" if self.already else ""
        verdicts = {c.verdict for c in self.published.changes}
        well = "; nothing got slower" if verdicts and not verdicts & {"slower", "unknown"} else ""
        return f"{_plural(len(self.new), 'new trace')} in {_plural(len(runs), 'run')}{known}{well}"

    def _trouble(self) -> Iterator[str]:
        for i in self.failed:
            yield ("not read: " if i.status == "failed" else "not whole: ") + str(i.error)
        if self.growing:
            yield (
                f"{_plural(len(self.growing), 'file')} left for the next round, written to a moment ago: "
                + ", ".join(p.name for p in self.growing)
            )

    def _pages(self) -> Iterator[str]:
        written = self.published.pages
        if written:
            yield f"pages written: {len(written)} ({', '.join(written)})"
        yield f"index: {self.published.index}"

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "new": [i.path for i in self.new],
            "already": self.already,
            "failed": [{"path": i.path, "status": i.status, "error": i.error} for i in self.failed],
            "growing": [str(p) for p in self.growing],
            "runs": list(dict.fromkeys(i.run_id for i in self.new)),
            "pages": self.published.pages,
            "index": str(self.published.index),
            "changes": [{k: getattr(c, k) for k in c.__slots__} for c in self.published.changes],
            "message": self.lines(),
        }


def _plural(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def discover(source: str | Path, settle_s: float = 0.0) -> Found:
    """Looks for trace files in a folder and all folders in it.

    Args:
        source: the folder, or the URL of one.
        settle_s: a file that was written to less than this many seconds ago is left for the next round.

    Raises:
        TracegapError: there is no such folder, or its server fails.
    """
    settled: list[Source] = []
    growing: list[Path] = []
    for found in sources.find([source]):
        if isinstance(found, Path) and settle_s > 0 and time.time() - found.stat().st_mtime < settle_s:
            growing.append(found)
        else:
            settled.append(found)
    return Found(settled=settled, growing=growing)


def ingest(
    store: Path,
    found: Iterable[Source],
    calibration: Path | None = None,
    progress: Callable[[Source], None] = lambda _: None,
) -> list[Ingested]:
    """Ingests files; the content that the store has is skipped, the file that fails is named in the result.

    The store is opened once a folder, so that others get at it in between. Runs of the files get the measured ceilings of
    `calibration`.

    Raises:
        TraceError: the calibration is not valid.
    """
    results: list[Ingested] = []
    ceilings = calibrations.load(calibration) if calibration else None
    for _, group in itertools.groupby(found, key=lambda s: str(s).rpartition("/")[0]):
        # a file may have been moved away since it was found
        there = [s for s in group if not isinstance(s, Path) or s.exists()]
        with open_store(store) as con:
            ingested = ingest_paths(con, there, progress=progress)
            if ceilings is not None:
                set_calibration(con, list(dict.fromkeys(i.run_id for i in ingested if i.run_id)), ceilings)
        results += ingested
    return results


def evaluate(store: Path) -> list[str]:
    """Joins with theory every run that changed since it last was; returns their names. Makes the store if need be."""
    with open_store(store) as con:
        stale = [
            r[0] for r in con.execute("select run_id from runs where evaluated_at is null order by run_id").fetchall()
        ]
        join.install_views(con)  # also of a store without runs: the index reads them
        for run_id in stale:
            join.evaluate(con, run_id)
    return stale


def publish(store: Path, folder: Path) -> Published:
    """Writes the page of each run that is newer than its page, its comparison with the run before, and the index.

    Every file appears whole: a reader of the folder never gets half a page.
    """
    with open_store(store, read_only=True) as con:
        runs = con.execute("select run_id, evaluated_at from runs where evaluated_at is not null order by 1").fetchall()
        names = {run_id: page_name(run_id) for run_id, _ in runs}
        stale = [run_id for run_id, at in runs if _older(folder / names[run_id], at)]
        before = _predecessors(con) if stale else {}
        changes = [_change(con, folder, *before[run_id], run_id) for run_id in stale if run_id in before]
        for run_id in stale:
            page.render_run(con, run_id, folder / names[run_id])
        histories = _publish_histories(con, folder, names)
        index = page.render_index(con, folder, names, histories)
    return Published(index=index, pages={run_id: names[run_id] for run_id in stale}, changes=changes)


def _publish_histories(con: duckdb.DuckDBPyConnection, folder: Path, names: dict[str, str]) -> dict[str, str]:
    """Writes the history of each job with several runs that has news since; the file name of each."""
    jobs = con.execute(
        """
        select job, greatest(max(evaluated_at), coalesce(max(noted_at), max(evaluated_at)))
        from runs left join notes using (run_id) where evaluated_at is not null
        group by job having count(distinct run_id) > 1 order by job
        """
    ).fetchall()
    histories = {job: history_name(job) for job, _ in jobs}
    for job, news in jobs:
        if _older(folder / histories[job], news):
            page.render_history(con, job, folder / histories[job], names)
    return histories


def _older(file: Path, evaluated_at: datetime.datetime) -> bool:
    """Whether a page is missing or older than the naive UTC time of the join."""
    return not file.exists() or file.stat().st_mtime < evaluated_at.replace(tzinfo=datetime.UTC).timestamp()


def _predecessors(con: duckdb.DuckDBPyConnection) -> dict[str, tuple[str, str]]:
    """Job and run to compare with of each run that is not the first of its job.

    That is the latest one before it; but a freak night among the last ones (see `reports.nightly_verdict`) is passed
    over, so that an ordinary night after it is not called faster.
    """
    before: dict[str, tuple[str, str]] = {}
    for job, group in itertools.groupby(history.history(con, None), key=lambda n: n.job):  # oldest first
        seen: list[history.Night] = []
        for night in group:
            recent = [(n, n.step_ns / 1e6) for n in seen if n.step_ns][-REMEMBERED:]
            freaks = judge([step_ms for _, step_ms in recent], []).suspect_nights
            ordinary = [n for i, (n, _) in enumerate(recent) if i not in freaks] or seen
            if ordinary:
                before[night.run_id] = (job, ordinary[-1].run_id)
            seen.append(night)
    return before


def _change(con: duckdb.DuckDBPyConnection, folder: Path, job: str, before: str, run_id: str) -> Change:
    try:
        result = compare.compare(con, before, run_id)
    except TracegapError as e:
        words = f"{run_id}: cannot be compared with {before}: {e}"
        return Change(job=job, run_id=run_id, before=before, verdict="unknown", delta_ns=None, words=words, page=None)
    name = None
    if result.verdict == "same":
        words = f"{run_id}: as fast as {before} ({human_ns(result.after.wall_ns)} a step)"
    else:
        name = "compare-" + page_name(run_id)
        page.render_compare(result, folder / name)
        words = _verdict(result, before, run_id)
    return Change(
        job=job, run_id=run_id, before=before, verdict=result.verdict, delta_ns=result.delta_ns, words=words, page=name
    )


def _verdict(result: compare.Comparison, before: str, run_id: str) -> str:
    """By how much, and the cause that weighs most in that direction."""
    sign = 1 if result.delta_ns > 0 else -1
    said = (
        f"{run_id}: {human_ns(abs(result.delta_ns))} ({100 * abs(result.change_frac):.1f}%) {result.verdict} than"
        f" {before} ({human_ns(result.before.wall_ns)} → {human_ns(result.after.wall_ns)} a step)"
    )
    cause = max(result.causes, key=lambda c: sign * c.delta_ns, default=None)
    if cause is None or sign * cause.delta_ns <= 0:
        return said
    said += f": {human_ns(abs(cause.delta_ns))} of it {cause.what}"
    changed: Sequence[str] = [
        f"{c['key']} {c['before']} → {c['after']}" for c in result.config if c["key"] in cause.config
    ]
    return said + (f"; changed in the configuration: {', '.join(changed)}" if changed else "")

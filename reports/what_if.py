"""What a change would do to a step, by running the graph of its dependencies again with other delays (`reports.replay`).

A change sets delays of all steps that are loaded; the answer is about the last of them. Savings of several changes do
not add up: what one uncovers another may hide.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.intervals import Cover, Ints
from tracegap.models.errors import TracegapError
from tracegap.models.units import human_ns
from tracegap.reports.instants import Why
from tracegap.reports.replay import NEVER
from tracegap.reports.run_schedule import RunSchedule

Mask = NDArray[np.bool_]
PAIRS = ("send", "recv", "send_recv", "permute")
"""Collectives between neighbours of a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that might be different."""

    name: str
    """Stable word."""
    what: str
    """What it is about, for a person."""
    lags: Callable[[RunSchedule], Ints]
    """The lags of the edges with it, ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A step with a change."""

    run_id: str
    step: int
    change: str
    what: str
    before_ns: int
    """Measured, mean over devices."""
    after_ns: int
    """Replayed with the change, likewise."""
    note: str | None
    """What the answer rests on, or leaves out; None = nothing more."""

    @property
    def saves_ns(self) -> int:
        """How much shorter the step is."""
        return self.before_ns - self.after_ns

    def as_dict(self) -> dict[str, Any]:
        """A row of the table `what_if`."""
        return {name: getattr(self, name) for name in ANSWERS}


_AGREE_FRAC = 0.02  # of the longest step: devices that differ by less agree
ANSWERS = {
    "run_id": pl.String,
    "step": pl.Int64,
    "change": pl.String,
    "what": pl.String,
    "before_ns": pl.Int64,
    "after_ns": pl.Int64,
    "saves_ns": pl.Int64,
    "note": pl.String,
}
"""Columns of the table `what_if`."""


def answer(run: RunSchedule, change: Change) -> Answer:
    """Runs the steps again with a change."""
    before = run.walls_ns(run.schedule.graph.time_ns)
    after = run.walls_ns(run.schedule.graph.replay(change.lags(run)))
    notes = [
        run.left_out,
        None if len(run.steps) > 1 else "one step alone: what a host gains on its device is not seen",
        _apart(after),
    ]
    return Answer(
        run_id=run.run_id,
        step=run.step,
        change=change.name,
        what=change.what,
        before_ns=round(before.mean()),
        after_ns=round(after.mean()),
        note="; ".join(filter(None, notes)) or None,
    )


def _apart(walls_ns: Ints) -> str | None:
    """That the devices do not agree on the step any more, where they do not: in the end ranks wait for the slowest."""
    low, high = int(walls_ns.min()), int(walls_ns.max())
    if high - low <= _AGREE_FRAC * high:
        return None
    return f"mean of {human_ns(low)} to {human_ns(high)}: devices that wait for each other settle on the longest"


def _edges(run: RunSchedule, *why: Why) -> Mask:
    return np.isin(run.schedule.graph.edges.why, [int(w) for w in why])


def _set(run: RunSchedule, lags: Ints, which: Ints, delay_ns: Ints) -> None:
    """Sets the delays of edges; what is unexplained of their ends stays."""
    lags[which] = delay_ns + run.schedule.graph.unexplained_ns[run.schedule.graph.edges.dst[which]]


def _delays(run: RunSchedule) -> Ints:
    graph = run.schedule.graph
    delays: Ints = graph.edges.lag_ns - graph.unexplained_ns[graph.edges.dst]
    return delays


def _durations(run: RunSchedule, ops: Mask, new_ns: Callable[[Ints, Ints], Ints]) -> Ints:
    """Lags where operations take what `new_ns` makes of their rows and of what they take."""
    edges = run.schedule.graph.edges
    lags = edges.lag_ns.copy()
    mine = np.flatnonzero(_edges(run, Why.RUN, Why.TRANSFER))
    mine = mine[ops[edges.of[mine]]]
    _set(run, lags, mine, new_ns(edges.of[mine], _delays(run)[mine]))
    return lags


def chosen(run: RunSchedule, name: str | None) -> Mask:
    """Compute operations that a word names: a label, a class, or part of a label; None = all.

    Raises:
        TracegapError: there is none.
    """
    compute = ~run.ops["op_class"].is_in(["collective", "copy", "memset"])
    if name is None:
        return compute.to_numpy()
    label, op_class = run.ops["label"], run.ops["op_class"]
    for found in (label == name, op_class == name, label.str.contains(name, literal=True)):
        if (found & compute).any():
            return (found & compute).to_numpy()
    raise TracegapError(f"{run.run_id}: no operation {name!r} in step {run.step}")


def collectives(run: RunSchedule, kind: str | None) -> Mask:
    """Collectives of a kind; None = all.

    Raises:
        TracegapError: there is none.
    """
    mine = run.ops["op_class"] == "collective"
    if kind is not None:
        mine &= (run.ops["collective"] == kind).fill_null(value=False)
    if not mine.any():
        kinds = ", ".join(run.ops["collective"].drop_nulls().unique().sort()) or "none"
        raise TracegapError(f"{run.run_id}: no collective {kind or ''!r} in step {run.step}; it has {kinds}")
    return mine.to_numpy()


def at_bound(name: str | None) -> Change:
    """Operations take what their arithmetic and memory traffic need; those of unknown cost what they take now."""

    def lags(run: RunSchedule) -> Ints:
        bound = run.ops["t_min_ns"].fill_null(np.iinfo(np.int64).max).to_numpy()
        return _durations(run, chosen(run, name), lambda of, took: np.minimum(took, bound[of]))

    return Change(name="kernel_at_bound", what=name or "all kernels", lags=lags)


def predicted(kind: str | None) -> Change:
    """Collectives take what the collective model says, from the arrival of the last rank on."""

    def lags(run: RunSchedule) -> Ints:
        bound = run.ops["t_min_ns"].fill_null(np.iinfo(np.int64).max).to_numpy()
        return _durations(run, collectives(run, kind), lambda of, took: np.minimum(took, bound[of]))

    return Change(name="collective_at_prediction", what=kind or "all collectives", lags=lags)


def hidden(kind: str | None) -> Change:
    """Collectives take no time once the last rank has arrived."""
    return Change(
        name="collective_hidden",
        what=kind or "all collectives",
        lags=lambda run: _durations(run, collectives(run, kind), lambda _, took: np.zeros_like(took)),
    )


def times(factor: float, what: str, mask: Callable[[RunSchedule], Mask]) -> Change:
    """Operations take a multiple of their time."""

    def lags(run: RunSchedule) -> Ints:
        return _durations(run, mask(run), lambda _, took: np.rint(took * factor).astype(np.int64))

    return Change(name="scaled", what=f"{what} × {factor:g}", lags=lags)


def no_waiting(kinds: tuple[str, ...], name: str, what: str) -> Change:
    """Collectives of some kinds begin when a rank asks for them, whoever else is late."""

    def lags(run: RunSchedule) -> Ints:
        out = run.schedule.graph.edges.lag_ns.copy()
        mine = run.ops["collective"].is_in(kinds).fill_null(value=False).to_numpy()
        transfer = np.flatnonzero(_edges(run, Why.TRANSFER))
        out[transfer[mine[run.schedule.graph.edges.of[transfer]]]] = NEVER
        return out

    return Change(name=name, what=what, lags=lags)


BUBBLE = no_waiting(PAIRS, "bubble_gone", "no stage waits for another one")


def _no_syncs(run: RunSchedule) -> Ints:
    edges, points = run.schedule.graph.edges, run.schedule.points
    out = edges.lag_ns.copy()
    sync = points["is_sync"].to_numpy()
    for why, lag in ((Why.RETURN, NEVER), (Why.CALL, 0)):
        mine = np.flatnonzero(_edges(run, why))
        out[mine[sync[edges.of[mine]]]] = lag
    return out


SYNCS = Change(name="syncs_gone", what="the host waits for no device", lags=_no_syncs)


def _loading_ns(run: RunSchedule, which: Ints) -> Ints:
    """Time of edges between calls in which their thread loads data, ns."""
    edges, time = run.schedule.graph.edges, run.schedule.graph.time_ns
    thread = run.schedule.points["thread"].to_numpy()[edges.of[which]]
    begin, end = time[edges.src[which]], time[edges.dst[which]]
    out = np.zeros(len(which), dtype=np.int64)
    for (number,), part in run.schedule.inputs.partition_by("thread", as_dict=True).items():
        mine = np.flatnonzero(thread == number)
        cover = Cover.of(part["start_ns"].to_numpy(), part["end_ns"].to_numpy())
        out[mine] = cover.within(begin[mine], end[mine])
    return np.minimum(out, _delays(run)[which])


def _no_input(run: RunSchedule) -> Ints:
    out = run.schedule.graph.edges.lag_ns.copy()
    mine = np.flatnonzero(_edges(run, Why.HOST, Why.HANDOVER))
    _set(run, out, mine, _delays(run)[mine] - _loading_ns(run, mine))
    return out


INPUT = Change(name="input_gone", what="data is there at once", lags=_no_input)


def _launched(run: RunSchedule) -> pl.DataFrame:
    """By call: step, key and place in the step of the first operation that it launches.

    Of a synchronisation the step of what was launched before it, and its place among those of its trace and step.
    """
    ops = run.schedule.ops.with_row_index("op").with_columns(
        nth=pl.int_range(pl.len()).over("device", "step", "key", order_by=["start_ns", "op"])
    )
    first = ops.filter(pl.col("launch_ns").is_not_null()).sort("start_ns", "op")
    first = first.unique(["thread", "launch_ns"], keep="first", maintain_order=True)
    found = (
        run.schedule.points.with_row_index("point")
        .join(
            first.select("device", "thread", "step", "key", "nth", start_ns="launch_ns"),
            on=["thread", "start_ns"], how="left", maintain_order="left",
        )
        .sort("trace", "start_ns", "point")
        .with_columns(pl.col("step", "device").forward_fill().over("trace"))
    )  # fmt: skip
    place = pl.int_range(pl.len()).over("trace", "step", "key", order_by=["start_ns", "point"])
    return found.with_columns(nth=pl.coalesce("nth", place)).sort("point")


def _no_launching(run: RunSchedule) -> Ints:
    """Between the first and the last launch of a step the host only loads data and waits, as where a graph is launched."""
    graph, points = run.schedule.graph, run.schedule.points
    out = graph.edges.lag_ns.copy()
    calls = _launched(run)
    launch = calls["key"].is_not_null() & ~points["is_sync"]
    ends = calls.with_columns(mark=pl.when(launch).then("start_ns"))
    spans = pl.col("mark").min().over("device", "step"), pl.col("mark").max().over("device", "step")
    told = ends.select(first=spans[0], last=spans[1])
    first, last = (told[c].fill_null(-1).to_numpy() for c in ("first", "last"))
    mine = np.flatnonzero(_edges(run, Why.HOST, Why.HANDOVER, Why.CALL))
    of, time = graph.edges.of[mine], graph.time_ns
    inside = (time[graph.edges.src[mine]] >= first[of]) & (time[graph.edges.dst[mine]] <= last[of])
    waits = points["is_sync"].to_numpy()[of] & (graph.edges.why[mine] == int(Why.CALL))
    mine = mine[inside & ~waits]
    between = graph.edges.why[mine] != int(Why.CALL)
    kept = np.zeros(len(mine), dtype=np.int64)
    kept[between] = _loading_ns(run, mine[between])
    _set(run, out, mine, kept)
    return out


LAUNCHES = Change(name="launches_free", what="the host launches a step in no time", lags=_no_launching)


def like_median(rank: int) -> Change:
    """Kernels and host work of a rank take what the same take on the median of the other ranks."""

    def lags(run: RunSchedule) -> Ints:
        ranks = run.devices["rank"].to_numpy()
        if rank not in ranks:
            raise TracegapError(f"{run.run_id}: no rank {rank} in step {run.step}")
        graph = run.schedule.graph
        out = graph.edges.lag_ns.copy()
        ops = run.schedule.ops.with_columns(
            nth=pl.int_range(pl.len()).over("device", "step", "key", order_by="start_ns")
        ).select("device", "step", "key", "nth")
        alone = (run.ops["op_class"] != "collective").to_numpy()
        calls = _launched(run).with_columns(sync=run.schedule.points["is_sync"])
        for why, rows, keep in (
            ([Why.RUN], ops, alone),
            ([Why.HOST, Why.HANDOVER, Why.CALL], calls.select("device", "step", "key", "nth"), None),
        ):
            mine = np.flatnonzero(_edges(run, *why))
            mine = mine if keep is None else mine[keep[graph.edges.of[mine]]]
            told = rows[graph.edges.of[mine]].with_columns(
                why=pl.Series(graph.edges.why[mine]), delay=pl.Series(_delays(run)[mine])
            )
            here = ranks[told["device"].fill_null(0).to_numpy()] == rank
            told = told.with_columns(of_others=pl.when(~pl.Series(here)).then("delay"))
            same = pl.struct("why", "step", "key", "nth")
            median = told.select(pl.col("of_others").median().over(same).round().cast(pl.Int64)).to_series()
            here &= median.is_not_null().to_numpy()
            _set(run, out, mine[here], median.fill_null(0).to_numpy()[here])
        return out

    return Change(name="straggler_gone", what=f"rank {rank}", lags=lags)


def latest_rank(run: RunSchedule) -> int | None:
    """The rank that the others wait for longest over the collectives of the steps; None where nobody waits."""
    ops = run.schedule.ops.with_columns(
        rank=run.devices["rank"].gather(run.ops["device"]),
        start=pl.Series(run.schedule.graph.time_ns[run.schedule.begin]),
    ).filter(pl.col("instance").is_not_null() & pl.col("rank").is_not_null())
    waited = (
        ops.with_columns(wait=pl.col("start").max().over("instance") - pl.col("start"))
        .group_by("instance")
        .agg(pl.col("rank").sort_by("start", "rank").last(), pl.col("wait").sum())
        .group_by("rank")
        .agg(pl.col("wait").sum())
        .filter(pl.col("wait") > 0)
        .sort("wait", "rank", descending=[True, False])
    )
    return int(waited["rank"][0]) if len(waited) else None


_MOST_KERNELS = 5


def usual(run: RunSchedule) -> list[Change]:
    """The changes that are worth asking about for any run, those that do not apply to this one left out."""
    losses = (
        run.ops.with_columns(
            took=pl.Series(
                run.schedule.graph.time_ns[run.schedule.end] - run.schedule.graph.time_ns[run.schedule.begin]
            )
        )
        .filter(~pl.col("op_class").is_in(["collective", "copy", "memset"]) & pl.col("t_min_ns").is_not_null())
        .group_by("label")
        .agg(loss=(pl.col("took") - pl.col("t_min_ns")).clip(0).sum())
        .filter(pl.col("loss") > 0)
        .sort("loss", "label", descending=[True, False])
    )
    names = losses["label"].head(_MOST_KERNELS).to_list()
    calls = run.ops.filter((pl.col("op_class") == "collective") & pl.col("collective").is_not_null())
    kinds = calls["collective"].unique().sort().to_list()
    known = set(calls.filter(pl.col("t_min_ns").is_not_null())["collective"])
    late = latest_rank(run)
    return [
        *([at_bound(None)] if names else []),
        *map(at_bound, names),
        *(predicted(kind) for kind in kinds if kind in known),
        *map(hidden, kinds),
        *([like_median(late)] if late is not None else []),
        *([LAUNCHES] if len(run.schedule.points) else []),
        *([SYNCS] if run.schedule.points["is_sync"].any() else []),
        *([INPUT] if len(run.schedule.inputs) else []),
        *([BUBBLE] if calls["collective"].is_in(PAIRS).any() else []),
    ]

"""Collectives matched over ranks, and the clocks of the ranks aligned on their completions (design, section 3)."""

import difflib
import itertools
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from tracegap.models.ops import CollectiveKind

SYNCHRONISING = {
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.BARRIER,
}
"""Kinds that end on all ranks together: their completions align clocks."""
_MIN_FOR_DRIFT = 8
_MAD_TO_SIGMA = 1.4826  # of a normal distribution
_DRIFT_MUST_EXPLAIN = 0.5  # part of the disagreement that a drift has to remove to be believed

CALL_SCHEMA = {
    "trace_id": pl.String,
    "op_id": pl.Int64,
    "device_id": pl.String,
    "rank": pl.Int64,
    "step": pl.Int64,
    "collective": pl.String,
    "group_id": pl.String,
    "group_size": pl.Int64,
    "seq": pl.Int64,
    "message_bytes": pl.Int64,
    "start_ns": pl.Int64,  # Unix time as the rank's clock has it
    "dur_ns": pl.Int64,
}
"""What matching needs of a collective on a rank."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How the clock of a trace is brought to the common one: common = t + offset + drift (t - anchor)."""

    offset_ns: int = 0
    drift: float = 0.0
    anchor_ns: int = 0
    residual_ns: int = 0
    """95th percentile of the disagreement of aligned completions, ns; nothing finer is said across ranks."""

    def common(self, t_ns: np.ndarray) -> np.ndarray:
        """Times of the trace on the common clock, ns."""
        return t_ns + self.offset_ns + np.rint(self.drift * (t_ns - self.anchor_ns)).astype(np.int64)


@dataclass(slots=True)
class Matched:
    """Matches of a run."""

    rows: pl.DataFrame
    """trace_id, op_id, instance_id, matched_by, arrival_ns (on the trace's own clock, Unix), last_rank."""
    clocks: dict[str, Clock] = field(default_factory=dict)
    """By trace_id, for traces that share a collective with another."""


def match(calls: pl.DataFrame) -> Matched:
    """Matches the collectives of a run over its participants (a device of a trace is one).

    By process group and sequence number where the traces have them; else by the order of (kind, size) within the
    group and the step; else not at all. A match whose parts do not overlap on the aligned clocks is none.

    Args:
        calls: columns of CALL_SCHEMA.
    """
    if not len(calls):
        return Matched(pl.DataFrame(schema=_ROWS))
    calls = calls.with_row_index("row").with_columns(
        pl.format("{}/{}", "trace_id", "device_id").alias("who"),
        pl.col("group_id").fill_null("?").alias("group"),
    )
    instance = np.full(len(calls), -1, dtype=np.int64)
    by = np.array(["no partner in the traces of this run"] * len(calls), dtype=object)
    numbers = itertools.count()
    for rows, how in _candidates(calls):
        if len(rows) > 1:
            instance[rows], by[rows] = next(numbers), how
    base = int(calls["start_ns"].min())  # type: ignore[arg-type]
    starts = calls["start_ns"].to_numpy() - base  # Unix times in ns do not fit the doubles of medians and fits
    ends = starts + calls["dur_ns"].to_numpy()
    traces = calls["trace_id"].to_numpy()
    ends_together = calls["collective"].is_in([k.value for k in SYNCHRONISING]).to_numpy()
    clocks = _align(instance, traces, ends, ends_together)
    common = {t: clocks.get(t, Clock()) for t in set(traces.tolist())}
    start_c, end_c = starts.copy(), ends.copy()
    for trace, clock in common.items():
        mine = traces == trace
        start_c[mine], end_c[mine] = clock.common(starts[mine]), clock.common(ends[mine])

    arrival = np.zeros(len(calls), dtype=np.int64)
    last = np.full(len(calls), -1, dtype=np.int64)
    ranks = calls["rank"].fill_null(-1).to_numpy()
    for rows in _groups(instance):
        residual = max(common[t].residual_ns for t in traces[rows])
        if start_c[rows].max() > end_c[rows].min() + residual:
            instance[rows], by[rows] = -1, "its parts do not overlap in time on the aligned clocks"
            continue
        latest = int(start_c[rows].max())
        spread = latest - int(start_c[rows].min())
        arrival[rows] = latest - (start_c[rows] - starts[rows])
        if spread > residual:  # nobody is called late by less than the clocks agree
            last[rows] = ranks[rows[int(np.argmax(start_c[rows]))]]
    matched = pl.Series(instance >= 0)
    result = calls.select("trace_id", "op_id").with_columns(
        instance_id=pl.when(matched).then(pl.Series(instance)),
        matched_by=pl.Series([str(b) for b in by]),
        arrival_ns=pl.when(matched).then(pl.Series(arrival) + base),
        last_rank=pl.when(matched & pl.Series(last >= 0)).then(pl.Series(last)),
    )
    return Matched(result, clocks)


_ROWS = {
    "trace_id": pl.String,
    "op_id": pl.Int64,
    "instance_id": pl.Int64,
    "matched_by": pl.String,
    "arrival_ns": pl.Int64,
    "last_rank": pl.Int64,
}


def _groups(instance: np.ndarray) -> list[np.ndarray]:
    """Row numbers of each instance."""
    order = np.argsort(instance, kind="stable")
    order = order[instance[order] >= 0]
    if not len(order):
        return []
    return np.split(order, np.flatnonzero(np.diff(instance[order])) + 1)


def _candidates(calls: pl.DataFrame) -> list[tuple[np.ndarray, str]]:
    """Row numbers that belong together, and how that is known."""
    with_seq = calls.filter(pl.col("seq").is_not_null() & (pl.col("group") != "?"))
    clear = with_seq.filter(pl.len().over("group", "seq", "who") == 1)
    found = [
        (part["row"].to_numpy(), "seq")
        for part in clear.partition_by("group", "seq", maintain_order=True)
        if part["collective"].n_unique() == 1
    ]
    taken = pl.Series("row", np.concatenate([r for r, _ in found]) if found else [], dtype=calls["row"].dtype)
    rest = calls.filter(~pl.col("row").is_in(taken.implode()) & pl.col("step").is_not_null())
    for part in rest.partition_by("group", "step", maintain_order=True):
        found += [(rows, "order") for rows in _by_order(part.sort("start_ns", "row"))]
    return found


def _by_order(part: pl.DataFrame) -> list[np.ndarray]:
    """Aligns every participant's sequence of (kind, size) with that of the first."""
    lists = {
        str(who): (list(zip(p["collective"], p["message_bytes"], strict=True)), p["row"].to_list())
        for (who,), p in part.partition_by("who", as_dict=True, maintain_order=True).items()
    }
    first, *others = sorted(lists)
    words, rows = lists[first]
    together: list[list[int]] = [[r] for r in rows]
    for who in others:
        theirs, their_rows = lists[who]
        if theirs == words:
            pairs = list(zip(range(len(words)), their_rows, strict=True))
        else:
            blocks = difflib.SequenceMatcher(None, words, theirs, autojunk=False).get_matching_blocks()
            pairs = [(b.a + i, their_rows[b.b + i]) for b in blocks for i in range(b.size)]
        for place, row in pairs:
            together[place].append(row)
    return [np.array(t, dtype=np.int64) for t in together]


def _align(instance: np.ndarray, traces: np.ndarray, ends: np.ndarray, ends_together: np.ndarray) -> dict[str, Clock]:
    """Offset and drift of each trace that shares completions, by least squares over the graph of shared instances."""
    usable = np.where(ends_together, instance, -1)
    shared: dict[str, list[tuple[int, int]]] = {}
    for rows in _groups(usable):
        by_trace = {t: int(ends[rows][traces[rows] == t].max()) for t in dict.fromkeys(traces[rows].tolist())}
        if len(by_trace) > 1:
            for t, end in by_trace.items():
                shared.setdefault(t, []).append((int(usable[rows[0]]), end))
    if not shared:
        return {}
    names = sorted(shared)
    times = {t: dict(pairs) for t, pairs in shared.items()}
    clocks = {t: Clock(offset_ns=o) for t, o in zip(names, _offsets(names, times), strict=True)}
    clocks = {t: clock if _believable(t, clocks, times) else Clock() for t, clock in clocks.items()}
    clocks = _with_drifts(names, clocks, times)
    return {t: _with_residual(t, clocks, times) for t in names}


def _offsets(names: list[str], times: dict[str, dict[int, int]]) -> list[int]:
    """Offsets that bring medians of shared completions together; each connected part keeps the clock of its first."""
    edges = []
    for a, b in itertools.combinations(range(len(names)), 2):
        common = times[names[a]].keys() & times[names[b]].keys()
        if common:
            gap = [times[names[a]][i] - times[names[b]][i] for i in common]
            edges.append((a, b, float(np.median(gap)), len(common)))
    rows = np.zeros((len(edges) + 1, len(names)))
    values = np.zeros(len(edges) + 1)
    for k, (a, b, difference, n) in enumerate(edges):
        weight = n**0.5
        rows[k, b], rows[k, a], values[k] = weight, -weight, difference * weight
    rows[-1, 0] = 1.0
    solved, *_ = np.linalg.lstsq(rows, values, rcond=None)
    return [round(float(x - solved[0])) for x in solved]


def _believable(name: str, clocks: dict[str, Clock], times: dict[str, dict[int, int]]) -> bool:
    """Whether an offset is larger than three standard errors of the completions that tell it; else clocks agree."""
    _, off = _disagreement(name, clocks, times)
    spread = _MAD_TO_SIGMA * float(np.median(np.abs(off - np.median(off))))
    return bool(abs(clocks[name].offset_ns) > 3 * spread / len(off) ** 0.5)


def _disagreement(
    trace: str, clocks: dict[str, Clock], times: dict[str, dict[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Times of a trace's shared completions, and how far the median of all traces is from each, ns."""
    mine = times[trace]
    t = np.array(list(mine.values()), dtype=np.int64)
    median = np.array(
        [np.median([int(clocks[o].common(np.array([times[o][i]]))[0]) for o in times if i in times[o]]) for i in mine]
    )
    return t, median - clocks[trace].common(t)


def _with_drifts(names: list[str], clocks: dict[str, Clock], times: dict[str, dict[int, int]]) -> dict[str, Clock]:
    """Adds drifts where they explain most of the disagreement; the first trace keeps its clock."""
    anchor = int(np.median([t for name in names for t in times[name].values()]))
    lines = {name: _drift(name, anchor, clocks, times) for name in names}
    if not any(slope or level for slope, level in lines.values()):
        return clocks
    slope_0, level_0 = lines[names[0]]
    return {
        name: Clock(clocks[name].offset_ns + round(level - level_0), slope - slope_0, anchor)
        for name, (slope, level) in lines.items()
    }


def _drift(name: str, anchor: int, clocks: dict[str, Clock], times: dict[str, dict[int, int]]) -> tuple[float, float]:
    """Slope and level of a trace's disagreement with the median of all, or zeros where a line does not explain it."""
    t, off = _disagreement(name, clocks, times)
    if len(t) < _MIN_FOR_DRIFT or not np.any(off) or np.ptp(t) == 0:
        return 0.0, 0.0
    slope, level = np.polyfit((t - anchor).astype(float), off, 1)
    left = off - (slope * (t - anchor) + level)
    if np.median(np.abs(left)) > (1 - _DRIFT_MUST_EXPLAIN) * np.median(np.abs(off)):
        return 0.0, 0.0
    return float(slope), float(level)


def _with_residual(trace: str, clocks: dict[str, Clock], times: dict[str, dict[int, int]]) -> Clock:
    clock = clocks[trace]
    _, off = _disagreement(trace, clocks, times)
    residual = int(np.ceil(np.percentile(np.abs(off), 95)))
    return Clock(clock.offset_ns, clock.drift, clock.anchor_ns, residual)

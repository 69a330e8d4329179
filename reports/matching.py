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
    instance, by = _instances(calls)
    base = int(calls["start_ns"].min())  # type: ignore[arg-type]
    starts = calls["start_ns"].to_numpy() - base  # Unix times in ns do not fit the doubles of medians and fits
    ends = starts + calls["dur_ns"].to_numpy()
    names = calls["trace_id"].unique().sort().to_list()
    trace = calls["trace_id"].replace_strict(names, range(len(names)), return_dtype=pl.Int64).to_numpy()
    ends_together = calls["collective"].is_in([k.value for k in SYNCHRONISING]).fill_null(value=False).to_numpy()
    clocks = _align(np.where(ends_together, instance, -1), trace, ends, names)
    common = [clocks.get(name, Clock()) for name in names]
    start_c, end_c = starts.copy(), ends.copy()
    for number, clock in enumerate(common):
        mine = trace == number
        start_c[mine], end_c[mine] = clock.common(starts[mine]), clock.common(ends[mine])

    arrival = np.zeros(len(calls), dtype=np.int64)
    last = np.full(len(calls), -1, dtype=np.int64)
    parts = Parts.of(instance)
    if len(parts.first):
        residual = parts.most(np.array([clock.residual_ns for clock in common])[trace])
        latest, apart = parts.most(start_c), parts.most(start_c) > parts.least(end_c) + residual
        instance[parts.rows[apart[parts.number]]] = -1
        by[parts.rows[apart[parts.number]]] = _APART
        arrival[parts.rows] = latest[parts.number] - (start_c - starts)[parts.rows]
        # Nobody is called late by less than the clocks agree.
        late = (latest - parts.least(start_c) > residual) & ~apart
        who_is_last = parts.first_where(start_c[parts.rows] == latest[parts.number])
        ranks = calls["rank"].fill_null(-1).to_numpy()[who_is_last]
        last[parts.rows] = np.where(late, ranks, -1)[parts.number]
    matched = pl.Series(instance >= 0)
    result = calls.select("trace_id", "op_id").with_columns(
        instance_id=pl.when(matched).then(pl.Series(instance)),
        matched_by=pl.Series(_HOW).gather(by),
        arrival_ns=pl.when(matched).then(pl.Series(arrival) + base),
        last_rank=pl.when(matched & pl.Series(last >= 0)).then(pl.Series(last)),
    )
    return Matched(result, clocks)


_ALONE, _SEQ, _ORDER, _APART = range(4)
_HOW = [
    "no partner in the traces of this run",
    "seq",
    "order",
    "its parts do not overlap in time on the aligned clocks",
]
"""`matched_by` in words."""


_ROWS = {
    "trace_id": pl.String,
    "op_id": pl.Int64,
    "instance_id": pl.Int64,
    "matched_by": pl.String,
    "arrival_ns": pl.Int64,
    "last_rank": pl.Int64,
}


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of each instance, side by side."""

    rows: np.ndarray
    """Rows with an instance, those of one together, each in their order."""
    first: np.ndarray
    """Place in `rows` of the first part of each instance."""
    number: np.ndarray
    """Number of the instance that each of `rows` is of, from 0."""

    @classmethod
    def of(cls, instance: np.ndarray) -> "Parts":
        """Of the instance of each row, -1 without one."""
        rows = np.argsort(instance, kind="stable")
        rows = rows[np.searchsorted(instance[rows], 0) :]
        new = np.ones(len(rows), dtype=np.bool_)
        new[1:] = instance[rows[1:]] != instance[rows[:-1]]
        return cls(rows, np.flatnonzero(new), np.cumsum(new) - 1)

    def most(self, values: np.ndarray) -> np.ndarray:
        """The largest value of a part, for each instance."""
        return np.maximum.reduceat(values[self.rows], self.first)

    def least(self, values: np.ndarray) -> np.ndarray:
        """The smallest."""
        return np.minimum.reduceat(values[self.rows], self.first)

    def first_where(self, mask: np.ndarray) -> np.ndarray:
        """The row of the first part of each instance that `mask` (over `rows`) marks."""
        places = np.flatnonzero(mask)
        return self.rows[places[np.unique(self.number[places], return_index=True)[1]]]


def _instances(calls: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Instance of each call, -1 without a partner, and how it was found, a place in `_HOW`."""
    instance = np.full(len(calls), -1, dtype=np.int64)
    by = np.full(len(calls), _ALONE, dtype=np.int64)
    with_seq = calls.lazy().filter(pl.col("seq").is_not_null() & (pl.col("group") != "?"))
    clear = with_seq.filter(pl.len().over("group", "seq", "who") == 1)
    agreed = clear.filter(pl.col("collective").n_unique().over("group", "seq") == 1).select("row", "group", "seq")
    numbered = agreed.with_columns(number=pl.struct("group", "seq").rank("dense"), parts=pl.len().over("group", "seq"))
    found = numbered.collect()
    several = found.filter(pl.col("parts") > 1)
    instance[several["row"].to_numpy()], by[several["row"].to_numpy()] = several["number"].to_numpy(), _SEQ
    rest = calls.join(found.select("row"), on="row", how="anti").filter(pl.col("step").is_not_null())
    in_order, others = _by_order(rest)
    first = int(instance.max(initial=0)) + 1
    instance[in_order["row"].to_numpy()], by[in_order["row"].to_numpy()] = in_order["number"].to_numpy() + first, _ORDER
    first = int(instance.max(initial=0)) + 1
    aligned = (rows for part in others for rows in _aligned(part.sort("start_ns", "row")) if len(rows) > 1)
    for number, rows in enumerate(aligned, start=first):
        instance[rows], by[rows] = number, _ORDER
    return instance, by


def _by_order(calls: pl.DataFrame) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
    """Calls that are the same by their place among those of each participant in a group and step: row, number.

    And the calls of each group and step in which the participants do not all call the same in the same order.
    """
    here = ["group", "step"]
    place = pl.int_range(pl.len()).over(*here, "who", order_by=["start_ns", "row"])
    placed = calls.with_columns(place=place, participants=pl.col("who").n_unique().over(here))
    what = pl.struct("collective", "message_bytes").n_unique().over(*here, "place")
    agree = (what == 1) & (pl.len().over(*here, "place") == pl.col("participants"))
    placed = placed.with_columns(agree=agree).with_columns(pl.col("agree").all().over(here))
    equal = placed.filter(pl.col("agree") & (pl.col("participants") > 1))
    number = pl.struct(*here, "place").rank("dense").cast(pl.Int64)
    others = placed.filter(~pl.col("agree")).partition_by(here, maintain_order=True)
    return equal.select("row", number=number), others


def _aligned(part: pl.DataFrame) -> list[np.ndarray]:
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


@dataclass(frozen=True, slots=True)
class _Completions:
    """When each of some traces completed each of the collectives that it shares with another, ns by its own clock."""

    names: list[str]
    times: np.ndarray
    """A row a collective, a column a trace."""
    there: np.ndarray
    """Whether a trace took part."""

    def disagreements(self, clocks: dict[str, Clock]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Each trace's completions, and how far the median of all traces is from each on the common clock, ns."""
        common = np.column_stack([clocks[name].common(self.times[:, i]) for i, name in enumerate(self.names)])
        ordered = np.sort(np.where(self.there, common, np.iinfo(np.int64).max), axis=1)
        rows, count = np.arange(len(common)), self.there.sum(axis=1)
        median = (ordered[rows, (count - 1) // 2] + ordered[rows, count // 2]) / 2
        return [(self.times[mine, i], median[mine] - common[mine, i]) for i, mine in enumerate(self.there.T)]


def _align(instance: np.ndarray, trace: np.ndarray, ends: np.ndarray, names: list[str]) -> dict[str, Clock]:
    """Offset and drift of each trace that shares completions, by least squares over the graph of shared instances."""
    rows = np.flatnonzero(instance >= 0)
    found, row = np.unique(instance[rows], return_inverse=True)
    times = np.full((len(found), len(names)), np.iinfo(np.int64).min)
    np.maximum.at(times, (row, trace[rows]), ends[rows])
    there = times > np.iinfo(np.int64).min
    shared = there.sum(axis=1) > 1
    used = np.flatnonzero(there[shared].any(axis=0))
    if not len(used):
        return {}
    completions = _Completions(
        [names[i] for i in used], np.where(there, times, 0)[shared][:, used], there[shared][:, used]
    )
    clocks = {t: Clock(offset_ns=o) for t, o in zip(completions.names, _offsets(completions), strict=True)}
    apart = completions.disagreements(clocks)
    clocks = {
        t: clock if _believable(clock, off) else Clock()
        for (t, clock), (_, off) in zip(clocks.items(), apart, strict=True)
    }
    clocks = _with_drifts(clocks, completions)
    apart = completions.disagreements(clocks)
    return {t: _with_residual(clock, off) for (t, clock), (_, off) in zip(clocks.items(), apart, strict=True)}


def _offsets(of: _Completions) -> list[int]:
    """Offsets that bring medians of shared completions together; each connected part keeps the clock of its first."""
    edges = []
    for a, b in itertools.combinations(range(len(of.names)), 2):
        both = of.there[:, a] & of.there[:, b]
        if both.any():
            edges.append((a, b, float(np.median(of.times[both, a] - of.times[both, b])), int(both.sum())))
    rows = np.zeros((len(edges) + 1, len(of.names)))
    values = np.zeros(len(edges) + 1)
    for k, (a, b, difference, n) in enumerate(edges):
        weight = n**0.5
        rows[k, b], rows[k, a], values[k] = weight, -weight, difference * weight
    rows[-1, 0] = 1.0
    solved, *_ = np.linalg.lstsq(rows, values, rcond=None)
    return [round(float(x - solved[0])) for x in solved]


def _believable(clock: Clock, off: np.ndarray) -> bool:
    """Whether an offset is larger than three standard errors of the completions that tell it; else clocks agree."""
    spread = _MAD_TO_SIGMA * float(np.median(np.abs(off - np.median(off))))
    return bool(abs(clock.offset_ns) > 3 * spread / len(off) ** 0.5)


def _with_drifts(clocks: dict[str, Clock], of: _Completions) -> dict[str, Clock]:
    """Adds drifts where they explain most of the disagreement; the first trace keeps its clock."""
    names = of.names
    anchor = int(np.median(of.times[of.there]))
    lines = {name: _drift(t, off, anchor) for name, (t, off) in zip(names, of.disagreements(clocks), strict=True)}
    if not any(slope or level for slope, level in lines.values()):
        return clocks
    slope_0, level_0 = lines[names[0]]
    return {
        name: Clock(clocks[name].offset_ns + round(level - level_0), slope - slope_0, anchor)
        for name, (slope, level) in lines.items()
    }


def _drift(t: np.ndarray, off: np.ndarray, anchor: int) -> tuple[float, float]:
    """Slope and level of a trace's disagreement with the median of all, or zeros where a line does not explain it."""
    if len(t) < _MIN_FOR_DRIFT or not np.any(off) or np.ptp(t) == 0:
        return 0.0, 0.0
    slope, level = np.polyfit((t - anchor).astype(float), off, 1)
    left = off - (slope * (t - anchor) + level)
    if np.median(np.abs(left)) > (1 - _DRIFT_MUST_EXPLAIN) * np.median(np.abs(off)):
        return 0.0, 0.0
    return float(slope), float(level)


def _with_residual(clock: Clock, off: np.ndarray) -> Clock:
    residual = int(np.ceil(np.percentile(np.abs(off), 95)))
    return Clock(clock.offset_ns, clock.drift, clock.anchor_ns, residual)

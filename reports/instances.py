"""Which calls of different ranks are one collective: by group and sequence number, by peer, by order, by completion.

None of it but the last needs clocks that agree.
"""

import difflib
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import polars as pl

from tracegap.models.ops import CollectiveKind
from tracegap.reports.parts import Parts

CALL_SCHEMA = {
    "trace_id": pl.String,
    "op_id": pl.Int64,
    "device_id": pl.String,
    "rank": pl.Int64,
    "step": pl.Int64,
    "collective": pl.String,
    "group_id": pl.String,
    "group_size": pl.Int64,
    "group_ranks": pl.String,
    "seq": pl.Int64,
    "message_bytes": pl.Int64,
    "peer": pl.Int64,
    "start_ns": pl.Int64,  # Unix time as the rank's clock has it
    "dur_ns": pl.Int64,
}
"""What matching needs of a collective on a rank."""

_OWN_SIZE = {CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND_RECV, CollectiveKind.GATHER, CollectiveKind.SCATTER}
"""Kinds whose size may differ from rank to rank."""
_LONGEST_TO_ALIGN = 3000
"""Calls of a rank in a step that differ from another's, above which only shifts are tried."""
_TOGETHER_NS = 20_000
"""Completions of one collective are at most so far apart, or a few times what the clocks leave."""
_CLEARLY = 0.2
"""A shift of sequence numbers is believed where it leaves so little of the disagreement of completions."""

_IN_STEP = 0.05
"""Ranks that do the same together keep their distance to so much of the time between two calls."""
_MOSTLY = 0.8
"""Part of the calls of a rank that has to agree in kind and time with another's."""
_MOST_DRIFT = 4e-4
"""By which two clocks may part."""


class How(StrEnum):
    """`matched_by` in words."""

    ALONE = "no partner in the traces of this run"
    SEQ = "seq"
    ORDER = "order"
    PAIR = "pair"
    SHIFTED = "seq, counted from different numbers"
    TIME = "time"
    APART = "its parts do not overlap in time on the aligned clocks"


_CODE = {how: code for code, how in enumerate(How)}


@dataclass(slots=True)
class Same:
    """The instance of each call, -1 without a partner, and how it was found, a place in `How`."""

    number: np.ndarray
    how: np.ndarray

    def add(self, rows: np.ndarray, number: np.ndarray, how: How) -> None:
        """Makes instances of rows by their numbers, counted on from those that there are."""
        if len(rows):
            _, dense = np.unique(number, return_inverse=True)
            self.number[rows] = dense + int(self.number.max(initial=-1)) + 1
            self.how[rows] = _CODE[how]

    def part(self, rows: np.ndarray) -> None:
        """What was matched to what it cannot be."""
        self.number[rows], self.how[rows] = -1, _CODE[How.APART]

    def join(self, found: list[tuple[np.ndarray, int]]) -> None:
        """Calls that belong to an instance that there is, or (-1) to a new one."""
        fresh = int(self.number.max(initial=-1)) + 1
        for rows, number in found:
            self.number[rows], self.how[rows] = (number if number >= 0 else fresh), _CODE[How.TIME]
            fresh += number < 0


def coded(calls: pl.DataFrame) -> pl.DataFrame:
    """The calls in numbers: row, who, group, what (kind and, where it is the same on all ranks, size), kind, and times."""
    own_size = pl.col("collective").is_in([k.value for k in _OWN_SIZE]).fill_null(value=False)
    paired = pl.col("collective").is_in([CollectiveKind.SEND.value, CollectiveKind.RECV.value]).fill_null(value=False)
    return calls.select(
        row=pl.int_range(pl.len(), dtype=pl.Int64),
        who=pl.struct("trace_id", "device_id").rank("dense").cast(pl.Int64),
        named=pl.col("group_id").is_not_null(),
        group=pl.col("group_id").fill_null("?").rank("dense").cast(pl.Int64),
        what=pl.struct("collective", pl.when(~own_size).then("message_bytes")).rank("dense").cast(pl.Int64),
        kind="collective",
        paired=paired & pl.col("peer").is_not_null() & pl.col("rank").is_not_null(),
        rank="rank",
        peer=_global_peer(calls),
        step="step",
        seq="seq",
        size="message_bytes",
        start="start_ns",
        end=pl.col("start_ns") + pl.col("dur_ns"),
    )


def _global_peer(calls: pl.DataFrame) -> pl.Series:
    """Ranks of the job of those that traces number within their group: where no rank of the group has that number."""
    peers = calls.select("peer", "rank", "group_ranks").unique().filter(pl.col("peer").is_not_null())
    told = []
    for peer, rank, text in peers.rows():
        ranks = [int(r) for r in text.strip("[] ").split(",")] if text and text.strip("[] ") else []
        local = ranks and (peer not in ranks or peer == rank) and 0 <= peer < len(ranks)
        told.append(ranks[peer] if local else peer)
    known = peers.with_columns(told=pl.Series(told, dtype=pl.Int64))
    on = ["peer", "rank", "group_ranks"]
    return calls.select(on).join(known, on=on, how="left", nulls_equal=True, maintain_order="left")["told"]


def of(calls: pl.DataFrame) -> Same:
    """Instances by everything but time.

    Args:
        calls: of `coded`.
    """
    same = Same(np.full(len(calls), -1, dtype=np.int64), np.full(len(calls), _CODE[How.ALONE], dtype=np.int64))
    _by_pair(calls.filter("paired"), same)
    rest = calls.filter(~pl.col("paired"))
    _by_seq(rest.filter(pl.col("seq").is_not_null() & pl.col("named")), same)
    left = rest.filter(pl.Series(same.number[rest["row"].to_numpy()] < 0) & pl.col("step").is_not_null())
    # A rank that numbers its calls has said what they are not: order is for those that do not.
    numbered = left.filter(pl.col("seq").is_not_null().all().over("group"))
    _by_order(left.filter(~pl.col("row").is_in(numbered["row"].implode())), same)
    _by_order(numbered, same)
    return same


def _by_pair(calls: pl.DataFrame, same: Same) -> None:
    """The n-th send of a rank to another in a step is the n-th receive of that one from it."""
    sends = pl.col("kind") == CollectiveKind.SEND.value
    ways = calls.with_columns(
        source=pl.when(sends).then("rank").otherwise("peer"), target=pl.when(sends).then("peer").otherwise("rank")
    )
    way = ["group", "source", "target", "step"]
    placed = ways.with_columns(place=pl.int_range(pl.len()).over(*way, "kind", order_by=["start", "row"]))
    both = placed.filter((pl.len().over(*way, "place") == 2) & (pl.col("kind").n_unique().over(*way, "place") == 2))
    number = both.select(pl.struct(*way, "place").rank("dense").cast(pl.Int64)).to_series().to_numpy()
    same.add(both["row"].to_numpy(), number, How.PAIR)


# ----------------------------------------------------------------------------------------------------- numbered calls


def _by_seq(calls: pl.DataFrame, same: Same) -> None:
    """By the number of the call in its group; where numbers begin again, counted from the last beginning."""
    if not len(calls):
        return
    mine = ["group", "who"]
    ordered = calls.sort(*mine, "start", "row")
    before, least = pl.col("seq").shift(1).over(mine), pl.col("seq").cum_min().over(mine)
    again = (pl.col("seq") < before) & (pl.col("seq") == least)
    ordered = ordered.with_columns(epoch=again.fill_null(value=False).cast(pl.Int64).cum_sum().over(mine))
    ordered = ordered.with_columns(epoch=pl.col("epoch").max().over(mine) - pl.col("epoch"))
    # Kernels of one call share its number: the first with the first.
    turn = pl.int_range(pl.len()).over(*mine, "epoch", "seq", order_by=["start", "row"])
    ordered = ordered.with_columns(turn=turn)
    moved = _unshifted(ordered)
    for part, how in ((moved.filter(~pl.col("shifted")), How.SEQ), (moved.filter("shifted"), How.SHIFTED)):
        key = ["group", "epoch", "seq", "turn"]
        agreed = part.filter((pl.col("kind").n_unique().over(key) == 1) & (pl.len().over(key) > 1))
        number = agreed.select(pl.struct(key).rank("dense").cast(pl.Int64)).to_series().to_numpy()
        same.add(agreed["row"].to_numpy(), number, how)


def _unshifted(calls: pl.DataFrame) -> pl.DataFrame:
    """Sequence numbers that ranks count from different calls, brought to the count of the group's first rank.

    Numbers are taken as they are where what they bring together is of one kind and runs at the same time, with the two
    clocks at any constant distance; else a shift is looked for that does better.
    """
    key = ["group", "epoch", "seq", "turn"]
    first = calls.filter(pl.col("who") == pl.col("who").min().over("group", "epoch"))
    there = calls.join(first.select(*key, what_1="what", start_1="start", end_1="end"), on=key, how="inner")
    mine = ["group", "epoch", "who"]
    ahead = (pl.col("end") - pl.col("end_1")).median().over(mine)
    slack = _MOST_DRIFT * (pl.col("end") - pl.col("end").median().over(mine)).abs()
    together = (pl.col("start_1") + ahead <= pl.col("end") + slack) & (
        pl.col("start") <= pl.col("end_1") + ahead + slack
    )
    seen = (
        there.with_columns(together=together)
        .group_by(mine)
        .agg(agree=(pl.col("what") == pl.col("what_1")).mean(), together=pl.col("together").mean())
    )
    doubt = (
        calls.select(mine)
        .unique()
        .join(seen, on=mine, how="left")
        .filter((pl.col("agree").fill_null(0) < _MOSTLY) | (pl.col("together").fill_null(0) < _MOSTLY))
    )
    shifts = []
    lists = first.partition_by("group", "epoch", as_dict=True, maintain_order=True) if len(doubt) else {}
    theirs = calls.join(doubt, on=mine, how="semi")
    for (group, epoch, who), part in theirs.partition_by(mine, as_dict=True, maintain_order=True).items():
        shift = _shift(lists[group, epoch], part)
        if shift:
            shifts.append((group, epoch, who, shift))
    schema = {"group": pl.Int64, "epoch": pl.Int64, "who": pl.Int64, "shift": pl.Int64}
    found = pl.DataFrame(shifts, schema=schema, orient="row")
    joined = calls.join(found, on=mine, how="left")
    return joined.with_columns(
        seq=pl.col("seq") + pl.col("shift").fill_null(0),
        shifted=pl.col("shift").is_not_null().any().over("group", "epoch"),
    )


def _shift(first: pl.DataFrame, other: pl.DataFrame) -> int:
    """What to add to the numbers of `other` to count as `first` does; 0 where no shift is clearly the right one.

    The distance of two clocks on what ranks did together changes by a drift only: with the right shift it keeps still, with
    a wrong one it follows the pauses between the calls.
    """
    seq, what, start, end = (first[c].to_numpy() for c in ("seq", "what", "start", "end"))
    seq_b, what_b, start_b, end_b = (other[c].to_numpy() for c in ("seq", "what", "start", "end"))
    place = np.full(int(seq.max() - seq.min()) + 1, -1, dtype=np.int64)
    place[seq - seq.min()] = np.arange(len(seq))
    least = max(5, min(len(seq), len(seq_b)) // 4)
    if len(other) < least:
        return 0
    pause = float(np.median(np.abs(np.diff(np.sort(end_b)))))
    as_it_is, found = _IN_STEP * pause / _CLEARLY, []
    for shift in range(int(seq.min() - seq_b.max()), int(seq.max() - seq_b.min()) + 1):
        at = seq_b + shift - seq.min()
        at = np.where((at >= 0) & (at < len(place)), place[np.clip(at, 0, len(place) - 1)], -1)
        b = np.flatnonzero(at >= 0)
        a = at[b]
        if len(b) < least:
            continue
        ahead = np.median(end_b[b] - end[a])
        spread = float(np.median(np.abs(end_b[b] - end[a] - ahead)))
        if shift == 0:
            as_it_is = spread
        slack = _MOST_DRIFT * np.abs(end_b[b] - np.median(end_b[b]))
        together = (start[a] + ahead <= end_b[b] + slack) & (start_b[b] <= end[a] + ahead + slack)
        if np.mean(what[a] == what_b[b]) >= _MOSTLY and np.mean(together) >= _MOSTLY:
            found.append((spread, shift))
    spread, shift = min(found, default=(np.inf, 0))
    return shift if spread <= _CLEARLY * as_it_is else 0


# ------------------------------------------------------------------------------------------------------ calls in order


def _by_order(calls: pl.DataFrame, same: Same) -> None:
    """Calls that are the same by their place among those of each participant in a group and step."""
    if not len(calls):
        return
    here = ["group", "step"]
    place = pl.int_range(pl.len()).over(*here, "who", order_by=["start", "row"])
    placed = calls.with_columns(place=place, participants=pl.col("who").n_unique().over(here))
    one = pl.col("what").n_unique().over(*here, "place") == 1
    agree = one & (pl.len().over(*here, "place") == pl.col("participants"))
    placed = placed.with_columns(agree=agree).with_columns(pl.col("agree").all().over(here))
    equal = placed.filter(pl.col("agree") & (pl.col("participants") > 1))
    number = equal.select(pl.struct(*here, "place").rank("dense").cast(pl.Int64)).to_series().to_numpy()
    same.add(equal["row"].to_numpy(), number, How.ORDER)
    for part in placed.filter(~pl.col("agree")).partition_by(here, maintain_order=True):
        together = [rows for rows in _aligned(part.sort("start", "row")) if len(rows) > 1]
        numbers = np.repeat(np.arange(len(together)), [len(rows) for rows in together])
        same.add(np.array([row for rows in together for row in rows], dtype=np.int64), numbers, How.ORDER)


def _aligned(part: pl.DataFrame) -> list[list[int]]:
    """Aligns every participant's sequence of (kind, size) with that of the first."""
    lists = {
        int(who): (p["what"].to_numpy(), p["row"].to_list())
        for (who,), p in part.partition_by("who", as_dict=True, maintain_order=True).items()
    }
    first, *others = sorted(lists)
    words, rows = lists[first]
    together: list[list[int]] = [[r] for r in rows]
    for who in others:
        theirs, their_rows = lists[who]
        for place, their_place in _common(words, theirs):
            together[place].append(their_rows[their_place])
    return together


def _common(a: np.ndarray, b: np.ndarray) -> list[tuple[int, int]]:
    """Places of a common subsequence: what is equal from the start and from the end, then the blocks between."""
    head = _equal(a, b)
    tail = _equal(a[head:][::-1], b[head:][::-1])
    pairs = [(i, i) for i in range(head)]
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    if len(middle_a) and len(middle_b) and max(len(middle_a), len(middle_b)) <= _LONGEST_TO_ALIGN:
        blocks = difflib.SequenceMatcher(None, middle_a.tolist(), middle_b.tolist(), autojunk=False)
        for block in blocks.get_matching_blocks():
            pairs += [(head + block.a + i, head + block.b + i) for i in range(block.size)]
    return pairs + [(len(a) - i, len(b) - i) for i in range(tail, 0, -1)]


def _equal(a: np.ndarray, b: np.ndarray) -> int:
    """How many of the first are equal."""
    short = min(len(a), len(b))
    return int(np.argmin(np.append(a[:short] == b[:short], False)))


# ------------------------------------------------------------------------------------------------------ calls by time


def by_time(
    calls: pl.DataFrame, same: Same, tied: np.ndarray, *, start: np.ndarray, end: np.ndarray, tolerance: np.ndarray
) -> list[tuple[np.ndarray, int]]:
    """Calls without a partner that end together on aligned clocks: rows, and the instance they join (-1: a new one).

    Of one group, step, kind and size, at most one of each participant, all running at once.
    """
    alone = tied & (same.number < 0)
    if not alone.any():
        return []
    gap = np.maximum(_TOGETHER_NS, tolerance)
    codes = (
        calls.select(pl.struct("group", "what", pl.col("step").fill_null(-1)).rank("dense").cast(pl.Int64))
        .to_series()
        .to_numpy()
    )
    wanted = np.isin(codes, np.unique(codes[alone])) & tied
    rows = np.flatnonzero(wanted)
    rows = rows[np.lexsort((end[rows], codes[rows]))]
    new = np.ones(len(rows), dtype=np.bool_)
    new[1:] = (codes[rows[1:]] != codes[rows[:-1]]) | (end[rows[1:]] - end[rows[:-1]] > gap[rows[1:]])
    cluster = np.full(len(calls), -1, dtype=np.int64)
    cluster[rows] = np.cumsum(new) - 1
    parts = Parts.of(cluster)
    who, number = calls["who"].to_numpy(), same.number
    bounds = np.append(parts.first, len(parts.rows))
    left = np.add.reduceat(alone[parts.rows].astype(np.int64), parts.first)
    found: list[tuple[np.ndarray, int]] = []
    for k in np.flatnonzero((left > 0) & (np.diff(bounds) > 1)).tolist():
        members = parts.rows[bounds[k] : bounds[k + 1]]
        numbers = np.unique(number[members][number[members] >= 0])
        one_each = len(np.unique(who[members])) == len(members)
        if one_each and len(numbers) <= 1 and start[members].max() <= end[members].min() + tolerance[members].max():
            found.append((members[number[members] < 0], int(numbers[0]) if len(numbers) else -1))
    return found

"""The groups of ranks of a run, and which axis of the mesh each is."""

import json

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.reports import axes
from tracegap.reports.axes import Traffic
from tracegap.reports.stage import Run

ORDER = 20
TABLES = ("collective_groups",)
_SCHEMA = {
    "run_id": pl.String, "group_id": pl.String, "group_size": pl.Int64, "group_ranks": pl.String, "axis": pl.String,
    "axis_source": pl.String, "calls": pl.Int64, "bytes": pl.Int64, "exposed_ns": pl.Int64,
}  # fmt: skip


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills collective_groups."""
    by_kind = store.frame_of(
        con,
        """
        with of_run as (
            select c.*, o.step from collectives c join ops o using (trace_id, op_id) join traces t using (trace_id)
            where t.run_id = $1 and c.group_id is not null
        ),
        of_size as (
            select group_id, collective, count(*) as alike from of_run group by group_id, collective, message_bytes
        ),
        most as (select group_id, collective, max(alike) as alike from of_size group by all)
        select
            group_id, collective, cast(any_value(group_ranks) as varchar) as group_ranks, max(group_size) as group_size,
            any_value(group_desc) as group_desc, count(*) as calls, cast(sum(message_bytes) as bigint) as bytes,
            count(distinct message_bytes) as sizes, any_value(most.alike) as alike,
            count(*) / count(distinct (trace_id, device_id, step)) as in_step,
            cast(sum(exposed_ns) as bigint) as exposed_ns, cast(sum(hidden_ns) as bigint) as hidden_ns,
            to_json(list(distinct [rank, peer]) filter (peer is not null and rank is not null)) as ways
        from of_run left join most using (group_id, collective)
        group by group_id, collective order by group_id, collective
        """,
        [run.run_id],
    )
    rows = []
    for (group_id,), kinds in by_kind.partition_by("group_id", as_dict=True, maintain_order=True).items():
        traffic = _traffic(kinds)
        axis, source = axes.axis_of(traffic, run.mesh, run.config, run.world_size)
        rows.append(
            {
                "run_id": run.run_id, "group_id": group_id, "group_size": traffic.size,
                "group_ranks": kinds["group_ranks"].drop_nulls().first(), "axis": axis, "axis_source": source,
                "calls": int(kinds["calls"].sum()), "bytes": _sum(kinds["bytes"]), "exposed_ns": _sum(kinds["exposed_ns"]),
            }
        )  # fmt: skip
    if rows:
        store.insert(con, "collective_groups", pl.DataFrame(rows, schema=_SCHEMA))


def _sum(values: pl.Series) -> int | None:
    known = values.drop_nulls()
    return int(known.sum()) if len(known) else None


def _traffic(kinds: pl.DataFrame) -> Traffic:
    """From the rows of one group, one a kind of collective."""
    text = kinds["group_ranks"].drop_nulls().first()
    ranks = tuple(json.loads(text)) if isinstance(text, str) else None
    size = kinds["group_size"].drop_nulls().max()
    named = kinds.filter(pl.col("collective").is_not_null())

    def by_kind(column: str) -> dict[str, float]:
        return dict(zip(named["collective"], named[column].fill_null(0), strict=True))

    hidden, exposed = int(kinds["hidden_ns"].fill_null(0).sum()), int(kinds["exposed_ns"].fill_null(0).sum())
    ways = {tuple(way) for text in kinds["ways"].drop_nulls() for way in json.loads(text)}
    return Traffic(
        ranks=ranks,
        size=len(ranks) if ranks else int(size) if isinstance(size, int) else None,
        calls={kind: int(n) for kind, n in by_kind("calls").items()},
        sizes={kind: int(n) for kind, n in by_kind("sizes").items()},
        most_of_one_size={kind: int(n) for kind, n in by_kind("alike").items()},
        calls_in_step=by_kind("in_step"),
        hidden_frac=hidden / (hidden + exposed) if hidden + exposed else None,
        ring=_goes_round(ways, ranks) if ways else None,
        desc=kinds["group_desc"].drop_nulls().first(),  # type: ignore[arg-type]
    )


def _goes_round(ways: set[tuple[int, ...]], ranks: tuple[int, ...] | None) -> bool:
    """Whether the first and the last rank of more than two speak to each other; in a pipeline they do not."""
    ends = {min(ranks), max(ranks)} if ranks else {min(map(min, ways)), max(map(max, ways))}
    return len({rank for way in ways for rank in way}) > 2 and any(set(way) == ends for way in ways)

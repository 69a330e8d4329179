"""Collectives whose messages are so small that latency takes longer than the transfer."""

from typing import Any

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.models import collectives
from tracegap.models.errors import TracegapError
from tracegap.models.ops import CollectiveKind
from tracegap.reports.finding import Rule
from tracegap.reports.predictions import fabric_of, predict
from tracegap.reports.stage import Run

_KEY = ["hardware", "collective", "group_size", "group_ranks"]
_SQL = """
select hardware, collective, group_size, group_ranks::varchar as group_ranks, message_bytes, count(*) as calls,
       cast(sum(comm_inefficiency_ns) as bigint) as slow_ns, cast(sum(comm_minimum_ns) as bigint) as least_ns,
       cast(sum(predicted_ns) as bigint) as predicted_ns, list(unit) as units
from typical_op
where state = 'exposed_comm' and predicted_ns is not null and message_bytes > 0
  and collective in ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'broadcast')
group by all order by all
"""
_LEAST_CALLS = 4


def _small(con: duckdb.DuckDBPyConnection, run_id: str) -> pl.DataFrame:
    """Messages in the latency regime of each group of ranks, against one message of their total size."""
    topology = Run.load(con, run_id).topology
    calls = store.frame_of(con, _SQL)
    ((n,),) = con.execute("select n from typical_size").fetchall()
    rows = []
    for (chip, kind, ranks, group), own in calls.partition_by(_KEY, as_dict=True, maintain_order=True).items():
        below = _latency_bound_below_bytes(chip, kind, ranks, group, topology)
        small = own.filter(pl.col("message_bytes") < below) if below else own.clear()
        total = int((small["message_bytes"] * small["calls"]).sum()) // n
        once_ns, _ = predict(chip, kind, total, ranks, group, topology=topology)
        if small["calls"].sum() < _LEAST_CALLS * n or once_ns is None:
            continue
        predicted_ns = int(small["predicted_ns"].sum())
        exposed_ns = int((small["slow_ns"] + small["least_ns"]).sum())
        rest = once_ns * n / predicted_ns  # the part of their minimum that one message of all of it needs
        rows.append(
            {
                "collective": kind, "group_size": ranks, "calls": small["calls"].sum() / n,
                "mean_bytes": total * n / small["calls"].sum(), "below_bytes": below,
                "latency_percent": 100 * (1 - rest), "exposed_ns": exposed_ns // n, "merged_ns": once_ns,
                "comm_inefficiency_saves_ns": int(small["slow_ns"].sum()) // n,
                "comm_minimum_saves_ns": max(0, round(int(small["least_ns"].sum()) * (1 - rest) / n)),
                "units": small["units"].explode(),
            }
        )  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def _latency_bound_below_bytes(
    chip: str, kind: str, ranks: int, group: str | None, topology: dict[str, Any]
) -> float | None:
    try:
        fabric = fabric_of(chip, ranks, group, topology)
    except TracegapError:
        return None
    return collectives.latency_bound_below_bytes(CollectiveKind(kind), ranks, fabric)


RULE = Rule(
    sentence="{calls:.0f} {collective} a step over {group_size} ranks are of {mean_bytes:bytes} on average: "
    "below {below_bytes:bytes} latency takes longer than the transfer; {exposed_ns:ns} a step of them is "
    "exposed, one message of all would need {merged_ns:ns}: use larger buckets",
    query=_small,
    draws=("comm_inefficiency", "comm_minimum"),
    config="bucket_(cap|size|mb)|coalesc|fusion_threshold|combine_threshold",
)

"""Spans of host threads of one trace out of the store: numbers in place of names, only those that matter."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest import store
from tracegap.ingest.intervals import Ints

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class HostSpans:
    """Spans with a length, in the order of the file."""

    names: list[str]
    """Of each label."""
    kinds: list[str]
    """Likewise."""
    spans: pl.DataFrame
    """event_id, thread, start_ns, dur_ns, label."""

    @property
    def end_ns(self) -> Ints:
        """End of each span."""
        end: Ints = self.spans["start_ns"].to_numpy() + self.spans["dur_ns"].to_numpy()
        return end


def load(
    con: duckdb.DuckDBPyConnection,
    trace_id: str,
    threads: Collection[str],
    wanted: Callable[[Ints, Ints], Mask],
    *,
    overhead: bool = False,
) -> HostSpans:
    """The spans of some threads for which `wanted(start, end)` holds; with `overhead` those of this kind on any thread."""
    where = "trace_id = $1 and (list_contains($2, thread) or (kind = 'overhead' and $3)) and dur_ns > 0 and kind <> 'memory'"
    asked = [trace_id, sorted(threads), overhead]
    con.execute(
        f"""
        create or replace temp table host_labels as
        select cast(row_number() over (order by name, kind) - 1 as integer) as label, name, kind
        from (select distinct name, kind from host_events where {where})
        """,
        asked,
    ).fetchall()
    labels = store.frame_of(con, "select name, kind from host_labels order by label")
    spans = store.frame_of(
        con,
        f"""
        select event_id, thread, start_ns, dur_ns, label from host_events join host_labels using (name, kind)
        where {where}
        """,
        asked,
    )
    con.execute("drop table host_labels").fetchall()
    start = spans["start_ns"].to_numpy()
    spans = spans.filter(pl.Series(wanted(start, start + spans["dur_ns"].to_numpy()))).sort("event_id")
    return HostSpans(labels["name"].to_list(), labels["kind"].to_list(), spans)

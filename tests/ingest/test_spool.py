"""What goes into a spool comes out of it, from memory or from disk."""

from pathlib import Path

import polars as pl
import pytest

from tracegap.ingest import spool
from tracegap.ingest.trace import HOST_EVENTS


def events(first, n, kind):
    rows = [dict.fromkeys(HOST_EVENTS) | {"event_id": first + i, "kind": kind, "start_ns": i} for i in range(n)]
    return pl.DataFrame(rows, schema=HOST_EVENTS)


@pytest.mark.parametrize("in_memory", [5, 1000])
def test_all_events_come_out_in_order_and_the_files_go(monkeypatch, in_memory):
    monkeypatch.setattr(spool, "_ROWS_IN_MEMORY", in_memory)
    with spool.Spool() as s:
        for k in range(4):
            s.write(events(10 * k, 4, "sync" if k % 2 else "op"))
        folder = s._folder.name if s._folder else None
        assert (folder is not None) == (in_memory == 5)
        assert pl.concat(s.frames())["event_id"].to_list() == [10 * k + i for k in range(4) for i in range(4)]
        assert s.waits()["event_id"].to_list() == [10, 11, 12, 13, 30, 31, 32, 33]
        assert s.rows == 16
    assert folder is None or not Path(folder).exists()


def test_an_empty_spool_has_no_waits():
    with spool.Spool() as s:
        assert list(s.frames()) == []
        assert s.waits().schema == pl.DataFrame(schema=HOST_EVENTS).schema

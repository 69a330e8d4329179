"""Exposed communication split into waiting for the last rank, waiting for a sender, and the unavoidable minimum."""

import duckdb
import numpy as np
import polars as pl

from tracegap.ingest import account, store
from tracegap.models.ops import State
from tracegap.reports.stage import Run

ORDER = 30
TABLES = ("comm_windows",)
_PIPELINE = ("recv", "send_recv")  # with a known peer: RCCL and NCCL also run all-to-all under the name of send_recv


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills comm_windows."""
    for (trace_id, device_id), own in _devices_with_comm(con, run.run_id):
        store.insert(con, "comm_windows", _split_waits(con, trace_id, device_id, own))


def _devices_with_comm(con: duckdb.DuckDBPyConnection, run_id: str) -> list[tuple[tuple[str, str], pl.DataFrame]]:
    """Exposed pieces of communication of a run, by trace and device."""
    own = store.frame_of(
        con,
        """
        select w.trace_id, w.device_id, w.op_id, w.step, w.share_ns, o.start_ns, o.dur_ns, s.start_ns as win_start_ns,
               s.start_ns + s.wall_ns as win_end_ns, m.arrival_ns, m.predicted_ns,
               c.collective, c.peer
        from op_windows w
        join ops o using (trace_id, op_id)
        join collectives c using (trace_id, op_id)
        join steps s on s.trace_id = w.trace_id and s.device_id = w.device_id and s.step = w.step
        join collective_matches m using (trace_id, op_id)
        where s.run_id = ? and w.state = ?
        order by w.trace_id, w.device_id, w.op_id, s.start_ns
        """,
        [run_id, State.EXPOSED_COMM.value],
    )
    parts = own.partition_by(["trace_id", "device_id"], as_dict=True, maintain_order=True)
    return [((str(t), str(d)), frame) for (t, d), frame in parts.items()]


def _split_waits(con: duckdb.DuckDBPyConnection, trace_id: str, device_id: str, own: pl.DataFrame) -> pl.DataFrame:
    """Splits the exposed share of each piece into wait, pipeline wait and minimum; the rest is inefficiency.

    The wait is the share of the instants before the arrival; of the rest, the predicted time is the minimum. An
    operation in two windows spends its predicted time in the first of them first.
    """
    share = own["share_ns"].to_numpy()
    wait = np.zeros(len(own), dtype=np.int64)
    if own["arrival_ns"].null_count() < len(own):
        ops = store.frame_of(
            con,
            "select start_ns, dur_ns, op_class from ops where trace_id = ? and device_id = ?",
            [trace_id, device_id],
        )
        starts = ops["start_ns"].to_numpy()
        ends = starts + ops["dur_ns"].to_numpy()
        line = account.Timeline.of(starts, ends, account.states_of(ops["op_class"]), np.empty(0, dtype=np.int64))
        start = own["start_ns"].to_numpy()
        begin = np.maximum(start, own["win_start_ns"].to_numpy())
        end = np.minimum(start + own["dur_ns"].to_numpy(), own["win_end_ns"].to_numpy())
        until = np.clip(own["arrival_ns"].fill_null(np.iinfo(np.int64).min).to_numpy(), begin, np.maximum(begin, end))
        state = np.full(len(own), account.WORK_STATES.index(State.EXPOSED_COMM), dtype=np.int64)
        wait = np.clip(np.rint(line.own_time(begin, until, state)).astype(np.int64), 0, share)
    after = own.select("op_id", predicted=pl.col("predicted_ns").fill_null(0), rest_ns=pl.Series(share - wait))
    spent = pl.col("rest_ns").cum_sum().over("op_id") - pl.col("rest_ns")  # in the windows before
    least = pl.max_horizontal(pl.min_horizontal("rest_ns", pl.col("predicted") - spent), 0)
    minimum = after.select(least).to_series().to_numpy()
    pipeline = (own["collective"].is_in(_PIPELINE).fill_null(value=False) & own["peer"].is_not_null()).to_numpy()
    return own.select("trace_id", "op_id", "device_id", "step").with_columns(
        wait_ns=pl.Series(np.where(pipeline, 0, wait)),
        pipeline_ns=pl.Series(np.where(pipeline, wait, 0)),
        minimum_ns=pl.Series(minimum),
    )

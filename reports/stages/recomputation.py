"""Operations of the forward pass that ran again for the backward pass: activation checkpointing, by XLA and by PyTorch."""

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest import store
from tracegap.reports.stage import Run

ORDER = 35
TABLES = ("recomputed_ops",)

FORWARD_ONLY = (
    "aten::linear", "aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_cudnn_attention", "aten::conv1d",
    "aten::conv2d", "aten::conv3d", "aten::layer_norm", "aten::rms_norm", "aten::group_norm", "aten::batch_norm",
    "aten::dropout", "aten::embedding", "aten::gelu", "aten::silu", "aten::relu", "aten::softmax",
)  # fmt: skip
"""Operators that no formula of a derivative calls (PyTorch, derivatives.yaml): below a node of the backward pass, they are
a forward pass run again."""

# JAX names what a checkpoint computes again by a scope of its own, XLA's own pass marks the instruction; xprof knows both
# by the same two signs (xla_op_utils.h). What is transposed inside of the scope is the backward pass itself.
_BY_SCOPE = """
insert into recomputed_ops by name
select
    o.trace_id, o.op_id, o.device_id, o.step,
    case when contains(o.framework_op, '/rematted_computation/') then 'scope' else 'compiler' end as recognised_by
from ops o join traces t using (trace_id)
where t.run_id = ? and t.format in ('xspace', 'xla_chrome')
  and ((contains(o.framework_op, '/rematted_computation/')
        and not regexp_matches(o.framework_op, 'rematted_computation/.*transpose\\('))
       or contains(o.name, '.remat'))
"""
_NODE, _ENGINE, _CHECKPOINT, _AGAIN, _OPERATOR = 1, 2, 4, 8, 16
_TRACES = """
select distinct h.trace_id
from host_events h join traces t using (trace_id)
where t.run_id = ? and h.kind = 'op' and starts_with(h.name, 'autograd::engine::evaluate_function')
order by 1
"""
_EVENTS = f"""
select
    event_id, coalesce(parent_id, -1) as parent_id, thread, start_ns, start_ns + dur_ns as end_ns, hash(name) as name,
    cast(case
        when kind = 'op' and starts_with(name, 'autograd::engine::evaluate_function')
            then {_NODE | _ENGINE} + case when contains(name, 'Checkpoint') then {_CHECKPOINT} else 0 end
        when kind = 'op' and contains(name, 'Backward') and not starts_with(name, 'aten::')
            then {_NODE} + case when contains(name, 'Checkpoint') then {_CHECKPOINT} else 0 end
        when kind = 'op' then {_OPERATOR}
        when kind = 'module' then {_AGAIN}
        when kind = 'python' and contains(name, 'torch/utils/checkpoint.py')
             and (ends_with(name, ': recompute_fn') or ends_with(name, ': unpack_hook')) then {_AGAIN}
        else 0 end as utinyint) as flags
from host_events
where trace_id = ? and dur_ns is not null
order by event_id
"""
_LAUNCHED = """
select op_id, device_id, step, launch_thread as thread, launch_ns, framework_op, shapes, hash(framework_op) as own_name
from ops
where trace_id = ? and launch_ns is not null and launch_thread is not null
  and op_class not in ('collective', 'copy', 'memset')
"""


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills recomputed_ops."""
    con.execute(_BY_SCOPE, [run.run_id]).fetchall()
    names = store.frame_of(con, "select hash(unnest(?::varchar[])) as name", [list(FORWARD_ONLY)])
    for (trace_id,) in con.execute(_TRACES, [run.run_id]).fetchall():
        events = store.frame_of(con, _EVENTS, [trace_id])
        ops = store.frame_of(con, _LAUNCHED, [trace_id])
        found = recomputed(events, ops, names["name"])
        store.insert(con, "recomputed_ops", found.with_columns(trace_id=pl.lit(trace_id)))


def recomputed(events: pl.DataFrame, ops: pl.DataFrame, forward_only: pl.Series) -> pl.DataFrame:
    """Operations that ran again, as rows op_id, device_id, step, recognised_by.

    Args:
        events: host events by event_id: parent_id, thread, start_ns, end_ns, name (a hash), flags.
        ops: operations with their launch: op_id, device_id, step, thread, launch_ns, framework_op, shapes, own_name.
        forward_only: hashes of FORWARD_ONLY.
    """
    places = ops.with_columns(
        **_climb(events, _innermost(events, ops)),
    ).with_columns(operator=pl.coalesce("operator", "own_name"))
    key = ["device_id", "step", "operator", "framework_op", "shapes"]
    before = places.filter(pl.col("node") < 0).select(key).unique()
    back = places.filter(pl.col("node") >= 0)
    repeats = back.join(before, on=key, how="semi", nulls_equal=True)
    # An equal shape alone may be chance (a square weight); an operator that only a forward pass calls is none.
    nodes = repeats.filter(pl.col("operator").is_in(forward_only.implode()))["node"].unique()
    repeated = pl.col("op_id").is_in(repeats["op_id"].implode()) & pl.col("node").is_in(nodes.implode())
    why = pl.when("checkpoint").then(pl.lit("checkpoint")).when("again").then(pl.lit("module"))
    named = back.with_columns(recognised_by=why.when(repeated).then(pl.lit("operator")))
    return named.filter(pl.col("recognised_by").is_not_null()).select("op_id", "device_id", "step", "recognised_by")


def _innermost(events: pl.DataFrame, ops: pl.DataFrame) -> NDArray[np.int64]:
    """Row of the innermost event of its thread around each launch; -1 where there is none."""
    numbers = {name: i for i, name in enumerate(events["thread"].unique(maintain_order=True))}
    threads = events["thread"].replace_strict(numbers, return_dtype=pl.Int64).to_numpy()
    of_ops = ops["thread"].replace_strict(numbers, default=-1, return_dtype=pl.Int64).to_numpy()
    start, end, launch = (c.to_numpy() for c in (events["start_ns"], events["end_ns"], ops["launch_ns"]))
    rows = _row_of(events)
    found = np.full(len(ops), -1, dtype=np.int64)
    for number in range(len(numbers)):
        mine = np.flatnonzero(threads == number)
        mine = mine[np.argsort(start[mine], kind="stable")]
        asked = np.flatnonzero(of_ops == number)
        at = np.searchsorted(start[mine], launch[asked], side="right") - 1
        found[asked] = np.where(at >= 0, mine[at], -1)
    # The last to start may have ended before: then one of those around it is meant.
    out = np.flatnonzero((found >= 0) & (end[found] < launch))
    while len(out):
        found[out] = rows[events["parent_id"].to_numpy()[found[out]]]
        out = out[(found[out] >= 0) & (end[found[out]] < launch[out])]
    return found


def _row_of(events: pl.DataFrame) -> NDArray[np.int64]:
    """Row of each event_id; -1 where there is none, and at the end, where index -1 finds it."""
    ids = events["event_id"].to_numpy()
    rows = np.full((int(ids[-1]) if len(ids) else 0) + 2, -1, dtype=np.int64)
    rows[ids] = np.arange(len(ids))
    return rows


def _climb(events: pl.DataFrame, innermost: NDArray[np.int64]) -> dict[str, pl.Series]:
    """What encloses each launch, up to its node of the backward pass or the top.

    `operator`: name of the outermost operator below the node, None without one; `node`: row of the node, -1 in a forward
    pass; `again`: a module or a checkpoint's frame lies between; `checkpoint`: the node is that of a checkpoint.
    """
    parent = _row_of(events)[events["parent_id"].to_numpy()]
    flags, name = events["flags"].to_numpy(), events["name"].to_numpy()
    starts, back = np.unique(innermost, return_inverse=True)  # kernels of one operator climb once
    node = np.full(len(starts), -1, dtype=np.int64)
    operator = np.full(len(starts), -1, dtype=np.int64)
    again, checkpoint = np.zeros(len(starts), dtype=bool), np.zeros(len(starts), dtype=bool)
    rows = np.flatnonzero(starts >= 0)
    at = starts[rows]
    while len(rows):
        flag = flags[at]
        is_node, in_node = flag & _NODE > 0, node[rows] >= 0
        going = ~in_node | is_node
        rows, at, flag, is_node = rows[going], at[going], flag[going], is_node[going]
        node[rows[is_node]] = at[is_node]
        checkpoint[rows[flag & _CHECKPOINT > 0]] = True
        operator[rows[flag & _OPERATOR > 0]] = at[flag & _OPERATOR > 0]
        again[rows[flag & _AGAIN > 0]] = True
        going = (flag & _ENGINE == 0) & (parent[at] >= 0)
        rows, at = rows[going], parent[at[going]]
    operator, node = operator[back], node[back]
    named = pl.Series(name[operator]) if len(name) else pl.Series(np.zeros(len(back), dtype=np.uint64))
    return {
        "operator": pl.select(pl.when(pl.Series(operator >= 0)).then(named)).to_series(),
        "node": pl.Series(node),
        "again": pl.Series(again[back] & (node >= 0)),
        "checkpoint": pl.Series(checkpoint[back]),
    }

"""What the store says of simulated traces, as the truth.json beside them says it.

Two kinds are known: that of `sample_traces/_sim` (every bucket of every step) and that of generators whose truth lies
under `ranks` (counts, unions and waits by rank and step). Unions are taken here by the plainest sweep, not by the product.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb

from tracegap.reports.buckets import COLUMNS

STATES = ("wall_ns", "compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
COMPUTE = ("useful_math + recompute_math", "memory_bound", "kernel_inefficiency", "unmodelled_compute")
Pair = tuple[Any, Any]
"""Measured, and true."""


def of(folder: Path) -> dict[str, Any]:
    """The truth of a folder."""
    return json.loads((folder / "truth.json").read_text())


def names(truth: dict[str, Any]) -> list[str]:
    """The checks that a truth allows.

    Raises:
        ValueError: it is of no known kind.
    """
    if "ranks" in truth:
        return ["planes"] if truth["kind"] == "xspace" else ["ranks", "windows"]
    if "buckets" in truth.get("steps", [{}])[0]:
        return ["steps", "shares", "collectives", "costs"]
    raise ValueError(f"no known kind of truth: {sorted(truth)}")


def rows(con: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    cursor = con.execute(sql)
    columns = [c[0] for c in cursor.description]
    return [dict(zip(columns, values, strict=True)) for values in cursor.fetchall()]


# ---------------------------------------------------------------------------------- truth of sample_traces/_sim


def by_device(truth: dict[str, Any], row: dict[str, Any]) -> tuple[str, int]:
    """Rank or device, and step, as the rows of the truth name them."""
    return str(row["rank"] if "rank" in truth["steps"][0] else row.get("device", row.get("device_id"))), row["step"]


def steps(con: duckdb.DuckDBPyConnection, run_id: str, truth: dict[str, Any]) -> Iterator[Pair]:
    """Start, states and buckets; buckets that rest on what a format does not carry as the sum that it does."""
    found = {
        by_device(truth, row): row
        for row in rows(
            con,
            f"select g.rank, g.device_id, g.step, g.start_ns + t.origin_unix_ns as start_unix_ns, {', '.join(STATES)}, "
            f"{', '.join(c for c in COLUMNS if c not in STATES)} from step_gap g join traces t using (trace_id) "
            f"where g.run_id = '{run_id}'",
        )
    }
    (form,) = con.execute("select distinct format from traces where run_id = ?", [run_id]).fetchall()[0]
    # NVTX ranges carry no dtypes of elementwise operations: their cost is unknown, and only the sum is sure.
    sums = [*truth["exact"], *([" + ".join(COMPUTE)] if form == "nsys" else COMPUTE)]
    yield sorted(found), sorted(by_device(truth, row) for row in truth["steps"])
    for row in truth["steps"]:
        got = found[by_device(truth, row)]
        yield got["start_unix_ns"], truth["origin_unix_ns"] + row["start_ns"]
        yield {s: got[s] for s in STATES}, {s: row[s] for s in STATES}
        for terms in sums:
            parts = [f"{term}_ns" for term in terms.split(" + ")]
            yield (
                (row["step"], terms, sum(got[p] for p in parts)),
                (row["step"], terms, sum(row["buckets"][p] for p in parts)),
            )


def shares(con: duckdb.DuckDBPyConnection, run_id: str, truth: dict[str, Any]) -> Iterator[Pair]:
    """Compute time of each step and device by operation of the framework, in shares."""
    found: dict[tuple[str, int], dict[str, int]] = {}
    for row in rows(
        con,
        f"""
        select coalesce(d.ordinal, t.rank) as rank, w.device_id, w.step, coalesce(o.framework_op, split_part(o.name, ' = ', 1))
               as label, sum(w.share_ns)::bigint as share_ns
        from op_windows w join ops o using (trace_id, op_id) join traces t using (trace_id)
        join devices d on d.trace_id = w.trace_id and d.device_id = w.device_id
        where t.run_id = '{run_id}' and w.state = 'compute' group by all
        """,
    ):
        found.setdefault(by_device(truth, row), {})[row["label"]] = row["share_ns"]
    for row in truth["steps"]:
        mine, true = found[by_device(truth, row)], row["shares_ns"]
        # A name that a format does not carry leaves the sums: those of one operation each.
        yield sorted(mine.values()), sorted(true.values())
        yield sum(mine.values()), row["compute_ns"]


def collectives(con: duckdb.DuckDBPyConnection, run_id: str, truth: dict[str, Any]) -> Iterator[Pair]:
    """Waiting, transfer and exposure of each collective on each rank; bandwidth and prediction where it has a size.

    On one rank alone nobody waits, all of the duration is transfer, and there is nothing to predict.
    """
    alone = len(truth["collectives"][0]["wait_ns"]) == 1
    found = rows(
        con,
        f"""
        select any_value(g.step) as step, any_value(g.collective) as collective, any_value(g.message_bytes) as message_bytes,
               any_value(g.predicted_ns) as predicted_ns, list(coalesce(g.wait_ns, 0) order by g.rank) as wait_ns,
               list(coalesce(g.transfer_ns, g.dur_ns) order by g.rank) as transfer_ns,
               list(o.share_ns order by g.rank) as exposed_ns,
               list(round(g.busbw_gb_per_s, 6) order by g.rank) as busbw_gb_per_s, min(g.start_ns) as first_ns
        from collective_gap g join ops o using (trace_id, op_id)
        where g.run_id = '{run_id}' and (g.instance_id is not null or {alone})
        group by coalesce(g.instance_id, g.op_id) order by step, first_ns
        """,
    )
    keys = ("step", "collective", "wait_ns", "transfer_ns", "exposed_ns")
    yield sorted([r[k] for k in keys] for r in found), sorted([r[k] for k in keys] for r in truth["collectives"])
    sized = {(r["step"], r["message_bytes"], *r["wait_ns"]): r for r in found if r["message_bytes"] is not None}
    true = {(r["step"], r["message_bytes"], *r["wait_ns"]): r for r in truth["collectives"]}
    for key, row in sized.items():
        if not alone:
            yield row["busbw_gb_per_s"], true[key]["busbw_gb_per_s"]
            yield row["predicted_ns"], true[key]["predicted_ns"]


def costs(con: duckdb.DuckDBPyConnection, run_id: str, truth: dict[str, Any]) -> Iterator[Pair]:
    """FLOPs, bytes and bounds of the first device's operations, where their cost is known."""
    found = rows(
        con,
        f"""
        with first as (
            select trace_id, device_id from steps where run_id = '{run_id}' order by rank, device_id limit 1
        )
        select coalesce(framework_op, split_part(name, ' = ', 1)) as op, count(*) as calls, flops, bytes, t_math_ns, t_min_ns
        from op_gap semi join first using (trace_id, device_id)
        where op_class not in ('collective', 'copy', 'memset') and flops is not null and bytes is not null group by all
        """,
    )
    keys = ("calls", "flops", "bytes", "t_math_ns", "t_min_ns")
    true = {tuple(r[k] for k in keys) for r in truth["ops"]}
    by_cost: dict[tuple[Any, ...], int] = {}
    for r in found:
        key = tuple(r[k] for k in keys[1:])
        by_cost[key] = by_cost.get(key, 0) + r["calls"]
    known = {key[1:] for key in true}
    yield sorted(by_cost.keys() - known), []


# --------------------------------------------------------------------------- truth of a generator, rank by rank


def union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same points as disjoint intervals."""
    out: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], end)
        else:
            out.append((begin, end))
    return out


def covered_ns(spans: list[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in union(spans))


KIND = {"collective": "comm", "copy": "mem", "memset": "mem"}


def _ranks(con: duckdb.DuckDBPyConnection) -> Iterator[tuple[str, int, list[dict[str, Any]], list[dict[str, Any]]]]:
    """Rank, t = 0 of its host steps, operations, and host steps with what the host did in each."""
    for rank, trace_id in con.execute("select rank, trace_id from traces order by rank").fetchall():
        ops = rows(
            con,
            f"""
            select o.step, o.op_class, o.start_ns, o.start_ns + o.dur_ns as end_ns, g.wait_ns,
                   t.clock_residual_ns + (select max(clock_residual_ns) from traces) as unsure_ns
            from ops o join traces t using (trace_id) left join collective_gap g using (trace_id, op_id)
            where o.trace_id = '{trace_id}'
            """,
        )
        # One operation a collective: that of c10d encloses the one that records it.
        marks = rows(
            con,
            f"""
            with marks as (
                select cast(regexp_extract(name, '[0-9]+') as bigint) as step, start_ns, dur_ns
                from host_events where trace_id = '{trace_id}' and kind = 'step'
            )
            select m.step, m.start_ns, m.dur_ns,
                   count(*) filter (h.kind = 'op' or h.kind = 'collective' and h.name not like 'c10d::%') as cpu_ops,
                   count(*) filter (h.kind in ('launch', 'sync', 'runtime')) as runtime_calls
            from marks m join host_events h
                on h.trace_id = '{trace_id}' and h.start_ns >= m.start_ns and h.start_ns < m.start_ns + m.dur_ns
            group by all order by m.step
            """,
        )
        yield str(rank), trace_id, ops, marks


def _work(ops: list[dict[str, Any]]) -> dict[str, int]:
    """Unions and counts of operations, by the names of the truth."""
    spans: dict[str, list[tuple[int, int]]] = {"compute": [], "comm": [], "mem": []}
    for op in ops:
        spans[KIND.get(op["op_class"], "compute")].append((op["start_ns"], op["end_ns"]))
    compute, comm, mem = (covered_ns(spans[k]) for k in ("compute", "comm", "mem"))
    return {
        "compute_ns": compute,
        "comm_ns": comm,
        "memcpy_ns": mem,
        "exposed_comm_ns": covered_ns(spans["compute"] + spans["comm"]) - compute,
        "busy_ns": covered_ns([s for part in spans.values() for s in part]),
        "kernels": len(spans["compute"]) + len(spans["comm"]),
        "collectives": len(spans["comm"]),
        "memcpys": len(spans["mem"]),
    }


def ranks(con: duckdb.DuckDBPyConnection, run_id: str, truth: dict[str, Any]) -> Iterator[Pair]:
    """Every number of every rank and step that the truth has, by the step that launched an operation.

    Waiting is told to the residuals of two clocks for each collective: its own, and that of the rank that comes last.
    """
    del run_id
    for rank, _, ops, marks in _ranks(con):
        true = truth["ranks"][rank]
        origin = true["steps"][0]["start_ns"] - marks[0]["start_ns"]
        first, last = min(o["start_ns"] for o in ops), max(o["end_ns"] for o in ops)
        whole = _work(ops)
        found_steps = []
        for mark, true_step in zip(marks, true["steps"], strict=True):
            own = [o for o in ops if o["step"] == mark["step"]]
            work = _work(own)
            wait_ns, unsure_ns = sum(o["wait_ns"] or 0 for o in own), work["collectives"] * (own[0]["unsure_ns"] or 0)
            told = abs(wait_ns - true_step["comm_wait_ns"]) <= unsure_ns
            waits = {"comm_wait_ns": true_step["comm_wait_ns"] if told else wait_ns}
            more = {"start_ns": mark["start_ns"] + origin, "idle_ns": mark["dur_ns"] - work["busy_ns"]}
            found_steps.append(mark | work | waits | more)
        found = {
            "gpu_span_ns": last - first,
            "first_gpu_ns": first + origin,
            "idle_ns": last - first - whole["busy_ns"],
            "steps": found_steps,
            **{k: whole[k] for k in ("busy_ns", "compute_ns", "exposed_comm_ns", "kernels", "collectives", "memcpys")},
            **{k: sum(m[k] for m in marks) for k in ("cpu_ops", "runtime_calls")},
        }
        yield found, true


def windows(con: duckdb.DuckDBPyConnection, run_id: str, truth: dict[str, Any]) -> Iterator[Pair]:
    """States of the step windows: with a synchronisation at its end a step's kernels all run in its own window."""
    del run_id
    for rank, true in truth["ranks"].items():
        found = con.execute(
            "select step, compute_ns, exposed_comm_ns from steps where rank = ? order by step", [int(rank)]
        ).fetchall()
        yield found, [(s["step"], s["compute_ns"], s["exposed_comm_ns"]) for s in true["steps"]]


def planes(con: duckdb.DuckDBPyConnection, run_id: str, truth: dict[str, Any]) -> Iterator[Pair]:
    """Times to a nanosecond an operation, since planes have picoseconds and the store has not; counts and sums exactly.

    The start half of a collective is communication to us and compute to that truth.
    """
    del run_id
    for rank, true in truth["ranks"].items():
        found = rows(
            con,
            f"""
            select o.step, count(*) as ops, sum(o.dur_ns)::bigint as busy_ns, max(o.start_ns + o.dur_ns) as end_ns,
                   sum(o.flops)::bigint as flops, sum(o.bytes)::bigint as bytes_accessed,
                   coalesce(sum(o.dur_ns) filter (o.op_class = 'collective' and o.name not like '%all-gather-start%'), 0)::bigint
                   as collective_ns
            from ops o join devices d using (trace_id, device_id) where d.ordinal = {rank} group by o.step order by o.step
            """,
        )
        first_end = found[0]["end_ns"] * 1000 - (true["steps"][0]["start_ps"] + true["steps"][0]["dur_ps"])
        yield [r["step"] for r in found], [s["step"] for s in true["steps"]]
        for row, step in zip(found, true["steps"], strict=True):
            for key in ("ops", "flops", "bytes_accessed"):
                yield row[key], step[key]
            off = {
                "busy": row["busy_ns"] * 1000 - step["busy_ps"],
                "collective": row["collective_ns"] * 1000 - step["collective_ps"],
                "compute": (row["busy_ns"] - row["collective_ns"]) * 1000 - step["compute_ps"],
            }
            yield {k: v for k, v in off.items() if abs(v) >= 1000 * step["ops"]}, {}
            end_ps = row["end_ns"] * 1000 - (step["start_ps"] + step["dur_ps"])
            yield abs(end_ps - first_end) < 1000, True


CHECKS: dict[str, Callable[[duckdb.DuckDBPyConnection, str, dict[str, Any]], Iterator[Pair]]] = {
    f.__name__: f for f in (steps, shares, collectives, costs, ranks, windows, planes)
}
"""Measured and true values in pairs."""

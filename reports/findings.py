"""Findings: each is a query over the views and a sentence. Adding one is adding an entry."""

import json
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb

from tracegap.ingest import store
from tracegap.models.units import human, human_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A kind of finding.

    The query takes the run as its one parameter and gives a row a finding: its columns fill the sentence, of which a part
    in double brackets is left out where a value of it is NULL, and become the evidence; `saves_ns` and `config_keys`
    among them go to their own columns, `severity` overrides.
    """

    kind: str
    sentence: str
    sql: str
    severity: str = "info"


_STEP = """
    with step as (
        select step, avg(wall_ns) as wall_ns, {columns} from step_gap where run_id = $1 and complete group by step
    ),
    typical as (select median(wall_ns) as wall_ns, {medians} from step)
"""


def _bucket_rule(kind: str, column: str, sentence: str, least: float = 0.01) -> Rule:
    """A finding where the median over steps of a bucket is at least a part of the step."""
    sql = (
        _STEP.format(columns=f"avg({column}) as bucket_ns", medians="median(bucket_ns) as bucket_ns")
        + f"""
    select cast(bucket_ns as bigint) as saves_ns, round(100 * bucket_ns / wall_ns, 1) as percent,
           case when bucket_ns > 0.05 * wall_ns then 'high' else 'medium' end as severity
    from typical where bucket_ns > {least} * wall_ns
    """
    )
    return Rule(kind=kind, sentence=sentence, sql=sql)


RULES = (
    Rule(
        kind="slow_communication",
        sentence="{collective}[[ over {group_size} ranks]]: {calls:.0f} a step[[ of {mean_bytes:bytes}]]"
        "[[, bus bandwidth {busbw:.1f} GB/s]]; {exposed_ns:ns} a step exposed beyond [[{known} and ]]waiting",
        sql="""
            with per_step as (
                select g.step, g.collective, g.group_size, count(distinct (g.trace_id, g.op_id)) as calls,
                       avg(g.message_bytes) as mean_bytes, median(g.busbw_gb_per_s) as busbw,
                       bool_or(g.predicted_ns is not null) as predicted,
                       sum(w.share_ns - coalesce(c.wait_ns + c.pipeline_ns + c.minimum_ns, 0)) as exposed_ns
                from collective_gap g
                join op_windows w using (trace_id, op_id)
                join steps s on s.trace_id = w.trace_id and s.device_id = w.device_id and s.step = w.step and s.complete
                left join comm_windows c on c.trace_id = w.trace_id and c.op_id = w.op_id and c.step = w.step
                where g.run_id = $1 group by all
            ),
            devices as (
                select count(distinct (trace_id, device_id)) as n, median(wall_ns) as wall_ns
                from steps where run_id = $1 and complete
            )
            select coalesce(collective, 'communication of unknown kind') as collective, group_size, median(calls / n) as calls,
                   median(mean_bytes) as mean_bytes, median(busbw) as busbw,
                   case when bool_or(predicted) then 'the minimum' end as known,
                   cast(median(exposed_ns / n) as bigint) as exposed_ns,
                   cast(median(exposed_ns / n) as bigint) as saves_ns,
                   case when saves_ns > 0.05 * any_value(wall_ns) then 'high' else 'medium' end as severity
            from per_step, devices group by collective, group_size having median(exposed_ns / n) > 0.01 * any_value(wall_ns)
        """,
    ),
    Rule(
        kind="late_rank",
        sentence="rank {last_rank} arrives last in {late} of {steps} steps; the others wait {wait_ns:ns} a step for it",
        sql="""
            with waits as (
                select g.instance_id, g.step, any_value(g.last_rank) as last_rank, avg(g.wait_ns) as wait_ns
                from collective_gap g where g.run_id = $1 and g.instance_id is not null and g.last_rank is not null
                group by g.instance_id, g.step
            ),
            blamed as (
                select step, last_rank, sum(wait_ns) as wait_ns,
                       row_number() over (partition by step order by sum(wait_ns) desc) as place
                from waits group by step, last_rank
            ),
            bucket as (
                select median(comm_wait_ns) as saves_ns, median(wall_ns) as wall_ns
                from (select step, avg(comm_wait_ns) as comm_wait_ns, avg(wall_ns) as wall_ns
                      from step_gap where run_id = $1 and complete group by step)
            )
            select last_rank, count(*) as late, (select count(distinct step) from waits) as steps,
                   cast(any_value(saves_ns) as bigint) as wait_ns, cast(any_value(saves_ns) as bigint) as saves_ns,
                   case when any_value(saves_ns) > 0.05 * any_value(wall_ns) then 'high' else 'medium' end as severity
            from blamed, bucket where place = 1 group by last_rank
            having count(*) >= 0.5 * (select count(distinct step) from waits)
               and any_value(saves_ns) > 0.005 * any_value(wall_ns)
        """,
    ),
    Rule(
        kind="slow_operations",
        sentence="{operation:name} {shapes:shapes}: {calls:.0f} a step at {efficiency:.0f}% of its roofline bound, "
        "{saves_ns:ns} a step beyond it",
        sql="""
            with step as (select step, avg(wall_ns) as wall_ns from step_gap where run_id = $1 and complete group by step),
            devices as (select count(distinct (trace_id, device_id)) as n from steps where run_id = $1 and complete),
            per_step as (
                select g.step, coalesce(g.framework_op, g.name) as operation, coalesce(g.shapes::varchar, '') as shapes,
                       count(*) as calls, sum(g.gap_ns) as gap_ns, sum(g.t_min_ns) as min_ns, sum(g.dur_ns) as dur_ns
                from op_gap g join step using (step)
                where g.run_id = $1 and g.t_min_ns is not null and g.bound <> 'communication'
                  and g.op_class not in ('copy', 'memset')
                group by all
            ),
            grouped as (
                select operation, shapes, sum(calls) / n / (select count(*) from step) as calls,
                       100.0 * sum(min_ns) / nullif(sum(dur_ns), 0) as efficiency,
                       cast(sum(gap_ns) / n / (select count(*) from step) as bigint) as saves_ns
                from per_step, devices group by operation, shapes, n
            )
            select operation, shapes, calls, efficiency, saves_ns,
                   case when saves_ns > 0.05 * (select median(wall_ns) from step) then 'high' else 'medium' end as severity
            from grouped where saves_ns > 0.01 * (select median(wall_ns) from step) order by saves_ns desc limit 5
        """,
    ),
    _bucket_rule(
        "input",
        "idle_input_ns",
        "the device waits {saves_ns:ns} a step ({percent}%) for data: the host sits in its loader",
    ),
    _bucket_rule(
        "synchronisation",
        "idle_sync_ns",
        "the device idles {saves_ns:ns} a step ({percent}%) while the host synchronises",
    ),
    _bucket_rule(
        "host",
        "idle_host_ns",
        "the device idles {saves_ns:ns} a step ({percent}%) because the host has not begun to launch",
    ),
    _bucket_rule(
        "launch_gaps",
        "idle_gap_ns",
        "the device idles {saves_ns:ns} a step ({percent}%) between launch and start of operations",
    ),
    _bucket_rule("copies", "exposed_copy_ns", "copies and fills run alone {saves_ns:ns} a step ({percent}%)"),
    _bucket_rule(
        "pipeline", "idle_pipeline_ns", "waiting for another pipeline stage takes {saves_ns:ns} a step ({percent}%)"
    ),
    Rule(
        kind="recomputation",
        sentence="{saves_ns:ns} a step at peak is spent on FLOPs beyond the model's",
        sql="""
            select cast(median(recompute_math_ns) as bigint) as saves_ns from step_gap
            where run_id = $1 and complete having median(recompute_math_ns) > 0.01 * median(wall_ns)
        """,
        severity="medium",
    ),
    Rule(
        kind="beats_its_bound",
        sentence="{operation:name} takes {percent:.0f}% of its bound: its FLOPs, its bytes or the peak are wrong, "
        "or its data came from cache",
        sql="""
            with ticks as (
                -- Old traces have whole microseconds: an operation may be a tick longer than it says.
                select trace_id, case when bool_and(dur_ns % 1000 = 0) then 1000 else 0 end as tick_ns
                from ops group by trace_id
            )
            select coalesce(framework_op, name) as operation, op_class, count(*) as calls, sum(dur_ns) as dur_ns,
                   sum(t_min_ns) as t_min_ns, 100.0 * sum(dur_ns) / sum(t_min_ns) as percent
            from op_gap join ticks using (trace_id)
            where run_id = $1 and t_min_ns is not null and bound <> 'communication' and dur_ns + tick_ns < t_min_ns
            group by operation, op_class having sum(dur_ns) < 0.98 * sum(t_min_ns)
            order by sum(t_min_ns) - sum(dur_ns) desc limit 5
        """,
        severity="low",
    ),
    Rule(
        kind="unknown_cost",
        sentence="{percent:.0f}% of compute time has no known cost, most of it in {operation:name}: {why}",
        sql="""
            with compute as (
                select coalesce(framework_op, name) as operation, unknown_because, share_ns, t_min_ns
                from op_gap where run_id = $1 and op_class not in ('collective', 'copy', 'memset')
            ),
            total as (
                select 100.0 * sum(share_ns) filter (t_min_ns is null) / nullif(sum(share_ns), 0) as percent from compute
            )
            select percent, operation, any_value(unknown_because) as why, sum(share_ns) as share_ns
            from compute, total where t_min_ns is null and percent > 5
            group by percent, operation order by share_ns desc limit 1
        """,
        severity="low",
    ),
    Rule(
        kind="unknown_part",
        sentence="{where}: {matched_by}; its peaks are unknown: name it in manifest.toml (hardware = ...) or with "
        "`tracegap ingest --hardware`, or add models/chips/<part>.toml",
        sql="""
            select case when count(distinct d.device_id) = 1 then 'device ' || any_value(d.device_id)
                        else count(distinct d.device_id) || ' devices' end as where,
                   d.name, d.matched_by, count(*) as devices, list(distinct d.device_id order by d.device_id) as device_ids
            from devices d join traces t using (trace_id)
            where t.run_id = $1 and d.hardware is null and d.hbm_bytes_per_s is null group by d.name, d.matched_by
        """,
        severity="low",
    ),
    Rule(
        kind="no_steps",
        sentence="no step is marked: the whole trace counts as one (PyTorch: profile(schedule=...) and prof.step(); "
        "JAX: StepTraceAnnotation; Nsight: an NVTX range a step)",
        sql="select count(*) as devices from steps where run_id = $1 and source = 'whole_trace' having count(*) > 0",
        severity="low",
    ),
    Rule(
        kind="inferred_steps",
        sentence="no step is marked: a repeating pattern of {kernels:.0f} operations stands for one, which may be a layer; "
        "mark steps to be sure",
        sql="""
            select median(kernels) as kernels, count(*) as steps from steps
            where run_id = $1 and source = 'inferred' having count(*) > 0
        """,
        severity="low",
    ),
    Rule(
        kind="no_launch",
        sentence="{percent:.0f}% of device time has no launch in the file and belongs to no step: record a warm-up step before",
        sql="""
            select 100.0 * sum(o.dur_ns) filter (o.launch_ns is null and o.step is null) / nullif(sum(o.dur_ns), 0) as percent,
                   count(*) filter (o.launch_ns is null and o.step is null) as operations
            from ops o join traces t using (trace_id)
            where t.run_id = $1 and exists (
                select 1 from ops p where p.trace_id = o.trace_id and p.launch_ns is not null)
            having percent > 5
        """,
        severity="low",
    ),
    Rule(
        kind="duplicate_rank",
        sentence="rank {rank} is there {files} times: {paths}",
        sql="""
            select rank, count(*) as files, string_agg(path, ', ' order by path) as paths from traces
            where run_id = $1 and rank is not null group by rank having count(*) > 1
        """,
        severity="high",
    ),
    Rule(
        kind="missing_ranks",
        sentence="{have} of {world_size} ranks are there: what the others did is unknown",
        sql="""
            with job as (select world_size from runs where run_id = $1),
            present as (select distinct rank from traces where run_id = $1 and rank is not null),
            absent as (select unnest(range(world_size)) as rank from job except select rank from present)
            select (select count(*) from present) as have, world_size, list(absent.rank order by absent.rank) as missing
            from job, absent group by world_size having have > 0
        """,
        severity="medium",
    ),
    Rule(
        kind="damaged_trace",
        sentence="{path}: {message}",
        sql="""
            select t.path, d.value ->> 'message' as message, d.value ->> 'code' as code, d.value ->> 'where' as place
            from traces t, json_each(t.diagnostics) d where t.run_id = $1 and d.value ->> 'severity' <> 'info'
        """,
        severity="high",
    ),
    Rule(
        kind="incomplete_steps",
        sentence="step {step} is left out of averages: {reason}",
        sql="""
            select step, any_value(incomplete_reason) as reason, count(*) as devices
            from steps where run_id = $1 and not complete group by step order by step limit 5
        """,
    ),
    Rule(
        kind="unmatched_collectives",
        sentence="{count} collectives could not be matched over ranks ({why}): their waiting is not known",
        sql="""
            select m.matched_by as why, count(*) as count
            from collective_matches m join traces t using (trace_id)
            where t.run_id = $1 and m.instance_id is null group by m.matched_by
        """,
    ),
)


_FORMATS: dict[str, Callable[[Any], str]] = {
    "ns": lambda v: human_ns(float(v)),
    "bytes": lambda v: human(float(v), "B"),
    "name": lambda v: short_name(str(v)),
    "shapes": lambda v: short_shapes(str(v)),
}
"""Formats of sentences beside Python's own."""


class _Value:
    """A value that knows our formats."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __format__(self, spec: str) -> str:
        return _FORMATS[spec](self.value) if spec in _FORMATS else format(self.value, spec)


def _sentence(template: str, row: dict[str, Any]) -> str:
    """Fills a sentence; a part in brackets is left out where one of its values is unknown."""

    def part(match: re.Match[str]) -> str:
        inner = match.group(1)
        names = [name for _, name, _, _ in string.Formatter().parse(inner) if name]
        return "" if any(row.get(n) is None for n in names) else inner

    return re.sub(r"\[\[(.*?)\]\]", part, template).format_map({k: _Value(v) for k, v in row.items()})


def short_name(name: str, width: int = 72) -> str:
    """A kernel's name without return type, template arguments and parameters, cut to a width."""
    if "/" in name:  # a path of name scopes
        return name if len(name) <= width else "…" + name[1 - width :]
    bare, depth = "", 0
    for c in name.removeprefix("void "):
        depth += {"<": 1, ">": -1}.get(c, 0)
        if depth == 0 and c != ">":
            bare += c
    bare = bare.replace("(anonymous namespace)::", "").partition("(")[0].strip() or name
    return bare if len(bare) <= width else bare[: width - 1] + "…"


def short_shapes(shapes: str) -> str:
    """Shapes without the empty ones of scalars: "[141,512] [512,512]"."""
    try:
        listed = json.loads(shapes)
    except ValueError:
        return ""
    texts = [json.dumps(s, separators=(",", ":")) for s in listed if s]
    return " ".join(texts) if len(texts) <= 4 else " ".join(texts[:3]) + f" and {len(texts) - 3} more"


def find(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Replaces the findings of a run."""
    con.execute("delete from findings where run_id = ?", [run_id]).fetchall()
    for rule in RULES:
        cursor = con.execute(rule.sql, [run_id])
        names = [c[0] for c in cursor.description]
        for values in cursor.fetchall():
            row = dict(zip(names, values, strict=True))
            what = _sentence(rule.sentence, row)
            store.insert_row(
                con,
                "findings",
                {
                    "run_id": run_id,
                    "severity": row.pop("severity", rule.severity),
                    "kind": rule.kind,
                    "what": what,
                    "saves_ns": row.pop("saves_ns", None),
                    "config_keys": row.pop("config_keys", None),
                    "evidence": json.loads(json.dumps(row, default=float)),
                },
            )

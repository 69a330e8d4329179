"""Findings: each is a query over the views and a sentence. Adding one is adding an entry."""

import json
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb

from tracegap.ingest import store
from tracegap.models.units import human, human_ns, significant


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


_TYPICAL = """
    with step as (
        select step, avg(wall_ns) as wall_ns from steps where run_id = $1 and complete group by step
    ),
    -- As everywhere, the typical step is the median one by wall time; of an even number, the two in the middle.
    typical as (
        select step, wall_ns from step
        qualify row_number() over (order by wall_ns, step) in ((count(*) over () + 1) // 2, count(*) over () // 2 + 1)
    ),
    size as (
        select (select count(distinct (trace_id, device_id)) from steps where run_id = $1 and complete) as devices,
               (select count(*) from typical) as steps, (select avg(wall_ns) from typical) as wall_ns
    )
"""
"""Head of a query: `typical` are the typical steps of the run, `size` how many they and the devices are."""
_GRADE = "case when saves_ns > 0.05 * any_value(wall_ns) then 'high' else 'medium' end as severity"


def _bucket_rule(kind: str, column: str, sentence: str, least: float = 0.01) -> Rule:
    """A finding where a bucket of the typical step is at least a part of it."""
    sql = f"""
        {_TYPICAL}
        select cast(avg(g.{column}) as bigint) as saves_ns, round(100 * avg(g.{column}) / any_value(size.wall_ns), 1) as percent,
               case when avg(g.{column}) > 0.05 * any_value(size.wall_ns) then 'high' else 'medium' end as severity
        from step_gap g join typical using (step), size where g.run_id = $1 and g.complete
        having avg(g.{column}) > {least} * any_value(size.wall_ns)
    """
    return Rule(kind=kind, sentence=sentence, sql=sql)


RULES = (
    Rule(
        kind="slow_communication",
        sentence="{collective}[[ over {ranks}]]: {calls:.0f} a step[[ of {mean_bytes:bytes} on average]]"
        "[[, bus bandwidth {busbw:digits} GB/s]]; {exposed_ns:ns} a step exposed[[ beyond {known}]][[, {unknown}]]",
        sql=f"""
            {_TYPICAL},
            own as (
                select g.collective, g.group_size, g.message_bytes, g.busbw_gb_per_s, w.share_ns,
                       coalesce(c.wait_ns + c.pipeline_ns + c.minimum_ns, 0) as explained_ns,
                       g.predicted_ns is not null as predicted, g.instance_id is not null as matched
                from collective_gap g
                join op_windows w using (trace_id, op_id)
                join typical on typical.step = w.step
                left join comm_windows c on c.trace_id = w.trace_id and c.op_id = w.op_id and c.step = w.step
                where g.run_id = $1
            )
            select coalesce(collective, 'communication of unknown kind') as collective, group_size,
                   case when group_size is not null then group_size || if(group_size = 1, ' rank', ' ranks') end as ranks,
                   count(*) / any_value(devices) / any_value(steps) as calls, avg(message_bytes) as mean_bytes,
                   median(busbw_gb_per_s) as busbw,
                   case when bool_and(predicted and matched) then 'the minimum and waiting'
                        when bool_and(predicted) then 'the minimum' when bool_and(matched) then 'waiting' end as known,
                   case when not bool_and(matched) then 'waiting for ranks that are not matched included' end as unknown,
                   cast(sum(share_ns - explained_ns) / any_value(devices) / any_value(steps) as bigint) as exposed_ns,
                   -- Without a minimum nobody knows how much of it could go.
                   case when bool_and(predicted) then exposed_ns end as saves_ns,
                   case when exposed_ns > 0.05 * any_value(wall_ns) then 'high' else 'medium' end as severity
            from own, size group by collective, group_size having exposed_ns > 0.01 * any_value(wall_ns)
        """,
    ),
    Rule(
        kind="late_rank",
        sentence="rank {last_rank} arrives last in {late} of {steps} steps; the others wait {others_ns:ns} a step for it",
        sql=f"""
            {_TYPICAL},
            exposed as (
                select w.step, g.last_rank, sum(c.wait_ns) as wait_ns
                from collective_gap g
                join op_windows w using (trace_id, op_id)
                join step on step.step = w.step
                join comm_windows c on c.trace_id = w.trace_id and c.op_id = w.op_id and c.step = w.step
                where g.run_id = $1 and g.last_rank is not null group by all
            ),
            blamed as (
                select step, last_rank, row_number() over (partition by step order by wait_ns desc) as place from exposed
            ),
            late as (
                select last_rank, count(*) as late, (select count(distinct step) from exposed) as steps
                from blamed where place = 1 group by last_rank
            )
            -- What the others wait; and what mending it saves: the mean over all ranks, one of which does not wait.
            select l.last_rank, any_value(l.late) as late, any_value(l.steps) as steps,
                   cast(sum(e.wait_ns) / nullif(any_value(size.devices) - 1, 0) / any_value(size.steps) as bigint) as others_ns,
                   cast(sum(e.wait_ns) / any_value(size.devices) / any_value(size.steps) as bigint) as saves_ns, {_GRADE}
            from late l join exposed e using (last_rank) join typical on typical.step = e.step, size
            where l.late >= 0.5 * l.steps
            group by l.last_rank having saves_ns > 0.005 * any_value(size.wall_ns)
        """.replace("any_value(wall_ns)", "any_value(size.wall_ns)"),
    ),
    Rule(
        kind="slow_operations",
        sentence="{operation:name} {shapes:shapes}: {calls:.0f} a step at {efficiency:.0f}% of its roofline bound, "
        "{saves_ns:ns} a step beyond it",
        sql=f"""
            {_TYPICAL},
            own as (
                select coalesce(g.framework_op, g.name) as operation, coalesce(g.shapes::varchar, '') as shapes, g.dur_ns,
                       g.t_min_ns, w.share_ns,
                       case when w.dur_ns = g.dur_ns then g.t_min_ns else g.t_min_ns * w.dur_ns / g.dur_ns end as min_ns
                from op_gap g
                join op_windows w using (trace_id, op_id)
                join typical on typical.step = w.step
                where g.run_id = $1 and w.state = 'compute' and g.t_min_ns is not null
            )
            select operation, shapes, count(*) / any_value(devices) / any_value(steps) as calls,
                   100.0 * sum(t_min_ns) / nullif(sum(dur_ns), 0) as efficiency,
                   cast(sum(share_ns - min_ns) / any_value(devices) / any_value(steps) as bigint) as saves_ns, {_GRADE}
            from own, size group by operation, shapes
            having saves_ns > 0.01 * any_value(wall_ns) order by saves_ns desc limit 5
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
        "the device idles {saves_ns:ns} a step ({percent}%) from when the launch of its next operation is called until that "
        "starts: slow or blocking launch calls, launch latency, gaps on the device",
    ),
    _bucket_rule("copies", "exposed_copy_ns", "copies and fills run alone {saves_ns:ns} a step ({percent}%)"),
    _bucket_rule(
        "pipeline", "idle_pipeline_ns", "waiting for another pipeline stage takes {saves_ns:ns} a step ({percent}%)"
    ),
    Rule(
        kind="recomputation",
        sentence="{saves_ns:ns} a step at peak is spent on FLOPs beyond the model's",
        sql=f"""
            {_TYPICAL}
            select cast(avg(g.recompute_math_ns) as bigint) as saves_ns from step_gap g join typical using (step), size
            where g.run_id = $1 and g.complete having avg(g.recompute_math_ns) > 0.01 * any_value(size.wall_ns)
        """,
        severity="medium",
    ),
    Rule(
        kind="impossible_mfu",
        sentence="MFU is {mfu:.0f}%[[, HFU {hfu:.0f}%]]: [model] or tokens_per_step of the manifest do not fit what ran",
        sql=f"""
            {_TYPICAL}
            select 100 * avg(g.mfu) as mfu, 100 * avg(g.hfu) as hfu, avg(g.modelled_share_frac) as modelled_share_frac
            from step_gap g join typical using (step) where g.run_id = $1 and g.complete
            having avg(g.mfu) > 1 or (avg(g.modelled_share_frac) > 0.99 and avg(g.mfu) > 1.05 * avg(g.hfu))
        """,
        severity="high",
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
            where run_id = $1 and t_min_ns is not null and op_class not in ('collective', 'copy', 'memset')
              and dur_ns + tick_ns < t_min_ns
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
            where t.run_id = $1 and o.trace_id in (
                select trace_id from steps where run_id = $1 and source not in ('whole_trace', 'inferred'))
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
        kind="few_steps",
        sentence="complete steps: {steps}. Nothing marks the end of the last one, so what the host does after its last "
        "operation is not in it; record three or more",
        sql="""
            select count(distinct step) as steps from steps
            where run_id = $1 and complete and source not in ('whole_trace', 'inferred')
            having count(distinct step) between 1 and 2
               and count(distinct step) = (select count(distinct step) from steps where run_id = $1)
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
    "digits": lambda v: significant(float(v)),
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
    texts = [
        f"{len(s)} tensors" if isinstance(s[0], list) else json.dumps(s, separators=(",", ":")) for s in listed if s
    ]
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

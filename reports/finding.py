"""Findings: each rule is a query over the store and a sentence, one a module of `reports/findings/`."""

import importlib
import json
import pkgutil
from dataclasses import dataclass

import duckdb

from tracegap.ingest import store
from tracegap.reports import findings as _findings
from tracegap.reports.sentence import filled


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A kind of finding.

    The query takes the run as its one parameter and gives a row a finding: its columns fill the sentence, of which a part
    in double brackets is left out where a value of it is NULL, and become the evidence; `saves_ns` and `config_keys`
    among them go to their own columns, `severity` overrides.
    """

    sentence: str
    sql: str
    severity: str = "info"


TYPICAL = """
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
GRADE = "case when saves_ns > 0.05 * any_value(wall_ns) then 'high' else 'medium' end as severity"


def bucket_rule(column: str, sentence: str, least: float = 0.01) -> Rule:
    """A finding where a bucket of the typical step is at least a part of it."""
    sql = f"""
        {TYPICAL}
        select cast(avg(g.{column}) as bigint) as saves_ns, round(100 * avg(g.{column}) / any_value(size.wall_ns), 1) as percent,
               case when avg(g.{column}) > 0.05 * any_value(size.wall_ns) then 'high' else 'medium' end as severity
        from step_gap g join typical using (step), size where g.run_id = $1 and g.complete
        having avg(g.{column}) > {least} * any_value(size.wall_ns)
    """
    return Rule(sentence=sentence, sql=sql)


def rules() -> dict[str, Rule]:
    """Rules by kind, which is the name of their module; found by walking `reports.findings`."""
    kinds = sorted(m.name for m in pkgutil.iter_modules(_findings.__path__))
    return {kind: importlib.import_module(f"{_findings.__name__}.{kind}").RULE for kind in kinds}


def find(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Replaces the findings of a run."""
    con.execute("delete from findings where run_id = ?", [run_id]).fetchall()
    for kind, rule in rules().items():
        cursor = con.execute(rule.sql, [run_id])
        names = [c[0] for c in cursor.description]
        for values in cursor.fetchall():
            row = dict(zip(names, values, strict=True))
            what = filled(rule.sentence, row)
            store.insert_row(
                con,
                "findings",
                {
                    "run_id": run_id,
                    "severity": row.pop("severity", rule.severity),
                    "kind": kind,
                    "what": what,
                    "saves_ns": row.pop("saves_ns", None),
                    "config_keys": row.pop("config_keys", None),
                    "evidence": json.loads(json.dumps(row, default=float)),
                },
            )

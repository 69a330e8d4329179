"""FLOPs beyond the model's, at peak."""

from tracegap.reports.finding import TYPICAL, Rule

RULE = Rule(
    sentence="{saves_ns:ns} a step at peak is spent on FLOPs beyond the model's",
    sql=f"""
        {TYPICAL}
        select cast(avg(g.recompute_math_ns) as bigint) as saves_ns from step_gap g join typical using (step), size
        where g.run_id = $1 and g.complete having avg(g.recompute_math_ns) > 0.01 * any_value(size.wall_ns)
    """,
    severity="medium",
)

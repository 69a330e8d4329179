"""A utilisation that cannot be: the description of the model does not fit what ran."""

from tracegap.reports.finding import TYPICAL, Rule

RULE = Rule(
    sentence="MFU is {mfu:.0f}%[[, HFU {hfu:.0f}%]]: [model] or tokens_per_step of the manifest do not fit what ran",
    sql=f"""
        {TYPICAL}
        select 100 * avg(g.mfu) as mfu, 100 * avg(g.hfu) as hfu, avg(g.modelled_share_frac) as modelled_share_frac
        from step_gap g join typical using (step) where g.run_id = $1 and g.complete
        having avg(g.mfu) > 1 or (avg(g.modelled_share_frac) > 0.99 and avg(g.mfu) > 1.05 * avg(g.hfu))
    """,
    severity="high",
)

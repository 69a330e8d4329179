"""A utilisation that cannot be: the description of the model does not fit what ran."""

from tracegap.reports.finding import Rule

RULE = Rule(
    sentence="MFU is {mfu:.0f}%[[, HFU {hfu:.0f}%]]: [model] or tokens_per_step of the manifest do not fit what ran",
    query="""
        select 100 * avg(mfu) as mfu, 100 * avg(hfu) as hfu, avg(modelled_share_frac) as modelled_share_frac
        from typical_step where complete
        having avg(mfu) > 1 or (avg(modelled_share_frac) > 0.99 and avg(mfu) > 1.05 * avg(hfu))
    """,
    severity="high",
)

"""FLOPs beyond the model's, at peak."""

from tracegap.reports.finding import bucket_rule

RULE = bucket_rule(
    "recompute_math",
    "{alone_ns:ns} a step ({percent:.1f}%) at peak is spent on FLOPs beyond the model's: recompute fewer activations",
    config="recomp|remat|checkpoint",
)

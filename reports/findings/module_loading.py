"""Idle while the host loads code for the device, when it is first needed."""

from tracegap.reports.finding import activity_rule

LOADING = (
    "regexp_matches(coalesce(name, ''), 'Module Loading|Lazy Function Loading|^(cu|hip)(Module|Library|Kernel)', 'i')"
)
"""Names of what loads code and compiles none."""

RULE = activity_rule(
    "compilation",
    "the device idles {alone_ns:ns} a step ({percent:.1f}%) while the host loads code for it (most in {name}): record more "
    "warm-up steps, or load it at the start (CUDA_MODULE_LOADING=EAGER)",
    where=LOADING,
)

"""Idle while the host loads data."""

from tracegap.reports.finding import bucket_rule

RULE = bucket_rule(
    "idle_input",
    "the device waits {alone_ns:ns} a step ({percent:.1f}%) for data: the host sits in its loader",
)

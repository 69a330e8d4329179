"""Idle while the host loads data."""

from tracegap.reports.finding import bucket_rule

RULE = bucket_rule(
    "idle_input_ns",
    "the device waits {saves_ns:ns} a step ({percent}%) for data: the host sits in its loader",
)

"""Idle while the host synchronises."""

from tracegap.reports.finding import bucket_rule

RULE = bucket_rule(
    "idle_sync_ns",
    "the device idles {saves_ns:ns} a step ({percent}%) while the host synchronises",
)

"""Idle while the host synchronises."""

from tracegap.reports.finding import bucket_rule

RULE = bucket_rule(
    "idle_sync",
    "the device idles {alone_ns:ns} a step ({percent:.1f}%) while the host synchronises",
)

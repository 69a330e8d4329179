"""Idle because the host has not begun to launch."""

from tracegap.reports.finding import bucket_rule

RULE = bucket_rule(
    "idle_host",
    "the device idles {alone_ns:ns} a step ({percent:.1f}%) because the host has not begun to launch",
)

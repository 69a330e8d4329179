"""Idle because the host has not begun to launch."""

from tracegap.reports.finding import bucket_rule

RULE = bucket_rule(
    "idle_host_ns",
    "the device idles {saves_ns:ns} a step ({percent}%) because the host has not begun to launch",
)

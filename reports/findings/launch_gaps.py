"""Idle after the launch call began."""

from tracegap.reports.finding import bucket_rule

RULE = bucket_rule(
    "idle_gap",
    "the device idles {alone_ns:ns} a step ({percent:.1f}%) from when the launch of its next operation is called "
    "until that starts: slow or blocking launch calls, launch latency, gaps on the device",
)

"""Idle after the launch call began."""

from tracegap.reports.finding import bucket_rule

RULE = bucket_rule(
    "idle_gap_ns",
    "the device idles {saves_ns:ns} a step ({percent}%) from when the launch of its next operation is called until that "
    "starts: slow or blocking launch calls, launch latency, gaps on the device",
)

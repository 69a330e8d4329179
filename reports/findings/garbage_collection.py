"""Idle while the host collects garbage."""

from tracegap.reports.finding import activity_rule

RULE = activity_rule(
    "garbage_collection",
    "the device idles {alone_ns:ns} a step ({percent:.1f}%) while Python collects garbage: call gc.freeze() "
    "after start-up, gc.disable(), and gc.collect() at the same step on all ranks",
)

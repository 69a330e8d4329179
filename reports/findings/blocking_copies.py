"""Idle while the host sits in a blocking copy."""

from tracegap.reports.finding import activity_rule

RULE = activity_rule(
    "copy",
    "the device idles {alone_ns:ns} a step ({percent:.1f}%) while the host sits in a copy[[ (most in {name})]]: "
    "pin the memory and copy with non_blocking=True",
)

"""Exposed communication before the last rank arrived, where no rank is the one to blame."""

from tracegap.reports.finding import bucket_rule

RULE = bucket_rule(
    "comm_wait",
    "ranks wait {alone_ns:ns} a step ({percent:.1f}%) for the last of them to reach a collective",
)

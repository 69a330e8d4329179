"""Copies and fills beside which nothing runs."""

from tracegap.reports.finding import bucket_rule

RULE = bucket_rule("exposed_copy", "copies and fills run alone {alone_ns:ns} a step ({percent:.1f}%)")

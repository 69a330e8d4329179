"""Copies and fills beside which nothing runs."""

from tracegap.reports.finding import bucket_rule

RULE = bucket_rule("exposed_copy_ns", "copies and fills run alone {saves_ns:ns} a step ({percent}%)")

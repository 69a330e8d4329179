"""Waiting for another pipeline stage."""

from tracegap.reports.finding import bucket_rule

RULE = bucket_rule("idle_pipeline", "waiting for another pipeline stage takes {alone_ns:ns} a step ({percent:.1f}%)")

"""Waiting for another pipeline stage."""

from tracegap.reports.finding import bucket_rule

RULE = bucket_rule("idle_pipeline_ns", "waiting for another pipeline stage takes {saves_ns:ns} a step ({percent}%)")

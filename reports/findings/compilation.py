"""Idle while the host compiles."""

from tracegap.reports.finding import activity_rule
from tracegap.reports.findings.module_loading import LOADING

RULE = activity_rule(
    "compilation",
    "the device idles {alone_ns:ns} a step ({percent:.1f}%) while the host compiles[[ (most in {name})]]: sizes "
    "or guards change; mark them dynamic or pad them",
    where=f"not {LOADING}",
)

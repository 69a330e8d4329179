"""Idle while the host allocates or frees memory of the device."""

from tracegap.reports.finding import activity_rule

RULE = activity_rule(
    "allocation",
    "the device idles {alone_ns:ns} a step ({percent:.1f}%) while device memory is allocated or freed[[ (most in "
    "{name})]]: keep the allocator from returning it (expandable_segments, a smaller peak, no empty_cache)",
)

"""tracegap accounts for every nanosecond between a measured training step and what physics allows."""

__version__ = "0.1.0"

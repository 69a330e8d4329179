"""Reads profiler traces and owns the store. Knows formats and measures; never predicts."""

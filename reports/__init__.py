"""Joins measurement with theory (in `join`), compares runs, draws pages."""

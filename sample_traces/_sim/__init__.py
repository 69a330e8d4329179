"""Deterministic simulation of small training jobs: schedules, their exact truth, and writers of three trace formats.

Nothing here imports the product: the truth must not inherit its mistakes.
"""

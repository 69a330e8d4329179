"""Stages of the evaluation of a run, one a module, in the order of their ORDER (see `reports.join`).

A module has `ORDER`, `TABLES` (internal or public tables that it alone fills; the rows of the run are removed before it
runs) and `run(con, run)`.
"""

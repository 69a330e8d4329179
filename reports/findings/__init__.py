"""Rules of findings, one a module, found by walking this folder (see `reports.finding`).

A module has `RULE`; its name is the kind of the findings.
"""

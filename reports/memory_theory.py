"""Device memory that the plan of a run's model and mesh needs: the numbers of `tracegap plan`."""

import duckdb

from tracegap.models.errors import TracegapError
from tracegap.models.footprint import Memory
from tracegap.reports import run_plan
from tracegap.reports.stage import Run

PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "margin")
"""Parts of `Memory`, which add up to its total."""


def predicted(con: duckdb.DuckDBPyConnection, run: Run) -> tuple[Memory | None, str]:
    """What the fullest device needs, and what was assumed; or None and why it cannot be planned."""
    try:
        found, _ = run_plan.plan_of(con, run, run_plan.typical_step(con, run), run_plan.collectives(con, run))
    except TracegapError as e:
        return None, f"not predicted: {e}"
    return found.plan.memory, (
        f"fullest device; optimizer {found.recipe.optimizer}; {found.words}; what nobody says is as a plan chooses what fits"
    )

"""The buckets of the waterfall: names, order, and what each is for a person who does not know our words."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket of `step_gap`."""

    name: str
    """Column without `_ns`."""
    title: str
    """For people."""
    meaning: str
    """A sentence."""
    group: str
    """minimum: physics needs it; loss: it could go; unknown: nobody knows yet."""

    @property
    def column(self) -> str:
        """Column of `step_gap`, ns."""
        return f"{self.name}_ns"


BUCKETS = (
    Bucket("useful_math", "useful math", "the mathematics itself, at the peak of the part", "minimum"),
    Bucket("recompute_math", "recomputed math", "FLOPs done beyond what the model needs, at peak", "loss"),
    Bucket(
        "memory_bound", "memory bound", "memory bandwidth adds this to operations that do little arithmetic", "minimum"
    ),
    Bucket("kernel_inefficiency", "slow kernels", "kernels take this much longer than their roofline bound", "loss"),
    Bucket("unmodelled_compute", "unknown cost", "compute whose FLOPs and bytes are not known", "unknown"),
    Bucket(
        "comm_minimum",
        "communication minimum",
        "exposed communication that size and topology make unavoidable",
        "minimum",
    ),
    Bucket("comm_wait", "waiting for the last rank", "exposed communication before the last rank arrived", "loss"),
    Bucket("comm_inefficiency", "slow communication", "exposed communication beyond wait and minimum", "loss"),
    Bucket("exposed_copy", "exposed copies", "only copies and fills run", "loss"),
    Bucket("idle_host", "host too slow", "nothing runs: the host had not begun to launch the next operation", "loss"),
    Bucket(
        "idle_sync", "host synchronising", "nothing runs: the host sat in a synchronisation or a blocking copy", "loss"
    ),
    Bucket("idle_input", "waiting for data", "nothing runs: the host was loading data", "loss"),
    Bucket("idle_pipeline", "pipeline bubble", "waiting for another pipeline stage", "loss"),
    Bucket("idle_gap", "launch gaps", "nothing runs although the launch call had begun", "loss"),
    Bucket("idle_unknown", "idle, cause unknown", "nothing runs and the trace does not tell why", "unknown"),
)
"""In the order of the waterfall; they add up to the wall time."""

COLUMNS = tuple(b.column for b in BUCKETS)
BY_COLUMN = {b.column: b for b in BUCKETS}
SUM_SQL = " + ".join(COLUMNS)
"""Their sum, for SQL."""

"""Names of what is published."""

import hashlib
import re

_TAKEN = {"index", "compare"}
_KINDS = ("history-", "compare-")  # begin the names of pages of other kinds


def page_name(run_id: str) -> str:
    """File name of a run's page: the run with `--` for `/`, so that no name leaves the folder.

    A run whose name has other characters, or would take the name of another page, gets a piece of its hash.
    """
    name = run_id.replace("/", "--")
    if (
        re.fullmatch(r"[A-Za-z0-9_.~-]+", name)
        and "--" not in run_id
        and name not in _TAKEN
        and not name.startswith((".", *_KINDS))
    ):
        return f"{name}.html"
    plain = re.sub(r"[^A-Za-z0-9_.~]+", "-", run_id).strip("-.")
    return f"{plain}-{hashlib.sha256(run_id.encode()).hexdigest()[:8]}.html"


def history_name(job: str) -> str:
    """File name of the history of a job."""
    return _KINDS[0] + page_name(job)

"""Names of what is published."""

import re


def page_name(run_id: str) -> str:
    """File name of a run's page: letters, digits, dot and dash of the run, so that no name leaves the folder."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", run_id).strip("-.") + ".html"

"""The Prefect flow over `flows.round`: retries, a record of each task, a summary in the server's interface.

Run it by `tracegap nightly`, which starts a temporary server where PREFECT_API_URL names none; or put it on a schedule:
`python -c "from tracegap.flows.nightly import nightly; nightly.serve(name='nightly', cron='0 5 * * *')"`.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("DO_NOT_TRACK", "1")  # Prefect reads it while it is imported; who wants to be counted says so

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.settings import (
    PREFECT_SERVER_ANALYTICS_ENABLED,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    temporary_settings,
)

from tracegap.flows import round as rounds
from tracegap.flows.round import Found, Published, Round
from tracegap.ingest.pipeline import Ingested
from tracegap.ingest.remote import is_url, without_credentials
from tracegap.ingest.sources import Source
from tracegap.models.errors import TracegapError

DELAYS_S = [10.0, 60.0, 300.0]
"""Waits before the second, third and fourth try of a task, where another try can help."""


def worth_retrying(_task: Any, _run: Any, state: State[Any]) -> bool:
    """Whether the error that ended a task may be gone next time: it says so itself. A bad file is never retried."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, TracegapError) and error.retryable


# Results are not cached: whether there is something to do is read off the folder and the store each time.
_step = task(
    retries=len(DELAYS_S), retry_delay_seconds=DELAYS_S, retry_condition_fn=worth_retrying, cache_policy=NO_CACHE
)


@_step
def discover(source: str | Path, settle_s: float) -> Found:
    """See `flows.round.discover`."""
    return rounds.discover(source, settle_s)


@_step
def ingest(store: Path, found: list[Source], calibration: Path | None = None) -> list[Ingested]:
    """See `flows.round.ingest`."""
    logger = get_run_logger()
    return rounds.ingest(store, found, calibration, progress=lambda source: logger.info("reading %s", source))


@_step
def evaluate(store: Path) -> list[str]:
    """See `flows.round.evaluate`."""
    return rounds.evaluate(store)


@_step
def publish(store: Path, folder: Path) -> Published:
    """See `flows.round.publish`."""
    return rounds.publish(store, folder)


@flow(name="nightly", validate_parameters=True)
def nightly(
    source: str | Path, publish_to: Path, store: Path, settle_s: float = 0.0, calibration: Path | None = None
) -> Round:
    """Finds new traces, stores them, joins them with theory, publishes pages and says what changed.

    Args:
        source: folder of traces, or the URL of one; without credentials, since Prefect keeps it.
        publish_to: folder of the pages.
        store: the store.
        settle_s: a file written to less than this many seconds ago is left for the next round.
        calibration: file of measured ceilings for the runs of this round; see `ingest.calibration`.
    """
    found = discover(source, settle_s)
    ingested = ingest(store, found.settled, calibration)
    evaluate(store)
    done = Round(source=source, ingested=ingested, published=publish(store, publish_to), growing=found.growing)
    create_markdown_artifact(
        "\n".join(f"- {line}" for line in done.lines()), key="nightly", description=f"traces of {source}"
    )
    return done


def run_nightly(
    source: str | Path, publish_to: Path, store: Path, *, settle_s: float = 0.0, calibration: Path | None = None
) -> Round:
    """Runs the flow here and now; Prefect's log is shown on a terminal and only its warnings in a pipe.

    Raises:
        TracegapError: there is no such folder, or its URL has credentials.
    """
    _check(source)
    if not sys.stderr.isatty() and "PREFECT_LOGGING_LEVEL" not in os.environ:
        logging.getLogger("prefect").setLevel(logging.WARNING)
    updates = {PREFECT_SERVER_ANALYTICS_ENABLED: False, PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 120}
    with temporary_settings(updates=updates):
        return nightly(source, publish_to, store, settle_s, calibration)


def _check(source: str | Path) -> None:
    if not (isinstance(source, str) and is_url(source)):
        if not Path(source).is_dir():
            raise TracegapError(f"{source}: no such folder")
    elif (shown := without_credentials(source)) != source:
        where = "give them as docs/sources.md says"
        raise TracegapError(f"{shown}: the URL has credentials or a query, which Prefect would keep; {where}")

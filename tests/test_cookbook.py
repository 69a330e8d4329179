"""Every query of the cookbook runs on the sample traces, and answers."""

import re
from pathlib import Path

import pytest

from tracegap.ingest.store import open_store
from tracegap.reports import console

COOKBOOK = (Path(__file__).parents[1] / "docs" / "cookbook.md").read_text()
QUERIES = dict(re.findall(r"### (.+?)\n\n```sql\n(.+?)```", COOKBOOK, re.DOTALL))
EMPTY = {"Which operations beat their bound, so that a number must be wrong?"}
"""Questions to which the samples have no answer."""


def test_there_are_enough():
    assert len(QUERIES) == COOKBOOK.count("```sql")
    assert len(QUERIES) >= 30


@pytest.fixture(scope="module")
def shut(samples):
    with open_store(samples, read_only=True) as con:
        runs = [r[0] for r in con.execute("select run_id from runs order by run_id").fetchall()]
        console.shut(con, console.Limits())
        yield con, runs


@pytest.mark.parametrize("question", QUERIES)
def test_a_query_answers(question, shut):
    con, runs = shut
    text, found = QUERIES[question], 0
    for run in runs if "$run" in text else runs[:1]:
        values = {"run": run} if "$run" in text else {}
        with console.results(con, text, values, console.Limits()) as results:
            found += sum(len(result.rows()) for result in results)
    assert bool(found) == (question not in EMPTY)

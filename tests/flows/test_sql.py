"""`tracegap sql`: formats, files, parameters, limits, the prompt."""

import csv
import io
import json
import os
import pty
import subprocess
import sys
import time

import polars as pl
import pytest
from click.testing import CliRunner

from tracegap.flows.cli import cli

FIVE = "select range as i, 'r' || range as name, [range] as list from range(5)"


@pytest.fixture
def sql(samples):
    def run(*arguments, text=None):
        return CliRunner().invoke(cli, ["sql", "--store", str(samples), *map(str, arguments)], input=text)

    return run


def test_formats_hold_the_same_rows(sql, tmp_path):
    as_json = json.loads(sql(FIVE, "--format", "json").output)
    assert as_json == [{"i": i, "name": f"r{i}", "list": [i]} for i in range(5)]
    as_csv = list(csv.reader(io.StringIO(sql(FIVE, "--format", "csv").output)))
    assert as_csv == [["i", "name", "list"], *([str(i), f"r{i}", f"[{i}]"] for i in range(5))]
    for form, read in (("parquet", pl.read_parquet), ("arrow", pl.read_ipc)):
        out = tmp_path / f"rows.{form}"
        assert sql(FIVE, "--format", form, "-o", out).exit_code == 0
        assert read(out).rows() == [(i, f"r{i}", [i]) for i in range(5)]
    for form in ("csv", "json"):
        out = tmp_path / f"rows.{form}"
        assert sql(FIVE, "--format", form, "-o", out).exit_code == 0
        assert "r4" in out.read_text()
    shown = sql(FIVE).output
    assert all(f"r{i}" in shown for i in range(5))


def test_a_file_of_queries_answers_each_of_them(sql, tmp_path):
    file = tmp_path / "q.sql"
    file.write_text(
        "-- how many\nselect $least as least;\nselect count(*) as n from range(10) where range >= $least;\n"
    )
    got = sql("-f", file, "-p", "least=4", "--format", "csv")
    assert got.output.splitlines() == ["least", "4", "n", "6"]
    assert sql("-f", "-", "--format", "csv", text="select 7 as seven").output.splitlines() == ["seven", "7"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no query"),
        (("select 1", "--format", "parquet"), "name one with --out"),
        (("select 1", "-o", "x.txt"), "--format csv, json, parquet or arrow"),
        (("select 1", "-f", "-"), "not both"),
        (("select count(*) from range(1000000) a, range(1000000) b", "--timeout", "0.2"), "stopped after 0.2 s"),
        (("select 1", "--memory", "lots"), "no size such as 2GB"),
        (("select 1", "-p", "x"), "name=value"),
    ],
)
def test_mistakes_are_told_and_end_with_status_2(sql, arguments, said):
    got = sql(*arguments)
    assert got.exit_code == 2
    assert said in got.output
    assert "Traceback" not in got.output


def test_a_long_table_is_cut_and_says_so(sql):
    got = sql("select * from range(1500)")
    assert "the first 1000 rows" in got.stderr
    assert "1499" not in got.output


def test_the_prompt_answers_goes_on_after_a_mistake_and_ends(samples):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tracegap", "sql", "--store", str(samples)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True) as process:
        os.close(theirs)
        said = ""
        for line in ("select nonsense;\n", "select 40 +\n", "2 as answer;\n", "\n"):
            said = until(ours, "tracegap> " if line != "2 as answer;\n" else "...> ", said)
            os.write(ours, line.encode())
        rest = until(ours, None, said)
        assert process.wait(timeout=60) == 0
    assert "nonsense" in rest
    assert "the query failed" in rest
    assert "42" in rest


def until(terminal, prompt, said):
    """What a terminal shows until a new prompt stands there, or until it ends."""
    seen, end = len(said), time.monotonic() + 60
    while (prompt is None or prompt not in said[seen:]) and time.monotonic() < end:
        try:
            got = os.read(terminal, 1000).decode(errors="replace")
        except OSError:  # the other side has closed it
            return said
        if not got:
            return said
        said += got
    return said

"""What the README shows is what happens."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tracegap.flows.cli import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def commands():
    blocks = re.findall(r"^```\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    return [line.removeprefix("$ ") for b in blocks for line in b.splitlines() if re.match(r"(\$ )?tracegap ", line)]


@pytest.mark.parametrize("line", commands())
def test_commands_and_their_options_exist(line):
    name, *rest = line.split()[1:]
    shown = CliRunner().invoke(cli, [name, "--help"])
    assert shown.exit_code == 0
    for option in (word for word in rest if word.startswith("-")):
        assert option in shown.output


def test_the_comparison_is_what_the_samples_give(tmp_path):
    block = README.partition("$ tracegap compare ")[2].partition("```")[0]
    command, _, shown = block.partition("\n")
    before, after = (str(ROOT / side) for side in command.split())
    got = CliRunner().invoke(cli, ["compare", "--store", str(tmp_path / "s.duckdb"), before, after])
    lines = [" ".join(line.split()) for line in got.output.splitlines()]
    assert [line for line in lines if line] == [" ".join(line.split()) for line in shown.splitlines() if line.strip()]


def test_pictures_and_pages_are_there():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_buckets_are_those_of_the_account():
    from tracegap.reports.buckets import BUCKETS

    table = README.partition("| nobody knows yet |")[2].partition("\n\n")[0]
    told = [re.findall(r"`(\w+)`", cell) for cell in table.splitlines()[2].strip("|").split("|")]
    assert told == [[b.name for b in BUCKETS if b.group == g] for g in ("minimum", "loss", "unknown")]

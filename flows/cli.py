"""The `tracegap` command: its commands are in `flows.commands`, a module a kind; what they share is in `flows.shell`."""

from collections.abc import Sequence

from tracegap.flows.commands import answers, rounds, sql, theory, traces
from tracegap.flows.shell import DONE, WRONG_USE, cli

COMMANDS = (traces, answers, sql, theory, rounds)
"""Each adds its commands to `cli` when it is imported."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    try:
        cli(args=list(argv) if argv is not None else None, prog_name="tracegap")
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else WRONG_USE
    return DONE

"""What must come of damaged files, by what an expected.json says of them in words."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.suites.facts import of_fact
from tests.suites.measures import UnknownKey, error, events
from tests.suites.same import difference
from tests.suites.subject import Subject

Check = Callable[[Subject, "re.Match[str]", dict[str, Any]], str | None]
"""Says what is wrong, None where all is right. Takes the sound entries of the same expected.json."""


def _reports(*codes: str) -> Check:
    """The damage is reported by one of the codes, and nothing is taken for whole."""

    def check(s: Subject, said: re.Match[str], sound: dict[str, Any]) -> str | None:
        found = error(s)
        return None if found in codes and not any(r.sound for r in s.results) else f"reported as {found}"

    return check


def _whole_events(s: Subject, said: re.Match[str], sound: dict[str, Any]) -> str | None:
    """The damage is reported, and the whole events are read or none."""
    read = events(s)
    wanted = int(said[1])
    if any(r.sound for r in s.results):
        return "taken for whole"
    return None if read in (0, wanted) else f"{read} events read, {wanted} are whole"


def _same_facts(s: Subject, said: re.Match[str], sound: dict[str, Any]) -> str | None:
    """It is read as the file that it is a copy of."""
    facts = sound[said[1]]["facts"]
    found = (
        difference(of_fact(name)(s, name), value, 0, name) for name, value in facts.items() if isinstance(value, int)
    )
    return next((text for text in found if text is not None), None)


RULES: tuple[tuple[str, Check], ...] = (
    (r"same facts as (\S+)", _same_facts),
    (r"(\d+) (?:whole )?events", _whole_events),
    (r"git LFS pointer", _reports("lfs_pointer")),
    (r"empty file", _reports("empty")),
    (r"gzip stream ends early|not a shorter trace without a word", _reports("truncated")),
    (r"disk image is malformed", _reports("malformed", "truncated")),
    (r"not a readable XSpace", _reports("malformed")),
    (r"no traceEvents|not an Nsight Systems export", _reports("foreign")),
)
"""By a pattern in the words; the first that fits."""


def wrong(subject: Subject, expect: str, sound: dict[str, Any]) -> str | None:
    """What is wrong with what came of a damaged file. Raises UnknownKey where the words are not known."""
    for pattern, check in RULES:
        if said := re.search(pattern, expect):
            return check(subject, said, sound)
    raise UnknownKey(f"no rule for {expect!r}")


def report_wrong(subject: Subject, path: Path) -> str | None:
    """What is wrong with what came of an Nsight report: read by the nsys that is here, or the reason why not."""
    found = error(subject)
    allowed = ("no_nsys",) if shutil.which("nsys") is None else (None, "needs_newer_nsys")
    return None if found in allowed else f"{path.name}: reported as {found}, expected one of {allowed}"

"""A comparison as Markdown for a pull request, from `Comparison.as_dict()`."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tracegap.reports import people
from tracegap.reports.comparison_words import devices_differ, first_fix, shown, title, verdict_words

_MOST_CONFIG = 12
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~])")


def markdown(compared: Sequence[Any]) -> str:
    """One or more comparisons with the same first side."""
    return "\n\n".join("\n".join(_of_one(one.as_dict())) for one in compared)


def _of_one(c: dict[str, Any]) -> Iterator[str]:
    tag = " (simulated)" if c["before"]["simulated"] or c["after"]["simulated"] else ""
    yield f"### {_text(c['before']['label'])} → {_text(c['after']['label'])}{tag}: {_text(verdict_words(c))}"
    yield ""
    yield _text(title(c["after"]))
    differ = devices_differ(c)
    if differ:
        yield ""
        yield f"**{_text(differ)}**"
    yield ""
    yield "| | before | after | change |"
    yield "|---|--:|--:|--:|"
    yield _row(
        "**step**",
        people.duration(c["before_ns"]),
        people.duration(c["after_ns"]),
        people.signed_duration(c["delta_ns"]),
    )
    for column, delta in c["buckets"].items():
        if delta:
            old, new = (people.duration(c[side]["buckets"][column]) for side in ("before", "after"))
            yield _row(_text(c["titles"][column]), old, new, people.signed_duration(delta))
    yield _row("MFU", *(people.percent(c[side]["mfu"]) for side in ("before", "after")), "")
    yield ""
    for cause in c["causes"]:
        if cause["bucket"] != "rest":
            yield f"- {people.signed_duration(cause['delta_ns'])} {_text(c['titles'][cause['bucket']])}: {_text(cause['what'])}"
    yield f"- {people.signed_duration(c['causes'][-1]['delta_ns'])} everything else"
    if c["config"]:
        yield ""
        yield "| configuration | before | after |"
        yield "|---|---|---|"
        for line in c["config"][:_MOST_CONFIG]:
            yield _row(*(_text(str(v)) for v in (line["key"], shown(line["before"]), shown(line["after"]))))
        if len(c["config"]) > _MOST_CONFIG:
            yield _row(f"and {len(c['config']) - _MOST_CONFIG} more", "", "")
    fix = first_fix(c)
    if fix:
        yield ""
        yield f"**Fix first:** {_text(fix[0])} saves up to {people.duration(fix[1])} a step."


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _text(said: str) -> str:
    """Text in which nothing is markup."""
    return _SPECIAL.sub(r"\\\1", said.replace("\n", " "))

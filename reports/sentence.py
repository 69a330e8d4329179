"""Sentences with values in them, in the words and units of people."""

import json
import re
import string
from collections.abc import Callable, Mapping
from typing import Any

from tracegap.models.units import human, human_ns, significant

_FORMATS: dict[str, Callable[[Any], str]] = {
    "ns": lambda v: human_ns(float(v)),
    "digits": lambda v: significant(float(v)),
    "bytes": lambda v: human(float(v), "B"),
    "name": lambda v: short_name(str(v)),
    "shapes": lambda v: short_shapes(str(v)),
}
"""Formats of sentences beside Python's own."""


class _Value:
    """A value that knows our formats."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __format__(self, spec: str) -> str:
        return _FORMATS[spec](self.value) if spec in _FORMATS else format(self.value, spec)


def filled(template: str, row: Mapping[str, Any]) -> str:
    """Fills a sentence; a part in double brackets is left out where one of its values is unknown."""

    def part(match: re.Match[str]) -> str:
        inner = match.group(1)
        names = [name for _, name, _, _ in string.Formatter().parse(inner) if name]
        return "" if any(row.get(n) is None for n in names) else inner

    return re.sub(r"\[\[(.*?)\]\]", part, template).format_map({k: _Value(v) for k, v in row.items()})


def short_name(name: str, width: int = 72) -> str:
    """A kernel's name without return type, template arguments and parameters, cut to a width."""
    if "/" in name:  # a path of name scopes
        return name if len(name) <= width else "…" + name[1 - width :]
    bare, depth = "", 0
    for c in name.removeprefix("void "):
        depth += {"<": 1, ">": -1}.get(c, 0)
        if depth == 0 and c != ">":
            bare += c
    bare = bare.replace("(anonymous namespace)::", "").partition("(")[0].strip() or name
    return bare if len(bare) <= width else bare[: width - 1] + "…"


def short_shapes(shapes: str) -> str:
    """Shapes without the empty ones of scalars: "[141,512] [512,512]"."""
    try:
        listed = json.loads(shapes)
    except ValueError:
        return ""
    texts = [
        f"{len(s)} tensors" if isinstance(s[0], list) else json.dumps(s, separators=(",", ":")) for s in listed if s
    ]
    return " ".join(texts) if len(texts) <= 4 else " ".join(texts[:3]) + f" and {len(texts) - 3} more"

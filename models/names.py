"""What somebody may have meant by a name that is not known; for messages alone, never to go on with it."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

SHOWN = 5
"""Names that a message has room for."""


def nearest(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Known names that a word may stand for: the same but for case and signs, else those it begins, else similar ones."""
    by_plain = {_plain(name): name for name in sorted(known)}
    asked = _plain(text)
    if not asked:
        return ()
    if asked in by_plain:
        return (by_plain[asked],)
    begun = [name for plain, name in by_plain.items() if plain.startswith(asked)]
    return tuple((begun or [by_plain[plain] for plain in get_close_matches(asked, by_plain, n=3)])[:SHOWN])


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """A clause such as "; did you mean h100_sxm or h100_pcie?"; nothing where no name is near."""
    near = nearest(text, known)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.casefold())

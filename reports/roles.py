"""What an operation is called in every run: its name without the parts that each compilation makes anew."""

import re

_HASH = r"(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{6,}"
"""Hexadecimal digits, of both kinds: words such as `decade` and numbers such as `128000` are none."""
_HASH_INSIDE = re.compile(rf"[._]{_HASH}(?=[._]|$)")
_RUNNING = re.compile(r"(?:[._](?:\d+|(?:\d+(?:d|c|de)?){2,}))+$")
"""Running numbers (`_3`, `.17`), and Triton's old note of which arguments are divisible or constant (`_0d1d2de`)."""


def role(name: str) -> str:
    """A name without hashes anywhere and running numbers at its end; numbers inside, such as tile sizes, stay.

    `triton_poi_fused_add_3` and `triton_poi_fused_add_7` are the same role, `fusion.12` and `fusion.40` too, and
    `gemm_128x64` is not that of `gemm_64x64`.
    """
    return _RUNNING.sub("", _HASH_INSIDE.sub("", name)) or name

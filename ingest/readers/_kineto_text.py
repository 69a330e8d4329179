"""Text of a Kineto trace between the file and the decoder, and where it can be cut."""

import re
from collections.abc import Callable

BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*")')
"""What looks like the end of one event and the start of the next; it may lie in a string or a list of an event."""


class Text:
    """Text between the file and the decoder, behind one spare byte for the bracket that makes events an array.

    It stays in one place that is filled anew: fresh memory for each block costs half as much as decoding it.
    """

    def __init__(self, text: bytes, block_bytes: int) -> None:
        self._bytes = bytearray(1 + len(text) + 2 * block_bytes)
        self._end = 1
        self._block_bytes = block_bytes
        self.put(text)

    def __len__(self) -> int:
        return self._end - 1

    def put(self, text: bytes) -> None:
        """Replaces all text."""
        self._room(len(text) + 1)
        self._bytes[1 : len(text) + 1] = text
        self._end = len(text) + 1

    def _room(self, size: int) -> None:
        if size > len(self._bytes):
            grown = bytearray(2 * size)  # a new one: blocks that still live point into the old
            grown[: self._end] = memoryview(self._bytes)[: self._end]
            self._bytes = grown

    def more(self, read_into: Callable[[memoryview], int], size: int) -> int:
        """Reads up to `size` bytes more; how many they are."""
        self._room(self._end + size)
        read = read_into(memoryview(self._bytes)[self._end : self._end + size])
        self._end += read
        return read

    def last_boundary(self, searched: int) -> tuple[int, int] | None:
        """The last place from `searched` on that looks like the end of one event and the start of the next."""
        if len(self) < self._block_bytes:
            return None
        for window in (1 << 13, 1 << 16, len(self)):
            found = None
            for found in BOUNDARY.finditer(self._bytes, max(1 + searched, self._end - window), self._end):  # noqa: B007
                pass
            if found:
                return found.start(), found.end() - 1
        return None

    def array(self, length: int) -> memoryview:
        """The first `length` bytes and what follows them as a JSON array; that byte is gone."""
        self._bytes[0], self._bytes[length + 1] = ord("["), ord("]")
        return memoryview(self._bytes)[: length + 2]

    def text(self, start: int = 0, end: int | None = None) -> bytes:
        """A part as bytes of its own."""
        return bytes(memoryview(self._bytes)[1 + start : self._end if end is None else 1 + end])

    def drop(self, length: int) -> None:
        """Takes the first bytes away."""
        left = self._bytes[1 + length : self._end]
        self._bytes[1 : 1 + len(left)] = left
        self._end = 1 + len(left)

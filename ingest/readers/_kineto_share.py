"""A Kineto file collected by one process or, where it is large, by several.

Each of several processes inflates the whole text, which costs little, and decodes every n-th block of it. They take apart
only what is sound: whatever needs a word about its place in the file is read by one process from the start.
"""

import pickle
import sys
import tempfile
from pathlib import Path

import numpy as np

from tracegap.ingest.files import open_plain
from tracegap.ingest.issues import Issues
from tracegap.ingest.processes import running
from tracegap.ingest.readers import _kineto_json
from tracegap.ingest.readers._kineto_events import Collector
from tracegap.ingest.readers._kineto_json import KinetoText, Share, UnusualText
from tracegap.ingest.readers._kineto_spool import SPAN, Spool

SHARED_BYTES = 1 << 27
"""Text that is worth the start of another process."""
_PACKED = 12  # bytes of text to a compressed one, at least; traces have 15 to 50
_MOST = 4  # processes: more would inflate and search more than they decode
_UNUSUAL = 3
"""Exit status of a process that met text which is not for several."""


def collect(path: Path, processes: int) -> tuple[KinetoText, Collector]:
    """Reads a file's text; what is lost is in the issues of the text.

    Raises:
        TraceError: as `KinetoText` and `open_plain`.
    """
    if processes > 1 and _is_large(path):
        try:
            return _together(path, min(processes, _MOST))
        except UnusualText:
            pass
    return _collect(path, Collector())


def _is_large(path: Path) -> bool:
    with path.open("rb") as file:
        packed = file.read(1) not in (b"{", b"[", b" ", b"\n", b"\xef")
    return path.stat().st_size * (_PACKED if packed else 1) >= SHARED_BYTES


def _collect(
    path: Path, collected: Collector, share: Share | None = None, block_bytes: int | None = None
) -> tuple[KinetoText, Collector]:
    with open_plain(path) as stream:
        text = KinetoText(stream, str(path), Issues(), share, block_bytes=block_bytes or _kineto_json.BLOCK_BYTES)
        for block in text.blocks():
            collected.add(block)
    return text, collected


def _together(path: Path, processes: int) -> tuple[KinetoText, Collector]:
    with tempfile.TemporaryDirectory(prefix="tracegap-") as folder:
        results = [Path(folder) / str(number) for number in range(1, processes)]
        commands = [
            [__name__, str(path), str(result), str(processes), str(_kineto_json.BLOCK_BYTES)] for result in results
        ]
        share = Share(0, processes)
        with running(commands) as others:
            if len(others) < len(commands):
                raise UnusualText
            text, collected = _collect(path, Collector(), share)
            # A process that failed for another reason (memory, say) is no reason to fail: one alone tells what is wrong.
            if text.issues.by_code or any(other.wait() for other in others):
                raise UnusualText
            parts = [_load(result) for result in results]
        counts = sorted([*share.counts.items(), *(item for part, _ in parts for item in part.items())])
        if [number for number, _ in counts] != list(range(len(counts))):  # the file grew meanwhile
            raise UnusualText
        firsts = np.cumsum([0, *(events for _, events in counts)])
        for _, part in parts:
            collected.joined(part, firsts)
        text.events = int(firsts[-1])
        return text, collected


def _load(result: Path) -> tuple[dict[int, int], Collector]:
    with result.open("rb") as file:  # our own process wrote it, in a folder that only this user can open
        counts, collected = pickle.load(file)  # noqa: S301
    return counts, collected


def main(path: str, result: str, of: str, block_bytes: str) -> None:
    """One of the other processes: leaves what it collected in the file `result`, whose name is its number."""
    share = Share(int(Path(result).name), int(of))
    try:
        _, collected = _collect(
            Path(path), Collector(spans=Spool(SPAN, Path(result + ".spans"))), share, int(block_bytes)
        )
    except UnusualText:
        sys.exit(_UNUSUAL)
    with Path(result).open("wb") as file:
        pickle.dump((share.counts, collected), file, protocol=5)


if __name__ == "__main__":
    main(*sys.argv[1:])

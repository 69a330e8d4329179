"""A coverage-guided fuzzer for one reader: whatever the bytes, it gives a trace or one of our own errors.

    pip install atheris
    python tests/fuzz/fuzz_reader.py kineto -max_total_time=600 [CORPUS_DIR]

Seeds are the sample traces and the project's own small corpus. What it finds belongs into `tests/fuzz/found/`, which
`tests/test_fuzz.py` reads with every test run.
"""

import contextlib
import gzip
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUFFIX = {"kineto": ".json", "xla_chrome": ".json", "xspace": ".xplane.pb", "nsys": ".sqlite"}
_SEED_BYTES = 200_000


def read(reader: str, data: bytes) -> None:
    """Reads bytes as a file of a reader and accounts every device, as ingesting does; our own errors are right answers."""
    import importlib

    from tracegap.ingest import load
    from tracegap.ingest.errors import InputError

    module = importlib.import_module(f"tracegap.ingest.readers.{reader}")
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(InputError):
        path = Path(folder) / f"t{SUFFIX[reader]}"
        path.write_bytes(data)
        trace = module.read(path)
        load.put_tables(_Nowhere(), trace, "t", "r")


class _Nowhere:
    """Takes rows and forgets them."""

    def add(self, table: str, frame: object, **same: object) -> None:
        pass


def seeds(reader: str) -> list[bytes]:
    """Small sound files of the reader's format."""
    ends = {
        "kineto": ".pt.trace.json.gz",
        "xla_chrome": ".trace.json.gz",
        "xspace": ".xplane.pb.gz",
        "nsys": ".sqlite.gz",
    }
    packed = sorted((ROOT / "sample_traces").rglob(f"*{ends[reader]}"))
    plain = sorted((ROOT / "tests" / "data").rglob(f"*{SUFFIX[reader]}"))
    found = [gzip.decompress(path.read_bytes())[:_SEED_BYTES] for path in packed]
    found += [path.read_bytes()[:_SEED_BYTES] for path in plain]
    return found


def main() -> None:
    """Fuzzes until libFuzzer's own options stop it."""
    import atheris

    reader = sys.argv.pop(1)
    with atheris.instrument_imports(include=["tracegap.ingest"]):
        read(reader, b"")
    with tempfile.TemporaryDirectory() as corpus:
        for i, seed in enumerate(seeds(reader)):
            (Path(corpus) / str(i)).write_bytes(seed)
        atheris.Setup([*sys.argv, corpus, f"-max_len={_SEED_BYTES}"], lambda data: read(reader, data))
        atheris.Fuzz()


if __name__ == "__main__":
    main()

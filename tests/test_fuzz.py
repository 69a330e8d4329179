"""Inputs that once broke a reader: each gives a trace or one of our own errors now."""

import importlib.util
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent / "fuzz"
_spec = importlib.util.spec_from_file_location("fuzz_reader", FUZZ / "fuzz_reader.py")
fuzz_reader = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fuzz_reader)
FOUND = sorted((FUZZ / "found").glob("*/*"))


@pytest.mark.parametrize("path", FOUND, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_what_the_fuzzer_found(path):
    assert fuzz_reader.read(path.parent.name, path.read_bytes()) is None


@pytest.mark.parametrize("reader", fuzz_reader.SUFFIX)
def test_every_reader_takes_nothing_and_noise(reader):
    for data in (b"", b"\0" * 100, b"{}", bytes(range(256)) * 4):
        assert fuzz_reader.read(reader, data) is None


@pytest.mark.parametrize("reader", ["kineto", "xspace", "nsys"])
def test_there_are_seeds_for_every_format(reader):
    assert len(fuzz_reader.seeds(reader)) >= 2

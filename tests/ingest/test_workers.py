"""Files read by several processes make the same store as those read by one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tracegap.ingest import pipeline, store
from tracegap.ingest.errors import InputError
from tracegap.ingest.readers import _kineto_share
from tracegap.ingest.schema import RELATIONS
from tracegap.ingest.trace import Trace
from tracegap.ingest.workers import BIG_BYTES, reading_ahead


def large_trace(folder: Path, rank: int) -> Path:
    """A file of one rank, above the size from which files are read ahead."""
    folder.mkdir(exist_ok=True)
    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "dur": 5, "name": "k" * 60}
    launch = {"ph": "X", "cat": "cuda_runtime", "pid": 1, "tid": 1, "dur": 2, "name": "cudaLaunchKernel"}
    events: list[dict[str, Any]] = []
    for i in range(1, BIG_BYTES // 300):
        args = {"device": 0, "stream": 7, "correlation": i}
        events += [kernel | {"ts": 10 * i + rank, "args": args}, launch | {"ts": 10 * i - 3, "args": args}]
    head = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps(head))
    assert path.stat().st_size > BIG_BYTES
    return path


def tables(folder: Path, name: str, workers: int) -> dict[str, list[tuple[Any, ...]]]:
    with store.open_store(folder / name) as con:
        results = pipeline.ingest_paths(con, [folder / "job"], workers=workers)
        assert [(r.status, r.rank) for r in results] == [("ok", 0), ("ok", 1)]
        shown = {t.name: [c for c in t.names if c != "ingested_at"] for t in RELATIONS}
        return {t: con.execute(f"select {', '.join(c)} from {t} order by all").fetchall() for t, c in shown.items()}


def test_the_number_of_processes_does_not_matter(tmp_path: Path) -> None:
    for rank in (0, 1):
        large_trace(tmp_path / "job", rank)
    alone, together = tables(tmp_path, "one.duckdb", 1), tables(tmp_path, "two.duckdb", 2)
    assert len(alone["ops"]) == 2 * (BIG_BYTES // 300 - 1)
    assert alone == together


def test_a_file_that_cannot_be_read_ahead_says_so_when_it_is_asked_for(tmp_path: Path) -> None:
    files = {}
    for name in ("a", "b"):
        files[tmp_path / f"{name}.json"] = name
        (tmp_path / f"{name}.json").write_text('{"no": "trace"}')
    with reading_ahead(files, pipeline.read_trace, 2) as ahead:
        with pytest.raises(InputError, match="not a trace") as caught:
            ahead.of(tmp_path / "a.json")
        assert caught.value.code == "foreign"
        assert ahead.of(tmp_path / "other.json") is None


def dies_elsewhere(path: Path) -> Trace:
    """Reads in this process; ends any other one at once, as the kernel does where memory runs out."""
    if sys.argv[0].endswith("workers.py"):
        os._exit(9)
    return pipeline.read_trace(path)


def test_what_a_process_that_died_had_is_read_by_this_one(tmp_path: Path) -> None:
    paths = [large_trace(tmp_path / "job", rank) for rank in range(4)]
    with reading_ahead({path: path.name for path in paths}, dies_elsewhere, 3) as ahead:
        read = [(path, ahead.of(path)) for path in paths]
        assert sum(apart is None for _, apart in read) >= 1
        for path, apart in read:
            trace = apart.trace if apart else dies_elsewhere(path)
            assert trace.rank == paths.index(path)


def test_a_main_module_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    for rank in (0, 1):
        large_trace(tmp_path / "job", rank)
    script = tmp_path / "mine.py"
    script.write_text(
        "from tracegap.ingest import pipeline, store\n"
        "print('once')\n"
        "with store.open_store('s.duckdb') as con:\n"
        "    print([r.status for r in pipeline.ingest_paths(con, ['job'], workers=2)])\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "once\n['ok', 'ok']\n"
    assert done.stderr == ""


def test_where_no_process_can_be_started_this_one_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (0, 1):
        large_trace(tmp_path / "job", rank)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    monkeypatch.setattr(_kineto_share, "SHARED_BYTES", 1)
    assert len(tables(tmp_path, "s.duckdb", 2)["traces"]) == 2
    assert len(pipeline.read_trace(tmp_path / "job" / "rank0.json", 2).host_events) > 0

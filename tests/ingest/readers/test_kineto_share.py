"""A Kineto file read by several processes gives what one gives, to the row; what is not sound is read by one."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tracegap.ingest.readers import _kineto_json, _kineto_share, kineto
from tracegap.ingest.readers._kineto_json import UnusualText
from tracegap.ingest.trace import COLLECTIVES, COUNTERS, HOST_EVENTS, MEMORY, OPS, STEP_MARKS, Trace


def _events() -> list[dict[str, Any]]:
    """Two threads, operators with shapes, launches, kernels, collectives, memory samples, begins and ends."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
    device = []
    for i in range(300):
        at, thread = 100.25 * i, 1 + i % 2
        host = {"ph": "X", "pid": 1, "tid": thread}
        if i % 100 == 0:
            events.append(
                host | {"cat": "user_annotation", "name": f"ProfilerStep#{i // 100}", "ts": at, "dur": 10_025}
            )
        shapes = {"Input Dims": [[8, i % 7 + 1], [i % 7 + 1, 8]], "Input type": ["float", "float"]}
        numbers = {"External id": i + 1, "Sequence number": i, "Fwd thread id": thread - 1}
        events += [
            host | {"cat": "cpu_op", "name": f"aten::op{i % 11}", "ts": at, "dur": 90, "args": numbers},
            host | {"cat": "cpu_op", "name": "aten::mm", "ts": at + 1, "dur": 80, "args": shapes | numbers},
            host | {
                "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 2, "dur": 3,
                "args": {"correlation": i + 1, "External id": i + 1},
            },
            {"ph": "s", "cat": "ac2g", "id": i, "pid": 1, "tid": thread, "ts": at + 2, "name": "ac2g"},
            {
                "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": thread, "ts": at + 4, "s": "t",
                "args": {"Total Allocated": i, "Total Reserved": 2 * i, "Device Type": 1, "Device Id": 0, "Addr": 9, "Bytes": i},
            },
            {"ph": "B", "cat": "user_annotation", "name": f"part{i % 5}", "pid": 1, "tid": 9, "ts": at},
            {"ph": "E", "cat": "user_annotation", "name": f"part{i % 5}", "pid": 1, "tid": 9, "ts": at + 50},
        ]  # fmt: skip
        on = {"device": i % 2, "stream": 7 + i % 3, "correlation": i + 1, "External id": i + 1}
        kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "ts": at + 6, "dur": 20.5}
        if i % 10 == 0:
            said = {"Collective name": "allreduce", "In msg nelems": 10 + i, "Out msg nelems": 10 + i, "dtype": "Float"}
            said |= {"Group size": 2, "Process Group Ranks": "[0, 1]", "Process Group Name": "0", "Seq": i}
            device.append(kernel | {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "args": on | said})
        elif i % 17 == 0:
            device.append(kernel | {"cat": "gpu_memcpy", "name": "Memcpy DtoH", "args": on | {"bytes": i}})
        else:
            device.append(kernel | {"name": f"gemm_{i % 13}", "args": on})
    return events + device


def _write(path: Path, events: list[dict[str, Any]], **layout: Any) -> Path:
    text = json.dumps(
        {"schemaVersion": 1, "traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 2}}, **layout
    )
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def _tables(trace: Trace) -> dict[str, Any]:
    ops, comms = [pl.DataFrame(schema=OPS)], [trace.collectives]
    host = pl.concat([batch.cast(HOST_EVENTS) for batch in trace.host_batches()])
    for _, frame in trace.by_device():
        ops.append(frame.cast(OPS))
        comms.append(trace.collectives)
    return {
        "ops": pl.concat(ops).cast(OPS).sort("op_id").rows(),
        "host_events": host.sort("event_id").rows(),
        "collectives": pl.concat(comms).cast(COLLECTIVES).unique().sort("op_id").rows(),
        "step_marks": trace.step_marks.cast(STEP_MARKS).rows(),
        "counters": trace.counters.cast(COUNTERS).rows(),
        "memory": trace.memory.cast(MEMORY).rows(),
        "facts": trace.facts,
        "issues": trace.issues.rows(),
        "devices": trace.devices,
    }


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kineto_json, "BLOCK_BYTES", 3000)
    monkeypatch.setattr(_kineto_share, "SHARED_BYTES", 1)


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize(
    ("name", "layout"), [("t.json", {}), ("t.json.gz", {"indent": 2}), ("t.json", {"separators": (",", ":")})]
)
def test_several_processes_read_what_one_reads(
    tmp_path: Path, processes: int, name: str, layout: dict[str, Any]
) -> None:
    path = _write(tmp_path / name, _events(), **layout)
    text, _ = _kineto_share._together(path, processes)  # it did not fall back to one
    assert text.events == len(_events())
    alone, together = (_tables(kineto.read(path, n)) for n in (1, processes))
    assert len(alone["ops"]) == 300
    assert len(alone["counters"]) == 600
    assert len(alone["memory"]) == 300
    assert alone == together


def test_the_order_of_events_does_not_matter_to_several_processes(tmp_path: Path) -> None:
    events = _events()
    random.Random(4).shuffle(events)
    path = _write(tmp_path / "t.json", events)
    assert _tables(kineto.read(path, 1)) == _tables(kineto.read(path, 2))


@pytest.mark.parametrize("where", [0.2, 0.5, 0.97])
@pytest.mark.parametrize("damage", ["cut", "byte", "inf"])
def test_what_is_not_sound_is_read_by_one(tmp_path: Path, where: float, damage: str) -> None:
    path = _write(tmp_path / "t.json", _events())
    text = path.read_text()
    at = text.index('"ts": ', int(where * len(text)))
    path.write_text(
        {
            "cut": text[:at],
            "byte": text[:at] + "?" + text[at + 1 :],
            "inf": text[:at] + '"ts": inf, "was' + text[at + 1 :],
        }[damage]
    )
    with pytest.raises(UnusualText):
        _kineto_share._together(path, 2)
    alone, together = (_tables(kineto.read(path, n)) for n in (1, 2))
    assert alone == together
    assert damage == "inf" or any(row["severity"] != "info" for row in alone["issues"])
    assert damage != "inf" or alone["facts"]["null_fields"] == 1


def test_a_file_is_shared_only_where_that_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kineto_share, "SHARED_BYTES", 1 << 27)
    monkeypatch.setattr(_kineto_share, "_together", None)  # it is not called
    assert len(kineto.read(_write(tmp_path / "t.json", _events()), 2).host_events) > 0

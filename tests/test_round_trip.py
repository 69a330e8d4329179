"""Whatever the simulator writes, in any of the three formats and in any order of its records, comes back as the same rows.

The schedule is the simulator's own, from before anything was written.
"""

import gzip
import importlib
import random
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracegap.ingest import pipeline
from tracegap.ingest.protobuf import messages
from tracegap.ingest.trace import HOST_EVENTS, OPS, Trace

SAMPLES = Path(__file__).parents[1] / "sample_traces"
XSPACE = messages(
    "shuffled",
    {
        "Space": "planes 1 Plane*",
        "Plane": "name 2 str; lines 3 Line*",
        "Line": "name 2 str; events 4 Event*",
        "Event": "id 1 i64; stats 4 bytes*",
    },
)


@pytest.fixture(scope="module")
def sim() -> Iterator[dict[str, Any]]:
    sys.path.insert(0, str(SAMPLES))
    yield {name: importlib.import_module(f"_sim.{name}") for name in ("ddp", "fsdp", "kineto", "nsys", "xspace")}
    sys.path.remove(str(SAMPLES))


# Records in another order


def shuffle_kineto(path: Path, order: random.Random) -> None:
    head, _, rest = gzip.decompress(path.read_bytes()).decode().partition("[\n")
    events, _, tail = rest.partition("\n]")
    lines = events.split(",\n")
    order.shuffle(lines)
    text = ",\n".join(lines)
    path.write_bytes(gzip.compress(f"{head}[\n{text}\n]{tail}".encode()))


def shuffle_nsys(path: Path, order: random.Random) -> None:
    con = sqlite3.connect(":memory:")
    con.deserialize(gzip.decompress(path.read_bytes()))
    for (table,) in con.execute("select name from sqlite_master where type = 'table'").fetchall():
        rows = con.execute(f"select * from {table}").fetchall()
        order.shuffle(rows)
        con.execute(f"delete from {table}")
        if rows:
            con.executemany(f"insert into {table} values ({', '.join('?' * len(rows[0]))})", rows)
    con.commit()
    path.write_bytes(gzip.compress(con.serialize()))
    con.close()


def shuffle_xspace(path: Path, order: random.Random) -> None:
    space = XSPACE["Space"].FromString(gzip.decompress(path.read_bytes()))
    for part in [space.planes, *(p.lines for p in space.planes), *(x.events for p in space.planes for x in p.lines)]:
        records = list(part)
        order.shuffle(records)
        del part[:]
        part.extend(records)
    path.write_bytes(gzip.compress(space.SerializeToString()))


# Rows of a trace, in absolute time


def operations(trace: Trace) -> pl.DataFrame:
    frames = [frame.cast(OPS) for _, frame in trace.by_device()]
    return pl.concat(frames).with_columns(start=pl.col("start_ns") + trace.origin_unix_ns)


def rows_of_work(trace: Trace) -> Counter[Any]:
    ops = operations(trace).with_columns(launch=pl.col("launch_ns") + trace.origin_unix_ns)
    return Counter(ops.select("stream", "start", "dur_ns", "launch", "correlation_id").rows())


def rows_of_host(trace: Trace) -> Counter[Any]:
    host = pl.concat([batch.cast(HOST_EVENTS) for batch in trace.host_batches()])
    return Counter(host.select(pl.col("start_ns") + trace.origin_unix_ns, "dur_ns").rows())


def told(trace: Trace) -> list[tuple[Any, ...]]:
    """All that is said of operations and host events, whatever their numbers."""
    host = pl.concat([batch.cast(HOST_EVENTS) for batch in trace.host_batches()])
    ops = operations(trace)
    parents = host.select(parent_id="event_id", above="name", above_ns="start_ns")
    nested = host.join(parents, on="parent_id", how="left").drop("event_id", "parent_id")
    comms = trace.collectives.join(ops.select("op_id", "start_ns", "device_id"), on="op_id").drop("op_id")
    return [sorted(frame.rows(), key=repr) for frame in (ops.drop("op_id", "start"), nested, comms)]  # type: ignore[misc]


SIZES = {
    "ranks": st.integers(1, 3),
    "layers": st.integers(1, 2),
    "hidden": st.sampled_from([64, 256]),
    "steps": st.integers(1, 4),
    "first_step": st.integers(0, 10_000),
    "bucket_cap_mb": st.sampled_from([1, 25]),
    "stall_ns": st.sampled_from([0, 400_000]),
}
FIXED = {"heads": 4, "vocab": 512, "sequences": 1, "seq": 128}


@settings(max_examples=15)
@given(sizes=st.fixed_dictionaries(SIZES), seed=st.integers(0, 2**32), rank=st.integers(0, 2))
@pytest.mark.parametrize("form", ["kineto", "nsys"])
def test_a_gpu_job_comes_back(
    sim: dict[str, Any], tmp_path_factory: Any, *, form: str, sizes: dict[str, Any], seed: int, rank: int
) -> None:
    job = sim["ddp"].Job(**sizes, **FIXED, slow_rank=0, spared_step=sizes["first_step"] + 1)
    worker = sim["ddp"].simulate(job)[rank % job.ranks]
    folder = tmp_path_factory.mktemp("trip")
    if form == "kineto":
        path, zero = folder / "t.pt.trace.json.gz", sim["kineto"].BASE_NS + sim["kineto"].SHIFT_NS
    else:
        path, zero = folder / "t.sqlite.gz", sim["nsys"].START_UNIX_NS + sim["nsys"].EVENTS_AFTER_NS
    sim[form].write(job, worker, path)
    trace = pipeline.read_trace(path)
    scheduled = Counter(
        (op.stream, zero + op.start_ns, op.end_ns - op.start_ns, zero + op.launch.start_ns, op.launch.correlation)
        for op in worker.ops
    )
    assert rows_of_work(trace) == scheduled
    spans = Counter((zero + span.start_ns, span.end_ns - span.start_ns) for span in worker.spans)
    assert rows_of_host(trace) == spans
    assert not trace.issues.lost_data
    {"kineto": shuffle_kineto, "nsys": shuffle_nsys}[form](path, random.Random(seed))
    again = pipeline.read_trace(path)
    assert told(again) == told(trace)
    assert not again.issues.lost_data


@settings(max_examples=15)
@given(
    layers=st.integers(1, 3), steps=st.integers(1, 4), first=st.integers(0, 500), hidden=st.sampled_from([256, 1024]),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_a_tpu_job_comes_back(
    sim: dict[str, Any], tmp_path_factory: Any, *, layers: int, steps: int, first: int, hidden: int, seed: int
) -> None:
    job = sim["fsdp"].Job(layers=layers, steps=steps, first_step=first, hidden=hidden, heads=8, seq=512, vocab=1024)
    host = sim["fsdp"].simulate(job)
    path = tmp_path_factory.mktemp("trip") / "t.xplane.pb.gz"
    sim["xspace"].write(host, path)
    trace = pipeline.read_trace(path)
    zero = sim["xspace"].START_UNIX_NS
    scheduled = Counter(
        (f"TPU:{chip.chip}", zero + op.start_ns, op.end_ns - op.start_ns, op.step)
        for chip in host.chips
        for op in chip.ops
    )
    assert Counter(operations(trace).select("device_id", "start", "dur_ns", "step").rows()) == scheduled
    assert not trace.issues.lost_data
    shuffle_xspace(path, random.Random(seed))
    again = pipeline.read_trace(path)
    assert told(again) == told(trace)
    assert not again.issues.lost_data

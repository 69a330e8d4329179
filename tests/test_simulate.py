"""The simulator: its files are the same every time, its truth keeps its laws and agrees with the files themselves."""

import gzip
import importlib
import json
import sqlite3
import sys
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

SAMPLES = Path(__file__).resolve().parents[1] / "sample_traces"
NAMES = ("sim_h100_before", "sim_h100_after", "sim_nsys_h100", "sim_tpu_v5p")
STATES = ("compute_ns", "exposed_comm_ns", "exposed_copy_ns", "idle_ns")
KINETO_STATE = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy"}

Op = tuple[int, int, str, int]
"""start, end, state, step"""


@pytest.fixture(scope="module")
def sim() -> Iterator[Any]:
    sys.path.insert(0, str(SAMPLES))
    names = ("schedule", "truth", "ddp", "h100", "fsdp", "sets")
    yield {name: importlib.import_module(f"_sim.{name}") for name in names}
    sys.path.remove(str(SAMPLES))


def truth(name: str) -> dict[str, Any]:
    return json.loads((SAMPLES / name / "truth.json").read_text())


# The same files


def content(path: Path) -> Any:
    """What a file says, whatever versions of zlib and SQLite packed it."""
    if path.name.endswith(".sqlite.gz"):
        con = sqlite3.connect(":memory:")
        con.deserialize(gzip.decompress(path.read_bytes()))
        rows = list(con.iterdump())
        con.close()
        return rows
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_regenerating_gives_the_committed_files(sim: Any, name: str, tmp_path: Path) -> None:
    into = sim["sets"].write(name, tmp_path)
    files = sorted(p.name for p in into.iterdir())
    assert files == sorted(p.name for p in (SAMPLES / name).iterdir())
    for file in files:
        assert content(into / file) == content(SAMPLES / name / file), file


# Laws of the truth


@pytest.mark.parametrize("name", NAMES)
def test_every_nanosecond_is_in_one_state_and_one_bucket(name: str) -> None:
    for row in truth(name)["steps"]:
        buckets = row["buckets"]
        assert sum(row[s] for s in STATES) == row["wall_ns"] == sum(buckets.values())
        assert sum(row["shares_ns"].values()) == row["compute_ns"]
        assert buckets["exposed_copy_ns"] == row["exposed_copy_ns"]
        assert sum(v for k, v in buckets.items() if k.startswith("idle_")) == row["idle_ns"]
        assert sum(v for k, v in buckets.items() if k.startswith("comm_")) == row["exposed_comm_ns"]
        assert min(buckets.values()) >= 0, "no operation beats its bound"


@pytest.mark.parametrize("name", NAMES)
def test_windows_tile_the_timeline_of_a_device(name: str) -> None:
    rows = truth(name)["steps"]
    for a, b in pairwise(rows):
        if a.get("rank", a.get("device")) == b.get("rank", b.get("device")):
            assert a["start_ns"] + a["wall_ns"] == b["start_ns"]
            assert a["step"] + 1 == b["step"]


@pytest.mark.parametrize("name", NAMES)
def test_collectives_wait_for_the_last_rank(name: str) -> None:
    for row in truth(name)["collectives"]:
        assert row["arrival_ns"] == max(row["start_ns"])
        assert min(row["wait_ns"]) == 0
        for wait, transfer, exposed in zip(row["wait_ns"], row["transfer_ns"], row["exposed_ns"], strict=True):
            assert transfer >= row["predicted_ns"] > 0
            assert 0 <= exposed <= wait + transfer


def test_busbw_of_the_first_all_reduce_by_hand() -> None:
    row = truth("sim_h100_before")["collectives"][0]
    # 24,576,000 gradients of the output matrix in bf16 over 8 ranks: 80 us + S * 14 / 8 / 250 GB/s
    assert row["message_bytes"] == 49_152_000
    assert row["transfer_ns"] == [80_000 + 344_064] * 8
    assert row["busbw_gb_per_s"][0] == pytest.approx(49_152_000 * 1.75 / 424_064, abs=1e-6)
    assert row["predicted_ns"] == 15_000 + 191_147


def test_every_cause_of_idleness_occurs() -> None:
    rows = truth("sim_h100_before")["steps"]
    for cause in ("host", "sync", "input", "gap"):
        assert sum(row["buckets"][f"idle_{cause}_ns"] for row in rows) > 0


def test_smaller_buckets_cost_exposed_communication_and_little_else() -> None:
    found = truth("sim_h100_after")["compared_with"]
    buckets = found["median_step_bucket_delta_ns"]
    assert sum(buckets.values()) == pytest.approx(found["median_step_wall_delta_ns"], abs=1e-3)
    assert found["exposed_comm_delta_ns"] > 0.98 * found["median_step_wall_delta_ns"] > 1_000_000
    assert found["all_reduces_a_step"] == [5, 26]


def test_the_manifests_of_the_pair_differ_in_the_bucket_size(sim: Any) -> None:
    before, after = (sim["sets"].SETS[n].manifest["config"] for n in ("sim_h100_before", "sim_h100_after"))
    assert {k for k in before if before[k] != after[k]} == {"ddp.bucket_cap_mb", "run.seed", "run.label"}


# The truth against the files


def covered(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Union of intervals, in order."""
    out: list[tuple[int, int]] = []
    for a, b in sorted(spans):
        if out and a <= out[-1][1]:
            out[-1] = (out[-1][0], max(b, out[-1][1]))
        else:
            out.append((a, b))
    return out


def measure_ns(spans: list[tuple[int, int]]) -> int:
    return sum(b - a for a, b in covered(spans))


def states(ops: list[Op]) -> dict[int, tuple[int, int, int, int, int]]:
    """Wall, compute, exposed communication, exposed copy, idle of each step, from unions of ever more operations."""
    first: dict[int, int] = {}
    for start, _, state, step in ops:
        if state != "copy":
            first[step] = min(start, first.get(step, start))
    steps = sorted(first)
    edges = [first[s] for s in steps] + [max(end for _, end, _, step in ops if step == steps[-1])]
    out = {}
    for i, step in enumerate(steps):
        a, b = edges[i], edges[i + 1]
        sums, seen = [], set()
        for state in ("compute", "comm", "copy"):
            seen.add(state)
            sums.append(measure_ns([(max(s, a), min(e, b)) for s, e, st, _ in ops if st in seen and s < b and e > a]))
        compute, with_comm, busy = sums
        out[step] = (b - a, compute, with_comm - compute, busy - with_comm, b - a - busy)
    return out


def expected(name: str, key: str, value: Any) -> dict[int, tuple[int, ...]]:
    rows = [row for row in truth(name)["steps"] if row[key] == value]
    return {row["step"]: (row["wall_ns"], *(row[s] for s in STATES)) for row in rows}


def nanoseconds(text: str) -> int:
    """Of a number with decimals: thousandths of it, where it has no more than three of them."""
    return int(Decimal(text) * 1000)


@pytest.mark.parametrize("name", ["sim_h100_before", "sim_h100_after"])
@pytest.mark.parametrize("rank", [0, 3])
def test_states_from_the_kineto_file(name: str, rank: int) -> None:
    data = json.loads(
        gzip.decompress((SAMPLES / name / f"rank{rank}.pt.trace.json.gz").read_bytes()), parse_float=nanoseconds
    )
    events = [e for e in data["traceEvents"] if e["ph"] == "X"]
    marks = [
        (e["ts"], e["ts"] + e["dur"], int(e["name"].split("#")[1]))
        for e in events
        if e["cat"] == "user_annotation" and e["name"].startswith("ProfilerStep#")
    ]
    launched = {e["args"]["correlation"]: e["ts"] for e in events if e["cat"] == "cuda_runtime"}
    ops: list[Op] = []
    for e in events:
        if e["cat"] in KINETO_STATE:
            launch = launched[e["args"]["correlation"]]
            step = next(n for a, b, n in marks if a <= launch < b)
            state = "comm" if e["name"].startswith("nccl") else KINETO_STATE[e["cat"]]
            ops.append((e["ts"], e["ts"] + e["dur"], state, step))
    assert states(ops) == expected(name, "rank", rank)
    first = min(s for s, _, st, step in ops if step == 10 and st != "copy")
    row = next(r for r in truth(name)["steps"] if r["rank"] == rank and r["step"] == 10)
    assert data["baseTimeNanoseconds"] + first == truth(name)["origin_unix_ns"] + row["start_ns"]


@pytest.mark.parametrize("rank", [0, 1])
def test_states_from_the_nsys_file(rank: int) -> None:
    name = "sim_nsys_h100"
    con = sqlite3.connect(":memory:")
    con.deserialize(gzip.decompress((SAMPLES / name / f"rank{rank}.sqlite.gz").read_bytes()))
    work = (
        "SELECT start, end, correlationId, iif(value LIKE 'nccl%', 'comm', 'compute') "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName "
        "UNION ALL SELECT start, end, correlationId, 'copy' FROM CUPTI_ACTIVITY_KIND_MEMCPY "
        "UNION ALL SELECT start, end, correlationId, 'copy' FROM CUPTI_ACTIVITY_KIND_MEMSET"
    )
    rows = con.execute(
        f"WITH w (start, end, correlationId, state) AS ({work}) "
        "SELECT w.start, w.end, w.state, CAST(substr(n.text, 6) AS INT) FROM w "
        "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = w.correlationId "
        "JOIN NVTX_EVENTS n ON n.text LIKE 'step %' AND r.start >= n.start AND r.start < n.end"
    ).fetchall()
    (epoch,) = con.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    con.close()
    assert states(rows) == expected(name, "rank", rank)
    row = next(r for r in truth(name)["steps"] if r["rank"] == rank)
    first = min(start for start, _, state, step in rows if state != "copy" and step == row["step"])
    assert epoch + first == truth(name)["origin_unix_ns"] + row["start_ns"]


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Fields of a protobuf message: number, and a whole number or bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            size = varint() if key & 7 == 2 else 8
            yield key >> 3, data[at : at + size]
            at += size


def test_states_from_the_xspace_file() -> None:
    data = gzip.decompress((SAMPLES / "sim_tpu_v5p" / "tpu-host-0.xplane.pb.gz").read_bytes())
    devices = 0
    for number, plane in fields(data):
        parts = list(fields(plane)) if number == 1 else []
        label = next((v for f, v in parts if f == 2), b"").decode()
        if not label.startswith("/device:"):
            continue
        devices += 1
        names = {}
        for _, entry in (p for p in parts if p[0] == 4):
            meta = dict(fields(dict(fields(entry))[2]))
            names[meta[1]] = meta[2].decode()
        lines: dict[str, list[tuple[int, int, str]]] = {}
        for _, line in (p for p in parts if p[0] == 3):
            inside = list(fields(line))
            events = [dict(fields(v)) for f, v in inside if f == 4]
            name = dict(inside)[2].decode()
            lines[name] = [(e[2] // 1000, (e[2] + e[3]) // 1000, names[e[1]]) for e in events]
        steps = [(a, b, int(n)) for a, b, n in lines["Steps"]]
        ops: list[Op] = []
        for a, b, text in lines["XLA Ops"] + lines["Async XLA Ops"]:
            opcode = text[1:].split(".")[0]
            if (a, b, text) not in lines["Async XLA Ops"] and opcode.endswith(("-start", "-done")):
                continue
            state = {"copy-start": "copy"}.get(opcode)
            kinds = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute")
            state = state or ("comm" if opcode.startswith(kinds) else "compute")
            ops.append((a, b, state, next(n for s, e, n in steps if s <= a < e)))
        assert states(ops) == expected("sim_tpu_v5p", "device", label.removeprefix("/device:"))
    assert devices == 4


# The truth against a schedule small enough to count on fingers


def test_account_of_a_step_by_hand(sim: Any) -> None:
    schedule, truth_ = sim["schedule"], sim["truth"]

    def launch(start: int) -> Any:
        return schedule.HostSpan(span_id=0, thread="t", kind="launch", name="launch", start_ns=start, end_ns=start + 2)

    def op(start: int, end: int, op_class: str, launched: int, step: int = 0, **rest: Any) -> Any:
        times = {"start_ns": start, "end_ns": end, "launch": launch(launched)}
        return schedule.DeviceOp(stream="s", name=op_class, op_class=op_class, step=step, **times, **rest)

    call = schedule.Collective(kind="all_reduce", seq=1, message_bytes=8, dtype="bf16")
    cost = schedule.Cost(flops=6, bytes=10, matrix=True)
    ours = [
        op(10, 20, "matmul", 2, cost=cost),
        op(16, 18, "custom", 4),  # shares 2 ns with the product: 1 ns each
        op(18, 60, "collective", 6, collective=call),  # exposed from 20 on, the other rank comes at 40
        op(66, 70, "copy", 64),
        op(110, 120, "matmul", 108, 1, cost=cost),
    ]
    theirs = [op(40, 60, "collective", 30, collective=call), op(110, 120, "matmul", 108, 1, cost=cost)]
    host = [
        schedule.HostSpan(span_id=1, thread="t", kind="sync", name="wait", start_ns=40, end_ns=72),
        schedule.HostSpan(span_id=2, thread="t", kind="input", name="load", start_ns=75, end_ns=100),
    ]
    devices = [
        truth_.Device(label={"rank": i}, ops=o, spans=host, mark_thread="t") for i, o in enumerate((ours, theirs))
    ]
    chip = truth_.Chip(matrix_flops_per_s=2 * 10**9, vector_flops_per_s=10**9, hbm_bytes_per_s=2 * 10**9)
    row = truth_.Truth(devices, chip, lambda _: 15).step_rows(lambda op: op.name)[0]
    assert {k: v for k, v in row.items() if k not in ("buckets", "shares_ns")} == {
        "rank": 0,
        "step": 0,
        "start_ns": 10,
        "wall_ns": 100,
        "compute_ns": 10,
        "exposed_comm_ns": 40,
        "exposed_copy_ns": 4,
        "idle_ns": 46,
    }
    assert row["shares_ns"] == {"matmul": 9, "custom": 1}
    assert {k.removesuffix("_ns"): v for k, v in row["buckets"].items() if v} == {
        "useful_math": 3,  # 6 FLOP at 2 a nanosecond
        "memory_bound": 2,  # 10 bytes at 2 a nanosecond take 5
        "kernel_inefficiency": 4,  # 9 ns of share
        "unmodelled_compute": 1,
        "comm_wait": 20,
        "comm_minimum": 15,
        "comm_inefficiency": 5,
        "exposed_copy": 4,
        "idle_sync": 4 + 2,  # 60 to 64, launched at 64; 70 to 72
        "idle_gap": 2 + 2,  # 64 to 66; 108 to 110
        "idle_host": 3 + 8,  # 72 to 75, 100 to 108
        "idle_input": 25,
    }


def test_ranks_that_disagree_are_refused(sim: Any) -> None:
    schedule = sim["schedule"]

    def program(seq: int) -> Any:
        call = schedule.Collective(kind="all_reduce", seq=seq, message_bytes=4, dtype="fp32")
        yield schedule.Arrival(call, 0)

    with pytest.raises(ValueError, match="disagree"):
        schedule.run([program(1), program(2)], lambda _: 10)


def test_bucket_sizes_add_up_to_the_trainable_parameters(sim: Any) -> None:
    job = sim["sets"].DDP_AFTER
    h, f, layers = 768, 3072, 6
    block = 4 * h * h + 2 * h * f + (3 * h + h + f + h) + 4 * h
    assert sum(size for _, size in job.buckets()) == 2 * (layers * block + 1024 * h + 2 * h + 32000 * h)

"""Uneven all-to-alls: what is sent is what is received, and the busiest rank decides how long it takes."""

import gzip
import json

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracegap.ingest.pipeline import ingest_paths
from tracegap.ingest.store import frame_of, open_store
from tracegap.reports import join, predictions

ROWS = ("hardware", "collective", "message_bytes", "group_size", "group_ranks", "rank", "peer", "instance_id", "sent_bytes",
        "received_bytes", "send_splits")  # fmt: skip


def write(path, rank, matrix, width=2):
    """A Kineto trace of one all-to-all of bf16 in which rank i sends `matrix[i][j]` elements to rank j."""
    sent, received = matrix[rank], [row[rank] for row in matrix]
    args = {
        "device": 0, "stream": 20, "correlation": 1, "Collective name": "all_to_allv", "dtype": "BFloat16", "Seq": 0,
        "In msg nelems": sum(sent), "Out msg nelems": sum(received), "In split size": str(sent), "Out split size": str(received),
        "Group size": len(matrix), "Process Group Name": "ep", "Process Group Ranks": str(list(range(len(matrix)))),
    }  # fmt: skip
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0.0, "dur": 900.0},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 5.0, "dur": 2.0,
         "args": {"correlation": 1}},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "pid": 0, "tid": 20,
         "ts": 20.0 + rank, "dur": 100.0 - rank, "args": args},
    ]  # fmt: skip
    trace = {
        "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": len(matrix)}, "traceEvents": events,
    }  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))


def exchange(folder, matrix, ranks=None):
    folder.mkdir(exist_ok=True)
    for rank in range(len(matrix)) if ranks is None else ranks:
        write(folder / f"rank{rank}.pt.trace.json.gz", rank, matrix)
    with open_store(folder / "s.duckdb") as con:
        results = ingest_paths(con, [folder])
        assert {r.status for r in results} == {"ok"}
        join.evaluate_stale(con, [r.run_id for r in results])
        gap = frame_of(
            con,
            """
            select rank, instance_id, message_bytes, sent_bytes, received_bytes, predicted_ns, predicted_by, wait_ns
            from collective_gap order by rank
            """,
        )
        splits = frame_of(con, "select rank, send_splits, recv_splits from collectives order by rank")
    return gap, splits


MATRIX = [[5_000_000, 45_000_000, 1_000_000], [2_000_000, 9_000_000, 3_000_000], [4_000_000, 90_000_000, 7_000_000]]


def test_by_hand(tmp_path):
    # bf16, 450 GB/s out of and into each H100. Out of rank 0: 46e6 x 2 B; out of rank 2: 94e6 x 2 B; into rank 1: 135e6 x 2 B =
    # 270 MB, the most: 600 us, and 7.2 us of latency.
    gap, splits = exchange(tmp_path / "a", MATRIX)
    assert gap["sent_bytes"].to_list() == [92_000_000, 10_000_000, 188_000_000]
    assert gap["received_bytes"].to_list() == [12_000_000, 270_000_000, 8_000_000]
    assert gap["message_bytes"].to_list() == [102_000_000, 28_000_000, 202_000_000]
    assert gap["instance_id"].n_unique() == 1
    assert gap["predicted_ns"].to_list() == [607_200] * 3
    assert gap["predicted_by"][0] == "switch, 450 GB/s, uneven: its busiest rank or link"
    assert gap["wait_ns"].to_list() == [2_000, 1_000, 0]
    assert json.loads(splits["send_splits"][2]) == [8_000_000, 180_000_000, 14_000_000]
    assert json.loads(splits["recv_splits"][1]) == [90_000_000, 18_000_000, 180_000_000]


def test_one_rank_alone_knows_its_own_part_only(tmp_path):
    # Rank 0 sends 92 MB, more than it receives: 204.4 us at 450 GB/s; that others send more it cannot know, and says so.
    gap, _ = exchange(tmp_path / "a", MATRIX, ranks=[0])
    assert gap["predicted_ns"].to_list() == [pytest.approx(92e6 / 450 + 7_200, abs=1)]
    assert gap["predicted_by"][0].endswith("uneven: the busiest of 1 ranks that are seen")


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(2, 4).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 10**6), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_what_is_sent_is_what_is_received(tmp_path_factory, matrix):
    if any(sum(row) == 0 or sum(r[i] for r in matrix) == 0 for i, row in enumerate(matrix)):
        return  # a rank without a buffer has no size
    gap, splits = exchange(tmp_path_factory.mktemp("e"), matrix)
    assert gap["sent_bytes"].sum() == gap["received_bytes"].sum()
    for i, row in enumerate(matrix):
        # Equal parts are not spelled out.
        assert splits["send_splits"][i] == (
            None if len(set(row)) == 1 else json.dumps([2 * n for n in row], separators=(",", ":"))
        )


def asked(config=None, **row):
    base = dict.fromkeys(ROWS) | {
        "hardware": "h100_sxm", "collective": "all_reduce", "message_bytes": 450_000_000, "group_size": 8, "rank": 0
    }  # fmt: skip
    schema = {c: pl.String if c in ("hardware", "collective", "group_ranks", "send_splits") else pl.Int64 for c in ROWS}
    frame = pl.DataFrame([base | row], schema=schema)
    return [series[0] for series in predictions.predictions(frame, {}, predictions.algorithm_of(config or {}))]


def test_a_message_to_a_peer_goes_over_the_links_between_the_two():
    # Pipeline group [0, 8, 16, 24]: rank 8 sends 50 MB to rank 16, node 1 to node 2, at 50 GB/s: 1 ms and one step.
    row = {
        "collective": "send",
        "message_bytes": 50_000_000,
        "group_size": 4,
        "group_ranks": "[0,8,16,24]",
        "rank": 8,
        "peer": 16,
    }
    ns, by, *_ = asked(**row)
    assert by == "2 domains of 1 (switch, 450 GB/s), network 50.0 GB/s a device"
    assert ns == 1_000_000 + 6_600 + 5_000
    # To rank 9 of the same node it would be NVLink.
    near, by, *_ = asked(**row | {"peer": 9, "group_ranks": "[8,9]"})
    assert by == "switch, 450 GB/s"
    assert near == round(50e6 / 450) + 7_200


def test_the_configuration_asks_for_reduction_in_the_network():
    # NVLS: 450 MB once over 450 GB/s and 25 us, where the ring sends it 1.75 times.
    assert asked({"env.NCCL_ALGO": "NVLS"})[0] == 1_000_000 + 25_000
    assert asked()[0] == 1_750_000 + 6_600 + 14 * 600
    # NVLS gathers no all-to-all: that goes as ever.
    assert asked({"nccl_algo": "nvls"}, collective="all_to_all")[:2] == asked(collective="all_to_all")[:2]


def test_a_barrier_without_a_size_is_latency_alone():
    assert asked(collective="barrier", message_bytes=None)[0] == 6_600 + 14 * 600


def test_nccls_own_choice_stands_beside_the_bound():
    # 1,576,964 B over 8 V100: ring/ll128 14 + 14 x 1.9 us, and 1.75 x S over 0.92 x 6 x 20 GB/s.
    *_, ns, by = asked(hardware="v100_sxm2_16", message_bytes=1_576_964)
    assert by == "ring/ll128"
    assert ns == pytest.approx(40_600 + 1.75 * 1_576_964 / 110.4, abs=1)
    assert asked(hardware="mi300x")[2:] == [None, "mi300x is no part whose NVLinks NCCL's model knows"]

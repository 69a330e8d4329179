"""The Kineto reader, on small traces written here: text and damage, times, what is device work, steps, metadata."""

import contextlib
import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.ingest.errors import TraceError
from tracegap.ingest.readers import _kineto_host, _kineto_json, _kineto_spool, kineto
from tracegap.ingest.trace import COLLECTIVES, COUNTERS, HOST_EVENTS, OPS, STEP_MARKS, Trace

HEAD = '{"schemaVersion": 1, "traceEvents": ['


def kernel(ts: Any, dur: Any, name: str = "k", corr: int = 0, stream: int = 7, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
        "args": {"device": 0, "stream": stream, "correlation": corr, **args},
    }  # fmt: skip


def span(cat: str, name: str, ts: Any, dur: Any, tid: Any = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def put(folder: Path, text: str | bytes, name: str = "t.json") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(folder: Path, events: list[Any], name: str = "t.json", **metadata: Any) -> Trace:
    return kineto.read(put(folder, json.dumps({"schemaVersion": 1, **metadata, "traceEvents": events}), name))


def lost(trace: Trace) -> list[str]:
    return [row["code"] for row in trace.issues.rows() if row["severity"] != "info"]


# --- text ---------------------------------------------------------------------------------------------------------


EVENTS = [kernel(10 * i, 5, f"k{i}", i + 1) for i in range(6)]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(EVENTS),
        json.dumps({"traceEvents": EVENTS}),
        json.dumps({"traceEvents": EVENTS, "traceName": "x"}, indent=1),
        "\ufeff \n"
        + json.dumps({"a": [{"b": 1}, {"c": 2}], "traceEvents": EVENTS, "deviceProperties": [{}, {"x": 1}]}),
        "[\n" + ",\n".join(json.dumps(e) for e in EVENTS) + ",\n",  # a bare array may lack its end
        json.dumps({"traceEvents": [*EVENTS, {}]}),  # an empty object is no event
        json.dumps({"traceEvents": EVENTS})[:-2] + ",\n]}",  # a comma before the end
        json.dumps([dict(sorted(e.items())) for e in EVENTS]),  # keys in another order
    ],
)
def test_every_way_to_write_the_same_events_reads_the_same(tmp_path: Path, text: str) -> None:
    trace = kineto.read(put(tmp_path, text))
    assert trace.ops["name"].to_list() == [f"k{i}" for i in range(6)]
    assert trace.facts["events"] == 6
    assert lost(trace) == []


def test_the_tables_have_the_columns_of_the_contract(tmp_path: Path) -> None:
    trace = read(tmp_path, [*EVENTS, span("user_annotation", "ProfilerStep#1", 0, 60)])
    assert dict(trace.ops.schema) == OPS
    assert dict(trace.host_events.schema) == HOST_EVENTS
    assert dict(trace.step_marks.schema) == STEP_MARKS
    assert dict(trace.collectives.schema) == COLLECTIVES
    assert dict(trace.counters.schema) == COUNTERS


@given(
    block=st.integers(40, 4000),
    indent=st.sampled_from([None, 0, 2]),
    nested=st.lists(st.booleans(), min_size=1, max_size=30),
)
def test_where_blocks_are_cut_does_not_matter(
    tmp_path_factory, block: int, indent: int | None, nested: list[bool]
) -> None:
    events = [
        kernel(10 * i, 5, '}, {"ph": "k"', i + 1, **({"list": [{"a": 1}, {"b": [{"c": 2}, {"d": 3}]}]} if deep else {}))
        for i, deep in enumerate(nested)
    ]
    path = put(
        tmp_path_factory.mktemp("k"), json.dumps({"traceEvents": events, "tail": [{"x": 1}, {"y": 2}]}, indent=indent)
    )
    usual = _kineto_json.BLOCK_BYTES
    _kineto_json.BLOCK_BYTES = block
    try:
        trace = kineto.read(path)
    finally:
        _kineto_json.BLOCK_BYTES = usual
    assert trace.ops["start_ns"].to_list() == [10_000 * i for i in range(len(events))]
    assert lost(trace) == []


def test_numbers_that_are_none_become_null_and_names_stay(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [kernel(1, 2, "inf<nan, -inf>", x="<1>"), kernel(4, 0, "z", y="<2>")]})
    trace = kineto.read(put(tmp_path, text.replace('"<1>"', "-inf").replace('"<2>"', "NaN")))
    assert trace.ops["name"].to_list() == ["inf<nan, -inf>", "z"]
    assert trace.facts["null_fields"] == 2
    assert lost(trace) == []


def test_raw_control_characters_and_bytes_in_names_are_kept_repaired(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [kernel(1, 2, "a@b"), kernel(3, 2, "c#d"), kernel(5, 2, "e~f")]}).encode()
    text = text.replace(b"@", b"\x07").replace(b"#", b"\n").replace(b"~", b"\xff")
    trace = kineto.read(put(tmp_path, text))
    assert trace.ops["name"].to_list() == ["a\x07b", "c\nd", "e\ufffdf"]
    assert lost(trace) == []
    assert "raw_text" in trace.issues.by_code


@pytest.mark.parametrize("damaged", range(6))
def test_a_damaged_event_is_counted_and_all_others_are_read(tmp_path: Path, damaged: int) -> None:
    events = [json.dumps(e) for e in EVENTS]
    events[damaged] = events[damaged].replace(f'"k{damaged}"', 'say("a", "b")"')
    trace = kineto.read(put(tmp_path, HEAD + ",\n".join(events) + "]}"))
    assert trace.ops["name"].to_list() == [f"k{i}" for i in range(6) if i != damaged]
    assert trace.facts["damaged_events"] == 1
    issue = trace.issues.by_code["malformed"]
    assert (issue.severity, issue.count) == ("data_loss", 1)
    assert issue.where.endswith(f"event {damaged}")


@given(at=st.integers(len(HEAD) + 1, 900))
def test_a_file_cut_anywhere_keeps_the_whole_events_before(tmp_path_factory, at: int) -> None:
    whole = HEAD + ", ".join(json.dumps(e) for e in EVENTS) + "]}"
    text = whole[:at]
    trace = kineto.read(put(tmp_path_factory.mktemp("k"), text))
    complete = sum(text.count(json.dumps(e)) for e in EVENTS)
    assert trace.ops.height == complete
    assert lost(trace) == (["truncated"] if text != whole else [])


def test_a_cut_gzip_keeps_what_could_be_unpacked(tmp_path: Path) -> None:
    import random

    junk = random.Random(1).randbytes(20_000).hex()
    events = [*EVENTS[:3], span("python_function", junk, 0, 1), *EVENTS[3:]]
    packed = gzip.compress(json.dumps({"traceEvents": events}).encode())
    trace = kineto.read(put(tmp_path, packed[: len(packed) // 2]))
    assert trace.ops.height == 3
    assert lost(trace) == ["truncated"]


def test_metadata_cut_behind_whole_events(tmp_path: Path) -> None:
    text = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS, "traceName": "abc"})
    trace = kineto.read(put(tmp_path, text[:-5]))
    assert trace.ops.height == 6
    assert lost(trace) == ["truncated"]
    assert trace.config["torch.profiler.schemaVersion"] == 1


def test_one_event_larger_than_many_blocks(tmp_path: Path) -> None:
    events = [*EVENTS[:3], span("python_function", "deep", 1, 3, **{"Call stack": "x" * (3 << 20)}), *EVENTS[3:]]
    trace = read(tmp_path, events)
    assert (trace.facts["events"], trace.ops.height) == (7, 6)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ('{"schema": "1.0.1", "pid": 1, "nodes": []}', "foreign"),
        ('{"hello": 1}', "foreign"),
        ("no json at all", "foreign"),
        ('{"schemaVersion": 1, "device', "truncated"),
        (json.dumps({"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": []}), "foreign"),
        (json.dumps({"traceEvents": EVENTS}) * 2, "interleaved"),
        (
            HEAD + json.dumps(EVENTS[0]) + ", " + HEAD + json.dumps(EVENTS[1]) + "," + json.dumps(EVENTS[2]) + "]}]}",
            "interleaved",
        ),
    ],
)
def test_files_of_which_nothing_can_be_used(tmp_path: Path, text: str, code: str) -> None:
    with pytest.raises(TraceError) as error:
        kineto.read(put(tmp_path, text))
    assert error.value.code == code
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("head", "known"),
    [
        (b'\n{\n  "schemaVersion": 1,', True),
        (b'[\n{"ph": "X", "cat": "Kernel"', True),
        (b'{"schema": "1.0", "nodes": [', True),  # so that `read` says what it is
        (b'{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[{"ph":"M"', False),
        (b'{"job": "x"}', False),
        (b"\x0a\x05plane", False),
        (b"SQLite format 3\0", False),
    ],
)
def test_sniff(head: bytes, known: bool) -> None:
    assert kineto.sniff("any.name", head) is known


# --- times --------------------------------------------------------------------------------------------------------


@given(
    base=st.sampled_from([0, 4_458_676_388_068, 7_889_237_999_999, 1_753_862_400_123_456]),
    times=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**7)), min_size=1, max_size=8),
    as_text=st.booleans(),
)
def test_times_are_exact_to_the_nanosecond(
    tmp_path_factory, base: int, times: list[tuple[int, int]], as_text: bool
) -> None:
    def us(ns: int) -> str:
        text = f"{ns // 1000}.{ns % 1000:03}"
        return f'"{text}"' if as_text else text

    starts = [base * 1000 + start for start, _ in times]
    events = [
        f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":{i},"ts":{us(s)},"dur":{us(d)}}}'
        for i, (s, (_, d)) in enumerate(zip(starts, times, strict=True))
    ]
    trace = kineto.read(put(tmp_path_factory.mktemp("k"), "[" + ",".join(events) + "]"))
    origin = trace.facts["ts_offset_ns"]
    assert (trace.ops["start_ns"] + origin).to_list() == starts
    assert trace.ops["dur_ns"].to_list() == [d for _, d in times]


def test_both_ends_are_rounded_never_the_length(tmp_path: Path) -> None:
    # 0.4 ns to 1.6 ns: the ends round to 0 and 2; 0.6 to 1.4 both to 1
    trace = read(tmp_path, [kernel(0.0004, 0.0012), kernel(0.0006, 0.0008, stream=8)])
    assert trace.ops.select("start_ns", "dur_ns").rows() == [(0, 2), (1, 0)]


def test_integer_and_missing_times(tmp_path: Path) -> None:
    events = [
        kernel(1_606_910_596_288_053, 13),
        span("cpu_op", "aten::mm", 1_606_910_596_288_000, None),
        kernel(1_606_910_596_288_060, None, stream=8),
        kernel(None, 5, stream=9),
    ]
    del events[1]["dur"], events[2]["dur"]
    trace = read(tmp_path, events)
    assert trace.origin_unix_ns == 1_606_910_596_288_000_000
    assert trace.ops.select("start_ns", "dur_ns").rows() == [(53_000, 13_000)]
    assert trace.host_events.select("start_ns", "dur_ns").rows() == [(0, 0)]
    assert lost(trace) == ["lost_timestamp", "missing_duration"]
    assert trace.facts["kernel_records"] == 3
    assert trace.facts["kernels_valid"] == 1
    assert trace.facts["lost_timestamps"] == 1


def test_the_base_time_is_added(tmp_path: Path) -> None:
    trace = read(tmp_path, [kernel(100.5, 1), kernel(102, 1)], baseTimeNanoseconds=1_711_964_646_000_000_000)
    assert trace.origin_unix_ns == 1_711_964_646_000_100_500
    assert trace.ops["start_ns"].to_list() == [0, 1500]


def test_small_times_are_no_unix_times(tmp_path: Path) -> None:
    trace = read(tmp_path, [kernel(100, 1)])
    assert trace.origin_unix_ns is None
    assert trace.ops["start_ns"].to_list() == [100_000]


def test_a_time_written_as_zero_because_it_was_before_the_base_is_none(tmp_path: Path) -> None:
    trace = read(tmp_path, [kernel(0, 5), kernel(4_458_676_388_068.25, 5)], baseTimeNanoseconds=10**18)
    assert trace.ops.height == 1
    assert trace.origin_unix_ns == 10**18 + 4_458_676_388_068_250
    assert lost(trace) == ["lost_timestamp"]


def test_negative_lengths_are_left_out_and_zero_is_a_length(tmp_path: Path) -> None:
    trace = read(tmp_path, [kernel(1, 0), kernel(5, -3, stream=8)])
    assert trace.ops["dur_ns"].to_list() == [0]
    assert (trace.facts["zero_durations"], trace.facts["negative_durations"]) == (1, 1)
    assert lost(trace) == ["negative_duration"]


def test_a_device_of_which_no_record_is_sound_is_no_cpu_trace(tmp_path: Path) -> None:
    trace = read(tmp_path, [kernel(5, -3), span("cpu_op", "aten::mm", 0, 5)])
    assert (trace.ops.height, trace.devices) == (0, [])


def test_work_that_outlasts_the_recording_is_cut_where_the_next_on_its_stream_starts(tmp_path: Path) -> None:
    trace = read(tmp_path, [kernel(0, 10), kernel(10, 18_446_744_073), kernel(30, 10), kernel(41, 5), kernel(43, 5)])
    assert trace.ops["dur_ns"].to_list() == [10_000, 20_000, 10_000, 5_000, 5_000]  # a true overlap stays
    assert lost(trace) == ["impossible_duration"]


@given(order=st.permutations(range(9)))
def test_the_order_of_events_does_not_matter(tmp_path_factory, order: list[int]) -> None:
    events = [
        span("user_annotation", "ProfilerStep#3", 0, 100),
        span("cpu_op", "aten::linear", 10, 30, **{"External id": 1}),
        span("cpu_op", "aten::mm", 12, 20, **{"Input Dims": [[2, 3], [3, 5]], "Input type": ["float", "float"]}),
        span("cuda_runtime", "cudaLaunchKernel", 15, 5, correlation=8),
        kernel(40, 10, "gemm", 8, bytes=None),
        {"ph": "B", "cat": "P", "name": "slice", "pid": 1, "tid": 2, "ts": 1},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 9},
        kernel(60, 10, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 9, stream=20),
        {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#3", "pid": 0, "tid": 7, "ts": 40, "dur": 10},
    ]  # fmt: skip
    trace = read(tmp_path_factory.mktemp("k"), [events[i] for i in order])
    columns = ("name", "op_class", "framework_op", "start_ns", "dur_ns", "flops", "bytes", "launch_ns", "launch_thread")
    assert sorted(trace.ops.select(columns).rows()) == [
        ("gemm", "matmul", "aten::mm", 40_000, 10_000, 60, 4 * (6 + 15 + 10), 15_000, "1/1"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "collective", None, 60_000, 10_000, None, None, None, None),
    ]
    host = trace.host_events
    names = dict(host.select("event_id", "name").rows())
    nesting = {names[e]: (names.get(p), s) for e, p, s in host.select("event_id", "parent_id", "self_ns").rows()}
    assert nesting == {
        "ProfilerStep#3": (None, 70_000),
        "aten::linear": ("ProfilerStep#3", 10_000),
        "aten::mm": ("aten::linear", 15_000),
        "cudaLaunchKernel": ("aten::mm", 5_000),
        "slice": (None, 8_000),
    }
    assert trace.step_marks.rows() == [(3, None, 0, 100_000, "profiler_step", "1/1")]


# --- host spans ---------------------------------------------------------------------------------------------------


def test_begin_end_and_complete_events_with_the_same_times(tmp_path: Path) -> None:
    def slice_(ph: str, ts: int, **more: Any) -> dict[str, Any]:
        return {"ph": ph, "pid": 1, "tid": 1, "ts": ts, **more}

    trace = kineto.read(
        put(
            tmp_path,
            json.dumps(
                [
                    slice_("X", 10, cat="P", name="outer", dur=20),
                    slice_("B", 10, cat="P", name="inner"),
                    slice_("E", 30),
                    slice_("B", 30, cat="P", name="next"),
                    slice_("E", 40),
                    slice_("E", 50),
                    slice_("B", 60, cat="P", name="never"),
                ]
            ),
        )
    )
    assert trace.host_events.select("name", "dur_ns", "self_ns").rows() == [
        ("outer", 20_000, 0),
        ("inner", 20_000, 20_000),
        ("next", 10_000, 10_000),
    ]
    assert (trace.facts["unmatched_begin"], trace.facts["unmatched_end"], trace.facts["open"]) == (1, 1, ["never"])


def test_kinds_of_host_spans(tmp_path: Path) -> None:
    events = [
        span("cpu_op", "aten::mm", 0, 1),
        span("python_function", "train.py(3): step", 2, 1),
        span("python_function", "nn.Module: Linear_0", 4, 1),
        span("cuda_runtime", "cudaLaunchKernel", 6, 1),
        span("cuda_runtime", "cudaDeviceSynchronize", 8, 1),
        span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 1),
        span("Operator", "ProfilerStep#4", 12, 1),
        {"ph": "X", "name": "nn.Module: Old_0", "pid": 1, "tid": 1, "ts": 14, "dur": 1},
    ]
    kinds = read(tmp_path, events).host_events["kind"].to_list()
    assert kinds == ["op", "python", "module", "launch", "sync", "input", "step", "module"]


def test_labels_waits_and_windows_on_device_lanes_are_no_work(tmp_path: Path) -> None:
    lane = {"ph": "X", "pid": 0, "tid": 7, "ts": 0, "dur": 100}
    events = [
        kernel(10, 5),
        {**lane, "cat": "gpu_user_annotation", "name": "ProfilerStep#1"},
        {**lane, "cat": "cuda_sync", "name": "Stream Wait Event"},
        {**lane, "cat": "cuda_event", "name": "record"},
        {**lane, "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler"},
    ]
    trace = read(tmp_path, events)
    assert (trace.ops.height, trace.host_events.height, trace.step_marks.height) == (1, 0, 0)
    assert trace.facts["by_cat"] == {"Trace": 1, "cuda_event": 1, "cuda_sync": 1, "gpu_user_annotation": 1, "kernel": 1}
    assert trace.facts["steps_on_gpu_rows"] == 1


def test_memory_samples_are_counters(tmp_path: Path) -> None:
    args = {"Device Type": 1, "Device Id": 2, "Bytes": -512, "Total Allocated": 1024, "Total Reserved": 4096}
    sample = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 3, "args": args}
    assert read(tmp_path, [kernel(0, 1), sample]).counters.rows() == [
        ("2", "allocated_bytes", 3000, 1024.0),
        ("2", "reserved_bytes", 3000, 4096.0),
    ]


def test_memory_events_keep_piece_and_thread(tmp_path: Path) -> None:
    args = {
        "Device Type": 1,
        "Device Id": 0,
        "Addr": 140_000_000_000_000,
        "Total Allocated": 1024,
        "Total Reserved": 4096,
    }
    sample = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 2, "ts": 3}
    old = {"Device Type": 0, "Device Id": -1, "Bytes": 4}  # PyTorch 1.9: no address, no totals
    events = [kernel(0, 1), sample | {"args": args | {"Bytes": 512}}, sample | {"ts": 5, "args": args | {"Bytes": -512}},
              sample | {"ts": 6, "args": old}]  # fmt: skip
    assert read(tmp_path, events).memory.select(
        "device_id", "thread", "ts_ns", "address", "bytes", "allocated_bytes", "reserved_bytes", "source"
    ).rows() == [
        ("0", "1/2", 3000, 140_000_000_000_000, 512, 1024, 4096, "torch_allocator"),
        ("0", "1/2", 5000, 140_000_000_000_000, -512, 1024, 4096, "torch_allocator"),
        ("cpu", "1/2", 6000, None, 4, None, None, "torch_allocator"),
    ]


# --- metadata -----------------------------------------------------------------------------------------------------


def test_rank_and_world_come_from_distributed_info(tmp_path: Path) -> None:
    trace = read(tmp_path, EVENTS, "rank7.json", distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8})
    assert (trace.rank, trace.world_size) == (3, 8)
    assert trace.config["distributed.backend"] == "nccl"


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-3.json.gz", 3),
        ("worker7_step_12.1694128201545.pt.trace.json", 7),
        ("trace_rank_0.json", 0),
        ("tp0_pp1_rank5.json", 5),
        ("r0-2025-7-30-14-46.1741988781221064630.pt.trace.json", None),
        ("rank_not_found.json", None),
        ("frank2.json", None),
    ],
)
def test_a_rank_from_the_name_is_marked(tmp_path: Path, name: str, rank: int | None) -> None:
    trace = read(tmp_path, EVENTS, name)
    assert trace.rank == rank
    assert ("rank_from_name" in trace.issues.by_code) is (rank is not None)


def test_devices_with_properties(tmp_path: Path) -> None:
    h100 = {
        "name": "NVIDIA H100 80GB HBM3",
        "totalGlobalMem": 85029158912,
        "computeMajor": 9,
        "computeMinor": 0,
        "numSms": 132,
    }
    trace = read(tmp_path, EVENTS, deviceProperties=[{"id": 0, **h100}, {"id": 1, **h100}])
    (device,) = trace.devices
    assert (device.device_id, device.kind, device.name) == ("0", "gpu", "NVIDIA H100 80GB HBM3")
    assert device.properties == {"memory_bytes": 85029158912, "core_count": 132, "compute_capability": "9.0"}


def test_a_device_number_that_is_not_listed_takes_what_all_have_in_common(tmp_path: Path) -> None:
    events = [kernel(1, 1, device=2)]
    events[0]["args"]["device"] = 2
    listed = [
        {"id": 0, "name": "MI300X", "numSms": 304, "totalGlobalMem": 1},
        {"id": 1, "name": "MI300X", "numSms": 300},
    ]
    (device,) = read(tmp_path, events, deviceProperties=listed).devices
    assert (device.device_id, device.name, device.properties) == ("2", "MI300X", {})


def test_configuration_keeps_no_keys_that_jobs_add(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        EVENTS,
        with_stack=1,
        record_shapes=1,
        username="somebody",
        tw_job="secret",
        cuda_runtime_version=12040,
    )
    assert trace.config == {
        "torch.profiler.schemaVersion": 1,
        "torch.profiler.record_shapes": 1,
        "torch.profiler.with_stack": 1,
        "torch.profiler.cuda_runtime_version": 12040,
    }


def test_what_the_profiler_warned_of_reaches_the_reader(tmp_path: Path) -> None:
    trace = read(tmp_path, EVENTS, WARNING=["WARNING: 12 records dropped", "WARNING: again"])
    issue = trace.issues.by_code["profiler_warning"]
    assert (issue.count, "12 records dropped" in issue.message) == (2, True)


# --- layouts of versions ------------------------------------------------------------------------------------------


def test_layout_of_1_8(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "Operator", "name": "aten::mm", "pid": 9, "tid": "77", "ts": 100, "dur": 50,
         "args": {"Input dims": [[2, 3], [3, 5]], "Input type": ["float", "float"], "External id": 4}},
        {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": "77", "ts": 110, "dur": 5,
         "args": {"cbid": 211, "correlation": 60031, "external id": 4}},
        {"ph": "X", "cat": "Kernel", "name": "volta_sgemm_128x64_nn", "pid": 0, "tid": "stream 7", "ts": 120, "dur": 30,
         "args": {"device": 0, "stream": 7, "correlation": 60031, "external id": 4}},
        {"ph": "X", "cat": "Memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": "stream 7", "ts": 160, "dur": 3,
         "args": {"device": 0, "stream": 7, "correlation": 1, "bytes": 4096}},
        {"ph": "X", "cat": "Memset", "name": "Memset", "pid": 0, "tid": "stream 7", "ts": 170, "dur": 1,
         "args": {"device": 0, "stream": 7, "correlation": 2, "bytes": 64}},
        {"ph": "s", "id": 60031, "pid": 9, "tid": 77, "ts": 110, "cat": "async", "name": "launch"},
    ]  # fmt: skip
    trace = kineto.read(put(tmp_path, json.dumps(events)))
    assert trace.ops.select("stream", "op_class", "framework_op", "flops", "bytes").rows() == [
        ("7", "matmul", "aten::mm", 60, 4 * (6 + 15 + 10)),
        ("7", "copy", None, 0, 4096),
        ("7", "memset", None, 0, 64),
    ]
    assert trace.facts["flows"] == {"async:s": 1}
    assert trace.facts["cpu_ops_with_input_dims"] == 1
    assert trace.facts["top_level"] == "array"


def test_layout_of_mtia(tmp_path: Path) -> None:
    events = [
        span("mtia_runtime", "launch", 0, 2, correlation=5),
        {**kernel(3, 4, "matmul_op", 5), "cat": "mtia_ccp_events"},
    ]
    trace = read(tmp_path, events)
    assert trace.ops.select("name", "launch_ns").rows() == [("matmul_op", 0)]
    assert [d.kind for d in trace.devices] == ["accelerator"]


def test_strange_types_do_not_lose_events(tmp_path: Path) -> None:
    events = [
        kernel(1, 1, "a"),
        {**kernel(2, 1, "b"), "args": None},
        {**kernel(3, 1, "c"), "args": []},
        {**kernel(4, 1), "name": 7},
        kernel(5, 1, "e", **{"Comms Id": 10159970886766084423}),
        {**kernel(6, 1, "f"), "args": {"correlation": 2**64 + 5, "stream": "7", "device": "0"}},
        "no event",
    ]
    trace = read(tmp_path, events)
    assert trace.ops["name"].to_list() == ["a", "b", "c", "7", "e", "f"]
    assert trace.ops["start_ns"].to_list() == [1000, 2000, 3000, 4000, 5000, 6000]


def test_damage_beside_strange_types_is_still_damage(tmp_path: Path) -> None:
    strange = {**kernel(2, 1, "b"), "args": []}
    text = json.dumps([kernel(1, 1, "a"), strange, kernel(3, 1, "c"), kernel(4, 1, "d")])
    trace = kineto.read(put(tmp_path, text.replace('"c"', '"c" oops')))
    assert trace.ops["name"].to_list() == ["a", "b", "d"]
    assert trace.facts["damaged_events"] == 1


def test_bytes_that_are_no_text_in_arguments(tmp_path: Path) -> None:
    event = span("cpu_op", "aten::add", 0, 5, **{"Input Dims": [[2], [2]], "Concrete Inputs": ["@", ""]})
    trace = kineto.read(put(tmp_path, json.dumps([event]).encode().replace(b"@", b"\xff")))
    assert trace.ops["name"].to_list() == ["aten::add"]


@given(data=st.data())
def test_no_damage_makes_it_fail_otherwise_than_by_a_trace_error(tmp_path_factory, data: st.DataObject) -> None:
    text = bytearray(json.dumps({"traceEvents": EVENTS, "deviceProperties": [{"id": 0}, {"id": 1}]}).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        end = at + data.draw(st.integers(0, 20))
        text[at:end] = data.draw(
            st.sampled_from([b'"', b"}", b"{", b"]", b"[", b",", b"nan", b"\\", b"\n", b"\xff", b""])
        )
        text += b" " * (not text)
    with contextlib.suppress(TraceError):
        trace = kineto.read(put(tmp_path_factory.mktemp("k"), bytes(text)))
        assert trace.ops.height + trace.host_events.height <= 7


def test_facts_count_the_raw_file(tmp_path: Path) -> None:
    events = [
        *EVENTS,
        span("user_annotation", "ProfilerStep#2", 0, Decimal("60.5").__float__()),
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {"ph": "i", "name": "Iteration Start", "pid": "Traces", "tid": "x", "s": "g", "ts": 1},
    ]
    facts = read(tmp_path, events).facts
    assert facts["events"] == 9
    assert facts["by_phase"] == {"M": 1, "X": 7, "i": 1}
    assert facts["by_cat"] == {"kernel": 6, "user_annotation": 1}
    assert facts["instants_by_cat"] == {"None": 1}
    assert (facts["kernels"], facts["kernel_time_ns"], facts["memcpys"]) == (6, 30_000, 0)
    assert facts["step_dur_ns"] == {"ProfilerStep#2": 60_500}
    assert (facts["ts_min_ns"], facts["end_max_ns"]) == (0, 60_500)


def test_no_events_are_no_error(tmp_path: Path) -> None:
    trace = read(tmp_path, [])
    assert isinstance(trace.ops, pl.DataFrame)
    assert (trace.ops.height, trace.devices, lost(trace)) == (0, [], [])


# --- what a file without device work may be ------------------------------------------------------------------------


OP = span("cpu_op", "aten::mm", 10, 5, **{"Input Dims": [[2, 2], [2, 2]], "Input type": ["float", "float"]})
LAUNCH = span("cuda_runtime", "cudaLaunchKernel", 11, 1, correlation=5)
GPUS = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}, {"id": 1, "name": "NVIDIA H100 80GB HBM3"}]


def cut(folder: Path, events: list[Any], **head: Any) -> Trace:
    """A file that breaks off behind some events."""
    whole = json.dumps({**head, "traceEvents": [*events, OP]})
    return kineto.read(put(folder, whole[: whole.rindex("Input type")]))


def test_a_file_cut_before_the_work_of_its_devices_has_no_cpu_device(tmp_path: Path) -> None:
    for trace in (cut(tmp_path, [OP, LAUNCH], deviceProperties=[]), cut(tmp_path, [OP])):
        assert (trace.devices, len(trace.ops), len(trace.collectives)) == ([], 0, 0)
        assert len(trace.host_events) >= 1
        assert {"truncated", "no_device_work"} <= set(trace.issues.by_code)


def test_a_file_cut_before_the_work_of_its_gpus_lists_them(tmp_path: Path) -> None:
    trace = cut(tmp_path, [OP], deviceProperties=GPUS)
    assert [(d.device_id, d.kind, d.name) for d in trace.devices] == [(g, "gpu", GPUS[0]["name"]) for g in ("0", "1")]
    assert len(trace.ops) == 0


def test_a_whole_file_or_one_that_says_that_there_is_no_gpu_is_of_a_cpu(tmp_path: Path) -> None:
    for trace in (
        read(tmp_path, [OP]),
        read(tmp_path, [OP], deviceProperties=GPUS),
        cut(tmp_path, [OP], deviceProperties=[]),
    ):
        assert [d.kind for d in trace.devices] == ["cpu"]
        assert trace.ops["name"].to_list() == ["aten::mm"]


def test_the_size_of_windows_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps, modules and ops that are open at the end of a window, a launch in an op, a backward pass elsewhere."""
    events: list[Any] = []
    for i in range(60):
        at = 100 * i
        events += [
            span("cpu_op", "aten::linear", at + 5, 50, **{"Sequence number": i}),
            span(
                "cpu_op",
                "aten::mm",
                at + 10,
                30,
                **{"Input Dims": [[2, i + 1], [i + 1, 2]], "Input type": ["float"] * 2},
            ),
            span("cpu_op", "MmBackward0", at + 60, 30, tid=2, **{"Sequence number": i, "Fwd thread id": 1}),
            span("cpu_op", "aten::add", at + 38, 20),  # overlaps its neighbour
        ]
    events += [span("user_annotation", f"ProfilerStep#{n}", 1500 * n, 1500) for n in range(4)]
    events += [span("python_function", "nn.Module: Net_0", 0, 6100), span("python_function", "nn.Module: L_1", 3, 1400)]
    for i in range(60):
        events += [
            span("cuda_runtime", "cudaLaunchKernel", 100 * i + 20, 3, correlation=2 * i + 1),
            kernel(100 * i + 25, 20, "gemm", 2 * i + 1),
            span("cuda_runtime", "cudaLaunchKernel", 100 * i + 70, 3, tid=2, correlation=2 * i + 2),
            kernel(100 * i + 75, 20, "gemm", 2 * i + 2),
        ]
    whole = read(tmp_path, events, distributedInfo={"rank": 0, "world_size": 1})
    for module, name, value in (
        (_kineto_host, "WINDOW_ROWS", 20),
        (_kineto_json, "BLOCK_BYTES", 1000),
        (_kineto_spool, "CHUNK_ROWS", 50),
        (kineto, "LARGE_ROWS", 50),
    ):
        monkeypatch.setattr(module, name, value)
    parts = read(tmp_path, events, distributedInfo={"rank": 0, "world_size": 1})
    batches = [batch.cast(HOST_EVENTS) for batch in parts.host_batches()]
    assert len(batches) > 3
    assert pl.concat(batches).sort("event_id").equals(whole.host_events)
    assert len(parts.ops) == 0
    assert pl.concat([ops.cast(OPS) for _, ops in parts.by_device()]).equals(whole.ops)
    assert whole.ops["module"].unique().sort().to_list() == ["Net_0", "Net_0/L_1"]
    assert whole.ops["flops"].sum() == sum(8 * (i + 1) for i in range(60))

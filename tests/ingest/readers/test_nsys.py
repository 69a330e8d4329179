"""What the Nsight Systems reader makes of hand-made exports; expected values are worked out by hand beside the rows."""

import json
import sqlite3

import pytest
from tests.ingest.readers.nsys_rows import (
    ADD,
    ADD_ID,
    COPY_ID,
    GEMM,
    GEMM_ID,
    KERNEL,
    LAUNCH_ID,
    MEMCPY,
    MEMSET,
    NAMES,
    NVTX,
    PID,
    RUNTIME,
    SHORT_ID,
    SYNC_ID,
    TID,
    P,
    T,
    codes,
    kernel,
    launch,
    pushed,
    read,
    write,
)

from tracegap.ingest import steps
from tracegap.ingest.readers import nsys
from tracegap.ingest.trace import COLLECTIVES, COUNTERS, HOST_EVENTS, OPS, STEP_MARKS


def test_device_work_of_all_kinds(tmp_path):
    trace = read(
        tmp_path,
        kernel=(KERNEL, [kernel(1000, 1500, 1), kernel(1500, 1600, 2, ADD_ID, stream=8)]),
        memcpy=(MEMCPY, [(100, 300, 0, 1, 9, 3, P, 4096, 1), (700, 800, 0, 1, 9, 4, P, 64, 2)]),
        memset=(MEMSET, [(310, 320, 0, 1, 9, 5, P, 0, 1024)]),
        graph=(
            "start end deviceId contextId streamId correlationId globalPid graphId graphExecId",
            [(2000, 9000, 0, 1, 7, 6, P, 3, 12)],
        ),
        runtime=(RUNTIME, [launch(10, 20, 1), launch(30, 40, 2), launch(50, 55, 3, COPY_ID)]),
    )
    got = trace.ops.select("op_id", "name", "op_class", "stream", "start_ns", "dur_ns", "bytes", "cost_source").rows()
    assert got == [
        (0, GEMM, "matmul", "7", 1000, 500, None, "none"),
        (1, ADD, "elementwise", "8", 1500, 100, None, "none"),
        (2, "Memcpy HtoD", "copy", "9", 100, 200, 4096, "trace"),
        (3, "Memcpy DtoH", "copy", "9", 700, 100, 64, "trace"),
        (4, "Memset", "memset", "9", 310, 10, 1024, "trace"),
        (5, "CUDA graph 12", "graph", "7", 2000, 7000, None, "none"),
    ]
    assert trace.ops["launch_ns"].to_list() == [10, 30, 50, None, None, None]
    assert trace.ops["launch_thread"].to_list()[:4] == ["100/101"] * 3 + [None]
    assert trace.ops["dtype"].to_list()[0] == "bf16"
    assert codes(trace) == {"no_launch": 3}
    assert trace.facts["kernels_by_device"] == {"0": [2, 600]}
    assert trace.facts["memcpy_by_copyKind"] == {"1": [1, 4096, 200], "2": [1, 64, 100]}
    assert trace.facts["memset"] == [1, 1024, 10]
    assert trace.facts["kernels_matched_to_runtime"] == 2


def test_frames_have_the_columns_of_the_contract(tmp_path):
    trace = read(tmp_path, kernel=(KERNEL, [kernel(1, 2, 1)]), nvtx=(NVTX, [pushed(0, 9, "step 1")]))
    for frame, schema in (
        (trace.ops, OPS), (trace.host_events, HOST_EVENTS), (trace.step_marks, STEP_MARKS),
        (trace.collectives, COLLECTIVES), (trace.counters, COUNTERS),
    ):  # fmt: skip
        assert dict(frame.schema) == dict(schema)


def test_host_calls_know_their_kinds_and_what_encloses_them(tmp_path):
    trace = read(
        tmp_path,
        runtime=(
            RUNTIME,
            [launch(20, 30, 1), launch(40, 90, 2, SYNC_ID), launch(45, 50, 3), launch(25, 26, 4, thread=T + 1)],
        ),
        nvtx=(NVTX, [pushed(10, 100, "forward"), pushed(10, 60, "load_batch", T + 1)]),
    )
    rows = {r["event_id"]: r for r in trace.host_events.iter_rows(named=True)}
    assert [rows[i]["kind"] for i in range(6)] == ["launch", "sync", "launch", "launch", "annotation", "input"]
    assert [rows[i]["parent_id"] for i in range(6)] == [4, 4, 1, 5, None, None]
    # 50 ns of the wait less 5 of the launch in it; 90 of forward less 10 and 50; 50 of the loader less 1
    assert [rows[i]["self_ns"] for i in range(6)] == [10, 45, 5, 1, 30, 49]
    assert rows[3]["thread"] == "100/102"


def test_launches_are_joined_within_their_process(tmp_path):
    other = (1 << 48) + (200 << 24)
    trace = read(
        tmp_path,
        kernel=(KERNEL, [kernel(100, 110, 5), kernel(100, 120, 5, device=1, process=other)]),
        runtime=(RUNTIME, [launch(11, 12, 5), launch(22, 23, 5, thread=other + 201)]),
    )
    assert trace.ops.select("device_id", "launch_ns", "launch_thread").rows() == [
        ("0", 11, "100/101"),
        ("1", 22, "200/201"),
    ]


def test_oldest_layout_without_process_domain_or_metadata(tmp_path):
    trace = read(
        tmp_path,
        kernel=(
            "start end deviceId streamId correlationId demangledName shortName",
            [(100, 200, 0, 7, 1, GEMM_ID, SHORT_ID)],
        ),
        runtime=("start end globalTid correlationId nameId", [(10, 20, T, 1, LAUNCH_ID)]),
        nvtx=("start end eventType globalTid textId", [(0, 50, 59, T, 7)]),
        TARGET_INFO_GPU=("vmId deviceId name busLocation isDiscrete", [(1, 0, "Tesla V100-SXM2-32GB", "", 1)]),
        names=[*NAMES, "step 4"],
    )
    assert trace.ops.select("launch_ns", "device_id").rows() == [(10, "0")]
    assert trace.step_marks.select("step", "start_ns", "dur_ns").rows() == [(4, 0, 50)]
    assert trace.devices[0].name == "Tesla V100-SXM2-32GB"
    assert trace.origin_unix_ns is None
    assert trace.facts["schema_version"] is None


def test_a_sound_capture_may_have_no_device_work(tmp_path):
    trace = read(tmp_path, nvtx=(NVTX, [pushed(0, 10, "step 0"), pushed(10, 30, "step 1")]))
    assert (len(trace.ops), trace.devices) == (0, [])
    assert trace.step_marks["step"].to_list() == [0, 1]


# ---------------------------------------------------------------- steps
@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["step 3", "step 4"], [3, 4]),
        (["ProfilerStep#12", "ProfilerStep#13"], [12, 13]),
        (["iteration 7"], [7]),
        (["Iteration: 7", "Iteration: 8"], [7, 8]),
        (["train step 7"], [7]),
        (["train_step_0", "train_step_1"], [0, 1]),
        (["step[5]"], [5]),
        (["step", "step", "step"], [0, 1, 2]),
        (["training step", "training step"], [0, 1]),
        (["step 1", "step 1"], [0, 1]),  # numbers that repeat tell nothing
        (["step"], []),  # once is no repetition
        (["optimizer.step", "optimizer.step"], []),
        (["Optimizer.step#AdamW.step", "Optimizer.step#AdamW.step"], []),
        (["step_end", "step_end"], []),
        (["layer 1", "layer 2"], []),
        (["decode 0", "decode 1"], []),
        (["micro_step 1", "micro_step 2"], []),
    ],
)
def test_ranges_that_are_steps_by_their_names(tmp_path, names, steps):
    rows = [pushed(100 * i, 100 * i + 50, n) for i, n in enumerate(names)]
    trace = read(tmp_path, nvtx=(NVTX, rows))
    assert trace.step_marks["step"].to_list() == steps
    assert trace.step_marks["start_ns"].to_list() == [100 * i for i in range(len(steps))]
    assert set(trace.step_marks["source"]) <= {"nvtx"}
    assert trace.host_events["kind"].to_list().count("step") == len(steps)


@pytest.mark.parametrize("domain", ["NCCL", "CCCL", "cuBLAS", "cudnn", "libcudf"])
def test_ranges_of_libraries_are_never_steps(tmp_path, domain):
    rows = [(0, None, 75, domain, T, None, 4), pushed(10, 20, "step 1", domain=4), pushed(30, 40, "step 2", domain=4)]
    assert len(read(tmp_path, nvtx=(NVTX, rows)).step_marks) == 0


def test_a_users_domain_may_hold_the_steps(tmp_path):
    rows = [(0, None, 75, "trainer", T, None, 2), pushed(10, 20, "step 1", domain=2)]
    assert read(tmp_path, nvtx=(NVTX, rows)).step_marks["step"].to_list() == [1]


def test_of_two_families_the_one_that_covers_more_time_is_taken(tmp_path):
    rows = [
        pushed(0, 100, "iteration 4"),
        pushed(10, 20, "step 1"),
        pushed(30, 40, "step 2"),
        pushed(100, 200, "iteration 5"),
    ]
    assert read(tmp_path, nvtx=(NVTX, rows)).step_marks["step"].to_list() == [4, 5]


def test_a_start_end_range_can_be_a_step_but_encloses_nothing(tmp_path):
    rows = [(0, 100, 60, "step 1", T, None, 0), pushed(10, 20, "work")]
    trace = read(tmp_path, nvtx=(NVTX, rows))
    assert trace.step_marks["step"].to_list() == [1]
    assert trace.host_events["parent_id"].to_list() == [None, None]
    assert trace.host_events["self_ns"].to_list() == [None, 10]


def test_a_step_that_was_never_closed_is_cut_and_marked_as_damage(tmp_path):
    trace = read(
        tmp_path,
        nvtx=(NVTX, [pushed(0, 100, "step 0"), pushed(100, None, "step 1"), pushed(150, None, "forward")]),
        runtime=(RUNTIME, [launch(110, 120, 1)]),
        kernel=(KERNEL, [kernel(200, 260, 1)]),
    )
    assert trace.step_marks.select("step", "start_ns", "dur_ns").rows() == [(0, 0, 100), (1, 100, 160)]
    assert codes(trace) == {"open_range": 2, "open_step": 1}
    assert trace.issues.lost_data


def test_launches_belong_to_steps_of_their_own_process(tmp_path):
    other = (1 << 48) + (200 << 24)
    calls = [(60, 1), (120, 2), (170, 3)]
    trace = read(
        tmp_path,
        nvtx=(NVTX, [pushed(0, 100, "step 0"), pushed(100, 200, "step 1"), pushed(50, 150, "step 7", other + 201)]),
        runtime=(RUNTIME, [launch(t, t + 9, c) for t, c in calls] + [launch(t, t + 9, c, thread=other + 202) for t, c in calls]),
        kernel=(KERNEL, [kernel(300, 310, c) for _, c in calls] + [kernel(300, 320, c, process=other) for _, c in calls]),
    )  # fmt: skip
    assigned = steps.assign(trace.ops, trace.step_marks, trace.issues)
    assert assigned["step"].to_list() == [0, 1, 1, 7, 7, None]


# ---------------------------------------------------------------- times
def test_records_without_sound_times_are_set_aside_and_counted(tmp_path):
    trace = read(
        tmp_path,
        kernel=(
            KERNEL,
            [kernel(100, 200, 1), kernel(300, 250, 2), kernel(400, 400, 3), kernel(0, 0, 4), kernel(500, None, 5)],
        ),
        runtime=(RUNTIME, [launch(i, i + 1, i) for i in range(1, 6)] + [launch(50, None, 9)]),
        nvtx=(NVTX, [pushed(10, 5, "backwards"), pushed(10, None, "open")]),
    )
    assert trace.ops.select("start_ns", "dur_ns").rows() == [(100, 100), (400, 0)]  # a length of zero is sound
    assert codes(trace) == {
        "lost_timestamp": 2, "negative_duration": 1, "negative_range": 1, "open_range": 1, "open_call": 1,
    }  # fmt: skip
    assert trace.issues.lost_data
    assert trace.facts["device_records"]["CUPTI_ACTIVITY_KIND_KERNEL"] == 5
    assert len(trace.host_events) == 5
    assert trace.facts["open"] == ["open"]


def test_work_that_would_outlast_the_recording_is_cut_at_the_next_start(tmp_path):
    hour = 3600 * 10**9
    trace = read(
        tmp_path,
        kernel=(
            KERNEL,
            [kernel(100, hour, 1), kernel(300, 400, 2), kernel(350, 500, 3), kernel(100, 600, 4, stream=8)],
        ),
    )
    # the third starts within the second, as programmatic launches do: that is left alone
    assert trace.ops["dur_ns"].to_list() == [200, 100, 150, 500]
    assert codes(trace)["impossible_duration"] == 1
    assert trace.issues.lost_data


def test_kernels_of_a_graph_share_their_launch(tmp_path):
    nodes = [(*kernel(100 * i, 100 * i + 50, 1)[:-1], i) for i in (1, 2, 3)]
    trace = read(
        tmp_path,
        kernel=(KERNEL, [*nodes, kernel(500, 510, 2)]),
        runtime=(RUNTIME, [launch(10, 20, 1), launch(30, 40, 2)]),
        nvtx=(NVTX, [pushed(5, 25, "decode 0"), pushed(28, 45, "sample")]),
    )
    assert trace.ops["launch_ns"].to_list() == [10, 10, 10, 30]
    assert trace.ops["module"].to_list() == ["decode 0"] * 3 + ["sample"]
    assert trace.facts["graph_node_kernels"] == 3


def test_waits_without_their_api_call_are_kept(tmp_path):
    columns = "start end deviceId contextId streamId correlationId globalPid syncType eventId"
    rows = [(10, 50, 0, 1, 7, 1, P, 3, 0), (60, 70, 0, 1, 7, 2, P, 2, 0), (80, 90, 0, 1, 7, 3, P, 4, 0)]
    trace = read(tmp_path, sync=(columns, rows), runtime=(RUNTIME, [launch(5, 55, 1, SYNC_ID)]))
    assert trace.host_events.select("event_id", "thread", "kind", "name", "dur_ns").rows() == [
        (0, "100/101", "sync", "cudaStreamSynchronize_v3020", 50),
        (1, "100/?", "sync", "Context Sync", 10),
    ]


# ---------------------------------------------------------------- devices and metadata
GPU = "id name totalMemory memoryBandwidth clockRate smCount computeMajor computeMinor"
H100 = ("NVIDIA H100 80GB HBM3", 85028765696, 3352320000000, 1980000000, 132, 9, 0)


def test_properties_of_the_device(tmp_path):
    gpus = [(0, *H100), (1, *H100), (2, "Intel UHD", 0, 0, 0, 0, 0, 0)]
    trace = read(tmp_path, kernel=(KERNEL, [kernel(1, 2, 1, device=1)]), TARGET_INFO_GPU=(GPU, gpus))
    (device,) = trace.devices
    assert (device.device_id, device.kind, device.name) == ("1", "gpu", "NVIDIA H100 80GB HBM3")
    assert device.properties == {
        "memory_bytes": 85028765696, "core_count": 132, "clock_hz": 1980000000, "memory_bytes_per_s": 3352320000000,
        "compute_capability": "9.0",
    }  # fmt: skip


def test_gpus_that_differ_are_taken_by_number_and_said_so(tmp_path):
    gpus = [(0, "A", 1, 1, 1, 1, 8, 0), (1, "B", 2, 2, 2, 2, 9, 0)]
    trace = read(tmp_path, kernel=(KERNEL, [kernel(1, 2, 1, device=1)]), TARGET_INFO_GPU=(GPU, gpus))
    assert trace.devices[0].name == "B"
    assert "gpu_by_number" in codes(trace)


def test_processes_that_see_different_gpus_under_one_number(tmp_path):
    other = (1 << 48) + (200 << 24)
    both = [kernel(1, 5, 1), kernel(2, 9, 1, process=other)]
    mapping = ("gpuId cudaId pid", [(4, 0, 100), (6, 0, 200)])
    apart = read(tmp_path, kernel=(KERNEL, both), TARGET_INFO_CUDA_DEVICE=mapping)
    assert apart.ops["device_id"].to_list() == ["4", "6"]
    assert [d.device_id for d in apart.devices] == ["4", "6"]


def test_processes_on_one_number_without_the_mapping_are_said_to_be_taken_as_one(tmp_path):
    other = (1 << 48) + (200 << 24)
    trace = read(tmp_path, kernel=(KERNEL, [kernel(1, 5, 1), kernel(2, 9, 1, process=other)]))
    assert trace.ops["device_id"].to_list() == ["0", "0"]
    assert codes(trace)["shared_device_number"] == 1


def test_nothing_private_leaves_the_metadata(tmp_path):
    trace = read(
        tmp_path,
        kernel=(KERNEL, [kernel(1, 2, 1)]),
        META_DATA_EXPORT=(
            "name value",
            [("EXPORT_PRODUCT_VERSION", "2025.3"), ("EXPORT_SCHEMA_VERSION", "3.20.2"), ("EXPORT_USER", "secretuser")],
        ),
        META_DATA_CAPTURE=(
            "name value",
            [
                ("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph"), ("CAPTURE_EVENT_TYPE", "NvtxEvents"),
                ("CAPTURE_EVENT_TYPE", "Cuda"), ("PROCESS_0:COMMAND", "/home/secretuser/run"),
                ("PROCESS_0:ARGUMENT_0", "--token=secrettoken"), ("PROCESS_0:ENVIRONMENT_VARIABLE", 'KEY="secretkey"'),
                ("PROCESS_0:ENVIRONMENT_VARIABLE", 'RANK="3"'), ("PROCESS_0:ENVIRONMENT_VARIABLE", 'WORLD_SIZE="8"'),
                ("PROCESS_0:WORKING_DIR", "/home/secretuser"), ("DEVICE_DISPLAY_NAME", "secrethost"),
            ],
        ),
        TARGET_INFO_SYSTEM_ENV=("name value", [("NvDriverVersion", "580.95"), ("DeviceEnvironment", "KEY=secretkey")]),
        TARGET_INFO_SESSION_START_TIME=("utcEpochNs", [(1_700_000_000_123_456_789,)]),
    )  # fmt: skip
    assert trace.config == {
        "nsys.export_version": "2025.3",
        "nsys.schema_version": "3.20.2",
        "nsys.driver_version": "580.95",
        "nsys.capture.cuda_graph_trace_options.mode": "Graph",
        "nsys.capture.capture_event_type": ["Cuda", "NvtxEvents"],
    }
    assert "secret" not in json.dumps([trace.config, trace.facts, trace.issues.rows()])
    assert (trace.rank, trace.world_size) == (3, 8)
    assert trace.origin_unix_ns == 1_700_000_000_123_456_789


def test_warnings_and_errors_of_the_profiler_are_issues(tmp_path):
    rows = [
        (1, "all is well"),
        (2, "Installed driver is old"),
        (2, "Installed driver is old"),
        (2, "Clock is odd"),
        (3, "CUDA events were dropped"),
        (3, "CUDA events were dropped"),
    ]
    trace = read(tmp_path, DIAGNOSTIC_EVENT=("severity text", rows))
    issues = {i.code: (i.severity, i.count, i.message) for i in trace.issues.by_code.values()}
    assert issues == {
        "nsys_warning": ("info", 3, "Installed driver is old (2 times); Clock is odd"),
        "nsys_lost": ("data_loss", 2, "CUDA events were dropped (2 times)"),
    }


def test_gpu_metrics_are_counters(tmp_path):
    trace = read(
        tmp_path,
        GPU_METRICS=("timestamp typeId metricId value", [(10, 256 * 7 + 1, 4, 55), (20, 256 * 7 + 1, 5, 99)]),
        TARGET_INFO_GPU_METRICS=("typeId metricId metricName", [(256 * 7 + 1, 4, "SM Active [%]")]),
    )
    assert trace.counters.rows() == [("1", "SM Active [%]", 10, 55.0)]


def test_gpu_metrics_of_older_exports_are_counters(tmp_path):
    rows = [
        (5, 10, 256 * 7 + 1, '{"SM Active": "52", "Tensor Active": 3}'),
        (5, 20, 256 * 7 + 1, '{"SM Active": "cut'),
        (5, 30, 256 * 7 + 1, '{"event": "some text"}'),
        (5, 40, 256 * 7 + 1, "[1, 2]"),
    ]
    trace = read(tmp_path, GENERIC_EVENTS=("rawTimestamp timestamp typeId data", rows))
    assert trace.counters.rows() == [("1", "SM Active", 10, 52.0), ("1", "Tensor Active", 10, 3.0)]
    assert codes(trace) == {"malformed_metric": 1}


def test_spans_of_system_calls_and_mpi_are_host_events(tmp_path):
    trace = read(
        tmp_path,
        OSRT_API=("start end eventClass globalTid nameId returnValue nestingLevel", [(10, 90, 27, T, 7, 0, 0)]),
        MPI_COLLECTIVES_EVENTS=("start end globalTid textId", [(20, 60, T, 8)]),
        runtime=(RUNTIME, [launch(65, 70, 1)]),
        names=[*NAMES, "poll", "MPI_Allreduce"],
    )
    assert sorted(trace.host_events.select("name", "kind", "dur_ns", "self_ns").rows()) == [
        ("MPI_Allreduce", "collective", 40, 40), ("cudaLaunchKernel_v7000", "launch", 5, 5), ("poll", "runtime", 80, 35),
    ]  # fmt: skip


def test_a_whole_graph_whose_kernels_are_recorded_is_no_operation(tmp_path):
    graphs = [(100, 300, 0, 1, 7, 1, P, 3, 12), (400, 500, 0, 1, 7, 2, P, 3, 12)]
    trace = read(
        tmp_path,
        kernel=(KERNEL, [(*kernel(100, 150, 1)[:-1], 5), (*kernel(200, 300, 1)[:-1], 6)]),
        graph=("start end deviceId contextId streamId correlationId globalPid graphId graphExecId", graphs),
        runtime=(RUNTIME, [launch(10, 20, 1), launch(30, 40, 2)]),
    )
    assert trace.ops.select("op_class", "start_ns", "launch_ns").rows() == [
        ("matmul", 100, 10), ("matmul", 200, 10), ("graph", 400, 30),
    ]  # fmt: skip
    assert codes(trace) == {"graph_of_kernels": 1}


def test_nodes_of_a_merged_export_are_told_apart(tmp_path):
    second = (2 << 48) + (PID << 24)  # the same process and device number on another node
    trace = read(
        tmp_path,
        kernel=(KERNEL, [kernel(100, 110, 5), kernel(100, 120, 5, process=second)]),
        runtime=(RUNTIME, [launch(11, 12, 5), launch(22, 23, 5, thread=second + TID)]),
        TARGET_INFO_GPU=(f"vmId {GPU}", [(1 << 48, 0, *H100), (2 << 48, 0, "NVIDIA A100-SXM4-40GB", *H100[1:])]),
    )
    assert trace.ops.select("device_id", "launch_ns", "launch_thread").rows() == [
        ("1:0", 11, "1:100/101"), ("2:0", 22, "2:100/101"),
    ]  # fmt: skip
    assert [d.name for d in trace.devices] == ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"]
    assert codes(trace) == {}


def test_text_that_is_not_utf8_is_read(tmp_path):
    path = write(tmp_path / "t.sqlite", {"EXPORT_META_DATA": ("name value", [])})
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO EXPORT_META_DATA VALUES ('EXPORT_USER', CAST(x'4aff72' AS TEXT))")
        db.execute("INSERT INTO EXPORT_META_DATA VALUES ('EXPORT_SCHEMA_VERSION', '2.9.1')")
    db.close()
    assert nsys.read(path).config == {"nsys.schema_version": "2.9.1"}


def test_kernels_without_a_name_are_kept_and_counted(tmp_path):
    trace = read(tmp_path, kernel=(KERNEL, [(1, 9, 0, 1, 7, 1, P, 900, 901, None)]))
    assert trace.ops.select("name", "dur_ns").rows() == [("(unnamed kernel)", 8)]
    assert codes(trace)["unnamed_kernel"] == 1


def test_memory_that_cuda_hands_out(tmp_path):
    """Pinned memory (1) is the host's, that of the device (2) and managed memory (4) count."""
    columns = "start globalPid deviceId contextId address pc bytes memKind memoryOperationType name correlationId"
    usage = [
        (50, P, 0, 1, 7000, 0, 300, 2, 1, None, 0),
        (10, P, 0, 1, 7000, 0, 300, 2, 0, None, 0),
        (20, P, 0, 1, 8000, 0, 999, 1, 0, None, 0),
        (30, P, 0, 1, 9000, 0, 200, 4, 0, None, 0),
    ]
    trace = read(tmp_path, kernel=(KERNEL, [kernel(0, 5, 1)]), CUDA_GPU_MEMORY_USAGE_EVENTS=(columns, usage))
    assert trace.memory.select("device_id", "ts_ns", "address", "bytes", "allocated_bytes", "source").rows() == [
        ("0", 10, 7000, 300, None, "cuda_calls"),
        ("0", 30, 9000, 200, None, "cuda_calls"),
        ("0", 50, 7000, -300, None, "cuda_calls"),
    ]

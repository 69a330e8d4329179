"""XSpace files made by hand: what is an operation, what it costs, who launched it, in which step and group it is."""

import gzip
import json

import polars as pl
import pytest

from tracegap.ingest.classify.hlo_module import PROTO as HLO
from tracegap.ingest.errors import TraceError
from tracegap.ingest.readers import xspace
from tracegap.ingest.readers._xplane import PROTO
from tracegap.ingest.trace import COLLECTIVES, HOST_EVENTS, OPS, STEP_MARKS

UNIX = 1_735_689_600_000_000_000


class Builder:
    """A plane with names looked up as they come."""

    def __init__(self, name, ident=0, **stats):
        self.plane = PROTO["XPlane"](name=name, id=ident)
        self.kinds, self.names = {}, {}
        self.add_stats(self.plane.stats, stats)

    def stat_id(self, name):
        key = self.names.setdefault(name, len(self.names) + 1)
        self.plane.stat_metadata[key].name = name
        return key

    def add_stats(self, where, stats):
        for name, value in stats.items():
            stat = where.add(metadata_id=self.stat_id(name))
            if isinstance(value, bytes):
                stat.bytes_value = value
            elif isinstance(value, str):
                stat.str_value = value
            elif isinstance(value, float):
                stat.double_value = value
            elif value >= 2**63:
                stat.uint64_value = value
            else:
                stat.int64_value = value

    def kind(self, name, display="", **stats):
        key = self.kinds.setdefault((name, display), len(self.kinds) + 1)
        entry = self.plane.event_metadata[key]
        if not entry.name:
            entry.id, entry.name, entry.display_name = key, name, display
            self.add_stats(entry.stats, stats)
        return key

    def line(self, name, *events, ident=0, timestamp_ns=0):
        """Events are (name or key, start ps, length ps, stats)."""
        line = self.plane.lines.add(name=name, id=ident, timestamp_ns=timestamp_ns)
        for what, start, length, *stats in events:
            key = what if isinstance(what, int) else self.kind(what)
            event = line.events.add(metadata_id=key, offset_ps=start, duration_ps=length)
            self.add_stats(event.stats, stats[0] if stats else {})
        return self


def write(path, *builders, **more):
    path.write_bytes(PROTO["XSpace"](planes=[b.plane for b in builders], **more).SerializeToString())
    return path


@pytest.fixture
def read(tmp_path):
    return lambda *builders, **more: xspace.read(write(tmp_path / "host.xplane.pb", *builders, **more))


def rows(trace, *columns):
    return trace.ops.select(columns).rows()


def test_tables_have_the_schemas_even_without_anything_in_them(read):
    trace = read(Builder("/host:metadata"))
    assert trace.ops.schema == pl.Schema(OPS)
    assert trace.host_events.schema == pl.Schema(HOST_EVENTS)
    assert trace.step_marks.schema == pl.Schema(STEP_MARKS)
    assert trace.collectives.schema == pl.Schema(COLLECTIVES)


# ---------------------------------------------------------------------------------------------- TPU


def tpu(**stats):
    return Builder("/device:TPU:0", 2, device_type_string="TPU v9", peak_teraflops_per_second=100.0, **stats)


def test_device_says_its_name_and_peaks(read):
    [device] = read(tpu(peak_hbm_bw_gigabytes_per_second=2.5).line("XLA Ops", ("fusion.1", 0, 5))).devices
    assert (device.device_id, device.kind, device.name, device.ordinal) == ("TPU:0", "tpu", "TPU v9", 0)
    assert device.stated_peaks == {"flops_per_s": 100e12, "hbm_bytes_per_s": 2.5e9}


def test_control_flow_around_operations_is_structure(read):
    plane = tpu()
    loop = plane.kind("%while.1 = (s32[]) while((s32[]) %t), condition=%c, body=%b", "while.1", hlo_category="while")
    plane.line("XLA Ops", (loop, 0, 10_000), ("fusion.1", 1000, 3000), ("fusion.2", 5000, 3000), (loop, 20_000, 4000))
    trace = read(plane)
    # the second loop holds nothing: its time is its own
    assert rows(trace, "name", "start_ns", "dur_ns") == [("fusion.1", 1, 3), ("fusion.2", 5, 3), ("while.1", 20, 4)]


def test_loop_that_ends_a_picosecond_before_its_last_operation_is_still_structure(read):
    plane = tpu()
    loop = plane.kind("while.1", hlo_category="while")
    trace = read(plane.line("XLA Ops", (loop, 0, 10_000), ("fusion.1", 1000, 9001), ("fusion.2", 12_000, 1000)))
    assert rows(trace, "name") == [("fusion.1",), ("fusion.2",)]


def test_send_and_its_done_are_one(read):
    plane = tpu()
    send = plane.kind("%send.3 = (f32[4], u32[], token[]) send(f32[4] %x, token[] %t), channel_id=2", "send.3")
    done = plane.kind("%send-done.3 = token[] send-done((f32[4], u32[], token[]) %send.3), channel_id=2", "send-done.3")
    trace = read(plane.line("XLA Ops", (send, 0, 1000), ("fusion.1", 1000, 1000), (done, 5000, 1000)))
    assert trace.ops.filter(stream="async").select("name", "op_class", "dur_ns").rows() == [("send.3", "collective", 6)]
    assert trace.collectives.select("collective", "message_bytes").rows() == [("send", 16)]


def test_ends_are_rounded_not_lengths(read):
    trace = read(tpu().line("XLA Ops", ("a", 400, 700), ("b", 1100, 500), ("c", 1600, 900)))
    assert rows(trace, "start_ns", "dur_ns") == [(0, 1), (1, 1), (2, 1)]


HBM_READ_3_VMEM_WRITE_5 = bytes.fromhex("0a06080110011803" + "0a06080210031805")


@pytest.mark.parametrize(
    ("stats", "flops", "moved", "source"),
    [
        ({"flops": 20, "model_flops": 16, "bytes_accessed": 8, "hlo_category": "loop fusion"}, 16, 8, "trace"),
        ({"flops": 20, "bytes_accessed": 8, "hlo_category": "loop fusion"}, 20, 8, "trace"),
        ({"flops": 1, "bytes_accessed": 8, "memory_access_breakdown": HBM_READ_3_VMEM_WRITE_5}, 1, 3, "trace"),
        ({"flops": 0, "bytes_accessed": 8, "hlo_category": "data formatting"}, 0, 8, "trace"),
        ({"flops": 0, "bytes_accessed": 0, "hlo_category": "custom-call"}, None, None, "none"),
        ({"hlo_category": "loop fusion"}, None, None, "none"),
    ],
)
def test_stated_cost(read, stats, flops, moved, source):
    plane = tpu()
    key = plane.kind("fusion.1", **stats)
    trace = read(plane.line("XLA Ops", (key, 0, 1000)))
    assert rows(trace, "flops", "bytes", "cost_source") == [(flops, moved, source)]
    assert (trace.ops["cost_note"][0] is None) == (source == "trace")


@pytest.mark.parametrize(
    ("category", "tf_op", "op_class"),
    [
        ("convolution fusion", "jit(f)/dot_general:", "matmul"),
        ("convolution", "jit(f)/conv_general_dilated:", "convolution"),
        ("loop fusion", "jit(f)/add:", "elementwise"),
        ("input fusion", "jit(f)/reduce_sum:", "reduction"),
        ("data formatting", "jit(f)/transpose:", "data_movement"),
        ("copy", "", "data_movement"),
        ("all-gather fusion", "", "collective"),
        ("sort", "", "sort"),
        ("infeed", "", "copy"),
    ],
)
def test_class_by_category(read, category, tf_op, op_class):
    plane = tpu()
    key = plane.kind("thing.1", hlo_category=category, tf_op=tf_op, flops=1, bytes_accessed=1)
    trace = read(plane.line("XLA Ops", (key, 0, 1000)))
    assert rows(trace, "op_class", "framework_op") == [(op_class, tf_op.rstrip(":") or None)]


START = "%copy-start.2 = (f32[4]{0}, f32[4]{0:S(5)}, u32[]) copy-start(f32[4]{0:S(5)} %p)"
DONE = "%copy-done.2 = f32[4]{0} copy-done((f32[4]{0}, f32[4]{0:S(5)}, u32[]) %copy-start.2)"


def async_plane(overlapped):
    plane = tpu()
    start = plane.kind(START, "copy-start.2", hlo_category="copy-start", bytes_accessed=16, flops=0)
    done = plane.kind(DONE, "copy-done.2", hlo_category="copy-done", bytes_accessed=16, flops=0)
    plane.line(
        "XLA Ops",
        *((start, 0, 1000), ("fusion.1", 1000, 5000), (done, 6000, 3000)),
        *((start, 20_000, 1000), ("fusion.1", 21_000, 5000), (done, 26_000, 3000)),
    )
    if overlapped:
        plane.line(xspace.tpu.ASYNC_LINE, (start, 0, 9000, {"hlo_op": "copy-done.2"}), (start, 20_000, 9000))
    return plane


@pytest.mark.parametrize("overlapped", [False, True])
def test_asynchronous_operation_is_one_from_start_to_done(read, overlapped):
    trace = read(async_plane(overlapped))
    found = (
        trace.ops.sort("start_ns", "name").select("name", "op_class", "stream", "start_ns", "dur_ns", "bytes").rows()
    )
    assert found == [
        ("copy-start.2", "copy", "async", 0, 9, 16),
        ("fusion.1", "other", "XLA Ops", 1, 5, None),
        ("copy-start.2", "copy", "async", 20, 9, 16),
        ("fusion.1", "other", "XLA Ops", 21, 5, None),
    ]


def test_facts_keep_the_raw_slices(read):
    facts = read(async_plane(True)).facts["planes"][0]
    assert facts["line[n,sum_ps]"] == {"XLA Ops": [6, 18_000], "Async XLA Ops": [2, 18_000]}
    by_category = facts["xla_ops_by_hlo_category[n,ps,device_duration_ps,flops,bytes]"]
    assert by_category["copy-done"] == [2, 6000, 6000, 0, 32]


def test_asynchronous_collective_of_the_async_line_alone(read):
    plane = tpu()
    plane.line("XLA Ops", ("fusion.1", 1000, 5000))
    key = plane.kind("%all-gather-start.1 = (f32[2], f32[8]) all-gather-start(f32[2] %p), replica_groups={{0,1,2,3}}")
    trace = read(plane.line(xspace.tpu.ASYNC_LINE, (key, 500, 9000)))
    assert trace.ops.filter(op_class="collective").select("stream", "start_ns", "dur_ns").rows() == [("async", 1, 9)]
    assert trace.collectives.select("collective", "message_bytes", "group_size").rows() == [("all_gather", 32, 4)]
    assert trace.facts["devices"]["TPU:0"]["comm_ps"] == 9000
    assert trace.facts["devices"]["TPU:0"]["exposed_comm_ps"] == 4000


def test_half_without_its_other_half_stands_for_itself_and_is_counted(read):
    trace = read(tpu().line("XLA Ops", ("copy-start.7", 0, 1000)))
    assert rows(trace, "name", "dur_ns") == [("copy-start.7", 1)]
    assert trace.issues.by_code["async_unpaired"].count == 1


def test_collective_groups_message_and_number(read):
    text = (
        "%all-reduce.5 = bf16[8,4]{1,0} all-reduce(bf16[8,4]{1,0} %x), channel_id=3,"
        " replica_groups=[2,2]<=[2,2]T(1,0), use_global_device_ids=true, to_apply=%add"
    )
    planes = []
    for device in (0, 1, 2, 3):
        plane = Builder(f"/device:TPU:{device}", device)
        key = plane.kind(text, "all-reduce.5", hlo_category="all-reduce", program_id=2**63 + 5)
        planes.append(plane.line("XLA Ops", (key, 0, 1000), (key, 5000 + device, 1000)))
    trace = read(*planes)
    found = trace.collectives.join(trace.ops.select("op_id", "device_id"), on="op_id")
    assert found.select("device_id", "group_ranks", "seq").rows() == [
        (f"TPU:{d}", json.dumps([d % 2, d % 2 + 2], separators=(",", ":")), n) for d in range(4) for n in (0, 1)
    ]
    assert set(found["message_bytes"]) == {64}
    assert set(found["dtype"]) == {"bf16"}
    assert found["group_id"].n_unique() == 2  # the same text on both devices of a group


def test_devices_of_a_second_host_have_their_global_numbers_in_groups(read):
    plane = Builder("/device:TPU:1", core_details=bytes([0x10, 1, 0x28, 5, 0x30, 5]))  # chip and core 5 of all hosts
    text = "%all-reduce.5 = f32[8] all-reduce(f32[8] %x), channel_id=3, replica_groups=[4,2]<=[2,4]T(1,0)"
    trace = read(plane.line("XLA Ops", (plane.kind(text), 0, 1000)))
    assert [(d.device_id, d.ordinal) for d in trace.devices] == [("TPU:1", 5)]
    assert trace.collectives["group_ranks"].to_list() == ["[1,5]"]


def test_launch_follows_the_hand_overs_to_the_calling_thread(read):
    device = tpu()
    device.line("XLA Modules", ("jit_f(7)", 90_000, 5000, {"run_id": 1, "_ct": 12, "_c": -5}))
    device.line("XLA Ops", ("fusion.1", 91_000, 1000), ("fusion.2", 97_000, 1000))
    host = Builder("/host:CPU", 9, process_id=44)
    host.line("main/5", ("Execute", 10_000, 8000, {"_pt": 5, "_p": 77}), ident=5)
    host.line(
        "pool/6",
        ("Scheduled", 40_000, 9000, {"_ct": 5, "_c": 77}),
        ("DoEnqueueProgram", 42_000, 1000, {"_pt": 12, "_p": 2**64 - 5, "run_id": 1}),
        ident=6,
    )
    trace = read(device, host)
    # the second operation is outside of the module's execution
    assert rows(trace, "launch_ns", "launch_thread") == [(10, "44/main/5"), (None, None)]
    assert trace.host_events.select("name", "parent_id", "self_ns").rows() == [
        ("Execute", None, 8),
        ("Scheduled", None, 8),
        ("DoEnqueueProgram", 1, 1),
    ]


def test_steps_of_the_device_and_of_groups(read):
    device = tpu()
    device.line("Steps", ("7", 0, 10_000, {"group_id": 3}), ("8", 10_000, 10_000, {"group_id": 4}))
    device.line("XLA Ops", ("a", 1000, 1000, {"group_id": 3}), ("b", 9000, 500, {"group_id": 4}), ("c", 12_000, 10))
    host = Builder("/host:CPU").line("python", ("train", 0, 10_000, {"step_num": 7}))
    trace = read(device, host)
    assert trace.step_marks.rows() == [
        (7, "TPU:0", 0, 10, "xplane_steps", None),
        (8, "TPU:0", 10, 10, "xplane_steps", None),
    ]
    assert rows(trace, "name", "step") == [("a", 7), ("b", 8), ("c", None)]


def test_step_annotations_where_no_device_has_steps(read):
    host = Builder("/host:CPU").line("python", ("train", 0, 10_000, {"step_num": 7, "_r": 1}), ident=3)
    trace = read(tpu().line("XLA Ops", ("a", 1000, 1000)), host)
    assert trace.step_marks.rows() == [(7, None, 0, 10, "step_trace_annotation", "python/3")]
    assert trace.host_events["kind"].to_list() == ["step"]


def test_aggregated_events_unknown_lines_and_messages_are_reported(read):
    plane = tpu().line("XLA Ops", ("a", 0, 1000)).line("New Line", ("x", 0, 1))
    plane.plane.lines[0].events.add(metadata_id=1, num_occurrences=5, duration_ps=100)
    trace = read(plane, errors=["dropped events"], warnings=["buffer nearly full"])
    assert {code: issue.count for code, issue in trace.issues.by_code.items()} == {
        "profiler_error": 1,
        "profiler_warning": 1,
        "aggregated_events": 1,
        "unknown_line": 1,
    }
    assert trace.facts["planes"][0]["unknown_lines"] == ["New Line"]
    assert len(trace.ops) == 1


def test_events_of_negative_length_are_counted_and_left_out(read):
    trace = read(tpu().line("XLA Ops", ("a", 0, 1000), ("b", 5000, -3)))
    assert rows(trace, "name") == [("a",)]
    assert trace.issues.by_code["negative_duration"].count == 1
    assert trace.issues.lost_data


# ---------------------------------------------------------------------------------------------- clocks


def test_origin_is_the_start_of_the_profile(read):
    env = Builder("Task Environment", profile_start_time=UNIX)
    trace = read(env, tpu().line("XLA Ops", ("a", 500, 1000), timestamp_ns=20))
    assert trace.origin_unix_ns == UNIX
    assert rows(trace, "start_ns", "dur_ns") == [(21, 1)]


def test_lines_in_unix_time(read):
    plane = tpu().line("XLA Ops", ("a", 0, 1000), timestamp_ns=UNIX + 7)
    host = Builder("/host:CPU").line("python", ("f", 0, 1000), timestamp_ns=UNIX)
    trace = read(plane, host)
    assert trace.origin_unix_ns == UNIX
    assert trace.ops["start_ns"].to_list() == [7]


def test_without_any_clock_there_is_no_origin(read):
    assert read(tpu().line("XLA Ops", ("a", 0, 1000), timestamp_ns=100)).origin_unix_ns is None


# ---------------------------------------------------------------------------------------------- GPU


def module_bytes(name="jit_f", program=12):
    """p0 f32[2,8], p1 f32[8,4]; dot.1 = p0 @ p1; all-reduce.2 over all of two devices."""
    proto = HLO["HloProto"]()
    proto.hlo_module.name = name
    computation = proto.hlo_module.computations.add(name="main", id=1, root_id=4)

    def add(ident, instruction, opcode, dims, operands=(), **more):
        made = computation.instructions.add(id=ident, name=instruction, opcode=opcode, operand_ids=operands, **more)
        made.shape.element_type = 11
        made.shape.dimensions.extend(dims)
        return made

    add(1, "p0", "parameter", [2, 8])
    add(2, "p1", "parameter", [8, 4])
    dot = add(3, "dot.1", "dot", [2, 4], [1, 2])
    dot.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    dot.dot_dimension_numbers.rhs_contracting_dimensions.append(0)
    dot.metadata.op_name = "jit(f)/jvp(layer_0)/mlp/dot_general"
    reduce = add(4, "all-reduce.2", "all-reduce", [2, 4], [3], channel_id=9)
    group = reduce.replica_groups.add()
    group.replica_ids.extend([0, 1])
    return f"{name}({program})", proto.SerializeToString()


def metadata_plane(*modules):
    plane = Builder("/host:metadata")
    for name, data in modules:
        plane.kind(name, **{"Hlo Proto": data})
    return plane


GPU_DONE = {"correlation_id": 5, "hlo_op": "dot.1", "program_id": 12}


def test_kernels_of_streams_only_with_cost_from_the_hlo(read):
    device = Builder(
        "/device:GPU:1", memory_size=80, core_count=4, clock_rate=3, compute_cap_major=9, compute_cap_minor=0
    )
    device.line("Stream #7(Compute)", ("gemm_kernel", 5000, 2000, GPU_DONE), timestamp_ns=1)
    device.line("XLA Ops", ("dot.1", 5000, 2000)).line("XLA Modules", ("jit_f(12)", 0, 9000))
    host = Builder("/host:CPU").line("Host Threads/6", ("cuLaunchKernel", 2000, 900, {"correlation_id": 5}), ident=6)
    trace = read(device, host, metadata_plane(module_bytes()))
    [gpu] = trace.devices
    assert gpu.properties == {"memory_bytes": 80, "core_count": 4, "clock_hz": 3000, "compute_capability": "9.0"}
    assert trace.ops.drop("op_id", "cost_note").rows() == [
        (
            *(
                "GPU:1",
                "Stream #7(Compute)",
                "gemm_kernel",
                "matmul",
                "jit(f)/jvp(layer_0)/mlp/dot_general",
                "layer_0/mlp",
            ),
            *(6, 2, None, "fp32", "[[2,8],[8,4]]", 2 * 2 * 4 * 8, 4 * (16 + 32 + 8), "hlo", 5, 2, "Host Threads/6"),
        )
    ]
    assert trace.host_events["kind"].to_list() == ["launch"]


def test_kernels_of_one_operation_share_its_cost(read):
    device = Builder("/device:GPU:0")
    first, second = ("im2col", 0, 1000, GPU_DONE), ("gemm", 2000, 3000, GPU_DONE)
    device.line("Stream #1", first, second, ("im2col", 9000, 1000, GPU_DONE))
    trace = read(device, metadata_plane(module_bytes()))
    assert trace.ops["flops"].to_list() == [0, 128, 128]  # by the product, then a second execution with one kernel
    assert trace.ops["bytes"].to_list() == [56, 168, 224]
    assert all("by duration" in note for note in trace.ops["cost_note"])


def test_kernel_without_its_module_has_no_cost_and_says_why(read):
    trace = read(Builder("/device:GPU:0").line("Stream #1", ("k", 0, 10, GPU_DONE), ("other_thing", 20, 10)))
    assert rows(trace, "flops", "cost_source", "cost_note") == [
        (None, "none", "the HLO of dot.1 is not in the trace"),
        (None, "none", "the trace names no HLO operation"),
    ]


def test_copies_fills_and_nccl(read):
    device = Builder("/device:GPU:0")
    device.line(
        "Stream #1(MemcpyH2D)", ("MemcpyH2D", 0, 10, {"memcpy_details": "kind:Pinned size:4096 dest:0 async:1"})
    )
    device.line("Stream #2(Compute)", ("Memset", 0, 10, {"memset_details": "kind:Device num_bytes:64 async:1"}))
    device.line("Stream #3(Compute)", ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 0, 10))
    device.line("Stream #4(MemcpyD2H)", ("MemcpyD2H", 0, 10, {"memcpy_details": "kind:Unknown size:0"}))
    trace = read(device)
    assert rows(trace, "op_class", "bytes", "cost_source") == [
        ("copy", 4096, "trace"),
        ("memset", 64, "trace"),
        ("collective", None, "none"),
        ("copy", None, "none"),
    ]
    assert trace.collectives.select("collective", "group_id", "dtype").rows() == [("reduce_scatter", None, "bf16")]


# ---------------------------------------------------------------------------------------------- CPU backend


def cpu_op(name, start, length, device, **more):
    return (name, start, length, {"hlo_op": name, "program_id": 12, "run_id": 3, "device_ordinal": device, **more})


def test_cpu_backend_is_devices_by_ordinal(read):
    host = Builder("/host:CPU", process_id=8)
    host.line("python", ("Execute (jit_f)", 1000, 900, {"run_id": 3}), ("step", 0, 5000, {"step_num": 0}), ident=4)
    host.line("pool/1", cpu_op("dot.1", 2000, 1000, 0), ("Wait", 2100, 100), cpu_op("all-reduce.2", 4000, 1000, 0))
    host.line("pool/2", cpu_op("dot.1", 2500, 1000, 1), cpu_op("all-reduce.2", 3500, 1500, 1))
    trace = read(host, metadata_plane(module_bytes()))
    assert [(d.device_id, d.kind) for d in trace.devices] == [("CPU:0", "cpu"), ("CPU:1", "cpu")]
    assert rows(trace, "device_id", "name", "op_class", "flops", "launch_ns", "launch_thread") == [
        ("CPU:0", "dot.1", "matmul", 128, 1, "8/python/4"),
        ("CPU:0", "all-reduce.2", "collective", 8, 1, "8/python/4"),
        ("CPU:1", "dot.1", "matmul", 128, 1, "8/python/4"),
        ("CPU:1", "all-reduce.2", "collective", 8, 1, "8/python/4"),
    ]
    assert trace.collectives.select("group_id", "group_ranks", "seq", "message_bytes").rows() == [
        ("jit_f(12)/channel 9:0,1", "[0,1]", 0, 32),
        ("jit_f(12)/channel 9:0,1", "[0,1]", 0, 32),
    ]
    assert sorted(trace.host_events["name"]) == ["Execute (jit_f)", "Wait", "step"]  # operations are no host events


def test_runtime_calls_with_the_names_of_operations_are_no_cpu_operations(read):
    call = ("hipModuleLaunchKernel", 0, 10, {"hlo_op": "dot.1", "program_id": 12, "correlation_id": 1})
    trace = read(Builder("/host:CPU").line("Host Threads/1", call), metadata_plane(module_bytes()))
    assert len(trace.ops) == 0
    assert trace.facts["planes"][0]["events_with_hlo_op[n,ps]"] == [1, 10]


def test_pool_threads_lead_back_to_the_call_that_gave_them_work(read):
    host = Builder("/host:CPU")
    record, begin, end = (f"ThreadpoolListener::{x}" for x in ("Record", "StartRegion", "StopRegion"))
    host.line("python", ("ExecuteHelper", 1000, 9000), (record, 5000, 0, {"_pt": 15, "_p": 6}), ident=4)
    host.line(
        "pool/1",
        *((begin, 6000, 0, {"_ct": 15, "_c": 6}), cpu_op("dot.1", 7000, 1000, 0), (end, 9000, 0)),
        cpu_op("dot.1", 12_000, 1000, 0, run_id=4),
    )
    assert rows(read(host), "launch_ns", "launch_thread") == [(1, "python/4"), (None, None)]


# ---------------------------------------------------------------------------------------------- files


def test_read_by_content_from_gzip_under_any_name(tmp_path, read):
    plain = write(tmp_path / "plain", tpu().line("XLA Ops", ("a", 0, 1000)), hostnames=["h1"])
    packed = tmp_path / "packed.bin"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    trace = xspace.read(packed)
    assert trace.host == "h1"
    assert trace.ops.equals(xspace.read(plain).ops)


def test_cut_gzip_gives_the_whole_planes(tmp_path):
    first = tpu().line("XLA Ops", *((f"op.{i * 7919 % 1000}", i * 1000, i * 37 % 997) for i in range(3000)))
    second = Builder("/device:TPU:1").line("XLA Ops", *((f"op.{i * 6007 % 1000}", i * 1000, i) for i in range(3000)))
    packed = gzip.compress(write(tmp_path / "plain", first, second).read_bytes())
    path = tmp_path / "cut.xplane.pb.gz"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    trace = xspace.read(path)
    assert set(trace.ops["device_id"]) == {"TPU:0"}
    assert [i.code for i in trace.issues.by_code.values() if i.severity == "data_loss"] == ["truncated"]


def test_cut_file_without_a_whole_plane_is_an_error_that_names_the_byte(tmp_path):
    path = write(tmp_path / "a.xplane.pb", tpu().line("XLA Ops", ("a", 0, 1000)))
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(TraceError, match="byte 60") as error:
        xspace.read(path)
    assert error.value.code == "truncated"


def test_copied_as_text_is_told_apart(tmp_path):
    stats = {f"s{i}": 2**63 + 255 * i for i in range(40)}
    path = write(tmp_path / "a.xplane.pb", tpu(**stats).line("XLA Ops", ("a", 0, 1000)))
    path.write_bytes(path.read_bytes().decode("utf-8", errors="replace").encode())
    with pytest.raises(TraceError, match="copied as text") as error:
        xspace.read(path)
    assert error.value.code == "malformed"


def test_empty_and_foreign_files(tmp_path):
    empty = tmp_path / "empty.xplane.pb"
    empty.write_bytes(b"")
    with pytest.raises(TraceError) as error:
        xspace.read(empty)
    assert error.value.code == "empty"
    only_names = write(tmp_path / "names.xplane.pb", hostnames=["h"])
    with pytest.raises(TraceError) as error:
        xspace.read(only_names)
    assert error.value.code == "foreign"


@pytest.mark.parametrize(
    ("name", "head", "is_ours"),
    [
        ("host.xplane.pb", b"", True),
        ("host.xplane.pb.gz", b"\x00", True),
        ("whatever", PROTO["XSpace"](planes=[PROTO["XPlane"](name="/host:CPU")]).SerializeToString(), True),
        ("whatever", PROTO["XSpace"](planes=[PROTO["XPlane"](id=300, name="/device:TPU:0")]).SerializeToString(), True),
        ("trace.json", b'{"traceEvents": []}', False),
        ("a.sqlite", b"SQLite format 3\x00", False),
        ("x", b"\n", False),
    ],
)
def test_sniff(name, head, is_ours):
    assert xspace.sniff(name, head) is is_ours


def test_memory_of_the_allocators_of_gpus_and_tpus(read):
    totals = {"bytes_allocated": 512, "peak_bytes_in_use": 900, "addr": 77}
    host = Builder("/host:CPU").line(
        "main",
        ("MemoryDeallocation", 3000, 0, {"index_on_host": 1, "bytes_allocated": 0, "addr": 77}),
        (
            "MemoryAllocation",
            1000,
            0,
            {"allocator_name": "GPU_3_bfc", "allocation_bytes": 512, "tf_op": "dot", **totals},
        ),
        ("MemoryDeallocation", 2000, 0, {"allocator_name": "GPU_3_bfc", "allocation_bytes": 512, **totals}),
        ("MemoryAllocation", 1000, 0, {"allocator_name": "gpu_host_bfc", "allocation_bytes": 512, **totals}),
        ident=5,
    )
    found = read(host).memory
    columns = ("device_id", "thread", "ts_ns", "address", "bytes", "allocated_bytes", "peak_bytes", "name", "source")
    assert found.select(columns).rows() == [
        ("GPU:3", "main/5", 1, 77, 512, 512, 900, "dot", "xla_allocator"),
        ("GPU:3", "main/5", 2, 77, -512, 512, 900, None, "xla_allocator"),
        ("TPU:1", "main/5", 3, 77, None, 0, None, None, "xla_allocator"),
    ]

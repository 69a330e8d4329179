"""The Chrome trace of XLA's profiler, written by hand as XLA writes it: numbers as text, an empty object at the end."""

import gzip
import json

import pytest

from tracegap.ingest.errors import TraceError
from tracegap.ingest.readers import xla_chrome

AR = (
    "%all-reduce.1 = bf16[4,8]{1,0:T(8,128)} all-reduce(bf16[4,8]{1,0} %x), channel_id=3, replica_groups={{0,1}},"
    " use_global_device_ids=true, to_apply=%add"
)


def name(kind, pid, value, tid=None):
    event = {"ph": "M", "pid": pid, "name": kind, "args": {"name": value}}
    return event if tid is None else {**event, "tid": tid}


def span(pid, tid, what, ts, dur, **args):
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "name": what,
        "args": {k: str(v) for k, v in args.items()},
    }


def events():
    device = [
        name("process_name", 3, "/device:TPU:0"),
        name("thread_name", 3, "XLA Modules", 2),
        name("thread_name", 3, "XLA Ops", 3),
    ]
    host = [name("process_name", 701, "/host:CPU"), name("thread_name", 701, "python", 9)]
    return [
        *device,
        *host,
        span(3, 2, "jit_f(77)", 10.0, 5.0, run_id=4),
        span(
            3,
            3,
            "fusion.1",
            10.000001,
            2.5,
            hlo_category="loop fusion",
            model_flops=64,
            bytes_accessed=1024,
            tf_op="jit(f)/mlp/add:",
        ),
        span(
            3,
            3,
            "all-reduce.1",
            12.5,
            1.0004,
            hlo_category="all-reduce",
            model_flops=32,
            bytes_accessed=128,
            long_name=AR,
        ),
        span(3, 3, "custom.2", 14.0, 1.0, hlo_category="custom-call", model_flops=0, bytes_accessed=0),
        span(701, 9, "DoEnqueueProgram", 2.0, 1.0, run_id=4, device_ordinal=0),
        span(701, 9, "train", 1.0, 20.0, step_num=6),
        {},
    ]


def document(items):
    return json.dumps({"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": items}).encode()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "host.trace.json.gz"
    path.write_bytes(gzip.compress(document(events())))
    return path


def test_operations_costs_and_launches(path):
    trace = xla_chrome.read(path)
    assert (trace.format, trace.framework) == ("xla_chrome", "jax")
    columns = ("name", "op_class", "start_ns", "dur_ns", "flops", "bytes", "dtype", "launch_ns", "module")
    assert trace.ops.select(columns).rows() == [
        ("fusion.1", "elementwise", 10_000, 2500, 64, 1024, None, 2000, "mlp"),
        ("all-reduce.1", "collective", 12_500, 1000, 32, 128, "bf16", 2000, None),
        ("custom.2", "custom", 14_000, 1000, None, None, None, 2000, None),
    ]
    assert trace.step_marks.rows() == [(6, None, 1000, 20_000, "step_trace_annotation", "python/9")]
    assert trace.collectives.select("collective", "group_id", "message_bytes", "seq").rows() == [
        ("all_reduce", "(77)/channel 3:0,1", 64, 0)
    ]
    [device] = trace.devices
    assert (device.device_id, device.kind, device.stated_peaks) == ("TPU:0", "tpu", {})


def test_facts_count_the_raw_file(path):
    facts = xla_chrome.read(path).facts
    assert (facts["events"], facts["complete_events"]) == (12, 6)  # five names, six spans, the empty one
    assert facts["processes"] == ["/device:TPU:0", "/host:CPU"]
    assert facts["device_lines"] == {"/device:TPU:0 XLA Modules": [1, 5.0], "/device:TPU:0 XLA Ops": [3, 4.5]}
    assert facts["xla_ops_by_hlo_category[n,us,bytes_accessed,model_flops]"]["all-reduce"] == [1, 1.0, 128, 32]


def test_same_names_in_two_programs_are_two_operations(tmp_path):
    items = [
        *events()[:5],
        span(3, 2, "jit_f(77)", 0.0, 5.0),
        span(3, 2, "jit_g(78)", 10.0, 5.0),
        span(3, 3, "all-reduce.1", 1.0, 1.0, hlo_category="all-reduce", long_name=AR),
        span(3, 3, "all-reduce.1", 11.0, 1.0, hlo_category="all-reduce", long_name=AR),
    ]
    path = tmp_path / "a.json"
    path.write_bytes(document(items))
    assert xla_chrome.read(path).collectives.select("group_id", "seq").rows() == [
        ("(77)/channel 3:0,1", 0),
        ("(78)/channel 3:0,1", 0),
    ]


def test_cut_text_gives_the_whole_events_and_says_so(tmp_path):
    whole = document(events())
    path = tmp_path / "cut.json"
    path.write_bytes(whole[: whole.index(b'"custom.2"')])
    trace = xla_chrome.read(path)
    assert trace.ops["name"].to_list() == ["fusion.1", "all-reduce.1"]
    [issue] = trace.issues.by_code.values()
    assert (issue.code, issue.severity) == ("truncated", "data_loss")


def test_cut_gzip_gives_the_whole_events(tmp_path):
    many = [*events()[:5], *(span(3, 3, f"op.{i * 7919 % 5000}", float(i), 0.5) for i in range(5000))]
    packed = gzip.compress(document(many))
    path = tmp_path / "cut.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    trace = xla_chrome.read(path)
    assert 100 < len(trace.ops) < 5000
    assert trace.ops["name"].to_list() == [f"op.{i * 7919 % 5000}" for i in range(len(trace.ops))]
    assert trace.issues.by_code["truncated"].severity == "data_loss"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"metadata": {"highres-ticks": true}, "traceEvents": [', "truncated"),
        (b'{"traceEvents": {}}', "foreign"),
        (b'{"nodes": []}', "foreign"),
        (document([]), "foreign"),
        (b'{"traceEvents": [{"ph": %]}', "malformed"),
    ],
)
def test_files_without_a_whole_event(tmp_path, content, code):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        xla_chrome.read(path)
    assert error.value.code == code


def test_sniff_tells_it_from_kineto():
    assert xla_chrome.sniff("a.trace.json.gz", document(events())[:200])
    assert not xla_chrome.sniff("a.pt.trace.json", b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [')

"""Steps of a few operations, each with its launch on the host, written down call by call."""

import polars as pl

from tracegap.ingest.load import store_trace
from tracegap.ingest.store import frame_of
from tracegap.ingest.trace import COLLECTIVES, HOST_EVENTS, OPS, STEP_MARKS, Device, Trace
from tracegap.reports import join

H100 = "NVIDIA H100 80GB HBM3"


class Host:
    """A host thread written down call by call; each operation launches a kernel of 1 us where it begins."""

    def __init__(self):
        self.now, self.events, self.ops = 0, [], []

    def call(self, kind, name, *inside, thread="1/1"):
        """A span around others, which are tuples like these arguments or operations."""
        start, number = self.now, len(self.events)
        self.now += 10
        self.events.append([number, thread, kind, name, start, None, None])
        for one in inside:
            if isinstance(one, dict):
                self.op(one, number, thread)
            else:
                child = len(self.events)
                self.call(*one, thread=thread)
                self.events[child][6] = number
        self.now += 10
        self.events[number][5] = self.now - start

    def op(self, values, parent, thread):
        self.now += 10
        i = len(self.ops)
        self.ops.append(
            {"op_id": i, "start_ns": 1000 * (i + 1), "launch_ns": self.now, "launch_thread": thread, **values}
        )

    def trace(self, **more):
        return trace(self.ops, self.events, **more)


def trace(ops, events=(), fmt="kineto", source="profiler_step"):
    usual = {"device_id": "0", "stream": "7", "name": "k", "op_class": "matmul", "dur_ns": 1000, "dtype": "bf16",
             "bytes": 0, "cost_source": "shapes", "correlation_id": None}  # fmt: skip
    rows = [{c: (usual | o).get(c) for c in OPS} for o in ops]
    names = ("event_id", "thread", "kind", "name", "start_ns", "dur_ns", "parent_id")
    host = [{c: dict(zip(names, e, strict=True)).get(c) for c in HOST_EVENTS} for e in events]
    end = 1000 * (len(ops) + 2)
    marks = [{"step": 1, "start_ns": 0, "dur_ns": end, "source": source, "thread": "1/1"}]
    return Trace(
        format=fmt, framework="pytorch", origin_unix_ns=0, rank=0, world_size=1,
        devices=[Device(device_id="0", kind="gpu", name=H100)], ops=pl.DataFrame(rows, schema=OPS),
        host_events=pl.DataFrame(host, schema=HOST_EVENTS), collectives=pl.DataFrame([], schema=COLLECTIVES),
        step_marks=pl.DataFrame(marks, schema=STEP_MARKS),
    )  # fmt: skip


def put(con, a_trace, described=None, run="r"):
    store_trace(con, a_trace, trace_id=run, run_id=run, path=f"{run}.json", sha256=run, described=described)
    join.evaluate(con, run)
    return frame_of(con, "select * from step_gap where run_id = ?", [run]).to_dicts()[0]


def mm(name="aten::mm", flops=1000, shapes="[[4,4],[4,4]]", **more):
    return {"framework_op": name, "flops": flops, "shapes": shapes, **more}

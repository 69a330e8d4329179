"""Writers of the formats that make_traces.py makes: Kineto JSON, Nsight Systems sqlite, XSpace."""

import io
import json
import os
import shutil
import sqlite3
import struct
import tempfile
from typing import NamedTuple

import numpy as np

T0 = 4_458_676_000_000_000  # ns after the trace's base time
BASE_NS = 1_771_964_646_000_000_000
COMPUTE, COMM = 7, 20  # stream numbers
BF = "c10::BFloat16"


class K(NamedTuple):
    """A kernel."""

    name: str
    us: float
    grid: tuple
    block: tuple
    regs: int
    smem: int


# ---------------------------------------------------------------- Kineto JSON
# Text of an event for each layout and phase: '2.13' is the writer of current PyTorch (a field a line), 'classic'
# that of PyTorch 2.0 to 2.9, 'compact' what json.dump makes of it (one line). {a}: args; {e}: scope or bind point.
LAYOUTS = {
    "2.13": {
        "X": '\n  {{\n    "ph": "X",\n    {c}"name": "{n}",\n    "pid": {p},\n    "tid": {t},\n    "ts": {ts},\n    "dur": {d}\n    {a}\n  }},',
        "i": '\n  {{\n    "ph": "i",\n    {c}"s": "{e}",\n    "name": "{n}",\n    "pid": {p},\n    "tid": {t},\n    "ts": {ts}\n    {a}\n  }},',
        "M": '\n  {{\n    "ph": "M",\n    "name": "{n}",\n    "ts": {ts},\n    "pid": {p},\n    "tid": {t}{a}\n  }},',
        "f": '\n  {{\n    "ph": "{ph}",\n    "id": {i},\n    "pid": {p},\n    "tid": {t},\n    "ts": {ts},\n    {c}"name": "{n}"\n    {e}\n  }},',
        "cat": ('"cat": "{}",\n    ', "\n    "),
        "args": ',\n    "args": {{\n      {}\n    }}',
    },
    "classic": {
        "X": '\n  {{\n    "ph": "X", {c}"name": "{n}", "pid": {p}, "tid": {t},\n    "ts": {ts}, "dur": {d}{a}\n  }},',
        "i": '\n  {{\n    "ph": "i", {c}"s": "{e}", "name": "{n}",\n    "pid": {p}, "tid": {t},\n    "ts": {ts}{a}\n  }},',
        "M": '\n  {{\n    "name": "{n}", "ph": "M", "ts": {ts}, "pid": {p}, "tid": {t}{a}\n  }},',
        "f": '\n  {{\n    "ph": "{ph}", "id": {i}, "pid": {p}, "tid": {t}, "ts": {ts},\n    {c}"name": "{n}"{e}\n  }},',
        "cat": ('"cat": "{}", ', ""),
        "args": ',\n    "args": {{\n      {}\n    }}',
    },
    "compact": {
        "X": '{{"ph": "X", {c}"name": "{n}", "pid": {p}, "tid": {t}, "ts": {ts}, "dur": {d}{a}}}, ',
        "i": '{{"ph": "i", {c}"name": "{n}", "pid": {p}, "tid": {t}, "ts": {ts}, "s": "{e}"{a}}}, ',
        "M": '{{"ph": "M", "name": "{n}", "pid": {p}, "tid": {t}, "ts": {ts}{a}}}, ',
        "f": '{{"ph": "{ph}", "id": {i}, "pid": {p}, "tid": {t}, "ts": {ts}, {c}"name": "{n}"{e}}}, ',
        "cat": ('"cat": "{}", ', ""),
        "args": ', "args": {{{}}}',
    },
}
BIND = ', "bp": "e"'


def us(ns):
    return f"{ns // 1000}.{ns % 1000:03d}"


def dims_json(dims):
    return json.dumps([[] if isinstance(d, str) else list(d) for d in dims])


class Kineto:
    """Writes one rank's trace in Kineto's order: metadata, host events, python frames, device events."""

    def __init__(self, path, rank, world, style, stack):
        self.rank, self.world, self.style, self.stack, self.path = rank, world, style, stack, path
        self.pid, self.dev, self.ev, self.pyid = 425000 + 1000 * rank, rank % 8, 0, 0
        self.host, self.py, self.gpu, self.meta = [], [], [], {}
        d = os.path.dirname(path) if path else None
        self.spool = [tempfile.TemporaryFile(dir=d) if path else io.BytesIO() for _ in range(3)]
        layout = LAYOUTS[style]
        self.text = {ph: layout[ph.replace("s", "f")].format for ph in "XiMsf"}
        self.cat, self.args = layout["cat"], layout["args"].format

    def event(self, ph, cat, name, pid, tid, ts, dur=0, args="", e="", i=0):
        return self.text[ph](
            ph=ph,
            c=self.cat[0].format(cat) if cat else self.cat[1],
            n=name,
            p=pid,
            t=tid,
            ts=us(ts),
            d=us(dur),
            a=self.args(args) if args else "",
            e=e,
            i=i,
        )

    def reserve(self):
        """A place for an event whose end is not known yet: parents come before their children."""
        self.host.append("")
        return len(self.host) - 1

    def next(self):
        self.ev += 1
        return self.ev

    def annotation(self, slot, name, tid, ts, dur):
        n = self.next()
        self.host[slot] = self.event(
            "X",
            "user_annotation",
            name,
            self.pid,
            tid,
            ts,
            dur,
            f'"External id": {n},"Record function id": 0, "Ev Idx": {n}',
        )

    def cpu_op(self, slot, op, tid, ts, dur, ext, seq, fwd_tid):
        inputs = self.meta.get(op)
        if inputs is None:
            kinds = json.dumps(
                [(("ScalarList" if d[0] == "[" else "Scalar") if isinstance(d, str) else BF) for d in op.dims]
            )
            values = json.dumps([d if isinstance(d, str) else "" for d in op.dims])
            strides = dims_json(
                [d if isinstance(d, str) else [int(np.prod(d[i + 1 :])) for i in range(len(d))] for d in op.dims]
            )
            inputs = self.meta[op] = (
                (
                    f'"Concrete Inputs": {values}, "Input type": {kinds}, "Input Strides": {strides}, '
                    f'"Input Dims": {dims_json(op.dims)}, '
                )
                if op.dims
                else ""
            )
        link = f'"Sequence number": {seq}, "Fwd thread id": {fwd_tid}, ' if seq else ""
        self.host[slot] = self.event(
            "X",
            "cpu_op",
            op.name,
            self.pid,
            tid,
            ts,
            dur,
            f'"External id": {ext},"Record function id": {ext - 190 if seq else 0}, {inputs}{link}"Ev Idx": {self.next()}',
        )

    def comm_op(self, ts, dur, tid, coll, world):
        self.host.append(
            self.event(
                "X",
                "cpu_op",
                f"c10d::{coll[0]}_",
                self.pid,
                tid,
                ts - 400,
                dur + 800,
                f'"External id": {coll[4] - 1},"Record function id": 0, "Ev Idx": {self.next()}',
            )
        )
        self.host.append(
            self.event(
                "X",
                "cpu_op",
                "record_param_comms",
                self.pid,
                tid,
                ts,
                dur,
                f'"External id": {coll[4]},"Record function id": 0, {self.coll_args(coll, world)}, '
                f'"Rank": {self.rank}, "Ev Idx": {self.next()}',
            )
        )

    def coll_args(self, coll, world):
        name, elems, out, corr, _, dtype = coll
        return (
            f'"Collective name": "{name}", "In msg nelems": {elems}, "Out msg nelems": {out}, "Group size": {world}, '
            f'"dtype": "{dtype}", "In split size": "[]", "Out split size": "[]", "Process Group Name": "0", '
            f'"Process Group Description": "default_pg", "Process Group Ranks": "{list(range(world))}", "Seq": {corr - 60000}'
        )

    def memory(self, ts, tid, ext):
        self.host.append(
            self.event(
                "i",
                "cpu_instant_event",
                "[memory]",
                self.pid,
                tid,
                ts,
                e="t",
                args=(
                    f'"Total Reserved": 41238396928, "Total Allocated": {30064771072 + 512 * (ext % 4096)}, "Bytes": {512 * (ext % 97 + 1)}, '
                    f'"Device Id": {self.dev}, "Device Type": 1, "Addr": {140000000000000 + 512 * ext}, "Ev Idx": {self.next()}'
                ),
            )
        )

    def push_frames(self, frames):
        self.pyid += len(frames) + 1
        return self.pyid - len(frames)

    def pop_frames(self, first, frames, tid, ts, dur):
        for i, name in enumerate((f"nn.Module: Block_{first % 48}",) + frames):
            module = ', "Python module id": %d' % (first % 48) if i == 0 else ""
            self.py.append(
                self.event(
                    "X",
                    "python_function",
                    name,
                    self.pid,
                    tid,
                    ts + 150 * i,
                    dur - 300 * i,
                    f'"Python parent id": {first + i - 1 if i else "null"}, "Python id": {first + i}{module}, "Ev Idx": {self.next()}',
                )
            )

    def fwdbwd(self, seq, tid, ts, tid2, ts2):
        self.gpu.append(self.event("s", "fwdbwd", "fwdbwd", self.pid, tid, ts, i=seq))
        self.gpu.append(self.event("f", "fwdbwd", "fwdbwd", self.pid, tid2, ts2, i=seq, e=BIND))

    def runtime(self, name, cbid, ts, dur, corr, ext, tid, flow):
        self.gpu.append(
            self.event(
                "X",
                "cuda_runtime",
                name,
                self.pid,
                tid,
                ts,
                dur,
                f'"External id": {ext}, "cbid": {cbid}, "correlation": {corr}',
            )
        )
        if flow:
            self.gpu.append(self.event("s", "ac2g", "ac2g", self.pid, tid, ts, i=corr))

    def on_device(self, cat, name, stream, ts, dur, corr, args):
        self.gpu.append(self.event("X", cat, name, self.dev, stream, ts, dur, args))
        self.gpu.append(self.event("f", "ac2g", "ac2g", self.dev, stream, ts, i=corr, e=BIND))

    def kernel(self, k, ts, dur, stream, corr, ext, more=""):
        blocks = k.grid[0] * k.grid[1] * k.grid[2] / 132
        warps = blocks * (k.block[0] * k.block[1] * k.block[2] / 32)
        self.on_device(
            "kernel",
            k.name,
            stream,
            ts,
            dur,
            corr,
            (
                f'"External id": {ext}, "queued": 0, "device": {self.dev}, "context": 1, "stream": {stream}, "correlation": {corr}, '
                f'"registers per thread": {k.regs}, "shared memory": {k.smem}, "blocks per SM": {blocks:.6f}, "warps per SM": {warps:.6f}, '
                f'"grid": {list(k.grid)}, "block": {list(k.block)}, "est. achieved occupancy %": {min(100, round(warps / 0.64))}{more}'
            ),
        )

    def collective(self, name, ts, dur, coll, world):
        self.kernel(
            K(name, 0, (16, 1, 1), (544, 1, 1), 96, 83240),
            ts,
            dur,
            COMM,
            coll[3],
            coll[4],
            ", " + self.coll_args(coll, world),
        )

    def memcpy(self, kind, nbytes, ts, dur, stream, corr, ext):
        name = {"HtoD": "Memcpy HtoD (Pinned -> Device)", "DtoH": "Memcpy DtoH (Device -> Pageable)"}[kind]
        self.on_device(
            "gpu_memcpy",
            name,
            stream,
            ts,
            dur,
            corr,
            (
                f'"External id": {ext}, "device": {self.dev}, "context": 1, "stream": {stream}, "correlation": {corr}, '
                f'"bytes": {nbytes}, "memory bandwidth (GB/s)": {nbytes / dur}'
            ),
        )

    def sync(self, ts, dur, corr):
        self.gpu.append(
            self.event(
                "X",
                "cuda_sync",
                "Stream Sync",
                self.dev,
                COMPUTE + 100000,
                ts,
                dur,
                (
                    f'"cuda_sync_kind": "Stream Sync", "stream": {COMPUTE}, "correlation": {corr}, "device": {self.dev}, "context": 1'
                ),
            )
        )

    def step(self, slot, number, tid, ts, dur, g0, g1):
        self.annotation(slot, f"ProfilerStep#{number}", tid, ts, dur)
        self.gpu.append(
            self.event(
                "X",
                "gpu_user_annotation",
                f"ProfilerStep#{number}",
                self.dev,
                COMPUTE,
                g0 - 1,
                g1 - g0 + 2,
                f'"External id": {self.ev}',
            )
        )

    def flush(self):
        for spool, part in zip(self.spool, (self.host, self.py, self.gpu)):
            spool.write("".join(part).encode())
            part.clear()

    def size(self):
        return sum(s.tell() for s in self.spool)

    def close(self, begin, end):
        self.flush()
        gpus = ", ".join(
            '{"id": %d, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028765696, "computeMajor": 9, '
            '"computeMinor": 0, "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536, '
            '"warpSize": 32, "sharedMemPerBlock": 49152, "numSms": 132, "regsPerMultiprocessor": 65536, '
            '"sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472}' % i
            for i in range(8)
        )
        ranks = list(range(self.world))
        info = json.dumps(
            {
                "backend": "nccl",
                "rank": self.rank,
                "world_size": self.world,
                "pg_count": 1,
                "pg_config": [
                    {
                        "pg_name": "0",
                        "pg_desc": "default_pg",
                        "backend_config": "cuda:nccl",
                        "pg_size": self.world,
                        "ranks": ranks,
                    }
                ],
                "nccl_version": "2.27.5",
            }
        )
        nl = "\n    " if self.style != "compact" else " "
        head = (
            f'{{{nl}"schemaVersion": 1,{nl}"deviceProperties": [{nl}{gpus}],{nl}"cuda_runtime_version": 12080,{nl}"record_shapes": 1,'
            f'{nl}"with_stack": {int(self.stack)},{nl}"distributedInfo": {info},{nl}"host_name": "node0",{nl}"displayTimeUnit": "ms",'
            f'{nl}"baseTimeNanoseconds": {BASE_NS},{nl}"traceEvents": [{nl.rstrip(" ")}'
        )
        meta = lambda name, pid, tid, arg: self.event("M", "", name, pid, tid, begin, args=arg)  # noqa: E731
        for pid, label, index in [(self.pid, "CPU", self.pid)] + [(i, f"GPU {i}", 5000000 + i) for i in range(8)]:
            head += meta("process_name", pid, 0, '"name": "python3"') + meta(
                "process_labels", pid, 0, f'"labels": "{label}"'
            )
            head += meta("process_sort_index", pid, 0, f'"sort_index": {index}')
        for pid, tid, name in (
            (self.pid, self.pid, f"thread {self.pid} (python3)"),
            (self.dev, COMPUTE, f"stream {COMPUTE} "),
            (self.pid, self.pid + 614, f"thread {self.pid + 614} (pt_autograd_0)"),
            (self.dev, COMM, f"stream {COMM} "),
        ):
            head += meta("thread_name", pid, tid, f'"name": "{name}"') + meta(
                "thread_sort_index", pid, tid, f'"sort_index": {tid}'
            )
        tail = (
            self.event(
                "X",
                "Trace",
                "PyTorch Profiler (0)",
                '"Spans"',
                '"PyTorch Profiler"',
                begin,
                end - begin,
                '"Op count": 0',
            )
            + meta("process_sort_index", '"Spans"', 0, '"sort_index": 536870912')
            + self.event(
                "i", "", "Iteration Start: PyTorch Profiler", '"Traces"', '"Trace PyTorch Profiler"', begin, e="g"
            )
            + self.event("i", "", "Record Window End", '""', '""', end, e="g")
        ).rstrip(", ")
        with open(self.path, "wb") as f:
            f.write(head.encode())
            for s in self.spool:
                s.seek(0)
                shutil.copyfileobj(s, f, 1 << 20)
                s.close()
            f.write(
                (
                    tail
                    + ("\n  ]," if self.style != "compact" else "], ")
                    + f'"traceName": "rank{self.rank}.pt.trace.json" }}'
                ).encode()
            )


# ---------------------------------------------------------------- Nsight Systems sqlite
# Columns are INTEGER, with :T TEXT and :R REAL; ! is NOT NULL.
NSYS_TABLES = {
    "StringIds": "id!K value:T!",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid demangledName! shortName! "
    "mangledName launchType cacheConfig registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! "
    "dynamicSharedMemory! localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig "
    "clusterX clusterY clusterZ",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid bytes! copyKind! deprecatedSrcId "
    "srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress copyCount",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid syncType! eventId! eventSyncId",
    "NVTX_EVENTS": "start! end eventType! rangeId category color text:T globalTid endGlobalTid textId domainId uint64Value int64Value doubleValue:R "
    "uint32Value int32Value floatValue:R jsonTextId jsonText:T binaryData:T",
    "TARGET_INFO_GPU": "vmId! id! name:T busLocation:T isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount pwGpuId uuid:T luid "
    "chipName:T cuDevice computeMajor computeMinor smMajor smMinor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId! cudaId! pid! uuid:T numMultiprocessors!",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:T localTime:T",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName:T! name:T! nameEnum! value:T!",
    "PROCESSES": "globalPid pid name:T",
    "ThreadNames": "nameId! priority globalTid",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "META_DATA_CAPTURE": "name:T! value:T",
    "META_DATA_EXPORT": "name:T! value:T",
}
NSYS_ENUMS = {  # id: name = label
    "ENUM_CUDA_MEMCPY_OPER": {
        0: "CUDA_MEMCPY_KIND_UNKNOWN=Unknown",
        1: "CUDA_MEMCPY_KIND_HTOD=Host-to-Device",
        2: "CUDA_MEMCPY_KIND_DTOH=Device-to-Host",
        8: "CUDA_MEMCPY_KIND_DTOD=Device-to-Device",
    },
    "ENUM_CUDA_MEM_KIND": {
        0: "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE=Pageable",
        1: "CUDA_MEMOPR_MEMORY_KIND_PINNED=Pinned",
        2: "CUDA_MEMOPR_MEMORY_KIND_DEVICE=Device",
        4: "CUDA_MEMOPR_MEMORY_KIND_MANAGED=Managed",
    },
    "ENUM_CUPTI_SYNC_TYPE": {
        i: f"CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_{n}={label}"
        for i, (n, label) in enumerate(
            (
                ("UNKNOWN", "Unknown"),
                ("EVENT_SYNCHRONIZE", "Event sync"),
                ("STREAM_WAIT_EVENT", "Stream wait sync"),
                ("STREAM_SYNCHRONIZE", "Stream sync"),
                ("CONTEXT_SYNCHRONIZE", "Context sync"),
            )
        )
    },
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": {
        0: "CUDA_KERNEL_LAUNCH_TYPE_UNKNOWN=Unknown",
        1: "CUDA_KERNEL_LAUNCH_TYPE_REGULAR=Regular",
    },
    "ENUM_NSYS_EVENT_TYPE": {
        34: "NvtxMark=NvtxMark",
        59: "NvtxPushPopRange=NvtxPushPopRange",
        60: "NvtxStartEndRange=NvtxStartEndRange",
        75: "NvtxDomainCreate=NvtxDomainCreate",
    },
}


class Nsys:
    """One rank's report as `nsys export --type sqlite` lays it out; host ops are NVTX ranges (emit_nvtx)."""

    stack = False

    def __init__(self, path, rank, world):
        self.rank, self.world, self.dev, self.pid, self.strings = rank, world, 0, 425000 + 1000 * rank, {}
        self.gpid = 0x1000000000000 * 3 + self.pid * 0x1000000
        self.db = sqlite3.connect(path or ":memory:", isolation_level=None)
        self.db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")
        for table, cols in NSYS_TABLES.items():
            types = {":T": " TEXT", ":R": " REAL", "!": " NOT NULL", "K": " PRIMARY KEY"}
            defs = []
            for c in cols.split():
                name = c.rstrip("K!").split(":")[0]
                rest = c[len(name) :] if ":" in c else " INTEGER" + c[len(name) :]
                for a, b in types.items():
                    rest = rest.replace(a, b) if a != "K" else rest.removesuffix(a) + (b if rest.endswith(a) else "")
                defs.append(name + rest)
            self.db.execute(f"CREATE TABLE {table} ({', '.join(defs)})")
        for table, values in NSYS_ENUMS.items():
            self.db.execute(f"CREATE TABLE {table} (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT)")
            self.insert(table, [(i, *v.split("=")) for i, v in values.items()])
        self.db.execute("BEGIN")
        self.rows = {t: [] for t in NSYS_TABLES if t.startswith(("CUPTI", "NVTX"))}

    def insert(self, table, rows):
        if rows:
            self.db.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)

    def add(self, kind, ts, dur, *values):
        self.rows[kind if kind == "NVTX_EVENTS" else "CUPTI_ACTIVITY_KIND_" + kind].append(
            (ts - T0, ts - T0 + dur, *values)
        )

    def sid(self, s):
        return self.strings.setdefault(s, len(self.strings) + 1)

    def reserve(self):
        return 0

    def fwdbwd(self, *_):
        pass

    def nvtx(self, text, tid, ts, dur, text_id):
        self.add("NVTX_EVENTS", ts, dur, 59, None, None, None, text, self.gpid + tid, None, text_id, 1, *[None] * 9)

    def annotation(self, slot, name, tid, ts, dur):
        self.nvtx(None, tid, ts, dur, self.sid(name))

    def cpu_op(self, slot, op, tid, ts, dur, ext, seq, fwd_tid):
        text = op.name + (f", seq = {seq}" if seq else "") + f", op_id = {ext}"
        self.nvtx(text + (f", sizes = {dims_json(op.dims)}" if op.dims else ""), tid, ts, dur, None)

    def comm_op(self, ts, dur, tid, coll, world):
        self.nvtx(None, tid, ts, dur, self.sid("ncclKernel " + coll[0]))

    def runtime(self, name, cbid, ts, dur, corr, ext, tid, flow):
        self.add("RUNTIME", ts, dur, 0, self.gpid + tid, corr, self.sid(name + "_v7000"), 0, None)

    def kernel(self, k, ts, dur, stream, corr, ext):
        short = k.name.split("(")[0].split("<")[0].split("::")[-1].replace("void ", "") or k.name
        self.add(
            "KERNEL",
            ts,
            dur,
            self.dev,
            1,
            None,
            stream,
            corr,
            self.gpid,
            self.sid(k.name),
            self.sid(short),
            self.sid("_Z" + short),
            1,
            None,
            k.regs,
            *k.grid,
            *k.block,
            0,
            k.smem,
            0,
            150994944,
            corr - 59000,
            max(k.smem, 8192),
            None,
            0,
            0,
            0,
            0,
        )

    def collective(self, name, ts, dur, coll, world):
        self.kernel(K(name, 0, (16, 1, 1), (544, 1, 1), 96, 83240), ts, dur, COMM, coll[3], coll[4])

    def memcpy(self, kind, nbytes, ts, dur, stream, corr, ext):
        copy, src, dst = (1, 1, 2) if kind == "HtoD" else (2, 2, 0)
        self.add(
            "MEMCPY", ts, dur, self.dev, 1, None, stream, corr, self.gpid, nbytes, copy, None, src, dst, *[None] * 7, 1
        )

    def sync(self, ts, dur, corr):
        self.add("SYNCHRONIZATION", ts, dur, self.dev, 1, None, COMPUTE, corr, self.gpid, 3, 0xFFFFFFFF, None)

    def step(self, slot, number, tid, ts, dur, g0, g1):
        self.annotation(slot, f"ProfilerStep#{number}", tid, ts, dur)

    def flush(self):
        for table, rows in self.rows.items():
            self.insert(table, rows)
            rows.clear()

    def size(self):
        return self.db.execute("PRAGMA page_count").fetchone()[0] * self.db.execute("PRAGMA page_size").fetchone()[0]

    def close(self, begin, end):
        self.flush()
        uuid, name = f"GPU-{self.rank:08x}", "NVIDIA H100 80GB HBM3"
        self.insert(
            "ThreadNames",
            [(self.sid(n), 10, self.gpid + t) for t, n in ((self.pid, "python3"), (self.pid + 614, "pt_autograd_0"))],
        )
        for table, row in (
            (
                "TARGET_INFO_GPU",
                (
                    3,
                    0,
                    name,
                    "0000:04:00.0",
                    1,
                    52428800,
                    85028765696,
                    3352320000000,
                    1980000000,
                    132,
                    1,
                    uuid,
                    None,
                    "GH100",
                    0,
                    9,
                    0,
                    9,
                    0,
                ),
            ),
            ("TARGET_INFO_CUDA_DEVICE", (0, 0, self.pid, uuid, 132)),
            ("PROCESSES", (self.gpid, self.pid, "python3")),
            ("TARGET_INFO_SESSION_START_TIME", (BASE_NS + T0, "2026-02-24T20:24:06", "2026-02-24T20:24:06")),
            ("TARGET_INFO_SYSTEM_ENV", (self.gpid, "", "Hostname", 0, "node0")),
            (
                "META_DATA_CAPTURE",
                ("COMMAND_LINE", f"torchrun --nproc-per-node={self.world} train.py (rank {self.rank})"),
            ),
            ("ANALYSIS_DETAILS", (self.gpid, end - begin, begin - T0, end - T0)),
        ):
            self.insert(table, [row])
        self.insert(
            "META_DATA_EXPORT",
            [
                ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"),
                ("EXPORT_SCHEMA_VERSION", "3.24.14"),
                ("EXPORT_SCHEMA_VERSION_MAJOR", "3"),
                ("EXPORT_SCHEMA_VERSION_MINOR", "24"),
                ("EXPORT_SCHEMA_VERSION_MICRO", "14"),
            ],
        )
        self.insert("StringIds", [(i, s) for s, i in self.strings.items()])
        self.db.execute("COMMIT")
        self.db.close()


# ---------------------------------------------------------------- XSpace
def varint(n):
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def num(field, value):
    return varint(field << 3) + varint(value)


def blob(field, data):
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


class Plane:
    """An XPlane in the making: lines and metadata as encoded bytes (field numbers of xplane.proto)."""

    def __init__(self, ident, name):
        self.parts, self.ids, self.stat_ids = [num(1, ident) + blob(2, name)], {}, {}

    def stat_id(self, name):
        return self.stat_ids.setdefault(name, len(self.stat_ids) + 1)

    def stat(self, name, value):
        """An encoded XStat; int as int64, ('u', n) as uint64, ('r', s) as a reference."""
        sid = self.stat_id(name)
        if isinstance(value, tuple):
            body = num(3, value[1]) if value[0] == "u" else num(7, self.stat_id(value[1]))
        elif isinstance(value, float):
            body = b"\x11" + struct.pack("<d", value)
        else:
            body = num(4, value) if isinstance(value, int) else blob(5, value)
        return num(1, sid) + body

    def event_type(self, name, display="", stats=()):
        """Id of an event's metadata; made on first use."""
        if name not in self.ids:
            n = self.ids[name] = len(self.ids) + 1
            body = (
                num(1, n)
                + blob(2, name)
                + (blob(4, display) if display else b"")
                + b"".join(blob(5, self.stat(*s)) for s in stats)
            )
            self.parts.append(blob(4, num(1, n) + blob(2, body)))
        return self.ids[name]

    def event(self, name, offset, dur, stats=()):
        return blob(
            4,
            num(1, self.event_type(name))
            + num(2, offset)
            + num(3, dur)
            + b"".join(blob(4, self.stat(*s)) for s in stats),
        )

    def line(self, ident, name, start_ns, events):
        body = num(1, ident) + num(10, ident) + blob(2, name) + num(3, start_ns) + b"".join(events)
        self.parts += [varint(3 << 3 | 2) + varint(len(body)), body]

    def encode(self, stats=()):
        sm = [blob(6, self.stat(*s)) for s in stats]
        sm += [blob(5, num(1, i) + blob(2, num(1, i) + blob(2, s))) for s, i in self.stat_ids.items()]
        return b"".join(self.parts + sm)

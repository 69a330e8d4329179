"""Writes a rank's schedule as `nsys export --type sqlite` does (schema 3.13)."""

import gzip
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _sim.ddp import Arg, Job, Worker
from _sim.schedule import DeviceOp, HostSpan

START_UNIX_NS = 1_788_134_400_000_000_000
"""When the capture session of rank 0 began; that of each further rank began a little later."""
SESSION_LAG_NS = 41_337_000
EVENTS_AFTER_NS = 2_913_446_000
"""Recording begins so long after the session of rank 0."""
VM_ID = 0x1000000000000
CONTEXT, PUSH_POP = 1, 59

TABLES = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, "
    "globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, "
    "launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, "
    "gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, "
    "blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, "
    "localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, "
    "sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, "
    "globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER, srcKind INTEGER, "
    "dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER, "
    "migrationCause INTEGER, graphNodeId INTEGER, virtualAddress INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, "
    "globalPid INTEGER, value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, "
    "globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId "
    "INTEGER",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, "
    "globalPid INTEGER, syncType INTEGER NOT NULL, eventId INTEGER NOT NULL",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category "
    "INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, "
    "uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, "
    "floatValue REAL, jsonTextId INTEGER, jsonText TEXT",
    "TARGET_INFO_GPU": "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, isDiscrete INTEGER, "
    "l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER, smCount INTEGER, "
    "pwGpuId INTEGER, uuid TEXT, luid INTEGER, chipName TEXT, cuDevice INTEGER, computeMajor INTEGER, "
    "computeMinor INTEGER, smMajor INTEGER, smMinor INTEGER",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER, pid INTEGER",
    "TARGET_INFO_CUDA_STREAM": "streamId INTEGER NOT NULL, hwId INTEGER NOT NULL, vmId INTEGER NOT NULL, "
    "processId INTEGER NOT NULL, contextId INTEGER NOT NULL, priority INTEGER NOT NULL, flag INTEGER NOT NULL",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "ENUM_CUDA_MEMCPY_OPER": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "ENUM_NSYS_EVENT_TYPE": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
}
EXPORT = {
    "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
    "EXPORT_PRODUCT_VERSION": "2024.5.1.113",
    "EXPORT_SCHEMA_VERSION": "3.13.2",
    "EXPORT_SCHEMA_VERSION_MAJOR": "3",
    "EXPORT_SCHEMA_VERSION_MINOR": "13",
    "EXPORT_SCHEMA_VERSION_MICRO": "2",
}
API_SUFFIX = {"cudaLaunchKernelExC": "_v11060", "cudaMemcpyAsync": "_v3020", "cudaMemsetAsync": "_v3020"}


def origin_unix_ns(rank: int) -> int:
    """Unix time of t = 0 in the file of `rank`."""
    return START_UNIX_NS + rank * SESSION_LAG_NS


class Database:
    """One rank's export."""

    def __init__(self, job: Job, worker: Worker, con: sqlite3.Connection) -> None:
        self.job, self.worker, self.con = job, worker, con
        self.pid = 52_310 + worker.rank
        self.global_pid = VM_ID | self.pid << 24
        self.shift_ns = EVENTS_AFTER_NS - worker.rank * SESSION_LAG_NS
        self._strings: dict[str, int] = {}
        self._op_id = 4000
        for name, columns in TABLES.items():
            con.execute(f"CREATE TABLE {name} ({columns})")

    def fill(self) -> None:
        """Write all tables."""
        for span in self.worker.spans:
            self._host(span)
        for op in self.worker.ops:
            self._device(op)
        self._about()
        self._insert_many("StringIds", [(i, text) for text, i in self._strings.items()])

    def _insert(self, table: str, **values: Any) -> None:
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        self.con.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))

    def _insert_many(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        marks = ", ".join("?" * len(rows[0]))
        self.con.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings) + 1)

    def _tid(self, thread: str) -> int:
        return self.global_pid | (self.pid + (0 if thread == self.worker.main_thread else 77))

    def _times(self, start_ns: int, end_ns: int) -> dict[str, int]:
        return {"start": start_ns + self.shift_ns, "end": end_ns + self.shift_ns}

    def _host(self, span: HostSpan) -> None:
        times, tid = self._times(span.start_ns, span.end_ns), self._tid(span.thread)
        if span.kind in ("launch", "sync"):
            name = self._string(span.name + API_SUFFIX.get(span.name, "_v7000"))
            call = {"globalTid": tid, "correlationId": span.correlation, "nameId": name}
            self._insert("CUPTI_ACTIVITY_KIND_RUNTIME", **times, eventClass=0, **call, returnValue=0)
            if span.kind == "sync":
                place = {"deviceId": self.worker.rank, "contextId": CONTEXT, "streamId": 7}
                who = {"correlationId": span.correlation, "globalPid": self.global_pid}
                kind = {"syncType": 3, "eventId": 4294967295}
                self._insert("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", **times, **place, **who, **kind)
            return
        named = {"globalTid": tid, "domainId": 0, "text": self._range_text(span)}
        self._insert("NVTX_EVENTS", **times, eventType=PUSH_POP, **named)

    def _range_text(self, span: HostSpan) -> str:
        if span.kind == "step":
            return f"step {span.args['number']}"
        if span.kind == "input":
            return "load_batch"
        if span.name.startswith("Optimizer"):
            return span.name
        self._op_id += 1
        text = f"{span.name}, op_id = {self._op_id}"
        inputs: Sequence[Arg] = span.args.get("inputs", ())
        dims = [a.dims for a in inputs] or ([[span.args["nelems"]]] if "nelems" in span.args else [])
        return f"{text}, sizes = {dims}" if dims else text

    def _device(self, op: DeviceOp) -> None:
        place = {"deviceId": self.worker.rank, "contextId": CONTEXT, "streamId": int(op.stream)}
        common = self._times(op.start_ns, op.end_ns) | place
        common |= {"correlationId": op.launch.correlation or 0, "globalPid": self.global_pid}
        if op.op_class == "copy":
            to_device = "HtoD" in op.name
            kinds = (
                {"copyKind": 1, "srcKind": 1, "dstKind": 2}
                if to_device
                else {"copyKind": 2, "srcKind": 2, "dstKind": 1}
            )
            self._insert("CUPTI_ACTIVITY_KIND_MEMCPY", **common, bytes=op.copy_bytes, **kinds)
        elif op.op_class == "memset":
            self._insert("CUPTI_ACTIVITY_KIND_MEMSET", **common, value=0, bytes=op.copy_bytes, memKind=2)
        else:
            self._insert("CUPTI_ACTIVITY_KIND_KERNEL", **common, **self._kernel(op))

    def _kernel(self, op: DeviceOp) -> dict[str, Any]:
        grid, block = op.args.get("grid", (24, 1, 1)), op.args.get("block", (544, 1, 1))
        return {
            "demangledName": self._string(op.name),
            "shortName": self._string(short_name(op.name)),
            "launchType": 1,
            "registersPerThread": 96,
            **dict(zip(("gridX", "gridY", "gridZ"), grid, strict=True)),
            **dict(zip(("blockX", "blockY", "blockZ"), block, strict=True)),
            "staticSharedMemory": 0,
            "dynamicSharedMemory": 0,
            "localMemoryPerThread": 0,
            "localMemoryTotal": 0,
            "gridId": op.launch.correlation,
        }

    def _about(self) -> None:
        for gpu in range(self.job.ranks):
            memory = {"l2CacheSize": 52_428_800, "totalMemory": 85_018_279_936, "memoryBandwidth": 3_352_320_000_000}
            part = {
                "vmId": VM_ID,
                "id": gpu,
                "name": "NVIDIA H100 80GB HBM3",
                "busLocation": f"0000:{0x1B + gpu:02x}:00.0",
            }
            chip = {"isDiscrete": 1, "clockRate": 1_980_000_000, "smCount": 132, "pwGpuId": gpu, "chipName": "GH100"}
            version = {"cuDevice": gpu, "computeMajor": 9, "computeMinor": 0, "smMajor": 9, "smMinor": 0}
            uuid = f"5a0c17b2-d9e8-4f00-8000-{gpu:012x}"
            self._insert("TARGET_INFO_GPU", **part, **memory, **chip, uuid=uuid, luid=0, **version)
            self._insert("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=gpu, pid=self.pid)
        for stream in sorted({int(op.stream) for op in self.worker.ops}):
            whose = {"hwId": 0, "vmId": VM_ID, "processId": self.pid, "contextId": CONTEXT}
            self._insert("TARGET_INFO_CUDA_STREAM", streamId=stream, **whose, priority=0, flag=2 if stream > 7 else 1)
        start = origin_unix_ns(self.worker.rank)
        self._insert("TARGET_INFO_SESSION_START_TIME", utcEpochNs=start, utcTime=UTC_TIME, localTime=UTC_TIME)
        self._insert("PROCESSES", globalPid=self.global_pid, pid=self.pid, name="python3")
        for thread, name in ((self.worker.main_thread, "python3"), ("autograd", "pt_autograd_0")):
            self._insert("ThreadNames", nameId=self._string(name), priority=20, globalTid=self._tid(thread))
        self._insert_many("META_DATA_EXPORT", list(EXPORT.items()))
        kinds = [(1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"), (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host")]
        self._insert_many("ENUM_CUDA_MEMCPY_OPER", kinds)
        self._insert_many("ENUM_NSYS_EVENT_TYPE", [(PUSH_POP, "NvtxPushPopRange", "NVTX push/pop range")])


UTC_TIME = "2026-08-31T00:00:00"


def short_name(name: str) -> str:
    """Base name of a kernel: no return type, scope, template arguments or parameters."""
    depth, base = 0, ""
    for c in name.replace("(anonymous namespace)::", "").removeprefix("void "):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            break
        if depth == 0 and c != ">":
            base += c
    return base.rsplit("::", 1)[-1]


def write(job: Job, worker: Worker, path: Path) -> None:
    """Write one rank's file: the same bytes every time with one version of SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "export.sqlite"
        con = sqlite3.connect(plain, isolation_level=None)
        con.execute("PRAGMA page_size = 4096")
        con.execute("PRAGMA journal_mode = OFF")
        con.execute("BEGIN")
        Database(job, worker, con).fill()
        con.execute("COMMIT")
        con.execute("VACUUM")
        con.close()
        content = bytearray(plain.read_bytes())
    content[96:100] = bytes(4)  # the version of the library that wrote the file: the one thing that is not ours
    path.write_bytes(gzip.compress(bytes(content), compresslevel=9, mtime=0))

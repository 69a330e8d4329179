"""Counts facts of the sample traces with json, sqlite3 and protobuf alone: tests/data/corpus/expected.json.

Run it after sample traces changed: `python tests/data/count_facts.py`. It shares no code with the readers, so that what
they read can be held against it.
"""

import gzip
import json
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

CORPUS = Path(__file__).resolve().parent / "corpus"
FILES = {
    "samples/torch_ddp_gloo/rank0.pt.trace.json.gz": "kineto",
    "samples/sim_h100_before/rank3.pt.trace.json.gz": "kineto",
    "samples/sim_nsys_h100/rank1.sqlite.gz": "nsys-sqlite",
    "samples/nsys_nvtx/train.sqlite.gz": "nsys-sqlite",
    "samples/jax_cpu/train.xplane.pb.gz": "xplane",
    "samples/sim_tpu_v5p/tpu-host-0.xplane.pb.gz": "xplane",
    "../nsys_nvtx_train.nsys-rep": "nsys-rep",
}


def union(spans: Iterable[tuple[Any, Any]]) -> Any:
    """Length of the union of spans (start, end)."""
    total, reach = 0, None
    for start, end in sorted(spans):
        if reach is None or end > reach:
            total += end - (start if reach is None else max(start, reach))
            reach = end
    return total


def plain(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items()))


# ---------------------------------------------------------------------------------------------- Kineto


def count_kineto(path: Path) -> dict[str, Any]:
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    events = document["traceEvents"]
    complete = [e for e in events if e["ph"] == "X"]
    by_cat = {c: [e for e in complete if e.get("cat") == c] for c in sorted({str(e.get("cat")) for e in complete})}
    kernels, copies, fills = (by_cat.get(c, []) for c in ("kernel", "gpu_memcpy", "gpu_memset"))
    ops = by_cat.get("cpu_op", [])
    marks = [e for e in by_cat.get("user_annotation", []) if e["name"].startswith("ProfilerStep#")]
    timed = [(Decimal(e["ts"]), Decimal(e["ts"]) + Decimal(e["dur"])) for e in complete]
    facts: dict[str, Any] = {
        "events": len(events),
        "by_phase": plain(Counter(e["ph"] for e in events)),
        "by_cat": {c: len(es) for c, es in by_cat.items()},
        "flows": plain(Counter(f"{e.get('cat')}:{e['ph']}" for e in events if e["ph"] in ("s", "f"))),
        "steps": len(marks),
        "step_dur_us": {e["name"]: float(e["dur"]) for e in marks},
        "kernels": len(kernels),
        "kernel_time_us": float(sum(e["dur"] for e in kernels)),
        "memcpys": len(copies),
        "memcpy_time_us": float(sum(e["dur"] for e in copies)),
        "memsets": len(fills),
        "memset_time_us": float(sum(e["dur"] for e in fills)),
        "cpu_ops": len(ops),
        "cpu_ops_with_input_dims": sum("Input Dims" in e["args"] for e in ops),
        "ts_min": str(min(start for start, _ in timed)),
        "end_max": str(max(end for _, end in timed)),
        "schemaVersion": document["schemaVersion"],
        "distributed": {k: document["distributedInfo"][k] for k in ("backend", "rank", "world_size")},
    }
    if kernels:
        work = [*kernels, *copies, *fills]
        times: Counter[str] = Counter()
        for e in kernels:
            times[e["name"]] += e["dur"]
        top, top_us = times.most_common(1)[0]
        calls = {e["args"].get("correlation") for c in ("cuda_runtime", "cuda_driver") for e in by_cat.get(c, [])}
        lost = [e for e in work if e["args"]["correlation"] not in calls]
        nccl = [e for e in kernels if "nccl" in e["name"].lower()]
        parts = [(p["name"], p["numSms"]) for p in document["deviceProperties"]]
        facts |= {
            "gpu_busy_union_us": float(union((e["ts"], e["ts"] + e["dur"]) for e in work)),
            "gpu_streams": len({e["args"]["stream"] for e in kernels}),
            "gpu_device_arg": sorted({str(e["args"]["device"]) for e in work}),
            "top_kernel": {
                "name": top[:120],
                "count": sum(e["name"] == top for e in kernels),
                "time_us": float(top_us),
            },
            "distinct_kernel_names": len(times),
            "gpu_events_without_launch_in_trace[n,us]": [len(lost), float(sum(e["dur"] for e in lost))],
            "nccl_kernels": len(nccl),
            "nccl_time_us": float(sum(e["dur"] for e in nccl)),
            "devices": [*map(list, dict.fromkeys(parts)), f"{len(parts)} in all"],
        }
    return facts


# ---------------------------------------------------------------------------------------------- Nsight Systems


def count_nsys(path: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        database = Path(scratch) / "report.sqlite"
        database.write_bytes(gzip.decompress(path.read_bytes()))
        con = sqlite3.connect(database)
        facts = _count_tables(con)
        con.close()
    return facts


def _count_tables(con: sqlite3.Connection) -> dict[str, Any]:
    names = [
        r[0] for r in con.execute("select name from sqlite_master where type = 'table' and name not like 'sqlite_%'")
    ]
    sizes = {n: con.execute(f'select count(*) from "{n}"').fetchone()[0] for n in names if not n.startswith("ENUM_")}
    meta = next(n for n in ("META_DATA_EXPORT", "EXPORT_META_DATA") if n in names)
    about = dict(con.execute(f"select name, value from {meta}"))
    facts: dict[str, Any] = {
        "meta_table": meta,
        "product_version": about["EXPORT_PRODUCT_VERSION"],
        "schema_version": about["EXPORT_SCHEMA_VERSION"],
        "tables": {n: size for n, size in sizes.items() if size},
        "empty_tables": sum(not size for size in sizes.values()),
        "enum_tables": sum(n.startswith("ENUM_") for n in names),
        "nvtx_by_eventType": {
            str(t): n for t, n in con.execute("select eventType, count(*) from NVTX_EVENTS group by 1 order by 1")
        },
        "nvtx_closed_ranges[n,ns]": list(
            con.execute(
                "select count(*), sum(end - start) from NVTX_EVENTS where eventType in (59, 60) and end is not null"
            ).fetchone()
        ),
    }
    if "CUPTI_ACTIVITY_KIND_KERNEL" in names:
        kernels = "from CUPTI_ACTIVITY_KIND_KERNEL k"
        named = f"{kernels} join StringIds s on s.id = k.demangledName where s.value like '%nccl%'"
        launched = (
            f"{kernels} where exists (select 1 from CUPTI_ACTIVITY_KIND_RUNTIME r where "
            "r.correlationId = k.correlationId and r.globalTid / 16777216 = k.globalPid / 16777216)"
        )
        facts |= {
            "kernels_by_device[n,ns]": {
                str(d): [n, ns]
                for d, n, ns in con.execute(f"select deviceId, count(*), sum(end - start) {kernels} group by 1")
            },
            "nccl_kernels[n,ns]": list(con.execute(f"select count(*), ifnull(sum(end - start), 0) {named}").fetchone()),
            "kernel_span_ns": list(con.execute(f"select min(start), max(end) {kernels}").fetchone()),
            "kernels_matched_to_runtime": con.execute(f"select count(*) {launched}").fetchone()[0],
            "memcpy_by_copyKind[n,bytes,ns]": {
                str(kind): [n, size, ns]
                for kind, n, size, ns in con.execute(
                    "select copyKind, count(*), sum(bytes), sum(end - start) from CUPTI_ACTIVITY_KIND_MEMCPY group by 1"
                )
            },
        }
    return facts


# ---------------------------------------------------------------------------------------------- XSpace

SCHEMA = {
    "XSpace": "planes 1 XPlane*; errors 2 str*; warnings 3 str*; hostnames 4 str*",
    "XPlane": "id 1 i64; name 2 str; lines 3 XLine*; events 4 EventEntry*; stat_names 5 StatEntry*; stats 6 XStat*",
    "XLine": "id 1 i64; name 2 str; timestamp_ns 3 i64; events 4 XEvent*",
    "XEvent": "metadata_id 1 i64; offset_ps 2 i64; duration_ps 3 i64; stats 4 XStat*; num_occurrences 5 i64",
    "XStat": "metadata_id 1 i64; double_value 2 f64?; uint64_value 3 u64?; int64_value 4 i64?; str_value 5 str?; "
    "bytes_value 6 bytes?; ref_value 7 u64?",
    "EventEntry": "key 1 i64; value 2 XEventMetadata",
    "XEventMetadata": "id 1 i64; name 2 str; display_name 4 str; stats 5 XStat*",
    "StatEntry": "key 1 i64; value 2 XStatMetadata",
    "XStatMetadata": "id 1 i64; name 2 str",
}
"""Messages: field, number, type; `*` repeated, `?` member of the message's oneof. Maps are lists of entries."""


def xspace_class() -> Any:
    """Message class of an XSpace, from a private pool."""
    fields = descriptor_pb2.FieldDescriptorProto
    scalar = {
        "i64": fields.TYPE_INT64,
        "u64": fields.TYPE_UINT64,
        "f64": fields.TYPE_DOUBLE,
        "str": fields.TYPE_STRING,
        "bytes": fields.TYPE_BYTES,
    }
    file = descriptor_pb2.FileDescriptorProto(name="count.proto", package="count", syntax="proto3")
    for message, spec in SCHEMA.items():
        described = file.message_type.add(name=message)
        for part in spec.split("; "):
            name, tag, kind = part.split()
            repeated = kind.endswith("*")
            field = described.field.add(name=name, number=int(tag))
            field.label = fields.LABEL_REPEATED if repeated else fields.LABEL_OPTIONAL
            if kind.endswith("?"):
                if not described.oneof_decl:
                    described.oneof_decl.add(name="value")
                field.oneof_index = 0
            base = kind.rstrip("*?")
            field.type = scalar.get(base, fields.TYPE_MESSAGE)
            if base not in scalar:
                field.type_name = f".count.{base}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("count.XSpace"))


def count_xplane(path: Path) -> dict[str, Any]:
    space = xspace_class().FromString(gzip.decompress(path.read_bytes()))
    return {
        "planes": [count_plane(plane) for plane in space.planes],
        "hostnames": list(space.hostnames),
        "errors": list(space.errors),
    }


def count_plane(plane: Any) -> dict[str, Any]:
    names = {entry.key: entry.value.name for entry in plane.stat_names}

    def value(stat: Any) -> Any:
        kind = stat.WhichOneof("value")
        found = getattr(stat, kind)
        return names[found] if kind == "ref_value" else f"{len(found)} bytes" if kind == "bytes_value" else found

    def stats(of: Any) -> dict[str, Any]:
        return {names[stat.metadata_id]: value(stat) for stat in of}

    kinds = {entry.key: (entry.value, stats(entry.value.stats)) for entry in plane.events}
    facts: dict[str, Any] = {
        "name": plane.name,
        "lines": len(plane.lines),
        "events": sum(len(line.events) for line in plane.lines),
        "event_metadata": len(plane.events),
    }
    if plane.stats:
        facts["stats"] = stats(plane.stats)
    if plane.name.startswith("/device:"):
        facts["line[n,sum_ps]"] = {
            line.name: [len(line.events), sum(e.duration_ps for e in line.events)] for line in plane.lines
        }
        categories: dict[str, list[int]] = {}
        for event in (e for line in plane.lines if line.name == "XLA Ops" for e in line.events):
            described = kinds[event.metadata_id][1]
            own = stats(event.stats)
            counts = (
                1,
                event.duration_ps,
                own.get("device_duration_ps", event.duration_ps),
                described.get("flops", 0),
                described.get("bytes_accessed", 0),
            )
            sums = categories.setdefault(described["hlo_category"], [0] * len(counts))
            categories[described["hlo_category"]] = [a + b for a, b in zip(sums, counts, strict=True)]
        if categories:
            facts["xla_ops_by_hlo_category[n,ps,device_duration_ps,flops,bytes]"] = categories
    protos = sum(any(names[s.metadata_id] == "Hlo Proto" for s in kind.stats) for kind, _ in kinds.values())
    if protos:
        facts["hlo_protos"] = protos
    found = [(e, stats(e.stats)) for line in plane.lines for e in line.events]
    with_op = [e.duration_ps for e, own in found if "hlo_op" in own]
    if with_op:
        facts["events_with_hlo_op[n,ps]"] = [len(with_op), sum(with_op)]
    steps = [f"{kinds[e.metadata_id][0].name} {own['step_num']}" for e, own in found if "step_num" in own]
    if steps:
        facts["step_annotations"] = steps
    return facts


# ---------------------------------------------------------------------------------------------- all


def count_report(path: Path) -> dict[str, Any]:
    return {"header": path.read_bytes()[:256].partition(b"\n")[0].decode()}


COUNTERS = {"kineto": count_kineto, "nsys-sqlite": count_nsys, "xplane": count_xplane, "nsys-rep": count_report}
BROKEN = {
    "broken/nothing.json": ("zero bytes", "clear error: empty file"),
    "broken/pointer.nsys-rep": ("a pointer", "clear error that says it is a git LFS pointer"),
    "broken/half.xplane.pb": (
        "the simulated TPU profile cut inside its first plane",
        "clear error; not a shorter trace without a word",
    ),
    "broken/foreign.sqlite": ("a database of something else", "clear error: not an Nsight Systems export"),
    "broken/graph.json": ("a PyTorch execution trace", "clear error: no traceEvents"),
    "broken/killed.json": (
        "the event list of a killed process, cut inside its fourth event",
        "either a clear error or 3 events with a warning",
    ),
}


def write_broken() -> None:
    """Small files, damaged in the ways that files are."""
    folder = CORPUS / "broken"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nothing.json").write_bytes(b"")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12345\n"
    (folder / "pointer.nsys-rep").write_text(pointer)
    whole = gzip.decompress((CORPUS / "samples/sim_tpu_v5p/tpu-host-0.xplane.pb.gz").read_bytes())
    (folder / "half.xplane.pb").write_bytes(whole[:2000])
    (folder / "foreign.sqlite").unlink(missing_ok=True)
    con = sqlite3.connect(folder / "foreign.sqlite")
    con.execute("create table birds (name text)")
    con.commit()
    con.close()
    (folder / "graph.json").write_text(json.dumps({"schema": "1.1.1", "pid": 7, "nodes": [{"id": 1, "name": "root"}]}))
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 5, "args": {"device": 0, "stream": 7}}
    events = ",\n".join(
        json.dumps(event | {"ts": 10 * i, "args": event["args"] | {"correlation": i}}) for i in range(1, 5)
    )
    (folder / "killed.json").write_text('{"schemaVersion": 1, "traceEvents": [\n' + events[:-30])


def main() -> None:
    write_broken()
    expected: dict[str, Any] = {
        name: {"kind": kind, "facts": COUNTERS[kind](CORPUS / name)} for name, kind in FILES.items()
    }
    expected["_broken"] = {name: {"made": made, "expect": expect} for name, (made, expect) in BROKEN.items()}
    (CORPUS / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()

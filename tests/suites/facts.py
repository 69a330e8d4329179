"""One measuring function for each fact of a trace file in an expected.json, found by the fact's name.

Device work comes from tracegap's tables. Counts of the raw file, which no table holds, come from the facts that the
reader keeps beside them.
"""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import polars as pl
from tests.suites.measures import UnknownKey
from tests.suites.subject import Subject, spans

from tracegap.ingest.intervals import union
from tracegap.ingest.readers._nsys_device import COPY_KINDS

FACTS: dict[str, Callable[[Subject, str], Any]] = {}

_NAME_WIDTH = 120
"""expected.json cuts names of kernels here."""


def of_fact(name: str) -> Callable[[Subject, str], Any]:
    """The measuring function of a fact. Raises UnknownKey by name."""
    if name not in FACTS:
        raise UnknownKey(f"no measuring function for the fact {name!r}")
    return FACTS[name]


def fact(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function of (subject) or (subject, name of the fact)."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        takes = function.__code__.co_argcount
        for name in names:
            FACTS[name] = lambda subject, name: function(*(subject, name)[:takes])
        return function

    return register


def us(ns: int) -> float:
    """Microseconds as expected.json has them."""
    return ns / 1000


@fact(
    # Kineto
    "by_phase", "by_cat", "instants_by_cat", "flows", "top_level", "cpu_ops", "cpu_ops_with_input_dims",
    "schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "steps_on_gpu_rows", "kernels_with_collective_args",
    "gpu_device_arg",
    # XSpace and XLA Chrome JSON
    "hostnames", "errors", "hlo_modules[entry,name,computations,instructions]", "processes",
    "complete_events", "device_lines", "xla_ops_by_hlo_category[n,us,bytes_accessed,model_flops]",
    # Nsight Systems
    "meta_table", "product_version", "schema_version", "tables", "empty_tables", "enum_tables", "nvtx_by_eventType",
    "nvtx_text/textId",
    "events",
)  # fmt: skip
def raw(s: Subject, name: str) -> Any:
    """A count of the raw file."""
    return s.facts[0][name]


@fact("planes", "gpus")
def listed(s: Subject, name: str) -> list[dict[str, Any]]:
    """A list of the raw file, without what the reader keeps beyond the counts that expected.json has."""
    more = {"planes": ("xla_ops_by_name[n,ps,device_duration_ps]", "unknown_lines"), "gpus": ("cuDevice",)}[name]
    return [{key: value for key, value in entry.items() if key not in more} for entry in s.facts[0][name]]


# ---------------------------------------------------------------------------------------------- Kineto


@fact("steps")
def steps(s: Subject) -> int:
    """Steps that the host marks: a device may have none of their kernels."""
    return s.host.filter(pl.col("kind") == "step")["name"].n_unique()


@fact("step_dur_us")
def step_dur_us(s: Subject) -> dict[str, float]:
    marks = s.host.filter(pl.col("kind") == "step").select("name", "dur_ns")
    return {name: us(ns) for name, ns in marks.iter_rows()}


WORK = {"kernel": ["copy", "memset"], "memcpy": ["copy"], "memset": ["memset"]}


def work(s: Subject, kind: str) -> pl.DataFrame:
    """Kernels, copies or fills."""
    inside = pl.col("op_class").is_in(WORK[kind])
    return s.ops.filter(~inside if kind == "kernel" else inside)


@fact("kernels", "memcpys", "memsets")
def count(s: Subject, name: str) -> int:
    return len(work(s, name.removesuffix("s")))


@fact("kernel_time_us", "memcpy_time_us", "memset_time_us")
def time_us(s: Subject, name: str) -> float:
    return us(int(work(s, name.removesuffix("_time_us"))["dur_ns"].sum()))


def nccl(s: Subject) -> pl.DataFrame:
    """Communication by NCCL or RCCL, whose kernels have names alike."""
    return s.comm.filter(pl.col("name").str.contains("(?i)nccl"))


@fact("nccl_kernels")
def nccl_kernels(s: Subject) -> int:
    return len(nccl(s))


@fact("nccl_time_us")
def nccl_time_us(s: Subject) -> float:
    return us(int(nccl(s)["dur_ns"].sum()))


@fact("gpu_busy_union_us")
def gpu_busy_union_us(s: Subject) -> float:
    """Time in which any device of the file works."""
    starts, ends = union(*spans(s.ops))
    return us(int((ends - starts).sum()))


@fact("gpu_streams")
def gpu_streams(s: Subject) -> int:
    return s.kernels["stream"].n_unique()


@fact("distinct_kernel_names")
def distinct_kernel_names(s: Subject) -> int:
    return s.kernels["name"].n_unique()


@fact("top_kernel")
def top_kernel(s: Subject) -> dict[str, Any]:
    times = s.kernels.group_by("name", maintain_order=True).agg(pl.len(), pl.col("dur_ns").sum())
    name, calls, ns = times.sort("dur_ns", descending=True, maintain_order=True).row(0)
    return {"name": name[:_NAME_WIDTH], "count": calls, "time_us": us(ns)}


@fact("gpu_events_without_launch_in_trace[n,us]")
def without_launch(s: Subject) -> list[Any]:
    lost = s.ops.filter(pl.col("launch_ns").is_null())
    return [len(lost), us(int(lost["dur_ns"].sum()))]


@fact("ts_min", "end_max")
def instant(s: Subject, name: str) -> Decimal:
    """First start and last end of the file, us of its own clock."""
    return Decimal(s.facts[0][{"ts_min": "ts_min_ns", "end_max": "end_max_ns"}[name]]).scaleb(-3)


@fact("devices")
def devices(s: Subject) -> list[Any]:
    """The parts that the file lists, each once, and how many they are."""
    listed = s.facts[0]["devices"]
    return [*(list(part) for part in dict.fromkeys(map(tuple, listed))), f"{len(listed)} in all"]


@fact("distributed")
def distributed(s: Subject) -> dict[str, Any]:
    config, world_size = s.con.execute("select config, world_size from runs").fetchall()[0]
    known = {
        "backend": json.loads(config).get("distributed.backend"),
        "rank": s.traces[0]["rank"],
        "world_size": world_size,
    }
    return {name: value for name, value in known.items() if value is not None}


# ---------------------------------------------------------------------------------------------- Nsight Systems


def totals(ops: pl.DataFrame, *columns: str) -> list[int]:
    """Number of operations and sums of columns."""
    return [len(ops), *(int(ops[column].sum()) for column in columns)]


@fact("kernels_by_device[n,ns]")
def kernels_by_device(s: Subject) -> dict[str, list[int]]:
    parts = s.kernels.partition_by("device_id", as_dict=True)
    return {str(device): totals(ops, "dur_ns") for (device,), ops in parts.items()}


@fact("nccl_kernels[n,ns]")
def nccl_totals(s: Subject) -> list[int]:
    return totals(nccl(s), "dur_ns")


@fact("kernel_span_ns")
def kernel_span_ns(s: Subject) -> list[Any]:
    return [s.kernels["start_ns"].min(), s.kernels["end_ns"].max()]


@fact("kernels_matched_to_runtime")
def kernels_matched_to_runtime(s: Subject) -> int:
    return len(s.kernels) - s.kernels["launch_ns"].null_count()


@fact("top_kernel_short")
def top_kernel_short(s: Subject) -> Any:
    return s.facts[0]["top_kernel_short"]


@fact("memcpy_by_copyKind[n,bytes,ns]")
def memcpy_by_kind(s: Subject) -> dict[str, list[int]]:
    """By CUPTI's number of the kind, which names stand for in our tables."""
    numbers = {f"Memcpy {kind}".rstrip(): str(number) for number, kind in enumerate(COPY_KINDS)}
    parts = work(s, "memcpy").partition_by("name", as_dict=True)
    return {numbers[str(name)]: totals(ops, "bytes", "dur_ns") for (name,), ops in parts.items()}


@fact("memset[n,bytes,ns]")
def memset(s: Subject) -> list[int]:
    return totals(work(s, "memset"), "bytes", "dur_ns")


@fact("nvtx_closed_ranges[n,ns]")
def nvtx_closed_ranges(s: Subject) -> list[int]:
    return [int(n) for n in s.facts[0]["nvtx_closed_ranges"]]

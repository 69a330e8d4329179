"""One measuring function for each key of a case's `expect`, found by the key's name."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from tests.suites.subject import Subject, covered_ns, overlap_ns

from tracegap.models.ops import OpClass
from tracegap.reports import page, summary, theme

MARKED = ("xplane_steps", "profiler_step", "nvtx", "step_trace_annotation", "group_id")
"""Sources of steps that the input itself marks; the others say that they are not marked."""
AFTER_JOIN = "_after_join"


@dataclass(frozen=True)
class Measure:
    """How the value of a key comes out of tracegap."""

    of: Callable[[Subject, Any], Any]
    """Value from a subject; the expected value tells only in what form it is wanted."""
    holds: str = "equal"
    """equal, at_least or at_most."""
    table: bool = False
    """The value is an object by itself; else an object asks for the value of each file, device or rank."""


MEASURES: dict[str, Measure] = {}


class UnknownKey(LookupError):
    """No measuring function has this name."""


def measure(
    *keys: str, holds: str = "equal", table: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function of (subject) or (subject, expected) for keys; a third parameter is the key."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        takes = function.__code__.co_argcount
        for key in keys:
            MEASURES[key] = Measure(
                lambda subject, expected, key=key: function(*(subject, expected, key)[:takes]), holds, table
            )
        return function

    return register


def of_key(key: str) -> Measure:
    """The measure of a key. Raises UnknownKey by name."""
    if key in MEASURES:
        return MEASURES[key]
    if key.endswith(AFTER_JOIN) and key.removesuffix(AFTER_JOIN) in MEASURES:
        return MEASURES[key.removesuffix(AFTER_JOIN)]
    raise UnknownKey(f"no measuring function for the key {key!r}")


def value(subject: Subject, key: str, expected: Any) -> Any:
    """What tracegap measures for a key, in the form of the expected value."""
    found = of_key(key)
    if key.endswith(AFTER_JOIN):
        subject = subject.joined()
    if isinstance(expected, dict) and not found.table:
        return {name: found.of(subject.narrowed(name), wanted) for name, wanted in expected.items()}
    return found.of(subject, expected)


def in_form(values: list[Any], expected: Any) -> Any:
    """A list as it is, or how many it has where a number is wanted, or whether it has any."""
    if isinstance(expected, bool):
        return bool(values)
    return len(values) if isinstance(expected, int) else values


# ---------------------------------------------------------------------------------------------- files

ERRORS = ("truncated", "malformed", "empty", "interleaved")


@measure("error")
def error(s: Subject) -> str | None:
    """The first damage of the file itself that is reported."""
    codes = [row["code"] for row in s.diagnostics if row["severity"] != "info"]
    failed = [r.diagnostics[0]["code"] for r in s.results if r.status == "failed"]
    return next((code for code in [*failed, *codes] if code in ERRORS), failed[0] if failed else None)


@measure("usable")
def usable(s: Subject) -> bool:
    return all(r.status != "failed" for r in s.results)


@measure("events", "recovered_events")
@measure("events_min", holds="at_least")
@measure("events_max", holds="at_most")
def events(s: Subject) -> Any:
    return s.fact("events")


@measure("damaged_events", "null_fields", "slices", "unmatched_begin", "unmatched_end")
def fact(s: Subject, expected: Any, key: str) -> Any:
    return s.fact(key)


@measure("files")
def files(s: Subject) -> int:
    return len(s.results)


@measure("devices")
def devices(s: Subject, expected: Any) -> Any:
    """The devices that did work."""
    return in_form(sorted(s.ops["device_id"].unique()), expected)


@measure("world_size")
def world_size(s: Subject) -> Any:
    sizes = s.con.execute("select world_size from runs where list_contains($1, run_id)", [s.run_ids]).fetchall()
    return max((size for (size,) in sizes if size is not None), default=None)


@measure("ranks")
def ranks(s: Subject) -> list[int]:
    return sorted({trace["rank"] for trace in s.traces if trace["rank"] is not None})


@measure("duplicate_ranks")
def duplicate_ranks(s: Subject) -> list[int]:
    return sorted(evidence["rank"] for evidence in findings(s, "duplicate_rank"))


@measure("missing_ranks")
def missing_ranks(s: Subject) -> list[int]:
    return sorted(rank for evidence in findings(s, "missing_ranks") for rank in evidence["missing"])


def findings(s: Subject, kind: str) -> list[dict[str, Any]]:
    rows = s.con.execute(
        "select evidence from findings where kind = $1 and list_contains($2, run_id)", [kind, s.run_ids]
    ).fetchall()
    return [json.loads(row[0]) for row in rows]


@measure("files_without_rank")
def files_without_rank(s: Subject) -> list[str]:
    return sorted(Path(trace["path"]).name for trace in s.traces if trace["rank"] is None)


@measure("whole_planes")
def whole_planes(s: Subject) -> int:
    return sum(len(facts["planes"]) for facts in s.facts)


@measure("aggregated_records")
def aggregated_records(s: Subject) -> int:
    return s.diagnosed("aggregated_events")


@measure("warnings")
def warnings(s: Subject, expected: Any) -> Any:
    """What the writer of the file complained of."""
    said = [row for row in s.diagnostics if re.match(r"(nsys|profiler)_(warning|error)", row["code"])]
    texts = [text for facts in s.facts for text in facts.get("warnings", [])]
    texts = texts or [row["message"].removeprefix("the profiler wrote: ") for row in said]
    return in_form(texts, expected)


@measure("unknown_lines")
def unknown_lines(s: Subject, expected: Any) -> Any:
    names = [n for facts in s.facts for plane in facts.get("planes", []) for n in plane.get("unknown_lines", [])]
    return in_form(sorted(names), expected)


# ---------------------------------------------------------------------------------------------- device work


@measure("kernels", "kernels_known")
def kernels(s: Subject, expected: Any = None, key: str = "kernels") -> int | None:
    """Kernels with records of their own: those inside a graph that is recorded as one are not known."""
    if key == "kernels" and expected is None and graphs(s):
        return None
    return len(s.kernels.filter(pl.col("op_class") != OpClass.GRAPH))


def graphs(s: Subject) -> int:
    return len(s.ops.filter(pl.col("op_class") == OpClass.GRAPH))


@measure("kernel_names")
def kernel_names(s: Subject, expected: Any) -> Any:
    names = s.kernels["name"]
    return names.n_unique() if isinstance(expected, int) else names.to_list()


@measure("comm_kernels")
def comm_kernels(s: Subject) -> int:
    return len(s.comm)


@measure("compute_kernels")
def compute_kernels(s: Subject) -> int:
    return len(s.kernels) - len(s.comm)


@measure("busy_ns")
def busy_ns(s: Subject) -> int:
    return sum(ns for state, ns in s.states.items() if state != "idle")


@measure("idle_ns")
def idle_ns(s: Subject) -> int:
    return s.states["idle"]


@measure("span_ns")
def span_ns(s: Subject) -> int:
    return sum(s.states.values())


@measure("compute_ns")
def compute_ns(s: Subject) -> int:
    return s.states["compute"]


@measure("exposed_comm_ns")
def exposed_comm_ns(s: Subject) -> int:
    return s.states["exposed_comm"]


@measure("copy_only_ns")
def copy_only_ns(s: Subject) -> int:
    return s.states["exposed_copy"]


@measure("comm_ns", "comm_in_flight_ns")
def comm_ns(s: Subject) -> int:
    return covered_ns(s.comm)


@measure("overlapped_comm_ns", "hidden_comm_ns")
def overlapped_comm_ns(s: Subject) -> int:
    compute = s.kernels.filter(pl.col("op_class") != OpClass.COLLECTIVE)
    return overlap_ns(s.comm, compute)


@measure("kernel_ns")
def kernel_ns(s: Subject) -> int:
    return covered_ns(s.kernels)


@measure("kernel_sum_ns")
def kernel_sum_ns(s: Subject) -> int:
    return int(s.kernels["dur_ns"].sum())


@measure("first_start_ns")
def first_start_ns(s: Subject) -> int:
    origins = {trace["trace_id"]: trace["origin_unix_ns"] or 0 for trace in s.traces}
    return min(start + origins[trace] for trace, start in s.ops.select("trace_id", "start_ns").iter_rows())


@measure("durations_ns")
def durations_ns(s: Subject) -> list[int]:
    return s.kernels.sort("start_ns", "op_id")["dur_ns"].to_list()


@measure("overlapping_pairs")
def overlapping_pairs(s: Subject) -> int:
    lanes = s.ops.sort("start_ns", "op_id")
    following = pl.col("start_ns").shift(-1).over("trace_id", "device_id", "stream")
    return len(lanes.filter(pl.col("end_ns") > following))


@measure("copy_bytes")
def copy_bytes(s: Subject, expected: Any) -> Any:
    sizes = s.copies["bytes"]
    return sizes.to_list() if isinstance(expected, list) else int(sizes.sum())


@measure("copy_gbps")
def copy_gbps(s: Subject, expected: Any) -> Any:
    rates = [
        size / ns if size is not None and ns else None for size, ns in s.copies.select("bytes", "dur_ns").iter_rows()
    ]
    return rates if isinstance(expected, list) else rates[0]


@measure("stream_busy_ns", table=True)
def stream_busy_ns(s: Subject) -> dict[str, int]:
    lanes = s.ops.partition_by("device_id", "stream", as_dict=True)
    return {f"{device}/{stream}": covered_ns(ops) for (device, stream), ops in lanes.items()}


@measure("busy_ps", "compute_ps", "comm_ps", "exposed_comm_ps", "first_start_ps", "last_end_ps")
def picoseconds(s: Subject, expected: Any, key: str) -> Any:
    """Sums that the reader takes before it rounds to nanoseconds."""
    devices = [facts["devices"] for facts in s.facts]
    wanted = [d[s.device_id] for d in devices] if s.device_id is not None else [x for d in devices for x in d.values()]
    return sum(device[key] for device in wanted)


# ---------------------------------------------------------------------------------------------- doubtful records


@measure("kernel_records")
def kernel_records(s: Subject) -> int:
    """Kernel records of the raw file, sound or not."""
    return sum(
        facts["device_records"]["CUPTI_ACTIVITY_KIND_KERNEL"] if "device_records" in facts else facts["kernel_records"]
        for facts in s.facts
    )


@measure("kernels_valid")
def kernels_valid(s: Subject) -> int:
    return len(s.kernels)


@measure("lost_timestamps")
def lost_timestamps(s: Subject) -> int:
    return s.diagnosed("lost_timestamp")


@measure("negative_durations")
def negative_durations(s: Subject) -> int:
    return s.diagnosed("negative_duration")


@measure("zero_durations")
def zero_durations(s: Subject) -> int:
    return len(s.kernels.filter(pl.col("dur_ns") == 0))


@measure("impossible_durations", "flagged")
def impossible_durations(s: Subject, expected: Any) -> Any:
    count = s.diagnosed("impossible_duration")
    return bool(count) if isinstance(expected, bool) else count


@measure("unnamed_kernels")
def unnamed_kernels(s: Subject) -> int:
    return s.diagnosed("unnamed_kernel")


# ---------------------------------------------------------------------------------------------- steps


def marked(s: Subject) -> pl.DataFrame:
    return s.table("steps").filter(pl.col("source").is_in(MARKED))


@measure("steps", "marked_steps")
def steps(s: Subject) -> int:
    """Steps that the input marks: windows on a device, or marks on the host, also where nothing was launched in them."""
    marks = s.host.filter(pl.col("kind") == "step").group_by("trace_id").agg(pl.col("start_ns").n_unique())
    on_host = int(marks["start_ns"].max() or 0) + steps_open(s)
    return max(marked(s)["step"].n_unique(), on_host)


@measure("steps_open")
def steps_open(s: Subject) -> int:
    return s.diagnosed("open_step")


@measure("steps_whole")
def steps_whole(s: Subject) -> int:
    return steps(s) - steps_open(s)


@measure("open_step_kernel_ns")
def open_step_kernel_ns(s: Subject) -> int:
    """Kernel time of the step in which the file ends."""
    last = marked(s)["step"].max() if steps_open(s) else None
    return int(s.kernels.filter(pl.col("step") == last)["dur_ns"].sum())


@measure("kernel_ns_by_step", table=True)
def kernel_ns_by_step(s: Subject) -> dict[str, int]:
    times = s.kernels.filter(pl.col("step").is_not_null()).group_by("step").agg(pl.col("dur_ns").sum())
    return {str(step): ns for step, ns in times.iter_rows()}


@measure("kernels_inside_own_step_window")
def kernels_inside_own_step_window(s: Subject) -> int:
    """Kernels that run within the host's window of the step that launched them."""
    windows = s.host.filter(pl.col("kind") == "step").select("trace_id", from_ns="start_ns", dur="dur_ns")
    pairs = s.kernels.join(windows, on="trace_id").with_columns(to_ns=pl.col("from_ns") + pl.col("dur"))
    within = pl.col("launch_ns").is_between("from_ns", "to_ns", closed="left")
    inside = (pl.col("start_ns") >= pl.col("from_ns")) & (pl.col("end_ns") <= pl.col("to_ns"))
    return len(pairs.filter(within & inside))


# ---------------------------------------------------------------------------------------------- launches


def launching(s: Subject) -> pl.DataFrame:
    """Kernels with the host call that launched them: event_id, api_ns."""
    calls = s.host.select(
        "trace_id", "event_id", "correlation_id", launch_ns="start_ns", launch_thread="thread", api_ns="dur_ns"
    )
    return s.kernels.join(calls, on=("trace_id", "correlation_id", "launch_ns", "launch_thread"))


@measure("kernels_without_launch")
def kernels_without_launch(s: Subject) -> int:
    return int(s.kernels["launch_ns"].null_count())


@measure("unattributed_kernel_ns")
def unattributed_kernel_ns(s: Subject) -> int:
    return int(s.kernels.filter(pl.col("launch_ns").is_null())["dur_ns"].sum())


@measure("launch_calls")
def launch_calls(s: Subject) -> int:
    return len(launching(s).unique(("trace_id", "event_id")))


@measure("launch_api_ns")
def launch_api_ns(s: Subject) -> int:
    return int(launching(s).unique(("trace_id", "event_id"))["api_ns"].sum())


@measure("kernels_by_launch", table=True)
def kernels_by_launch(s: Subject) -> dict[str, int]:
    counts = launching(s).group_by("correlation_id").len()
    return {str(correlation): n for correlation, n in counts.iter_rows()}


@measure("max_launch_to_start_ns")
def max_launch_to_start_ns(s: Subject) -> Any:
    return (s.kernels["start_ns"] - s.kernels["launch_ns"]).max()


@measure("linked_kernels")
def linked_kernels(s: Subject) -> int:
    """Kernels with a launch that is theirs alone."""
    return len(launching(s).filter(pl.len().over("trace_id", "event_id") == 1))


def process(thread: str) -> pl.Expr:
    """The process of a thread column: correlation ids are its own."""
    return pl.col(thread).str.splitn("/", 2).struct.field("field_0").alias("process")


@measure("ambiguous_kernels")
def ambiguous_kernels(s: Subject) -> int:
    """Kernels that share a correlation id of their process."""
    kernels = s.kernels.filter(pl.col("correlation_id").is_not_null()).with_columns(process("launch_thread"))
    return len(kernels.filter(pl.len().over("trace_id", "process", "correlation_id") > 1))


@measure("launches_without_kernel")
def launches_without_kernel(s: Subject) -> int:
    """Launch calls of which nothing on a device is in the input."""
    calls = s.host.filter(pl.col("kind") == "launch", pl.col("correlation_id").is_not_null())
    launched = s.ops.with_columns(process("launch_thread"))
    return len(
        calls.with_columns(process("thread")).join(launched, on=("trace_id", "process", "correlation_id"), how="anti")
    )


@measure("kernel_ns_by_range", table=True)
def kernel_ns_by_range(s: Subject, expected: Any) -> dict[str, int]:
    """Kernel time by the innermost of the named ranges around the launch."""
    spans = {
        (t, e): (name, parent)
        for t, e, name, parent in s.host.select("trace_id", "event_id", "name", "parent_id").iter_rows()
    }
    times: Counter[str] = Counter()
    for trace_id, event_id, ns in launching(s).select("trace_id", "event_id", "dur_ns").iter_rows():
        name, parent = spans[trace_id, event_id]
        while name not in expected and parent is not None:
            name, parent = spans[trace_id, parent]
        if name in expected:
            times[name] += ns
    return dict(times)


# ---------------------------------------------------------------------------------------------- graphs


@measure("graph_replays")
def graph_replays(s: Subject) -> int:
    return graphs(s)


@measure("graph_nodes_attributed", "kernels_in_graphs")
def kernels_in_graphs(s: Subject, expected: Any, key: str) -> int | None:
    """Kernels with a node id; which kernels a graph holds is unknown where it is recorded as one."""
    if graphs(s) and key == "kernels_in_graphs":
        return None
    return s.fact("graph_node_kernels")


# ---------------------------------------------------------------------------------------------- host


@measure("duration_ns", table=True)
def duration_ns(s: Subject) -> dict[str, int]:
    return dict(s.host.select("name", "dur_ns").iter_rows())


@measure("self_ns", table=True)
def self_ns(s: Subject) -> dict[str, int]:
    return dict(s.host.select("name", "self_ns").iter_rows())


@measure("parent", table=True)
def parent(s: Subject) -> dict[str, str | None]:
    names = dict(s.host.select("event_id", "name").iter_rows())
    return {name: names.get(above) for name, above in s.host.select("name", "parent_id").iter_rows()}


@measure("whole_slices")
def whole_slices(s: Subject) -> int:
    return len(s.host)


@measure("open")
def open_slices(s: Subject, expected: Any) -> Any:
    return in_form([name for facts in s.facts for name in facts["open"]], expected)


@measure("nvtx_ranges")
def nvtx_ranges(s: Subject) -> int:
    return sum(facts["nvtx_by_eventType"].get(kind, 0) for facts in s.facts for kind in ("59", "60"))


@measure("range_ns", table=True)
def range_ns(s: Subject, expected: Any) -> Any:
    """Length of the named ranges; of all in one sum where a number is wanted."""
    times: Counter[str] = Counter()
    for name, ns in (
        s.host.filter(~pl.col("kind").is_in(["launch", "runtime", "sync"])).select("name", "dur_ns").iter_rows()
    ):
        times[name] += ns
    return {name: times.get(name) for name in expected} if isinstance(expected, dict) else sum(times.values())


# ---------------------------------------------------------------------------------------------- collectives


@measure("bytes")
def message_bytes(s: Subject) -> list[Any]:
    return s.collectives["message_bytes"].to_list()


@measure("algbw_gbps")
def algbw_gbps(s: Subject) -> list[Any]:
    return s.collectives["algbw_gb_per_s"].to_list()


@measure("busbw_gbps")
def busbw_gbps(s: Subject) -> list[Any]:
    return s.collectives["busbw_gb_per_s"].to_list()


@measure("kinds_by_start")
def kinds_by_start(s: Subject) -> list[Any]:
    return s.collectives["collective"].to_list()


@measure("wait_ns", "transfer_ns", table=True)
def wait_and_transfer(s: Subject, expected: Any, key: str) -> Any:
    """By rank (a list where it has several collectives), or in the order of start."""
    if not isinstance(expected, dict):
        values = s.collectives[key].to_list()
        return values if isinstance(expected, list) else values[0]
    by_rank: dict[str, list[Any]] = {}
    for rank, ns in s.collectives.select("rank", key).iter_rows():
        by_rank.setdefault(str(rank), []).append(ns)
    return {rank: values if len(values) > 1 else values[0] for rank, values in by_rank.items()}


def instances(s: Subject) -> list[dict[str, Any]]:
    """Matched collectives in order, with their largest wait and their last rank."""
    matched = s.collectives.filter(pl.col("instance_id").is_not_null())
    return (
        matched.group_by("instance_id", maintain_order=True)
        .agg(pl.col("wait_ns").max(), pl.col("last_rank").first())
        .to_dicts()
    )


@measure("collective_start_skew_ns")
def collective_start_skew_ns(s: Subject, expected: Any) -> Any:
    skews = [i["wait_ns"] for i in instances(s)]
    return skews if isinstance(expected, list) else max(skews, default=None)


@measure("late_rank")
def late_rank(s: Subject, expected: Any) -> Any:
    late = [i["last_rank"] for i in instances(s)]
    return late if isinstance(expected, list) else Counter(late).most_common(1)[0][0]


@measure("send_bytes", "recv_bytes", "uniform")
def splits(s: Subject, expected: Any, key: str) -> Any:
    """What leaves and enters the rank in its all-to-alls."""
    values = [call[key] for facts in s.facts for call in facts["all_to_all"]]
    return values if isinstance(expected, list) else values[0]


# ---------------------------------------------------------------------------------------------- theory

THEORY = {"predicted_ns": "t_min_ns", "gap_ns": "gap_ns", "efficiency": "efficiency_frac", "bound": "bound"}


@measure(*THEORY, table=True)
def theory(s: Subject, expected: Any, key: str) -> Any:
    """A column of `op_gap` by operation."""
    return dict(s.table("op_gap").select("name", THEORY[key]).iter_rows())


def unmodelled(s: Subject) -> pl.DataFrame:
    gaps = s.table("op_gap").sort("start_ns", "op_id")
    return gaps.filter(pl.col("t_min_ns").is_null(), ~pl.col("op_class").is_in(["collective", "copy", "memset"]))


@measure("unmodelled_ns")
def unmodelled_ns(s: Subject) -> int:
    return int(s.table("step_gap")["unmodelled_compute_ns"].sum())


@measure("unmodelled_ops")
def unmodelled_ops(s: Subject) -> list[str]:
    return unmodelled(s)["name"].unique(maintain_order=True).to_list()


# ---------------------------------------------------------------------------------------------- reports


@measure("chart_rows_max", holds="at_most")
def chart_rows_max(s: Subject) -> int:
    """The most data rows of a chart of a run's page."""
    return max(len(rows) for spec in specs(s) for rows in spec["datasets"].values())


@measure("chart_sum_ns")
def chart_sum_ns(s: Subject) -> int:
    """What the bars of the chart of operations add up to."""
    total = 0
    for spec in specs(s, section="operations"):
        for layer in spec.get("layer", [spec]):
            mark = layer["mark"]["type"] if isinstance(layer["mark"], dict) else layer["mark"]
            if mark == "bar":
                rows = spec["datasets"][layer.get("data", spec.get("data"))["name"]]
                total += sum(row[layer["encoding"]["x"]["field"]] for row in rows)
    return total


def specs(s: Subject, section: str | None = None) -> list[dict[str, Any]]:
    """Vega-Lite specifications of the charts of the runs' pages, as the pages carry them."""
    built = [page.build_sections(s.con, summary.summarize(s.con, run_id)) for run_id in s.run_ids]
    charts = [
        figure.chart
        for named in built
        for name, part in named.items()
        for figure in part.figures
        if figure.chart is not None and section in (None, name)
    ]
    return [theme.finish(chart) for chart in charts]

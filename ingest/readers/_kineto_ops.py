"""Rows of `ops` from a Kineto trace: kernels, copies and fills with what launched them; on a CPU, the framework ops."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.classify import aten
from tracegap.ingest.classify.kernel import causal_mask, element_dtype, is_collective, kernel_class, kernel_dtype
from tracegap.ingest.readers._kineto_events import NONE, Ints, Role
from tracegap.ingest.readers._kineto_host import Host, Launches
from tracegap.ingest.trace import OPS
from tracegap.models.ops import OpClass

_CPU_BACK_ENDS = ("gloo:", "mpi:", "ucc:")
COLLECTIVE_NOTE = "communication: its size stands in collectives"


@dataclass
class OpRows:
    """Columns of `ops` in the making, all of one length; times in ns of the file's own clock."""

    n: int
    values: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for column in OPS:
            self.values.setdefault(column, [None] * self.n)

    def frame(self, shift_ns: int) -> pl.DataFrame:
        """The table, its times counted from `shift_ns`."""
        frame = pl.DataFrame(self.values, schema=OPS)
        return frame.with_columns(pl.col("start_ns") - shift_ns, pl.col("launch_ns") - shift_ns)


def split_exactly(total: int, weights: list[int]) -> list[int]:
    """Splits a whole number by weights into whole numbers that add up to it; evenly where all weights are 0."""
    if len(weights) == 1:
        return [total]
    if not any(weights):
        weights = [1] * len(weights)
    parts, before, so_far, whole = [], 0, 0, sum(weights)
    for weight in weights:
        so_far += weight
        upto = total * so_far // whole
        parts.append(upto - before)
        before = upto
    return parts


def device_ops(
    device: dict[str, NDArray[Any]], host: Host, launches: Launches, call_bytes: dict[int, int], comm: set[int]
) -> OpRows:
    """Kernels, copies and fills in the file's order.

    `call_bytes` has the size that a copy's call states, `comm` the kernels with collective metadata, by event number.
    """
    n = len(device["order"])
    calls: list[int] = launches.call.tolist()
    launched = launches.call >= 0
    launch_ns = host.columns["start"][launches.call].tolist() if launched.any() else [0] * n
    threads = host.thread[launches.call].tolist() if launched.any() else [0] * n
    framework = _framework_ops(device, host, launches.call)
    rows = OpRows(n)
    values = rows.values
    values["op_id"] = list(range(n))
    names = values["name"] = [str(host.texts[i]) for i in device["name"].tolist()]
    values["device_id"] = [host.texts[i] for i in device["device"].tolist()]
    values["stream"] = [host.texts[i] for i in device["stream"].tolist()]
    values["start_ns"], values["dur_ns"] = device["start"].tolist(), device["dur"].tolist()
    values["correlation_id"] = [None if c < 0 else c for c in device["corr"].tolist()]
    values["launch_ns"] = [None if c < 0 else at for c, at in zip(calls, launch_ns, strict=True)]
    values["launch_thread"] = [None if c < 0 else host.threads[t] for c, t in zip(calls, threads, strict=True)]
    inside = [c if c >= 0 else f for c, f in zip(calls, framework, strict=True)]
    modules = {row: host.module(row) for row in set(inside)}
    values["module"] = [modules[row] for row in inside]
    named = {f: host.name(f) for f in set(framework) if f >= 0}
    values["framework_op"] = [named.get(f) for f in framework]
    shapes = {f: host.shapes_text(f) for f in set(framework) if f >= 0}
    values["shapes"] = [shapes.get(f) for f in framework]
    values["cost_source"] = ["none"] * n
    by_op: dict[int, list[int]] = {}
    roles: list[int] = device["role"].tolist()
    orders: list[int] = device["order"].tolist()
    sizes: list[int] = device["bytes"].tolist()
    for i, role in enumerate(roles):
        if role != Role.KERNEL:
            values["op_class"][i] = str(OpClass.COPY if role == Role.COPY else OpClass.MEMSET)
            size = sizes[i]
            if size < 0 and calls[i] >= 0:
                size = call_bytes.get(int(host.columns["order"][calls[i]]), NONE)
            values["flops"][i] = 0
            if size >= 0:
                values["bytes"][i], values["cost_source"][i] = size, "trace"
            else:
                values["cost_note"][i] = "the trace has no size for it"
        elif is_collective(names[i]) or orders[i] in comm:
            values["op_class"][i] = str(OpClass.COLLECTIVE)
            values["cost_note"][i] = COLLECTIVE_NOTE
        else:
            by_op.setdefault(framework[i], []).append(i)
    for op, kernels in by_op.items():
        _charge(values, op, kernels, host, calls)
    return rows


def _framework_ops(device: dict[str, NDArray[Any]], host: Host, calls: Ints) -> list[int]:
    """Row of the framework op of each piece of work, NONE where unknown.

    By time on the launching thread; where that finds none (thread names differ, or the calls were not recorded), by
    External id, if it is one op's and not just the correlation id again (as some versions write it).
    """
    of_call = {c: host.framework_op(c) for c in set(calls.tolist()) if c >= 0}
    found = [of_call.get(c, NONE) for c in calls.tolist()]
    own_ext = (device["ext"] >= 0) & (device["ext"] != device["corr"])
    missing = [i for i in np.flatnonzero(own_ext).tolist() if found[i] < 0]
    if not missing:
        return found
    ops = np.flatnonzero(host.is_op & (host.columns["ext"] >= 0))
    ids, first, count = np.unique(host.columns["ext"][ops], return_index=True, return_counts=True)
    by_ext = dict(zip(ids[count == 1].tolist(), ops[first[count == 1]].tolist(), strict=True))
    for i in missing:
        row = by_ext.get(int(device["ext"][i]), NONE)
        if row < 0:
            continue
        start, end = int(host.columns["start"][row]), int(host.columns["start"][row] + host.columns["dur"][row])
        moment = int(host.columns["start"][calls[i]]) if calls[i] >= 0 else int(device["start"][i])
        if start <= moment and (calls[i] < 0 or moment < end):
            found[i] = host.framework_op(row)
    return found


def _charge(values: dict[str, list[Any]], op: int, kernels: list[int], host: Host, calls: list[int]) -> None:
    """Class, dtype and cost of the kernels of one framework op (NONE: of those without one)."""
    described = host.described(op) if op >= 0 and host.has_formula(op) else None
    if described is None or described.op_class is OpClass.COLLECTIVE:
        for i in kernels:  # no op to tell, or a kernel that prepares a communication
            values["op_class"][i] = str(kernel_class(values["name"][i]))
            values["dtype"][i] = kernel_dtype(values["name"][i])
            values["cost_note"][i] = _why_unknown(op, calls[i], host)
        return
    if described.bytes is None or described.flops is None:
        names = [values["name"][i] for i in kernels]
        described = host.described(op, _agreed(map(element_dtype, names)), causal=_agreed(map(causal_mask, names)))
    for i in kernels:
        by_name = kernel_dtype(values["name"][i])
        tf32 = described.dtype == "fp32" and by_name == "tf32"  # shapes do not tell, the kernel's name does
        values["op_class"][i] = str(described.op_class)
        values["dtype"][i] = by_name if described.dtype is None or tf32 else described.dtype
        values["cost_note"][i] = described.note
    durations = [values["dur_ns"][i] for i in kernels]
    for column, total in (("flops", described.flops), ("bytes", described.bytes)):
        if total is not None:
            for i, part in zip(kernels, split_exactly(total, durations), strict=True):
                values[column][i] = part
                values["cost_source"][i] = "shapes"


def _agreed(said: Iterable[Any]) -> Any:
    """What all say that say something; None where they differ or none does."""
    values = set(said) - {None}
    return values.pop() if len(values) == 1 else None


def _why_unknown(op: int, call: int, host: Host) -> str:
    if op >= 0:
        return f"no formula for {host.name(op)}"
    if call < 0:
        return "its launch is not in the file"
    if "Graph" in host.name(call):
        return "replayed by a graph: shapes are recorded at its capture only"
    return "no framework op around its launch"


def cpu_ops(host: Host) -> tuple[OpRows, list[int]]:
    """Framework ops that do the work where there is no device but the CPU, and the rows of the spans that they are.

    An op with a formula counts whole, though it calls others; one without counts when nothing inside it does, unless it
    is a view, an allocation or a wrapper. Communication counts by the spans of its back end (`gloo:all_reduce`).
    """
    spans = np.flatnonzero(host.kind == "collective").tolist()
    comm = [row for row in spans if host.name(row).startswith(_CPU_BACK_ENDS)]
    chosen = sorted([*_working_ops(host), *comm])
    rows = OpRows(len(chosen))
    values = rows.values
    starts = host.columns["start"][chosen].tolist()
    threads = [host.threads[t] for t in host.thread[chosen].tolist()]
    values["op_id"] = list(range(len(chosen)))
    values["device_id"] = ["cpu"] * len(chosen)
    values["stream"], values["launch_thread"] = threads, list(threads)
    values["start_ns"], values["launch_ns"] = starts, list(starts)
    values["dur_ns"] = host.columns["dur"][chosen].tolist()
    values["name"] = [host.name(r) for r in chosen]
    values["module"] = [host.module(r) for r in chosen]
    values["shapes"] = [host.shapes_text(r) for r in chosen]
    values["cost_source"] = ["none"] * len(chosen)
    communicates = set(comm)
    for i, row in enumerate(chosen):
        if row in communicates:
            values["op_class"][i], values["cost_note"][i] = str(OpClass.COLLECTIVE), COLLECTIVE_NOTE
            continue
        values["framework_op"][i] = values["name"][i]
        described = host.described(row)
        values["op_class"][i] = str(described.op_class or OpClass.OTHER)
        values["dtype"][i], values["flops"][i], values["bytes"][i] = described.dtype, described.flops, described.bytes
        values["cost_note"][i] = described.note or (
            None if described.op_class is not None else f"no formula for {values['name'][i]}"
        )
        if described.flops is not None or described.bytes is not None:
            values["cost_source"][i] = "shapes"
    return rows, chosen


def _working_ops(host: Host) -> list[int]:
    """Rows of the framework ops that count."""
    parent = host.tree.parent.tolist()
    is_op = host.is_compute_op.tolist()
    inside: set[int] = set()  # spans that count or lie in one that does
    counted: list[int] = []
    order = [int(r) for r in host.tree.order.tolist()]
    for row in order:
        if parent[row] in inside:
            inside.add(row)
        elif is_op[row] and host.has_formula(row) and host.described(row).op_class is not OpClass.COLLECTIVE:
            inside.add(row)
            counted.append(row)
    holds: set[int] = set(counted)  # spans that count or hold one that does
    for row in reversed(order):
        if row not in holds and row not in inside and is_op[row]:
            name = host.name(row)
            plain = not aten.is_wrapper(name) and not aten.is_view(name)
            if plain and host.described(row).op_class is not OpClass.COLLECTIVE:
                holds.add(row)
                counted.append(row)
        if row in holds and parent[row] >= 0:
            holds.add(parent[row])
    return counted

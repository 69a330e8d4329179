"""Rows of `ops` from a Kineto trace: kernels, copies and fills with what launched them; on a CPU, the framework ops."""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.classify import aten
from tracegap.ingest.classify.aten import Described
from tracegap.ingest.classify.aten_elsewhere import lacks
from tracegap.ingest.classify.kernel import (
    causal_mask,
    element_dtype,
    flops_by,
    is_collective,
    is_fast_convolution,
    kernel_class,
    kernel_dtype,
)
from tracegap.ingest.readers._kineto_columns import NONE, Ids, Ints
from tracegap.ingest.readers._kineto_host import Names, Window
from tracegap.ingest.readers._kineto_launches import Launches
from tracegap.ingest.readers._kineto_repeats import find_repeats
from tracegap.ingest.readers._kineto_roles import Role
from tracegap.ingest.trace import OPS
from tracegap.models.formulas.sizes import join
from tracegap.models.ops import OpClass

_CPU_BACK_ENDS = ("gloo:", "mpi:", "ucc:")
REPEATED = "no call explains it: the cost of the equal kernel in an equal sequence of this file"
COLLECTIVE_NOTE = "communication: its size stands in collectives"

_FEWER = "a transform makes fewer multiplications than the direct convolution that is counted"

Table = dict[str, NDArray[Any]]


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


def texts(words: Sequence[str | None], ids: NDArray[Any]) -> pl.Series:
    """The text of each id as a category, null for NONE."""
    return pl.Series([*words, None], dtype=pl.Categorical).gather(np.where(ids < 0, len(words), ids))


class Words(Ids):
    """Numbers texts; None is one of them."""

    def series(self, ids: NDArray[Any]) -> pl.Series:
        """The text of each id."""
        return texts(list(self), ids)


@dataclass
class DeviceOps:
    """Device work with what is known of it. Rows are in the file's order, times in ns of the file's own clock."""

    device: Table
    names: list[str]
    """Names of kernels, devices and streams, by id."""
    host: Names
    launches: Launches
    around: NDArray[Any]
    """What stands around the launch of each row, as `AROUND`."""
    words: Words = field(default_factory=Words)

    def __post_init__(self) -> None:
        n = len(self.device["order"])
        self.op_class, self.dtype, self.note = (np.full(n, self.words[None], np.int32) for _ in range(3))
        self.cost_source = np.full(n, self.words["none"], np.int32)
        self.flops, self.bytes = (np.full(n, NONE, np.int64) for _ in range(2))

    def collectives(self) -> list[int]:
        """Rows that are communication."""
        return np.flatnonzero(self.op_class == self.words[str(OpClass.COLLECTIVE)]).tolist()

    def name(self, row: int) -> str:
        """Name of the kernel of a row."""
        return self.names[int(self.device["name"][row])]

    def frame(self, shift_ns: int) -> pl.DataFrame:
        """The table `ops`, its times counted from `shift_ns`; texts are categories."""
        d, around = self.device, self.around
        used, inputs = np.unique(around["inputs"], return_inverse=True)
        launch = self.launches.of("start")
        numbers = {
            "flops": (self.flops, self.flops >= 0),
            "bytes": (self.bytes, self.bytes >= 0),
            "correlation_id": (d["corr"], d["corr"] >= 0),
            "launch_ns": (launch - shift_ns, self.launches.call >= 0),
        }
        columns = {
            "op_id": np.arange(len(d["order"])),
            "device_id": texts(self.names, d["device"]),
            "stream": texts(self.names, d["stream"]),
            "name": texts(self.names, d["name"]),
            "op_class": self.words.series(self.op_class),
            "framework_op": texts(self.host.names, around["label"]),
            "module": texts(self.host.paths, around["path"]),
            "start_ns": d["start"] - shift_ns,
            "dur_ns": d["dur"],
            "step": pl.repeat(None, len(d["order"]), dtype=pl.Int64, eager=True),
            "dtype": self.words.series(self.dtype),
            "shapes": texts([self.host.shapes(i) for i in used.tolist()], inputs),
            "cost_source": self.words.series(self.cost_source),
            "cost_note": self.words.series(self.note),
            "launch_thread": texts(self.host.threads, self.launches.of("thread")),
        }
        frame = pl.DataFrame(columns | {name: values for name, (values, _) in numbers.items()})
        known = [pl.when(pl.Series(mask)).then(pl.col(name)).alias(name) for name, (_, mask) in numbers.items()]
        return frame.with_columns(known).select(list(OPS))


def device_ops(
    device: Table,
    names: list[str],
    host: Names,
    launches: Launches,
    around: NDArray[Any],
    *,
    call_bytes: dict[int, int],
    comm: Container[int],
) -> DeviceOps:
    """Kernels, copies and fills with class, dtype and cost.

    `call_bytes` has the size that a copy's call states, `comm` the kernels with collective metadata, by event number.
    """
    ops = DeviceOps(device, names, host, launches, around)
    role = device["role"]
    _fill_copies(ops, role, call_bytes)
    kernels = np.flatnonzero(role == Role.KERNEL)
    used = np.unique(device["name"][kernels])
    by_name = np.zeros(len(names), np.bool_)
    by_name[used] = np.array([is_collective(names[i]) for i in used.tolist()], np.bool_)
    told = np.fromiter(map(comm.__contains__, device["order"][kernels].tolist()), np.bool_, len(kernels))
    communicates = by_name[device["name"][kernels]] | told
    ops.op_class[kernels[communicates]] = ops.words[str(OpClass.COLLECTIVE)]
    ops.note[kernels[communicates]] = ops.words[COLLECTIVE_NOTE]
    _fill_kernels(ops, kernels[~communicates])
    return ops


def _fill_copies(ops: DeviceOps, role: NDArray[Any], call_bytes: dict[int, int]) -> None:
    copies = np.flatnonzero(role != Role.KERNEL)
    size = ops.device["bytes"][copies]
    if call_bytes:
        calls = ops.launches.of("order")[copies]
        size = np.where(size < 0, [call_bytes.get(call, NONE) for call in calls.tolist()], size)
    kinds = [ops.words[str(OpClass.COPY)], ops.words[str(OpClass.MEMSET)]]
    ops.op_class[copies] = np.where(role[copies] == Role.COPY, *kinds)
    ops.flops[copies] = 0
    ops.bytes[copies] = size
    ops.cost_source[copies[size >= 0]] = ops.words["trace"]
    ops.note[copies[size < 0]] = ops.words["the trace has no size for it"]


def _fill_kernels(ops: DeviceOps, rows: Ints) -> None:
    """Class, dtype and cost of kernels that are no communication; those of one framework op share its cost."""
    around, name = ops.around, ops.device["name"]
    told = list(_described(ops, rows))  # index into it by row, NONE without a formula
    which = np.full(len(name), NONE, np.int64)
    for i, (_, of_rows) in enumerate(told):
        which[of_rows] = i
    op = around["op"].copy()
    repeated = _repeated(ops, rows, [described for described, _ in told], which, op)
    bare = rows[which[rows] < 0]
    _by_key(ops.op_class, bare, name[bare], lambda i: ops.words[str(kernel_class(ops.names[i]))])
    _by_key(ops.dtype, bare, name[bare], lambda i: ops.words[kernel_dtype(ops.names[i])])
    _why_unknown(ops, bare)
    _fill_by_inputs(ops, bare)
    known = rows[which[rows] >= 0]
    for described, of_rows in told:
        ops.op_class[of_rows] = ops.words[str(described.op_class)]
        ops.note[of_rows] = ops.words[described.note]
        if described.flops is not None or described.bytes is not None:
            ops.cost_source[of_rows] = ops.words["shapes"]
    for described_at in np.unique(which[repeated]).tolist():
        described, of_rows = told[described_at][0], repeated[which[repeated] == described_at]
        ops.op_class[of_rows] = ops.words[str(described.op_class)]
        ops.note[of_rows] = ops.words[join(described.note, REPEATED)]
        ops.cost_source[of_rows] = ops.words["shapes"]
    _note_transforms(ops, known[ops.op_class[known] == ops.words[str(OpClass.CONVOLUTION)]], op)

    def dtype(key: int) -> int:
        described, by_name = told[key >> 32][0], kernel_dtype(ops.names[key & 0xFFFFFFFF])
        tf32 = described.dtype == "fp32" and by_name == "tf32"  # shapes do not tell, the kernel's name does
        return ops.words[by_name if described.dtype is None or tf32 else described.dtype]

    _by_key(ops.dtype, known, which[known] << 32 | name[known], dtype)
    _, group, size = np.unique(op[known], return_inverse=True, return_counts=True)
    alone = size[group] == 1
    for column, number in ((ops.flops, "flops"), (ops.bytes, "bytes")):
        totals = [getattr(described, number) for described, _ in told]
        table = np.array([NONE if total is None else total for total in totals] or [NONE], np.int64)
        column[known[alone]] = table[which[known[alone]]]
    for members in _groups(known[~alone], op[known[~alone]]):
        _share(ops, members, told[which[members[0]]][0])


def _note_transforms(ops: DeviceOps, rows: Ints, op: Ints) -> None:
    """Says of convolutions of which a kernel transforms for Winograd's or Fourier's method that they may beat their bound."""
    used, inverse = np.unique(ops.device["name"][rows], return_inverse=True)
    fast = np.array([is_fast_convolution(ops.names[i]) for i in used.tolist()] or [False], np.bool_)[inverse]
    rows = rows[np.isin(op[rows], op[rows[fast]])] if len(rows) else rows
    notes = list(ops.words)
    _by_key(ops.note, rows, ops.note[rows].astype(np.int64), lambda i: ops.words[join(notes[i], _FEWER)])


def _share(ops: DeviceOps, members: Ints, described: Described) -> None:
    """Splits the cost of an operator over its kernels by time; FLOPs of products over those that multiply."""
    weights = ops.device["dur"][members].tolist()
    if described.bytes is not None:
        ops.bytes[members] = split_exactly(described.bytes, weights)
    if described.flops is not None:
        names = [ops.name(row) for row in members.tolist()]
        ops.flops[members] = split_exactly(described.flops, flops_by(described.op_class, names, weights))


def _repeated(ops: DeviceOps, rows: Ints, told: list[Described], which: Ints, op: Ints) -> Ints:
    """Kernels that no call explains and others do, as `find_repeats`: gives them their `which` and an `op` of their own.

    ROCm records the grid of a kernel with its launch: names must do for kernels without.
    """
    costs: dict[tuple[Any, ...], int] = {}
    number = [costs.setdefault((d.flops, d.bytes, d.dtype, d.op_class), len(costs)) for d in told]
    valued = np.array([d.flops is not None or d.bytes is not None for d in told] or [False], np.bool_)
    known = (which[rows] >= 0) & valued[which[rows]]
    unexplained = ops.around["label"][rows] < 0
    device = ops.device
    lanes = device["device"][rows].astype(np.int64) << 32 | device["stream"][rows]
    name, shape = device["name"][rows].astype(np.int64), device["launch_shape"][rows]
    mine = []
    for kernel, wanted, places in ((name * 1_000_003 + shape, shape != 0, 1), (name, shape == 0, 2)):
        found = find_repeats(
            lanes, kernel, device["start"][rows], op[rows], np.array(number or [NONE])[which[rows]],
            known=known, wanted=unexplained & wanted, places=places,
        )  # fmt: skip
        mine.append(rows[found.row])
        which[mine[-1]] = which[rows[found.of]]
        op[mine[-1]] = op.min(initial=NONE) - 1 - found.group
    return np.concatenate(mine)


def _described(ops: DeviceOps, rows: Ints) -> Iterator[tuple[Described, Ints]]:
    """What framework ops tell of their kernels, with the rows that it holds for."""
    around, host = ops.around, ops.host
    rows = rows[around["has_formula"][rows]]
    pair = around["label"][rows].astype(np.int64) << 32 | (around["inputs"][rows] + 1)
    alike = (part for group in _groups(rows, pair) for part in _by_caller(ops, group))
    for members in alike:
        label, inputs, caller = (int(around[column][members[0]]) for column in ("label", "inputs", "caller"))
        described = host.described(label, inputs, caller=caller)
        if described.op_class is OpClass.COLLECTIVE:  # a kernel that prepares a communication
            continue
        if described.flops is not None and described.bytes is not None:
            yield described, members
            continue
        by_names: dict[tuple[Any, Any], list[Ints]] = {}
        told_dtype = element_dtype if host.has_types(inputs) else _plain_dtype
        for kernels in _groups(members, around["op"][members]):
            names = [ops.names[i] for i in set(ops.device["name"][kernels].tolist())]
            key = _agreed(map(told_dtype, names)), _agreed(map(causal_mask, names))
            by_names.setdefault(key, []).append(kernels)
        for (list_dtype, causal), kernel_groups in by_names.items():
            yield host.described(label, inputs, list_dtype, causal=causal, caller=caller), np.concatenate(kernel_groups)


def _by_caller(ops: DeviceOps, rows: Ints) -> list[Ints]:
    """Rows of one op with one kind of inputs, apart by what calls it where that may tell what the op does not."""
    lacking = lacks(ops.host.names[int(ops.around["label"][rows[0]])])
    return _groups(rows, ops.around["caller"][rows]) if lacking else [rows]


def _plain_dtype(name: str) -> str | None:
    """Dtype of what a kernel reads and writes by its name: that of its math, which for TF32 is narrower."""
    dtype = element_dtype(name) or kernel_dtype(name)
    return "fp32" if dtype == "tf32" else dtype


def _groups(rows: Ints, keys: NDArray[Any]) -> list[Ints]:
    """Rows with equal keys, each group in the order of `rows`."""
    if not len(rows):
        return []
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    return np.split(rows[order], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)


def _by_key(column: NDArray[Any], rows: Ints, keys: NDArray[Any], value: Callable[[int], int]) -> None:
    """Sets rows to what `value` tells of their key, asked once for each."""
    found, inverse = np.unique(keys, return_inverse=True)
    if len(found):
        column[rows] = np.array([value(key) for key in found.tolist()], column.dtype)[inverse]


def _agreed(said: Iterable[Any]) -> Any:
    """What all say that say something; None where they differ or none does."""
    values = set(said) - {None}
    return values.pop() if len(values) == 1 else None


def _why_unknown(ops: DeviceOps, rows: Ints) -> None:
    """Says why kernels have no cost."""
    words, host = ops.words, ops.host
    label = ops.around["label"][rows]
    call = ops.launches.call[rows]
    graphs = np.array(["Graph" in name for name in host.names], np.bool_)
    by_graph = np.zeros(len(rows), np.bool_)
    launched = call >= 0
    by_graph[launched] = graphs[ops.launches.calls["label"][call[launched]]]
    ops.note[rows] = words["no framework op around its launch"]
    ops.note[rows[by_graph]] = words["replayed by a graph: shapes are recorded at its capture only"]
    ops.note[rows[~launched]] = words["its launch is not in the file"]
    inside = label >= 0
    _by_key(ops.note, rows[inside], label[inside], lambda i: words[f"no formula for {host.names[i]}"])


_BY_ELEMENT = (OpClass.ELEMENTWISE, OpClass.NORMALIZATION)
_WITH_MORE = re.compile(
    r"linear|proj|mlp|ffn|expert|moe|att|conv|gemm|matmul|mm(?![a-z])|cache|gather|loss|head", re.IGNORECASE
)
"""In the name of an operator or kernel: it may multiply, or read only a part of what it is given."""


def _fill_by_inputs(ops: DeviceOps, rows: Ints) -> None:
    """Bytes of operators without a formula that one kernel runs which by its name reads all that it is given."""
    around, words, host = ops.around, ops.words, ops.host
    classes = [words[str(c)] for c in _BY_ELEMENT]
    wrapper = np.array([aten.is_wrapper(name) for name in host.names] + [True], np.bool_)
    rows = rows[(around["inputs"][rows] >= 0) & ~wrapper[around["label"][rows]]]
    _, group, size = np.unique(around["op"][rows], return_inverse=True, return_counts=True)
    rows = rows[(size[group] == 1) & np.isin(ops.op_class[rows], classes)]
    for members in _groups(rows, around["inputs"][rows]):
        label, inputs = int(around["label"][members[0]]), int(around["inputs"][members[0]])
        name = host.names[label]
        if any(map(_WITH_MORE.search, (name, *{ops.name(row) for row in members.tolist()}))):
            continue
        dims, types, strides, _ = host.inputs(inputs)
        found = aten.inputs_only(dims, types, strides)
        if found is not None and found.bytes is not None:
            ops.bytes[members] = found.bytes
            ops.cost_source[members] = words["shapes"]
            ops.note[members] = words[f"{name}: {found.note}"]


@dataclass(slots=True)
class CpuOps:
    """Framework ops that do the work where there is no device but the CPU; times in ns of the file's own clock."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Label and inputs of each row."""

    def frame(self, shift_ns: int) -> pl.DataFrame:
        """The table `ops`, its times counted from `shift_ns`."""
        frame = pl.DataFrame(self.rows, schema=OPS)
        return frame.with_columns(pl.col("start_ns") - shift_ns, pl.col("launch_ns") - shift_ns)


def cpu_ops(found: list[tuple[dict[str, Any], tuple[int, int]]]) -> CpuOps:
    """Numbers what `cpu_work` found in the windows, in the file's order."""
    found.sort(key=lambda pair: pair[0]["op_id"])
    return CpuOps([row | {"op_id": i} for i, (row, _) in enumerate(found)], [span for _, span in found])


def cpu_work(window: Window) -> Iterator[tuple[dict[str, Any], tuple[int, int]]]:
    """Rows of `ops` for the framework ops of a window that count, numbered by their events; their labels and inputs.

    An op with a formula counts whole, though it calls others; one without counts when nothing inside it does, unless it
    is a view, an allocation or a wrapper. Communication counts by the spans of its back end (`gloo:all_reduce`).
    """
    names, spans = window.names, window.spans
    back_end = np.array(
        [k == "collective" and n.startswith(_CPU_BACK_ENDS) for n, k in zip(names.names, names.kinds, strict=True)]
        + [False], np.bool_,
    )  # fmt: skip
    comm = back_end[spans["label"]] & ~spans["old"]
    chosen = np.array(sorted({*_working_ops(window), *np.flatnonzero(comm).tolist()}), np.int64)
    around = window.around(chosen, chosen[:0], np.zeros(len(names.names), np.bool_))
    forward, forward_paths = window.forward_paths()
    for row, place in zip(chosen.tolist(), around, strict=True):
        span, name = spans[row], window.name(row)
        thread = names.threads[span["thread"]]
        path = int(place["path"])
        if path < 0 and place["forward"] >= 0 and len(forward):
            at = min(int(np.searchsorted(forward, place["forward"])), len(forward) - 1)
            path = int(forward_paths[at]) if forward[at] == place["forward"] else NONE
        op: dict[str, Any] = {
            "op_id": int(span["order"]), "device_id": "cpu", "stream": thread, "launch_thread": thread, "name": name,
            "start_ns": int(span["start"]), "launch_ns": int(span["start"]), "dur_ns": int(span["dur"]),
            "module": names.paths[path] if path >= 0 else None, "shapes": names.shapes(int(span["inputs"])),
        }  # fmt: skip
        if comm[row]:
            op |= {"op_class": str(OpClass.COLLECTIVE), "cost_note": COLLECTIVE_NOTE, "cost_source": "none"}
        else:
            op |= _cpu_cost(name, window.described(row))
        yield op, (int(span["label"]), int(span["inputs"]))


def _cpu_cost(name: str, described: Described) -> dict[str, Any]:
    known = described.flops is not None or described.bytes is not None
    bare = None if described.op_class is not None else f"no formula for {name}"
    return {
        "framework_op": name,
        "op_class": str(described.op_class or OpClass.OTHER),
        "dtype": described.dtype,
        "flops": described.flops,
        "bytes": described.bytes,
        "cost_note": described.note or bare,
        "cost_source": "shapes" if known else "none",
    }


def _working_ops(window: Window) -> list[int]:
    """Rows of the framework ops that count."""
    spans, names = window.spans, window.names
    parent = window.tree.parent.tolist()
    compute = np.array([kind == "op" for kind in names.kinds] + [False], np.bool_)
    is_op = (window.is_op & compute[spans["label"]]).tolist()
    has_formula = window.has_formula.tolist()
    old = spans["old"].tolist()
    inside: set[int] = set()  # spans that count or lie in one that does
    counted: list[int] = []
    order = window.tree.order.tolist()
    for row in order:
        if parent[row] in inside:
            inside.add(row)
        elif is_op[row] and has_formula[row] and window.described(row).op_class is not OpClass.COLLECTIVE:
            inside.add(row)
            counted.append(row)
    holds: set[int] = set(counted)  # spans that count or hold one that does
    for row in reversed(order):
        if row not in holds and row not in inside and is_op[row]:
            name = window.name(row)
            plain = not aten.is_wrapper(name) and not aten.is_view(name)
            if plain and window.described(row).op_class is not OpClass.COLLECTIVE:
                holds.add(row)
                counted.append(row)
        if row in holds and parent[row] >= 0:
            holds.add(parent[row])
    return [row for row in counted if not old[row]]

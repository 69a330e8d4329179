"""Host side of a Kineto trace: spans with kind, nesting, framework op and module path, window by window.

A window is a stretch of time with all its framework ops whole, so that a long trace need not be in memory. What is open
at its end (annotations, modules, Python frames) stands in the next one too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.classify import aten
from tracegap.ingest.classify.aten import Described
from tracegap.ingest.classify.aten_elsewhere import Elsewhere, lacks, tells
from tracegap.ingest.classify.host import host_kind
from tracegap.ingest.hosttree import HostTree, nest
from tracegap.ingest.readers._kineto_columns import NONE, Ids, Ints
from tracegap.ingest.readers._kineto_events import Collector
from tracegap.ingest.readers._kineto_roles import Role
from tracegap.ingest.readers._kineto_spool import DONE, SPAN
from tracegap.ingest.trace import shapes_json

WINDOW_ROWS = 1 << 16
"""Spans of a window, about."""
_MODULE = "nn.Module: "


Mask = NDArray[np.bool_]


@cache
def _kind(name: str, cat: Any) -> str:
    if cat is None and name.startswith(_MODULE):  # 1.9 to 1.11
        return "module"
    return host_kind(name, cat if isinstance(cat, str) else "")


class _Standing(IntEnum):
    """What the name of a framework op tells of its work."""

    UNKNOWN = -1  # not looked at yet
    NONE = 0
    WORK = 1
    WRAPPER = 2  # has a formula, but usually calls an op that has one too


class Names:
    """What the ids in spans mean: labels, threads, inputs. The same for all windows of a file."""

    def __init__(self, collected: Collector) -> None:
        labels = list(collected.labels)
        self.names: list[str] = [name for name, _ in labels]
        self.kinds: list[str] = [_kind(name, cat) for name, cat in labels]
        number = Ids()  # some versions write ids now as numbers, now as text: the same text is the same thread
        self.thread_of = number.of([f"{pid}/{tid}" for pid, tid in collected.threads])
        self.threads: list[str] = list(number)
        self.processes = Ids().of([str(pid) for pid, _ in collected.threads])
        kinds = np.array(self.kinds, np.object_)
        self.is_op = (kinds == "op") | (kinds == "collective")
        self.is_module = kinds == "module"
        self.has_modules = bool(self.is_module.any())
        if not self.has_modules:
            self.is_module = kinds == "annotation"
        self.paths: list[str] = []
        """Paths of modules that were met, by id."""
        self._path_ids: dict[tuple[int, int], int] = {}
        self.is_step = kinds == "step"
        self._inputs = list(collected.inputs)
        self.has_dims = np.array([not raw.startswith(b"\0\0") for _, raw in self._inputs] + [False], np.bool_)
        """Of each id of inputs: whether it has shapes; one more for NONE."""
        self._decoded: dict[int, list[Any]] = {}
        self._described: dict[tuple[int, int, int, str | None, bool | None], Described] = {}
        self._standing_of_label = np.full(len(labels), _Standing.UNKNOWN, np.int8)
        self._standing_of_inputs = np.full(len(self._inputs), _Standing.UNKNOWN, np.int8)
        self._shapes: dict[int, str | None] = {NONE: None}
        self._elsewhere: Elsewhere | None = None

    def inputs(self, inputs: int) -> list[Any]:
        """Input Dims, Input type, Input Strides and Concrete Inputs of an id, None where not recorded."""
        if inputs < 0:
            return [None] * 4
        dims, dims_18, *others = self._inputs[inputs][1].split(b"\0")
        raws = [dims or dims_18, *others]
        values = [msgspec.json.decode(raw.decode("utf-8", "replace")) if raw else None for raw in raws]
        return [value if isinstance(value, list) else None for value in values]

    def has_types(self, inputs: int) -> bool:
        """Whether the tensors of an id have element types: the oldest releases record none."""
        return bool(self.inputs(inputs)[1])

    def inputs_name(self, inputs: int) -> str:
        """Name of the op that has these inputs."""
        label: int = self._inputs[inputs][0]
        return self.names[label]

    def shapes(self, inputs: int) -> str | None:
        """Shapes of inputs as `ops.shapes` has them."""
        if inputs not in self._shapes:
            dims = self.inputs(inputs)[0]
            self._shapes[inputs] = shapes_json(dims) if dims else None
        return self._shapes[inputs]

    def described(
        self, label: int, inputs: int, list_dtype: str | None = None, *, causal: bool | None = None, caller: int = NONE
    ) -> Described:
        """What is known of a framework op, by its name and recorded shapes, and by its kernels' names.

        Those tell the element type of its lists of tensors, and the mask of attention where scalars are not recorded.
        `caller` are the inputs of the op that calls it, which may tell a size that it lacks.
        """
        caller = caller if caller >= 0 and lacks(self.names[label]) else NONE
        key = (label, inputs, caller, list_dtype, causal)
        if key not in self._described:
            given = self.inputs(inputs)
            try:
                found = aten.describe(
                    self.names[label],
                    *given,
                    list_dtype=list_dtype,
                    causal=causal,
                    told=self._told(label, given[0], caller),
                )
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                # arguments come from a file: odd ones cost one operator its numbers, not the file its reading
                found = Described(None, None, None, None, f"arguments that the operator cannot have: {error}")
            self._described[key] = found
        return self._described[key]

    def _told(self, label: int, dims: list[Any] | None, caller: int) -> Mapping[str, Any]:
        """What other calls of the file tell of a call."""
        if not lacks(self.names[label]):
            return {}
        if self._elsewhere is None:
            telling = (i for i, (of, _) in enumerate(self._inputs) if tells(self.names[of]))
            self._elsewhere = Elsewhere((self.inputs_name(i), self.inputs(i)[0]) for i in telling)
        by = (self.inputs_name(caller), self.inputs(caller)[0]) if caller >= 0 else None
        return self._elsewhere.told(self.names[label], dims, by)

    def standing(self, label: NDArray[Any], inputs: NDArray[Any]) -> NDArray[np.int8]:
        """Standing of framework ops."""
        told = np.where(inputs < 0, self._standing_of_label[label], _Standing.UNKNOWN)
        with_inputs = inputs >= 0
        told[with_inputs] = self._standing_of_inputs[inputs[with_inputs]]
        new = told == _Standing.UNKNOWN
        if new.any():
            for one, given in set(zip(label[new].tolist(), inputs[new].tolist(), strict=True)):
                table, at = (self._standing_of_inputs, given) if given >= 0 else (self._standing_of_label, one)
                table[at] = self._stand(one, given)
            return self.standing(label, inputs)
        return told

    def _stand(self, label: int, inputs: int) -> _Standing:
        name = self.names[label]
        if self.described(label, inputs).op_class is None or aten.is_view(name):
            return _Standing.NONE
        return _Standing.WRAPPER if aten.is_wrapper(name) else _Standing.WORK

    def path(self, above: int, label: int) -> int:
        """Id of the path that a module makes inside another (NONE: at the top)."""
        key = (above, label)
        if key not in self._path_ids:
            name = self.names[label].removeprefix(_MODULE)
            self._path_ids[key] = len(self.paths)
            self.paths.append(name if above < 0 else f"{self.paths[above]}/{name}")
        return self._path_ids[key]


AROUND = np.dtype(
    [(name, np.int64) for name in ("order", "op", "forward", "comm")]
    + [(name, np.int32) for name in ("label", "inputs", "caller", "path", "tensors")]
    + [("has_formula", np.bool_)],
    align=True,
)
"""What stands around a span: the event number and label of its framework op, and the inputs of the op that calls it; the
module path, and where a backward pass has none the sequence number of its forward op; the event number of a span with
collective metadata; the inputs of a communication. NONE where there is none."""


@dataclass
class Window:
    """Some spans, nested. Rows are in the file's order."""

    names: Names
    spans: NDArray[Any]
    closed: Mask
    """Whether a span ends in this window."""
    tree: HostTree = field(init=False)

    def __post_init__(self) -> None:
        s = self.spans
        self.tree = nest(s["thread"], s["start"], s["dur"], s["old"])
        op_role = s["role"] == Role.OP
        self.is_op = op_role & self.names.is_op[s["label"]]
        self.is_module = self.names.is_module[s["label"]]
        self._standing = np.full(len(s), _Standing.NONE, np.int8)
        ops = np.flatnonzero(self.is_op)
        self._standing[ops] = self.names.standing(s["label"][ops], s["inputs"][ops])
        self.has_formula = self._standing == _Standing.WORK
        if (self._standing == _Standing.WRAPPER).any():
            self.has_formula |= (self._standing == _Standing.WRAPPER) & ~self._holds(self.has_formula)
        self._paths = self._path_of_modules()

    def _holds(self, flags: Mask) -> Mask:
        """Which spans hold a marked one: `aten::linear` is a leaf on some back ends, a wrapper on others."""
        holds = np.zeros(len(flags), np.bool_)
        above = self.tree.parent[flags]
        while len(above := np.unique(above[above >= 0])):
            above = above[~holds[above]]
            holds[above] = True
            above = self.tree.parent[above]
        return holds

    def nearest(self, rows: Ints, flags: Mask) -> Ints:
        """The innermost marked span from each row outwards, itself included; NONE without."""
        found = np.full(len(rows), NONE, np.int64)
        at, place = rows, np.flatnonzero(rows >= 0)
        at = at[place]
        while len(place):
            hit = flags[at]
            found[place[hit]] = at[hit]
            at, place = self.tree.parent[at[~hit]], place[~hit]
            inside = at >= 0
            at, place = at[inside], place[inside]
        return found

    def _path_of_modules(self) -> NDArray[np.int32]:
        """Path id of each module, NONE of other rows."""
        paths = np.full(len(self.spans) + 1, NONE, np.int32)  # the last is that of row NONE
        rows = self.tree.order[self.is_module[self.tree.order]]
        above = self.nearest(self.tree.parent[rows], self.is_module)
        for row, up, label in zip(
            rows.tolist(), above.tolist(), self.spans["label"][rows].tolist(), strict=True
        ):  # parents first
            paths[row] = self.names.path(int(paths[up]), label)
        return paths

    def paths(self, rows: Ints) -> NDArray[np.int32]:
        """Path id of the modules (where the file has none: of the user's annotations) around each span."""
        return self._paths[self.nearest(rows, self.is_module)]

    def framework_ops(self, rows: Ints) -> Ints:
        """The innermost framework op from each span outwards that has a formula; if none has, the innermost; or NONE."""
        found = self.nearest(rows, self.has_formula)
        without = np.flatnonzero(found < 0)
        found[without] = self.nearest(rows[without], self.is_op)
        return found

    def around(self, rows: Ints, comm_orders: Ints, sends: Mask) -> NDArray[Any]:
        """What stands around spans, as `AROUND`.

        `comm_orders` are the events with collective metadata, increasing; `sends` says of each label whether its inputs
        are those of a communication.
        """
        s = self.spans
        found = np.zeros(len(rows), AROUND)
        ops = self.framework_ops(rows)
        found["order"] = s["order"][rows]
        for name, column in (("op", "order"), ("label", "label"), ("inputs", "inputs")):
            found[name] = np.where(ops >= 0, s[column][ops], NONE)
        callers = self.nearest(np.where(ops >= 0, self.tree.parent[ops], NONE), self.is_op)
        found["caller"] = np.where(callers >= 0, s["inputs"][callers], NONE)
        found["has_formula"] = (ops >= 0) & self.has_formula[ops]
        found["path"] = self.paths(rows)
        found["forward"] = NONE
        if self.names.has_modules:
            bare = np.flatnonzero(found["path"] < 0)
            backward = self.nearest(rows[bare], (s["seq"] >= 0) & (s["seq"] % 2 == 1))
            found["forward"][bare] = np.where(backward >= 0, s["seq"][backward] - 1, NONE)
        said = np.zeros(len(s), np.bool_)
        if len(comm_orders):
            at = np.minimum(np.searchsorted(comm_orders, s["order"]), len(comm_orders) - 1)
            said = comm_orders[at] == s["order"]
        comm = self.nearest(rows, said)
        found["comm"] = np.where(comm >= 0, s["order"][comm], NONE)
        tensors = self.nearest(rows, sends[s["label"]] & (s["inputs"] >= 0))
        found["tensors"] = np.where(tensors >= 0, s["inputs"][tensors], NONE)
        return found

    def forward_paths(self) -> tuple[Ints, NDArray[np.int32]]:
        """Sequence numbers of forward ops, and the module path of the outermost op of each."""
        seq = self.spans["seq"][self.tree.order]
        rows = self.tree.order[(seq >= 0) & (seq % 2 == 0) & ~self.spans["old"][self.tree.order]]
        numbers, first = np.unique(self.spans["seq"][rows], return_index=True)
        return numbers, self.paths(rows[first])

    def name(self, row: int) -> str:
        """The span's name as the trace has it."""
        return self.names.names[int(self.spans["label"][row])]

    def described(self, row: int) -> Described:
        """What is known of the framework op of a row."""
        caller = NONE
        if lacks(self.name(row)):
            above = int(self.nearest(self.tree.parent[[row]], self.is_op)[0])
            caller = int(self.spans["inputs"][above]) if above >= 0 else NONE
        return self.names.described(int(self.spans["label"][row]), int(self.spans["inputs"][row]), caller=caller)

    def done(self) -> NDArray[Any]:
        """The spans that end here, as `DONE`."""
        s, parent = self.spans, self.tree.parent
        rows = np.flatnonzero(self.closed)
        table = np.empty(len(rows), DONE)
        for name in ("order", "start", "dur", "corr", "label", "thread"):
            table[name] = s[name][rows]
        table["own"] = self.tree.self_ns[rows] - s["covered"][rows]
        table["parent"] = np.where(parent[rows] >= 0, s["order"][parent[rows]], NONE)
        return table

    def open_spans(self) -> NDArray[Any]:
        """The spans that end later, as the next window has them."""
        rows = np.flatnonzero(~self.closed)
        left = self.spans[rows]
        left["covered"] += left["dur"] - self.tree.self_ns[rows]
        left["old"] = True
        return left


@dataclass
class Lost:
    """Host spans with times that cannot be believed, counted."""

    starts: int = 0
    first_start: int = NONE
    negative: int = 0
    first_negative: int = NONE

    def sound(self, spans: NDArray[Any], *, zero_is_none: bool) -> NDArray[Any]:
        """Spans without those that have no start; negative lengths become 0, in place."""
        lost = ~spans["has_start"]
        if zero_is_none:
            lost |= spans["start"] == 0
        below = ~lost & (spans["dur"] < 0)
        if lost.any():
            self.first_start = _least(self.first_start, int(spans["order"][lost].min()))
            self.starts += int(lost.sum())
        if below.any():
            self.first_negative = _least(self.first_negative, int(spans["order"][below].min()))
            self.negative += int(below.sum())
            spans["dur"] = np.maximum(spans["dur"], 0)
        return spans[~lost] if lost.any() else spans


def _least(one: int, other: int) -> int:
    return other if one < 0 else min(one, other)


def windows(collected: Collector, names: Names, lost: Lost, *, zero_is_none: bool) -> Iterator[Window]:
    """All host spans in windows of rising time."""
    chunks = sorted(range(len(collected.spans)), key=lambda i: (collected.span_starts[i], i))
    waiting = [np.zeros(0, SPAN)]
    rows, tried = 0, 0
    carried = waiting[0]
    for at, chunk in enumerate(chunks):
        spans = lost.sound(collected.spans.read(chunk), zero_is_none=zero_is_none)
        spans["thread"] = names.thread_of[spans["thread"]]
        waiting.append(spans)
        rows += len(spans)
        last = at == len(chunks) - 1
        if not last and rows < max(WINDOW_ROWS, 2 * tried):  # what waited for an op's end: not again with little more
            continue
        pending = np.concatenate([carried, *waiting])
        order = pending["order"]
        if (order[1:] < order[:-1]).any():
            pending = pending[np.argsort(order, kind="stable")]
        if last:
            ready = closed = np.ones(len(pending), np.bool_)
        else:
            ready, closed = _split(pending, collected.span_starts[chunks[at + 1]], len(names.threads))
        waiting = [pending[~ready]]
        rows = tried = len(waiting[0])
        if ready.any():
            window = Window(names, pending[ready], closed[ready])
            yield window
            carried = window.open_spans()
        else:
            carried = np.zeros(0, SPAN)


def _split(spans: NDArray[Any], horizon: int, threads: int) -> tuple[Mask, Mask]:
    """Which spans are complete before `horizon`, from where on others may come; and which of those end before.

    Of a thread with an op that is open there, only what begins before that op.
    """
    start, thread = spans["start"], spans["thread"]
    end = start + spans["dur"]
    cut = np.full(threads, horizon, np.int64)
    role = spans["role"]
    open_ops = (start < horizon) & (end > horizon) & ((role == Role.OP) | (role == Role.RUNTIME))
    np.minimum.at(cut, thread[open_ops], start[open_ops])
    return start < cut[thread], end <= cut[thread]

"""Host side of a Kineto trace: spans with kind, nesting, framework op and module path; and what launched what."""

from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tracegap.ingest.classify import aten
from tracegap.ingest.classify.aten import Described
from tracegap.ingest.classify.host import host_kind
from tracegap.ingest.hosttree import HostTree, nest
from tracegap.ingest.readers._kineto_events import NONE, Ids, Ints, Role
from tracegap.ingest.trace import shapes_json

_MODULE = "nn.Module: "


@cache
def _kind(name: str, cat: Any) -> str:
    if cat is None and name.startswith(_MODULE):  # 1.9 to 1.11
        return "module"
    return host_kind(name, cat if isinstance(cat, str) else "")


class _Standing(Enum):
    """What the name of a framework op tells of its work."""

    NONE = 0
    WORK = 1
    WRAPPER = 2  # has a formula, but usually calls an op that has one too


@dataclass
class Host:
    """Spans of host threads. Rows are in the file's order; ids of texts and shapes are those of the collector."""

    texts: list[Any]
    shapes: list[tuple[bytes, bytes, bytes, bytes]]
    columns: dict[str, NDArray[Any]]
    tree: HostTree = field(init=False)
    kind: NDArray[np.object_] = field(init=False)
    thread: NDArray[np.int64] = field(init=False)
    threads: list[str] = field(init=False)

    def __post_init__(self) -> None:
        c = self.columns
        pair = c["pid"].astype(np.int64) * len(self.texts) + c["tid"]
        found, inverse = np.unique(pair, return_inverse=True)
        number = Ids()  # some versions write ids now as numbers, now as text: the same text is the same thread
        n = len(self.texts)
        same = number.of([f"{self.texts[p // n]}/{self.texts[p % n]}" for p in found.tolist()])
        self.thread, self.threads = same.astype(np.int64)[inverse], list(number)
        label = c["name"].astype(np.int64) * len(self.texts) + c["cat"]
        found, inverse = np.unique(label, return_inverse=True)
        kinds = [_kind(self.texts[n // len(self.texts)], self.texts[n % len(self.texts)]) for n in found.tolist()]
        self.kind = np.array(kinds, np.object_)[inverse] if kinds else np.zeros(0, np.object_)
        self.tree = nest(self.thread, c["start"], c["dur"])
        self.is_compute_op = (c["role"] == Role.OP) & (self.kind == "op")
        self.is_op = self.is_compute_op | ((c["role"] == Role.OP) & (self.kind == "collective"))
        self.is_module = self.kind == "module"
        self.has_modules = bool(self.is_module.any())
        if not self.has_modules:
            self.is_module = self.kind == "annotation"
        self._described: dict[tuple[int, int, str | None, bool | None], Described] = {}
        self._standings: dict[tuple[int, int], _Standing] = {}
        self._holders: set[int] | None = None
        self._shapes_texts: dict[int, str | None] = {NONE: None}
        self._paths: dict[int, str | None] = {NONE: None}
        self._forward: dict[int, int] | None = None

    def name(self, row: int) -> str:
        """The span's name as the trace has it."""
        return str(self.texts[self.columns["name"][row]])

    def described(self, row: int, list_dtype: str | None = None, *, causal: bool | None = None) -> Described:
        """What is known of the framework op of a row, by its name and recorded shapes, and by its kernels' names.

        Those tell the element type of its lists of tensors, and the mask of attention where scalars are not recorded.
        """
        key = (int(self.columns["name"][row]), int(self.columns["shape"][row]), list_dtype, causal)
        if key not in self._described:
            name, decoded = str(self.texts[key[0]]), self.inputs(key[1])
            self._described[key] = aten.describe(name, *decoded, list_dtype=list_dtype, causal=causal)
        return self._described[key]

    def inputs(self, shape: int) -> list[Any]:
        """Input Dims, Input type, Input Strides and Concrete Inputs of a shape id, None where not recorded."""
        if shape < 0:
            return [None] * 4
        return [msgspec.json.decode(raw.decode("utf-8", "replace")) if raw else None for raw in self.shapes[shape]]

    def shapes_text(self, row: int) -> str | None:
        """Shapes of the inputs as `ops.shapes` has them."""
        shape = int(self.columns["shape"][row])
        if shape not in self._shapes_texts:
            dims = self.inputs(shape)[0]
            self._shapes_texts[shape] = shapes_json(dims) if dims else None
        return self._shapes_texts[shape]

    def has_formula(self, row: int) -> bool:
        """Whether a row is a framework op whose work is known by its name: no view, and no wrapper of one that is."""
        standing = self._standing(row)
        return standing is _Standing.WORK or (standing is _Standing.WRAPPER and row not in self._wrapping())

    def _standing(self, row: int) -> "_Standing":
        key = (int(self.columns["name"][row]), int(self.columns["shape"][row]))
        if key not in self._standings:
            name = self.name(row)
            if self.described(row).op_class is None or aten.is_view(name):
                self._standings[key] = _Standing.NONE
            else:
                self._standings[key] = _Standing.WRAPPER if aten.is_wrapper(name) else _Standing.WORK
        return self._standings[key]

    def _wrapping(self) -> set[int]:
        """Spans around ops with a formula: `aten::linear` is a leaf on some back ends, a wrapper on others."""
        if self._holders is None:
            self._holders = set()
            for row in np.flatnonzero(self.is_op).tolist():
                above = int(self.tree.parent[row]) if self._standing(row) is _Standing.WORK else NONE
                while above >= 0 and above not in self._holders:
                    self._holders.add(above)
                    above = int(self.tree.parent[above])
        return self._holders

    def framework_op(self, row: int) -> int:
        """The innermost framework op from a span outwards that has a formula; if none has, the innermost; or NONE."""
        innermost = NONE
        parent = self.tree.parent
        while row >= 0:
            if self.is_op[row]:
                innermost = row if innermost < 0 else innermost
                if self.has_formula(row):
                    return row
            row = int(parent[row])
        return innermost

    def module(self, row: int) -> str | None:
        """Path of the modules (where none were recorded: of the user's annotations) around a span.

        Spans of a backward pass that lie in no module get the one of the forward op that they belong to.
        """
        own = self._path(row)
        if own is not None or not self.has_modules:
            return own
        forward = self._forward_of(row)
        return self._path(forward) if forward >= 0 else None

    def _path(self, row: int) -> str | None:
        chain = []
        while row not in self._paths:
            chain.append(row)
            row = int(self.tree.parent[row])
        path = self._paths[row]
        for row in reversed(chain):
            if self.is_module[row]:
                name = self.name(row).removeprefix(_MODULE)
                path = name if path is None else f"{path}/{name}"
            self._paths[row] = path
        return path

    def _forward_of(self, row: int) -> int:
        seq = self.columns["seq"]
        if self._forward is None:  # the outermost op of a sequence number comes first in the tree's order
            rows = self.tree.order[(seq[self.tree.order] >= 0) & (seq[self.tree.order] % 2 == 0)]
            self._forward = {int(seq[r]): int(r) for r in rows[::-1]}
        while row >= 0:
            if seq[row] >= 0 and seq[row] % 2:
                return self._forward.get(int(seq[row]) - 1, NONE)
            row = int(self.tree.parent[row])
        return NONE


@dataclass(slots=True)
class Launches:
    """Which call of the host launched which work of a device."""

    call: Ints
    """Row of the call, by row of the device work; NONE where it is not in the file."""
    ambiguous: int
    """Work whose correlation id several processes used."""
    before_call: int
    """Work that starts before its call: clocks of host and device disagree by so much."""


CLOCK_SKEW_NS = 1_000_000
"""A call that begins so much after the work did not launch it: the id was used twice."""


def find_launches(device: dict[str, NDArray[Any]], host: Host) -> Launches:
    """Joins device work with runtime calls by correlation id; where an id repeats, the last call before the work."""
    calls = np.flatnonzero((host.columns["role"] == Role.RUNTIME) & (host.columns["corr"] >= 0))
    corr, start = host.columns["corr"], host.columns["start"]
    calls = calls[np.lexsort((start[calls], corr[calls]))]
    ids = corr[calls]
    low = np.searchsorted(ids, device["corr"], side="left")
    high = np.searchsorted(ids, device["corr"], side="right")
    high = np.where(device["corr"] < 0, low, high)
    one = np.flatnonzero(high - low == 1)
    found = np.full(len(low), NONE, np.int64)
    found[one] = calls[low[one]]
    ambiguous = 0
    for i in np.flatnonzero(high - low > 1).tolist():
        found[i], unsure = _choose(calls[low[i] : high[i]], int(device["start"][i]), int(device["ext"][i]), host)
        ambiguous += unsure
    joined = np.flatnonzero(found >= 0)
    late = start[found[joined]] - device["start"][joined]
    found[joined[late > CLOCK_SKEW_NS]] = NONE
    return Launches(found, ambiguous, int(((late > 0) & (late <= CLOCK_SKEW_NS)).sum()))


def _choose(calls: Ints, start: int, ext: int, host: Host) -> tuple[int, bool]:
    """Which of several calls with one correlation id launched work at `start`: (row or NONE, whether it is unsure)."""
    if len(set(host.columns["pid"][calls].tolist())) > 1:
        same = calls[host.columns["ext"][calls] == ext] if ext >= 0 else calls[:0]
        return (int(same[0]), False) if len(same) == 1 else (NONE, True)
    before = calls[host.columns["start"][calls] <= start]
    row = int(before[-1] if len(before) else calls[0])
    among = set(calls.tolist())
    while int(host.tree.parent[row]) in among:  # a runtime call holds the driver call that it makes
        row = int(host.tree.parent[row])
    return row, False

"""What the device planes of an XSpace have in common: operations, their executions, and the HLO modules behind them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.classify import hlo
from tracegap.ingest.classify.hlo_memory import program_memory
from tracegap.ingest.classify.hlo_module import Instruction, Module
from tracegap.ingest.forms import keyed
from tracegap.ingest.readers._xplane import EventKind, Ints, Plane, Value
from tracegap.ingest.readers._xspace_host import Clock, Host, Launch, nullable, to_ns
from tracegap.ingest.trace import COLLECTIVES, OPS, shapes_json
from tracegap.models.ops import OpClass

_MODULE_NAME = re.compile(r"^(.*)\((-?\d+)\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """What all executions of one operation have in common: columns of `trace.OPS`, and its communication."""

    name: str
    op_class: OpClass
    framework_op: str | None = None
    module: str | None = None
    dtype: str | None = None
    shapes: str | None = None
    flops: int | None = None
    bytes: int | None = None
    cost_source: str = "none"
    cost_note: str | None = None
    collective: hlo.Collective | None = None
    site: str | None = None
    """The instruction as all devices know it: module and channel or name."""


def _lean(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with texts as categories: few texts stand for many rows."""
    return {name: pl.Categorical() if kind == pl.String else kind for name, kind in schema.items()}


ASYNC = "async"
"""Stream of asynchronous operations, which run beside the others."""
LEAN_OPS, LEAN_COLLECTIVES = _lean(OPS), _lean(COLLECTIVES)


@dataclass(frozen=True, slots=True)
class Same:
    """A column in which all rows have one value: it needs no memory."""

    value: str | int | None


@dataclass(slots=True, kw_only=True)
class Batch:
    """Executions on one stream. Columns have one entry for each; left out, there is nothing of the kind."""

    stream: str
    ops: list[Op]
    op: Ints
    """Which of `ops`."""
    start_ps: Ints
    end_ps: Ints
    group: Ints | None = None
    """Group ids."""
    correlation: Ints | None = None
    launches: list[Launch | None] = field(default_factory=lambda: [None])
    launch: Ints | None = None
    """Which of `launches`."""
    flops: list[int | None] | None = None
    """Where executions of one operation differ."""
    bytes: list[int | None] | None = None

    def columns(self, device_id: str, step_of_group: Mapping[int, int]) -> dict[str, pl.Series | Same]:
        """Columns of OPS, texts as categories; op_id is not set yet."""
        start = to_ns(self.start_ps)
        launch = np.zeros(len(self.op), dtype=np.int64) if self.launch is None else self.launch
        columns: dict[str, pl.Series | Same] = {
            name: _column([getattr(op, name) for op in self.ops], self.op, LEAN_OPS[name])
            for name in OPS
            if name in Op.__dataclass_fields__
        }
        for name, own in (("flops", self.flops), ("bytes", self.bytes)):
            if own is not None:
                columns[name] = pl.Series(own, dtype=pl.Int64)
        columns |= {
            "device_id": Same(device_id),
            "stream": Same(self.stream),
            "start_ns": pl.Series(start),
            "dur_ns": pl.Series(to_ns(self.end_ps) - start),
            "step": self._steps(step_of_group),
            "correlation_id": Same(None) if self.correlation is None else nullable("correlation_id", self.correlation),
            "launch_ns": _column([x.start_ns if x else None for x in self.launches], launch, pl.Int64()),
            "launch_thread": _column([x.thread if x else None for x in self.launches], launch, pl.Categorical()),
        }
        return columns

    def _steps(self, step_of_group: Mapping[int, int]) -> pl.Series | Same:
        if self.group is None or not step_of_group:
            return Same(None)
        groups, which = keyed(self.group)
        steps = pl.Series([step_of_group.get(g) for g in groups.tolist()], dtype=pl.Int64)
        return steps.gather(which)


def _column(values: Sequence[str | int | None], which: Ints, kind: Any) -> pl.Series | Same:
    """A column of values by their number."""
    if len(set(values)) == 1:
        return Same(values[0])
    return pl.Series(values, dtype=kind).gather(which)


@dataclass(slots=True, kw_only=True)
class Executions:
    """What one plane ran on one device."""

    device_id: str
    ordinal: int
    batches: list[Batch]

    def frame(self, first: int, step_of_group: Mapping[int, int]) -> pl.DataFrame:
        """Its operations as rows of OPS, texts as categories, numbered from `first`; the batches are gone afterwards."""
        parts = []
        while self.batches:
            parts.append(self.batches.pop(0).columns(self.device_id, step_of_group))
        return _frame_of(parts, first)


def _frame_of(parts: Sequence[Mapping[str, pl.Series | Same]], first: int) -> pl.DataFrame:
    """Rows of OPS from the columns of batches, numbered from `first`."""
    sizes = [len(part["start_ns"]) for part in parts if isinstance(part["start_ns"], pl.Series)]
    columns: dict[str, pl.Series | Same] = {}
    for name in (name for name in OPS if name != "op_id"):
        pieces = [part[name] for part in parts]
        if len(set(map(type, pieces))) == 1 and isinstance(pieces[0], Same) and len(set(pieces)) == 1:
            columns[name] = pieces[0]
        else:
            columns[name] = pl.concat(
                pl.Series([piece.value], dtype=LEAN_OPS[name]).new_from_index(0, size)
                if isinstance(piece, Same)
                else piece
                for piece, size in zip(pieces, sizes, strict=True)
            )
    rows = pl.DataFrame({name: column for name, column in columns.items() if isinstance(column, pl.Series)})
    return rows.select(
        pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias("op_id"),
        *(
            pl.lit(column.value, dtype=LEAN_OPS[name]).alias(name) if isinstance(column, Same) else name
            for name, column in columns.items()
        ),
    )


@dataclass(slots=True)
class Programs:
    """HLO modules of a file by program id."""

    modules: dict[int, Module] = field(default_factory=dict)
    entries: dict[int, str] = field(default_factory=dict)
    """Names as the file lists them: `jit_f(12)`."""
    memory: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes that they need by `PROGRAM_PARTS`, where the file says it, by those names."""

    @classmethod
    def of(cls, planes: list[Plane]) -> "Programs":
        """From the planes' metadata."""
        found = cls()
        for plane in planes:
            for key, kind in plane.kinds.items():
                data = kind.stats.get("Hlo Proto") or kind.stats.get("hlo_proto")
                module = Module.parse(data) if isinstance(data, bytes) and data else None
                if module is not None:
                    stated = _MODULE_NAME.match(kind.name)  # older writers use the program id as key as well
                    program = signed(int(stated[2])) if stated is not None else key
                    found.modules[program] = module
                    found.entries[program] = kind.name
                    if isinstance(data, bytes) and (memory := program_memory(data)) is not None:
                        found.memory[kind.name] = memory
        return found

    def find(self, program: int | None, name: str) -> tuple[Module | None, Instruction | None]:
        """Module and instruction."""
        module = self.modules.get(signed(program)) if program is not None else None
        return module, module.find(name) if module is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is known of the file when its device planes are read."""

    clock: Clock
    programs: Programs
    host: Host
    known: dict[EventKind, Any] = field(default_factory=dict)
    """What TPU planes know of an event kind: equal ones are described once for all devices."""


def signed(unsigned: int) -> int:
    """An unsigned id as the signed one that is the same 64 bits."""
    return (unsigned + (1 << 63)) % (1 << 64) - (1 << 63)


def text(value: Value | None) -> str:
    """A statistic as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else "" if value is None else str(value)


def number(value: Value | None) -> int | None:
    """A statistic as a whole number; None where there is none."""
    return int(value) if isinstance(value, int | float) else None


def shapes_of(instruction: Instruction) -> str | None:
    """Shapes of the operands as `ops.shapes` has them; None where they are not known."""
    if not instruction.operands:
        return None
    one = [[list(a.dims) for a in operand] for operand in instruction.operands]
    return shapes_json([shapes[0] if len(shapes) == 1 else shapes for shapes in one])


def site_of(module_name: str, program: int | None, instruction: Instruction) -> str:
    """An instruction as all devices that run its program know it."""
    channel = instruction.channel_id
    place = instruction.name if channel is None else f"channel {channel}"
    return f"{module_name}{'' if program is None else f'({program})'}/{place}"


def holds_next(start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Which spans hold at least half of the span that begins next after them: clocks leave some ps between the ends."""
    holds = np.zeros(len(start), dtype=bool)
    here: slice | Ints = slice(None, -1)
    after: slice | Ints = slice(1, None)
    if not ((start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] <= end[:-1]))).all():
        order = np.lexsort((-end, start))
        here, after = order[:-1], order[1:]
    inside = np.minimum(end[after], end[here]) - start[after]
    holds[here] = (start[after] < end[here]) & (2 * inside >= end[after] - start[after])
    return holds

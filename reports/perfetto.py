"""A run as a Perfetto trace: each stream with its operations, and below it a track with what each loses beyond its bound.

Written by the Python bindings of Perfetto (https://perfetto.dev/docs/reference/synthetic-track-event), an extra.
"""

import importlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import polars as pl

from tracegap.models.errors import TracegapError
from tracegap.reports import people

_SEQUENCE = 1
_OPS = """
    select g.trace_id, g.device_id, g.stream, coalesce(c.collective, g.framework_op, g.name) as label, g.name, g.op_class, g.step,
           g.dur_ns, g.t_min_ns, g.bound, g.efficiency_frac, g.gap_ns, g.module, g.shapes, g.unknown_because, c.wait_ns,
           c.instance_id,
           -- On the common clock of the run.
           g.start_ns + coalesce(t.origin_unix_ns, 0) + coalesce(t.clock_offset_ns, 0) as at_ns
    from op_gap g join traces t using (trace_id)
    left join collective_gap c on c.trace_id = g.trace_id and c.op_id = g.op_id
    where g.run_id = $run and ($first is null or g.step between $first and $last)
    order by g.trace_id, g.device_id, g.stream, at_ns, g.dur_ns desc
"""
_STEPS = """
    select s.trace_id, s.device_id, s.step, s.rank, s.wall_ns, s.complete,
           s.start_ns + coalesce(t.origin_unix_ns, 0) + coalesce(t.clock_offset_ns, 0) as at_ns,
           coalesce(d.hardware, d.name, d.kind) as part
    from steps s join traces t using (trace_id) join devices d using (trace_id, device_id)
    where s.run_id = $run and ($first is null or s.step between $first and $last)
    order by s.rank, s.trace_id, s.device_id, s.start_ns
"""


def write(con: duckdb.DuckDBPyConnection, run_id: str, out: Path, steps: tuple[int, int] | None = None) -> int:
    """Writes a run, or some of its steps; the number of operations.

    Raises:
        TracegapError: what writes such traces is not installed, or there is no such step or run.
    """
    asked = {"run": run_id, "first": steps and steps[0], "last": steps and steps[1]}
    windows = pl.DataFrame(con.sql(_STEPS, params=asked))
    if not len(windows):
        raise TracegapError(f"{run_id}: no such step or run in the store")
    ops = pl.DataFrame(con.sql(_OPS, params=asked))
    origin = min(int(frame["at_ns"].min()) for frame in (windows, ops) if len(frame))  # type: ignore[arg-type]
    messages = _messages()
    temporary = out.with_name(out.name + ".part")
    with temporary.open("wb") as file:
        trace = _Trace(messages, file, origin)
        mine = ops.partition_by("trace_id", "device_id", as_dict=True)
        for (trace_id, device_id), steps_of_it in windows.partition_by(
            "trace_id", "device_id", as_dict=True, maintain_order=True
        ).items():
            _device(trace, steps_of_it, mine.get((trace_id, device_id), ops.clear()))
    temporary.replace(out)
    return len(ops)


def _messages() -> ModuleType:
    try:
        return importlib.import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    except ModuleNotFoundError as e:
        raise TracegapError("Perfetto traces need the package perfetto: pip install 'tracegap[perfetto]'") from e


class _Trace:
    """A trace being written, packet by packet."""

    def __init__(self, messages: ModuleType, file: Any, origin_ns: int) -> None:
        self._pb, self._file, self._origin = messages, file, origin_ns
        self._uuids = count(1)

    def track(self, name: str, parent: int | None = None, *, rank: int = 0) -> int:
        """A track; its uuid."""
        packet, uuid = self._pb.TracePacket(), next(self._uuids)
        described = packet.track_descriptor
        described.uuid, described.name = uuid, name
        described.child_ordering = described.EXPLICIT
        described.sibling_order_rank = rank
        if parent is not None:
            described.parent_uuid = parent
        self._put(packet)
        return uuid

    def slices(self, track: int, spans: Iterator[tuple[int, int, str, dict[str, Any], int | None]]) -> None:
        """Spans that do not overlap, in their order: begin, duration, name, notes, flow."""
        for at_ns, dur_ns, name, notes, flow in spans:
            begin = self._event(track, at_ns, self._pb.TrackEvent.TYPE_SLICE_BEGIN)
            begin.track_event.name = name
            for key, value in notes.items():
                if value is not None:
                    note = begin.track_event.debug_annotations.add()
                    note.name = key
                    field = {int: "int_value", float: "double_value"}.get(type(value), "string_value")
                    setattr(note, field, value)
            if flow is not None:
                begin.track_event.flow_ids.append(flow)
            self._put(begin)
            self._put(self._event(track, at_ns + dur_ns, self._pb.TrackEvent.TYPE_SLICE_END))

    def _event(self, track: int, at_ns: int, kind: int) -> Any:
        packet = self._pb.TracePacket()
        packet.timestamp = at_ns - self._origin
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.track_event.track_uuid = track
        packet.track_event.type = kind
        return packet

    def _put(self, packet: Any) -> None:
        """As a field of the message Trace, which holds nothing but packets."""
        trace = self._pb.Trace()
        trace.packet.append(packet)
        self._file.write(trace.SerializeToString())


def _device(trace: _Trace, windows: pl.DataFrame, ops: pl.DataFrame) -> None:
    """A group of tracks: the steps, then each stream and what its operations lose."""
    rank, part, device_id = (windows[c][0] for c in ("rank", "part", "device_id"))
    name = f"device {device_id}" if rank is None else f"rank {rank}"
    device = trace.track(f"{name} · {part}", rank=0 if rank is None else rank)
    trace.slices(
        trace.track("steps", device),
        (
            (r["at_ns"], r["wall_ns"], f"step {r['step']}", {"complete": str(r["complete"])}, None)
            for r in windows.to_dicts()
        ),
    )
    place = count(1)
    for (stream,), mine in ops.partition_by("stream", as_dict=True, maintain_order=True).items():
        for number, lane in enumerate(_lanes(mine.to_dicts())):
            more = f" ({number + 1})" if number else ""
            track = trace.track(f"stream {stream}{more}", device, rank=next(place))
            trace.slices(track, ((r["at_ns"], r["dur_ns"], r["label"], _notes(r), r["instance_id"]) for r in lane))
            lost = trace.track(f"gap of stream {stream}{more}", device, rank=next(place))
            trace.slices(lost, _gaps(lane))


def _lanes(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Operations in as few rows as they need not to overlap: each goes into the first that is free."""
    lanes: list[list[dict[str, Any]]] = []
    free: list[int] = []
    for row in rows:
        lane = next((i for i, end in enumerate(free) if end <= row["at_ns"]), None)
        if lane is None:
            lanes.append([])
            free.append(0)
            lane = len(lanes) - 1
        lanes[lane].append(row)
        free[lane] = row["at_ns"] + row["dur_ns"]
    return lanes


def _notes(row: dict[str, Any]) -> dict[str, Any]:
    names = (
        "name",
        "op_class",
        "module",
        "shapes",
        "t_min_ns",
        "bound",
        "efficiency_frac",
        "unknown_because",
        "wait_ns",
    )
    return {name: row[name] for name in names}


def _gaps(lane: list[dict[str, Any]]) -> Iterator[tuple[int, int, str, dict[str, Any], int | None]]:
    """The part of each operation beyond its bound, at its end; all of it where the bound is unknown."""
    for row in lane:
        least = row["t_min_ns"]
        lost = row["dur_ns"] - (least or 0)
        if lost > 0:
            said = f"gap {people.duration(lost)}" if least is not None else "cost unknown"
            yield row["at_ns"] + row["dur_ns"] - lost, lost, said, {"of": row["label"]}, None

"""What `tracegap doctor` says of a file: what is in it, what is lost, what is doubtful."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracegap.ingest import pipeline, steps
from tracegap.ingest.errors import TraceError
from tracegap.models.errors import TracegapError


@dataclass(slots=True, kw_only=True)
class Examination:
    """One file."""

    path: str
    error: str | None = None
    """Why it cannot be read at all."""
    format: str | None = None
    framework: str | None = None
    rank: int | None = None
    world_size: int | None = None
    devices: list[dict[str, Any]] = field(default_factory=list)
    ops: int = 0
    host_events: int = 0
    collectives: int = 0
    steps: int = 0
    step_source: str | None = None
    without_launch: int = 0
    """Operations whose launch is not in the file."""
    diagnostics: list[dict[str, Any]] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether it can be read and nothing is lost."""
        return self.error is None and all(d["severity"] == "info" for d in self.diagnostics)

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {name: getattr(self, name) for name in self.__slots__} | {"sound": self.sound}

    def lines(self) -> Iterator[str]:
        """For people."""
        if self.error:
            yield self.error
            return
        rank = (
            "" if self.rank is None else f", rank {self.rank}" + (f" of {self.world_size}" if self.world_size else "")
        )
        yield f"{self.path}: {self.format} ({self.framework}{rank}): {'sound' if self.sound else 'damaged'}"
        for d in self.devices:
            yield f"  device {d['device_id']}: {d['name'] or 'not named'}; {d['matched_by']}"
        yield f"  {self.ops:,} operations ({self.without_launch:,} without a launch in the file), {self.collectives:,} collectives"
        yield f"  {self.host_events:,} host events; {self.steps} steps ({self.step_source})"
        for d in self.diagnostics:
            place = f" ({d['where']})" if d["where"] else ""
            yield f"  {d['severity']}: {d['code']} × {d['count']}: {d['message']}{place}"


def find_traces(paths: Sequence[Path]) -> Iterator[Path]:
    """Files that may be traces."""
    return pipeline.find_traces(paths)


def examine(path: Path) -> Examination:
    """Reads a file and stores nothing."""
    try:
        trace = pipeline.read_trace(path)
    except TraceError as e:
        return Examination(path=str(path), error=str(e))
    trace.ops = steps.assign(trace)
    counts, sources = set(), set()
    for (device_id,), ops in trace.ops.partition_by("device_id", as_dict=True).items():
        marks = trace.step_marks.filter(
            trace.step_marks["device_id"].is_null()
            | (trace.step_marks["device_id"] == device_id).fill_null(value=False)
        )
        found = steps.windows_of(ops, marks, trace.issues)
        if found:
            counts.add(len(found.steps))
            sources.add(found.source)
    devices = []
    for d in trace.devices:
        try:
            chip, matched_by = pipeline.chip_of(d, None)
        except TracegapError as e:
            chip, matched_by = None, str(e)
        devices.append(
            {"device_id": d.device_id, "name": d.name, "hardware": chip.id if chip else None, "matched_by": matched_by}
        )
    return Examination(
        path=str(path),
        format=trace.format,
        framework=trace.framework,
        rank=trace.rank,
        world_size=trace.world_size,
        devices=devices,
        ops=len(trace.ops),
        host_events=len(trace.host_events),
        collectives=len(trace.collectives),
        steps=max(counts, default=0),
        step_source=", ".join(sorted(sources)) or None,
        without_launch=int(trace.ops["launch_ns"].null_count()),
        diagnostics=trace.issues.rows(),
    )

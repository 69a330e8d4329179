"""What `tracegap doctor` says of a file: what is in it, what is lost, what is doubtful."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tracegap.ingest import load, manifest, pipeline, sources, steps
from tracegap.ingest.errors import InputError
from tracegap.ingest.sources import File, Source
from tracegap.ingest.trace import Trace
from tracegap.models.errors import TracegapError
from tracegap.models.ops import OpClass


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
        marked = f" ({self.step_source})" if self.step_source else ""
        yield f"  {self.host_events:,} host events; {self.steps} {'step' if self.steps == 1 else 'steps'}{marked}"
        for d in self.diagnostics:
            place = f" ({d['where']})" if d["where"] else ""
            yield f"  {d['severity']}: {d['code']} × {d['count']}: {d['message']}{place}"


def examine_all(given: Iterable[str | Source]) -> Iterator[Examination]:
    """Reads traces from anywhere, as `ingest_paths` does, and stores nothing."""
    for item in given:
        try:
            found = list(sources.find([item]))
        except InputError as e:
            yield Examination(path=e.path, error=str(e))
            continue
        for source in found:
            with contextlib.closing(sources.files_of(source)) as files:
                yield from map(examine, files)


def examine(file: File) -> Examination:
    """Reads a file and stores nothing."""
    try:
        if file.error:
            raise file.error
        if found := manifest.find(file.path.parent):
            manifest.load(found)  # ingesting would fail on it
        return _examine(file.shown, pipeline.read_trace(file.path))
    except InputError as e:
        return Examination(path=file.shown, error=file.told(str(e)))


def _examine(path: str, trace: Trace) -> Examination:
    host_events = sum(len(batch) for batch in trace.host_batches())
    counts, sources, total, without_launch, collectives = set(), set(), 0, 0, 0
    for device_id, ops in trace.by_device():
        marks = steps.marks_of(trace.step_marks, device_id)
        steps.note_early_starts(ops, trace.issues)
        found = steps.windows_of(steps.assign(ops, marks, trace.issues), marks, trace.issues)
        total += len(ops)
        without_launch += ops["launch_ns"].null_count()
        collectives += int((ops["op_class"] == OpClass.COLLECTIVE.value).sum())
        if found:
            counts.add(len(found.steps))
            sources.add(found.source)
    devices = []
    for d in trace.devices:
        try:
            chip, matched_by = load.chip_of(d, None)
        except TracegapError as e:
            chip, matched_by = None, str(e)
        devices.append(
            {"device_id": d.device_id, "name": d.name, "hardware": chip.id if chip else None, "matched_by": matched_by}
        )
    return Examination(
        path=path,
        format=trace.format,
        framework=trace.framework,
        rank=trace.rank,
        world_size=trace.world_size,
        devices=devices,
        ops=total,
        host_events=host_events,
        collectives=collectives,
        steps=max(counts, default=0),
        step_source=", ".join(sorted(sources)) or None,
        without_launch=without_launch,
        diagnostics=trace.issues.rows(),
    )

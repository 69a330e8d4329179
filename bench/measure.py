"""Time and memory of reading traces, beside those of other tools on the same files, in one run.

Every measurement is a whole process, its start included. Those of a group are started in turn, A B C A B C, so that a
neighbour on the machine slows all of them; a ratio is the median over the rounds of what two made of the same round. The
traces are grown from `sample_traces/`. HTA_PYTHON names a Python with HolisticTraceAnalysis 0.5.0 and DUCKDB_SQLITE_PYTHON
one with DuckDB 1.5.5 and the package duckdb-extension-sqlite-scanner; without them their lines are left out.

Usage: python bench/measure.py [GROUP ...] [--size-mb 300] [--runs 5] [--write docs/performance.md]
"""

import argparse
import datetime
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
SAMPLES = HERE.parent / "sample_traces"
KINETO = SAMPLES / "sim_h100_before"
XSPACE = SAMPLES / "sim_tpu_v5p" / "tpu-host-0.xplane.pb.gz"
NSYS = SAMPLES / "sim_nsys_h100" / "rank0.sqlite.gz"
MB = 10**6
RANKS = 8
_A_STEP = "--a-step=10"
"""A step of about 30 MB, 17,000 kernels; HolisticTraceAnalysis takes minutes where steps are many and short."""
_POLL_S = 0.1
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a process and those that it started used."""

    wall_s: float
    cpu_s: float
    """User and system time of all of them."""
    largest_mb: float
    """Peak of the largest of them."""
    sum_mb: float
    """Peaks of all of them added up, whenever they were; that of the largest where there is no /proc."""


class MeasureError(Exception):
    """A process ended badly."""


def usage(*command: str | Path) -> Usage:
    """Runs a command to its end. Raises MeasureError where it fails."""
    with tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        process = subprocess.Popen(list(map(str, command)), stdout=said, stderr=said)  # noqa: S603 (ours)
        peaks: dict[int, int] = {}
        ended = threading.Event()
        watch = threading.Thread(target=_watch, args=(process.pid, peaks, ended))
        watch.start()
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        ended.set()
        watch.join()
        if process.returncode:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise MeasureError(f"status {process.returncode}: {''.join(last)}")
    # A process begins with the peak of the one that started it, so that only a higher one is its own.
    mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest = used.ru_maxrss * _MAXRSS_BYTES if used.ru_maxrss > mine or not peaks else max(peaks.values())
    return Usage(
        wall_s=wall_s,
        cpu_s=used.ru_utime + used.ru_stime,
        largest_mb=largest / MB,
        sum_mb=max(largest, sum(peaks.values())) / MB,
    )


def _watch(root: int, peaks: dict[int, int], ended: threading.Event) -> None:
    """Notes the peak, bytes, of a process and of those that it started, until they end.

    `wait4` alone does not do: it knows the largest only.
    """
    family, seen = {root}, {root}
    while Path("/proc/self/stat").exists() and not ended.wait(_POLL_S):
        for pid in sorted({int(entry.name) for entry in Path("/proc").glob("[0-9]*")} - seen):
            seen.add(pid)
            with suppress(OSError):  # it ended meanwhile, here and below
                if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) in family:
                    family.add(pid)
        for pid in family:
            with suppress(OSError):
                if found := re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()):
                    peaks[pid] = int(found[1]) * 1024


@dataclass(slots=True, kw_only=True)
class Case:
    """A line of a table."""

    key: str
    label: str
    command: list[str | Path]
    size_mb: float
    """Of what is read, unpacked."""
    rounds: list[Usage] = field(default_factory=list)
    failed: str = ""

    def each(self, of: str) -> list[float]:
        """One of the figures, by round."""
        return [float(getattr(used, of)) for used in self.rounds]

    def cells(self, base: "Case | None") -> list[str]:
        """Of its line in the table."""
        if not self.rounds:
            return [self.label, f"left out: {self.failed}", *[""] * (6 if base else 4)]
        both = ("wall_s", "cpu_s") if base else ()
        ratios = [f"{ratio(self, base, of):.2f}" if base and base.rounds else "" for of in both]
        return [
            self.label,
            self._spread("wall_s"),
            self._spread("cpu_s"),
            f"{self.size_mb / statistics.median(self.each('wall_s')):.0f}",
            f"{max(self.each('largest_mb')):.0f}",
            f"{max(self.each('sum_mb')):.0f}",
            *ratios,
        ]

    def _spread(self, of: str) -> str:
        values = self.each(of)
        several = f" ({min(values):.2f}–{max(values):.2f})" if len(values) > 1 else ""
        return f"{statistics.median(values):.2f}{several}"


def ratio(a: Case, b: Case, of: str = "wall_s") -> float:
    """Of two cases of a group, the median over the rounds. Raises ValueError where one of them was left out."""
    return statistics.median(x / y for x, y in zip(a.each(of), b.each(of), strict=True))


@dataclass(frozen=True, slots=True)
class Target:
    """What a ratio or a peak should be."""

    what: str
    limit: float
    value: Callable[[dict[str, Case]], float]
    at_least: bool = False

    def cells(self, cases: dict[str, Case]) -> list[str]:
        """Of its line in the table."""
        sign = "≥" if self.at_least else "≤"
        try:
            value = self.value(cases)
        except ValueError:  # of no rounds
            return [self.what, f"{sign} {self.limit:g}", "not measured", ""]
        met = value >= self.limit if self.at_least else value <= self.limit
        return [self.what, f"{sign} {self.limit:g}", f"{value:.3g}", "met" if met else "missed"]


@dataclass(slots=True, kw_only=True)
class Group:
    """Cases that are measured in turn."""

    title: str
    cases: list[Case]
    base: str
    """Key of the case that the others are compared with."""
    targets: list[Target]

    def measure(self, runs: int) -> None:
        """Runs all its cases in turn; one that fails is left out from then on."""
        for n in range(runs):
            for case in self.cases:
                if case.failed:
                    continue
                try:
                    case.rounds.append(usage(*case.command))
                except (MeasureError, OSError) as e:
                    case.failed, case.rounds = str(e), []
                last = f"{case.rounds[-1].wall_s:.2f} s" if case.rounds else case.failed
                print(f"{self.title}, round {n + 1} of {runs}: {case.label}: {last}", file=sys.stderr)

    def lines(self, runs: int) -> Iterator[str]:
        """Its tables."""
        by_key = {case.key: case for case in self.cases}
        yield f"**{self.title}**, {runs} rounds" if runs > 1 else f"**{self.title}**, one round"
        yield ""
        head = ["", "wall s (from–to)", "CPU s", "MB/s", "peak MB, largest process", "all processes"]
        base = by_key.get(self.base)
        head += [f"wall, {base.label} = 1", "CPU so"] if base else []
        yield from _table(head, [case.cells(base) for case in self.cases])
        yield ""
        if self.targets:
            yield from _table(["target", "", "measured", ""], [target.cells(by_key) for target in self.targets])
            yield ""


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"


def _wall(a: str, b: str) -> Callable[[dict[str, Case]], float]:
    return lambda cases: ratio(cases[a], cases[b])


def _peak(key: str, of: str = "largest_mb") -> Callable[[dict[str, Case]], float]:
    return lambda cases: max(cases[key].each(of))


@dataclass(frozen=True, slots=True)
class Bench:
    """Makes the traces of a group in a folder, and its cases."""

    folder: Path
    size_mb: float

    def grown(self, sample: Path, name: str, size_mb: float, *options: str) -> Path:
        """A trace grown from a sample, made once."""
        path = self.folder / f"{size_mb:g}mb_{name}"
        if not path.exists():
            part = path.with_name(f"part_{path.name}")
            grow = [sys.executable, HERE / "grow.py", sample, part, f"--size-mb={size_mb}", *options]
            subprocess.run(list(map(str, grow)), check=True, stdout=subprocess.DEVNULL)  # noqa: S603 (ours)
            part.rename(path)
        return path

    def case(self, peer: str, label: str, *arguments: str | Path, size_mb: float = 0, python: str = "") -> Case:
        """A case of `peers.py`, keyed by the peer and its arguments that are no files."""
        key = " ".join([peer, *(a for a in arguments if isinstance(a, str))])
        command = [python or sys.executable, HERE / "peers.py", peer, *arguments]
        return Case(key=key, label=label, command=command, size_mb=size_mb or self.size_mb)

    def elsewhere(self, variable: str, peer: str, label: str, path: Path) -> Case:
        """A case in the Python that a variable names; it says so where there is none."""
        case = self.case(peer, label, path, python=os.environ.get(variable, ""))
        case.failed = "" if os.environ.get(variable) else f"{variable} names no Python with it"
        return case

    def kineto(self) -> Group:
        """One large file."""
        rank0 = KINETO / "rank0.pt.trace.json.gz"
        layouts = ("field-a-line", "classic", "compact")
        of = {n: self.grown(rank0, f"{n}.json.gz", self.size_mb, f"--layout={n}", _A_STEP) for n in layouts}
        plain = self.grown(rank0, "plain.json", self.size_mb, _A_STEP)
        packed = of["field-a-line"]
        cases = [
            self.case("tracegap", "tracegap, one process", "1", packed),
            self.case("tracegap", "tracegap, two processes", "2", packed),
            self.case("tracegap", "the layout of PyTorch 2.0 to 2.9, one process", "1", of["classic"]),
            self.case("tracegap", "one line, one process", "1", of["compact"]),
            self.case("command", "`tracegap ingest` with theory, one process", "1", packed),
            self.case("orjson_loads", "orjson.loads of the plain text", plain),
            self.case("json_load", "json.load of the plain text", plain),
            self.elsewhere("HTA_PYTHON", "hta", "HolisticTraceAnalysis: load, temporal breakdown", packed),
        ]
        cases[2].key, cases[3].key = "classic", "compact"
        ours = "tracegap 1"
        targets = [
            Target("wall time, of orjson.loads", 0.45, _wall(ours, "orjson_loads")),
            Target("times faster than HolisticTraceAnalysis", 15, _wall("hta", ours), at_least=True),
            Target("peak MB, one process", 320, _peak(ours)),
            Target("peak MB, two processes together", 450, _peak("tracegap 2", "sum_mb")),
            Target("times faster with two processes", 1.3, _wall(ours, "tracegap 2"), at_least=True),
        ]
        title = f"Kineto, {self.size_mb:g} MB of text, packed (the text alone is what orjson and json read)"
        return Group(title=title, cases=cases, base="orjson_loads", targets=targets)

    def ranks(self) -> Group:
        """The files of a job."""
        size_mb = round(self.size_mb / 6)
        files = [
            self.grown(KINETO / f"rank{n}.pt.trace.json.gz", f"rank{n}.json.gz", size_mb, _A_STEP) for n in range(RANKS)
        ]
        cases = [
            self.case("tracegap", f"tracegap, {words}", workers, *files, size_mb=RANKS * size_mb)
            for workers, words in (("1", "one process"), ("2", "two processes"))
        ]
        faster = Target("times faster with two processes", 1.6, _wall("tracegap 1", "tracegap 2"), at_least=True)
        title = f"Kineto, {RANKS} ranks of {size_mb} MB"
        return Group(title=title, cases=cases, base="tracegap 1", targets=[faster])

    def evaluation(self) -> Group:
        """What a run should have cost, against reading it."""
        store = self.folder / "evaluation.duckdb"
        files = [
            self.grown(KINETO / f"rank{n}.pt.trace.json.gz", f"rank{n}.json.gz", self.size_mb, _A_STEP)
            for n in range(RANKS)
        ]
        cases = [
            self.case("into", "tracegap reads them, one process", store, *files, size_mb=RANKS * self.size_mb),
            self.case("evaluate", "tracegap evaluates the run", store, size_mb=RANKS * self.size_mb),
        ]
        targets = [
            Target("wall time of evaluating, of reading", 0.5, _wall("evaluate", "into")),
            Target("peak MB of evaluating", 1000, _peak("evaluate")),
        ]
        title = f"Evaluation, {RANKS} ranks of {self.size_mb:g} MB of Kineto text"
        return Group(title=title, cases=cases, base="into", targets=targets)

    def xspace(self) -> Group:
        """A TPU profile against protobuf and XProf."""
        size_mb = round(self.size_mb / 6)
        four = self.grown(XSPACE, "four.xplane.pb", size_mb)
        one = self.grown(XSPACE, "one.xplane.pb", size_mb, "--planes=1")
        cases = [
            self.case("tracegap", "tracegap, four devices", "1", four),
            self.case("protobuf", "protobuf, three fields an event", four),
            self.case("xspace_to_parquet", "XProf's xspace_to_parquet", four),
            self.case("tracegap", "tracegap, one device", "1", one),
            self.case("protobuf", "protobuf, one device", one),
        ]
        cases[3].key, cases[4].key = "one", "protobuf of one"
        for case in cases:
            case.size_mb = size_mb
        targets = [
            Target("wall time, of protobuf", 1.5, _wall("tracegap 1", "protobuf")),
            Target("wall time, of protobuf, one device", 1.5, _wall("one", "protobuf of one")),
            Target("times faster than XProf", 3, _wall("xspace_to_parquet", "tracegap 1"), at_least=True),
        ]
        return Group(title=f"XSpace, {size_mb} MB", cases=cases, base="protobuf", targets=targets)

    def xspace_peak(self) -> Group:
        """Memory that a large TPU profile takes."""
        path = self.grown(XSPACE, "four.xplane.pb", self.size_mb)
        size_mb = path.stat().st_size / MB
        case = self.case("tracegap", "tracegap, four devices", "1", path, size_mb=size_mb)
        peak = Target("peak, of the file's size", 2.5, lambda cases: _peak("tracegap 1")(cases) / size_mb)
        return Group(title=f"XSpace, {self.size_mb:g} MB", cases=[case], base="", targets=[peak])

    def nsys(self) -> Group:
        """An Nsight export against DuckDB's own way to read it."""
        path = self.grown(NSYS, "rank0.sqlite", self.size_mb)
        cases = [
            self.case("tracegap", "tracegap, one process", "1", path),
            self.elsewhere("DUCKDB_SQLITE_PYTHON", "duckdb_sqlite", "DuckDB's extension, the same columns", path),
        ]
        targets = [
            Target("wall time, of DuckDB's extension", 1.5, _wall("tracegap 1", "duckdb_sqlite")),
            Target("peak MB", 450, _peak("tracegap 1")),
        ]
        title = f"Nsight Systems, {self.size_mb:g} MB of SQLite"
        return Group(title=title, cases=cases, base="duckdb_sqlite", targets=targets)

    def large(self) -> Group:
        """How time and memory grow."""
        rank0 = KINETO / "rank0.pt.trace.json.gz"
        cases = []
        for size_mb in (self.size_mb, self.size_mb * 10 / 3, self.size_mb * 10):
            path = self.grown(rank0, "field-a-line.json.gz", size_mb, _A_STEP)
            cases.append(self.case("tracegap", f"tracegap, {size_mb:g} MB", "1", path, size_mb=size_mb))
            cases[-1].key = f"{len(cases)}"
        targets = [
            Target("time of the second, of the first", 3.5, _wall("2", "1")),
            Target("peak MB of the first", 320, _peak("1")),
        ]
        return Group(title="Kineto, growing", cases=cases, base="1", targets=targets)


_BUILT = (Bench.kineto, Bench.ranks, Bench.evaluation, Bench.xspace, Bench.xspace_peak, Bench.nsys, Bench.large)
GROUPS = {f.__name__: f for f in _BUILT}
ONCE = {"xspace_peak"}
"""Measured for its peak alone."""


def machine() -> str:
    """What and when it was measured on, in a line."""
    model = platform.machine()
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        model = found[1] if found else model
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    names = ("duckdb", "numpy", "polars", "orjson", "protobuf", "xprof")
    told = ", ".join(f"{name} {version(name)}" for name in names)
    today = datetime.datetime.now(datetime.UTC).date()
    return (
        f"{today}, {model}, {os.cpu_count()} processors, {memory_gb:.0f} GB, {platform.system()}, Python "
        f"{platform.python_version()}, {told}; load when it began {os.getloadavg()[0]:.1f}."
    )


def put(page: Path, name: str, text: str) -> None:
    """Replaces what stands in a page between the marks of a group."""
    begin, end = f"<!-- bench {name} -->", f"<!-- /bench {name} -->"
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        sys.exit(f"{page} has no {begin} ... {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main(given: Iterable[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all but large unless told")
    parser.add_argument("--size-mb", type=float, default=300, help="of a large file; ranks and XSpace take a sixth")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", type=Path, help="page whose tables are replaced")
    parser.add_argument("--folder", type=Path, help="where the traces are made and left; else a temporary one")
    options = parser.parse_args(given if given is None else list(given))
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.groups or [name for name in GROUPS if name != "large"]:
            measured_on = machine()
            group = GROUPS[name](Bench(folder, options.size_mb))
            runs = 1 if name in ONCE else options.runs
            group.measure(runs)
            text = "\n".join([*group.lines(runs), measured_on])
            print(text + "\n", flush=True)
            if options.write:
                put(options.write, name, text)


if __name__ == "__main__":
    main()

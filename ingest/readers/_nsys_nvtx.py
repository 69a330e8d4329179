"""NVTX: ranges as host events, the steps among them, and what they say of the kernels launched inside."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.classify import aten
from tracegap.ingest.classify.host import host_kind
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers._nsys_db import Database
from tracegap.ingest.trace import STEP_MARKS

Ints = NDArray[np.int64]
PUSH_POP, START_END, DOMAIN_CREATE = 59, 60, 75
_COLUMNS = {
    "start": pl.Int64, "end": pl.Int64, "eventType": pl.Int64, "globalTid": pl.Int64,
    "textId": pl.Int64, "domainId": pl.Int64, "text": pl.String, "jsonTextId": pl.Int64, "jsonText": pl.String,
    "binaryData": pl.Binary,
}  # fmt: skip

_LIBRARY_DOMAIN = re.compile(
    r"(?i)^(nccl|rccl|cccl|cub|thrust|cu(blas|blaslt|dnn|fft|sparse|solver|rand|tensor|file|df|ml)\w*|"
    r"nvshmem|npp|nvjpeg|nvcomp|dali|tensorrt|trt|ucx|libcu\w+|rmm|mpi|openmpi|cusparselt|cask|tsl)$"
)
"""Domains in which libraries mark their own calls: never steps or layers of the program."""
_LIBRARY_RANGE = r"^(nccl[A-Z]|cub::|thrust::|cublas|cudnn|cusparse|cusolver)"
"""Names of such ranges, for files from which the names of domains were cut."""
_FRAMEWORK_OP = r"^aten::|, (seq|op_id) = \d"
"""Names that PyTorch gives to its operators: `aten::mm, seq = 45, op_id = 990, sizes = [[2, 3], [3, 4]]`."""
_HLO_OP = r"^(?:TSL:)?Thunk:#.*?hlo_op=([^,#]+)"
"""Names under which XLA runs an HLO instruction, in its domain TSL: `Thunk:#hlo_op=fusion.3#`."""

_STEP_WORD = (
    r"(?:profilerstep|(?:(?:train|training|global|main|bench|benchmark|inference)[ _.\-:/]*)?(?:step|iteration|iter))"
)
_NUMBERED_STEP = re.compile(rf"(?i)^({_STEP_WORD})[ _#:=.\-(\[]*(\d+)[)\]]?$")
_PLAIN_STEP = re.compile(rf"(?i)^{_STEP_WORD}$")


@dataclass(slots=True)
class Ranges:
    """NVTX ranges of a file that have both ends."""

    frame: pl.DataFrame
    """start, end, eventType, globalTid, name, kind, domain, is_op, is_library, payload columns; a row a range."""
    open: pl.DataFrame
    """The same columns of ranges that were never closed."""
    by_type: dict[str, int]
    """Rows of NVTX_EVENTS by eventType."""
    text_and_id: tuple[int, int]
    """Rows with inline text, rows with a registered string."""


def read_ranges(db: Database, strings: pl.DataFrame, issues: Issues) -> Ranges:
    """All push/pop and start/end ranges, named and classified; those with a bad end are set aside and counted."""
    raw = db.read("NVTX_EVENTS", _COLUMNS, sparse=("jsonTextId", "jsonText", "binaryData"))
    by_type = {str(t): n for t, n in raw["eventType"].value_counts().sort("eventType").iter_rows()}
    text_and_id = len(raw) - raw["text"].null_count(), len(raw) - raw["textId"].null_count()
    names = raw.join(strings, left_on="textId", right_on="id", how="left", maintain_order="left")
    payloads = strings.rename({"value": "json"})
    names = names.join(payloads, left_on="jsonTextId", right_on="id", how="left", maintain_order="left")
    raw = names.with_columns(
        pl.coalesce("text", "value").alias("name"),
        pl.coalesce("jsonText", "json").alias("jsonText"),
        (pl.col("globalTid") // 0x1000000).alias("process"),
    ).drop("text", "value", "json")
    domains = (
        raw.filter(pl.col("eventType") == DOMAIN_CREATE)
        .select("process", "domainId", pl.col("name").alias("domain"))
        .unique(["process", "domainId"], keep="first", maintain_order=True)
    )
    ranges = raw.filter(pl.col("eventType").is_in([PUSH_POP, START_END]))
    ranges = ranges.join(domains, on=["process", "domainId"], how="left", maintain_order="left")
    ranges = _classified(ranges.with_columns(pl.col("name").fill_null("(unnamed range)")))
    no_start = ranges["start"].null_count() + ranges["globalTid"].null_count()
    issues.add(
        "range_without_start", "ranges without a start or a thread were left out", count=no_start, severity="data_loss"
    )
    ranges = ranges.filter(pl.col("start").is_not_null() & pl.col("globalTid").is_not_null())
    is_open, is_negative = pl.col("end").is_null(), pl.col("end") < pl.col("start")
    never_closed, negative = ranges.filter(is_open), ranges.filter(is_negative)
    issues.add(
        "open_range",
        "ranges that were never closed have no length and were set aside",
        where=_first_name(never_closed),
        count=len(never_closed),
    )
    issues.add(
        "negative_range",
        "ranges that end before they start were set aside",
        where=_first_name(negative),
        count=len(negative),
        severity="data_loss",
    )
    return Ranges(ranges.filter(~is_open & ~is_negative), never_closed, by_type, text_and_id)


def _first_name(ranges: pl.DataFrame) -> str:
    return f"NVTX_EVENTS, {ranges['name'][0]!r} at {ranges['start'][0]} ns" if len(ranges) else ""


def _classified(ranges: pl.DataFrame) -> pl.DataFrame:
    """Adds is_library, is_op (a framework's operator), label (an operator's name without its numbers) and kind."""
    domains = ranges["domain"].unique().drop_nulls().to_list()
    libraries = [d for d in domains if _LIBRARY_DOMAIN.match(d)]
    name = pl.col("name")
    by_library = pl.col("domain").is_in(libraries).fill_null(value=False) | name.str.contains(_LIBRARY_RANGE)
    ranges = ranges.with_columns(by_library.alias("is_library"), name.str.extract(_HLO_OP).alias("hlo_op"))
    is_hlo = pl.col("hlo_op").is_not_null()
    ranges = ranges.with_columns(
        pl.col("is_library") & ~is_hlo,
        (is_hlo | (~pl.col("is_library") & name.str.contains(_FRAMEWORK_OP))).alias("is_op"),
    )
    of_pytorch = name.str.splitn(", ", 2).struct.field("field_0")
    ranges = ranges.with_columns(
        pl.when(is_hlo).then("hlo_op").when("is_op").then(of_pytorch).otherwise("name").alias("label")
    )
    kinds = ranges.select("label", "is_op", "is_library", "domain").unique()
    kinds = kinds.with_columns(pl.Series("kind", [_kind(*row) for row in kinds.iter_rows()], dtype=pl.String))
    keys = ["label", "is_op", "is_library", "domain"]
    return ranges.join(kinds, on=keys, how="left", nulls_equal=True, maintain_order="left")


def _kind(label: str, is_op: bool, is_library: bool, domain: str | None) -> str:
    """A kind of host events."""
    if is_library:
        return "collective" if (domain or label).lower().startswith(("nccl", "rccl")) else "other"
    if is_op and label.startswith(("nccl:", "c10d::")):
        return "collective"
    return host_kind(label, "op" if is_op else "nvtx")


# ---------------------------------------------------------------- steps
def step_marks(ranges: Ranges, end_of_file_ns: int, issues: Issues) -> tuple[pl.DataFrame, list[int]]:
    """Marks of the program's steps with their process, and the rows of `ranges.frame` that they are.

    Numbered names (`step 3`, `ProfilerStep#5`) go before a name that repeats (`step`), which is counted from 0 in
    order. Of several families (`iteration`, `step`) the one that covers most time is taken, and in each process the
    thread that has most of it. A last step that was never closed runs to the end of the file.
    """
    closed = ranges.frame.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    opened = ranges.open.with_columns(
        pl.lit(-1, dtype=pl.Int64).alias("row"), pl.lit(end_of_file_ns, dtype=pl.Int64).alias("end")
    )
    candidates = pl.concat([closed, opened.select(closed.columns)]).filter(~pl.col("is_library") & ~pl.col("is_op"))
    candidates = candidates.filter(pl.col("name").str.contains(r"(?i)step|iter"))
    found = [(n, *parsed) for n in candidates["name"].unique() if (parsed := _step_name(n))]
    names = pl.DataFrame(found, schema={"name": pl.String, "family": pl.String, "step": pl.Int64}, orient="row")
    candidates = candidates.join(names, on="name", maintain_order="left").with_columns(
        dur=pl.col("end") - pl.col("start")
    )
    repeats = pl.col("step").is_not_null() | (pl.len().over("family", "globalTid") > 1)
    candidates = candidates.filter(repeats)
    if not len(candidates):
        return _marks([]), []
    families = candidates.group_by("family").agg(pl.col("step").is_not_null().any(), pl.col("dur").sum())
    family = families.sort("step", "dur", "family", descending=[True, True, False])["family"][0]
    candidates = candidates.filter(pl.col("family") == family)
    marks, rows, unclosed = [], [], 0
    for (process,), of_process in candidates.partition_by("process", as_dict=True, maintain_order=True).items():
        threads = (
            of_process.group_by("globalTid").agg(pl.col("dur").sum()).sort("dur", "globalTid", descending=[True, False])
        )
        mine = of_process.filter(pl.col("globalTid") == threads["globalTid"][0]).sort("start", "end")
        numbers = mine["step"]
        if numbers.null_count() or numbers.n_unique() < len(numbers):
            issues.add(
                "steps_counted",
                "step ranges without numbers of their own were numbered from 0 in the order in which they start",
                where=f"range {mine['name'][0]!r}",
                count=len(mine),
            )
            numbers = pl.Series(range(len(mine)), dtype=pl.Int64)
        unclosed += int((mine["row"] < 0).sum())
        rows += [r for r in mine["row"].to_list() if r >= 0]
        marks += [
            (number, None, start, dur, "nvtx", thread_name(tid), process)
            for number, start, dur, tid in zip(numbers, mine["start"], mine["dur"], mine["globalTid"], strict=True)
        ]
    issues.add(
        "open_step",
        "the file ends inside this step: it was cut at the end of the file",
        count=unclosed,
        severity="data_loss",
    )
    return _marks(marks), rows


def _marks(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=STEP_MARKS | {"process": pl.Int64}, orient="row").sort("start_ns")


def _step_name(name: str) -> tuple[str, int | None] | None:
    """Family and number of a range that is named like a step."""
    name = name.strip()
    if numbered := _NUMBERED_STEP.match(name):
        return numbered[1].lower() + " #", int(numbered[2])
    return (name.lower(), None) if _PLAIN_STEP.match(name) else None


def thread_name(global_tid: int) -> str:
    """A host thread as "pid/tid"."""
    return f"{(global_tid >> 24) & 0xFFFFFF}/{global_tid & 0xFFFFFF}"


# ---------------------------------------------------------------- what encloses a launch
@dataclass(frozen=True, slots=True)
class Enclosing:
    """The ranges around launches, as rows of the host events (-1: none), one entry a launch."""

    op: Ints
    """The innermost framework operator of which a formula is known; without one the innermost."""
    library: Ints
    """The innermost library call (NCCL's, say)."""
    module: list[str | None]
    """Names of the other ranges that are no steps, outermost first, joined by "/"."""


def enclosing(events: pl.DataFrame, parents: Ints, launches: Ints, steps: list[int]) -> Enclosing:
    """What encloses each of the host events `launches` (-1: not in the file).

    `events` has label, is_op and is_library (nulls where the event is no range); `parents` are its enclosers, -1 at the
    top; `steps` are rows of step ranges.
    """
    is_op = events["is_op"].fill_null(value=False).to_numpy()
    operators = events.filter("is_op")["label"].unique().to_list()
    has_formula = events["label"].is_in([n for n in operators if _has_formula(n)]).fill_null(value=False).to_numpy()
    op = _innermost(parents, launches, is_op & has_formula)
    is_library = events["is_library"].fill_null(value=False).to_numpy()
    is_module = events["is_op"].is_not_null().to_numpy() & ~is_op & ~is_library
    is_module[steps] = False
    modules = _innermost(parents, launches, is_module)
    paths: dict[int, str | None] = {-1: None}
    labels = events["label"]

    def path(row: int) -> str | None:
        if row not in paths:
            outer = path(int(_innermost(parents, parents[row : row + 1], is_module)[0]))
            paths[row] = labels[row] if outer is None else f"{outer}/{labels[row]}"
        return paths[row]

    return Enclosing(
        np.where(op >= 0, op, _innermost(parents, launches, is_op)),
        _innermost(parents, launches, is_library),
        [path(row) for row in modules.tolist()],
    )


def _has_formula(operator: str) -> bool:
    """Whether an operator's work is known by its name: no wrapper, view or autograd node."""
    structure = aten.is_wrapper(operator) or aten.is_view(operator)
    return not structure and aten.describe(operator, None, None).op_class is not None


def _innermost(parents: Ints, rows: Ints, wanted: NDArray[np.bool_]) -> Ints:
    """For each row itself or the nearest encloser that is wanted, -1 where there is none."""
    found = np.full(len(rows), -1, dtype=np.int64)
    pending = np.flatnonzero(rows >= 0)
    at = rows[pending]
    while len(pending):
        hit = wanted[at]
        found[pending[hit]] = at[hit]
        pending, at = pending[~hit], parents[at[~hit]]
        pending, at = pending[at >= 0], at[at >= 0]
    return found

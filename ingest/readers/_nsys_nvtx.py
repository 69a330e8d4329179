"""NVTX: what the ranges of a file are called and mean, the steps among them, and what they say of kernels inside."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.classify import aten
from tracegap.ingest.classify.host import host_kind
from tracegap.ingest.issues import Issues
from tracegap.ingest.readers._nsys_export import ROW, Export
from tracegap.ingest.readers._nsys_host import Host, Spans, coded, recoded
from tracegap.ingest.trace import STEP_MARKS

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
NVTX = "NVTX_EVENTS"
PUSH_POP, START_END, DOMAIN_CREATE = 59, 60, 75
_COLUMNS = dict.fromkeys(("start", "end", "eventType", "globalTid", "textId", "domainId"), pl.Int64) | {
    "text": pl.String
}
_DESCRIBED_BY = ["eventType", "globalTid", "textId", "domainId", "text"]
_NUMBER = r", (?:seq = \d+, op_id|op_id|seq) = \d+"
_INPUTS = ", input_op_ids = "
_NUMBERS = rf"{_NUMBER}|{_INPUTS}.*"
"""What differs from one call of an operator to the next in the names that PyTorch gives to its ranges."""

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

    spans: Spans
    """A row a range; `keys` has eventType, globalTid, name, label, kind, domain, is_op, is_library."""
    row_ids: NDArray[Any]
    """Number of each range in the table."""
    open: pl.DataFrame
    """name, label, start, globalTid, is_op, is_library of ranges that were never closed."""
    by_type: dict[str, int]
    """Rows of NVTX_EVENTS by eventType."""
    text_and_id: tuple[int, int]
    """Rows with inline text, rows with a registered string."""


@dataclass(slots=True)
class _Batch:
    """Some rows of the table, with what the ranges have in common said once."""

    sound: tuple[pl.DataFrame, pl.DataFrame]
    """start, end, ROW, KEY; and the keys."""
    unsound: pl.DataFrame
    domains: pl.DataFrame
    by_type: pl.DataFrame
    text_and_id: tuple[int, int]


def _batch(raw: pl.DataFrame, texts: pl.Categorical) -> _Batch:
    """Sorts rows of the table; `texts` are the categories of all batches."""
    text = raw["text"]
    if text.str.contains(_INPUTS, literal=True).any():
        text = text.str.replace_all(_NUMBERS, ", op_id = 0")
    else:  # to look no further than the first number is a third faster; who has several is told when all are named
        text = text.str.replace(_NUMBER, ", op_id = 0")
    raw = raw.with_columns(text.cast(texts))
    row_ids = raw[ROW]
    if len(row_ids) and row_ids.is_between(0, (1 << 32) - 1).all():
        raw = raw.with_columns(pl.col(ROW).cast(pl.UInt32))
    ranges = raw.filter(pl.col("eventType").is_in([PUSH_POP, START_END]))
    whole = pl.col("start").is_not_null() & pl.col("globalTid").is_not_null() & (pl.col("end") >= pl.col("start"))
    whole = whole.fill_null(value=False)
    return _Batch(
        coded(ranges.filter(whole), _DESCRIBED_BY),
        ranges.filter(~whole).drop(ROW),
        raw.filter(pl.col("eventType") == DOMAIN_CREATE).select("globalTid", "domainId", "text", "textId"),
        raw["eventType"].value_counts(),
        (len(raw) - raw["text"].null_count(), len(raw) - raw["textId"].null_count()),
    )


def read_ranges(db: Export, strings: pl.DataFrame, issues: Issues) -> Ranges:
    """All push/pop and start/end ranges, named and classified; those with a bad end are set aside and counted."""
    texts = pl.Categorical(pl.Categories.random())
    batches = [_batch(pl.DataFrame(schema=_COLUMNS | {ROW: pl.Int64}), texts)]
    batches += db.batches(NVTX, _COLUMNS, lambda raw: _batch(raw, texts), numbered=True)
    counts = pl.concat([b.by_type for b in batches]).group_by("eventType").agg(pl.col("count").sum()).sort("eventType")
    domains = _named(pl.concat([b.domains for b in batches]), strings)
    domains = domains.select("process", "domainId", domain="name")
    domains = domains.unique(["process", "domainId"], keep="first", maintain_order=True)

    def described(ranges: pl.DataFrame) -> pl.DataFrame:
        ranges = _named(ranges, strings).with_columns(pl.col("name").fill_null("(unnamed range)"))
        return _classified(ranges.join(domains, on=["process", "domainId"], how="left", maintain_order="left"))

    never_closed = _report(described(pl.concat([b.unsound for b in batches])), issues)
    sound, keys = recoded([b.sound for b in batches])
    return Ranges(
        Spans.of(sound, described(keys)),
        sound[ROW].to_numpy(),
        never_closed,
        {str(t): n for t, n in counts.iter_rows()},
        (sum(b.text_and_id[0] for b in batches), sum(b.text_and_id[1] for b in batches)),
    )


def _named(rows: pl.DataFrame, strings: pl.DataFrame) -> pl.DataFrame:
    """Adds name and process: the name is the inline text, without its numbers, else the registered one."""
    named = rows.join(strings, left_on="textId", right_on="id", how="left", maintain_order="left")
    return named.with_columns(
        pl.coalesce(pl.col("text").cast(pl.String).str.replace_all(_NUMBERS, ", op_id = 0"), "value").alias("name"),
        (pl.col("globalTid") // 0x1000000).alias("process"),
    ).drop("text", "value")


def _report(unsound: pl.DataFrame, issues: Issues) -> pl.DataFrame:
    """Counts ranges without a whole span; returns those that were never closed."""
    placed = pl.col("start").is_not_null() & pl.col("globalTid").is_not_null()
    is_open, is_negative = placed & pl.col("end").is_null(), placed & (pl.col("end") < pl.col("start"))
    never_closed, negative = unsound.filter(is_open), unsound.filter(is_negative)
    for code, found, message in (
        ("range_without_start", unsound.filter(~placed), "ranges without a start or a thread were left out"),
        ("open_range", never_closed, "ranges that were never closed have no length and were set aside"),
        ("negative_range", negative, "ranges that end before they start were set aside"),
    ):
        where = f"{NVTX}, {found['name'][0]!r} at {found['start'][0]} ns" if len(found) else ""
        severity = "info" if code == "open_range" else "data_loss"
        issues.add(code, message, where=where, count=len(found), severity=severity)  # type: ignore[arg-type]
    return never_closed


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
def step_marks(
    ranges: Ranges, threads: dict[int, str], end_of_file_ns: int, issues: Issues
) -> tuple[pl.DataFrame, list[int]]:
    """Marks of the program's steps with their process, and the rows of `ranges.spans` that they are.

    Numbered names (`step 3`, `ProfilerStep#5`) go before a name that repeats (`step`), which is counted from 0 in
    order. Of several families (`iteration`, `step`) the one that covers most time is taken, and in each process the
    thread that has most of it. A last step that was never closed runs to the end of the file.
    """
    of_program = ~pl.col("is_library") & ~pl.col("is_op")
    closed = ranges.spans.where(of_program & pl.col("name").str.contains(r"(?i)step|iter"))
    opened = ranges.open.with_columns(
        pl.lit(-1, dtype=pl.Int64).alias("row"), pl.lit(end_of_file_ns, dtype=pl.Int64).alias("end")
    )
    columns = ["row", "start", "end", "name", "globalTid", "process"]
    candidates = pl.concat([closed.select(columns), opened.filter(of_program).select(columns)])
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
        by_time = (
            of_process.group_by("globalTid").agg(pl.col("dur").sum()).sort("dur", "globalTid", descending=[True, False])
        )
        mine = of_process.filter(pl.col("globalTid") == by_time["globalTid"][0]).sort("start", "end")
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
            (number, None, start, dur, "nvtx", threads[tid], process)
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


# ---------------------------------------------------------------- what encloses a launch
@dataclass(frozen=True, slots=True)
class Enclosing:
    """The ranges around launches, as rows of the host events (-1: none), one entry a launch."""

    op: NDArray[Any]
    """The innermost framework operator of which a formula is known; without one the innermost."""
    library: NDArray[Any]
    """The innermost library call (NCCL's, say)."""
    module: NDArray[Any]
    """The path of the other ranges that are no steps, as an index into `paths`."""
    paths: list[str | None]
    """Names of such ranges, outermost first, joined by "/"."""


def enclosing(host: Host, launches: Ints, steps: list[int]) -> Enclosing:
    """What encloses each of the host events `launches` (-1: not in the file); `steps` are rows of step ranges."""
    keys = host.spans.keys
    is_op, is_library = keys["is_op"].to_numpy(), keys["is_library"].to_numpy()
    formulas = {n: _has_formula(n) for n in keys.filter("is_op")["label"].unique()}
    has_formula = np.array([o and formulas[n] for n, o in zip(keys["label"], is_op, strict=True)], np.bool_)
    of_key = keys["is_range"].to_numpy() & ~is_op & ~is_library
    is_step = np.zeros(len(host.spans.key), np.bool_)
    is_step[steps] = True

    def innermost(rows: Ints, wanted: Bools) -> Ints:
        """For each row itself or the nearest encloser whose key is wanted, -1 where there is none."""
        found = np.full(len(rows), -1, dtype=np.int64)
        pending = np.flatnonzero(rows >= 0)
        at = rows[pending]
        while len(pending):
            hit = wanted[host.spans.key[at]]
            if wanted is of_key:
                hit &= ~is_step[at]
            found[pending[hit]] = at[hit]
            pending, at = pending[~hit], host.parent[at[~hit]].astype(np.int64)
            pending, at = pending[at >= 0], at[at >= 0]
        return found

    op = innermost(launches, is_op & has_formula)
    rows, module = np.unique(innermost(launches, of_key), return_inverse=True)
    levels = []  # modules around launches, then those around them, ...
    around = rows[rows >= 0]
    while len(around):
        outer = innermost(host.parent[around].astype(np.int64), of_key)
        levels.append((around, outer))
        around = np.unique(outer[outer >= 0])
    path_of: dict[int, str] = {}
    labels = keys["label"].to_list()
    for inner, outer in reversed(levels):
        for row, parent in zip(inner.tolist(), outer.tolist(), strict=True):
            label = labels[host.spans.key[row]]
            path_of[row] = label if parent < 0 else f"{path_of[parent]}/{label}"
    op = np.where(op >= 0, op, innermost(launches, is_op))
    library = innermost(launches, is_library)
    width = host.parent.dtype
    return Enclosing(
        op.astype(width), library.astype(width), module.astype(width), [path_of.get(row) for row in rows.tolist()]
    )


def _has_formula(operator: str) -> bool:
    """Whether an operator's work is known by its name: no wrapper, view or autograd node."""
    structure = aten.is_wrapper(operator) or aten.is_view(operator)
    return not structure and aten.describe(operator, None, None).op_class is not None

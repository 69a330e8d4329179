"""What lay in device memory at its peak: pieces by when they were handed out, and by what asked for them."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracegap.ingest.innermost import NONE, Innermost
from tracegap.ingest.intervals import Ints
from tracegap.reports.host_spans import HostSpans

Mask = NDArray[np.bool_]

BEFORE, EARLIER, RECORDING = "before_recording", "earlier_steps", "recording"
PHASES = (
    ("optimizer", re.compile(r"^Optimizer\.|(?i:(?<![a-z])optimizer_?step(?![a-z]))")),
    (
        "backward",
        re.compile(
            r"^autograd::engine::evaluate_function|Backward\d*$|(?i:(?<![a-z])backward(?![a-z]))|(?:^|/)gradient_tape/"
        ),
    ),
)
"""Phases of a step by the name of a span around an allocation, first wins (torch/optim/optimizer.py names its steps,
torch/csrc/autograd/engine.cpp the nodes of the backward pass, TensorFlow's tape its operations)."""
_KINDS = {"input": ("input",), "communication": ("collective",), "forward": ("op", "module")}
"""Phases by the kind of a span around it, after those."""
_MODULE = "nn.Module: "
MOST_NAMES = 8
"""Names told apart in each part."""
PARTS = (BEFORE, EARLIER, *(name for name, _ in PHASES), *_KINDS, RECORDING)
"""Parts of what is in use, by when it was handed out."""
_NUMBERED = re.compile(r"_\d+$")
_OPEN = np.iinfo(np.int64).max


def lifetimes(address: Ints, size: Ints) -> Ints:
    """For each event that hands a piece out the number of the event that ends it; -1 for the others.

    A piece ends when its address is given back or handed out anew (its release was lost); the largest number where it
    never ends. Events come in order of time.
    """
    order = np.argsort(address, kind="stable")
    same = address[order][1:] == address[order][:-1]
    ends = np.full(len(order), _OPEN, dtype=np.int64)
    ends[order[:-1]] = np.where(same, order[1:], _OPEN)
    return np.where(size > 0, ends, -1)


def alive(ends: Ints, at: int) -> Ints:
    """The events whose pieces are in use after event `at`."""
    return np.flatnonzero((np.arange(len(ends)) <= at) & (ends > at))


@dataclass(frozen=True, slots=True)
class Asked:
    """What asked for each piece of memory."""

    phase: Ints
    """Index into PARTS: a phase, or `recording` where nothing around it tells."""
    name: pl.Series
    """Module without its running number, else operator, else what the event itself says; null = not known."""
    operator: pl.Series
    """Operator where the name is a module."""


def asked(events: pl.DataFrame, host: HostSpans) -> Asked:
    """Phases and names of memory events (thread, ts_ns, name) by the host spans around them."""
    phases = [name for name, _ in PHASES] + list(_KINDS)
    phase = np.full(len(events), PARTS.index(RECORDING), dtype=np.int64)
    module, operator = (np.full(len(events), NONE, dtype=np.int64) for _ in range(2))
    flags = _flags(host)
    for name, pattern in reversed(PHASES):
        said = events["name"].fill_null("").unique()
        named = said.filter(pl.Series([bool(pattern.search(n)) for n in said], dtype=pl.Boolean))
        phase[events["name"].is_in(named.implode()).fill_null(value=False).to_numpy()] = PARTS.index(name)
    end = host.end_ns
    spans = host.spans.with_columns(end_ns=pl.Series(end))
    on_thread = spans.partition_by("thread", as_dict=True)
    for (thread,), mine in events.with_row_index("row").partition_by("thread", as_dict=True).items():
        if (thread,) not in on_thread:
            continue
        around = on_thread[thread,]
        tree = Innermost.of(around["start_ns"].to_numpy(), around["end_ns"].to_numpy())
        label = around["label"].cast(pl.Int64).to_numpy()[tree.order]
        at, rows = tree.at(mine["ts_ns"].to_numpy()), mine["row"].to_numpy()
        for number in reversed(range(len(phases))):
            inside = np.append(tree.nearest(flags[phases[number]][label]), NONE)[at] >= 0
            phase[rows[inside]] = PARTS.index(phases[number])
        labels = np.append(label, NONE)
        module[rows] = labels[np.append(tree.nearest(flags["module"][label]), NONE)[at]]
        top = np.append(tree.outermost_of_chain(flags["aten"][label]), NONE)
        operator[rows] = labels[top[np.append(tree.nearest(flags["op"][label]), NONE)[at]]]
    names = pl.Series([*map(_plain, host.names), None], dtype=pl.String)
    of_module, of_operator = (names.gather(np.where(x < 0, len(names) - 1, x)) for x in (module, operator))
    known = of_module.is_not_null()
    return Asked(
        phase=phase,
        name=of_module.zip_with(known, of_operator).zip_with(events["name"].is_null(), events["name"]),
        operator=of_operator.zip_with(known, pl.Series([None] * len(events), dtype=pl.String)),
    )


def _plain(name: str) -> str:
    """A module without the number of its instance; other names as they are."""
    return _NUMBERED.sub("", name.removeprefix(_MODULE)) if name.startswith(_MODULE) else name


def _flags(host: HostSpans) -> dict[str, Mask]:
    """By label: whether it belongs to a phase, is a module, an operator, an ATen operator."""
    kind = np.array(host.kinds, dtype=np.object_)
    flags = {name: np.array([bool(p.search(n)) for n in host.names], dtype=np.bool_) for name, p in PHASES}
    flags |= {name: np.isin(kind, kinds).astype(np.bool_) for name, kinds in _KINDS.items()}
    flags["module"], flags["op"] = (kind == "module").astype(np.bool_), (kind == "op").astype(np.bool_)
    flags["aten"] = np.array([n.startswith("aten::") for n in host.names], dtype=np.bool_)
    return flags


def parts_at(
    at: int, ends: Ints, events: pl.DataFrame, why: Asked, step_begin_ns: int | None, *, named: bool
) -> list[dict[str, Any]]:
    """What is in use after event `at`: rows of part, name, operator, bytes, detail.

    Those without detail add up to the total; those with it, which are there where it is `named`, to their part.

    Args:
        at: number of the event; its allocated_bytes are the total.
        ends: as `lifetimes`.
        events: ts_ns, bytes, allocated_bytes.
        why: what asked for each.
        step_begin_ns: pieces from before are of earlier steps; None: there are no steps.
        named: whether parts are told by name too.
    """
    rows = alive(ends, at)
    size, when = events["bytes"].to_numpy()[rows], events["ts_ns"].to_numpy()[rows]
    part = np.where(when < (step_begin_ns or 0), PARTS.index(EARLIER), why.phase[rows])
    sums = np.bincount(part, weights=size, minlength=len(PARTS)).astype(np.int64)  # exact: below 2^53 bytes
    sums[PARTS.index(BEFORE)] = int(events["allocated_bytes"][at]) - int(size.sum())
    found: list[dict[str, Any]] = [
        {"part": name, "bytes": int(total)} for name, total in zip(PARTS, sums.tolist(), strict=True) if total
    ]
    if not named:
        return found
    live = pl.DataFrame(
        {
            "part": pl.Series(PARTS).gather(part),
            "name": why.name.gather(pl.Series(rows)),
            "operator": why.operator.gather(pl.Series(rows)),
            "bytes": size,
        }
    )
    by_name = live.group_by("part", "name", "operator").agg(pl.col("bytes").sum())
    by_name = by_name.sort(["bytes", "part", "name", "operator"], descending=[True, False, False, False])
    own = pl.col("name").is_not_null()
    first = own & (own.cast(pl.Int64).cum_sum().over("part") <= MOST_NAMES)
    by_name = by_name.with_columns(pl.when(first).then(c).alias(c) for c in ("name", "operator"))
    by_name = by_name.group_by("part", "name", "operator", maintain_order=True).agg(pl.col("bytes").sum())
    told = by_name.filter(pl.col("name").is_not_null().any().over("part"))
    return found + [row | {"detail": True} for row in told.to_dicts()]

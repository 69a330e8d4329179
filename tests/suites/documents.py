"""Keys of cases that hold no traces but documents: a model and a run, or the nights of a job. And pairs of runs."""

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.suites.measures import in_form, measure
from tests.suites.subject import Subject

from tracegap.models import datasheet, transformer, utilisation
from tracegap.models.units import NS_PER_S
from tracegap.reports import nightly_verdict, operation_changes, sides


class Described:
    """A model, and its run on a part."""

    def __init__(self, folder: Path) -> None:
        self.run, self.sheet, model = (
            json.loads((folder / f"{name}.json").read_text()) for name in ("run", "datasheet", "model")
        )
        self.model = transformer.Model(**model, seq=self.run["seq"], dtype=self.run["dtype"])
        self.tokens = self.run["batch"] * self.run["seq"]

    @cached_property
    def forward(self) -> transformer.ForwardFlops:
        return transformer.forward_flops(self.model, self.tokens)

    @cached_property
    def step_flops(self) -> int:
        return transformer.train_flops(self.model, self.tokens)

    @cached_property
    def peak_flops(self) -> float:
        peak = datasheet.dense_flops_per_s(self.sheet, self.run["dtype"])
        assert peak is not None, self.run["dtype"]
        return peak * self.run.get("gpus", 1)


@measure("linear_flops_forward")
def linear_flops_forward(s: Subject) -> int:
    return Described(s.folder).forward.linear


@measure("attention_flops_forward")
def attention_flops_forward(s: Subject) -> int:
    return Described(s.folder).forward.attention


@measure("flops_forward")
def flops_forward(s: Subject) -> int:
    return Described(s.folder).forward.total


@measure("flops_step")
def flops_step(s: Subject) -> int:
    return Described(s.folder).step_flops


@measure("peak_flops")
def peak_flops(s: Subject) -> float:
    return Described(s.folder).peak_flops


@measure("mfu")
def mfu(s: Subject) -> float:
    described = Described(s.folder)
    rate = described.step_flops / (described.run["step_ns"] / NS_PER_S)
    return utilisation.mfu_of_rate(achieved_flops_per_s=rate, peak_flops_per_s=described.peak_flops)


@measure("verdict", "baseline_ms", "tonight_ms", "change", "suspect_nights")
def night(s: Subject, expected: Any, key: str) -> Any:
    """Of the part of history.json that is asked for."""
    history = json.loads((s.folder / "history.json").read_text())
    history = history if s.part is None else history[s.part]
    found = getattr(nightly_verdict.judge(history["nights_ms"], history["tonight_steps_ms"]), key)
    return list(found) if isinstance(found, tuple) else found


@measure("nights")
def nights(s: Subject) -> int:
    """Runs in the store."""
    return s.con.execute("select count(*) from runs").fetchall()[0][0]


@measure("kernels_after_failed_try")
def kernels_after_failed_try(s: Subject) -> int:
    """Rows in the store that belong to no trace in it."""
    return s.con.execute("select count(*) from ops anti join traces using (trace_id)").fetchall()[0][0]


# ---------------------------------------------------------------------------------------------- two runs

BEFORE = re.compile(r"(?:before|base|baseline|old|first|mon|a|1)(?![a-z0-9])")
"""How the input begins that is the first of two runs."""


def change(s: Subject) -> list[dict[str, Any]]:
    """Groups of operations of two runs with their difference."""
    runs = sorted(s.results, key=lambda r: not BEFORE.match(str(Path(r.path).relative_to(s.folder))))
    before, after = dict.fromkeys(r.run_id for r in runs if r.run_id is not None)
    sides.load(s.con, [sides.Selection(run_id=before), sides.Selection(run_id=after)])
    return [c.as_dict() for c in operation_changes.changes(s.con, 0, 1)]


def names(groups: list[dict[str, Any]], expected: Any) -> Any:
    return in_form(sorted(g["operation"] for g in groups), expected)


@measure("groups")
def groups(s: Subject, expected: Any) -> Any:
    return names(change(s), expected)


@measure("added")
def added(s: Subject, expected: Any) -> Any:
    return names([g for g in change(s) if g["change"] == "new"], expected)


@measure("removed")
def removed(s: Subject, expected: Any) -> Any:
    return names([g for g in change(s) if g["change"] == "gone"], expected)


@measure("changed_groups")
def changed_groups(s: Subject, expected: Any) -> Any:
    return names([g for g in change(s) if g["change"] not in ("new", "gone") and g["delta_ns"]], expected)


@measure("worst")
def worst(s: Subject) -> str:
    """The group that lost the most time."""
    return max(change(s), key=lambda g: g["delta_ns"])["operation"]

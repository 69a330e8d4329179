"""The typical step of a run beside what the plan of its model and mesh predicts: the one that `tracegap plan` makes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.models.errors import TracegapError
from tracegap.models.plan import Plan
from tracegap.reports import run_plan
from tracegap.reports.stage import Run

ORDER = 60
TABLES = ("run_theory",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of run_theory."""

    quantity: str
    unit: str
    note: str
    axis: str | None = None
    measured: float | None = None
    predicted: float | None = None
    least: float | None = None

    def values(self) -> dict[str, Any]:
        """With the ratio."""
        ratio = self.measured / self.predicted if self.measured is not None and self.predicted else None
        return {name: getattr(self, name) for name in self.__slots__} | {"ratio_frac": ratio}


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills run_theory; of a run without a step nothing."""
    step = run_plan.typical_step(con, run)
    if step is not None:
        rows = [row.values() | {"run_id": run.run_id} for row in compared(con, run, step)]
        schema: dict[str, Any] = {
            "quantity": pl.String,
            "unit": pl.String,
            "note": pl.String,
            "axis": pl.String,
            "run_id": pl.String,
        }
        numbers = dict.fromkeys(("measured", "predicted", "least", "ratio_frac"), pl.Float64)
        store.insert(con, "run_theory", pl.DataFrame(rows, schema=schema | numbers))


def compared(con: duckdb.DuckDBPyConnection, run: Run, step: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of a run."""
    try:
        found, sent = run_plan.plan_of(con, run, step, run_plan.collectives(con, run))
    except TracegapError as e:
        yield Row(quantity="step", unit="ns", measured=step["step_ns"], note=f"not predicted: {e}")
        return
    yield from _of_step(found.plan, step, found.words)
    yield _of_memory(con, run, found.plan)
    yield from _of_axes(found.plan, sent)


def _of_step(plan: Plan, step: Mapping[str, Any], words: str) -> Iterator[Row]:
    """Rows that are of no axis."""
    yield Row(
        quantity="step",
        unit="ns",
        measured=step["step_ns"],
        predicted=plan.predicted_ns,
        least=plan.lower_ns,
        note=words,
    )
    optimizer = step["optimizer_ns"]
    busy = step["compute_ns"] - (optimizer or 0)
    yield Row(
        quantity="compute", unit="ns", measured=busy, predicted=max(plan.compute_ns / plan.reachable_share, plan.hbm_ns),
        least=max(plan.compute_ns, plan.hbm_ns),
        note=f"without the optimizer's; predicted at {plan.reachable_share:.0%} of the peak, the best that is published for "
        "matrix products of this part" if plan.reachable_share < 1 else "without the optimizer's; predicted at the peak",
    )  # fmt: skip
    seen = optimizer is not None
    yield Row(
        quantity="optimizer", unit="ns", measured=optimizer, predicted=plan.optimizer_ns, least=plan.optimizer_ns,
        note="bytes of the states at the rate of the memory" if seen else "no operation was recognised as the optimizer's",
    )  # fmt: skip
    if plan.bubble_ns:
        yield Row(
            quantity="bubble", unit="ns", measured=step["idle_pipeline_ns"], predicted=plan.bubble_ns / plan.reachable_share,
            least=plan.bubble_ns, note=f"waiting for other stages; {plan.microbatches} microbatches",
        )  # fmt: skip
    yield Row(
        quantity="exposed_communication", unit="ns", measured=step["exposed_comm_ns"],
        predicted=sum(item.exposed_ns for item in plan.traffic), note="measured with waiting for late ranks",
    )  # fmt: skip
    # Scores that fused attention computes again in its backward pass are in what was done, but in no plan
    done = step["matrix_flops"]
    yield Row(
        quantity="matrix_flops", unit="flops", predicted=plan.flops_per_device,
        measured=None if done is None else done - (step["recomputed_flops"] - step["again_flops"]),
        note="no matrix product has known FLOPs" if done is None
        else "done, padding and checkpoints included, without the scores that fused attention computes again"
        + ("" if step["modelled_share_frac"] > 0.9995 else f"; cost known for {step['modelled_share_frac']:.1%} of compute"),
    )  # fmt: skip
    yield Row(
        quantity="mfu", unit="frac", measured=step["mfu"], predicted=plan.mfu,
        note=step["mfu_note"] or "not joined with theory",
    )  # fmt: skip


def _of_memory(con: duckdb.DuckDBPyConnection, run: Run, plan: Plan) -> Row:
    """The most that was in use on a device beside what the fullest needs."""
    ((measured,),) = con.execute(
        "select max(bytes) from memory join traces using (trace_id) where run_id = ? and part = 'peak_allocated'",
        [run.run_id],
    ).fetchall()
    note = "of the fullest device" + ("" if measured else "; not measured: the traces hold no memory events")
    return Row(
        quantity="memory",
        unit="bytes",
        measured=measured,
        predicted=plan.memory.total,
        least=plan.memory.states,
        note=note,
    )


def _of_axes(plan: Plan, sent: Mapping[str, run_plan.Sent]) -> Iterator[Row]:
    """Rows of communication, axis by axis."""
    planned = {item.axis: [one for one in plan.traffic if one.axis == item.axis] for item in plan.traffic}
    unclear = run_plan.UNKNOWN_AXIS in sent
    for axis in dict.fromkeys((*planned, *sent)):
        seen, items = sent.get(axis), planned.get(axis, [])
        kinds = ", ".join(dict.fromkeys(str(item.collective.value) for item in items)) or "nothing"
        note = f"the plan sends {kinds}"
        if seen is None:
            note += "; none of it was found in the traces" + (", where some groups are unknown" if unclear else "")
        else:
            note += f"; the traces have {', '.join(sorted(seen.kinds))}"
            note += ", waiting included, which could not be told apart" if seen.waits else ", waiting left out"
            note += "; one that runs beside others takes longer than alone"
        missing = None if unclear else 0.0
        predicted = None if axis == run_plan.UNKNOWN_AXIS else float(sum(item.total_ns for item in items))
        yield Row(
            quantity="communication", axis=axis, unit="ns", measured=seen.transfer_ns if seen else missing,
            predicted=predicted, note=note,
        )  # fmt: skip
        yield Row(
            quantity="collective_bytes", axis=axis, unit="bytes", measured=seen.message_bytes if seen else missing,
            predicted=None if predicted is None else sum(item.calls * item.message_bytes for item in items),
            note="sizes as nccl-tests count them",
        )  # fmt: skip

"""Model FLOPs of each step, and the peak that MFU is taken against."""

from typing import Any

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.models import transformer
from tracegap.models.errors import TracegapError
from tracegap.reports import planning
from tracegap.reports.stage import Run

ORDER = 50
TABLES = ("step_theory",)


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Model FLOPs of a step on one device, and the peak of the dtype that does most of the matrix arithmetic."""
    devices = con.execute(
        """
        with used as (
            select o.trace_id, o.device_id, o.dtype, p.flops_per_s,
                   row_number() over (partition by o.trace_id, o.device_id order by sum(o.flops) desc, o.dtype) as place
            from ops o join traces t using (trace_id)
            left join peaks p on p.trace_id = o.trace_id and p.device_id = o.device_id
                             and p.unit = 'matrix' and p.dtype = o.dtype
            where t.run_id = ? and o.op_class in ('matmul', 'attention', 'convolution') and o.flops > 0
            group by o.trace_id, o.device_id, o.dtype, p.flops_per_s
        )
        select d.trace_id, d.device_id, u.dtype, u.flops_per_s
        from devices d join traces t using (trace_id)
        left join used u on u.trace_id = d.trace_id and u.device_id = d.device_id and u.place = 1
        where t.run_id = ?
        """,
        [run.run_id, run.run_id],
    ).fetchall()
    count = (
        run.world_size
        or con.execute(
            "select count(*) from (select distinct trace_id, device_id from steps where run_id = ?)", [run.run_id]
        ).fetchall()[0][0]
    )
    total, note = _model_flops(run.model, run.tokens_per_step)
    per_device = round(total / count) if total is not None and count else None
    rows = [
        {
            "trace_id": trace_id,
            "device_id": device_id,
            "model_flops": per_device,
            "peak_flops_per_s": peak,
            "mfu_dtype": dtype,
            "mfu_note": note
            if peak
            else f"{note}; no peak of this part for dtype {dtype or '(no matrix product with known FLOPs)'}",
        }
        for trace_id, device_id, dtype, peak in devices
    ]
    schema = {
        "trace_id": pl.String, "device_id": pl.String, "model_flops": pl.Int64, "peak_flops_per_s": pl.Float64,
        "mfu_dtype": pl.String, "mfu_note": pl.String,
    }  # fmt: skip
    steps = store.frame_of(con, "select trace_id, device_id, step, source from steps where run_id = ?", [run.run_id])
    joined = steps.join(pl.DataFrame(rows, schema=schema), on=["trace_id", "device_id"])
    unmarked = pl.col("source").is_in(["whole_trace", "inferred"])
    store.insert(
        con,
        "step_theory",
        joined.with_columns(
            model_flops=pl.when(~unmarked).then("model_flops"),
            mfu_note=pl.when(unmarked & pl.col("model_flops").is_not_null())
            .then(pl.lit("no MFU: no step is marked, and what stands for one may be more or less than a step"))
            .otherwise("mfu_note"),
        ).drop("source"),
    )


def _model_flops(model: dict[str, Any] | None, tokens: int | None) -> tuple[int | None, str]:
    """FLOPs of one training step over all ranks by the description of the model, and the convention or the reason."""
    if model is None:
        return None, "no MFU: the model is not described; add [model] and tokens_per_step to manifest.toml"
    if tokens is None:
        return None, "no MFU: tokens_per_step is not in the manifest"
    try:
        config = planning.model_of(model)
    except TracegapError as e:
        return None, f"no MFU: {e}"
    mask = "causal attention (half)" if config.causal else "full attention"
    return round(transformer.train_flops(config, tokens)), f"matrix products only, {mask}, no recomputation, no look-up"

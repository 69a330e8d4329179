"""Chains of memory-bound kernels that hand tensors to each other through device memory."""

import json
from math import prod

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.reports.finding import Rule

_MEMORY_BOUND = ("elementwise", "reduction", "normalization", "softmax", "data_movement")
_HANDS_ON = ("elementwise", "normalization", "softmax", "data_movement")
"""Classes whose output is as large as their largest input."""
_SQL = f"""
select unit, trace_id, device_id, step, stream, operation, shapes, share_ns, min_ns, memory_bound_ns, bytes,
       greatest(kernel_inefficiency_ns, 0) as slow_ns,
       op_class in {_MEMORY_BOUND} and modelled and cut_ns = dur_ns and dur_ns >= 0.9 * min_ns and bytes > 0
           and shapes <> '' and device_kind = 'gpu' and format not in ('xspace', 'xla_chrome') as fusible,
       op_class in {_HANDS_ON} as hands_on
from typical_op where state = 'compute' order by trace_id, device_id, step, stream, start_ns, unit
"""
_MOST = 3


def _sizes(shapes: str) -> tuple[list[int], int, int]:
    """Elements of each input, of the largest, and how many are as large."""
    listed = json.loads(shapes)
    counts = [prod(s) for s in listed if isinstance(s, list) and s and all(isinstance(d, int) for d in s)]
    largest = max(counts, default=0)
    return counts, largest, counts.count(largest)


def _chains(con: duckdb.DuckDBPyConnection, _: str) -> pl.DataFrame:
    """The chains that would save most, equal ones together.

    Two neighbours on a stream are linked where the second has an input as large as what the first writes: then one write
    and one read of it would go. What is written is the part of the first's bytes that one of its large tensors makes.
    Neighbours of one name may be kernels of one call, which hand on other things; XLA has decided on its fusions itself.
    """
    ops = store.frame_of(con, _SQL)
    different = ops.filter("fusible")["shapes"].unique().to_list()
    sizes = dict(zip(different, map(_sizes, different), strict=True))
    table = pl.DataFrame(
        {
            "shapes": different, "inputs": [s[0] for s in sizes.values()], "largest": [s[1] for s in sizes.values()],
            "as_large": [s[2] for s in sizes.values()],
        },
        schema={"shapes": pl.String, "inputs": pl.List(pl.Int64), "largest": pl.Int64, "as_large": pl.Int64},
    )  # fmt: skip
    place = ["trace_id", "device_id", "step", "stream"]
    ops = ops.join(table, on="shapes", how="left", maintain_order="left").with_columns(
        out_bytes=pl.when("fusible", "hands_on").then(pl.col("bytes") / (pl.col("as_large") + 1)),
    )
    linked = (
        pl.col("fusible").shift(-1)
        & pl.col("out_bytes").is_not_null()
        & pl.col("inputs").shift(-1).list.contains(pl.col("largest"))
        & (pl.col("largest") > 0)
        & (pl.col("operation").shift(-1) != pl.col("operation"))
    )
    ops = ops.with_columns(linked=linked.over(place).fill_null(value=False))
    handed = pl.when("linked").then("out_bytes").otherwise(0.0)
    ops = ops.with_columns(handed=handed, taken=handed.shift(1, fill_value=0.0).over(place))
    ops = ops.filter((pl.col("handed") > 0) | (pl.col("taken") > 0)).with_columns(
        frac=pl.min_horizontal((pl.col("handed") + pl.col("taken")) / pl.col("bytes"), 1.0),
        chain=(pl.col("taken") == 0).cum_sum(),
    )
    chains = ops.group_by("chain", maintain_order=True).agg(
        pattern=pl.col("operation").str.join(" → "),
        kernels=pl.len(),
        handed_bytes=pl.col("handed").sum(),
        slow=(pl.col("frac") * pl.col("slow_ns")).sum(),
        memory=(pl.col("frac") * pl.col("memory_bound_ns")).sum(),
        units="unit",
    )
    ((n, _wall),) = con.execute("select n, wall_ns from typical_size").fetchall()
    return (
        chains.group_by("pattern", "kernels", maintain_order=True)
        .agg(
            chains=pl.len() / n,
            handed_bytes=pl.col("handed_bytes").sum() / n,
            kernel_inefficiency_saves_ns=(pl.col("slow").sum() / n).round().cast(pl.Int64),
            memory_bound_saves_ns=(pl.col("memory").sum() / n).round().cast(pl.Int64),
            units=pl.col("units").explode(),
        )
        .sort(pl.col("kernel_inefficiency_saves_ns") + pl.col("memory_bound_saves_ns"), descending=True)
        .head(_MOST)
    )


RULE = Rule(
    sentence="{chains:.0f} times a step {kernels} memory-bound kernels in a row ({pattern:name}) hand "
    "{handed_bytes:bytes} to each other through device memory: fuse them (torch.compile, a fused kernel), "
    "{alone_ns:ns} at most",
    query=_chains,
    draws=("kernel_inefficiency", "memory_bound"),
    config="compile|fus",
)

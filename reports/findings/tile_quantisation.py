"""Matrix products whose tiles do not fill the part: padding of the last tiles, and a last wave that is nearly empty."""

import duckdb
import polars as pl

from tracegap.models import hardware, silicon
from tracegap.models.ops import DTYPE_BYTES
from tracegap.reports.finding import Rule
from tracegap.reports.products import products, tile_of

_LEAST_LOST = 0.15
"""Part of the time of a product from which it is worth a look."""


def _quantised(con: duckdb.DuckDBPyConnection, _: str) -> pl.DataFrame:
    """Products that lose at least so much to whole tiles and waves, at the tile that the kernel's name tells [Q2, Q3].

    A product that is faster than its tiles would allow has other ones, and is left out.
    """
    chips = hardware.catalogue()
    ((n,),) = con.execute("select n from typical_size").fetchall()
    rows = []
    for row in products(con).iter_rows(named=True):
        chip = chips.get(row["hardware"] or "")
        tile = tile_of(row["name"])
        if chip is None or row["dtype"] not in DTYPE_BYTES or (chip.mxu_side is None and tile is None):
            continue
        lost = silicon.matmul_quantisation(
            chip, row["m"], row["k"], row["n"], batch=row["batch"], dtype=row["dtype"], tile=tile or silicon.GPU_TILE
        )
        reachable_ns = row["math_ns"] / lost.efficiency
        if reachable_ns < row["min_ns"] or not (1 - _LEAST_LOST) * row["share_ns"] > row["min_ns"]:
            continue
        lost_ns = reachable_ns - row["math_ns"]
        if lost_ns < _LEAST_LOST * row["share_ns"] or reachable_ns > 1.02 * row["share_ns"]:
            continue
        rows.append(
            {
                "operation": row["operation"], "kernel": row["name"], "shapes": row["shapes"], "dtype": row["dtype"],
                "calls": row["calls"] / n, "useful": 100 * lost.efficiency, "padding_frac": lost.padding,
                "waves_frac": lost.waves, "why": _why(lost, chip, tile, row),
                "saves_ns": round(min(lost_ns, row["slow_ns"]) / n), "units": row["units"],
            }
        )  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def _why(lost: silicon.Quantisation, chip: hardware.Chip, tile: tuple[int, int] | None, row: dict[str, int]) -> str:
    if chip.mxu_side is not None:
        return f"pad K = {row['k']} and N = {row['n']} towards multiples of {chip.mxu_side}"
    rows, columns = tile or silicon.GPU_TILE
    if lost.waves > lost.padding:
        return f"M = {row['m']} and N = {row['n']} do not fill tiles of {rows} x {columns}; choose multiples"
    tiles = row["batch"] * -(-row["m"] // rows) * -(-row["n"] // columns)
    on = f"{chip.device_core_count:.0f} {chip.core_kind or 'core'}s"
    return f"{tiles} tiles of {rows} x {columns} on {on}; choose sizes that fill them"


RULE = Rule(
    sentence="{operation:name} {shapes:shapes}: whole tiles and waves leave {useful:.0f}% of the peak: {why}",
    query=_quantised,
    draws=("kernel_inefficiency",),
    config="batch|vocab|hidden|heads|ffn|seq",
)

"""Matrix products whose sizes do not fit the 16 bytes that tensor cores load at once, and that are slower than others."""

import duckdb
import polars as pl

from tracegap.models import hardware
from tracegap.models.ops import DTYPE_BYTES
from tracegap.reports.finding import Rule
from tracegap.reports.products import products

_LOAD_BYTES = 16
"""NVIDIA's deep-learning performance guide: tensor cores work best where M, N and K are multiples of 16 bytes."""
_PAD_TO = 64
"""Elements: the multiple that is advised, a whole cache line of 128 bytes in 16-bit dtypes."""


def _unfit(con: duckdb.DuckDBPyConnection, _: str) -> pl.DataFrame:
    """Unaligned products with what they would save at the efficiency that the aligned ones of their dtype reach."""
    chips = hardware.catalogue()
    rows = []
    aligned: dict[str, tuple[int, int]] = {}
    found = products(con).to_dicts()
    for row in found:
        step = round(_LOAD_BYTES / DTYPE_BYTES[row["dtype"]])
        row["odd"] = [side for side in "mnk" if row[side] % step and row[side] > step]
        if not row["odd"]:
            least, share = aligned.get(row["dtype"], (0, 0))
            aligned[row["dtype"]] = least + row["min_ns"], share + row["share_ns"]
    ((n,),) = con.execute("select n from typical_size").fetchall()
    for row in found:
        chip = chips.get(row["hardware"] or "")
        if not row["odd"] or chip is None or chip.kind != "gpu" or DTYPE_BYTES[row["dtype"]] > 2:
            continue
        least, share = aligned.get(row["dtype"], (0, 0))
        reached = min(1.0, least / share) if share else None
        own = row["min_ns"] / row["share_ns"] if row["share_ns"] else 1.0
        if reached is None or own >= reached:
            continue
        side = row["odd"][0]
        rows.append(
            {
                "operation": row["operation"], "kernel": row["name"], "shapes": row["shapes"], "dtype": row["dtype"],
                "side": side.upper(), "size": row[side], "padded": -(-row[side] // _PAD_TO) * _PAD_TO,
                "efficiency": 100 * own, "aligned_efficiency": 100 * reached, "calls": row["calls"] / n,
                "saves_ns": round((row["share_ns"] - row["min_ns"] / reached) / n), "units": row["units"],
            }
        )  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


RULE = Rule(
    sentence="{operation:name} {shapes:shapes}: {side} = {size} is no multiple of 16 bytes in {dtype}; it reaches "
    "{efficiency:.0f}% of its bound where aligned products reach {aligned_efficiency:.0f}%: pad it to {padded}",
    query=_unfit,
    draws=("kernel_inefficiency",),
    config="vocab|hidden|heads|ffn",
)

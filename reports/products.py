"""Sizes of matrix products from what a trace records: the shapes of the inputs and the FLOPs."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isclose, prod

import duckdb
import polars as pl

from tracegap.ingest import store


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """`batch` products [m, k] x [k, n]."""

    batch: int
    m: int
    k: int
    n: int


def product_of(shapes: str, flops: float) -> Product | None:
    """The product that two of the inputs make and whose 2·batch·m·k·n are the FLOPs; None where there is none or it is split.

    The second may be stored transposed, as the weights of a linear layer are; a matrix beside batches is multiplied
    with all of them at once.
    """
    try:
        listed = json.loads(shapes)
    except ValueError:
        return None
    matrices = [s for s in listed if isinstance(s, list) and len(s) >= 2 and all(isinstance(d, int) for d in s)]
    for a, b in combinations(matrices, 2):
        for second in (b, [*b[:-2], b[-1], b[-2]]):
            found = _multiplied(a, second)
            if found and isclose(2 * found.batch * found.m * found.k * found.n, flops, rel_tol=1e-3):
                return found
    return None


def _multiplied(a: Sequence[int], b: Sequence[int]) -> Product | None:
    if a[-1] != b[-2]:
        return None
    if len(b) == 2:
        return Product(batch=1, m=prod(a[:-1]), k=a[-1], n=b[-1])
    if list(a[:-2]) != list(b[:-2]):
        return None
    return Product(batch=prod(a[:-2]), m=a[-2], k=a[-1], n=b[-1])


_TILE = re.compile(r"(?:tilesize|_MT|(?<![0-9x]))(\d{2,3})x(\d{2,3})(?:x\d+)?(?=[_x]|$)")
_SIDES = (16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512)
_SPLIT = re.compile(r"split_?k|stream_?k|_GSU(?!1_|0_|1$)|_SK[1-9]|splitKreduce", re.IGNORECASE)


def tile_of(kernel: str) -> tuple[int, int] | None:
    """Rows and columns of the output tile of a thread block as the name of a library's kernel tells it.

    Those of CUTLASS, cuBLAS (`..._128x256_...`, `tilesize128x128x64`) and Tensile (`MT128x256x64`). None where it does not
    tell, or where the contraction is split over blocks: then tiles do not make the waves.
    """
    if _SPLIT.search(kernel):
        return None
    found = [(int(a), int(b)) for a, b in _TILE.findall(kernel)]
    sized = [t for t in found if all(side in _SIDES for side in t)]
    return sized[0] if sized else None


def products(con: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Matrix products of the typical step whose sizes are known: a row each operation, kernel, shapes, dtype and part.

    Columns: those, calls (of all device steps), share_ns, min_ns, math_ns, slow_ns (kernel_inefficiency), flops of one,
    units, batch, m, k, n.
    """
    rows = store.frame_of(
        con,
        """
        select operation, name, shapes, dtype, hardware, count(*) as calls, cast(sum(share_ns) as bigint) as share_ns,
               cast(sum(min_ns) as bigint) as min_ns, cast(sum(math_ns) as bigint) as math_ns,
               cast(sum(kernel_inefficiency_ns) as bigint) as slow_ns, any_value(flops) as flops, list(unit) as units
        from typical_op
        where op_class = 'matmul' and state = 'compute' and modelled and flops > 0 and cut_ns = dur_ns and dtype is not null
        group by operation, name, shapes, dtype, hardware, flops order by share_ns desc, operation, name, shapes
        """,
    )
    found = [product_of(shapes, flops) for shapes, flops in rows.select("shapes", "flops").iter_rows()]
    known = pl.Series([p is not None for p in found], dtype=pl.Boolean)
    sizes = {side: [getattr(p, side) for p in found if p is not None] for side in ("batch", "m", "k", "n")}
    return rows.filter(known).with_columns(pl.Series(side, v, dtype=pl.Int64) for side, v in sizes.items())

"""How much of the compute time of traces has a known cost, and the rest by time, as Markdown.

Usage: python bench/coverage.py TRACES [--rest N]

A cost is known where both FLOPs and bytes are, or the bytes of a kernel that memory bounds by nature (as in the view op_gap).
Peaks are not needed for it. Of a trace of less than 95% the N largest groups of operations without a cost are listed with the
reason, which says what would be needed.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb

from tracegap.ingest.pipeline import ingest_paths
from tracegap.ingest.store import open_store

ENOUGH_FRAC = 0.95
_WORK = """
    select *, bytes is not null and (flops is not null or op_class in (
        'elementwise', 'reduction', 'normalization', 'softmax', 'data_movement', 'embedding', 'sort'
    )) as known
    from ops where op_class not in ('collective', 'copy', 'memset')
"""
_SHARES = f"""
    select sum(dur_ns), coalesce(sum(dur_ns) filter (known), 0), coalesce(sum(dur_ns) filter (shapes is not null), 0)
    from ({_WORK})
"""
_REST = f"""
    select coalesce(framework_op, '(none)'), op_class, cost_note, count(*), sum(dur_ns) as ns
    from ({_WORK}) where not known group by all order by ns desc
"""


def rows(path: Path, rest: int) -> Iterator[str]:
    """The row of a trace, and below it what is missing."""
    with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "store.duckdb") as con:
        [result] = ingest_paths(con, [str(path)], run="coverage")
        if result.error is not None:
            return
        [(total, known, recorded)] = con.execute(_SHARES).fetchall()
        if not total:
            return
        yield f"| {path.name} | {total / 1e3:,.1f} | {100 * recorded / total:.1f} | {100 * known / total:.1f} | | |"
        if known / total < ENOUGH_FRAC:
            yield from _missing(con, total, rest)


def _missing(con: duckdb.DuckDBPyConnection, total: int, rest: int) -> Iterator[str]:
    for name, op_class, note, count, ns in con.execute(_REST).fetchall()[:rest]:
        yield f"| | {ns / 1e3:,.1f} | | {100 * ns / total:.1f} missing | {count} x `{name[-70:]}` ({op_class}) | {note} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--rest", type=int, default=5)
    given = parser.parse_args()
    print("| trace | compute, us | with shapes or HLO, % | known cost, % | without | why |")
    print("| --- | ---: | ---: | ---: | --- | --- |")
    names = (".json", ".pb", ".sqlite")
    for path in sorted(
        p for p in given.traces.rglob("*") if p.is_file() and p.name.removesuffix(".gz").endswith(names)
    ):
        for row in rows(path, given.rest):
            print(row, flush=True)


if __name__ == "__main__":
    main()

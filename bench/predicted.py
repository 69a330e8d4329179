"""Every collective of some traces, measured against predicted, as a Markdown table. Run: python bench/predicted.py PATH...

A row is all equal calls of a run: kind, group, size, dtype. Measured is the fastest of them: from the arrival of the last rank
on where ranks are matched, else the whole duration, of which one rank alone cannot tell waiting from transfer.
"""

import argparse
import tempfile
from pathlib import Path

from tracegap.ingest.pipeline import ingest_paths
from tracegap.ingest.store import open_store
from tracegap.reports import join, people

SQL = """
select
    run_id, collective, group_size as ranks, message_bytes, dtype, count(*) as calls,
    count(*) filter (instance_id is not null) as matched,
    min(coalesce(transfer_ns, dur_ns)) as fastest_ns, cast(median(coalesce(transfer_ns, dur_ns)) as bigint) as median_ns,
    max(busbw_gb_per_s) as busbw_gb_per_s, any_value(predicted_ns) as predicted_ns, any_value(predicted_by) as predicted_by,
    any_value(tuned_ns) as tuned_ns, any_value(tuned_by) as tuned_by
from collective_gap
group by run_id, collective, group_size, message_bytes, dtype
order by run_id, calls * fastest_ns desc
"""
HEAD = "| run | collective | ranks | message | calls | matched | fastest | median | busbw GB/s | predicted | ratio | by | NCCL |"


def rows(paths: list[Path]) -> list[str]:
    """The lines of the table."""
    lines = [HEAD, "|" + " --- |" * HEAD.count(" | ") + " --- |"]
    with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "predicted.duckdb") as con:
        results = ingest_paths(con, paths)
        join.evaluate_stale(con, [r.run_id for r in results if r.run_id])
        for (
            run,
            kind,
            ranks,
            size,
            dtype,
            calls,
            matched,
            fastest,
            median,
            busbw,
            predicted,
            by,
            tuned,
            tuned_by,
        ) in con.execute(SQL).fetchall():
            message = "" if size is None else f"{size:,} B {dtype or ''}".strip()
            ratio = f"{fastest / predicted:.2f}" if predicted else ""
            cells = [
                run, kind or "unknown", ranks, message, calls, matched, people.duration(fastest), people.duration(median),
                "" if busbw is None else f"{busbw:.1f}", "" if predicted is None else people.duration(predicted), ratio, by,
                "" if tuned is None else f"{people.duration(tuned)} ({tuned_by})",
            ]  # fmt: skip
            lines.append("| " + " | ".join("" if c is None else str(c) for c in cells) + " |")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    print("\n".join(rows(parser.parse_args().paths)))

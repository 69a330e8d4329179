from collections.abc import Callable
from typing import Any

import duckdb
import pytest
from rich.console import Console, RenderableType

from tracegap.ingest import store
from tracegap.ingest.errors import StoreError
from tracegap.reports import terminal
from tracegap.reports.buckets import BUCKETS, COLUMNS
from tracegap.reports.explain import Explanation

Con = duckdb.DuckDBPyConnection
Make = Callable[..., None]


def said(what: RenderableType) -> str:
    console = Console(width=80, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def one_line(text: str) -> str:
    return " ".join(text.split())


class Compared:
    def __init__(self, **changed: Any) -> None:
        side = {
            "title": "llama-8b · 8 × H100 SXM · 20 steps",
            "devices": "8 × H100 SXM",
            "simulated": False,
            "steps": 20,
            "mfu": 0.42,
            "modelled_share_frac": 0.97,
        }
        side |= {"mfu_note": "bf16 dense peak, causal attention"}
        causes = [
            {"what": "all_reduce: 12 → 214 [a step]", "bucket": "comm_inefficiency_ns", "delta_ns": 27_400_000,
             "rank": None, "config": ["ddp.bucket_cap_mb"]},
            {"what": "others wait", "bucket": "comm_wait_ns", "delta_ns": 6_200_000, "rank": 3, "config": []},
            {"what": "everything else", "bucket": "rest", "delta_ns": 4_500_000, "rank": None, "config": []},
        ]  # fmt: skip
        lines = [("ddp.bucket_cap_mb", 25, 1), ("run.seed", 1, 2), ("run.label", None, "tue")]
        self.values = {
            "verdict": "slower", "before_ns": 374_200_000, "after_ns": 412_300_000, "delta_ns": 38_100_000,
            "interval_ns": [37_200_000, 39_000_000], "causes": causes,
            "titles": {b.column: b.title for b in BUCKETS} | {"rest": "everything else"},
            "buckets": dict.fromkeys(COLUMNS, 0), "config": [{"key": k, "before": b, "after": a} for k, b, a in lines],
            "before": side, "after": side | {"mfu": 0.381},
        } | changed  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        return self.values


def test_a_run_fits_one_screen(con: Con, make_run: Make, make_finding: Make) -> None:
    make_run(simulated=True)
    for i in range(9):
        make_finding(what=f"finding [bold]{i}[/bold] " + "that is told at length " * 4, saves_ns=1_000 * i)
    text = said(terminal.run_summary(con, "job/mon"))
    lines = text.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[0] == "job · 2 × H100 SXM · 2 steps  SIMULATED"
    assert "A step takes 1.00 ms." in text
    assert "fix first" in text
    assert "finding [bold]8[/bold]" in text  # text, not markup
    assert "and 6 findings more" in text
    assert all(line == line.rstrip() for line in lines)


def test_the_parts_of_a_run_add_up_on_the_screen(con: Con, make_run: Make) -> None:
    make_run()
    text = said(terminal.run_summary(con, "job/mon"))
    shown = [line.split("  ") for line in text.splitlines() if line.startswith("  ")]
    percents = [float(part.strip().rstrip("%")) for line in shown for part in line if part.strip().endswith("%")]
    assert sum(percents) == pytest.approx(100, abs=0.5)
    assert "4 smaller parts" in text


def test_a_run_without_device_work(con: Con) -> None:
    store.insert_row(con, "runs", {"run_id": "empty", "job": "job"})
    text = one_line(said(terminal.run_summary(con, "empty")))
    assert "hold no device work" in text
    assert "ProfilerActivity.CUDA" in text


def test_an_unknown_run(con: Con) -> None:
    with pytest.raises(StoreError, match="no run 'x'"):
        terminal.run_summary(con, "x")


def test_a_comparison_reads_as_the_design_shows_it() -> None:
    text = said(terminal.comparison(Compared(), page="site/compare/mon-tue.html"))
    assert len(text.splitlines()) <= 24
    flat = one_line(text)
    assert "a step is 38.1 ms (10.2%) slower (95% interval: +37.2 ms to +39.0 ms)" in flat
    assert "374 ms → 412 ms" in flat
    assert "42.0% → 38.1%" in flat
    assert "slow communication +27.4 ms all_reduce: 12 → 214 [a step]" in flat
    assert "waiting for the last rank +6.20 ms others wait (rank 3)" in flat
    assert "everything else +4.50 ms" in flat
    assert "config ddp.bucket_cap_mb: 25 → 1" in flat
    assert "2 other lines differ" in flat
    assert all(line == line.rstrip() for line in text.splitlines())
    assert "fix first: ddp.bucket_cap_mb back to 25 saves up to 27.4 ms a step" in flat
    assert "page: site/compare/mon-tue.html" in flat


def test_runs_on_different_devices_say_so_and_name_no_fix() -> None:
    compared = Compared()
    compared.values["before"] = compared.values["before"] | {"devices": "8 × A100 SXM 80GB"}
    text = said(terminal.comparison(compared))
    assert "The devices differ: 8 × A100 SXM 80GB before, 8 × H100 SXM after." in one_line(text)
    assert "fix first" not in text


def test_one_step_is_not_steps() -> None:
    compared = Compared()
    compared.values["after"] = compared.values["after"] | {"title": "llama-8b · 8 × H100 SXM · 1 step"}
    assert said(terminal.comparison(compared)).splitlines()[0] == "llama-8b · 8 × H100 SXM · 1 step"


def test_an_explanation_speaks_as_the_pages_do() -> None:
    found = Explanation(
        run_id="job/mon", step=3, simulated=False, wall_ns=9_000_000, neighbours=[1, 2], usual_ns=10_000_000,
        buckets=dict.fromkeys(COLUMNS, 0) | {"comm_wait_ns": -1_200_000, "idle_host_ns": 200_000},
        ranks=[{"rank": 1, "bucket": "comm_wait_ns", "delta_ns": -2_000_000}],
        operations=[{"operation": "all_reduce", "delta_ns": -1_200_000}],
    )  # fmt: skip
    first, *lines = found.lines()
    assert "1.00 ms (10.0%) faster than its 2 neighbours" in first
    assert lines == [
        "  waiting for the last rank    −1.20 ms   exposed communication before the last rank arrived; most on rank 1 (−2.00 ms)",
        "  host too slow                 +200 µs   nothing runs: the host had not begun to launch the next operation",
        "  operation all_reduce: −1.20 ms",
    ]


def test_all_configuration_on_demand() -> None:
    text = said(terminal.comparison(Compared(), all_config=True))
    assert "run.label: (absent) → tue" in text
    assert "other line" not in text


def test_no_difference_names_no_fix() -> None:
    text = said(terminal.comparison(Compared(verdict="same", interval_ns=None)))
    assert "no difference that can be told from noise" in one_line(text)
    assert "too few steps" in text
    assert "fix first" not in text

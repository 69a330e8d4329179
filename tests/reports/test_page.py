"""Pages in a real browser with its network off."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from tracegap.ingest.errors import StoreError
from tracegap.reports import page, people
from tracegap.reports.buckets import BUCKETS, COLUMNS
from tracegap.reports.summary import snapshot, summarize

Con = duckdb.DuckDBPyConnection
Make = Callable[..., None]
HOSTILE = "</script><img src=x onerror=document.title='owned'><!--<script>\"'&"
CHARTS = 10


@dataclass
class Compared:
    """What `render_compare` needs of a comparison."""

    values: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return self.values


def comparison(**changed: Any) -> Compared:
    before = dict.fromkeys(COLUMNS, 0) | {"useful_math_ns": 300_000_000, "comm_inefficiency_ns": 74_200_000}
    after = before | {"comm_inefficiency_ns": 101_600_000, "idle_host_ns": 10_700_000}
    side = {"title": "llama-8b · 8 × H100 SXM · 20 steps", "simulated": False, "steps": 20, "mfu": 0.42}
    side |= {"devices": "8 × H100 SXM"}
    side |= {"mfu_note": "causal attention", "modelled_share_frac": 0.97}
    values = {
        "verdict": "slower", "before_ns": 374_200_000, "after_ns": 412_300_000, "delta_ns": 38_100_000,
        "interval_ns": [37_200_000, 39_000_000], "buckets": {c: after[c] - before[c] for c in COLUMNS},
        "causes": [
            {"what": f"all-reduce in 214 buckets {HOSTILE}", "bucket": "comm_inefficiency_ns", "delta_ns": 27_400_000,
             "rank": 3, "config": ["ddp.bucket_cap_mb"]},
            {"what": "everything else", "bucket": "rest", "delta_ns": 10_700_000, "rank": None, "config": []},
        ],
        "config": [
            {"key": "ddp.bucket_cap_mb", "before": 25, "after": 1}, {"key": HOSTILE, "before": None, "after": HOSTILE},
        ],
        "operations": [
            {"operation": HOSTILE, "op_class": "collective", "shapes": "[[1]]", "change": "more calls",
             "calls_before": 12.0, "calls_after": 214.0, "before_ns": 1, "after_ns": 2, "delta_ns": 1, "by_calls_ns": 1,
             "by_time_a_call_ns": 0},
        ],
        "titles": {b.column: b.title for b in BUCKETS} | {"rest": "everything else"},
        "before": side | {"run_id": "mon", "buckets": before},
        "after": side | {"run_id": "tue", "mfu": 0.381, "buckets": after},
    }  # fmt: skip
    return Compared(values | changed)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, as the machine has it."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        launched = p.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-background-networking"])
        yield launched
        launched.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page with the network off; what it says on the console or asks of a network fails the test."""
    said: list[str] = []
    contexts = []

    def opened(path: Path, **options: Any) -> Any:
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("dialog", lambda dialog: said.append(dialog.message))
        tab.on("request", lambda request: request.url.startswith(("file:", "data:")) or said.append(request.url))
        tab.goto(path.as_uri())
        tab.wait_for_function("document.body.dataset.ready === '1'", timeout=20_000)
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert not said


@pytest.fixture(scope="module")
def site(module_con: Con, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of the runs of `module_con` and their index."""
    folder = tmp_path_factory.mktemp("site")
    pages = {"job/mon": "runs/mon.html", "job/sim": "runs/sim.html", "empty": "runs/empty.html"}
    for run_id, name in pages.items():
        assert page.render_run(module_con, run_id, folder / name) == folder / name
    page.render_index(module_con, folder, pages)
    return folder


def test_a_run_page_is_whole_without_a_network(module_con: Con, site: Path, visit: Any) -> None:
    out = site / "runs" / "mon.html"
    assert out.stat().st_size < 1_500_000
    tab = visit(out)
    assert tab.locator(".chart svg").count() == CHARTS
    assert tab.locator("section").count() == len(page.section_modules())
    assert tab.locator("details.query").count() >= CHARTS
    assert not tab.locator(".simulated").count()
    # Names of traces are text, wherever they stand.
    assert tab.title() == "job/mon · tracegap"
    assert tab.locator("img").count() == 0
    assert HOSTILE in tab.locator("#fix_first td").all_inner_texts()[2]
    assert HOSTILE[:40] in tab.locator("#operations svg").text_content()
    # The three numbers are those of SQL.
    wall, minimum, slow = module_con.execute(
        "select avg(wall_ns), avg(useful_math_ns + memory_bound_ns + comm_minimum_ns),"
        " cast(avg(kernel_inefficiency_ns) as bigint) from step_gap where complete and run_id = 'job/mon'"
    ).fetchall()[0]
    values = tab.locator(".number .value").all_inner_texts()
    assert values == [people.duration(wall), people.duration(minimum), "unknown"]
    assert "no model description in the manifest" in tab.locator(".number").nth(2).inner_text()
    # So are those of the waterfall, in the table and in the chart.
    cell = tab.locator("#waterfall tr", has_text="slow kernels").first.locator("td").nth(2)
    assert cell.get_attribute("data-v") == str(slow)
    assert people.duration(slow) in tab.locator("#waterfall svg").text_content()


def test_hovering_sorting_and_filtering(site: Path, visit: Any) -> None:
    tab = visit(site / "runs" / "mon.html")
    tab.locator("#waterfall svg .mark-rect path").nth(4).hover()  # unknown cost: the hostile kernel
    tip = tab.locator("#vg-tooltip-element")
    tip.wait_for(state="visible")
    assert HOSTILE[:40] in tip.inner_text()
    assert "unknown cost" in tip.inner_text()
    assert tab.locator("img").count() == 0
    tab.locator("#waterfall summary").first.click()
    head = tab.locator("#waterfall th", has_text="time").first
    head.locator("button").focus()
    tab.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    shown = tab.locator("#waterfall tbody tr td:nth-child(3)").evaluate_all(
        "cells => cells.map(c => Number(c.dataset.v))"
    )
    assert shown == sorted(shown, reverse=True)
    tab.locator("#waterfall input.search").fill("host")
    visible = tab.locator("#waterfall tbody tr:visible td:first-child").all_inner_texts()
    assert 0 < len(visible) < len(COLUMNS)
    assert "host too slow" in visible


_COLOURS = """[
    getComputedStyle(document.querySelector('.chart svg text')).fill, getComputedStyle(document.body).backgroundColor
]"""


def test_light_dark_printed_and_narrow(site: Path, visit: Any) -> None:
    tab = visit(site / "runs" / "mon.html", viewport={"width": 390, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    light_text, light_page = map(_brightness, tab.evaluate(_COLOURS))
    tab.emulate_media(color_scheme="dark")
    dark_text, dark_page = map(_brightness, tab.evaluate(_COLOURS))
    assert light_page - light_text > 450
    assert dark_text - dark_page > 450
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate(_COLOURS) == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
    assert len(tab.pdf()) > 10_000


def _brightness(colour: str) -> int:
    return sum(int(float(part)) for part in colour.strip("rgba()").split(",")[:3])


def test_simulated_runs_say_so_everywhere(site: Path, visit: Any) -> None:
    tab = visit(site / "runs" / "sim.html")
    assert "not measured on hardware" in tab.locator(".simulated").inner_text()
    assert tab.title().startswith("(simulated)")
    assert tab.locator("figure").count() == tab.locator("figure figcaption .tag", has_text="simulated").count()
    assert tab.locator("table").count() == tab.locator("table caption .tag").count()


def test_a_run_without_device_work_says_what_to_do(site: Path, visit: Any) -> None:
    tab = visit(site / "runs" / "empty.html")
    assert "ProfilerActivity.CUDA" in tab.locator(".headline").inner_text()
    assert tab.locator(".chart").count() == 0
    assert tab.locator("script#specs").count() == 0


def test_the_index_links_runs_to_their_pages(site: Path, visit: Any) -> None:
    tab = visit(site / "index.html")
    assert tab.locator("tbody tr").count() == 4
    assert "214 buckets" in tab.locator("tr", has_text="job/mon").inner_text()
    assert tab.locator("td .tag").count() == 1
    assert tab.locator("img").count() == 0
    assert "mon-0.json" not in tab.locator("main").inner_text()  # of several files none stands for the run
    assert f"{HOSTILE.rsplit('/', 1)[-1]}-0.json" in tab.locator("td .aside", has_text="-0.json").inner_text()
    box = tab.locator(".wide").evaluate("e => [e.scrollWidth <= e.clientWidth, e.scrollHeight <= e.clientHeight]")
    assert box == [True, True]
    tab.get_by_role("link", name="empty").click()
    assert tab.title() == "empty · tracegap"


def test_an_empty_store_has_an_index(con: Con, tmp_path: Path, visit: Any) -> None:
    tab = visit(page.render_index(con, tmp_path, {}))
    assert "tracegap ingest PATH" in tab.locator("main").inner_text()


def test_a_comparison_page(tmp_path: Path, visit: Any) -> None:
    tab = visit(page.render_compare(comparison(), tmp_path / "compare.html"))
    headline = tab.locator(".headline").inner_text().replace("\u00a0", " ")
    assert (
        "A step took 374 ms and takes 412 ms now: a step is 38.1 ms (10.2%) slower (95% interval: +37.2 ms to +39.0 ms)."
        in headline
    )
    assert "+27.4 ms of it: all-reduce in 214 buckets" in headline
    assert "ddp.bucket_cap_mb back to 25 saves up to 27.4 ms a step" in tab.locator("header .todo").inner_text()
    assert tab.locator(".chart svg").count() == 1
    assert tab.locator("img").count() == 0
    assert "42.0% → 38.1%" in tab.locator(".number").nth(2).inner_text()
    parts = tab.locator("#parts tbody tr td:nth-child(4)").evaluate_all("cells => cells.map(c => Number(c.dataset.v))")
    assert sum(parts[:-1]) == parts[-1] == 38_100_000


def test_a_comparison_names_other_devices_and_splits_only_what_adds_up(tmp_path: Path, visit: Any) -> None:
    compared = comparison()
    compared.values["before"] |= {"devices": "8 × A100 SXM 80GB"}
    operation = compared.values["operations"][0] | {"by_calls_ns": 9_850_000, "by_time_a_call_ns": -8_420_000}
    compared.values["operations"].append(operation | {"operation": "both ways", "delta_ns": 1_430_000})
    tab = visit(page.render_compare(compared, tmp_path / "compare.html"))
    assert "8 × A100 SXM 80GB before, 8 × H100 SXM after" in tab.locator("header .doubt").inner_text()
    assert not tab.locator("header .todo").count()  # configuration is not what differs most
    cells = tab.locator("#changed tr", has_text="both ways").locator("td").all_inner_texts()
    assert cells[3:6] == ["+1.43 ms", "–", "–"]
    cells = tab.locator("#changed tbody tr").first.locator("td").all_inner_texts()
    assert cells[3:6] == ["+1 ns", "+1 ns", "0 ns"]


def test_labels_of_the_waterfall_stand_clear_of_its_names(con: Con, make_run: Make, tmp_path: Path, visit: Any) -> None:
    """A bar over nearly all of the step, from its start on."""
    make_run(ranks=1)
    con.execute("update steps set wall_ns = wall_ns * 50, idle_host_ns = wall_ns * 50 - 900000").fetchall()
    con.execute("update steps set compute_ns = 0, exposed_comm_ns = 0").fetchall()
    for width in (390, 1160):
        tab = visit(page.render_run(con, "job/mon", tmp_path / "p.html"), viewport={"width": width, "height": 900})
        spans = tab.locator("#waterfall svg").evaluate(
            """svg => {
                const boxes = kind => [...svg.querySelectorAll(kind)].map(e => e.getBoundingClientRect());
                const right = Math.max(...boxes(".role-axis-label text").filter(b => b.left < 150).map(b => b.right));
                const labels = boxes(".mark-text.role-mark text");
                return [right, Math.min(...labels.map(b => b.left)), Math.max(...labels.map(b => b.right)),
                        svg.getBoundingClientRect().right, labels.length];
            }"""
        )
        names_end, first, last, edge, count = spans
        assert count == len(COLUMNS)
        assert names_end < first
        assert last <= edge + 1


def test_a_comparison_without_a_difference(tmp_path: Path, visit: Any) -> None:
    same = comparison(verdict="same", delta_ns=0, interval_ns=None, causes=[], config=[], operations=[])
    same.values["buckets"] = dict.fromkeys(COLUMNS, 0)
    tab = visit(page.render_compare(same, tmp_path / "compare.html"))
    assert "no difference that can be told from noise" in tab.locator(".headline").inner_text()
    assert "too few steps" in tab.locator(".headline").inner_text()
    assert "manifest.toml" in tab.locator("main").inner_text()
    assert not tab.locator("header .todo").count()


def test_an_unknown_run_is_named_with_those_there_are(con: Con, make_run: Make, tmp_path: Path) -> None:
    make_run()
    with pytest.raises(StoreError, match=r"no run 'tue'.*job/mon"):
        page.render_run(con, "tue", tmp_path / "x.html")
    assert not list(tmp_path.glob("*.html"))


def test_the_headline_says_why_nothing_can_be_said(con: Con, make_run: Make, anew: Make) -> None:
    make_run()
    con.execute("update op_forms set flops = null, bytes = null").fetchall()
    con.execute("update comm_windows set minimum_ns = 0").fetchall()
    anew()
    summary = summarize(con, "job/mon")
    assert summary.minimum_ns is None
    assert "What it should take is not known: FLOPs or bytes unknown." in summary.headline


def test_the_headline_names_a_part_that_is_not_in_the_catalogue(con: Con, make_run: Make, anew: Make) -> None:
    make_run()
    con.execute("delete from peaks").fetchall()
    con.execute(
        "update devices set hardware = null, hbm_bytes_per_s = null, name = 'ACME X1', matched_by = 'nothing is called ACME X1'"
    ).fetchall()
    con.execute("update comm_windows set minimum_ns = 0").fetchall()
    anew()
    summary = summarize(con, "job/mon")
    assert summary.title == "job · 2 × ACME X1 · 2 steps"
    assert "not known: nothing is called ACME X1; name it as “hardware” in manifest.toml." in summary.headline


def test_no_complete_step_is_a_doubt(con: Con, make_run: Make) -> None:
    make_run()
    con.execute("update steps set complete = false, incomplete_reason = 'cut'").fetchall()
    summary = summarize(con, "job/mon")
    assert summary.step_ns == 1_000_000
    assert summary.steps == 0
    assert any("No step is complete (cut)" in doubt for doubt in summary.doubts)


def test_the_snapshot_changes_no_row_and_leaves_nothing(con: Con, make_run: Make) -> None:
    make_run()
    make_run("job/tue", ranks=1)
    sql = "select * from {} where run_id = 'job/mon' order by all"
    views = ("op_gap", "collective_gap", "step_gap")
    plain = {view: pl.DataFrame(con.sql(sql.format(view))) for view in views}
    with snapshot(con, run_id="job/mon"):
        for view in views:
            assert pl.DataFrame(con.sql(sql.format(view))).equals(plain[view])
    assert con.execute("select count(*) from duckdb_tables() where temporary").fetchall() == [(0,)]

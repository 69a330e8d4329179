"""The command line as a user meets it: output, errors in one line, exit status."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from tracegap.flows.cli import cli

SAMPLES = Path(__file__).parents[2] / "sample_traces"
RANK0 = SAMPLES / "sim_h100_before" / "rank0.pt.trace.json.gz"


def run(*arguments, store=None):
    args = [str(a) for a in arguments]
    if store is not None:
        args[1:1] = ["--store", str(store)]
    return CliRunner().invoke(cli, args)


@pytest.fixture
def store(samples, tmp_path):
    """A copy of the store with all samples."""
    return Path(shutil.copy(samples, tmp_path / "s.duckdb"))


def run_ids(store):
    return [
        r["run_id"] for r in json.loads(run("sql", "select run_id from runs order by 1", "--json", store=store).output)
    ]


def test_every_command_has_help_with_an_example():
    for name, command in cli.commands.items():
        shown = run(name, "--help")
        assert shown.exit_code == 0
        assert f"Example: tracegap {name}" in " ".join(shown.output.split()), name
        assert "--json" in shown.output
        assert command.help


def test_commands_start_without_the_heavy_libraries():
    code = "import sys, tracegap.flows.cli; print([m for m in ('prefect', 'altair', 'polars', 'duckdb') if m in sys.modules])"
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert got.stdout.strip() == "[]"


def test_a_truncated_an_empty_and_a_foreign_file_give_a_line_each_and_the_sound_one_is_kept(tmp_path):
    traces = tmp_path / "in"
    traces.mkdir()
    sound = shutil.copy(RANK0, traces / "a.json.gz")
    (traces / "b.json.gz").write_bytes(Path(sound).read_bytes()[:30_000])
    (traces / "c.json").write_bytes(b"")
    (traces / "d.json").write_text('{"schema": "1.0", "nodes": []}')
    (traces / "e.xplane.pb").write_bytes(b"\x0a\xff\xff\xff\x0fnothing")
    (traces / "f.sqlite").write_bytes(b"SQLite format 3\0" + b"\1" * 100)
    got = run("ingest", traces, store=tmp_path / "s.duckdb")
    assert got.exit_code == 3
    errors = [line for line in got.stderr.splitlines() if line]
    assert len(errors) == 5
    for letter, line in zip("bcdef", errors, strict=True):
        assert line.startswith("tracegap: ")
        assert f"/{letter}." in line
    assert "Traceback" not in got.output + got.stderr
    traces_in = json.loads(
        run("sql", "select path, status from traces order by 1", "--json", store=tmp_path / "s.duckdb").output
    )
    assert [(Path(t["path"]).name, t["status"]) for t in traces_in] == [("a.json.gz", "ok"), ("b.json.gz", "partial")]


def test_ingest_json_says_what_became_of_each_file(tmp_path):
    got = run("ingest", RANK0, "--json", store=tmp_path / "s.duckdb")
    said = json.loads(got.stdout)
    assert got.exit_code == 0
    assert said["run_id"] == "sim-ddp-h100/sim-ddp-h100-mon"
    trace = said["traces"][0]
    assert (trace["status"], trace["format"], trace["rank"]) == ("ok", "kineto", 0)
    assert trace["ops"] > 1000
    assert trace["diagnostics"] == []
    again = json.loads(run("ingest", RANK0, "--json", store=tmp_path / "s.duckdb").stdout)
    assert again["traces"][0]["status"] == "already"


def test_compare_takes_names_and_paths_and_fails_over_a_limit(store):
    mon, tue = "sim-ddp-h100/sim-ddp-h100-mon", "sim-ddp-h100/sim-ddp-h100-tue"
    by_name = json.loads(run("compare", mon, tue, "--json", store=store).stdout)
    by_path = json.loads(
        run("compare", SAMPLES / "sim_h100_before", SAMPLES / "sim_h100_after", "--json", store=store).stdout
    )
    assert by_name == by_path
    assert {
        "verdict",
        "before_ns",
        "after_ns",
        "delta_ns",
        "interval_ns",
        "buckets",
        "causes",
        "config",
    } <= by_name.keys()
    assert run("compare", mon, tue, "--fail-over", "5%", store=store).exit_code == 1
    assert run("compare", mon, tue, "--fail-over", "90%", store=store).exit_code == 0
    assert run("compare", tue, mon, "--fail-over", "5%", store=store).exit_code == 0
    wrong = run("compare", mon, tue, "--fail-over", "much", store=store)
    assert wrong.exit_code == 2
    assert "no percentage" in wrong.stderr


def test_compare_says_it_on_one_screen(store):
    got = run("compare", "sim-ddp-h100/sim-ddp-h100-mon", "sim-ddp-h100/sim-ddp-h100-tue", store=store)
    assert got.exit_code == 0
    assert "slower" in got.output
    assert "simulated" in got.output.lower()
    assert "ddp.bucket_cap_mb" in got.output
    assert len(got.output.splitlines()) <= 24


@pytest.mark.parametrize("command", ["report", "compare", "explain", "what-if", "view", "history"])
def test_an_unknown_run_is_wrong_use_and_names_what_there_is(command, store, tmp_path):
    extra = {"compare": ["sim-fsdp-v5p/sim-fsdp-v5p-tue"], "explain": ["--step", "1"]}.get(command, [])
    got = run(command, "nothing-of-the-kind", *extra, store=store)
    assert got.exit_code == 2
    assert "nothing-of-the-kind" in got.stderr
    assert len(got.stderr.strip().splitlines()) == 1


def test_sql_reads_only_and_cannot_touch_files(store, tmp_path):
    assert (
        run("sql", "select count(*) as n from step_gap", "--format", "csv", store=store).output.splitlines()[0] == "n"
    )
    for query in (
        "delete from ops",
        f"copy (select 1) to '{tmp_path}/leak.csv'",
        "select * from read_text('/etc/hostname')",
        "attach 'x.duckdb'",
        "set enable_external_access = true",
    ):
        got = run("sql", query, store=store)
        assert got.exit_code == 2, query
        assert "the query failed" in got.stderr
    assert not (tmp_path / "leak.csv").exists()
    assert run("sql", "select 1", store=tmp_path / "none.duckdb").exit_code == 2


def test_the_contract_query_of_step_gap_gives_no_row(store):
    from tracegap.reports.buckets import SUM_SQL

    got = run("sql", f"select count(*) as n from step_gap where wall_ns <> {SUM_SQL}", "--json", store=store)
    assert json.loads(got.output) == [{"n": 0}]


def test_history_is_by_job_and_in_order(store):
    rows = json.loads(run("history", "sim-ddp-h100", "--json", store=store).output)
    assert [r["run_id"] for r in rows] == ["sim-ddp-h100/sim-ddp-h100-mon", "sim-ddp-h100/sim-ddp-h100-tue"]
    assert rows[0]["change_frac"] is None
    assert rows[1]["change_frac"] == pytest.approx(rows[1]["step_ns"] / rows[0]["step_ns"] - 1)
    assert run("history", store=store).exit_code == 0


def test_explain_adds_up_and_names_the_cause(store):
    said = json.loads(run("explain", "sim-ddp-h100/sim-ddp-h100-mon", "--step", "12", "--json", store=store).output)
    assert sum(said["buckets"].values()) == pytest.approx(said["wall_ns"] - said["usual_ns"], abs=10)
    # Step 12 is the one in which rank 3 does not stall, so nobody waits for it.
    assert min(said["buckets"], key=lambda k: said["buckets"][k]) == "comm_wait_ns"
    text = run("explain", "sim-ddp-h100/sim-ddp-h100-mon", "--step", "12", store=store).output
    assert "faster than its" in text
    assert "simulated" in text
    assert run("explain", "sim-ddp-h100/sim-ddp-h100-mon", "--step", "999", store=store).exit_code == 2


def test_what_if_answers_one_change_or_the_usual_ones(store):
    name = "sim-ddp-h100/sim-ddp-h100-mon"
    usual = json.loads(run("what-if", name, "--json", store=store).output)
    stored = json.loads(
        run("sql", f"select change, what, saves_ns from what_if where run_id = '{name}'", "--json", store=store).output
    )
    assert [[a[k] for k in ("change", "what", "saves_ns")] for a in usual] == [list(row.values()) for row in stored]
    (asked,) = json.loads(run("what-if", name, "--collective", "all_reduce", "--hidden", "--json", store=store).output)
    assert asked in usual
    assert asked["saves_ns"] == asked["before_ns"] - asked["after_ns"] > 0
    told = run("what-if", name, "--kernel", "matmul", "--times", "0.5", store=store).output
    assert "matmul × 0.5" in told
    wrong = run("what-if", name, "--kernel", "matmul", "--hidden", store=store)
    assert wrong.exit_code == 2
    assert "--collective --hidden" in wrong.output
    assert run("what-if", name, "--step", "999", "--no-syncs", store=store).exit_code == 2


def test_view_makes_links_and_leaves_the_traces_alone(store, tmp_path):
    before = sorted(p.name for p in (SAMPLES / "sim_tpu_v5p").iterdir())
    laid = json.loads(run("view", "sim-fsdp-v5p/sim-fsdp-v5p-tue", "-o", tmp_path / "v", "--json", store=store).output)
    assert laid[0]["viewer"] == "xprof"
    links = list((tmp_path / "v").rglob("*.xplane.pb*"))
    assert len(links) == 1
    assert links[0].is_symlink()
    assert sorted(p.name for p in (SAMPLES / "sim_tpu_v5p").iterdir()) == before


def test_hardware_lists_all_and_shows_one():
    rows = json.loads(run("hardware", "--json").output)
    assert len(rows) >= 67
    one = json.loads(run("hardware", "h100_sxm", "--json").output)
    assert one[0]["bf16_tflops"] == 989.4
    unknown = run("hardware", "h100")
    assert unknown.exit_code == 2
    assert "h100_sxm" in unknown.stderr


def test_plan_is_a_bound_of_the_manifest(tmp_path):
    manifest = SAMPLES / "sim_h100_before" / "manifest.toml"
    said = json.loads(run("plan", manifest, "--hardware", "h100_sxm", "--json").output)
    assert said["lower_ns"] >= said["compute_ns"] > 0
    assert said["upper_ns"] >= said["lower_ns"]
    assert said["fits"] is True
    lacking = run("plan", manifest)
    assert lacking.exit_code == 2
    assert "hardware" in lacking.stderr


def test_doctor_says_what_is_in_a_file_and_stores_nothing(tmp_path):
    (tmp_path / "bad.json").write_text("{}")
    got = run("doctor", RANK0, tmp_path / "bad.json")
    assert got.exit_code == 3
    assert "sound" in got.output
    assert "9 steps (profiler_step)" in got.output
    assert "bad.json" in got.output
    assert list(tmp_path.iterdir()) == [tmp_path / "bad.json"]


def test_report_writes_a_page_for_paths(tmp_path):
    got = run("report", SAMPLES / "sim_tpu_v5p", "-o", tmp_path / "page.html", store=tmp_path / "s.duckdb")
    assert got.exit_code == 0, got.stderr
    assert "simulated" in got.output.lower()
    page = (tmp_path / "page.html").read_text()
    assert "simulated" in page
    assert len(got.output.splitlines()) <= 26


def test_the_store_is_named_by_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEGAP_STORE", str(tmp_path / "env.duckdb"))
    assert run("ingest", RANK0).exit_code == 0
    assert (tmp_path / "env.duckdb").exists()


def test_mistakes_are_one_line_each_and_never_a_traceback(store, tmp_path):
    (tmp_path / "empty").mkdir()
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    for status, command, *rest in (
        (2, "sql", ""),
        (2, "report", "sim-fsdp-v5p/sim-fsdp-v5p-tue", "-o", blocked / "x.html"),
        (2, "compare", "sim-ddp-h100/sim-ddp-h100-mon", "sim-ddp-h100/sim-ddp-h100-tue", "-o", blocked / "c.html"),
    ):
        got = run(command, *rest, store=store)
        assert got.exit_code == status, got.output
        assert len(got.stderr.strip().splitlines()) == 1
    assert run("demo", "--samples", tmp_path / "none").exit_code == 2
    assert "no trace found" in run("doctor", tmp_path / "empty").output


def test_a_mistyped_store_is_not_made(tmp_path):
    got = run("report", "some-run", store=tmp_path / "nope.duckdb")
    assert got.exit_code == 2
    assert "no such store" in got.stderr
    assert not (tmp_path / "nope.duckdb").exists()


def test_an_empty_store_answers(tmp_path):
    (tmp_path / "empty").mkdir()
    store = tmp_path / "s.duckdb"
    assert run("ingest", tmp_path / "empty", store=store).exit_code == 0
    assert json.loads(run("history", "--json", store=store).output) == []
    assert json.loads(run("sql", "select * from step_gap", "--json", store=store).output) == []


def test_doctor_checks_the_laws_of_a_store(store):
    got = CliRunner().invoke(cli, ["doctor", "--store", str(store)])
    assert got.exit_code == 0
    assert got.output.startswith("all ")
    told = json.loads(CliRunner().invoke(cli, ["doctor", "--json", "--store", str(store)]).output)
    assert {law["holds"] for law in told} == {True}
    assert len(told) == int(got.output.split()[1])


def test_doctor_names_a_broken_law_with_where(store, monkeypatch):
    with duckdb.connect(str(store)) as con:
        con.execute(
            "update steps set kernels = kernels + 1 where run_id like '%nsys%' and rank = 1 and step = 101"
        ).fetchall()
    monkeypatch.setenv("TRACEGAP_STORE", str(store))
    got = CliRunner().invoke(cli, ["doctor", "--store"])
    assert got.exit_code == 1
    (line,) = got.output.splitlines()
    assert line.startswith("kernels_counted: ")
    assert "sim_nsys_h100/rank1.sqlite.gz, " in line
    assert "step 101" in line
    told = json.loads(CliRunner().invoke(cli, ["doctor", "--json", "--store"]).output)
    (broken,) = [law for law in told if not law["holds"]]
    assert (broken["law"], broken["broken_rows"], broken["first"][0]["step"]) == ("kernels_counted", 1, 101)


def test_doctor_wants_files_or_a_store(store):
    assert run("doctor").exit_code == 2
    assert CliRunner().invoke(cli, ["doctor", str(RANK0), "--store", str(store)]).exit_code == 2


def test_a_wrong_manifest_is_found_by_doctor_as_by_ingest(tmp_path):
    shutil.copy(RANK0, tmp_path / "t.json.gz")
    (tmp_path / "manifest.toml").write_text("tokens_per_stp = 5")
    for command in ("doctor", "ingest"):
        got = run(command, tmp_path, **({"store": tmp_path / "s.duckdb"} if command == "ingest" else {}))
        assert got.exit_code == 3
        assert "tokens_per_stp" in got.output + got.stderr


def test_the_schema_says_what_every_column_of_the_contract_means():
    relations = {r["name"]: r for r in json.loads(run("schema", "--json").output)}
    assert {"runs", "ops", "step_gap", "op_gap", "collective_gap", "findings", "hardware"} <= relations.keys()
    assert all(r["row"] for r in relations.values())
    for view in ("op_gap", "collective_gap", "step_gap", "ops", "steps"):
        columns = json.loads(run("schema", view, "--json").output)
        assert [c["column"] for c in columns if not c["meaning"]] == [], view
    assert run("schema", "nothing").exit_code == 2

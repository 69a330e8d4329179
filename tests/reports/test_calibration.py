"""Measured ceilings stand beside the peaks: H100, 989.4 TFLOP/s and 3,352 GB/s by the catalogue."""

import pytest
from tests.reports.small_steps import mm, put, trace

from tracegap.ingest import calibration
from tracegap.ingest.errors import TraceError
from tracegap.ingest.manifest import Manifest
from tracegap.ingest.store import frame_of, open_store, set_calibration
from tracegap.reports import join

TOML = """
[[calibration]]
kind = "matmul"
dtype = "bf16"
tflops = 500

[[calibration]]
kind = "matmul"
dtype = "bf16"
hardware = "h100_sxm"
tflops = 800

[[calibration]]
kind = "hbm"
gb_per_s = 3000
"""
CSV = "kind,hardware,dtype,tflops,gb_per_s\nmatmul,,bf16,500,\nmatmul,h100_sxm,bf16,800,\nhbm,,,,3000\n"
OPS = [
    {"op_id": 0, "start_ns": 0, "dur_ns": 2_000_000, **mm(flops=10**12, bytes=3 * 10**6)},
    {"op_id": 1, "start_ns": 2_000_000, "dur_ns": 4000, "framework_op": "aten::add", "op_class": "elementwise",
     "flops": 10**6, "bytes": 9 * 10**6},
]  # fmt: skip


@pytest.fixture
def con(tmp_path):
    with open_store(tmp_path / "s.duckdb") as connection:
        yield connection


@pytest.mark.parametrize(("name", "text"), [("c.toml", TOML), ("c.csv", CSV)])
def test_operations_and_steps_against_what_was_measured(con, tmp_path, name, text):
    """10^12 FLOPs at 800 TFLOP/s are 1.25 ms, of 2 ms; 9 MB at 3,000 GB/s are 3 us, of 4 us."""
    (tmp_path / name).write_text(text)
    put(con, trace(OPS))
    before = con.execute("select t_min_ns, t_measured_ns from op_gap order by op_id").fetchall()
    assert before == [(1_010_714, None), (2685, None)]
    set_calibration(con, ["r"], calibration.load(tmp_path / name))
    join.evaluate_stale(con, ["r"])
    ops = con.execute(
        "select t_min_ns, t_measured_ns, efficiency_vs_measured_frac from op_gap order by op_id"
    ).fetchall()
    assert ops == [(1_010_714, 1_250_000, 0.625), (2685, 3000, 0.75)]
    step = frame_of(con, "select * from step_gap").to_dicts()[0]
    assert step["mfu_vs_measured"] / step["mfu"] == pytest.approx(989.4 / 800)
    convention = con.execute(
        "select utilisation_frac from mfu_conventions where convention = 'measured_ceiling'"
    ).fetchall()
    assert convention[0][0] == pytest.approx(step["mfu_vs_measured"])


def test_a_manifest_brings_its_own(con):
    put(con, trace(OPS), Manifest(calibration=[{"kind": "hbm", "gb_per_s": 3000.0}]))
    assert con.execute("select t_measured_ns from op_gap order by op_id").fetchall() == [(1_010_714,), (3000,)]
    assert con.execute("select mfu_vs_measured from step_gap").fetchall() == [(None,)]


def test_the_same_calibration_again_joins_nothing_anew(con):
    put(con, trace(OPS))
    rows = [{"kind": "hbm", "gb_per_s": 3000.0}]
    set_calibration(con, ["r"], rows)
    join.evaluate(con, "r")
    set_calibration(con, ["r"], rows)
    assert con.execute("select evaluated_at is null from runs").fetchall() == [(False,)]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"kind": "matmul", "tflops": 1}, "dtype is None"),
        ({"kind": "matmul", "dtype": "bf16"}, "tflops of a matmul is None"),
        ({"kind": "matmul", "dtype": "bf16", "tflops": -1}, "a number above 0"),
        ({"kind": "hbm", "gb_per_s": float("nan")}, "a number above 0"),
        ({"kind": "hbm", "gb_per_s": 1, "dtype": "bf16"}, "others none"),
        ({"kind": "flash", "gb_per_s": 1}, "known are matmul, hbm, busbw"),
        ({"kind": "busbw", "gb_per_s": 1, "collective": "all"}, "collective is 'all'"),
        ({"kind": "hbm", "gb_per_s": 1, "speed": 2}, "unknown key 'speed'"),
        ({"kind": "hbm", "gb_per_s": 1, "hardware": "h1000"}, "h1000"),
        (3, "a table is expected"),
    ],
)
def test_what_is_wrong_is_said(row, says):
    assert says in "; ".join(calibration.problems([row]))


def test_a_file_that_is_none_is_refused(tmp_path):
    for name, text in (("a.toml", "x ="), ("b.json", "{}"), ("c.csv", "kind,gb_per_s\nhbm,fast\n")):
        (tmp_path / name).write_text(text)
        with pytest.raises(TraceError):
            calibration.load(tmp_path / name)

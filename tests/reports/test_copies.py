"""Copies against the links that they go over, worked out by hand from the rates of the catalogue."""

import polars as pl
import pytest

from tracegap.ingest.load import store_trace
from tracegap.ingest.store import frame_of, open_store
from tracegap.ingest.trace import OPS, Device, Trace
from tracegap.reports import join

NAMES = (
    "Memcpy HtoD (Pinned -> Device)",
    "MemcpyD2H",
    "Memcpy PtoP (Device -> Device)",
    "Memcpy DtoD (Device -> Device)",
    "copy-start.1",
)


def copies(device):
    rows = [
        {"op_id": i, "device_id": "0", "stream": "7", "name": name, "op_class": "copy", "start_ns": 1_000_000 * i,
         "dur_ns": 500_000, "bytes": 6_400_000, "cost_source": "trace"}
        for i, name in enumerate(NAMES)
    ]  # fmt: skip
    return Trace(
        format="test", framework="cuda", origin_unix_ns=0, devices=[Device(device_id="0", kind="gpu", name=device)],
        ops=pl.DataFrame([{c: row.get(c) for c in OPS} for row in rows], schema=OPS),
    )  # fmt: skip


def gap(tmp_path, device):
    with open_store(tmp_path / "s.duckdb") as con:
        store_trace(con, copies(device), trace_id="t", run_id="run", path="t.json", sha256="t")
        join.evaluate(con, "run")
        return frame_of(
            con,
            "select way, link, predicted_ns, efficiency_frac, exposed_ns, unknown_because from copy_gap order by op_id",
        ).rows()


def test_each_way_by_hand(tmp_path):
    # H100 SXM: 64 GB/s to the host, 450 GB/s to a peer behind the switch, 3352 GB/s of memory. 6.4 MB in 500 us.
    assert gap(tmp_path, "NVIDIA H100 80GB HBM3") == [
        ("host_to_device", "host", 100_000, pytest.approx(0.2), 500_000, None),
        ("device_to_host", "host", 100_000, pytest.approx(0.2), 500_000, None),
        ("peer", "peer", 14_222, pytest.approx(14_222 / 500_000, rel=1e-3), 500_000, None),
        ("device", "memory", 1_909, pytest.approx(1_909 / 500_000, rel=1e-3), 500_000, None),
        (None, None, None, None, 500_000, "its name does not say from where to where"),
    ]


def test_a_pair_of_a_full_mesh_has_its_own_links_only(tmp_path):
    # MI300X: 448 GB/s over seven links, 64 of them to one other.
    assert gap(tmp_path, "AMD Instinct MI300X")[2][:3] == ("peer", "peer", 100_000)


def test_an_unknown_part_has_no_link(tmp_path):
    rows = gap(tmp_path, "a part that nobody knows")
    assert [row[2] for row in rows] == [None] * 5
    assert rows[0][5] == "unknown part"

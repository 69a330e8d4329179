"""The links of each device that copies go over, at their nominal rates."""

import duckdb
import polars as pl

from tracegap.ingest import store
from tracegap.models import hardware
from tracegap.models.collectives import Fabric
from tracegap.models.errors import NoFormula
from tracegap.models.units import GB
from tracegap.reports.stage import Run

ORDER = 15
TABLES = ("device_links",)
_SCHEMA = {
    "trace_id": pl.String, "device_id": pl.String, "link": pl.String, "gb_per_s": pl.Float64, "source": pl.String
}  # fmt: skip


def run(con: duckdb.DuckDBPyConnection, run: Run) -> None:
    """Fills device_links."""
    devices = con.execute(
        """
        select trace_id, device_id, hardware, hbm_bytes_per_s, hbm_source
        from devices join traces using (trace_id) where run_id = ? order by trace_id, device_id
        """,
        [run.run_id],
    ).fetchall()
    rows = []
    for trace_id, device_id, chip_id, memory_bytes_per_s, memory_source in devices:
        links = [("memory", memory_bytes_per_s, memory_source), *_outward(chip_id)]
        rows += [(trace_id, device_id, link, rate and rate / GB, source) for link, rate, source in links]
    store.insert(con, "device_links", pl.DataFrame(rows, schema=_SCHEMA, orient="row"))


def _outward(chip_id: str | None) -> list[tuple[str, float | None, str]]:
    """The links to the host and to another device, bytes a second, and where the rate is from or why there is none."""
    if chip_id is None:
        return [("host", None, "unknown part"), ("peer", None, "unknown part")]
    chip = hardware.get(chip_id)
    host = chip.device_pcie_bytes_per_s
    told = f"catalogue: {chip_id}" if host else f"the catalogue has no rate between {chip_id} and its host"
    try:
        fabric = Fabric.switch(chip)
        peer: tuple[str, float | None, str] = ("peer", fabric.pair_bytes_per_s, f"catalogue: {chip_id}, {fabric.shape}")
    except NoFormula as e:
        peer = ("peer", None, str(e))
    return [("host", host, told), peer]

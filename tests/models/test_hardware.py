import re
from dataclasses import fields
from pathlib import Path

import pytest

from tracegap.models import hardware
from tracegap.models.errors import UnknownChip

CATALOGUE = hardware.catalogue()
CHIPS = list(CATALOGUE.values())
GIB = 2**30


def by_id(chip: hardware.Chip) -> str:
    return chip.id


NAMES = [(name, chip.id) for chip in CHIPS for name in chip.match_names if chip.match_regex]
OTHER_NAMES = [
    ("A100-SXM-80GB", "a100_sxm_80"),
    ("GeForce RTX 3090", "rtx_3090"),
    ("H100 SXM5", "h100_sxm"),
    ("NVIDIA B300 SXM6", "b300"),
    ("NVIDIA GH200 144G", "gh200_144"),
    ("NVIDIA RTX 6000 Ada", "rtx_6000_ada"),
    ("Tesla V100-SXM3-32GB-H", "v100_sxm2_32"),
    ("AMD Instinct MI300X HF", "mi300x"),
    ("AMD Instinct MI325X VF", "mi325x"),
    ("HL-225H", "gaudi2"),
    ("HL-325L", "gaudi3"),
    ("TPU v4p", "tpu_v4"),
    ("TPU v5lite", "tpu_v5e"),
    ("TPU v7x", "tpu_v7"),
]
NEAR_MISSES = (
    """
NVIDIA H100|NVIDIA H100 80GB HBM2e|NVIDIA H100 80GB HBM3 MIG 3g.40gb|NVIDIA H100 64GB HBM2|NVIDIA H800 PCIe
NVIDIA H200 MIG 1g.18gb|NVIDIA H20Z|NVIDIA H2000|NVIDIA A100|NVIDIA A100-SXM4-40GB MIG 1g.5gb|NVIDIA A100X
NVIDIA A100-SXM-64GB|A100-SXM4-20GB|GRID A100-40C|NVIDIA A10M|NVIDIA A16|NVIDIA A2|NVIDIA A30X|NVIDIA A40-48Q
NVIDIA B200 MIG 1g.23gb|NVIDIA GB200 NVL4|NVIDIA GB300-WS|NVIDIA GH200|NVIDIA L20Y|NVIDIA L40G|NVIDIA L4 MIG 1g.6gb
NVIDIA GeForce RTX 4090 D|NVIDIA GeForce RTX 4090 Laptop GPU|NVIDIA GeForce RTX 5090 D|NVIDIA GeForce RTX 3080 Ti
NVIDIA GeForce RTX 3090 Ti|NVIDIA GeForce RTX 2080|NVIDIA RTX PRO 6000 Blackwell|Quadro RTX 6000|NVIDIA RTX A6000-48Q
NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb|Tesla V100|Tesla V100-FHHL-16GB|Tesla V100-SXM2-8GB|Tesla T40
Quadro GP100|Tesla P100-SXM2-16GB|AMD Instinct MI300|AMD Instinct MI308X|AMD Instinct MI355|AMD Radeon RX 7900 XTX
AMD Radeon Graphics|gfx942|gfx90a|gfx950|gfx1100|TPU|TPU v1|TPU v5 lite pod|TPU v6|TPU v8|trn3|Gaudi|inf2|HL-2080
Intel(R) Xeon(R) Platinum 8480+|CPU
""".replace("\n", "|")
    .strip("|")
    .split("|")
)


@pytest.mark.parametrize(("name", "chip_id"), NAMES + OTHER_NAMES)
def test_a_name_hits_its_own_part_only(name: str, chip_id: str) -> None:
    for spelling in (name, name.lower(), f" {name}\n"):
        found = hardware.match(spelling)
        assert found is not None
        assert found.chip.id == chip_id
    hits = [chip.id for chip in CHIPS if chip.match_regex and re.search(chip.match_regex, name, re.IGNORECASE)]
    assert hits == [chip_id]


@pytest.mark.parametrize("name", [*NEAR_MISSES, "", None])
def test_a_near_miss_hits_none(name: str | None) -> None:
    assert hardware.match(name) is None


@pytest.mark.parametrize(
    ("name", "memory_gib", "cores", "capability", "chip_id"),
    [
        ("NVIDIA H100 80GB HBM3", 79.2, 132, "9.0", "h100_sxm"),
        ("NVIDIA GB200", 184, 148, "10.0", "gb200"),
        ("NVIDIA B300 SXM6 AC", 268.6, 148, "10.3", "b300"),
        ("TPU v5 lite", 16, 1, None, "tpu_v5e"),
        # Names of several parts are decided by what else is known.
        ("gfx942", 192, 304, None, "mi300x"),
        ("gfx942:sramecc+:xnack-", 256, 304, None, "mi325x"),
        ("gfx942", 128, 228, "9.4", "mi300a"),
        ("", 192, 304, "9.4", "mi300x"),
        (None, 256, 304, "gfx942", "mi325x"),
        ("AMD Radeon Graphics", 64, 110, "9.0", "mi250x"),
        ("AMD Instinct MI250X/MI250", 64, 104, "9.0", "mi250"),
        ("AMD Instinct MI250X/MI250", 64, 110, "9.0", "mi250x"),
    ],
)
def test_what_else_is_known_agrees(
    name: str | None, memory_gib: float, cores: int, capability: str | None, chip_id: str
) -> None:
    found = hardware.match(name, memory_bytes=memory_gib * GIB, core_count=cores, compute_capability=capability)
    assert found is not None
    assert found.chip.id == chip_id
    assert found.matched_by


@pytest.mark.parametrize(
    ("name", "memory_gib", "cores", "capability"),
    [
        ("NVIDIA A100-PG509-200", 80, 108, "8.0"),  # the name of the 40 GB part on another
        ("NVIDIA GeForce RTX 3080", 12, 70, "8.6"),  # a variant with other memory
        ("AMD Instinct MI300X", 24, 38, "9.4"),  # a partition
        ("NVIDIA H200", 141, 132, "10.0"),
        ("gfx942", 192, 80, None),  # MI308X, which the catalogue does not have
        ("gfx942", 192, None, None),
        ("gfx90a", 64, 104, None),  # MI250 or MI210
        ("gfx950", 288, 256, None),  # MI355X or MI350X
        ("", 192, 304, None),
        ("", 79.2, 132, "9.0"),  # no name, and not AMD's
    ],
)
def test_a_contradiction_or_an_open_choice_hits_none(
    name: str, memory_gib: float, cores: int | None, capability: str | None
) -> None:
    found = hardware.match(name, memory_bytes=memory_gib * GIB, core_count=cores, compute_capability=capability)
    assert found is None


def test_unknown_id_lists_what_is_known() -> None:
    with pytest.raises(UnknownChip, match=r"no chip 'h100_smx'.*did you mean h100_sxm.*`tracegap hardware` lists all"):
        hardware.get("h100_smx")


@pytest.mark.parametrize("chip", CHIPS, ids=by_id)
def test_every_part_says_where_its_figures_come_from(chip: hardware.Chip) -> None:
    assert chip.source
    assert chip.checked
    assert chip.entered.year >= 2026
    assert chip.confidence in {"high", "medium", "low", "example"}
    assert chip.kind in {"tpu", "gpu", "cpu", "accelerator"}
    columns = {column.name for column in fields(hardware.Chip)}
    assert set(chip.sources) <= {column for column in columns if getattr(chip, column) is not None}
    assert chip.source_of("name") == chip.source


@pytest.mark.parametrize(("text", "problem"), [("name = 3 4", "Expected newline"), ('colour = "red"', "colour")])
def test_a_file_that_does_not_fit_is_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "new_chip.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"chips/new_chip.toml: .*{problem}"):
        hardware.load(file)


def test_sources_of_single_figures() -> None:
    assert hardware.get("b200").source_of("peak_clock_mhz") == "back-computed from the peak"


def test_the_row_has_a_plain_value_in_every_column() -> None:
    row = hardware.get("h100_sxm").row()
    assert list(row)[:5] == ["id", "name", "vendor", "kind", "trace_devices_per_package"]
    assert (row["bf16_tflops"], row["fp4_tflops"], row["entered"][:4]) == (989.4, None, "2026")
    kinds = {type(value) for chip in CHIPS for value in chip.row().values()}
    assert kinds <= {str, int, float, type(None)}


@pytest.mark.parametrize("chip", CHIPS, ids=by_id)
def test_figures_are_sane(chip: hardware.Chip) -> None:
    peak = chip.device_flops_per_s("bf16") or chip.device_flops_per_s("fp16") or chip.device_flops_per_s("fp32")
    assert peak is not None
    assert 20 < peak / chip.device_hbm_bytes_per_s < 1000
    if chip.scaleup_links and chip.scaleup_link_gbps_per_dir:
        assert chip.scaleup_gbps_per_dir == chip.scaleup_links * chip.scaleup_link_gbps_per_dir
    if chip.peak_clock_mhz and chip.boost_clock_mhz:
        assert chip.peak_clock_mhz <= chip.boost_clock_mhz


FULL_RATE_INT8 = {"rtx_2080_ti", "rtx_3090", "rtx_3080", "rtx_4090", "rtx_5090"}
NO_INT8 = {"b300", "gb300"}


@pytest.mark.parametrize("chip", [chip for chip in CHIPS if chip.kind != "cpu"], ids=by_id)
def test_eight_bit_peaks_are_once_or_twice_those_of_sixteen(chip: hardware.Chip) -> None:
    sixteen = chip.bf16_tflops or chip.fp16_tflops
    assert sixteen
    for column, eight in (("fp8", chip.fp8_tflops), ("int8", chip.int8_tops)):
        if eight is None or (column == "int8" and chip.id in NO_INT8):
            continue
        ratio = eight / sixteen
        expected = 4 if column == "int8" and chip.id in FULL_RATE_INT8 else round(ratio)
        assert expected in (1, 2, 4 if chip.id in FULL_RATE_INT8 else 2)
        assert ratio == pytest.approx(expected, rel=0.03)


FLOPS_PER_CORE_CYCLE = {
    1024: """v100_sxm2_16 v100_sxm2_32 v100_dgxs_32 v100_pcie_16 v100_pcie_32 v100s_pcie_32 t4 a10 a40 rtx_a6000 l4 l40s
             rtx_6000_ada rtx_pro_6000_ws rtx_pro_6000_maxq rtx_pro_6000_server mi250x mi250 mi210""",
    512: "a10g l40 l20 rtx_2080_ti rtx_3080 rtx_3090 rtx_4090 rtx_5090",
    2048: "a30 a100_sxm_40 a100_sxm_80 a100_pcie_40 a100_pcie_80 a800_sxm_80 a800_pcie_80 mi300x mi325x mi300a",
    4096: "h100_sxm h100_pcie h100_nvl h800_sxm h200 h200_nvl gh200_96 gh200_144 mi355x mi350x",
    8192: "b200 gb200 b300 gb300",
    2 * 4 * 128**2: "tpu_v5e tpu_v5p tpu_v4i",
    2 * 256**2: "gaudi2 gaudi3",
}


@pytest.mark.parametrize(
    ("chip_id", "rate"), [(chip_id, rate) for rate, ids in FLOPS_PER_CORE_CYCLE.items() for chip_id in ids.split()]
)
def test_cores_times_rate_times_clock_is_the_peak(chip_id: str, rate: int) -> None:
    chip = hardware.get(chip_id)
    peak = chip.bf16_tflops or chip.fp16_tflops
    assert chip.core_count
    assert chip.peak_clock_mhz
    assert chip.core_count * rate * chip.peak_clock_mhz / 1e6 == pytest.approx(peak, rel=0.02)


def test_rates_are_of_one_device_of_a_trace() -> None:
    gcd = hardware.get("mi250x")
    assert gcd.device_flops_per_s("bf16") == 191.5e12
    assert gcd.device_memory_bytes == 64e9
    assert gcd.device_core_count == 110
    assert gcd.device_hbm_bytes_per_s == 1638.5e9
    h100 = hardware.get("h100_sxm")
    assert h100.device_flops_per_s("bf16") == 989.4e12
    assert h100.device_flops_per_s("fp64") == 67e12  # its matrix units have fp64
    assert h100.device_flops_per_s("fp32") == h100.device_vector_flops_per_s == 67e12
    assert h100.device_flops_per_s("uint8") == h100.device_flops_per_s("int8")
    assert (h100.device_egress_bytes_per_s, h100.device_scaleout_bytes_per_s) == (450e9, 50e9)


def test_a_peak_that_is_not_known_is_none() -> None:
    assert hardware.get("v100_sxm2_16").device_flops_per_s("bf16") is None
    assert hardware.get("tpu_v5e").device_flops_per_s("fp32") is None
    assert hardware.get("h100_sxm").device_flops_per_s("complex64") is None
    assert hardware.get("t4").device_egress_bytes_per_s is None

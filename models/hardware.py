"""The catalogue of chips: one TOML file a part in `models/chips/`, and how a trace's device finds its part.

Figures are nominal data-sheet values, dense, of a whole package; keys and units are those of the public `hardware`
table, so this module alone speaks of TFLOP/s and GB/s. The `device_...` properties are what everything else uses: SI
units, of one device as a trace shows it. To add a part, add a file; its tests find it.
"""

import datetime
import re
import tomllib
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from tracegap.models.errors import UnknownChip
from tracegap.models.names import did_you_mean
from tracegap.models.units import GB, MB, TERA

PEAK_COLUMNS = {
    "fp64": ("fp64_matrix_tflops", "fp64_tflops"),
    "fp32": ("fp32_matrix_tflops", "fp32_tflops"),
    "tf32": ("tf32_tflops",),
    "bf16": ("bf16_tflops",),
    "fp16": ("fp16_tflops",),
    "fp8": ("fp8_tflops",),
    "int8": ("int8_tops",),
    "uint8": ("int8_tops",),
    "fp4": ("fp4_tflops",),
}
"""Where the peak of a matrix product is, by its dtype; vector units do it where no matrix unit can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A part as it is sold. None: not supported or not known."""

    id: str
    """Name of the part in the catalogue and in `devices.hardware`."""
    name: str
    vendor: str
    kind: str
    """tpu, gpu, cpu or accelerator."""
    trace_devices_per_package: int
    """Devices that a trace shows for one package."""
    fp64_tflops: float | None = None
    """Vector rate, 10^12 FLOP/s; so are all that follow, of the matrix units unless said otherwise."""
    fp64_matrix_tflops: float | None = None
    fp32_tflops: float | None = None
    """Vector rate."""
    fp32_matrix_tflops: float | None = None
    tf32_tflops: float | None = None
    bf16_tflops: float | None = None
    """With fp32 accumulation, as fp16 and fp8."""
    fp16_tflops: float | None = None
    fp8_tflops: float | None = None
    int8_tops: float | None = None
    """With int32 accumulation, 10^12 operations a second."""
    fp4_tflops: float | None = None
    hbm_gb: float | None = None
    """Memory as sold, 10^9 bytes."""
    hbm_gbps: float
    """Memory bandwidth, 10^9 bytes a second; so are all that follow."""
    onchip_kind: str | None = None
    """The largest store on the chip that can keep a tensor."""
    onchip_mb: float | None = None
    """Its size, 10^6 bytes."""
    onchip_gbps: float | None = None
    """Its bandwidth, read, of the whole package."""
    core_kind: str | None = None
    core_count: int | None = None
    mxu_side: int | None = None
    """Rows and columns of a systolic array; dimensions of a product are padded to it."""
    peak_clock_mhz: float | None = None
    """Clock at which the peaks hold."""
    boost_clock_mhz: float | None = None
    """Clock that the driver reports; not to be multiplied with anything."""
    scaleup_kind: str | None = None
    """NVLink, ICI, xGMI, ..."""
    scaleup_links: int | None = None
    scaleup_link_gbps_per_dir: float | None = None
    """One link in one direction, nominal."""
    scaleup_gbps_per_dir: float | None = None
    """All links of the package in one direction: its egress."""
    scaleup_shape: str | None = None
    scaleup_max_domain: int | None = None
    """Packages that can be reached without leaving these links."""
    scaleout_gbps: float | None = None
    """A package's share of the network of a reference system; None where it depends on the host."""
    pcie_gbps: float | None = None
    """To the host, one direction."""
    compute_capability: str | None = None
    """CUDA's, or AMD's architecture ("gfx942")."""
    match_names: tuple[str, ...] = ()
    """What traces call it."""
    match_regex: str | None = None
    """Finds its own names only, searched without regard to case; None: found by no name."""
    source: str
    """Document in which the vendor states the figures."""
    confidence: str
    """high, medium or low."""
    note: str | None = None
    """Where sources differ and what to beware of."""
    checked: str
    """How many independent statements were compared, whose, and what that changed."""
    entered: datetime.date
    """Day on which the figures entered the catalogue."""
    sources: dict[str, str] = field(default_factory=dict)
    """Sources of single figures, by column, where they differ from `source`."""

    def source_of(self, column: str) -> str:
        """Where a figure comes from."""
        return self.sources.get(column, self.source)

    def row(self) -> dict[str, Any]:
        """The part as a row of the public `hardware` table; lists are joined by semicolons."""
        return {column.name: getattr(self, column.name) for column in fields(self)} | {
            "match_names": ";".join(self.match_names),
            "entered": self.entered.isoformat(),
            "sources": ";".join(f"{column}: {source}" for column, source in self.sources.items()) or None,
        }

    def device_flops_per_s(self, dtype: str) -> float | None:
        """Dense peak of matrix products of a dtype of `models.ops.DTYPE_BYTES` on one device of a trace."""
        peaks = (getattr(self, column) for column in PEAK_COLUMNS.get(dtype, ()))
        return self._per_device(next((peak for peak in peaks if peak is not None), None), TERA)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes of which a peak is known."""
        return tuple(dtype for dtype in PEAK_COLUMNS if self.device_flops_per_s(dtype) is not None)

    @property
    def device_vector_flops_per_s(self) -> float | None:
        """Peak of the fp32 vector units of one device."""
        return self._per_device(self.fp32_tflops, TERA)

    @property
    def device_hbm_bytes_per_s(self) -> float:
        """Memory bandwidth of one device."""
        return self.hbm_gbps * GB / self.trace_devices_per_package

    @property
    def device_onchip_bytes_per_s(self) -> float | None:
        """Bandwidth of the store on the chip of one device."""
        return self._per_device(self.onchip_gbps, GB)

    @property
    def device_onchip_bytes(self) -> float | None:
        """Size of the store on the chip of one device."""
        return self._per_device(self.onchip_mb, MB)

    @property
    def device_memory_bytes(self) -> float | None:
        """Memory of one device as sold; what a trace says of its device goes first."""
        return self._per_device(self.hbm_gb, GB)

    @property
    def device_core_count(self) -> float | None:
        """Cores of one device."""
        return self._per_device(self.core_count, 1)

    @property
    def device_egress_bytes_per_s(self) -> float | None:
        """What one device can send over all its scale-up links, nominal."""
        return self._per_device(self.scaleup_gbps_per_dir, GB)

    @property
    def device_link_bytes_per_s(self) -> float | None:
        """What one device can send over one scale-up link, nominal."""
        return self._per_device(self.scaleup_link_gbps_per_dir, GB)

    @property
    def device_scaleout_bytes_per_s(self) -> float | None:
        """Share of the network of one device in one direction."""
        return self._per_device(self.scaleout_gbps, GB)

    @property
    def device_pcie_bytes_per_s(self) -> float | None:
        """Bandwidth to the host of one device in one direction, nominal."""
        return self._per_device(self.pcie_gbps, GB)

    def _per_device(self, of_package: float | None, unit: int) -> float | None:
        return None if of_package is None else of_package * unit / self.trace_devices_per_package


_FLOATS = {column.name for column in fields(Chip) if column.type in (float, float | None)}


@cache
def catalogue() -> dict[str, Chip]:
    """All parts by id, in the order of the ids. Raises ValueError, naming the file, where one does not fit."""
    files = resources.files("tracegap.models").joinpath("chips").iterdir()
    chips = [load(file) for file in files if file.name.endswith(".toml")]
    return {chip.id: chip for chip in sorted(chips, key=lambda chip: chip.id)}


def load(file: Traversable) -> Chip:
    """The part of a catalogue file, whose name is its id. Raises ValueError, naming the file, where it does not fit."""
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
        values |= {column: float(values[column]) for column in _FLOATS & values.keys()}
        values["match_names"] = tuple(values.get("match_names", ()))
        return Chip(id=file.name.removesuffix(".toml"), **values)
    except (tomllib.TOMLDecodeError, TypeError, ValueError) as error:
        raise ValueError(f"chips/{file.name}: {error}") from error


def get(chip_id: str) -> Chip:
    """The part of that id. Raises UnknownChip, which names the nearest ids."""
    chip = catalogue().get(chip_id)
    if chip is None:
        if not chip_id.strip():
            raise UnknownChip("an empty name where a chip is expected; `tracegap hardware` lists them")
        hint = did_you_mean(chip_id, catalogue())
        raise UnknownChip(f"no chip {chip_id!r} in the catalogue{hint or ';'} `tracegap hardware` lists all")
    return chip


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The part that a device of a trace is, and why."""

    chip: Chip
    matched_by: str
    """What decided, for people and `devices.matched_by`."""


def match(
    name: str | None,
    *,
    memory_bytes: float | None = None,
    core_count: float | None = None,
    compute_capability: str | None = None,
) -> Match | None:
    """The part of a device, by what its trace says of it; None rather than a near miss.

    Exactly one part must answer to the name, and what else is known of a GPU must not contradict it: a partition, or a
    variant with other memory under the same name, is another part. Names that AMD gives to several parts (an
    architecture, none at all) are decided by architecture, memory and number of cores together, or not at all.
    """
    text = (name or "").strip()
    by_name = [chip for chip in catalogue().values() if _answers_to(chip, text)]
    if len(by_name) == 1 and _agrees(by_name[0], memory_bytes, core_count, compute_capability):
        return Match(chip=by_name[0], matched_by=f"name {text!r}")

    if len(by_name) == 1:
        architecture = by_name[0].compute_capability
    elif text.casefold().startswith("gfx"):
        architecture = text
    elif text.casefold() in _ANONYMOUS:
        architecture = compute_capability
    else:
        return None
    if not (architecture and memory_bytes and core_count):
        return None
    fits = [
        chip
        for chip in catalogue().values()
        if chip.vendor == "AMD"
        and chip.device_core_count == core_count
        and _same_capability(chip.compute_capability, architecture)
        and _agrees(chip, memory_bytes, core_count, compute_capability)
    ]
    if len(fits) != 1:
        return None
    facts = f"{fits[0].compute_capability}, {core_count:g} {fits[0].core_kind}s, {memory_bytes / GB:.0f} GB"
    return Match(chip=fits[0], matched_by=facts)


_ANONYMOUS = {"", "amd radeon graphics"}
"""What AMD's tools say where the host has no table of names."""
_MEMORY_OF_NOMINAL = (0.92, 1.12)
"""Driver's figure over the one sold: from what a driver keeps for itself to capacities that are GiB sold as GB."""
_CORES_OFF = 0.03
"""Some parts are sold with a few cores more or fewer under one name (GB200: 148 or 152)."""


def _answers_to(chip: Chip, text: str) -> bool:
    return chip.match_regex is not None and re.search(chip.match_regex, text, re.IGNORECASE) is not None


def _agrees(chip: Chip, memory_bytes: float | None, core_count: float | None, compute_capability: str | None) -> bool:
    """Whether nothing that is known of a GPU contradicts it; what other devices call a core or their memory varies."""
    if chip.kind != "gpu":
        return True
    nominal_cores = chip.device_core_count
    low, high = _MEMORY_OF_NOMINAL
    return (
        (not memory_bytes or not chip.device_memory_bytes or low <= memory_bytes / chip.device_memory_bytes <= high)
        and (not core_count or nominal_cores is None or abs(core_count / nominal_cores - 1) <= _CORES_OFF)
        and (not compute_capability or _same_capability(chip.compute_capability, compute_capability))
    )


def _same_capability(ours: str | None, theirs: str) -> bool:
    """Whether two ways of writing it mean the same: "gfx942:sramecc+" and "gfx942", or ROCm's "9.4" for either."""
    if ours is None:
        return True
    ours, theirs = (text.casefold().split(":")[0] for text in (ours, theirs))
    if ours.startswith("gfx") and theirs.startswith("gfx"):
        return ours == theirs
    return _major_minor(ours) == _major_minor(theirs)


def _major_minor(capability: str) -> tuple[str, str]:
    """("9", "4") of "gfx942" and of "9.4"; a missing minor number is 0."""
    if capability.startswith("gfx"):
        return capability[3:-2], capability[-2:-1]
    major, _, minor = capability.partition(".")
    return major, minor or "0"

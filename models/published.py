"""What people reach: the best matrix products and whole trainings that were published, by part.

Calibration beside the peak, never in place of it. Shares are of the dense peak of the catalogue.
"""

from dataclasses import dataclass

from tracegap.models.hardware import Chip
from tracegap.models.units import TERA, human

_MAMF = "ml-engineering, maximum achievable matmul FLOP/s, best shape found"
_BOOK = "Scaling Book, chapter 2: well-shaped matrix products reach about 95% on TPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The fastest matrix product found on a part."""

    share: float
    """Of the dense peak."""
    source: str


def _mamf(tflops: float, peak: float) -> Ceiling:
    return Ceiling(share=tflops / peak, source=_MAMF)


_TPU = Ceiling(share=0.95, source=_BOOK)
CEILINGS: dict[tuple[str, str], Ceiling] = {
    ("a100_sxm_80", "bf16"): _mamf(271, 312),
    ("a100_sxm_40", "bf16"): _mamf(271, 312),
    ("a100_pcie_80", "bf16"): _mamf(253, 312),
    ("h100_sxm", "bf16"): _mamf(795, 989.4),
    ("h200", "bf16"): _mamf(795, 989.4),
    ("gh200_96", "bf16"): _mamf(829, 989.4),
    ("b200", "bf16"): _mamf(1745, 2250),
    ("b300", "bf16"): _mamf(1769, 2250),
    ("gb200", "bf16"): _mamf(1822, 2500),
    ("mi300x", "bf16"): _mamf(668, 1307.4),
    ("mi325x", "bf16"): _mamf(785, 1307.4),
    ("mi355x", "bf16"): _mamf(1565, 2516.6),
    ("h100_sxm", "fp8"): _mamf(1403, 1978.9),
    ("h200", "fp8"): _mamf(1453, 1978.9),
    ("b200", "fp8"): _mamf(3433, 4500),
    **{(f"tpu_{name}", "bf16"): _TPU for name in ("v2", "v3", "v4", "v5e", "v5p", "v6e", "v7")},
}
"""By catalogue id and dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A published training."""

    chip: str
    run: str
    devices: int
    flops_per_s: float
    """Model FLOP/s a device, by the convention that `note` states."""
    note: str


TRAININGS = (
    Training(chip="tpu_v4", run="PaLM 540B", devices=6144, flops_per_s=127e12, note="46.2% MFU, unmasked attention"),
    Training(chip="a100_sxm_80", run="Megatron GPT 175B", devices=64, flops_per_s=160e12, note="51.4% MFU, selective"),
    Training(chip="a100_sxm_80", run="Megatron-Turing 530B", devices=2240, flops_per_s=95e12,
             note="126 TFLOP/s with full recomputation; model FLOPs are 3/4 of them"),
    Training(chip="h100_sxm", run="Llama 3 405B, 8k tokens", devices=16384, flops_per_s=400e12, note="40.4% MFU, printed as 41%"),
    Training(chip="h100_sxm", run="Llama 3 405B, 8k tokens", devices=8192, flops_per_s=430e12, note="43% MFU"),
    Training(chip="h100_sxm", run="Llama 3 405B, 131k tokens", devices=16384, flops_per_s=380e12, note="38% MFU"),
    Training(chip="h800_sxm", run="DeepSeek-V3", devices=2048, flops_per_s=327e12,
             note="6 x 37B x 14.8T over 2.79M GPU-hours, fp8, attention left out"),
)  # fmt: skip
"""Where the source states them: PaLM appendix B; Korthikanti et al. 2022, table 5; Smith et al. 2022; Grattafiori et al.
2024, table 4; DeepSeek-AI 2024 and the Scaling Book, chapter 4. The texts of the last two papers, and tables that quote the
three others, in public repositories and pages, were opened 2026-11-30."""


def reachable_share(chip_id: str, dtype: str) -> float | None:
    """Share of the peak that the best matrix product reaches; of different parts the least; None where nobody says."""
    found = [CEILINGS.get((one, dtype)) for one in chip_id.split("+")]
    shares = [ceiling.share for ceiling in found if ceiling is not None]
    return min(shares) if len(shares) == len(found) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Smell:
    """Whether a measured rate can be true."""

    plausible: bool
    verdict: str
    share_of_peak: float
    share_of_ceiling: float | None
    """None where no ceiling is published."""
    others: tuple[Training, ...]
    """Trainings on this part."""


def smell(chip: Chip, flops_per_s: float, dtype: str = "bf16") -> Smell:
    """Judges a measured FLOP/s a device by the peak, the best matrix products and published trainings.

    Raises KeyError never; a part without a peak of that dtype has no verdict but its absence.
    """
    peak = chip.device_flops_per_s(dtype)
    others = tuple(training for training in TRAININGS if training.chip == chip.id)
    if peak is None:
        words = f"the catalogue has no {dtype} peak of {chip.id}"
        return Smell(plausible=False, verdict=words, share_of_peak=0.0, share_of_ceiling=None, others=others)
    share = flops_per_s / peak
    ceiling = reachable_share(chip.id, dtype)
    best = max((training.flops_per_s for training in others), default=None)
    if share > 1:
        verdict = (
            f"impossible: above the dense {dtype} peak of {human(peak, 'FLOP/s')}; look for a sparse peak, FLOPs of "
            "recomputation or masked attention, a wrong number of devices, or time that was not synchronised"
        )
    elif ceiling is not None and share > ceiling:
        verdict = (
            f"not plausible: the best matrix product reaches {100 * ceiling:.0f}% of the peak, a whole step less; "
            "look for FLOPs of recomputation or masked attention"
        )
    elif best is not None and flops_per_s > 1.15 * best:
        verdict = f"surprising: the best published training here reached {best / TERA:.0f} TFLOP/s"
    elif share < 0.15:
        verdict = "possible, and poor: most trainings reach 30 to 50% of the peak"
    else:
        verdict = "plausible"
    return Smell(
        plausible=share <= min(1.0, ceiling or 1.0),
        verdict=verdict,
        share_of_peak=share,
        share_of_ceiling=None if ceiling is None else share / ceiling,
        others=others,
    )

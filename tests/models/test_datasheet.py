"""A data sheet's tensor figure becomes a dense peak; the catalogue's own peaks agree with the sheets."""

import pytest

from tracegap.models import hardware
from tracegap.models.datasheet import dense_flops_per_s


def test_a_figure_with_sparsity_is_halved() -> None:
    sheet = {"bf16_tensor_tflops": 1979, "footnote": "with 2:4 structured sparsity; without it, one half"}
    assert dense_flops_per_s(sheet, "bf16") == 989.5e12


@pytest.mark.parametrize("footnote", ["", "dense", "without sparsity"])
def test_a_dense_figure_stays(footnote: str) -> None:
    assert dense_flops_per_s({"fp16_tensor_tflops": 312, "footnote": footnote}, "fp16") == 312e12


def test_a_figure_that_is_not_printed_is_unknown() -> None:
    assert dense_flops_per_s({"bf16_tensor_tflops": 1979}, "fp8") is None


@pytest.mark.parametrize(("chip", "printed"), [("h100_sxm", 1979), ("h100_pcie", 1513), ("l4", 242)])
def test_the_catalogue_has_dense_peaks(chip: str, printed: float) -> None:
    sheet = {"bf16_tensor_tflops": printed, "footnote": "With sparsity"}
    assert hardware.get(chip).device_flops_per_s("bf16") == pytest.approx(dense_flops_per_s(sheet, "bf16"), rel=2e-3)

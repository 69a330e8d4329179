"""Names that compilations make anew are the same role; names that mean something stay apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.reports.roles import role


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("triton_poi_fused_add_3", "triton_poi_fused_add"),
        ("triton_poi_fused_add_12", "triton_poi_fused_add"),
        ("triton_red_fused_sum_0d1d2de", "triton_red_fused_sum"),
        ("triton_poi_fused_mul_4f1c9a02_7", "triton_poi_fused_mul"),
        ("attention_9c0ffee1_fwd", "attention_fwd"),
        ("fusion.12", "fusion"),
        ("fusion.12.3", "fusion"),
        ("loop_multiply_fusion_5", "loop_multiply_fusion"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16>(Params)",
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16>(Params)",
        ),
        ("copy_decade", "copy_decade"),
        ("softmax_warp_forward", "softmax_warp_forward"),
        ("_7", "_7"),
    ],
)
def test_role(name: str, expected: str) -> None:
    assert role(name) == expected


@given(st.text(alphabet="abcz_", min_size=1), st.integers(0, 10**5), st.integers(0, 10**5))
def test_running_numbers_do_not_matter(name: str, one: int, other: int) -> None:
    assert role(f"x{name}_{one}") == role(f"x{name}_{other}")


@given(st.text(alphabet="abc019._x", max_size=30))
def test_a_role_is_its_own_role(name: str) -> None:
    assert role(role(name)) == role(name)

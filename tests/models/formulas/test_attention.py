import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tracegap.models.cost import Cost
from tracegap.models.errors import BadShape
from tracegap.models.formulas import cost
from tracegap.models.formulas.attention import attention_bwd_flops, attention_fwd_flops, visible_share
from tracegap.models.ops import OpSpec, Tensor

lengths = st.integers(1, 40)


def t(*shape: int, dtype: str = "bf16") -> Tensor:
    return Tensor(shape=shape, dtype=dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, *more: Tensor, kind: str = "attention", **params: object) -> Cost:
    return cost(OpSpec(kind=kind, tensors=(q, k, v, *more), params={"layout": "BNTH", "causal": False, **params}))


def test_full_attention_by_hand() -> None:
    # 2 sequences, 3 heads: 5 x 7 scores of 11 multiply-adds, then 5 x 13 results of 7 multiply-adds
    c = attend(t(2, 3, 5, 11), t(2, 3, 7, 11), t(2, 3, 7, 13))
    assert c.flops == 2 * 3 * (2 * 5 * 7 * 11 + 2 * 5 * 13 * 7)
    assert c.bytes == 2 * 6 * (5 * 11 + 7 * 11 + 7 * 13 + 5 * 13)
    assert (c.dtype, c.note) == ("bf16", None)


def test_backward_by_hand() -> None:
    # five products: scores again, dV (13 wide), dP (13 wide), dQ, dK (11 wide)
    q, k, v = t(2, 3, 5, 11), t(2, 3, 7, 11), t(2, 3, 7, 13)
    out, lse = t(2, 3, 5, 13), t(2, 3, 5, dtype="fp32")
    c = attend(q, k, v, out, out, lse, kind="attention_backward")
    assert c.flops == 6 * 2 * 5 * 7 * (11 + 13 + 13 + 11 + 11)
    read = 5 * 11 + 7 * 11 + 7 * 13 + 2 * 5 * 13
    written = 5 * 11 + 7 * 11 + 7 * 13
    assert c.bytes == 6 * (2 * (read + written) + 4 * 5)


@pytest.mark.parametrize("kind", ["attention", "attention_backward"])
def test_layouts_mean_the_same(kind: str) -> None:
    heads_first = attend(t(2, 8, 5, 16), t(2, 4, 7, 16), t(2, 4, 7, 16), kind=kind)
    tokens_first = attend(t(2, 5, 8, 16), t(2, 7, 4, 16), t(2, 7, 4, 16), kind=kind, layout="BTNH")
    assert heads_first == tokens_first


def test_shared_keys_save_bytes_and_no_flops() -> None:
    own = attend(t(1, 8, 5, 16), t(1, 8, 7, 16), t(1, 8, 7, 16))
    shared = attend(t(1, 8, 5, 16), t(1, 2, 7, 16), t(1, 2, 7, 16))
    assert own.flops == shared.flops
    assert own.bytes - shared.bytes == 2 * 6 * 2 * 7 * 16


def test_an_unknown_mask_leaves_the_flops_unknown_and_says_so() -> None:
    unknown = attend(t(1, 1, 4, 8), t(1, 1, 4, 8), t(1, 1, 4, 8), causal=None)
    assert unknown.flops is None
    assert unknown.bytes == attend(t(1, 1, 4, 8), t(1, 1, 4, 8), t(1, 1, 4, 8)).bytes
    assert "causal" in str(unknown.note)


def test_packed_sequences_have_bytes_but_no_flops() -> None:
    c = attend(t(100, 8, 16), t(100, 8, 16), t(100, 8, 16), varlen=True)
    assert c.flops is None
    assert c.bytes == 4 * 2 * 100 * 8 * 16
    assert "packed" in (c.note or "")


def test_causal_is_half_by_convention() -> None:
    full = attention_fwd_flops(B=2, T=512, S=512, N=4, d_qk=64, d_v=64, causal=False)
    assert attention_fwd_flops(B=2, T=512, S=512, N=4, d_qk=64, d_v=64, causal=True) == full / 2
    assert attention_bwd_flops(B=2, T=512, S=512, N=4, d_qk=64, d_v=64, causal=True) == full * 2.5 / 2


def seen(T: int, S: int, offset: int, before: int, after: int) -> int:
    """Scores that a mask leaves, one by one."""
    return sum(1 for i in range(T) for j in range(S) if i + offset - before <= j <= i + offset + after)


@given(lengths, lengths, st.sampled_from(["bottom_right", "top_left"]))
def test_causal_share_is_the_count_less_half_a_diagonal(T: int, S: int, mask: str) -> None:
    offset = S - T if mask == "bottom_right" else 0
    counted = seen(T, S, offset, S + T, 0)
    on_diagonal = sum(1 for i in range(T) if 0 <= i + offset < S)
    share = visible_share(T=T, S=S, causal=True, mask=mask)
    assert share * T * S == pytest.approx(counted - on_diagonal / 2)


@given(lengths, lengths, st.integers(0, 12), st.integers(-1, 12), st.booleans())
def test_windows_are_counted_exactly(T: int, S: int, before: int, after: int, causal: bool) -> None:
    assume(before < S - 1)
    share = visible_share(T=T, S=S, causal=causal, window=before, window_right=after)
    reach = 0 if causal else S + T if after < 0 else after
    assert round(share * T * S) == seen(T, S, S - T, before, reach)


@given(lengths, lengths, st.sampled_from(["bottom_right", "top_left"]), st.none() | st.integers(0, 50))
def test_a_mask_never_adds_work(T: int, S: int, mask: str, window: int | None) -> None:
    assert 0 <= visible_share(T=T, S=S, causal=True, mask=mask, window=window) <= 1
    assert visible_share(T=T, S=S, causal=False) == 1


@given(st.integers(1, 9), lengths, lengths)
def test_batch_scales_everything(batch: int, T: int, S: int) -> None:
    one = attend(t(1, 2, T, 8), t(1, 2, S, 8), t(1, 2, S, 8))
    many = attend(t(batch, 2, T, 8), t(batch, 2, S, 8), t(batch, 2, S, 8))
    assert (many.flops, many.bytes) == (batch * one.flops, batch * one.bytes)


def test_shapes_and_masks_that_make_no_sense() -> None:
    with pytest.raises(BadShape, match="do not go together"):
        attend(t(1, 2, 5, 8), t(1, 2, 7, 16), t(1, 2, 7, 16))
    with pytest.raises(BadShape, match="unknown causal mask"):
        visible_share(T=2, S=2, causal=True, mask="sideways")

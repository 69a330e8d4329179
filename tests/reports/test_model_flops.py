"""Model FLOPs by description and by operations, recomputation recognised; small steps worked out on paper."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.reports.small_steps import Host, mm, put, trace

from tracegap.ingest.manifest import Manifest
from tracegap.ingest.store import open_store
from tracegap.models import presets
from tracegap.models.errors import TracegapError
from tracegap.models.transformer import forward_flops, train_flops
from tracegap.reports import planning

ENGINE = "autograd::engine::evaluate_function: "


@pytest.fixture
def con(tmp_path):
    with open_store(tmp_path / "s.duckdb") as connection:
        yield connection


LINEAR = ("op", "aten::linear", ("op", "aten::mm", mm()))
BACKWARD = ("op", ENGINE + "MmBackward0", ("op", "MmBackward0", ("op", "aten::mm", mm()), ("op", "aten::mm", mm())))


def recomputed(con):
    return con.execute("select op_id, recognised_by from recomputed_ops order by op_id").fetchall()


def test_a_plain_backward_pass_recomputes_nothing_though_shapes_are_equal(con):
    host = Host()
    host.call(*LINEAR)
    host.call(*BACKWARD, thread="1/2")
    step = put(con, host.trace())
    assert recomputed(con) == []
    assert (step["matrix_flops_done"], step["model_flops"], step["model_flops_source"]) == (3000, 3000, "operations")


@pytest.mark.parametrize(
    ("again", "by"),
    [
        # torch.utils.checkpoint, not reentrant: a hook of the node calls the forward pass
        (("op", ENGINE + "MulBackward0", ("op", "MulBackward0", LINEAR, mm("aten::mul", 5, op_class="elementwise"))), "operator"),
        (("op", ENGINE + "MulBackward0", ("op", "MulBackward0", ("module", "nn.Module: Block_0", LINEAR))), "module"),
        (("op", ENGINE + "MulBackward0", ("op", "MulBackward0",
          ("python", "torch/utils/checkpoint.py(1500): recompute_fn", LINEAR))), "module"),
        # reentrant: the node of the checkpoint runs the forward pass and then a backward pass of its own
        (("op", ENGINE + "CheckpointFunctionBackward", ("op", "CheckpointFunctionBackward", LINEAR, BACKWARD)), "checkpoint"),
    ],
)  # fmt: skip
def test_a_checkpoint_is_recognised(con, again, by):
    host = Host()
    host.call(*LINEAR)
    host.call(*again, thread="1/2")
    host.call(*BACKWARD, thread="1/2")
    step = put(con, host.trace())
    assert recomputed(con) == [(1, by)]
    assert step["recomputed_flops"] == 1000
    assert step["matrix_flops_done"] - step["model_flops"] == 1000
    math = step["useful_math_ns"] + step["recompute_math_ns"]
    assert step["recompute_math_ns"] == pytest.approx(math * 1000 / step["matrix_flops_done"], abs=1)
    assert "recomputed" in step["mfu_note"]


def test_compiled_code_calls_products_of_equal_shapes_in_both_passes(con):
    """What Inductor calls in its backward pass is no forward pass again, though names and shapes are the same."""
    host = Host()
    host.call("op", "CompiledFunction", ("op", "aten::mm", mm()))
    host.call(
        "op",
        ENGINE + "CompiledFunctionBackward",
        ("op", "CompiledFunctionBackward", ("op", "aten::mm", mm())),
        thread="1/2",
    )
    put(con, host.trace())
    assert recomputed(con) == []


def test_fused_attention_computes_its_scores_again(con):
    """Forward 4 B N T^2 H, backward 10 of it; the mathematics needs 12: 3 x 4000."""
    host = Host()
    host.call("op", "aten::_flash_attention_forward", mm("aten::_flash_attention_forward", 4000, op_class="attention"))
    back = mm("aten::_flash_attention_backward", 10_000, op_class="attention")
    host.call("op", ENGINE + "FlashBackward", ("op", "FlashBackward", back), thread="1/2")
    step = put(con, host.trace())
    assert (step["matrix_flops_done"], step["recomputed_flops"], step["model_flops"]) == (14_000, 2000, 12_000)


def test_xla_names_what_it_computes_again(con):
    """The scope of jax.checkpoint, and an instruction that XLA itself rematerialised."""
    scopes = (
        "jit(f)/jvp(layer)/dot_general", "jit(f)/transpose(jvp(layer))/checkpoint/rematted_computation/mlp/dot_general",
        "jit(f)/transpose(jvp(layer))/checkpoint/mlp/dot_general",
        "jit(f)/transpose(jvp(layer))/checkpoint/rematted_computation/transpose(jvp(mlp))/dot_general",
    )  # fmt: skip
    ops = [{"op_id": i, "start_ns": 1000 * (i + 1), **mm(scope)} for i, scope in enumerate(scopes)]
    ops.append({"op_id": 4, "start_ns": 5000, **mm("jit(f)/jvp(layer)/dot_general"), "name": "fusion.7.remat2"})
    step = put(con, trace(ops, fmt="xspace"))
    assert recomputed(con) == [(1, "scope"), (4, "compiler")]
    assert (step["matrix_flops_done"], step["model_flops"]) == (5000, 3000)


GPT_2 = presets.get("gpt-2").model


def test_a_forward_pass_alone_is_no_training_step(con):
    host = Host()
    host.call("op", "aten::linear", ("op", "aten::mm", mm(flops=10**15)))
    step = put(con, host.trace(), Manifest(model={"preset": "gpt-2"}, tokens_per_step=1024, world_size=1))
    assert step["model_flops"] == forward_flops(GPT_2, 1024).total
    assert "no backward pass ran" in step["mfu_note"]


def test_a_description_that_needs_more_than_was_done_is_doubted(con):
    host = Host()
    host.call(*LINEAR)
    host.call(*BACKWARD, thread="1/2")
    step = put(con, host.trace(), Manifest(model={"preset": "gpt-2"}, tokens_per_step=1024, world_size=1))
    assert step["model_flops"] == train_flops(GPT_2, 1024)
    assert step["recompute_math_ns"] == 0
    assert "does not fit what ran" in step["mfu_note"]


def test_unknown_products_leave_the_model_unknown(con):
    host = Host()
    host.call(
        "op", "aten::linear", ("op", "aten::mm", mm()), ("op", "mine::op", mm("mine::op", None, op_class="custom"))
    )
    step = put(con, host.trace())
    assert step["model_flops"] is None
    assert "50.0% of compute time has unknown FLOPs" in step["mfu_note"]


def test_a_model_of_the_configuration_is_found(con):
    config = {"model.model_type": "gpt2", "model.n_layer": 12, "model.n_embd": 768, "model.n_head": 12,
              "model.vocab_size": 50257, "model.n_positions": 1024, "model.activation_function": "gelu_new"}  # fmt: skip
    host = Host()
    host.call(*LINEAR)
    host.call(*BACKWARD, thread="1/2")
    step = put(con, host.trace(), Manifest(config=config, tokens_per_step=1024, world_size=1))
    assert step["model_flops"] == train_flops(GPT_2, 1024)
    assert step["mfu_note"].startswith("model from the configuration (model.model_type = gpt2)")


def test_presets_and_keys_of_config_json_describe_a_model():
    assert planning.model_of({"preset": "gpt-2", "seq": 512}).seq == 512
    with pytest.raises(TracegapError, match="no model 'gpt-x' among the presets"):
        planning.model_of({"preset": "gpt-x"})
    with pytest.raises(TracegapError, match="model_type 'mine' is not known"):
        planning.model_of({"model_type": "mine"})


@given(
    st.lists(st.tuples(st.integers(0, 10**15), st.booleans()), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(0, 10**16)),
)
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_useful_and_recomputed_math_are_the_math_and_neither_is_negative(con, products, needed):
    con.execute(
        "delete from runs; delete from traces; delete from steps; delete from op_rows; delete from op_forms; delete from op_parts"
    ).fetchall()
    host = Host()
    for flops, attention in products:
        host.call("op", "aten::mm", mm("x_backward", flops, op_class="attention" if attention else "matmul"))
    put(con, host.trace())
    con.execute("update step_theory set model_flops = ?", [needed]).fetchall()
    math, useful, again = con.execute(
        "select w.math_ns, g.useful_math_ns, g.recompute_math_ns from step_gap g join step_work w using (trace_id, device_id, step)"
    ).fetchall()[0]
    assert useful + again == math
    assert useful >= 0
    assert again >= 0
    assert again == 0 or needed is not None

"""Groups of ranks and the axes of a mesh, against rank sets written out by hand."""

import pytest

from tracegap.reports.axes import Traffic, axis_of, meshes_of

MESH = {"pp": 2, "dp": 2, "tp": 4}  # ranks 0 to 15: tp is 0..3, dp is 4 apart, pp is 8 apart


def axis(ranks, mesh=None, config=None, world=16, **traffic):
    return axis_of(Traffic(ranks=tuple(ranks), size=len(ranks), **traffic), mesh or {}, config or {}, world)


@pytest.mark.parametrize(
    ("ranks", "want"),
    [
        ([0, 1, 2, 3], "tensor"),
        ([12, 13, 14, 15], "tensor"),
        ([1, 5], "data"),
        ([10, 14], "data"),
        ([3, 11], "pipeline"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "data+tensor"),
        (range(16), "pipeline+data+tensor"),
    ],
)
def test_rank_sets_on_a_mesh(ranks, want):
    assert axis(list(ranks), MESH) == (want, "mesh")


@pytest.mark.parametrize("ranks", [[0, 1], [0, 5], [0, 1, 2, 7], [0, 3, 4, 7]])
def test_what_is_no_axis_is_called_none(ranks):
    found, why = axis(ranks, MESH)
    assert found is None
    assert "tells" in why


def test_a_group_of_unknown_ranks_is_the_only_axis_of_its_size():
    assert axis_of(Traffic(ranks=None, size=4), MESH, {}, 16) == ("tensor", "mesh")
    assert axis_of(Traffic(ranks=None, size=2), MESH, {}, 16)[0] is None


def test_megatron_sizes():
    # 16 ranks, tp 2, cp 2, pp 2: dp 2 is left. tp is the fastest, then cp, dp, pp: strides 1, 2, 4, 8.
    config = {
        "args.tensor_model_parallel_size": 2,
        "args.context-parallel-size": 2,
        "args.pipeline_model_parallel_size": "2",
    }
    for ranks, want in (
        ([0, 1], "tensor"),
        ([0, 2], "context"),
        ([0, 4], "data"),
        ([0, 8], "pipeline"),
        ([0, 2, 4, 6], "data+context"),
    ):
        assert axis(ranks, config=config) == (want, "config")


def test_experts_divide_what_data_and_context_share():
    # 16 ranks, tp 2, ep 4: of the eight data ranks (2 apart) four neighbours hold different experts; their replicas are 8 apart.
    config = {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 4}
    assert axis([0, 2, 4, 6], config=config) == ("expert", "config")
    assert axis([0, 8], config=config) == ("expert_data", "config")
    assert axis([0, 2, 4, 6, 8, 10, 12, 14], config=config) == ("data", "config")


def test_torchtitan_sizes_with_what_is_left_over():
    # 32 ranks: replicate 2, shard -1 (8 are left), tp 2: strides tp 1, shard 2, replicate 16.
    config = {
        "parallelism.data_parallel_replicate_degree": 2, "parallelism.data_parallel_shard_degree": -1,
        "parallelism.tensor_parallel_degree": 2,
    }  # fmt: skip
    assert list(meshes_of(config, 32)) == [{"pipeline": 1, "data": 2, "fsdp": 8, "context": 1, "tensor": 2}]
    assert axis(range(0, 16, 2), config=config, world=32) == ("fsdp", "config")
    assert axis([3, 19], config=config, world=32) == ("data", "config")


def test_deepspeed_puts_pipe_first_and_model_last():
    config = {"pipe_parallel_size": 2, "model_parallel_size": 2}
    assert axis([0, 1], config=config, world=8) == ("tensor", "config")
    assert axis([0, 2], config=config, world=8) == ("data", "config")
    assert axis([0, 4], config=config, world=8) == ("pipeline", "config")


def test_sizes_that_do_not_fit_the_job_say_nothing():
    assert list(meshes_of({"tensor_model_parallel_size": 3}, 16)) == []
    assert list(meshes_of({"tensor_model_parallel_size": 2, "data_parallel_size": 4}, 16)) == []
    assert list(meshes_of({"tensor_model_parallel_size": True}, 16)) == []


@pytest.mark.parametrize(
    ("desc", "want"),
    [
        ("mesh_tp", "tensor"), ("TENSOR_MODEL_PARALLEL_GROUP", "tensor"), ("DATA_PARALLEL_GROUP_WITH_CP", "context+data"),
        ("mesh_dp_shard", "fsdp"), ("EXPERT_MODEL_PARALLEL_GROUP", "expert"), ("PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"),
        ("default_pg", None), ("undefined", None),
    ],
)  # fmt: skip
def test_names_of_groups(desc, want):
    assert axis([0, 1], desc=desc)[0] == want


@pytest.mark.parametrize(
    ("traffic", "want"),
    [
        ({"calls": {"all_to_all": 96, "all_reduce": 1}}, "expert"),
        ({"calls": {"send": 8, "recv": 8}, "ring": False}, "pipeline"),
        ({"calls": {"send": 8, "recv": 8}, "ring": True}, "context"),
        ({"calls": {"all_gather": 66, "reduce_scatter": 33}, "sizes": {"reduce_scatter": 3}}, "fsdp"),
        ({"calls": {"all_gather": 128, "reduce_scatter": 128}, "sizes": {"reduce_scatter": 1}}, "tensor"),
        (
            {"calls": {"all_reduce": 128}, "most_of_one_size": {"all_reduce": 128}, "calls_in_step": {"all_reduce": 128.0},
             "hidden_frac": 0.05},
            "tensor",
        ),
        (
            {"calls": {"all_reduce": 12}, "most_of_one_size": {"all_reduce": 9}, "calls_in_step": {"all_reduce": 12.0},
             "hidden_frac": 0.9},
            "data",
        ),
        ({"calls": {"broadcast": 4}}, None),
    ],
)  # fmt: skip
def test_what_runs_on_a_group_is_a_guess_and_says_so(traffic, want):
    found, source = axis([0, 1, 2, 3], **traffic)
    assert found == want
    assert (source == "inferred") == (want is not None)

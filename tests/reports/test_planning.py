"""Answers of `tracegap plan`: what is asked, on the screen, as JSON and as a page."""

import json

import pytest
from click.testing import CliRunner

from tracegap.flows.cli import cli
from tracegap.models.errors import TracegapError
from tracegap.reports import page, plan_page, plan_text, planning
from tracegap.reports.planning import Question, answer, model_of, subject_of

MANIFEST = """
job = "tiny"
hardware = "h100_sxm"
tokens_per_step = 65536
[model]
layers = 4
hidden = 1024
heads = 16
ffn = 4096
vocab = 32000
seq = 1024
[mesh]
data = 4
tensor = 2
"""
CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "hidden_act": "silu",
}  # fmt: skip


def run(*arguments):
    return CliRunner().invoke(cli, ["plan", *(str(a) for a in arguments)])


def asked(*arguments):
    got = run(*arguments, "--json")
    assert got.exit_code in (0, 1), got.output + got.stderr
    said = json.loads(got.output)
    assert got.exit_code == int((said.get("serving") or said)["unfit"] is not None)
    return said


def test_a_preset_is_ranked_and_priced():
    said = asked("llama-3-70b", "--hardware", "h100_sxm", "--devices", 512, "--tokens", "15T", "--price", 2)
    assert (said["model"], said["params"], said["devices"]) == ("Llama 3 70B", 70_553_706_496, 512)
    assert said["fewest_devices"] == 16
    assert said["fits"] is True
    assert said["memory_total"] == pytest.approx(sum(said["memory"].values()))
    best = said["ranking"][0]
    assert (best["mesh"], best["predicted_ns"], best["mfu"]) == (said["mesh"], said["predicted_ns"], said["mfu"])
    assert [c["predicted_ns"] for c in said["ranking"]] == sorted(c["predicted_ns"] for c in said["ranking"])
    run_of = said["campaign"]
    assert run_of["flops_6pd"] == pytest.approx(6 * 70.55e9 * 15e12, rel=0.001)
    days = 15e12 / said["tokens_per_step"] * said["predicted_ns"] / 1e9 / 86400 / run_of["goodput"]["share"]
    assert run_of["days"] == pytest.approx(days)
    assert run_of["usd"] == pytest.approx(2 * run_of["device_hours"]) == pytest.approx(2 * days * 24 * 512)
    frail = ("--mtbf", 1000, "--checkpoint", 60, "--restart", 300)
    often = asked("llama-3-70b", "--hardware", "h100_sxm", "--devices", 512, "--tokens", "15T", *frail)["campaign"]
    assert often["goodput"]["mtbf_s"] == pytest.approx(1000 * 3600 / 512)
    assert often["days"] > run_of["days"]
    assert often["usd"] is None
    assert said["assumed"] == [
        "steps of 4,194,304 tokens (--batch-tokens)",
        "a failure of each device every 50,677 h, as of Llama 3's H100s, whatever the part (--mtbf)",
        "a checkpoint stops training for 30 s (--checkpoint)",
        "600 s from a failure to the next new step (--restart)",
    ]
    told = asked("llama-3-70b", "--hardware", "h100_sxm", "--devices", 512, "--tokens", "15T", *frail)
    assert told["assumed"] == said["assumed"][:1]


def test_a_manifest_has_its_own_mesh(tmp_path):
    manifest = tmp_path / "manifest.toml"
    manifest.write_text(MANIFEST)
    said = asked(manifest)
    assert (said["mesh"], said["tokens_per_step"], said["model"]) == ({"data": 4, "tensor": 2}, 65536, "tiny")
    assert len(said["ranking"]) == 1
    other = asked(manifest, "--mesh", "fsdp=8", "--hardware", "a100_sxm_80")
    assert (other["mesh"], other["hardware"]) == ({"fsdp": 8}, "a100_sxm_80")
    assert len(asked(manifest, "--devices", 8)["ranking"]) > 1
    manifest.write_text(MANIFEST.replace("tokens_per_step = 65536", ""))
    lacking = run(manifest)
    assert (lacking.exit_code, "tokens_per_step" in lacking.stderr) == (2, True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ('[mesh]\ndata = "many"', "mesh.data is 'many', a number of ranks"),
        ('[topology]\nranks_per_domain = "all"', "topology.ranks_per_domain is 'all', a number of ranks"),
        ("[topology]\ntorus = 4", "topology.torus is 4, chips an axis"),
        ("[topology]\nwrap = [1]", "topology.wrap is [1], true or false an axis"),
        ("[topology]\nnodes = 4", "unknown key 'topology.nodes', known are ranks_per_domain, torus, wrap"),
    ],
)
def test_wrong_places_in_a_manifest_are_a_line(tmp_path, wrong, words):
    manifest = tmp_path / "manifest.toml"
    manifest.write_text(MANIFEST.partition("[mesh]")[0] + wrong)
    got = run(manifest)
    assert (got.exit_code, words in got.stderr) == (3, True), got.stderr


def test_sequences_that_do_not_divide_are_said():
    said = asked("llama-3-8b", "--hardware", "h100_sxm", "--mesh", "fsdp=1024")
    assert said["assumed"][-1] == "512 sequences for 1,024 replicas: 512 idle while the others take one each"
    # As long as on the 512 that have one, but for the wider gathers
    half = asked("llama-3-8b", "--hardware", "h100_sxm", "--mesh", "fsdp=512")
    assert (said["compute_ns"], len(half["assumed"])) == (half["compute_ns"], 1)
    pod = asked(
        "llama-3-70b", "--hardware", "tpu_v5p", "--batch-tokens", "4M", "--mesh", "data=280,context=2,tensor=16"
    )
    assert pod["assumed"][-1] == "488.3 sequences over 280 replicas: the step waits for the busiest, which has 2"
    assert pod["tokens_per_microbatch"] * pod["microbatches"] == 2 * 8192 / 2


def test_the_recipe_is_kept():
    mesh = ("llama-3-8b", "--hardware", "h100_sxm", "--mesh", "fsdp=8", "--microbatches", 8)
    plain = asked(*mesh, "--recompute", "none")
    thin = asked(*mesh, "--optimizer", "adam8bit", "--recompute", "full", "--offload", "optimizer")
    assert thin["memory"]["optimizer"] == 0
    assert thin["memory_total"] < plain["memory_total"]
    assert (thin["recipe"]["optimizer"], thin["recipe"]["recompute"]) == ("adam8bit", "full")
    wrong = run(*mesh, "--offload", "weights")
    assert (wrong.exit_code, "known are optimizer, activations" in wrong.stderr) == (2, True)


def test_a_row_of_the_ranking_can_be_asked_for_again():
    job = ("llama-3-70b", "--hardware", "h100_sxm")
    for row in asked(*job, "--devices", 512)["ranking"]:
        again = asked(*job, "--mesh", ",".join(f"{axis}={ways}" for axis, ways in row["mesh"].items()))
        assert again["ranking"] == [row]
    plain = (*job, "--mesh", "data=8,fsdp=16,tensor=4", "--zero", 0, "--recompute", "none", "--microbatches", 1)
    full = asked(*plain)
    assert (full["fits"], full["recipe"]["zero"], full["microbatches"]) == (False, 0, 1)
    assert full["unfit"] == f"the mesh needs {full['memory_total'] / 1e9:,.1f} GB a device, which has 80.0 GB"
    assert run(*plain).exit_code == 1
    assert "try --zero 3, --recompute full, --microbatches 4" in " ".join(run(*plain).output.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpt-2", "--mesh", "pipeline=24"], "pipeline=24: the model has 12 layers"),
        (["llama-3-70b", "--mesh", "tensor=7"], "tensor=7 does not divide the model's 64 heads"),
        (["mixtral-8x7b", "--mesh", "expert=16"], "expert=16 does not divide the model's 8 experts"),
        (["llama-3-8b", "--mesh", "expert=8"], "the model has no experts"),
        (["llama-3-70b", "--mesh", "pipeline=4,tensor=8", "--microbatches", 3], "3 microbatches do not divide the 512"),
        (["llama-3-8b,kv_heads=7", "--mesh", "fsdp=8"], "kv_heads = 7 in the model description do not divide"),
    ],
)
def test_meshes_that_cannot_be_are_a_line(arguments, words):
    got = run(*arguments, "--hardware", "h100_sxm")
    assert (got.exit_code, words in got.stderr) == (2, True), got.stderr


def test_schedules_and_exchanges_of_a_mesh_can_be_asked_for():
    mesh = ("llama-3-8b", "--hardware", "h100_sxm", "--mesh", "pipeline=4,context=2", "--microbatches", 8)
    plain = asked(*mesh, "--schedule", "1f1b")
    woven = asked(*mesh, "--schedule", "interleaved", "--virtual-stages", 4)
    # (p - 1) / (v m) of the arithmetic
    assert plain["bubble_ns"] == pytest.approx(plain["compute_ns"] * 3 / 8, rel=1e-6)
    assert woven["bubble_ns"] == pytest.approx(plain["compute_ns"] * 3 / 32, rel=1e-6)
    assert asked(*mesh, "--gradients", 4)["memory"]["gradients"] == 2 * plain["memory"]["gradients"]
    kinds = {t["collective"] for t in asked(*mesh, "--context", "ulysses")["traffic"] if t["axis"] == "context"}
    assert "all_to_all" in kinds
    wrong = run(*mesh, "--virtual-stages", 4)
    assert (wrong.exit_code, "need the schedule interleaved, not 1f1b" in wrong.stderr) == (2, True)


def test_a_config_json_is_read_with_a_usual_sequence(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    said = asked(tmp_path / "config.json", "--hardware", "tpu_v5p", "--devices", 16)
    assert (said["seq"], said["torus"]) == (8192, [2, 2, 4])
    assert said["assumed"][0] == "sequences of 8,192 tokens (--seq)"
    assert asked(tmp_path / "config.json", "--hardware", "tpu_v5p", "--seq", 4096)["seq"] == 4096
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"model_type": "rwkv7"}))
    strange = run(tmp_path / "config.json", "--hardware", "tpu_v5p")
    assert strange.exit_code == 2
    assert "model_type 'rwkv7' is not known; known are llama" in strange.stderr


def test_prompts_longer_than_the_model_was_made_for_are_said(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 4096}))
    served = (tmp_path / "config.json", "--hardware", "h100_sxm", "--serve", "--answer", 512)
    words = "sequences of 8,192 tokens, though the model was made for 4,096"
    assert words in asked(*served, "--prompt", 7680)["assumed"]
    assert not any("made for" in line for line in asked(*served, "--prompt", 3584)["assumed"])


def test_a_server():
    said = asked("llama-3-70b", "--hardware", "tpu_v5e", "--serve", "--weights", "int8", "--kv", "int8")
    assert said["assumed"][-1] == "int8 weights are multiplied in bf16 (--math)"
    said = said["serving"]
    assert said["math_dtype"] == "bf16"
    assert (said["devices"], said["fewest_devices"]) == (8, 8)
    assert said["points"][-1]["batch"] == said["max_sequences"]
    rates = [point["tokens_per_s"] for point in said["points"]]
    assert rates == sorted(rates)
    asked_for = asked(
        "llama-3-70b", "--hardware", "tpu_v5e", "--serve", "--weights", "int8", "--kv", "int8", "--math", "int8"
    )
    assert asked_for["assumed"] == ["a server fills 95% of the memory of its devices"]
    assert asked_for["serving"]["math_dtype"] == "int8"
    assert asked_for["serving"]["prefill_s"] < said["prefill_s"]
    screen = run("mixtral-8x7b", "--hardware", "h100_sxm", "--serve").output
    for words in ("prefill", "speculation", "tokens/s a device"):
        assert words in screen


def test_cards_without_links_sit_eight_a_host():
    """Sixteen cards on PCIe are two hosts, whose network nobody knows; eight of one host send over 64 GB/s or less."""
    plain = ("llama-3-8b", "--hardware", "l40s", "--mesh")
    assert "say it with --network" in run(*plain, "fsdp=16").stderr
    wide = asked(*plain, "fsdp=16", "--network", 12.5)
    assert wide["assumed"][-1].startswith("8 cards a host")
    assert "network 12.5 GB/s a device" in wide["traffic"][0]["fabric"]
    host = asked(*plain, "fsdp=8")
    assert (host["assumed"], host["traffic"][0]["fabric"]) == (wide["assumed"][:1], "PCIe, 32.0 GB/s")
    pair = asked("llama-3-8b", "--hardware", "a100_pcie_80", "--mesh", "fsdp=4,tensor=2")["traffic"]
    assert {t["axis"]: t["fabric"] for t in pair} == {"fsdp": "PCIe, 32.0 GB/s", "tensor": "switch, 300 GB/s"}


def test_a_server_over_a_network_that_the_catalogue_does_not_know():
    served = ("llama-3-70b", "--hardware", "l4", "--serve", "--devices", 16)
    assert "say it with --network" in run(*served).stderr
    slow, fast = (asked(*served, "--network", rate)["serving"] for rate in (1.25, 12.5))
    assert slow["points"][0]["comm_s"] > fast["points"][0]["comm_s"]
    # a prompt's cache: 8,192 tokens of 320 KiB over 16 shares
    moved = 8192 * 2 * 80 * 8 * 128 * 2 / 16
    assert slow["disaggregation"]["transfer_s"] == pytest.approx(moved / 1.25e9)


def test_what_people_reach_and_what_cannot_be():
    said = asked("llama-3-8b", "--hardware", "h100_sxm", "--devices", 8, "--measured", 1200)
    assert said["smell"]["plausible"] is False
    assert len(said["published"]) == 3
    screen = run("llama-3-8b", "--hardware", "h100_sxm", "--devices", 8, "--measured", 1200).output
    assert "impossible" in screen
    assert "Llama 3 405B" in screen


def test_the_screen_is_one_screen_and_has_the_answers():
    shown = run("deepseek-v3", "--hardware", "h800_sxm", "--devices", 2048, "--batch-tokens", "62914560").output
    for words in ("fits on", "expert", "step to expect", "MFU", "used by a token", "best of"):
        assert words in shown
    assert len(shown.splitlines()) < 60


def test_the_slowest_of_several_parts_counts():
    mixed = asked("llama-3-8b", "--hardware", "h100_sxm,a100_sxm_80", "--devices", 64)
    assert mixed["hardware"] == "h100_sxm+a100_sxm_80"
    slow = asked("llama-3-8b", "--hardware", "a100_sxm_80", "--devices", 64)
    assert mixed["predicted_ns"] >= slow["predicted_ns"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["llama-3-70b"], "llama-3-70b lacks hardware (or --hardware)"),
        (["llama-9", "--hardware", "h100_sxm"], "no model 'llama-9' among the presets"),
        (["nothing.json", "--hardware", "h100_sxm"], "nothing.json: no such file"),
        (["llama-3-70b", "--hardware", "h100"], "no chip 'h100'"),
        (["llama-3-70b", "--hardware", "h100_sxm,tpu_v5p"], "h100_sxm (gpu) and tpu_v5p (tpu) share no job"),
        (["llama-3-70b", "--hardware", "h100_sxm", "--tokens", "many"], "'many' is no number such as 15T"),
        (["llama-3-70b", "--hardware", "h100_sxm", "--mesh", "fsdp"], "write it as fsdp=16,tensor=8"),
        (["llama-3-70b", "--hardware", "h100_sxm", "--mesh", "fsdp=8,fsdp=2"], "axis fsdp comes twice"),
        (["llama-3-70b", "--hardware", "h100_sxm", "--batch-tokens", "1e999"], "'1e999' is no number such as 15T"),
        (["llama-3-70b", "--hardware", "v100_sxm2_32", "--mesh", "fsdp=64"], "no bf16 peak of v100_sxm2_32"),
        (["llama-3-70b", "--hardware", "v100_sxm2_32", "--mesh", "fsdp=64"], "it has fp64, fp32, fp16: name one"),
        (["llama-3-8b", "--hardware", "h100_sxm", "--batch-tokens", 100], "does not hold one sequence of 8,192"),
        (["llama-3-8b", "--hardware", "h100_sxm", "--math", "int3"], "math dtype 'int3': known are fp64"),
        (["llama-3-8b", "--hardware", "h100_sxm", "--serve", "--weights", "w4"], "weights in 'w4': known are fp64"),
        (["llama-3-8b", "--hardware", "h100_sxm", "--serve", "--kv", "w4"], "cache in 'w4': known are fp64"),
        (["llama-3-8b,depth=3", "--hardware", "h100_sxm"], "'depth' is no number of a model; known are layers"),
        (["", "--hardware", "h100_sxm"], "an empty name where a model is expected"),
        (["mixtral-8x7b,capacity_factor=nan", "--hardware", "h100_sxm"], "capacity_factor = nan in the model descr"),
        (["layers=3,hidden=64", "--hardware", "h100_sxm"], "the description lacks heads, ffn, vocab, seq"),
    ],
)
def test_what_cannot_be_answered_is_a_line(arguments, words):
    got = run(*arguments)
    assert got.exit_code == 2
    assert words in got.stderr


PLAIN = ("llama-3-8b", "--hardware", "h100_sxm")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "option",
    ["expert-skew", "price", "measured", "network", "gradients", "mtbf", "checkpoint", "restart", "tokens",
     "batch-tokens"],
)  # fmt: skip
def test_numbers_are_finite(option, number):
    got = run(*PLAIN, f"--{option}", number)
    assert got.exit_code == 2
    assert f"--{option}" in got.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--page", ""], "'' names no file to write"),
        (["--mesh", ""], "mesh '': write it as"),
        (["--mesh", "fsdp=\N{SUPERSCRIPT TWO}"], "write it as"),
        (["--mesh", "tensor=1000000000000"], "devices: a plan takes at most 1,048,576"),
        (["--devices", 10**12], "1,000,000,000,000 devices: a plan takes at most 1,048,576"),
        (["--devices", 16, "--network", "1e-300"], "is not in the range 1e-06<=x"),
        (["--batch-tokens", 0.2], "'0.2' is no number such as"),
        (["--devices", 8, "--tokens", "1T", "--checkpoint", 1e12], "8 devices fail every 6,334.6 h: no training"),
        (["--batch-tokens", "1e30"], "'1e30' is more than 1e+12"),
        (["--devices", 64, "--mesh", "tensor=8"], "--devices is not used together with --mesh"),
        (["--serve", "--tokens", "1T"], "--tokens is not used together with --serve"),
        (["--serve", "--batch-tokens", "4M"], "--batch-tokens is not used together with --serve"),
        (["--serve", "--zero", 1], "--zero is not used together with --serve"),
        (["--price", 2], "--price is used only together with --tokens"),
        (["--kv", "int8"], "--kv is used only together with --serve"),
        (["--mesh", "fsdp=8", "--schedule", "interleaved"], "--schedule (schedule) needs a mesh with a pipeline axis"),
        (["--mesh", "fsdp=8", "--context", "ulysses"], "--context (context) needs a mesh with a context axis"),
        (["--devices", 8, "--expert-skew", 2], "--expert-skew (expert_skew) is of a mixture of experts"),
        (["--devices", 8, "--tokens", "1T", "--mtbf", 0.001], "8 devices fail every 450 ms: no training gets ahead"),
    ],
)
def test_what_is_out_of_bounds_or_would_be_ignored_is_a_line(arguments, words):
    got = run(*PLAIN, *arguments)
    assert (got.exit_code, words in got.stderr.splitlines()[-1]) == (2, True), got.stderr


@pytest.mark.parametrize(
    ("model", "chip", "words"),
    [
        ("llama-3-8b", "h100", "no chip 'h100' in the catalogue; did you mean h100_nvl or h100_pcie or h100_sxm?"),
        ("llama-3-8b", "H100_SXM", "did you mean h100_sxm? `tracegap hardware` lists all"),
        ("llama-3-8b", "H100 SXM", "did you mean h100_sxm?"),
        ("llama-3-8b", "abacus", "no chip 'abacus' in the catalogue; `tracegap hardware` lists all"),
        ("llama-3-8b", "h100_sxm,", "an empty name where a chip is expected"),
        ("LLAMA-3-70B", "h100_sxm", "did you mean llama-3-70b? `tracegap plan --help` lists all"),
        ("llama 3 70b", "h100_sxm", "did you mean llama-3-70b?"),
    ],
)
def test_near_names_are_suggested_and_never_taken(model, chip, words):
    got = run(model, "--hardware", chip)
    assert got.exit_code == 2
    assert words in got.stderr
    assert len(got.stderr) < 200


def test_the_help_lists_the_presets():
    assert "gpt-3-175b" in run("--help").output


def test_a_mesh_of_a_manifest_has_bounds(tmp_path):
    manifest = tmp_path / "manifest.toml"
    manifest.write_text(MANIFEST.replace("data = 4", "data = 1000000000000"))
    got = run(manifest)
    assert (got.exit_code, "a plan takes at most 1,048,576" in got.stderr) == (2, True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": "many"}, "config.json: layers = 'many' in the model description: a whole number from 1"),
        ({"num_hidden_layers": -2}, "config.json: layers = -2 in the model description: a whole number from 1 on"),
        ({"num_attention_heads": 0}, "config.json: kv_heads = 8 in the model description: more than the 0"),
        ({"num_attention_heads": 0, "num_key_value_heads": None}, "heads = 0 in the model description"),
        ({"num_attention_heads": 48}, "config.json: 48 heads do not divide hidden = 4096"),
        ({"hidden_act": ["silu"]}, "config.json: config.json of a llama: a value is not of the type"),
        ({"num_hidden_layers": None, "vocab_size": None}, "config.json of a llama lacks num_hidden_layers, vocab_size"),
    ],
)
def test_a_wrong_config_json_is_a_line(tmp_path, changes, words):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
    got = run(tmp_path / "config.json", "--hardware", "h100_sxm")
    assert (got.exit_code, words in got.stderr) == (2, True), got.stderr


def test_numbers_are_a_model_and_change_others():
    numbers = "layers=80,hidden=8192,heads=64,kv_heads=8,ffn=28672,vocab=128256,norm=rms"
    said = asked(f"{numbers},seq=8192", "--hardware", "h100_sxm", "--devices", 512)
    named = asked("llama-3-70b", "--hardware", "h100_sxm", "--devices", 512)
    assert said["source"] == "numbers as given"
    for key in ("params", "predicted_ns", "memory", "ranking"):
        assert said[key] == named[key]
    assert asked(numbers, "--seq", 4096, "--hardware", "h100_sxm", "--devices", 512)["seq"] == 4096
    thin = asked("llama-3-70b, lora_rank=16", "--hardware", "h100_sxm", "--mesh", "fsdp=64")
    whole = asked("llama-3-70b", "--hardware", "h100_sxm", "--mesh", "fsdp=64")
    # LoRA beside each of seven matrices a layer: rank x (rows + columns); all else has no gradient
    d, kv, f = 8192, 1024, 28672
    trained = 16 * 80 * (2 * (d + d) + 2 * (d + kv) + 3 * (d + f))
    assert thin["params"] - whole["params"] == trained
    assert thin["memory"]["optimizer"] == pytest.approx(12 * trained / 64)


def test_too_few_devices_are_said_so(tmp_path):
    got = run("llama-3-70b", "--hardware", "h100_sxm", "--devices", 4, "--json")
    assert got.exit_code == 1
    said = json.loads(got.output)
    assert (said["fits"], said["ranking"], said["fewest_devices"]) == (False, [], 16)
    assert said["unfit"].startswith("memory of 80 GB: none of ")
    out = page.render_plan(said, tmp_path / "none.html")
    assert "No mesh of 4 × H100 SXM" in out.read_text()


def test_a_page_has_a_chart_of_each(tmp_path):
    result = answer(
        Question(model="llama-3-8b", hardware="h100_sxm", devices=64, tokens=1e12, usd_per_device_hour=2, scaling=True)
    )
    sections = plan_page.describe(result)["sections"]
    assert list(sections) == ["memory", "time", "meshes", "scaling"]
    times = {row["what"] for row in sections["time"].figures[0].table.to_dicts()}
    assert times >= {"compute", "optimizer"}
    curve = dict(sections["scaling"].figures[0].table.select("devices", "ns").rows())
    assert curve[64] == result["predicted_ns"]
    alone_ns = 6 * 8.03e9 * 2**22 / 989.4e12 / result["reachable_share"] * 1e9  # attention and the head left out
    assert all(ns * devices > alone_ns for devices, ns in curve.items())
    drawn = sections["memory"].figures[0].table["bytes"].sum()
    assert drawn == pytest.approx(result["memory_total"])
    text = page.render_plan(result, tmp_path / "plan.html").read_text()
    for chart in sections:
        assert f'id="chart-{chart}-0"' in text
    served = answer(Question(model="llama-3-8b", hardware="h100_sxm", serve=True))
    assert list(plan_page.describe(served)["sections"]) == ["frontier"]
    assert "Throughput against latency" in page.render_plan(served, tmp_path / "serve.html").read_text()


def test_a_page_sets_a_measured_rate_beside_what_people_reach():
    question = Question(model="llama-3-8b", hardware="h100_sxm", devices=8, measured_tflops=420)
    numbers = {name: (value, aside) for name, value, aside in plan_page.describe(answer(question))["numbers"]}
    assert numbers["your rate"] == ("420 TFLOP/s", "a device: plausible")
    assert numbers["MFU to expect"][1].endswith("a device, bf16; people reach 380 to 430")


def test_traffic_of_experts_is_told_from_that_of_the_rest():
    shown = run("mixtral-8x7b", "--hardware", "h100_sxm", "--mesh", "fsdp=16").output
    assert "all_gather on fsdp (experts)" in shown
    assert "all_gather on fsdp (the rest)" in shown


def test_the_rows_of_the_screen_are_text():
    result = answer(Question(model="llama-3-8b", hardware="tpu_v5p", devices=16))
    assert all(isinstance(cell, str) for row in plan_text.rows(result) for cell in row)


def test_towers_of_a_manifest(tmp_path):
    vision = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 0, "seq": 16, "causal": False}
    text = {"layers": 2, "hidden": 128, "heads": 4, "ffn": 512, "vocab": 100, "seq": 64, "towers": {"vision": vision}}
    model = model_of(text)
    assert [name for name, _ in model.towers] == ["vision"]
    (tmp_path / "m.json").write_text(
        json.dumps({"model": text, "tokens_per_step": 6400, "hardware": "h100_sxm", "mesh": {"fsdp": 2, "tensor": 2}})
    )
    said = asked(tmp_path / "m.json")
    tower = said["towers"]["vision"]
    assert tower["mesh"] == {"data": 4}
    assert said["predicted_ns"] > tower["predicted_ns"] > 0
    assert said["params"] == model.params > tower["params"]
    assert said["memory_total"] == pytest.approx(sum(said["memory"].values()))
    alone = text | {"towers": {}}
    (tmp_path / "a.json").write_text(
        json.dumps({"model": alone, "tokens_per_step": 6400, "hardware": "h100_sxm", "mesh": {"fsdp": 2, "tensor": 2}})
    )
    for part in ("weights", "gradients", "optimizer", "activations"):
        alone_too = asked(tmp_path / "a.json")["memory"][part] + tower["memory"][part]
        assert said["memory"][part] == pytest.approx(alone_too)
    # the tower's table ends in a projection of 64 x 128, which lies with it
    assert tower["params"] == model_of(vision).params + 64 * 128 == model.params - model_of(alone).params
    text["towers"]["vision"]["mesh"] = {"tensor": 4}
    (tmp_path / "m.json").write_text(
        json.dumps({"model": text, "tokens_per_step": 6400, "hardware": "h100_sxm", "mesh": {"fsdp": 2, "tensor": 2}})
    )
    assert asked(tmp_path / "m.json")["towers"]["vision"]["mesh"] == {"tensor": 4}
    assert "tower vision" in run(tmp_path / "m.json").output
    with pytest.raises(TracegapError, match="lacks heads"):
        model_of(text | {"towers": {"vision": {k: v for k, v in vision.items() if k != "heads"}}})


def test_every_preset_can_be_asked_about():
    for name in planning.presets.names():
        assert subject_of(name).model.params > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--devices", 4], "no mesh fits: memory of 80 GB: none of "),
        (["--devices", 1024, "--batch-tokens", 8192 * 2], "no mesh fits: a step has fewer sequences (2) than replicas"),
        (["--devices", 10007], "no mesh fits: a step has fewer sequences (512) than replicas"),
        (["--serve", "--devices", 1], "weights and one sequence need 144.0 GB, there are 76.0 GB"),
    ],
)
def test_nothing_that_fits_has_a_reason_and_a_status(arguments, words):
    got = run("llama-3-70b", "--hardware", "h100_sxm", *arguments)
    assert (got.exit_code, words in got.output) == (1, True), got.output


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("m.json", '{"model_type": ["llama"]}', "model_type ['llama'] is not known"),
        ("m.json", "[]", "no config.json of a model (model_type) and no manifest ([model])"),
        ("m.json", "null", "no config.json of a model"),
        ("m.json", "{}", "no config.json of a model"),
        ("m.json", "", "m.json is empty"),
        ("m.toml", "\n", "m.toml is empty"),
        ("m.json", "[" * 100_000, "not JSON"),
    ],
)
def test_a_file_that_is_no_model_is_a_line(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    got = run(tmp_path / name, "--hardware", "h100_sxm")
    assert (got.exit_code, words in got.stderr) == (2, True), got.stderr


def test_a_folder_or_a_device_is_no_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    got = run(tmp_path, "--hardware", "h100_sxm")
    assert (got.exit_code, got.stderr.strip().endswith("config.json in it may be meant")) == (2, True)
    (tmp_path / "of" / "config.json").mkdir(parents=True)
    got = run(tmp_path / "of" / "config.json", "--hardware", "h100_sxm")
    assert (got.exit_code, "is a folder, not a model" in got.stderr) == (2, True)
    got = run("/dev/null", "--hardware", "h100_sxm")
    assert (got.exit_code, "/dev/null is no regular file" in got.stderr) == (2, True)


def test_ignored_quantization_is_said(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": {"bits": 4}}))
    said = asked(tmp_path / "config.json", "--hardware", "h100_sxm", "--serve")
    assert "quantization_config is ignored: weights are bf16 (--weights with --serve)" in said["assumed"]


def test_a_batch_of_part_sequences_is_said():
    batch = ("llama-3-8b", "--hardware", "h100_sxm", "--seq", 8192, "--batch-tokens", "16M")
    words = "16,000,000 tokens a step are 1,953.1 sequences of 8,192: 15,998,976 would be whole, 16,777,216 a power"
    assert any(line.startswith(words) for line in asked(*batch, "--mesh", "fsdp=8")["assumed"])
    wrong = run(
        *batch,
        "--mesh",
        "pipeline=4,fsdp=128",
        "--schedule",
        "interleaved",
        "--virtual-stages",
        2,
        "--microbatches",
        15,
    )
    assert wrong.exit_code == 2
    assert "15 microbatches do not divide" in wrong.stderr
    assert words in wrong.stderr


def test_a_server_says_what_is_of_servers():
    plain = ("gpt-2", "--hardware", "h100_sxm", "--serve")
    shown = " ".join(run(*plain).output.split())
    assert "people reach" not in shown
    assert "1 devices" not in shown
    assert "though the model's table ends at position 1,024" in shown
    assert "a server fills 95% of the memory" in shown
    assert "position" not in run(*plain, "--prompt", 512).output
    trained = asked("gpt-2", "--hardware", "h100_sxm", "--mesh", "fsdp=8", "--seq", 8192)
    assert "sequences of 8,192 tokens, though the model's table ends at position 1,024" in trained["assumed"]


def test_fine_tuning_has_no_compute_optimum():
    tuned = run("llama-3-8b,lora_rank=16", "--hardware", "h100_sxm", "--devices", 8, "--tokens", "1B").output
    assert "optimal" not in tuned
    assert "compute-optimal" in run("llama-3-8b", "--hardware", "h100_sxm", "--devices", 8).output


def test_a_scaling_limit_that_is_not_reached_is_said_so():
    result = answer(Question(model="llama-3-8b", hardware="h100_sxm", scaling=True))
    counts = [point["devices"] for point in result["scaling"]["points"]]
    result["scaling"]["limit"] = None
    words = {name: (value, aside) for name, value, aside in plan_text.rows(result)}["strong scaling"]
    assert words == (
        "no limit found",
        f"arithmetic can be half of a step or more up to {counts[-1]:,} devices, the most tried",
    )


def test_the_latency_of_a_server_is_drawn_from_zero():
    served = answer(Question(model="llama-3-8b", hardware="h100_sxm", serve=True))
    axis = plan_page.describe(served)["sections"]["frontier"].figures[0].chart.to_dict()["encoding"]["x"]
    assert axis["scale"]["zero"] is True
    assert axis["axis"]["tickCount"] <= 6

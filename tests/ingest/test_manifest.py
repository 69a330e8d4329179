"""Manifests: three spellings of the same, clear errors, no secrets."""

import datetime
import json
from pathlib import Path

import pytest

from tracegap.ingest import manifest
from tracegap.ingest.errors import TraceError
from tracegap.reports.planning import model_of

CONTENT = {
    "job": "llama",
    "run": "mon",
    "simulated": True,
    "started_at": "2026-11-30T02:00:00+02:00",
    "world_size": 8,
    "mesh": {"data": 8},
    "config": {"ddp": {"bucket_cap_mb": 25, "static_graph": False}, "wandb.api_key": "s3cret", "HF_TOKEN": "hf_x"},
}
TOML = """
job = "llama"
run = "mon"
simulated = true
started_at = 2026-11-30T02:00:00+02:00
world_size = 8
[mesh]
data = 8
[config]
"wandb.api_key" = "s3cret"
HF_TOKEN = "hf_x"
[config.ddp]
bucket_cap_mb = 25
static_graph = false
"""
YAML = """
job: llama
run: mon
simulated: true
started_at: "2026-11-30T02:00:00+02:00"
world_size: 8
mesh: {data: 8}
config:
  ddp: {bucket_cap_mb: 25, static_graph: false}
  wandb.api_key: s3cret
  HF_TOKEN: hf_x
"""


@pytest.mark.parametrize(
    ("name", "text"), [("manifest.toml", TOML), ("manifest.yaml", YAML), ("manifest.json", json.dumps(CONTENT))]
)
def test_the_three_spellings_say_the_same_without_secrets(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    found = manifest.find(tmp_path)
    assert found == tmp_path / name
    read = manifest.load(found)
    assert (read.job, read.run, read.simulated, read.world_size, read.mesh) == ("llama", "mon", True, 8, {"data": 8})
    assert read.started_at == datetime.datetime(2026, 11, 30, 0, 0)
    assert read.config == {
        "ddp.bucket_cap_mb": 25,
        "ddp.static_graph": False,
        "wandb.api_key": "(removed)",
        "HF_TOKEN": "(removed)",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("job = ", "not a valid manifest"),
        ("jobb = 'x'", "unknown key 'jobb', did you mean 'job'\\?"),
        (
            "wrld_size = 8\njob = 3\ncolour = 1",
            "did you mean 'world_size'.*; job is 3, a text is expected; .*'colour';",
        ),
        ("world_size = true", "world_size is True, a whole number is expected"),
        ("world_size = 'eight'", "world_size is 'eight', a whole number is expected"),
        ("started_at = 'yesterday'", "not an ISO 8601 time"),
    ],
)
def test_a_wrong_manifest_is_one_clear_error(tmp_path, text, says):
    (tmp_path / "manifest.toml").write_text(text)
    with pytest.raises(TraceError, match=says) as e:
        manifest.load(tmp_path / "manifest.toml")
    assert str(tmp_path) in str(e.value)


def test_a_folder_without_one_has_none(tmp_path):
    assert manifest.find(tmp_path) is None


def test_secrets_are_known_by_their_key():
    kept = {"tokens_per_step": 4096, "tokenizer": "bpe", "optim.lr": 0.1, "author": "x"}
    assert manifest.without_secrets(kept) == kept
    removed = {
        "password": 1,
        "db_passwd": 1,
        "aws_secret_access_key": 1,
        "auth_token": 1,
        "github-token": 1,
        "apiKey": 1,
    }
    assert set(manifest.without_secrets(removed).values()) == {"(removed)"}


def test_the_documented_manifest_is_read(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "manifest.md").read_text()
    (tmp_path / "manifest.toml").write_text(text.partition("```toml\n")[2].partition("```")[0])
    read = manifest.load(tmp_path / "manifest.toml")
    assert read.run == "2026-11-30"
    assert model_of(read.model).params > 7e9
    assert read.config == {"ddp.bucket_cap_mb": 25}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[mesh]\ndata = 0\nfsdp = 1.5", "mesh.data is 0, a number of ranks from 1 on is expected; mesh.fsdp is 1.5"),
        ("[topology]\ntorus = 4", r"topology.torus is 4, chips an axis, such as \[4, 4, 4\], is expected"),
        ("[topology]\nwraps = [true]", "unknown key 'topology.wraps', known are ranks_per_domain, torus, wrap"),
        ("[topology]\nwrap = [1, 0]", r"topology.wrap is \[1, 0\], true or false an axis is expected"),
    ],
)
def test_a_wrong_mesh_or_topology_is_named(tmp_path, text, says):
    (tmp_path / "manifest.toml").write_text(text)
    with pytest.raises(TraceError, match=says):
        manifest.load(tmp_path / "manifest.toml")

"""What was run: the manifest that may lie beside the traces (`manifest.toml`, `.yaml` or `.json`)."""

import datetime
import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tracegap.ingest import calibration
from tracegap.ingest.errors import TraceError

NAMES = ("manifest.toml", "manifest.yaml", "manifest.yml", "manifest.json")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_SECRET = re.compile(
    r"\b(token|secret|password|passwd|passphrase|pwd|credentials?|auth|authorization|bearer|cookie|apikey"
    r"|(api|private|access|secret|ssh|signing|encryption) key)\b"
)  # in the words of a key: `tokens_per_step`, `tokenizer` and `author` are no secrets


@dataclass(slots=True, kw_only=True)
class Manifest:
    """A run as its owner describes it; everything is optional."""

    job: str | None = None
    """Job that the run belongs to."""
    run: str | None = None
    """Name of the run."""
    simulated: bool = False
    """Whether the data is simulated; shown wherever the run is."""
    started_at: datetime.datetime | None = None
    """Start of the run."""
    git_commit: str | None = None
    """Commit of the training code."""
    hardware: str | None = None
    """Catalogue id of the part; goes before the name in the trace."""
    world_size: int | None = None
    """Ranks of the job."""
    tokens_per_step: int | None = None
    """Tokens of one step over all ranks."""
    tags: list[str] = field(default_factory=list)
    model: dict[str, Any] | None = None
    """layers, hidden, heads, kv_heads, head_dim, ffn, mlp, vocab, seq, causal, tied_embeddings, dtype; or a preset."""
    mesh: dict[str, int] | None = None
    """Axis name to size."""
    topology: dict[str, Any] | None = None
    """torus and wrap (lists by axis), or ranks_per_domain."""
    recipe: dict[str, Any] | None = None
    """How it is trained, by the names of `models.recipe.Recipe`: zero, recompute, schedule, microbatches, ..."""
    calibration: list[dict[str, Any]] = field(default_factory=list)
    """Measured ceilings; see `ingest.calibration`."""
    config: dict[str, Any] = field(default_factory=dict)
    """Anything: flat, dotted keys."""
    sha256: str | None = None
    """Of the file, so that a mended manifest is noticed."""


_TIME = (str, datetime.datetime, datetime.date)
_KINDS: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "job": ("a text", str),
    "run": ("a text", str),
    "simulated": ("true or false", bool),
    "started_at": ("an ISO 8601 time", _TIME),
    "git_commit": ("a text", str),
    "hardware": ("a text", str),
    "world_size": ("a whole number", int),
    "tokens_per_step": ("a whole number", int),
    "tags": ("a list", list),
    "model": ("a table", dict),
    "mesh": ("a table", dict),
    "topology": ("a table", dict),
    "recipe": ("a table", dict),
    "calibration": ("a list of tables", list),
    "config": ("a table", dict),
}
"""Keys of a manifest, and what their values are."""


def _wrong(key: Any, value: Any) -> str | None:
    """What is wrong with an entry of a manifest."""
    if key not in _KINDS:
        near = difflib.get_close_matches(str(key), _KINDS, n=1)
        return f"unknown key {key!r}" + (f", did you mean {near[0]!r}?" if near else "")
    expected, kind = _KINDS[key]
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return None
    return f"{key} is {value!r}, {expected} is expected"


def _all_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and bool(value) and all(type(one) is kind for one in value)


_PLACES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "ranks_per_domain": ("a number of ranks", lambda value: type(value) is int and value > 0),
    "torus": ("chips an axis, such as [4, 4, 4],", _all_of(int)),
    "wrap": ("true or false an axis", _all_of(bool)),
}
"""Keys of a topology, and what their values are."""


def _wrong_places(raw: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong in a mesh and a topology."""
    for axis, ranks in raw.get("mesh", {}).items():
        if type(ranks) is not int or ranks < 1:
            yield f"mesh.{axis} is {ranks!r}, a number of ranks from 1 on is expected"
    for key, value in raw.get("topology", {}).items():
        if key not in _PLACES:
            yield f"unknown key 'topology.{key}', known are {', '.join(_PLACES)}"
        elif not _PLACES[key][1](value):
            yield f"topology.{key} is {value!r}, {_PLACES[key][0]} is expected"


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= flatten(value, name + ".")
        else:
            flat[name] = value
    return flat


def without_secrets(config: dict[str, Any]) -> dict[str, Any]:
    """The same configuration with values of keys that name a secret removed."""
    return {k: "(removed)" if _SECRET.search(" ".join(_WORDS.findall(k)).lower()) else v for k, v in config.items()}


def find(folder: Path) -> Path | None:
    """The manifest of a folder, if there is one."""
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def load(path: Path) -> Manifest:
    """Reads a manifest.

    Raises:
        TraceError: it is not valid, or a key is of the wrong type.
    """
    try:
        text = path.read_text()
        if path.suffix == ".toml":
            raw = tomllib.loads(text)
        elif path.suffix == ".json":
            raw = json.loads(text)
        else:
            raw = yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as e:
        raise TraceError(str(path), f"not a valid manifest: {e}", code="malformed", todo="mend or remove it") from e
    if not isinstance(raw, dict):
        raise TraceError(str(path), "not a valid manifest: a table is expected", code="malformed")
    wrong = [said for key, value in raw.items() if (said := _wrong(key, value))]
    if wrong := wrong or [*_wrong_places(raw), *calibration.problems(raw.get("calibration", ()))]:
        raise TraceError(
            str(path),
            "; ".join(wrong),
            code="malformed",
            todo=f"known keys: {', '.join(_KINDS)} (see docs/manifest.md)",
        )
    values: dict[str, Any] = dict(raw)
    if "started_at" in values:
        values["started_at"] = _utc(values["started_at"], path)
    values["config"] = without_secrets(flatten(values.get("config", {})))
    values["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    return Manifest(**values)


def _utc(value: str | datetime.date | datetime.datetime, path: Path) -> datetime.datetime:
    """As a naive UTC time."""
    try:
        when = datetime.datetime.fromisoformat(str(value))
    except ValueError as e:
        raise TraceError(str(path), f"started_at: not an ISO 8601 time: {value!r}", code="malformed") from e
    return when.astimezone(datetime.UTC).replace(tzinfo=None) if when.tzinfo else when

"""What lies beside the traces of a simulated job: manifest, truth, and where it comes from."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def toml(table: Mapping[str, Any]) -> str:
    """A table of plain values and one level of tables, as TOML."""
    plain = [f"{_key(k)} = {json.dumps(v)}" for k, v in table.items() if not isinstance(v, Mapping)]
    nested = [f"\n[{k}]\n{toml(v).rstrip()}" for k, v in table.items() if isinstance(v, Mapping)]
    text = "\n".join([*plain, *nested]) + "\n"
    tomllib.loads(text)
    return text


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() else json.dumps(key)


def rows_json(value: Any, indent: str = "") -> str:
    """JSON with one line for each row of a list of objects, so that a change shows as a changed line."""
    if isinstance(value, Mapping):
        inner = indent + " "
        parts = [f"{inner}{json.dumps(k)}: {rows_json(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(parts) + "\n" + indent + "}"
    if isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
        return "[\n" + ",\n".join(f"{indent} {json.dumps(row)}" for row in value) + "\n" + indent + "]"
    return json.dumps(value)


def write(folder: Path, manifest: Mapping[str, Any], truth: Mapping[str, Any], about: str) -> None:
    """Write the three files."""
    (folder / "manifest.toml").write_text(toml(manifest))
    (folder / "truth.json").write_text(rows_json(truth) + "\n")
    source = (
        f"# {folder.name}: simulated\n\n{about}\n\nNo device made these traces. They are written by "
        f"`python sample_traces/simulate.py {folder.name}`, the same bytes every time, and may be used under the "
        f"license "
        "of this project.\n\n`truth.json` is worked out from the simulated schedule by code that shares nothing with "
        "the product; its `notes` say how each number is meant.\n"
    )
    (folder / "SOURCE.md").write_text(source)

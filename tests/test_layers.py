"""Who imports whom: the contracts of pyproject.toml hold, and `models` needs nothing but Python."""

import ast
import sys
from pathlib import Path

from importlinter.api import read_configuration
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[1]


def test_the_contracts_hold(capsys):
    config = ROOT / "pyproject.toml"
    assert len(read_configuration(str(config))["contracts_options"]) == 3
    status = lint_imports(config_filename=str(config), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def imported(path):
    """Top-level names that a module imports, and of ours the full ones."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def test_models_import_only_the_standard_library_and_each_other():
    files = sorted((ROOT / "models").rglob("*.py"))
    assert len(files) > 10
    for path in files:
        strange = {
            name
            for name in imported(path)
            if name.partition(".")[0] not in sys.stdlib_module_names and name.partition(".models")[0] != "tracegap"
        }
        assert not strange, f"{path.relative_to(ROOT)} imports {strange}"


def test_imports_are_absolute():
    for folder in ("models", "ingest", "reports", "flows"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = [name for name in imported(path) if name.startswith(".")]
            assert not relative, f"{path.relative_to(ROOT)} imports {relative}"

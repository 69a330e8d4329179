"""What is installed: `tracegap` and nothing else, with every file of the four folders.

The build backend is called as installers call it, in a copy of the tree; no network is needed.
"""

import email
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tracegap

ROOT = Path(__file__).parents[1]
FOLDERS = ("flows", "ingest", "models", "reports")
NOT_SHIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info", ".*")


def build(kind, tree, out):
    """Path of the `wheel` or `sdist` of a source tree."""
    out.mkdir(exist_ok=True)
    code = f"import sys, setuptools.build_meta as backend; print(backend.build_{kind}(sys.argv[1]), file=sys.stderr)"
    command = [sys.executable, "-W", "ignore", "-c", code, out]
    made = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return out / made.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources without what building and testing left in them."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", *FOLDERS):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=NOT_SHIPPED)
    return copy


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory):
    with zipfile.ZipFile(build("wheel", tree, tmp_path_factory.mktemp("wheel"))) as archive:
        yield archive


def shipped(archive):
    return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_only_tracegap(wheel):
    assert {name.split("/")[0] for name in shipped(wheel)} == {"tracegap"}


def test_the_wheel_holds_every_file_of_the_four_folders(wheel, tree):
    """A new folder without __init__.py or a new kind of data file fails here until pyproject.toml knows it."""
    there = {
        f"tracegap/{path.relative_to(tree)}" for name in FOLDERS for path in (tree / name).rglob("*") if path.is_file()
    }
    there |= {f"tracegap/{name}" for name in ("__init__.py", "__main__.py", "py.typed")}
    assert shipped(wheel) == there
    suffixes = {Path(name).suffix for name in there}
    assert suffixes >= {".py", ".toml", ".sql", ".j2", ".typed"}


def test_the_wheel_says_its_version_and_its_command(wheel):
    info = f"tracegap-{tracegap.__version__}.dist-info"
    metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert metadata["Version"] == tracegap.__version__
    assert b"tracegap = tracegap.flows.cli:main" in wheel.read(f"{info}/entry_points.txt")


def test_the_source_archive_builds_the_same_wheel(wheel, tree, tmp_path):
    with tarfile.open(build("sdist", tree, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    with zipfile.ZipFile(build("wheel", tmp_path / f"tracegap-{tracegap.__version__}", tmp_path / "wheel")) as again:
        assert shipped(again) == shipped(wheel)


def test_the_installed_files_work_from_an_archive_without_the_checkout(wheel, tmp_path):
    wheel.extractall(tmp_path)
    code = (
        "import tracegap.flows.cli, tracegap; print(tracegap.__file__); tracegap.flows.cli.main(['hardware', '--json'])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    first, _, rest = ran.stdout.partition("\n")
    assert Path(first).is_relative_to(tmp_path)
    assert "h100_sxm" in rest
